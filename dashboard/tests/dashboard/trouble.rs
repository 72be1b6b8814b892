//! Tests of servers that fail, accounts without rights, and locks with problems.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::redis_server::{HOLDER, RedisServer, run, take};
use crate::serving::{Dashboard, PATIENCE};

/// The rights of an account that may look at locks and nothing else. The patterns are literal: a right to `redisson_*`
/// would not allow subscribing to them.
const OBSERVER: [&str; 41] = [
    "ACL",
    "SETUSER",
    "observer",
    "on",
    ">look",
    "%R~*",
    "resetchannels",
    "&redisson_lock__channel:*",
    "&redisson_rwlock:*",
    "&__keyspace@*",
    "&__keyevent@*",
    "-@all",
    "+client|list",
    "+llen",
    "+lrange",
    "+memory|usage",
    "+zcard",
    "+zcount",
    "+zmscore",
    "+getrange",
    "+time",
    "+pubsub|numsub",
    "+pubsub|shardnumsub",
    "+scan",
    "+dbsize",
    "+hlen",
    "+hrandfield",
    "+hstrlen",
    "+hmget",
    "+pttl",
    "+type",
    "+exists",
    "+multi",
    "+exec",
    "+ping",
    "+psubscribe",
    "+subscribe",
    "+unsubscribe",
    "+config|get",
    "+info",
    "+select",
];

fn has_problem(lock: &Value) -> bool {
    lock["problems"].as_array().is_some_and(|problems| !problems.is_empty())
}

fn state(lock: &Value) -> &str {
    lock["state"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_freezes_the_picture() {
    let mut server = RedisServer::start().await;
    take(&mut server.connect(), b"orders:1", HOLDER, 600_000);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["orders:1"]).await;
    server.process().freeze().await.unwrap();
    dashboard.listed_when("filter=state:unknown", &["orders:1"]).await;
    dashboard.source_when("poll", "down").await;
    dashboard.listed_when("", &["orders:1"]).await;
    let lock = dashboard.lock_when("orders:1", |lock| state(lock) == "unknown").await;
    assert_eq!(lock["holders"][0]["id"], HOLDER);
    for path in ["/", "/lock?name=orders:1", "/sources", "/readyz", "/healthz"] {
        assert_eq!(dashboard.get(path).await.status, 200, "{path}");
    }
    server.process().thaw().unwrap();
    dashboard.lock_when("orders:1", |lock| state(lock) == "held").await;
    dashboard.source_when("poll", "on").await;
    dashboard.source_when("channels", "on").await;
    dashboard.source_when("scan", "on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_restarted_empty_is_one_notice() {
    let mut server = RedisServer::start().await;
    let names: Vec<String> = (0..50).map(|i| format!("orders:{i}")).collect();
    let mut redis = server.connect();
    names.iter().for_each(|name| take(&mut redis, name.as_bytes(), HOLDER, 600_000));
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.json_when("/api/v1/locks", |json| json["total"] == 50).await;
    server.restart().await.unwrap();
    take(&mut server.connect(), b"fresh", HOLDER, 600_000);
    dashboard.listed_when("", &["fresh"]).await;
    let notices = dashboard.json_when("/api/v1/sources", |s| s["notices"] != json!([])).await;
    let text = notices["notices"][0]["text"].as_str().unwrap();
    assert!(text.contains("50 held locks"), "{text}");
    let lock = dashboard.lock_when("orders:1", |lock| state(lock) == "free").await;
    assert!(lock["events"][0]["text"].as_str().unwrap().contains("restarted"), "{lock}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_the_pages_say_so() {
    let dashboard = Dashboard::start("redis://127.0.0.1:1").await;
    let down = |json: &Value| json["servers"][0]["down"]["reason"] != Value::Null;
    dashboard.json_when("/api/v1/sources", down).await;
    for path in ["/", "/sources", "/lock?name=x", "/readyz"] {
        assert_eq!(dashboard.get(path).await.status, 200, "{path}");
    }
    assert_eq!(dashboard.get("/api/v1/lock?name=x").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_reported_and_a_right_one_works() {
    let server = RedisServer::with(&[("requirepass", "right")]).await;
    let wrong = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    let dashboard = Dashboard::start(&wrong).await;
    let refused =
        |json: &Value| json["servers"][0]["down"]["reason"].to_string().contains("WRONGPASS");
    let sources = dashboard.json_when("/api/v1/sources", refused).await;
    assert!(!sources.to_string().contains("hunter2"), "{sources}");
    assert!(!dashboard.get("/sources").await.body.contains("hunter2"));
    let right = format!("redis://:right@127.0.0.1:{}", server.port());
    Dashboard::start(&right).await.source_when("scan", "on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observers_account_is_enough() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<String>(&mut redis, &OBSERVER);
    take(&mut redis, b"orders:1", HOLDER, 600_000);
    let url = format!("redis://observer:look@127.0.0.1:{}", server.port());
    let dashboard = Dashboard::with(&["--redis-url", &url, "--monitor", "off"]).await;
    dashboard.listed_when("", &["orders:1"]).await;
    for source in ["scan", "channels", "subscribers", "poll", "identity"] {
        dashboard.source_when(source, "on").await;
    }
    dashboard.lock_when("orders:1", |lock| lock["sources"] == json!(["scan", "poll"])).await;
    let log: redis::Value = run(&mut redis, &["ACL", "LOG"]);
    let refused: Vec<String> = denied(&log);
    assert!(refused.iter().all(|what| what.starts_with("client")), "{refused:?}");
}

/// Returns the refused commands and keys from the server's ACL log.
fn denied(log: &redis::Value) -> Vec<String> {
    let entries: Vec<std::collections::HashMap<String, redis::Value>> =
        redis::from_redis_value(log.clone()).unwrap();
    entries
        .into_iter()
        .map(|entry| redis::from_redis_value(entry["object"].clone()).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_reported() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<String>(&mut redis, &OBSERVER);
    run::<String>(&mut redis, &["ACL", "SETUSER", "observer", "resetchannels", "-scan"]);
    take(&mut redis, b"orders:1", HOLDER, 600_000);
    let url = format!("redis://observer:look@127.0.0.1:{}", server.port());
    let dashboard = Dashboard::start(&url).await;
    let scan = dashboard.source_when("scan", "denied").await;
    assert!(scan["detail"].as_str().unwrap().contains("scan"), "{scan}");
    let channels = dashboard.source_when("channels", "denied").await;
    assert!(channels["detail"].as_str().unwrap().contains("redisson_"), "{channels}");
    // A lock that is requested by name can still be read.
    dashboard.lock_when("orders:1", |lock| state(lock) == "held").await;
    let sources = dashboard.json("/api/v1/sources").await;
    assert!(sources["limits"].to_string().contains("not received"), "{sources}");
    run::<String>(&mut redis, &["ACL", "SETUSER", "observer", "allchannels"]);
    dashboard.source_when("channels", "on").await;
    // Where no lock can be read, the server's refusal is the reason.
    run::<String>(&mut redis, &["ACL", "SETUSER", "observer", "-pttl"]);
    take(&mut redis, b"orders:2", HOLDER, 600_000);
    let other = dashboard.get("/api/v1/lock?name=orders:2").await;
    assert!(other.status == 503 && other.body.contains("NOPERM"), "{other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_may_not_be_read_do_not_hide_the_others() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<String>(&mut redis, &OBSERVER);
    let narrow = ["ACL", "SETUSER", "observer", "resetkeys", "%R~orders:*"];
    run::<String>(&mut redis, &narrow);
    take(&mut redis, b"orders:1", HOLDER, 600_000);
    take(&mut redis, b"secret:1", HOLDER, 600_000);
    let url = format!("redis://observer:look@127.0.0.1:{}", server.port());
    let dashboard = Dashboard::start(&url).await;
    dashboard.listed_when("", &["orders:1"]).await;
    dashboard.source_when("scan", "on").await;
    let answer = dashboard.get("/api/v1/lock?name=secret:1").await;
    assert!(answer.body.contains("may not read"), "{answer:?}");
    // The picture is incomplete, and every scan counts the keys that are missing.
    let counts = |is: &str| {
        let says = format!("the Redis user may not read {is}");
        move |json: &Value| json["sources"].to_string().contains(&says)
    };
    dashboard.json_when("/api/v1/sources", counts("1 hash: it may be a lock")).await;
    let metrics = dashboard.get("/metrics").await.body;
    let gauge = metrics.lines().find(|line| {
        line.starts_with("lockscope_dashboard_scan_unreadable_keys{") && line.ends_with(" 1")
    });
    assert!(gauge.is_some(), "{metrics}");
    take(&mut redis, b"secret:2", HOLDER, 600_000);
    dashboard.json_when("/api/v1/sources", counts("2 hashes: they may be locks")).await;
    run::<String>(&mut redis, &["ACL", "SETUSER", "observer", "%R~*"]);
    dashboard.listed_when("", &["orders:1", "secret:1", "secret:2"]).await;
}

/// Runs something against Redis repeatedly until dropped.
struct Busy(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Busy {
    fn start(
        server: &RedisServer,
        mut what: impl FnMut(&mut redis::Connection) + Send + 'static,
    ) -> Self {
        let (on, mut redis) = (Arc::new(AtomicBool::new(true)), server.connect());
        let watched = Arc::clone(&on);
        let thread = std::thread::spawn(move || {
            while watched.load(Ordering::Relaxed) {
                what(&mut redis);
            }
        });
        Self(on, Some(thread))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            // It may be in a pause.
            thread.thread().unpark();
            drop(thread.join());
        }
    }
}

fn pause(duration: Duration) {
    std::thread::park_timeout(duration);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_vanish_between_two_reads_do_no_harm() {
    let server = RedisServer::start().await;
    take(&mut server.connect(), b"steady", HOLDER, 600_000);
    let mut i = 0_u64;
    let _busy = Busy::start(&server, move |redis| {
        i += 1;
        let name = format!("flicker:{}", i % 50);
        take(redis, name.as_bytes(), HOLDER, 5_000);
        match i % 3 {
            0 => run::<i64>(redis, &["DEL", &name]),
            1 => {
                run::<i64>(redis, &["DEL", &name]);
                run::<i64>(redis, &["RPUSH", &name, "x"]);
                run::<i64>(redis, &["DEL", &name])
            }
            _ => run::<i64>(redis, &["PEXPIRE", &name, "1"]),
        };
    });
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.json_when("/api/v1/locks?filter=steady", |json| json["total"] == 1).await;
    let passes = |text: &str| -> f64 {
        let line = text.lines().find(|l| l.starts_with("lockscope_dashboard_scan_seconds_count"));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    let four_passes = async { while passes(&dashboard.get("/metrics").await.body) < 4.0 {} };
    timeout(PATIENCE, four_passes).await.expect("four passes");
    for source in ["scan", "channels", "subscribers", "poll", "identity"] {
        dashboard.source_when(source, "on").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lock_that_never_moves_is_stuck() {
    // Long enough that a host that stops for some seconds loses no lock.
    const LEASE_MS: u64 = 18_000;
    let server = RedisServer::start().await;
    for name in ["held", "leader:1", "fixed"] {
        take(&mut server.connect(), name.as_bytes(), HOLDER, LEASE_MS);
    }
    run::<i64>(&mut server.connect(), &["PEXPIRE", "fixed", "600000"]);
    let _watchdog = Busy::start(&server, |redis| {
        for name in ["held", "leader:1"] {
            run::<i64>(redis, &["PEXPIRE", name, &LEASE_MS.to_string()]);
        }
        pause(Duration::from_millis(LEASE_MS / 3));
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.toml");
    std::fs::write(&file, "[[lock]]\nmatch = \"leader:*\"\nexpected = \"long\"\n").unwrap();
    let url = server.url();
    let flags = ["--redis-url", &url, "--stuck-after", "4s", "--config", file.to_str().unwrap()];
    let dashboard = Dashboard::with(&flags).await;
    // A renewal that comes late is another problem.
    let stuck = |lock: &Value| {
        let mut problems = lock["problems"].as_array().into_iter().flatten();
        problems.find(|problem| problem["problem"] == "stuck").cloned()
    };
    // Each request reads its lock, so renewals of both are noticed at once.
    let (held, leader) = tokio::join!(
        dashboard.lock_when("held", |lock| stuck(lock).is_some()),
        dashboard.lock_when("leader:1", |lock| lock["renewed"] == true),
    );
    let problem = stuck(&held).unwrap();
    assert_eq!(problem["certainty"], "certain", "{held:#}");
    assert!(problem["evidence"].as_array().unwrap().len() >= 2, "{problem:#}");
    assert!(held["renewed"] == true && held["lease_ms"].as_u64().unwrap() <= LEASE_MS);
    dashboard.listed_when("filter=problem:any", &["held"]).await;
    assert_eq!(stuck(&leader), None, "{leader:#}");
    // The hold count changes, so the problem is over.
    run::<i64>(&mut server.connect(), &["HINCRBY", "held", HOLDER, "1"]);
    let lock = dashboard.lock_when("held", |lock| lock["problems"] == json!([])).await;
    assert_eq!(lock["events"][0]["event"], "cleared", "{lock:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_lost_its_time_to_live_is_leaked() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    take(&mut redis, b"a", HOLDER, 60_000);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["a"]).await;
    run::<i64>(&mut redis, &["PERSIST", "a"]);
    let lock = dashboard.lock_when("a", has_problem).await;
    assert_eq!(lock["problems"][0]["problem"], "leaked");
    assert_eq!(lock["ttl_ms"], Value::Null);
    let page = dashboard.get("/lock?name=a").await.body;
    assert!(page.contains("Thread.print"), "{page}");
    run::<i64>(&mut redis, &["PEXPIRE", "a", "60000"]);
    dashboard.lock_when("a", |lock| lock["problems"] == json!([])).await;
}
