//! Tests of the event streams of pages and of the API.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::redis_server::{HOLDER, RedisServer, release, run, take};
use crate::serving::{Dashboard, Event};

fn rows(event: &Event) -> String {
    event.data["rows"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_appears_and_goes_on_an_open_page() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = Dashboard::start(&server.url()).await;
    let mut page = dashboard.events("/live?path=/", &[]).await;
    let first = page.next().await.unwrap();
    assert_eq!((first.event.as_str(), &first.data["full"]), ("patch", &json!(true)));
    take(&mut redis, b"orders:<1>", HOLDER, 600_000);
    let event = page.when(|event| rows(event).contains(HOLDER)).await;
    assert!(!rows(&event).contains("orders:<1>"), "names are escaped");
    let shown = event.data["order"].as_array().unwrap().clone();
    assert_eq!(shown.len(), 1);
    release(&mut redis, "orders:<1>");
    let event = page.when(|event| event.data["order"] == json!([])).await;
    assert_eq!(event.data["rows"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_only_what_its_page_shows() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = Dashboard::start(&server.url()).await;
    let mut some = dashboard.events("/live?path=%2F%3Ffilter%3Dorders%253A*", &[]).await;
    let mut one = dashboard.events("/live?path=%2Flock%3Fname%3Dorders%253A1", &[]).await;
    let before = one.next().await.unwrap();
    assert!(!before.data.to_string().contains(HOLDER));
    take(&mut redis, b"cart:1", HOLDER, 600_000);
    dashboard.listed_when("", &["cart:1"]).await;
    take(&mut redis, b"orders:1", HOLDER, 600_000);
    let event = some.when(|event| rows(event).contains(HOLDER)).await;
    assert!(rows(&event).contains("orders:1") && !rows(&event).contains("cart:1"));
    one.when(|event| event.data["regions"].to_string().contains(HOLDER)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_to_live_are_kept_fresh_without_new_rows() {
    let server = RedisServer::start().await;
    take(&mut server.connect(), b"a", HOLDER, 600_000);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["a"]).await;
    let mut page = dashboard.events("/live?path=/", &[]).await;
    page.when(|event| rows(event).contains(HOLDER)).await;
    for _ in 0..2 {
        page.when(|event| event.data["ttl"].is_object() && event.data["rows"].is_null()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_get_a_snapshot_of_many_locks_in_parts() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    for i in 0..1_200 {
        take(&mut redis, format!("lock:{i}").as_bytes(), HOLDER, 600_000);
    }
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.json_when("/api/v1/locks", |json| json["total"] == 1_200).await;
    let mut stream = dashboard.events("/api/v1/stream", &[]).await;
    let mut names = Vec::new();
    loop {
        let event = stream.next().await.unwrap();
        assert_eq!(event.event, "snapshot");
        let locks = event.data["locks"].as_array().unwrap();
        assert!((1..=16).contains(&locks.len()), "a part is small: {}", locks.len());
        names.extend(locks.iter().map(|lock| lock["name"].to_string()));
        // Only the last part has an ID to resume from.
        let last = event.data["more"] == false;
        assert_eq!(event.id.is_some(), last);
        if last {
            break;
        }
    }
    assert_eq!(names.len(), 1_200);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1_200, "each lock is in one part");
}

/// With one lock there are few other changes, so those that are kept for clients that reconnect go back for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_the_api_send_changes_and_resume() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = Dashboard::start(&server.url()).await;
    let mut stream = dashboard.events("/api/v1/stream", &[]).await;
    let snapshot = stream.next().await.unwrap();
    assert_eq!((snapshot.event.as_str(), &snapshot.data["more"]), ("snapshot", &json!(false)));
    take(&mut redis, b"new", HOLDER, 600_000);
    let is = |event: &Event, state: &str| {
        let changed = event.data["changed"].as_array().cloned().unwrap_or_default();
        changed.iter().any(|lock| lock["name"] == "new" && lock["state"] == state)
    };
    let last = stream.when(|event| event.event == "delta" && is(event, "held")).await.id.unwrap();

    // A client that reconnects in time misses nothing and receives nothing twice.
    drop(stream);
    release(&mut redis, "new");
    dashboard.lock_when("new", |lock| lock["state"] == "free").await;
    let mut back = dashboard.events("/api/v1/stream", &[("Last-Event-ID", &last)]).await;
    let (epoch, seq) = last.rsplit_once('-').unwrap();
    let mut seq: u64 = seq.parse().unwrap();
    back.when(|event| {
        seq += 1;
        assert_eq!((event.event.as_str(), event.data["seq"].as_u64()), ("delta", Some(seq)));
        is(event, "free")
    })
    .await;

    // A client with an unknown ID starts over, and receives a `resync` event first.
    for id in ["0-1", "nonsense", &format!("{epoch}-{}", u64::MAX)] {
        let mut stream = dashboard.events("/api/v1/stream", &[("Last-Event-ID", id)]).await;
        assert_eq!(stream.next().await.unwrap().event, "resync", "{id}");
        assert_eq!(stream.next().await.unwrap().event, "snapshot", "{id}");
    }
    let metrics = dashboard.get("/metrics").await.body;
    assert!(metrics.contains("lockscope_dashboard_stream_resyncs_total 3"), "{metrics}");
}

/// The knowledge of a client that follows a stream: the state and the number of holders of each lock, by name.
#[derive(Default)]
struct Follower {
    seq: u64,
    locks: BTreeMap<String, (Value, usize)>,
    /// It has received all parts of a snapshot.
    whole: bool,
    anew: usize,
}

impl Follower {
    /// Returns whether it has all locks, and the lock `last` in this state.
    fn is_at(&self, state: &str) -> bool {
        self.whole && self.locks.get("last").is_some_and(|(last, _)| last == state)
    }

    fn take_in(&mut self, event: &Event) {
        let list = |key: &str| event.data[key].as_array().cloned().unwrap_or_default();
        let name = |lock: &Value| lock["name"].as_str().unwrap().to_owned();
        match event.event.as_str() {
            "resync" => *self = Self { anew: self.anew + 1, ..Self::default() },
            "snapshot" => {
                self.seq = event.data["seq"].as_u64().unwrap();
                self.whole = event.data["more"] == false;
            }
            "delta" => {
                assert_eq!(event.data["seq"], self.seq + 1, "none is left out");
                self.seq += 1;
            }
            other => panic!("{other}"),
        }
        for lock in list("locks").iter().chain(&list("changed")) {
            let holders = lock["holders"].as_array().unwrap().len();
            self.locks.insert(name(lock), (lock["state"].clone(), holders));
        }
        for gone in &list("removed") {
            self.locks.remove(&name(gone));
        }
    }
}

/// Returns the largest size to which the system lets a send buffer grow, in bytes.
fn largest_send_buffer() -> usize {
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap();
    limits.split_whitespace().next_back().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_starts_again_with_a_full_picture() {
    const LOCKS: usize = 300;
    /// More changes than are kept for clients that fall behind.
    const MANY: usize = 70;
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let mut churn = redis::pipe();
    for i in 0..LOCKS {
        take(&mut redis, format!("lock:{i}").as_bytes(), HOLDER, 600_000);
        churn.cmd("PUBLISH").arg(format!("redisson_lock__channel:{{lock:{i}}}")).arg("0");
    }
    let url = server.url();
    let dashboard = Dashboard::with(&["--redis-url", &url, "--monitor", "off"]).await;
    dashboard.json_when("/api/v1/locks", |json| json["total"] == LOCKS).await;
    dashboard.source_when("channels", "on").await;
    let mut slow = dashboard.events_slowly("/api/v1/stream").await;
    let mut quick = dashboard.events("/api/v1/stream", &[]).await;
    // This is more than the buffers between the dashboard and the slow client can hold.
    let much = (2 << 20) + largest_send_buffer() * 5 / 4;
    let mut follower = Follower::default();
    let (mut behind, mut changes, mut read) = (0, 0, Instant::now());
    while changes < MANY {
        churn.exec(&mut redis).unwrap();
        let event = quick.when(|event| event.event == "delta").await;
        behind += event.data.to_string().len();
        changes = if behind > much { changes + 1 } else { 0 };
        // The server closes a connection whose client reads nothing for half a minute.
        if read.elapsed() > Duration::from_secs(5) {
            let event = slow.next().await.unwrap();
            behind = behind.saturating_sub(event.data.to_string().len());
            follower.take_in(&event);
            read = Instant::now();
        }
    }
    drop(quick);
    take(&mut redis, b"last", HOLDER, 600_000);
    // The message makes the dashboard read the lock at once. By the next scan, it would have closed the slow connection.
    run::<u64>(&mut redis, &["PUBLISH", "redisson_lock__channel:{last}", "0"]);

    // Each change arrives in order until the `resync` event; then come a full snapshot and each further change.
    while !follower.is_at("held") {
        follower.take_in(&slow.next().await.unwrap());
    }
    assert!(follower.anew > 0);
    assert_eq!(follower.locks.len(), LOCKS + 1);
    let metrics = dashboard.get("/metrics").await.body;
    assert!(!metrics.contains("lockscope_dashboard_stream_resyncs_total 0"), "{metrics}");
    // The slow client then knows as much as one that has just connected.
    release(&mut redis, "last");
    let mut fresh = dashboard.events("/api/v1/stream", &[]).await;
    let mut newest = Follower::default();
    for (stream, follower) in [(&mut slow, &mut follower), (&mut fresh, &mut newest)] {
        while !follower.is_at("free") {
            follower.take_in(&stream.next().await.unwrap());
        }
    }
    assert_eq!(follower.locks.get("last"), newest.locks.get("last"));
    assert!(follower.locks.keys().eq(newest.locks.keys()));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_do_not_hold_up_the_end() {
    let dashboard = Dashboard::start("redis://127.0.0.1:1").await;
    let mut streams = Vec::new();
    for path in
        ["/live?path=/", "/live?path=/sources", "/live?path=/lock%3Fname%3Dx", "/api/v1/stream"]
    {
        let mut stream = dashboard.events(path, &[]).await;
        assert!(stream.next().await.is_some());
        streams.push(stream);
    }
    let metrics = dashboard.get("/metrics").await.body;
    assert!(metrics.contains("lockscope_dashboard_streams 4"), "{metrics}");
    dashboard.stop().await;
    for mut stream in streams {
        while stream.next().await.is_some() {}
    }
}
