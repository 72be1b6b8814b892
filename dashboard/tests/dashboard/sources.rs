//! Tests of the sources: locks are found and followed.

use std::time::Duration;

use redis::cmd;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::http::required;
use crate::redis_server::{HOLDER, RedisServer, red_group, release, run, take, thread};
use crate::serving::{Dashboard, PATIENCE, encoded};

const AGENT: &str = "7c1e5a90-3b1d-4f5e-9d42-18f0a6b2c3d4";
/// A random number like those that agents choose.
const NUMBER: i64 = 1_927_612_615_576_518_676;

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_found_followed_and_remembered() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.source_when("channels", "on").await;
    take(&mut redis, b"orders:1", HOLDER, 30_000);
    dashboard.listed_when("", &["orders:1"]).await;
    let lock = dashboard.lock_when("orders:1", |lock| lock["state"] == "held").await;
    assert_eq!(lock["holders"][0]["id"], HOLDER);
    assert_eq!(lock["holders"][0]["thread"], "52");
    assert_eq!((&lock["kind"], &lock["confirmed"]), (&json!("lock"), &json!(true)));
    assert!(lock["ttl_ms"].as_u64().unwrap() <= 30_000);

    take(&mut redis, b"orders:1", HOLDER, 30_000);
    dashboard.lock_when("orders:1", |lock| lock["holders"][0]["count"] == 2).await;

    release(&mut redis, "orders:1");
    dashboard.listed_when("", &[]).await;
    let lock = dashboard.lock_when("orders:1", |lock| lock["state"] == "free").await;
    let events: Vec<&str> =
        lock["events"].as_array().unwrap().iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["released", "reentered", "taken"]);
    assert!(lock["sources"].as_array().unwrap().contains(&json!("channels")), "{lock}");
    dashboard.stop().await;
}

/// A server whose memory is full queues no command of a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_full_server_are_found_and_followed() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = Dashboard::start(&server.url()).await;
    take(&mut redis, b"before", HOLDER, 30_000);
    take(&mut redis, b"other", HOLDER, 600_000);
    dashboard.listed_when("", &["before", "other"]).await;
    run::<()>(&mut redis, &["CONFIG", "SET", "maxmemory", "1"]);
    run::<()>(&mut redis, &["PEXPIRE", "before", "600000"]);
    dashboard.lock_when("before", |lock| lock["ttl_ms"].as_u64() > Some(30_000)).await;
    let later = Dashboard::start(&server.url()).await;
    later.listed_when("", &["before", "other"]).await;
    let lock = later.lock_when("before", |lock| lock["state"] == "held").await;
    assert_eq!(lock["holders"][0]["id"], HOLDER);
    run::<()>(&mut redis, &["DEL", "before"]);
    run::<()>(&mut redis, &["PUBLISH", "redisson_lock__channel:{before}", "0"]);
    dashboard.listed_when("", &["other"]).await;
    dashboard.stop().await;
    later.stop().await;
}

/// An agent publishes the release of a write lock twice, so that no thread of Redisson misses it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_published_twice_is_one() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = Dashboard::start(&server.url()).await;
    let subscribed = async {
        while run::<i64>(&mut redis, &["PUBSUB", "NUMPAT"]) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, subscribed).await.expect("the dashboard subscribes");
    let say = |redis: &mut redis::Connection, message: &str| {
        run::<i64>(redis, &["PUBLISH", "redisson_rwlock:{ledger}", message]);
    };
    for releases in 1..=3 {
        say(&mut redis, "1");
        // Each message is received separately: no two of them arrive in one piece.
        dashboard.lock_when("ledger", |lock| told(lock) == releases).await;
        say(&mut redis, "00");
    }
    // Once this message is received, those before it have been received too.
    run::<i64>(&mut redis, &["PUBLISH", "redisson_lock__channel:{other}", "0"]);
    dashboard.lock_when("other", |lock| told(lock) == 1).await;
    let ledger = dashboard.lock_when("ledger", |lock| lock["state"] == "free").await;
    assert_eq!(told(&ledger), 3, "{ledger}");
}

/// Returns the number of release messages in a lock's events. Consecutive ones are combined into one event.
fn told(lock: &Value) -> u64 {
    let events = lock["events"].as_array().into_iter().flatten();
    let count = |event: &Value| {
        let text = event["text"].as_str().unwrap_or_default();
        text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(1)
    };
    events.filter(|event| event["event"] == "released").map(count).sum()
}

/// With so many keys and so rare scans, only messages and polls can notice a change.
#[tokio::test(flavor = "multi_thread")]
async fn between_passes_known_locks_are_seen_taken_again() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    for i in 0..200_000 / 1000 {
        let mut pipe = redis::pipe();
        for n in 0..1000 {
            pipe.cmd("SET").arg(format!("other:{i}:{n}")).arg("x");
        }
        pipe.exec(&mut redis).unwrap();
    }
    for i in 0..2_000 {
        let fields = ["colour", "red", "size", "9"];
        run::<i64>(&mut redis, &[&["HSET", &format!("session:{i}")], &fields[..]].concat());
    }
    take(&mut redis, b"orders:1", HOLDER, 600_000);
    let dashboard = Dashboard::with(&["--redis-url", &server.url(), "--scan-every", "1h"]).await;
    dashboard.listed_when("", &["orders:1"]).await;
    let sources = dashboard.json_when("/api/v1/sources", |s| s["first_scan"].is_null()).await;
    assert_eq!(sources["counts"]["held"], 1);
    for _ in 0..5 {
        release(&mut redis, "orders:1");
        dashboard.listed_when("", &[]).await;
        let other = thread(53);
        take(&mut redis, b"orders:1", &other, 600_000);
        dashboard.lock_when("orders:1", |lock| lock["holders"][0]["id"] == other.as_str()).await;
    }
    // The release message of a lock that was never seen reveals its name.
    release(&mut redis, "quick");
    dashboard.lock_when("quick", |lock| lock["state"] == "free").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_that_only_look_like_locks_are_listed_separately() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<i64>(&mut redis, &["HSET", "cart", HOLDER, "3"]);
    run::<i64>(&mut redis, &["HSET", "long", HOLDER, &"9".repeat(5_000)]);
    run::<i64>(&mut redis, &["HSET", "mixed", HOLDER, "1", "colour", "red"]);
    run::<i64>(&mut redis, &["HSET", "queued", HOLDER, "1"]);
    run::<i64>(&mut redis, &["RPUSH", "redisson_lock_queue:{queued}", HOLDER]);
    run::<i64>(&mut redis, &["RPUSH", "redisson_lock_queue:{awaited}", HOLDER]);
    run::<String>(&mut redis, &["SET", "redisson_lock_queue:{odd}", "a string"]);
    take(&mut redis, b"odd", HOLDER, 60_000);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["awaited", "odd", "queued"]).await;
    dashboard.listed_when("filter=confirmed:no", &["cart"]).await;
    dashboard.listed_when("filter=kind:fair", &["awaited", "queued"]).await;
    let odd = dashboard.lock_when("odd", |lock| lock["state"] == "held").await;
    assert_eq!((&odd["kind"], &odd["queued"]), (&json!("lock"), &json!(false)));
    for name in ["long", "mixed"] {
        let answer = dashboard.get(&format!("/api/v1/lock?name={name}")).await;
        assert_eq!(answer.status, 404, "{answer:?}");
        assert!(answer.body.contains("not a lock's"), "{answer:?}");
    }
    // A key becomes a lock as soon as it behaves like one.
    run::<i64>(&mut redis, &["PEXPIRE", "cart", "60000"]);
    dashboard.listed_when("", &["awaited", "cart", "odd", "queued"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_and_write_holds_are_distinguished() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let (one, two) = (thread(1), thread(2));
    run::<i64>(&mut redis, &["HSET", "r", "mode", "read", &one, "1", &two, "2"]);
    run::<i64>(&mut redis, &["PEXPIRE", "r", "60000"]);
    run::<i64>(&mut redis, &["HSET", "w", "mode", "write", &format!("{one}:write"), "1"]);
    run::<i64>(&mut redis, &["PEXPIRE", "w", "60000"]);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["r", "w"]).await;
    let read = dashboard.lock_when("r", |lock| lock["kind"] == "read").await;
    assert_eq!(read["holders"].as_array().unwrap().len(), 2);
    assert_eq!(read["holders"][1]["mode"], "read");
    let write = dashboard.lock_when("w", |lock| lock["kind"] == "write").await;
    assert_eq!(write["holders"][0]["mode"], "write");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_save_is_still_read() {
    let server = RedisServer::with(&[("save", "3600 1")]).await;
    server.fail_to_save().await.unwrap();
    let dashboard = Dashboard::start(&server.url()).await;
    let first = dashboard.source_when("poll", "on").await["last_success"].clone();
    let is_later = |source: &Value| source["source"] == "poll" && source["last_success"] != first;
    let has_later = |json: &Value| json["sources"].as_array().unwrap().iter().any(is_later);
    dashboard.json_when("/api/v1/sources", has_later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_finds_the_locks_of_a_server_that_cannot_save() {
    let server = RedisServer::with(&[("save", "3600 1")]).await;
    take(&mut server.connect(), b"orders:1", HOLDER, 600_000);
    server.fail_to_save().await.unwrap();
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["orders:1"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_hashes_are_counted_and_left() {
    let server = RedisServer::with(&[("hash-max-listpack-entries", "100000")]).await;
    let mut redis = server.connect();
    let fill = |redis: &mut redis::Connection,
                key: &str,
                fields: usize,
                name: &dyn Fn(usize) -> String| {
        for from in (0..fields).step_by(1000) {
            let mut hset = cmd("HSET");
            hset.arg(key);
            for i in from..from + 1000 {
                hset.arg(name(i)).arg("1");
            }
            hset.exec(redis).unwrap();
        }
    };
    fill(&mut redis, "listpack", 50_000, &|i| format!("{}:{i}", &HOLDER[..36]));
    run::<String>(&mut redis, &["CONFIG", "SET", "hash-max-listpack-entries", "128"]);
    fill(&mut redis, "hashtable", 100_000, &|i| format!("{}:{i}", &HOLDER[..36]));
    let encoding: String = run(&mut redis, &["OBJECT", "ENCODING", "listpack"]);
    assert_eq!(encoding, "listpack");
    run::<i64>(&mut redis, &["HSET", "long", HOLDER, &"9".repeat(5_000)]);
    run::<String>(&mut redis, &["CONFIG", "RESETSTAT"]);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.json_when("/api/v1/sources", |s| s["first_scan"].is_null()).await;
    for name in ["listpack", "hashtable"] {
        let answer = dashboard.get(&format!("/api/v1/lock?name={name}")).await;
        assert!(answer.body.contains("too many for a lock"), "{answer:?}");
    }
    let stats: String = run(&mut redis, &["INFO", "commandstats"]);
    for verb in ["hmget", "hget", "hgetall", "hscan", "hkeys", "hvals", "keys", "eval", "evalsha"] {
        assert!(!stats.contains(&format!("cmdstat_{verb}:")), "{stats}");
    }
    // A thousand readers are still a lock.
    run::<i64>(&mut redis, &["HSET", "readers", "mode", "read"]);
    fill(&mut redis, "readers", 1_000, &|i| thread(u32::try_from(i).unwrap()));
    run::<i64>(&mut redis, &["PEXPIRE", "readers", "600000"]);
    dashboard.listed_when("", &["readers"]).await;
    dashboard.lock_when("readers", |lock| lock["holders"].as_array().unwrap().len() == 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_may_be_any_bytes() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let names: [&[u8]; 7] = [
        b"<script>alert(1)</script>",
        b"two\nlines\r\n",
        b"\xff\xfe\x00",
        "bidi\u{202e}gpj".as_bytes(),
        b"' onmouseover='x",
        "emoji \u{1f512}".as_bytes(),
        &[b'x'; 512],
    ];
    for name in names {
        take(&mut redis, name, HOLDER, 60_000);
    }
    take(&mut redis, &[b'y'; 513], HOLDER, 60_000);
    let dashboard = Dashboard::start(&server.url()).await;
    let list = dashboard.json_when("/api/v1/locks", |json| json["total"] == names.len()).await;
    let bytes = list["locks"].as_array().unwrap().iter().filter_map(|l| l["name_base64"].as_str());
    assert_eq!(bytes.collect::<Vec<_>>(), ["//4A"]);
    let page = dashboard.get("/").await;
    assert_eq!(page.status, 200);
    for raw in ["<script>alert", "\u{202e}", "two\nlines", " onmouseover='x"] {
        assert!(!page.body.contains(raw), "{raw}");
    }
    let page = dashboard.get("/lock?name64=//4A").await;
    assert!(page.status == 200 && page.body.contains(HOLDER), "{page:?}");
    let page = dashboard.get(&format!("/lock?name={}", encoded(names[0]))).await;
    assert!(page.status == 200 && page.body.contains(HOLDER));
    assert!(!page.body.contains("<script>alert"));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_and_databases_are_one_picture() {
    let (one, two) = (RedisServer::start().await, RedisServer::start().await);
    let mut redis = one.connect();
    take(&mut redis, b"a", HOLDER, 60_000);
    run::<String>(&mut redis, &["SELECT", "3"]);
    take(&mut redis, b"a", HOLDER, 60_000);
    take(&mut two.connect(), b"b", HOLDER, 60_000);
    let (first, second) = (format!("eu={}", one.url()), format!("us={}", two.url()));
    let flags = ["--redis-url", &first, "--redis-url", &second, "--db", "0", "--db", "3"];
    let dashboard = Dashboard::with(&flags).await;
    dashboard.listed_when("", &["a", "a", "b"]).await;
    dashboard.listed_when("filter=deployment:us", &["b"]).await;
    dashboard.listed_when("filter=db:3", &["a"]).await;
    assert_eq!(dashboard.get("/lock?name=a").await.status, 400);
    assert_eq!(dashboard.get("/api/v1/lock?deployment=eu&db=3&name=a").await.status, 200);
    assert_eq!(dashboard.get("/api/v1/lock?deployment=eu&db=7&name=a").await.status, 404);
    assert_eq!(dashboard.get("/api/v1/lock?deployment=asia&db=0&name=a").await.status, 404);
    // A deployment that fails does not delay the other one.
    drop(one);
    dashboard.listed_when("filter=state:unknown", &["a", "a"]).await;
    take(&mut two.connect(), b"c", HOLDER, 60_000);
    dashboard.listed_when("filter=deployment:us", &["b", "c"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_delays_no_other_and_red_locks_are_joined() {
    let mut servers =
        [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let file = red_group(&servers);
    for server in &servers[..2] {
        take(&mut server.connect(), b"red", HOLDER, 600_000);
    }
    let dashboard = Dashboard::with(&["--config", file.path().to_str().unwrap()]).await;
    let path = "/api/v1/lock?deployment=b&db=0&name=red";
    let joined = |lock: &Value| lock["red"]["held"] == json!(["a", "b"]);
    let lock = dashboard.json_when(path, joined).await;
    assert_eq!((&lock["red"]["group"], &lock["red"]["of"]), (&json!("red"), &json!(3)));
    let page = dashboard.get("/lock?deployment=b&db=0&name=red").await.body;
    assert!(page.contains("2 of 3"), "{page}");
    let metrics = dashboard.get("/metrics").await.body;
    for deployment in ["a", "b"] {
        let line = format!("lockscope_dashboard_locks{{deployment=\"{deployment}\"");
        assert!(metrics.contains(&line), "{metrics}");
    }
    servers[0].process().freeze().await.unwrap();
    dashboard.listed_when("filter=state:unknown", &["red"]).await;
    take(&mut servers[2].connect(), b"red", HOLDER, 600_000);
    take(&mut servers[2].connect(), b"other", HOLDER, 600_000);
    dashboard.listed_when("filter=deployment:c", &["other", "red"]).await;
    run::<()>(&mut servers[1].connect(), &["DEL", "red"]);
    let one_of_two =
        |lock: &Value| lock["red"]["held"] == json!(["c"]) && lock["red"]["unread"] == json!(["a"]);
    dashboard.json_when(path, one_of_two).await;
    servers[0].process().thaw().unwrap();
    let both = |lock: &Value| {
        lock["red"]["held"] == json!(["a", "c"]) && lock["red"]["unread"] == json!([])
    };
    dashboard.json_when(path, both).await;
    dashboard.listed_when("filter=deployment:a", &["red"]).await;
    dashboard.listed_when("filter=state:unknown", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn some_names_are_not_looked_at() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    for name in ["orders:1", "orders:2", "cart:1", "other"] {
        take(&mut redis, name.as_bytes(), HOLDER, 60_000);
    }
    let url = server.url();
    let ignoring = Dashboard::with(&["--redis-url", &url, "--ignore", "cart:*"]).await;
    ignoring.listed_when("", &["orders:1", "orders:2", "other"]).await;
    let matching = Dashboard::with(&["--redis-url", &url, "--scan-match", "orders:*"]).await;
    matching.listed_when("", &["orders:1", "orders:2"]).await;
    let few = Dashboard::with(&["--redis-url", &url, "--max-locks", "3"]).await;
    let counted = |json: &Value| json["counts"]["not_kept"] == 1;
    let sources = few.json_when("/api/v1/sources", counted).await;
    assert_eq!(sources["counts"]["held"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_tell_who_their_holders_are() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let (told, odd, none) = (NUMBER, NUMBER + 1, NUMBER + 2);
    let other = "00000000-0000-4000-8000-000000000000";
    for (lock, holder) in [
        ("told", format!("{AGENT}:{told}")),
        ("odd", format!("{AGENT}:{odd}")),
        ("none", format!("{AGENT}:{none}")),
        ("stranger", format!("{other}:{told}")),
        ("java", HOLDER.to_owned()),
    ] {
        take(&mut redis, lock.as_bytes(), &holder, 600_000);
    }
    let agent = format!("lockscope:agent:{{{AGENT}}}");
    run::<i64>(&mut redis, &["HSET", &agent, "host", "db\u{202e}1", "pid", "17"]);
    let holders = format!("lockscope:holders:{{{AGENT}}}");
    let note = r#"{"pid":4711,"uid":1000,"comm":"java","client":"<b>billing","session":"1-2","since":1795219200123}"#;
    run::<i64>(&mut redis, &["HSET", &holders, &told.to_string(), note]);
    let long = format!(r#"{{"pid":4711,"comm":"{}"}}"#, "x".repeat(5_000));
    run::<i64>(&mut redis, &["HSET", &holders, &odd.to_string(), &long]);
    // A key of another type is not an agent's key.
    run::<()>(&mut redis, &["SET", &format!("lockscope:agent:{{{other}}}"), "x"]);
    // The keys of a client without an agent's number are not read.
    let java = format!("lockscope:holders:{{{}}}", &HOLDER[..36]);
    run::<i64>(&mut redis, &["HSET", &java, "52", note]);

    let dashboard = Dashboard::start(&server.url()).await;
    let client = |lock: &Value| lock["holders"][0]["client"].clone();
    let lock = dashboard.lock_when("told", |lock| client(lock)["host"].is_string()).await;
    let expected = json!({
        "addr": null, "name": "<b>billing", "host": "db\\u{202e}1", "pid": 4711, "uid": 1000,
        "comm": "java", "session": "1-2", "since": "2026-11-21T00:00:00.123Z", "alive": true,
        "verified": null, "signed_by": null, "unverified_because": null,
    });
    assert_eq!(client(&lock), expected);
    assert!(lock["sources"].as_array().unwrap().contains(&json!("identity")), "{lock}");
    let schemas = dashboard.json("/api/v1/openapi.json").await["components"]["schemas"].clone();
    let mut required: Vec<String> =
        serde_json::from_value(schemas["Client"]["required"].clone()).unwrap();
    required.sort();
    let fields: Vec<&String> = expected.as_object().unwrap().keys().collect();
    assert_eq!(fields, required.iter().collect::<Vec<_>>());

    // Fields that cannot be read are unknown; the others are still shown.
    let lock = dashboard.lock_when("odd", |lock| client(lock)["host"].is_string()).await;
    assert_eq!((&client(&lock)["pid"], &client(&lock)["alive"]), (&json!(null), &json!(true)));
    for lock in ["stranger", "java"] {
        let lock = dashboard.lock_when(lock, |lock| lock["state"] == "held").await;
        assert_eq!(client(&lock), json!(null), "{lock}");
    }
    let lock = dashboard.lock_when("none", |lock| lock["state"] == "held").await;
    assert_eq!(client(&lock)["name"], "lockscope-agent@db\\u{202e}1", "only its agent is known");
    assert_eq!(client(&lock)["pid"], json!(null), "{lock}");
    let page = dashboard.get("/lock?name=told").await.body;
    assert!(
        page.contains("java, process 4711 on db\\u{202e}1, calls itself &#60;b&#62;billing"),
        "{page}"
    );
    let page = dashboard.get("/").await.body;
    assert!(page.contains("billing@db\\u{202e}1"), "{page}");
    dashboard.source_when("identity", "on").await;

    // The advice uses the names of the process and the host.
    run::<i64>(&mut redis, &["PERSIST", "told"]);
    let lock = dashboard.lock_when("told", |lock| lock["problems"] != json!([])).await;
    let advice = lock["problems"][0]["advice"].as_str().unwrap();
    assert!(advice.contains("process 4711 (java) on the host db"), "{advice}");
    assert!(advice.contains("`jcmd 4711 Thread.print`"), "{advice}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_registry_may_be_denied() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let user = ["ACL", "SETUSER", "narrow", "on", ">look", "allchannels", "+@all", "%R~orders:*"];
    run::<String>(&mut redis, &user);
    take(&mut redis, b"orders:1", &format!("{AGENT}:{NUMBER}"), 600_000);
    let url = format!("redis://narrow:look@127.0.0.1:{}", server.port());
    let dashboard = Dashboard::with(&["--redis-url", &url, "--monitor", "off"]).await;
    let detail = |json: &Value| {
        let sources = json["sources"].as_array().unwrap();
        let identity = sources.iter().find(|source| source["source"] == "identity").unwrap();
        identity["detail"]
            .as_str()
            .unwrap()
            .contains("the holder registry of the agents is not read")
    };
    dashboard.json_when("/api/v1/sources", detail).await;
    dashboard.source_when("identity", "on").await;
    run::<String>(&mut redis, &["ACL", "SETUSER", "narrow", "%R~lockscope:*"]);
    dashboard.json_when("/api/v1/sources", |json| !detail(json)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_and_owners_are_listed_page_by_page() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let other = HOLDER.replace("285475da", "385475da");
    for (lock, holder) in [("a", HOLDER), ("b", HOLDER), ("c", &*other), ("whole", HOLDER)] {
        take(&mut redis, lock.as_bytes(), holder, 600_000);
    }
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["a", "b", "c", "whole"]).await;
    for lock in ["a", "b", "c"] {
        run::<i64>(&mut redis, &["PERSIST", lock]);
    }
    dashboard.json_when("/api/v1/problems", |json| json["total"] == 3).await;
    let schemas = dashboard.json("/api/v1/openapi.json").await["components"]["schemas"].clone();
    for (list, id, schema, total) in
        [("problems", "lock", "ProblemOfLock", 3), ("owners", "id", "Owner", 2)]
    {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/api/v1/{list}?limit=1&cursor={cursor}");
            let page = dashboard.json(&path).await;
            assert_eq!((&page["total"], page[list].as_array().unwrap().len()), (&json!(total), 1));
            let row = &page[list][0];
            let fields: Vec<&String> = row.as_object().unwrap().keys().collect();
            let required = required(&schemas, &schemas[schema]);
            assert_eq!(fields, required.iter().collect::<Vec<_>>(), "{schema}");
            seen.push(row[id].to_string());
            assert!(seen.len() <= total, "{list}: {seen:?}");
            let Some(next) = page["next"].as_str() else { break };
            cursor = next.to_owned();
            let elsewhere = format!("/api/v1/{list}?filter=a&cursor={cursor}");
            assert_eq!(dashboard.get(&elsewhere).await.status, 400);
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), total, "{list}: {seen:?}");
    }
    let problems = dashboard.json("/api/v1/problems?filter=b").await;
    assert_eq!(problems["problems"][0]["lock"]["name"], "b");
    assert_eq!(problems["problems"][0]["problem"], "leaked");
    let owners = dashboard.json("/api/v1/owners").await;
    let csv = dashboard.get("/api/v1/problems?format=csv&limit=1").await;
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(csv.body.matches(",leaked,certain,").count(), 3, "all, whatever the limit");
    let page = dashboard.get("/problems?filter=b").await.body;
    assert!(page.contains("leaked") && page.matches("<tr id=").count() == 1, "{page}");
    let page = dashboard.get(&format!("/owner?id={}", &HOLDER[..36])).await.body;
    assert_eq!(page.matches("<tr id=").count(), 3, "{page}");
    let owner = &owners["owners"][0];
    assert_eq!(owner["id"], HOLDER[..36]);
    assert_eq!((&owner["holds"], &owner["with_problems"]), (&json!(3), &json!(2)));
}
