//! The events that commands amount to.

use super::*;
use std::time::Duration;

const ACQUIRE: &str = "149c5a8bf18676fd99e9e6e24923bd64d9b62f94";
const RELEASE: &str = "6866459238a13a701d42f4971f12d9f3a50e2442";
const LATCH: &str = "redisson_unlock_latch:{a}:974d7768d38898168d0afeebcf2bc91d";
/// An unknown digest.
const UNKNOWN: &str = "0123456789012345678901234567890123456789";

fn master() -> Stream {
    Stream::new(ServerRole::Master)
}

fn acquire(stream: &mut Stream, script: &str, holder: &str, commands: &[&str]) {
    stream.client(&format!("EVALSHA {script} 1 a 30000 {holder}"));
    for command in commands {
        stream.lua(&command.replace('H', holder));
    }
}

fn release(stream: &mut Stream, holder: &str, commands: &[&str]) {
    let channel = "redisson_lock__channel:{a}";
    stream
        .client(&format!("EVALSHA {RELEASE} 3 a {channel} {LATCH} 0 30000 {holder} PUBLISH 16488"));
    for command in commands {
        stream.lua(&command.replace('H', holder).replace("LATCH", LATCH));
    }
}

const FREE: [&str; 3] = ["exists a", "hincrby a H 1", "pexpire a 30000"];
const AGAIN: [&str; 4] = ["exists a", "hexists a H", "hincrby a H 1", "pexpire a 30000"];
const REFUSED: [&str; 3] = ["exists a", "hexists a H", "pttl a"];

#[test]
fn a_plain_lock_is_acquired_reentered_refused_and_released() {
    let mut stream = master();
    acquire(&mut stream, ACQUIRE, H, &FREE);
    acquire(&mut stream, ACQUIRE, H, &AGAIN);
    acquire(&mut stream, ACQUIRE, OTHER, &REFUSED);
    release(&mut stream, H, &["get LATCH", "hexists a H", "hincrby a H -1", "pexpire a 30000"]);
    release(
        &mut stream,
        H,
        &["get LATCH", "hexists a H", "hincrby a H -1", "del a", "PUBLISH c 0"],
    );
    release(&mut stream, H, &["get LATCH", "hexists a H"]);
    release(&mut stream, H, &["get LATCH"]);
    assert_eq!(
        stream.seen(),
        [
            "acquired a lock H Some(30s)",
            "reentered a lock H Some(30s) None",
            "refused a lock O",
            "partly_released a lock H",
            "released a lock H",
            "release_found_nothing a lock H",
        ]
    );
}

#[test]
fn an_event_has_its_time_database_and_client() {
    let mut stream = master();
    stream.print("3 [::1]:33670", &format!("EVALSHA {ACQUIRE} 1 a 30000 {H}"));
    stream.print("3 lua", "exists a").print("3 lua", &format!("hincrby a {H} 1"));
    stream.print("3 lua", "pexpire a 30000");
    let [event] = &stream.events()[..] else { panic!() };
    assert_eq!((event.at_micros, event.db), (1_795_217_440_976_640, 3));
    assert_eq!(event.client, Some(Address::Tcp("[::1]:33670".parse().unwrap())));
    assert_eq!(event.action, Action::Acquired { lease: Some(Duration::from_secs(30)) });
}

#[test]
fn a_rejected_or_failed_script_grants_nothing() {
    let mut stream = master();
    acquire(&mut stream, ACQUIRE, H, &[]);
    assert!(stream.seen().is_empty(), "the server did not know the script");
    acquire(&mut stream, ACQUIRE, H, &["exists a"]);
    assert_eq!(stream.seen(), ["failed a lock H"]);
    acquire(&mut stream, ACQUIRE, H, &FREE);
    acquire(&mut stream, ACQUIRE, OTHER, &REFUSED);
    release(&mut stream, H, &["get LATCH", "hexists a H"]);
    // The holder had it a moment ago: more likely the server is full.
    assert_eq!(stream.seen()[2], "release_found_nothing? a lock H");
}

#[test]
fn a_batch_renewal_reports_each_lock_and_a_lost_one() {
    let mut stream = master();
    let batch = "6a3d31570dc6f4b0bd32bcdc8e75667747c6f635";
    stream.client(&format!("EVALSHA {batch} 3 a b w 30000 {H} {OTHER} {H}:write"));
    stream.lua(&format!("hexists a {H}")).lua("pexpire a 30000");
    stream.lua(&format!("hexists b {OTHER}"));
    stream.lua(&format!("hexists w {H}:write")).lua("pexpire w 30000");
    let seen = [
        "renewed a - H Some(30s)",
        "renewal_found_nothing b - O",
        "renewed w write H:write Some(30s)",
    ];
    assert_eq!(stream.seen(), seen);
}

#[test]
fn unknown_scripts_are_classified_by_their_commands() {
    let mut stream = master();
    for (commands, seen) in [
        (&FREE[..], "acquired? a lock H Some(30s)"),
        (&AGAIN, "reentered? a lock H Some(30s) None"),
        (&REFUSED, "refused? a lock H"),
        (&["hexists a H", "pexpire a 5000"], "renewed? a - H Some(5s)"),
        (&["hexists a H"], "renewal_found_nothing? a - H"),
        (&["hexists a H", "hincrby a H -1", "del a"], "released? a - H"),
    ] {
        acquire(&mut stream, UNKNOWN, H, commands);
        assert_eq!(stream.seen(), [seen]);
    }
    let channel = "redisson_lock__channel:{a}";
    stream.client(&format!("EVALSHA {UNKNOWN} 2 a {channel} 0 PUBLISH"));
    stream.lua("del a").lua(&format!("PUBLISH {channel} 0"));
    assert_eq!(stream.seen(), ["force_released? a lock -"]);
    stream.client(&format!("FCALL take 1 a 30000 {H}"));
    stream.lua(&format!("hset a {H} 1")).lua("pexpire a 30000");
    assert_eq!(stream.seen(), ["acquired? a lock H Some(30s)"]);
}

#[test]
fn a_script_is_recognized_by_its_source_too() {
    let mut stream = master();
    let own = crate::script::ACQUIRE.source;
    for _ in 0..2 {
        let args: [&[u8]; 8] = [
            b"EVAL",
            own.as_bytes(),
            b"3",
            b"a",
            b"redisson_lock_queue:{a}",
            b"redisson_lock_timeout:{a}",
            H.as_bytes(),
            b"10000",
        ];
        stream.decoder.feed_line(&printed("0 unix:/run/r.sock", &args), &mut stream.events);
        stream.lua("EXISTS a redisson_lock_queue:{a}");
        stream.lua(&format!("HSET a {H} 1")).lua("PEXPIRE a 10000");
        let [event] = &stream.events()[..] else { panic!() };
        assert_eq!(shown(event), "acquired a lock H Some(10s)");
        assert_eq!(event.client, Some(Address::Unix));
    }
}

#[test]
fn a_fair_queue_is_tracked() {
    let mut stream = master();
    let (queue, deadlines) = ("redisson_lock_queue:{a}", "redisson_lock_timeout:{a}");
    let take = "8f6ed299ffd259f0539c20f89253998c0777ea75";
    stream.client(&format!(
        "EVALSHA {take} 3 a {queue} {deadlines} 30000 {OTHER} 300000 1795217440976"
    ));
    stream.lua(&format!("lindex {queue} 0")).lua("exists a").lua(&format!("hexists a {OTHER}"));
    stream.lua(&format!("zscore {deadlines} {OTHER}")).lua("pttl a");
    stream
        .lua(&format!("zadd {deadlines} 1795217770976 {OTHER}"))
        .lua(&format!("rpush {queue} {OTHER}"));
    assert_eq!(stream.seen(), ["queued a fair O 1795217770976"]);
    stream
        .client(&format!("EVALSHA {take} 3 a {queue} {deadlines} 30000 {H} 300000 1795218440976"));
    stream.lua(&format!("lindex {queue} 0")).lua(&format!("zscore {deadlines} {OTHER}"));
    stream.lua(&format!("zrem {deadlines} {OTHER}")).lua(&format!("lpop {queue}"));
    stream.lua("exists a").lua(&format!("exists {queue}")).lua(&format!("lpop {queue}"));
    stream
        .lua(&format!("zrem {deadlines} {H}"))
        .lua(&format!("hset a {H} 1"))
        .lua("pexpire a 30000");
    assert_eq!(stream.seen(), ["dropped_from_queue a fair O", "acquired a fair H Some(30s)"]);
    let leave = "d1ddef65ad80886b5d36e023c99930044ddd653a";
    stream.client(&format!("EVALSHA {leave} 2 {queue} {deadlines} {OTHER} 300000"));
    stream.lua(&format!("lrange {queue} 0 -1")).lua(&format!("zrem {deadlines} {OTHER}"));
    stream.lua(&format!("lrem {queue} 0 {OTHER}"));
    assert_eq!(stream.seen(), ["left_queue a fair O"]);
}

#[test]
fn the_release_of_a_fair_hold_by_an_agent_follows_from_its_lease() {
    let mut stream = master();
    let (queue, deadlines) = ("redisson_lock_queue:{a}", "redisson_lock_timeout:{a}");
    let take = |stream: &mut Stream, db: u32, holder: &str| {
        let script = "8f6ed299ffd259f0539c20f89253998c0777ea75";
        let call =
            format!("EVALSHA {script} 3 a {queue} {deadlines} 30000 {holder} 300000 1795218440976");
        stream.print(&format!("{db} 127.0.0.1:52958"), &call);
        for command in [
            format!("zrem {deadlines} {holder}"),
            format!("hset a {holder} 1"),
            "pexpire a 30000".to_owned(),
        ] {
            stream.print(&format!("{db} lua"), &command);
        }
        assert_eq!(stream.seen().len(), 1);
    };
    let release = |stream: &mut Stream, is_late: bool| {
        let script = crate::script::RELEASE_FAIR.sha();
        let call = format!("EVALSHA {script} 3 a {queue} {deadlines} {H} 300000 1 c 0 PUBLISH");
        for (source, words) in [
            ("0 127.0.0.1:52958", call),
            ("0 lua", format!("HDEL a {H}")),
            ("0 lua", "EXISTS a".to_owned()),
        ] {
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            let mut line = printed(source, &words);
            if is_late {
                // Some minutes later.
                line[7] = b'9';
            }
            stream.decoder.feed_line(&line, &mut stream.events);
        }
        stream.seen()
    };
    stream.decoder.record_lock(&crate::LockName::new(&b"a"[..]).unwrap());
    assert_eq!(release(&mut stream, false), ["released? a fair H"], "taken unseen");
    take(&mut stream, 0, H);
    assert_eq!(release(&mut stream, false), ["released a fair H"]);
    take(&mut stream, 0, H);
    assert_eq!(release(&mut stream, true), ["release_found_nothing? a fair H"]);
    take(&mut stream, 0, H);
    stream.decoder.reset(ServerRole::Master);
    assert_eq!(release(&mut stream, true), ["released? a fair H"], "renewals may be unseen");
    take(&mut stream, 0, OTHER);
    assert_eq!(release(&mut stream, false), ["release_found_nothing? a fair H"]);
    take(&mut stream, 0, OTHER);
    stream.decoder.reset(ServerRole::Master);
    assert_eq!(
        release(&mut stream, false),
        ["released? a fair H"],
        "it may have been acquired unseen"
    );
    take(&mut stream, 0, H);
    take(&mut stream, 1, OTHER);
    assert_eq!(release(&mut stream, false), ["released? a fair H"], "another database");
}

#[test]
fn an_attempt_that_only_removes_a_dead_waiter_is_refused() {
    let mut stream = master();
    let (queue, deadlines) = ("redisson_lock_queue:{a}", "redisson_lock_timeout:{a}");
    let take = "8f6ed299ffd259f0539c20f89253998c0777ea75";
    stream
        .client(&format!("EVALSHA {take} 3 a {queue} {deadlines} 30000 {H} 300000 1795218440976"));
    stream.lua(&format!("lindex {queue} 0")).lua(&format!("zscore {deadlines} {OTHER}"));
    stream.lua(&format!("zrem {deadlines} {OTHER}")).lua(&format!("lpop {queue}"));
    stream.lua("exists a").lua(&format!("hexists a {H}"));
    assert_eq!(stream.seen(), ["dropped_from_queue a fair O", "refused a fair H"]);
}

#[test]
fn a_second_read_hold_is_a_reentry() {
    let mut stream = master();
    let take = "95553a6ff11176c18e71344e89d116b06fd6f753";
    let prefix = format!("{{a}}:{H}:rwlock_timeout");
    for n in 1..=2 {
        stream.client(&format!("EVALSHA {take} 2 a {prefix} 30000 {H} {H}:write"));
        stream.lua("hget a mode").lua(&format!("hincrby a {H} 1"));
        stream.lua(&format!("set {prefix}:{n} 1")).lua("pttl a").lua("pexpire a 30000");
    }
    let seen = ["acquired a read H Some(30s)", "reentered a read H Some(30s) Some(2)"];
    assert_eq!(stream.seen(), seen);
    stream.client(&format!("EVALSHA {take} 2 a {prefix} 30000 {H} {H}:write"));
    stream.lua("hget a mode").lua(&format!("hexists a {H}:write")).lua("pttl a");
    assert_eq!(stream.seen(), ["refused a read H"]);
}

#[test]
fn a_ttl_is_a_lease_only_on_a_known_lock() {
    let mut stream = master();
    let expire = "3fd750e0b43af99dbd223e5523718f18cded3664";
    for name in ["cache", "a"] {
        acquire(&mut stream, ACQUIRE, H, &FREE);
        stream
            .client(&format!("EVALSHA {expire} 1 {name} 60000 x"))
            .lua(&format!("pexpire {name} 60000"));
    }
    let taken = "acquired a lock H Some(30s)";
    assert_eq!(stream.seen(), [taken, taken, "renewed? a - H Some(60s)"]);
}

#[test]
fn old_scripts_report_only_the_renewing_reader() {
    let mut stream = master();
    stream.client(&format!("EVALSHA 6563941ff57e01b8cf61e86907b80686438a2f74 2 a {{a}} 30000 {H}"));
    stream.lua(&format!("hget a {H}")).lua("pexpire a 30000").lua("hkeys a");
    stream
        .lua(&format!("hget a {OTHER}"))
        .lua(&format!("pexpire {{a}}:{OTHER}:rwlock_timeout:1 30000"));
    assert_eq!(stream.seen(), ["renewed a read H Some(30s)"]);
}

#[test]
fn a_replicas_stream_is_decoded() {
    let mut stream = Stream::new(ServerRole::Replica);
    stream.client("MULTI").client(&format!("hincrby a {H} 1"));
    stream.client("PEXPIREAT a 1795217470976").client("EXEC");
    let events = stream.events();
    assert_eq!(shown(&events[0]), "acquired? a - H Some(30s)");
    assert_eq!(events[0].client, None);
    stream.client("PEXPIREAT a 1795217470976").client("PEXPIREAT app 1795217470976");
    stream.client("MULTI").client(&format!("hincrby a {H} 1"));
    stream.client("PEXPIREAT a 1795217470976").client("EXEC");
    stream.client("MULTI").client(&format!("hincrby a {H} -1"));
    stream.client("PEXPIREAT a 1795217470976").client("EXEC");
    stream.client("MULTI").client(&format!("hincrby a {H} -1")).client("del a");
    stream.client("PUBLISH redisson_lock__channel:{a} 0").client("EXEC");
    stream.client("DEL other").client("DEL a");
    assert_eq!(
        stream.seen(),
        [
            "renewed? a - H Some(30s)",
            "reentered? a - H Some(30s) None",
            "partly_released? a - H",
            "released? a - H",
            "vanished? a - -",
        ]
    );
}

#[test]
fn consecutive_bare_commands_are_separate_actions() {
    let mut stream = master();
    stream.client(&format!("HINCRBY a {H} 1")).client(&format!("HINCRBY a {H} 1"));
    stream.client("PEXPIRE a 5000").client(&format!("HINCRBY b {H} 1"));
    assert_eq!(
        stream.seen(),
        ["acquired? a - H None", "reentered? a - H Some(5s) None", "acquired? b - H None"]
    );
}

#[test]
fn keys_and_fields_that_are_removed_by_hand_are_reported_even_of_unknown_locks() {
    let mut stream = master();
    stream.client("DEL x redisson_lock_queue:{x} y").client("unlink z").client("RENAME a b");
    stream.client("EXPIRE a 0").client("PEXPIRE a -1").client("EXPIREAT a 1795217440");
    stream.client("PEXPIREAT a 1795217440000");
    let key = |name: &str| format!("removed? {name} - -");
    assert_eq!(stream.seen(), ["x", "y", "z", "a", "a", "a", "a", "a"].map(key));
    // Redis need not obey a condition, and these end nothing yet.
    stream.client("EXPIRE a 0 NX").client("EXPIRE a 9").client("EXPIREAT a 1795217999");
    assert!(stream.seen().is_empty());
    stream.client(&format!("HDEL a {H}")).client("GET k").client(&format!("HDEL a {H} {OTHER}"));
    assert_eq!(stream.seen(), ["removed? a - H", "removed? a - -"]);
    // Another client library may release a lock like this.
    stream.client(&format!("HDEL a {H}")).client("PUBLISH redisson_lock__channel:{a} 0");
    assert_eq!(stream.seen(), ["released? a - H"]);
    // A script that is not about locks.
    stream.client("EVAL script 1 a").lua("DEL a").lua("GET a");
    assert_eq!(stream.seen(), [key("a")]);
    acquire(&mut stream, UNKNOWN, OTHER, &["del a", "hset a H 1", "pexpire a 30000"]);
    assert_eq!(stream.seen(), [key("a"), "acquired? a lock O Some(30s)".to_owned()]);
    let many: String = (0..5_000).map(|number| format!(" cache:{number}")).collect();
    stream.client(&format!("DEL{many}"));
    assert_eq!(stream.seen().len(), 1_000);
}

#[test]
fn subscriptions_reveal_waiters() {
    let mut stream = master();
    acquire(&mut stream, ACQUIRE, H, &FREE);
    stream.client("SUBSCRIBE redisson_lock__channel:{a}");
    stream.client(&format!("SSUBSCRIBE redisson_lock__channel:{{f}}:{H} news"));
    stream.client("UNSUBSCRIBE redisson_lock__channel:{a}").client("SUBSCRIBE news");
    let seen = ["subscribed a - -", "subscribed f - H", "unsubscribed a - -"];
    assert_eq!(stream.seen()[1..], seen);
    assert_eq!(stream.decoder.counts().other, 1);
}

#[test]
fn our_own_scripts_are_decoded() {
    use crate::script::{HAND_OVER, RELEASE, RENEW};
    let mut stream = master();
    stream.client(&format!("EVALSHA {} 3 a b c 10000 2 {H} {OTHER} {H}", RENEW.sha()));
    stream.lua(&format!("HGET a {H}")).lua("PEXPIRE a 10000 GT");
    stream.lua(&format!("HSET a {H} 2"));
    stream.lua(&format!("HGET b {OTHER}")).lua("EXISTS b");
    stream.lua(&format!("HGET c {H}")).lua("PEXPIRE c 10000 GT");
    // A lease that is already longer.
    stream.client(&format!("EVALSHA {} 1 c 10000 1 {H}", RENEW.sha()));
    stream.lua(&format!("HGET c {H}")).lua("PEXPIRE c 10000 GT").lua("PTTL c");
    stream.lua("PEXPIRE c 40000");
    stream.client(&format!("EVALSHA {} 1 a {H} {OTHER} 10000 ch", HAND_OVER.sha()));
    stream.lua(&format!("HEXISTS a {H}")).lua("PEXPIRE a 10000").lua(&format!("HSET a {OTHER} 1"));
    stream.lua(&format!("HDEL a {H}")).lua("PUBSUB NUMSUB ch");
    stream.client(&format!("EVALSHA {} 1 a {OTHER} ch 0 PUBLISH", RELEASE.sha()));
    stream.lua(&format!("HDEL a {OTHER}")).lua("EXISTS a").lua("PUBLISH ch 0");
    stream.client(&format!("EVALSHA {} 1 a {OTHER} ch 0 PUBLISH", RELEASE.sha()));
    stream.lua(&format!("HDEL a {OTHER}")).lua("EXISTS a");
    assert_eq!(
        stream.seen(),
        [
            "recounted a - H 2",
            "renewal_found_nothing b - O",
            "renewed c - H Some(10s)",
            "renewed c - H Some(40s)",
            "handed_over a - H Some(10s) to O",
            "released a lock O",
            "release_found_nothing? a lock O",
        ]
    );
}

/// The agent's account may lack the right to publish. Redis shows no command that it refuses in a script.
#[test]
fn a_release_by_an_agent_without_a_message_follows_from_the_known_holder() {
    let mut stream = master();
    let release = |stream: &mut Stream| {
        stream.client(&format!("EVALSHA {} 1 a {H} ch 0 PUBLISH", crate::script::RELEASE.sha()));
        stream.lua(&format!("HDEL a {H}")).lua("EXISTS a");
        stream.seen()
    };
    stream.decoder.record_lock(&crate::LockName::new(&b"a"[..]).unwrap());
    assert_eq!(release(&mut stream), ["released? a lock H"], "taken unseen");
    assert_eq!(release(&mut stream), ["release_found_nothing? a lock H"]);
    acquire(&mut stream, ACQUIRE, H, &FREE);
    assert_eq!(release(&mut stream)[1..], ["released? a lock H"]);
    acquire(&mut stream, ACQUIRE, OTHER, &FREE);
    assert_eq!(release(&mut stream)[1..], ["release_found_nothing? a lock H"]);
}

#[test]
fn other_traffic_is_ignored_and_closes_the_open_unit() {
    let mut stream = master();
    acquire(&mut stream, ACQUIRE, H, &FREE[..2]);
    stream.client("GET secret").lua("pexpire a 30000");
    assert_eq!(stream.seen(), ["acquired a lock H None"]);
    stream.client(&format!("EVALSHA {UNKNOWN} 1 cart 5 7")).lua("hincrby cart 5 7");
    stream.client("HSET config mode dark").client("HINCRBY votes 7 1").client("PEXPIRE k 9");
    stream.client("EVALSHA 8ad44f1ba014938c20da38206b6d496c85ec1aed 1 rw").lua("hget rw mode");
    stream.client("MULTI").client("EXEC").client("PUBLISH news 0");
    stream.client(&format!("EVALSHA {UNKNOWN} x {H}")).client(&format!("EVALSHA {UNKNOWN} 9 {H}"));
    assert!(stream.seen().is_empty());
    assert_eq!(stream.decoder.counts().lock, 3 + 1, "a hash with a mode is looked at");
}

#[test]
fn the_lines_behind_each_event_are_kept_while_they_are_traced() {
    let mut stream = master();
    acquire(&mut stream, ACQUIRE, H, &FREE);
    assert_eq!((stream.seen().len(), stream.decoder.take_lines().len()), (1, 0));
    stream.decoder.trace_lines(true);
    acquire(&mut stream, ACQUIRE, OTHER, &REFUSED);
    stream.client("SET unrelated value");
    stream.client("SUBSCRIBE redisson_lock__channel:{a}");
    release(&mut stream, H, &["get LATCH", "hexists a H", "hincrby a H -1", "del a"]);
    let seen = stream.seen();
    assert_eq!(seen, ["refused a lock O", "subscribed a - -", "released a lock H"]);
    let lines = stream.decoder.take_lines();
    let lines: Vec<&str> = lines.iter().map(|text| std::str::from_utf8(text).unwrap()).collect();
    assert_eq!(lines.len(), seen.len());
    for (text, words) in lines.iter().zip([
        &["EVALSHA", OTHER, "\"pttl\" \"a\""][..],
        &["SUBSCRIBE"],
        &["EVALSHA", "\"del\" \"a\""],
    ]) {
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(!text.contains("unrelated"), "{text}");
    }
    // A connection that ends leaves nothing of an open unit behind.
    stream.client(&format!("EVALSHA {ACQUIRE} 1 a 30000 {H}"));
    stream.decoder.reset(ServerRole::Master);
    acquire(&mut stream, ACQUIRE, H, &AGAIN);
    assert_eq!(stream.seen(), ["reentered a lock H Some(30s) None"]);
    assert_eq!(stream.decoder.take_lines()[0].iter().filter(|byte| **byte == b'\n').count(), 4);
}
