//! Tests with a keyspace full of an application's hashes that resemble locks.

use serde_json::json;

use crate::redis_server::{HOLDER, RedisServer, run, take};
use crate::serving::Dashboard;

const LOOK_ALIKES: u64 = 6_000;
/// The largest number of possible locks that are followed with `--max-locks 400`.
const FOLLOWED: u64 = 100;

/// Returns how often a command was called since the server's start.
fn calls(redis: &mut redis::Connection, command: &str) -> u64 {
    let stats: String = run(redis, &["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let calls = line.and_then(|line| line.strip_prefix("calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn masses_of_look_alikes_hide_no_lock_and_are_not_read_one_by_one() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    for chunk in 0..LOOK_ALIKES / 1_000 {
        let mut pipe = redis::pipe();
        for i in 0..1_000 {
            let name = format!("{:x<450}", format!("app:{chunk}:{i}:"));
            pipe.cmd("HSET").arg(name).arg(HOLDER).arg(1);
        }
        pipe.exec(&mut redis).unwrap();
    }
    let (leased, awaited) = (|i| format!("orders:{i}"), |i| format!("leaked:{i}"));
    let mut waiters = server.connect();
    let mut waiters = waiters.as_pubsub();
    for i in 0..20 {
        take(&mut redis, leased(i).as_bytes(), HOLDER, 3_600_000);
        run::<i64>(&mut redis, &["HSET", &awaited(i), HOLDER, "1"]);
        waiters.subscribe(format!("redisson_lock__channel:{{{}}}", awaited(i))).unwrap();
    }
    let flags = ["--redis-url", &server.url(), "--max-locks", "400", "--monitor", "off"];
    let dashboard = Dashboard::with(&flags).await;
    dashboard.json_when("/api/v1/sources", |sources| sources["first_scan"].is_null()).await;
    // Each reading has one HMGET: of the possible locks up to the limit, those with a lease, and a few polls since.
    let read = calls(&mut redis, "hmget");
    assert!(read < LOOK_ALIKES / 3, "{read} readings in the first scan");
    for i in 0..20 {
        let lock = dashboard.lock_when(&leased(i), |lock| lock["state"] == "held").await;
        assert_eq!(lock["confirmed"], json!(true), "{lock}");
        // Only its waiter distinguishes it from an application's hash.
        let lock = dashboard.lock_when(&awaited(i), |lock| lock["confirmed"] == true).await;
        assert_eq!(lock["state"], "held", "{lock}");
    }
    let sources = dashboard.json("/api/v1/sources").await;
    assert_eq!(sources["counts"]["not_kept"], 0, "{sources:#}");
    let text = sources["limits"].to_string();
    assert!(text.contains(" more possible locks. Such a hash resembles a lock"), "{text}");
    let metrics = dashboard.get("/metrics").await.body;
    let metric = metrics
        .lines()
        .find_map(|line| line.strip_prefix("lockscope_dashboard_possible_locks_not_kept "));
    let not_kept: u64 = metric.unwrap().parse().unwrap();
    assert!((LOOK_ALIKES - FOLLOWED..=LOOK_ALIKES + 20).contains(&not_kept), "{not_kept}");
    dashboard.stop().await;
}
