//! Tests of acknowledged problems.

use redis::Connection;
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};
use tokio::time::timeout;

use crate::redis_server::{HOLDER, RedisServer, run, take, thread};
use crate::serving::{Answer, Dashboard, PATIENCE, post_json};

/// Creates a lock with the hold count 0, which the first read reports as malformed.
fn malformed(redis: &mut Connection, name: &str) {
    run::<i64>(redis, &["HSET", name, HOLDER, "0"]);
    run::<i64>(redis, &["PEXPIRE", name, "600000"]);
}

async fn acknowledge(dashboard: &Dashboard, name: &str, length: &str) -> Answer {
    let word = json!({"problem": "malformed", "reason": "known <b>", "for": length});
    post_json(dashboard.address, &format!("/api/v1/acknowledge?name={name}"), &[], &word).await
}

fn in_hand(lock: &Value) -> bool {
    lock["problems"][0]["acknowledged"].is_object()
}

fn open(lock: &Value) -> bool {
    lock["problems"][0]["acknowledged"] == json!(null)
        && lock["problems"][0]["problem"] == "malformed"
}

async fn with_history(server: &RedisServer, folder: &TempDir) -> Dashboard {
    let folder = folder.path().to_str().unwrap();
    let url = server.url();
    Dashboard::with(&["--redis-url", &url, "--monitor", "off", "--history-dir", folder]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_leaves_the_top_is_counted_apart_and_survives_a_restart() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    take(&mut redis, b"calm", &thread(1), 600_000);
    for name in ["a", "b"] {
        malformed(&mut redis, name);
        dashboard.lock_when(name, open).await;
    }
    let done = acknowledge(&dashboard, "a", "1h").await;
    assert_eq!(done.status, 200, "{done:?}");
    // The acknowledgement is visible as soon as the request is answered.
    let lock = dashboard.json("/api/v1/lock?name=a").await;
    assert!(in_hand(&lock), "{lock:#}");
    let word = &lock["problems"][0]["acknowledged"];
    assert_eq!((&word["by"], &word["reason"]), (&json!("someone"), &json!("known <b>")));
    let first = |json: &Value| json["locks"][0]["name"].clone();
    let listed = dashboard.json_when("/api/v1/locks", |json| json["total"] == 3).await;
    assert_eq!(first(&listed), "b", "{listed:#}");
    let last = listed["locks"].as_array().unwrap().iter().position(|lock| lock["name"] == "a");
    assert!(last > Some(0));
    dashboard.listed_when("filter=acknowledged:yes", &["a"]).await;
    dashboard.listed_when("filter=acknowledged:no", &["b"]).await;
    let counts = dashboard.json("/api/v1/sources").await["counts"].clone();
    assert_eq!((&counts["with_problems"], &counts["acknowledged"]), (&json!(1), &json!(1)));
    let metrics = dashboard.get("/metrics").await.body;
    for acknowledged in ["true", "false"] {
        let line = metrics.lines().find(|line| {
            line.starts_with("lockscope_dashboard_problems{")
                && line.contains(&format!("acknowledged=\"{acknowledged}\""))
        });
        assert!(line.is_some_and(|line| line.ends_with(" 1")), "{acknowledged}: {line:?}");
    }
    let page = dashboard.get("/lock?name=a").await.body;
    assert!(page.contains("Acknowledged") && page.contains("known &#60;b&#62;"), "{page}");
    let history = "/api/v1/events?from=2001-01-01T00:00:00Z&name=a";
    let kept = |json: &Value| json.to_string().contains("\"acknowledged\"");
    dashboard.json_when(history, kept).await;
    dashboard.stop().await;

    let dashboard = with_history(&server, &folder).await;
    dashboard.lock_when("a", in_hand).await;
    dashboard.lock_when("b", open).await;
    // A problem that ends and comes back is a new problem.
    run::<i64>(&mut redis, &["HSET", "a", HOLDER, "1"]);
    dashboard.lock_when("a", |lock| lock["problems"] == json!([])).await;
    malformed(&mut redis, "a");
    dashboard.lock_when("a", open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_by_its_time_or_when_it_is_taken_back() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = Dashboard::with(&["--redis-url", &server.url(), "--monitor", "off"]).await;
    malformed(&mut redis, "a");
    dashboard.lock_when("a", open).await;
    assert_eq!(acknowledge(&dashboard, "a", "2s").await.status, 200);
    dashboard.lock_when("a", open).await;
    assert_eq!(acknowledge(&dashboard, "a", "1h").await.status, 200);
    let undo = "/api/v1/unacknowledge?name=a";
    let word = json!({"problem": "malformed"});
    assert_eq!(post_json(dashboard.address, undo, &[], &word).await.status, 200);
    let lock = dashboard.json("/api/v1/lock?name=a").await;
    assert!(open(&lock), "{lock:#}");
    assert_eq!(post_json(dashboard.address, undo, &[], &word).await.status, 404, "not twice");
    // The form on the page acknowledges too, and leads back to the lock.
    let form = "problem=malformed&for=8h&reason=it+is+known";
    let answer = dashboard.submit("/acknowledge?name=a", &[], form).await;
    assert_eq!((answer.status, answer.header("location").is_some()), (303, true), "{answer:?}");
    assert!(in_hand(&dashboard.json("/api/v1/lock?name=a").await));
    let undone = dashboard.submit("/unacknowledge?name=a", &[], "problem=malformed").await;
    assert_eq!(undone.status, 303);
    dashboard.lock_when("a", open).await;
    let twice = dashboard.submit("/unacknowledge?name=a", &[], "problem=malformed").await;
    assert_eq!(twice.status, 303, "a second click: {twice:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_acknowledgements_are_refused_and_so_are_users_without_the_right() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let file = NamedTempFile::new().unwrap();
    let (anna, looker) = ("5f1c0b6b7d6e4c1f9a2e", "a2e5f1c0b6b7d6e4c1f9");
    let lines = format!("{anna},anna,ack\n{looker},looker,look+watch+release\n");
    std::fs::write(file.path(), lines).unwrap();
    let url = server.url();
    let flags = ["--redis-url", &url, "--auth-token-file", file.path().to_str().unwrap()];
    let dashboard = Dashboard::with(&flags).await;
    malformed(&mut redis, "a");
    let [anna, looker] = [anna, looker].map(|token| format!("Bearer {token}"));
    let login = [("Authorization", &*anna)];
    let known =
        async { while dashboard.get_with("/api/v1/lock?name=a", &login).await.status != 200 {} };
    timeout(PATIENCE, known).await.expect("the lock is known");
    let path = "/api/v1/acknowledge?name=a";
    let good = json!({"problem": "malformed", "reason": "known", "for": "1h"});
    let with = |member: &str, value: Value| {
        let mut word = good.clone();
        word[member] = value;
        word
    };
    for (who, word, status) in [
        (&looker, good.clone(), 403),
        (&anna, with("problem", json!("odd")), 422),
        (&anna, with("problem", json!("stuck")), 404),
        (&anna, with("reason", json!(" ")), 422),
        (&anna, with("reason", json!("two\nlines")), 422),
        (&anna, with("for", json!("31d")), 422),
        (&anna, with("for", json!("soon")), 422),
        (&anna, with("for", Value::Null), 422),
        (&anna, with("until", json!("2001-01-01T00:00:00Z")), 422),
        (&anna, json!({"problem": "malformed"}), 422),
        (&anna, good.clone(), 200),
    ] {
        let answer = post_json(dashboard.address, path, &[("Authorization", who)], &word).await;
        assert_eq!(answer.status, status, "{word} {answer:?}");
    }
    let lock = dashboard.get_with("/api/v1/lock?name=a", &[("Authorization", &anna)]).await.json();
    assert_eq!(lock["problems"][0]["acknowledged"]["by"], "anna");
    let page = dashboard.get_with("/lock?name=a", &[("Authorization", &looker)]).await;
    assert!(!page.body.contains("action=\"/acknowledge"), "no form for those who may not");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_with_a_problem_that_ends_while_no_dashboard_runs() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    malformed(&mut redis, "a");
    dashboard.lock_when("a", open).await;
    assert_eq!(acknowledge(&dashboard, "a", "1h").await.status, 200);
    dashboard.stop().await;
    run::<i64>(&mut redis, &["DEL", "a"]);

    let dashboard = with_history(&server, &folder).await;
    let history = "/api/v1/events?from=2001-01-01T00:00:00Z&name=a";
    let over = |json: &Value| json.to_string().contains("\"cleared\"");
    dashboard.json_when(history, over).await;
    malformed(&mut redis, "a");
    dashboard.lock_when("a", open).await;
    dashboard.stop().await;
    // The next run still knows that nobody has acknowledged the new problem.
    let dashboard = with_history(&server, &folder).await;
    let lock = dashboard.lock_when("a", |lock| lock["problems"][0].is_object()).await;
    assert!(open(&lock), "{lock:#}");
}
