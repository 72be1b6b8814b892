//! Tests of servers that cannot be read, restart, fail over, or get another clock.

use super::*;

/// Connects the model to the server at this address from that instant on.
fn up(model: &mut Model, ms: u64, address: &str, replica: bool) {
    up_with_data(model, ms, address, replica, "one");
}

/// Connects the model to the server at this address, with this replication id, from that instant on.
fn up_with_data(model: &mut Model, ms: u64, address: &str, replica: bool, replid: &str) {
    model.observe(MAIN, Observation::ServerDown);
    let (address, replid) = (address.into(), Some(replid.into()));
    model.observe(MAIN, Observation::ServerAddress { address, replica, replid });
    let (since, at) = (at(ms), SteadyMillis(ms));
    model.observe(MAIN, Observation::ServerUp { since, at, run_id: None, cluster: false });
}

#[test]
fn nothing_changes_while_a_server_cannot_be_read() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    read(&mut model, "b", 0, held(1, 1, None));
    read(&mut model, "b", 1, held(1, 1, Some(1)));
    read(&mut model, "b", 1_000, held(1, 1, None));
    read(&mut model, "b", 7_000, held(1, 1, None));
    model.observe(MAIN, Observation::ServerDown);
    let (a, b) = (shown(&mut model, "a").unwrap(), shown(&mut model, "b").unwrap());
    assert_eq!((a.state, a.holders.len(), a.observed_at()), (State::Unknown, 1, SteadyMillis(1)));
    assert_eq!((b.state, b.problems.len()), (State::Unknown, 1));
    assert!(a.is_listed());
    assert!(model.due(MAIN, at(99_000), 10).is_empty(), "no reads are requested");
    let up = Observation::ServerUp {
        since: at(100_000),
        at: SteadyMillis(100_000),
        run_id: None,
        cluster: false,
    };
    model.observe(MAIN, up);
    assert_eq!(shown(&mut model, "a").unwrap().state, State::Unknown, "not read since");
    assert_eq!(model.due(MAIN, at(100_000), 10).len(), 2);
    read(&mut model, "a", 100_001, held(1, 1, Some(30_000)));
    assert_eq!(shown(&mut model, "a").unwrap().state, State::Held);
}

#[test]
fn locks_lost_in_a_restart_make_one_notice() {
    let mut model = model();
    for i in 0..100 {
        read(&mut model, &format!("lock:{i}"), 0, held(1, 1, Some(30_000)));
    }
    model.observe(MAIN, Observation::ServerDown);
    let up = |run_id: &str| Observation::ServerUp {
        since: at(5_000),
        at: SteadyMillis(5_000),
        run_id: Some(run_id.into()),
        cluster: false,
    };
    model.observe(MAIN, up("two"));
    model.take_effects();
    for i in 0..100 {
        model.tick(at(5_000 + i));
        assert!(model.notices.is_empty());
        let reading = if i < 90 { absent() } else { held(1, 1, Some(9_000)) };
        read(&mut model, &format!("lock:{i}"), 5_000 + i, reading);
    }
    model.tick(at(6_000));
    let (snapshot, _) = model.publish(SteadyMillis(6_000)).unwrap();
    assert_eq!(snapshot.notices.len(), 1);
    assert!(snapshot.notices[0].text.contains("90 held locks"), "{:?}", snapshot.notices);
    let gone = shown(&mut model, "lock:1").unwrap();
    let newest = gone.events.views().next().unwrap();
    assert!(newest.text.contains("restarted"), "{newest:?}");
}

#[test]
fn a_hold_is_lost_in_a_restart_although_another_one_was_read_before_it_was_known() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    model.observe(MAIN, Observation::ServerDown);
    // The connection of the scan is back before that of the reads.
    read_twice(&mut model, "a", 4_000, held(2, 1, Some(30_000)));
    let (since, up_at, run_id) = (at(5_000), SteadyMillis(5_000), Some("two".into()));
    model.observe(MAIN, Observation::ServerUp { since, at: up_at, run_id, cluster: false });
    read(&mut model, "a", 5_001, held(2, 1, Some(29_000)));
    model.tick(at(6_000));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("restarted"), "{view:?}");
    assert_eq!(*view.holders[0].id, holder(2).to_string());
    assert!(model.notices[0].text.contains("1 held lock"), "{:?}", model.notices);
}

#[test]
fn a_second_change_of_the_server_keeps_the_count_of_the_first() {
    let mut model = model();
    up(&mut model, 0, "h:1", false);
    for name in ["a", "b", "c"] {
        read(&mut model, name, 1, held(1, 1, Some(30_000)));
    }
    up(&mut model, 2_000, "h:2", false);
    read(&mut model, "a", 2_001, absent());
    up(&mut model, 3_000, "h:3", false);
    model.tick(at(3_000));
    assert!(model.notices.is_empty(), "two have not been read again");
    read(&mut model, "a", 3_001, absent());
    read(&mut model, "b", 3_002, absent());
    read(&mut model, "c", 3_003, held(1, 1, Some(30_000)));
    model.tick(at(3_500));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(texts, ["h:3 is the master now, without 2 held locks of database 0"]);
}

#[test]
fn a_change_of_the_server_without_losses_is_reported_as_such() {
    let mut model = model();
    up(&mut model, 0, "h:1", false);
    read(&mut model, "kept", 1, held(1, 1, Some(30_000)));
    up(&mut model, 2_000, "h:2", false);
    read(&mut model, "kept", 2_001, held(1, 1, Some(30_000)));
    model.tick(at(2_500));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(texts, ["h:2 is the master now; no held lock of database 0 was gone"]);
}

#[test]
fn a_fixed_lease_that_ended_while_the_server_was_down_is_no_loss() {
    for (after, free) in [(absent(), true), (held(2, 1, Some(30_000)), false)] {
        let mut model = model();
        up(&mut model, 0, "h:1", false);
        read(&mut model, "fixed", 1, held(1, 1, Some(12_000)));
        read(&mut model, "fixed", 3_001, held(1, 1, Some(9_000)));
        read(&mut model, "longer", 3_001, held(1, 1, Some(60_000)));
        up(&mut model, 20_000, "h:2", false);
        read(&mut model, "fixed", 20_001, after);
        read(&mut model, "longer", 20_001, absent());
        model.tick(at(20_500));
        let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
        assert_eq!(texts, ["h:2 is the master now, without 1 held lock of database 0"]);
        for (name, ended) in [("fixed", "vanished"), ("longer", "restarted")] {
            let view = shown(&mut model, name).unwrap();
            assert_eq!(
                view.history.past[0].ended.map(PastEnding::as_str),
                Some(ended),
                "{name} {free}"
            );
        }
    }
}

#[test]
fn locks_lost_with_another_master_make_one_notice_even_without_a_run_id() {
    let mut model = model();
    let at_address = |model: &mut Model, ms: u64, address: &str| {
        model.observe(MAIN, Observation::ServerDown);
        let server =
            Observation::ServerAddress { address: address.into(), replica: false, replid: None };
        model.observe(MAIN, server);
        let (since, at) = (at(ms), SteadyMillis(ms));
        model.observe(MAIN, Observation::ServerUp { since, at, run_id: None, cluster: false });
    };
    at_address(&mut model, 0, "h:1");
    for name in ["kept", "lost"] {
        read(&mut model, name, 1, held(1, 1, Some(30_000)));
    }
    // A change to the same address loses nothing.
    at_address(&mut model, 1_000, "h:1");
    read(&mut model, "kept", 1_001, held(1, 1, Some(30_000)));
    model.tick(at(1_500));
    assert!(model.notices.is_empty());
    at_address(&mut model, 2_000, "h:2");
    read(&mut model, "kept", 2_001, held(1, 1, Some(30_000)));
    model.tick(at(2_500));
    assert!(model.notices.is_empty(), "not all has been read");
    read(&mut model, "lost", 2_501, absent());
    model.tick(at(3_000));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(texts, ["h:2 is the master now, without 1 held lock of database 0"]);
    let lost = shown(&mut model, "lost").unwrap();
    let newest = lost.events.views().next().unwrap();
    assert!(newest.text.contains("taken over without the lock"), "{newest:?}");
    assert!(shown(&mut model, "kept").unwrap().history.past.is_empty());
}

#[test]
fn locks_lost_with_another_master_count_though_others_have_acquired_them_since() {
    let mut model = model();
    let up = |ms: u64, run_id: &str| Observation::ServerUp {
        since: at(ms),
        at: SteadyMillis(ms),
        run_id: Some(run_id.into()),
        cluster: false,
    };
    let reading = |by: u8, mode: Option<&str>| {
        let Reading::Lock { mut hash, ttl, companions } = held(by, 1, Some(30_000)) else {
            panic!("a lock")
        };
        hash.mode = mode.map(|mode| mode.as_bytes().to_vec());
        Reading::Lock { hash, ttl, companions }
    };
    for (name, mode) in [("plain", None), ("read", Some("read"))] {
        read(&mut model, name, 1_000, reading(1, mode));
    }
    model.observe(MAIN, Observation::ServerDown);
    model.observe(MAIN, up(5_000, "two"));
    for (name, mode) in [("plain", None), ("read", Some("read"))] {
        read(&mut model, name, 5_100, reading(2, mode));
    }
    model.tick(at(6_000));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(
        texts,
        ["the server restarted, or another one took over, without 2 held locks of database 0"]
    );
    for name in ["plain", "read"] {
        let view = shown(&mut model, name).unwrap();
        assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("restarted"), "{name}");
    }
}

#[test]
fn a_release_while_a_lagging_replica_was_read_is_no_loss() {
    let mut model = model();
    up(&mut model, 0, "h:2", true);
    read(&mut model, "a", 1, held(1, 1, Some(30_000)));
    up(&mut model, 5_000, "h:1", false);
    read(&mut model, "a", 5_001, absent());
    model.tick(at(5_500));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(texts, ["h:1 is read from now on"]);
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("vanished"));
}

#[test]
fn locks_lost_by_a_master_that_restarted_are_reported_although_its_replica_was_read() {
    let mut model = model();
    up(&mut model, 0, "h:2", true);
    // The lock is renewed, and its lease is about to end when the master restarts.
    read(&mut model, "lost", 1, held(1, 1, Some(30_000)));
    read(&mut model, "lost", 10_001, held(1, 1, Some(30_000)));
    read(&mut model, "lost", 20_001, held(1, 1, Some(30_000)));
    read(&mut model, "lost", 49_900, held(1, 1, Some(101)));
    up_with_data(&mut model, 50_000, "h:1", false, "two");
    read(&mut model, "lost", 50_001, absent());
    model.tick(at(50_500));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    let notice = "h:1 is read from now on, without 1 held lock of database 0";
    assert_eq!(texts, [notice]);
    let view = shown(&mut model, "lost").unwrap();
    assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("restarted"));
    assert!(view.problems.is_empty(), "{:?}", view.problems);
}

#[test]
fn a_server_whose_clock_is_set_gets_a_notice() {
    let mut model = model();
    up(&mut model, 0, "h:1", false);
    let notices = |model: &mut Model, ahead_ms| {
        let at = SteadyMillis(1);
        model.observe(MAIN, Observation::Clock { ahead_ms, at });
        model.notices.iter().map(|notice| notice.text.clone()).collect::<Vec<_>>()
    };
    // The first reading proves nothing, and small differences are those of the readings themselves.
    for ahead_ms in [7_000_000, 7_002_000, 7_000_000] {
        assert_eq!(notices(&mut model, ahead_ms), [""; 0]);
    }
    let texts = notices(&mut model, 3_400_000);
    assert!(texts[0].starts_with("the clock of h:1 was set back by 3600 s: "), "{texts:?}");
    assert_eq!(notices(&mut model, 3_400_000).len(), 1);
    let texts = notices(&mut model, 3_460_000);
    assert!(texts[0].starts_with("the clock of h:1 is 60 s further ahead of this host's: it was set, or this host was paused."), "{texts:?}");
    // Another server has another clock.
    up(&mut model, 5_000, "h:2", false);
    let before = model.notices.len();
    assert_eq!(notices(&mut model, 0).len(), before);
}

#[test]
fn a_release_by_an_operator_during_a_failover_is_no_loss() {
    let mut model = model();
    up(&mut model, 0, "h:1", false);
    for lock in ["forced", "lost"] {
        read(&mut model, lock, 1, held(1, 1, Some(30_000)));
    }
    let (holders, at_once) = (vec![holder(1)], at(4_900));
    model.observe(MAIN, Observation::ForceRelease { name: name("forced"), holders, at: at_once });
    up(&mut model, 5_000, "h:2", false);
    for (lock, ended) in [("forced", "forced"), ("lost", "restarted")] {
        read(&mut model, lock, 5_001, absent());
        let view = shown(&mut model, lock).unwrap();
        assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some(ended), "{lock}");
    }
    model.tick(at(5_500));
    let text = &model.notices.front().unwrap().text;
    assert!(text.contains("1 held lock of"), "{text}");
}

#[test]
fn another_replica_that_is_read_by_choice_is_not_a_new_master() {
    let mut model = model();
    up(&mut model, 0, "h:1", false);
    read(&mut model, "kept", 1, held(1, 1, Some(30_000)));
    for (ms, address, replica) in [(1_000, "h:2", true), (2_000, "h:1", false)] {
        up(&mut model, ms, address, replica);
        read(&mut model, "kept", ms + 1, held(1, 1, Some(30_000)));
        model.tick(at(ms + 500));
    }
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(texts, ["h:1 is read from now on", "h:2 is read from now on"]);
    assert!(shown(&mut model, "kept").unwrap().history.past.is_empty());
}

#[test]
fn a_failover_has_lost_no_hold_that_was_seen_after_it_and_no_reader_that_left_others() {
    let mut model = model();
    let readers = |of: &[u8]| {
        let holders = of.iter().map(|n| Holder { id: holder(*n), count: 1 }).collect();
        let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
        let ttl = Some(Duration::from_secs(30));
        Reading::Lock { hash, ttl, companions: Companions::default() }
    };
    up(&mut model, 0, "h:1", false);
    for (lock, of) in [("kept", &[1][..]), ("left", &[1, 2]), ("lost", &[1, 2]), ("slow", &[1])] {
        read(&mut model, lock, 1, readers(of));
    }
    up(&mut model, 2_000, "h:2", false);
    read(&mut model, "kept", 2_001, readers(&[1]));
    read(&mut model, "left", 2_001, readers(&[2]));
    read(&mut model, "lost", 2_001, absent());
    read_twice(&mut model, "kept", 3_000, readers(&[3]));
    read_twice(&mut model, "left", 3_000, readers(&[3]));
    read(&mut model, "slow", 4_000, readers(&[1]));
    model.tick(at(4_500));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(texts, ["h:2 is the master now, without 1 held lock of database 0"]);
    for (lock, ended) in [
        ("kept", &["released"][..]),
        ("left", &["released", "released"]),
        ("lost", &["restarted", "restarted"]),
    ] {
        let view = shown(&mut model, lock).unwrap();
        let past: Vec<_> = view
            .history
            .past
            .iter()
            .filter_map(|past| past.ended.map(PastEnding::as_str))
            .collect();
        assert_eq!(past, ended, "{lock}");
    }
}

#[test]
fn an_end_that_a_reading_showed_before_a_failover_is_no_loss() {
    let mut model = model();
    up(&mut model, 0, "h:1", false);
    read(&mut model, "a", 1, held(1, 1, Some(30_000)));
    // This reading waits for a message that does not come.
    read(&mut model, "a", 4_900, absent());
    up(&mut model, 5_000, "h:2", false);
    read(&mut model, "a", 5_200, absent());
    model.tick(at(5_500));
    let texts: Vec<&str> = model.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(texts, ["h:2 is the master now; no held lock of database 0 was gone"]);
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("vanished"));
    assert_eq!(view.history.past[0].to, Some(SteadyMillis(4_901)));
}
