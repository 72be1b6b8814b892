//! Tests of keyspace notifications, and of messages on the sharded channels of a cluster.

use std::time::Duration;

use redis::cmd;
use serde_json::{Value, json};

use crate::redis_server::{HOLDER, RedisServer, release, run, take, thread};
use crate::serving::Dashboard;

/// Returns the source once it has this state and its detail contains these words.
async fn says(dashboard: &Dashboard, source: &str, state: &str, words: &str) -> Value {
    let found = |json: &Value| {
        let sources = json["sources"].as_array().unwrap();
        let is = |s: &&Value| {
            let detail = s["detail"].as_str().unwrap();
            s["source"] == source && s["state"] == state && detail.contains(words)
        };
        sources.iter().find(is).cloned()
    };
    found(&dashboard.json_when("/api/v1/sources", |json| found(json).is_some()).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_reports_a_lock_that_runs_out() {
    let server = RedisServer::with(&[("notify-keyspace-events", "KEA")]).await;
    let mut redis = server.connect();
    // There are locks in several databases, and keys that expire and are no locks.
    take(&mut redis, b"long", HOLDER, 600_000);
    take(&mut redis, b"a", HOLDER, 600_000);
    let url = server.url();
    let flags = ["--redis-url", &url, "--db", "0", "--db", "1", "--monitor", "off"];
    let dashboard = Dashboard::with(&flags).await;
    says(&dashboard, "keyspace", "on", "changes of 2 locks are received, and expired keys").await;
    run::<()>(&mut redis, &["PEXPIRE", "a", "5000"]);
    for i in 0..50 {
        let key = format!("session:{i}");
        run::<()>(&mut redis, &["SET", &key, "x", "PX", "1"]);
    }
    let lock = dashboard.lock_when_in("a", 0, |lock| lock["state"] == "free").await;
    assert_eq!(lock["past"][0]["ended"], "ran_out", "{lock:#}");
    // A poll is due 20 ms after the expiry, so it may come before the notification. Exactly one of them reports the
    // expiry.
    let events = lock["events"].as_array().unwrap().iter();
    let by: Vec<&Value> =
        events.filter(|e| e["event"] == "vanished").map(|e| &e["source"]).collect();
    assert!(by == ["keyspace"] || by == ["poll"], "{lock:#}");
    assert_eq!(lock["problems"], json!([]), "nobody renewed it");
    // The dashboard stops listening for changes of a freed lock.
    says(&dashboard, "keyspace", "on", "changes of 1 lock ").await;
    dashboard.listed_when("filter=db:0", &["long"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_the_server_reports_is_read() {
    let server = RedisServer::with(&[("notify-keyspace-events", "Kgh")]).await;
    let mut redis = server.connect();
    take(&mut redis, b"a", HOLDER, 600_000);
    take(&mut redis, b"still", HOLDER, 600_000);
    let dashboard = Dashboard::with(&["--redis-url", &server.url(), "--monitor", "off"]).await;
    says(&dashboard, "keyspace", "on", "changes of 2 locks are received").await;
    let listed = |json: &Value, name: &str| {
        json["locks"].as_array().unwrap().iter().find(|lock| lock["name"] == name).cloned()
    };
    // A request for the list reads no lock, unlike a request for one lock. The tests of the model, in logical time,
    // show that a notification leads to a read at once.
    let told = |json: &Value, name: &str| {
        let lock = listed(json, name).unwrap_or_default();
        lock["sources"].as_array().is_some_and(|sources| sources.contains(&json!("keyspace")))
    };
    let before = dashboard.json("/api/v1/locks").await;
    assert!(!told(&before, "a"), "{before:#}");
    for (count, holder) in [(2, HOLDER.to_owned()), (1, thread(7))] {
        if count == 1 {
            run::<()>(&mut redis, &["DEL", "a"]);
        }
        take(&mut redis, b"a", &holder, 600_000);
        let changed = |json: &Value| {
            let lock = listed(json, "a").unwrap_or_default();
            lock["holders"][0]["id"] == *holder && lock["holders"][0]["count"] == count
        };
        let json = dashboard.json_when("/api/v1/locks", |json| changed(json) && told(json, "a"));
        let json = json.await;
        assert!(!told(&json, "still"), "nobody changed that one: {json:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_that_are_off_or_denied_stay_unused_and_a_flood_ends_their_use() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    take(&mut redis, b"a", HOLDER, 600_000);
    let dashboard = Dashboard::with(&["--redis-url", &server.url(), "--monitor", "off"]).await;
    says(&dashboard, "keyspace", "off", "notify-keyspace-events").await;
    let setting: Vec<String> = run(&mut redis, &["CONFIG", "GET", "notify-keyspace-events"]);
    assert_eq!(setting[1], "", "nothing is switched on");
    dashboard.stop().await;

    let user = "ACL SETUSER shy on >x ~* &redisson_* +@all -config";
    run::<()>(&mut redis, &user.split(' ').collect::<Vec<_>>());
    let shy = format!("redis://shy:x@127.0.0.1:{}", server.port());
    let dashboard = Dashboard::with(&["--redis-url", &shy, "--monitor", "off"]).await;
    says(&dashboard, "keyspace", "denied", "config").await;
    dashboard.stop().await;
    run::<()>(&mut redis, &["CONFIG", "SET", "notify-keyspace-events", "KA"]);
    run::<()>(&mut redis, &["ACL", "SETUSER", "shy", "+config"]);
    let dashboard = Dashboard::with(&["--redis-url", &shy, "--monitor", "off"]).await;
    says(&dashboard, "keyspace", "denied", "__keyspace@0__:a").await;
    dashboard.listed_when("", &["a"]).await;
    run::<()>(&mut redis, &["ACL", "SETUSER", "shy", "allchannels"]);
    says(&dashboard, "keyspace", "on", "changes of 1 lock ").await;
    let mut storm = redis::pipe();
    for _ in 0..8_000 {
        storm.cmd("HINCRBY").arg("a").arg(HOLDER).arg(1);
    }
    storm.exec(&mut redis).unwrap();
    says(&dashboard, "keyspace", "paused", "events a second").await;
    dashboard.lock_when("a", |lock| lock["holders"][0]["count"] == 8_001).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_on_sharded_channels_are_seen_and_the_dashboard_is_no_waiter() {
    let bus = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bus = bus.to_string();
    let server = RedisServer::with(&[("cluster-enabled", "yes"), ("cluster-port", &bus)]).await;
    let mut redis = server.connect();
    run::<()>(&mut redis, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    for _ in 0..2_000 {
        let state: String = run(&mut redis, &["CLUSTER", "INFO"]);
        if state.contains("cluster_state:ok") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    take(&mut redis, b"a", HOLDER, 600_000);
    take(&mut redis, b"b", HOLDER, 600_000);
    let dashboard = Dashboard::with(&["--redis-url", &server.url(), "--monitor", "off"]).await;
    says(&dashboard, "channels", "on", "those of 2 locks on sharded channels").await;
    let sources = dashboard.json("/api/v1/sources").await;
    let said = sources["limits"].to_string();
    assert!(said.contains("one node of a cluster, of which only the locks in its slots"), "{said}");
    let channel = "redisson_lock__channel:{a}";
    let listening: Vec<redis::Value> = run(&mut redis, &["PUBSUB", "SHARDNUMSUB", channel]);
    assert_eq!(listening[1], redis::Value::Int(1), "that is us");
    dashboard.source_when("subscribers", "on").await;
    redis::pipe()
        .atomic()
        .add_command(cmd("DEL").arg("a").to_owned())
        .add_command(cmd("SPUBLISH").arg(channel).arg("0").to_owned())
        .exec(&mut redis)
        .unwrap();
    let lock = dashboard.lock_when("a", |lock| lock["state"] == "free").await;
    assert_eq!((&lock["past"][0]["ended"], &lock["waiting"]), (&json!("released"), &json!(0)));
    // The waiter of another client is counted, and nothing else is.
    let waiter = redis::Client::open(server.url()).unwrap();
    let mut waiter = waiter.get_connection().unwrap();
    run::<redis::Value>(&mut waiter, &["SSUBSCRIBE", "redisson_lock__channel:{b}"]);
    dashboard.lock_when("b", |lock| lock["waiting"] == 1).await;
    // Another dashboard subscribes too, and does not count the first one as a waiter.
    let second = Dashboard::with(&["--redis-url", &server.url(), "--monitor", "off"]).await;
    says(&second, "channels", "on", "those of 1 lock on sharded channels").await;
    let listening: Vec<redis::Value> =
        run(&mut redis, &["PUBSUB", "SHARDNUMSUB", "redisson_lock__channel:{b}"]);
    assert_eq!(listening[1], redis::Value::Int(3));
    second.lock_when("b", |lock| lock["waiting"] == 1).await;
    // A message published the ordinary way is received too.
    release(&mut redis, "b");
    dashboard.lock_when("b", |lock| lock["past"][0]["ended"] == "released").await;
}
