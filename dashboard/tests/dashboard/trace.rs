//! Tests of traces: the life of a lock step by step, while MONITOR is open for it.

use std::time::Duration;

use redis::Connection;
use redisson::script::{self, Publish};
use redisson::{HolderId, Lease, LockName, keys};
use serde_json::Value;

use crate::redis_server::{HOLDER, RedisServer, eval, run, thread};
use crate::serving::{Dashboard, OWN};

/// A name that must be escaped on pages, followed by its percent-encoded form.
const NAME: &str = "orders:<script>";
const ENCODED: &str = "orders:%3Cscript%3E";

fn id(holder: &str) -> HolderId {
    HolderId::parse(holder.as_bytes()).unwrap()
}

/// Acquires the lock, then tries to acquire it from another thread, which is refused.
fn contend(redis: &mut Connection, name: &LockName) {
    let lease = Lease::new(Duration::from_secs(30)).unwrap();
    eval(redis, &script::acquire(name, &id(HOLDER), lease));
    eval(redis, &script::acquire(name, &id(&thread(53)), lease));
}

fn words<'a>(trace: &'a Value, member: &str) -> Vec<&'a str> {
    let steps = trace["steps"].as_array().unwrap();
    steps.iter().map(|step| step[member].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_shows_each_step_with_the_lines_behind_it() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let url = server.url();
    // With these settings the governor never opens MONITOR by itself.
    let flags = ["--redis-url", &*url, "--scan-every", "1h", "--monitor-max-ops", "1"];
    let dashboard = Dashboard::with(&flags).await;
    let path = format!("/api/v1/trace?name={ENCODED}");
    let before = dashboard.json(&path).await;
    assert_eq!((&before["tracing"], &before["since"]), (&Value::Bool(false), &Value::Null));
    let page = dashboard.get(&format!("/lock?name={ENCODED}")).await.body;
    assert!(page.contains("Trace for 60 s") && page.contains("ends by itself"), "{page}");

    let form = dashboard.submit(&format!("/trace?name={ENCODED}"), &[], "").await;
    assert_eq!(form.status, 303, "{form:?}");
    assert!(form.header("location").unwrap().ends_with("#trace"), "{form:?}");
    dashboard.source_when("monitor", "on").await;

    let name = LockName::new(NAME.as_bytes()).unwrap();
    contend(&mut redis, &name);
    run::<String>(&mut redis, &["SET", "session:9", "token=hunter2"]);
    let mut listener = server.connect();
    let mut listener = listener.as_pubsub();
    listener.subscribe(keys::channel(&name)).unwrap();
    let steps = ["acquired", "refused", "subscribed"];
    let trace = dashboard.json_when(&path, |trace| words(trace, "step") == steps).await;
    assert_eq!(trace["tracing"], true);
    let first = &trace["steps"][0];
    assert_eq!((&first["owner"], &first["gap_us"]), (&HOLDER.into(), &Value::Null), "{first}");
    assert!(trace["steps"][1]["gap_us"].is_u64(), "{trace}");
    let lines = first["lines"].to_string();
    assert!(lines.contains("EVAL") && lines.contains("HSET") && lines.contains(NAME), "{lines}");
    assert!(!trace.to_string().contains("hunter2"), "only the lock's own commands");

    // A later request returns only the later steps, as soon as there are any.
    let next = trace["next"].as_u64().unwrap();
    let later = format!("{path}&from={next}&wait=4000");
    let some = |trace: &Value| !trace["steps"].as_array().unwrap().is_empty();
    let answer = dashboard.json_when(&later, some);
    let (answer, ()) = tokio::join!(answer, async {
        eval(&mut redis, &script::release(&name, &id(HOLDER), Publish::Plain));
    });
    assert!(words(&answer, "step")[0] != "acquired", "{answer}");
    let page = dashboard
        .page_when(&format!("/lock?name={ENCODED}"), |page| page.contains(">release</span>"))
        .await;
    assert!(!page.contains("<script>\"") && page.contains("orders:&#60;script&#62;"), "{page}");
    assert!(page.contains("As MONITOR printed it"), "{page}");
    dashboard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_needs_the_right_to_watch_and_a_lock() {
    let server = RedisServer::start().await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let tokens = "looking-token-0123456789,robot,look\nwatching-token-0123456789,anna,watch\n";
    std::io::Write::write_all(&mut file, tokens.as_bytes()).unwrap();
    let (file, url) = (file.path().display().to_string(), server.url());
    let dashboard = Dashboard::with(&["--redis-url", &url, "--auth-token-file", &file]).await;
    for (token, path, status) in [
        ("looking", "/api/v1/trace?name=a", 403),
        ("watching", "/api/v1/trace?name=a", 202),
        ("watching", "/api/v1/trace", 400),
        ("watching", "/api/v1/trace?name=a&db=7", 404),
    ] {
        let bearer = format!("Bearer {token}-token-0123456789");
        let answer = dashboard.post(path, &[("Authorization", &*bearer)]).await;
        assert_eq!(answer.status, status, "{token} {path}: {answer:?}");
    }
    let bearer = ("Authorization", "Bearer watching-token-0123456789");
    for i in 0..7 {
        let path = format!("/api/v1/trace?name=b{i}");
        assert_eq!(dashboard.post(&path, &[bearer]).await.status, 202);
    }
    let answer = dashboard.post("/api/v1/trace?name=more", &[bearer]).await;
    assert_eq!(answer.status, 429, "{answer:?}");
    for wrong in ["from=x", "wait=4001"] {
        let answer = dashboard.get_with(&format!("/api/v1/trace?name=a&{wrong}"), &[bearer]).await;
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    dashboard.stop().await;

    let dashboard = Dashboard::with(&["--redis-url", &url, "--monitor", "off"]).await;
    let answer = dashboard.post("/api/v1/trace?name=a", &OWN).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    let page = dashboard.get("/lock?name=a").await.body;
    assert!(!page.contains("Trace for 60 s"), "{page}");
}
