//! Tests of the history: everything that survives a restart of the dashboard.

use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::redis_server::{HOLDER, RedisServer, release, run, take, thread};
use crate::serving::{Dashboard, Event};

async fn with_history(server: &RedisServer, folder: &TempDir) -> Dashboard {
    let folder = folder.path().to_str().unwrap();
    Dashboard::with(&["--redis-url", &server.url(), "--history-dir", folder]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn ages_and_past_holds_survive_a_restart() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    take(&mut redis, b"a", HOLDER, 600_000);
    dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    // A release can be distinguished from an expiry only while its message is received.
    dashboard.source_when("channels", "on").await;
    release(&mut redis, "a");
    dashboard.lock_when("a", |lock| lock["past"][0]["ended"] == "released").await;
    dashboard.lock_when("a", |lock| lock["state"] == "free").await;
    take(&mut redis, b"a", &thread(2), 600_000);
    let before = dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    dashboard.stop().await;
    let dashboard = with_history(&server, &folder).await;
    let lock = dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    assert_eq!(lock["holders"][0]["since"]["at"], before["holders"][0]["since"]["at"]);
    let first = &lock["past"][0];
    assert_eq!((&first["id"], &first["ended"]), (&json!(HOLDER), &json!("released")));
    // This is the exact instant at which the earlier hold began.
    let at = first["since"]["at"].as_str().unwrap();
    let then = dashboard.json(&format!("/api/v1/lock?name=a&at={at}")).await;
    assert_eq!((&then["name"], &then["holders"][0]["id"]), (&json!("a"), &json!(HOLDER)), "{then}");
    assert_eq!(then["gap"], json!(null));
    let page = dashboard.get(&format!("/lock?name=a&at={at}")).await;
    assert!(page.status == 200 && page.body.contains("class=\"then\""), "{page:?}");
    let nobody = dashboard.json("/api/v1/lock?name=a&at=2001-01-01T00:00:00Z").await;
    assert_eq!((&nobody["holders"], nobody["gap"]["to"].is_string()), (&json!([]), true));

    let events = dashboard.json("/api/v1/events?from=2001-01-01T00:00:00Z&name=a").await;
    let told: Vec<&str> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(told, ["taken", "ended", "taken"]);
    let newest = dashboard.json("/api/v1/events?from=-1h&name=a&order=desc").await;
    assert_eq!(newest["events"][0], events["events"][2]);
    let csv = dashboard.get("/api/v1/events?from=-1h&name=a&format=csv").await.body;
    assert_eq!(csv.matches(",taken,").count(), 2, "{csv}");
    let page = dashboard.get("/history?name=a").await.body;
    assert!(page.contains("released it") && page.contains("name=\"at\""), "{page}");
    // Reads one event at a time, to the end and back.
    let mut path = "/api/v1/events?from=-1h&name=a&limit=1".to_owned();
    let first = dashboard.json(&path).await;
    assert_eq!((&first["events"][0], &first["prev"]), (&events["events"][0], &json!(null)));
    path.push_str("&cursor=");
    let second = dashboard.json(&format!("{path}{}", first["next"].as_str().unwrap())).await;
    assert_eq!(second["events"][0], events["events"][1]);
    let back = dashboard.json(&format!("{path}{}", second["prev"].as_str().unwrap())).await;
    assert_eq!(back["events"], first["events"]);
    let ended = dashboard.json("/api/v1/events?from=-1h&filter=a%20event:ended").await;
    assert_eq!(ended["events"].as_array().map(Vec::len), Some(1), "{ended}");
    let held = dashboard.json(&format!("/api/v1/held?at={at}&filter=owner:{HOLDER}")).await;
    assert_eq!(
        (&held["total"], &held["held"][0]["lock"]["name"]),
        (&json!(1), &json!("a")),
        "{held}"
    );
    assert_eq!(held["held"][0]["hold"]["ended"], "released");
    let csv = dashboard.get(&format!("/api/v1/held?at={at}&format=csv")).await.body;
    assert_eq!(csv.matches(",released,").count(), 1, "{csv}");
    let page = dashboard.get(&format!("/history?from=-1h&at={at}")).await.body;
    assert!(page.contains("Held at") && page.contains("class=\"cursor\""), "{page}");
    // The picture of the lock reaches back to an earlier run of the dashboard.
    let page = dashboard.get("/lock?name=a&window=1h").await.body;
    assert!(page.contains("<rect class=\"released\"") && page.contains("window=24h"), "{page}");
    assert_eq!(
        (&events["next"], events["gaps"].as_array().unwrap().len() >= 2),
        (&json!(null), true)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_name_is_a_blank_has_its_own_history() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    for name in ["a", " "] {
        take(&mut redis, name.as_bytes(), HOLDER, 600_000);
    }
    for name in ["a", " "] {
        dashboard.lock_when(name, |lock| lock["state"] == "held").await;
    }
    let page = dashboard.get("/history?name=%20").await.body;
    assert!(page.contains("Only events of"), "{page}");
    let taken = "/api/v1/events?from=-1h&filter=event:taken&name=";
    let all = dashboard
        .json_when(taken, |events| events["events"].as_array().is_some_and(|all| all.len() == 2))
        .await;
    assert_eq!(all["next"], json!(null));
    let own = dashboard.json(&format!("{taken}%20")).await;
    assert_eq!(own["events"].as_array().map(Vec::len), Some(1), "{own}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_said_of_the_future() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    take(&mut redis, b"a", HOLDER, 600_000);
    dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    let page = dashboard.get("/lock?name=a&at=2999-01-01T00:00:00Z").await.body;
    assert!(page.contains("id=\"lock-then\"") && !page.contains("2999-01-01"), "{page}");
    let page = dashboard.get("/history?from=2999-01-01T00:00:00Z").await;
    assert!(page.status == 400 && page.body.contains("From: This is in the future"), "{page:?}");
    let page = dashboard.get("/history?from=-1h&to=-2h").await;
    assert!(
        page.status == 400 && page.body.contains("To: This is before the beginning"),
        "{page:?}"
    );
    let answer = dashboard.get("/api/v1/events?from=2999-01-01T00:00:00Z").await;
    assert!(answer.status == 400 && answer.body.contains("`from` is in the future"), "{answer:?}");
}

#[tokio::test]
async fn invalid_queries_are_refused_with_a_reason() {
    let none = Dashboard::start("redis://127.0.0.1:1").await;
    let answer = none.get("/api/v1/events?from=2001-01-01T00:00:00Z").await;
    assert!(answer.status == 404 && answer.body.contains("stores no history"), "{answer:?}");
    assert_eq!(none.get("/lock?name=a&at=2001-01-01T00:00:00Z").await.status, 404);
    for path in ["/api/v1/events", "/api/v1/events?from=yesterday", "/api/v1/lock?name=a&at=x"] {
        assert_eq!(none.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_go_on_and_what_ended_meanwhile_is_over() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    for name in ["kept", "gone"] {
        take(&mut redis, name.as_bytes(), HOLDER, 600_000);
        dashboard.lock_when(name, |lock| lock["state"] == "held").await;
    }
    run::<()>(&mut redis, &["PERSIST", "kept"]);
    let leaked = |lock: &Value| lock["problems"][0]["problem"] == "leaked";
    let before = dashboard.lock_when("kept", leaked).await;
    dashboard.stop().await;
    run::<()>(&mut redis, &["DEL", "gone"]);
    let dashboard = with_history(&server, &folder).await;
    let after = dashboard.lock_when("kept", leaked).await;
    assert_eq!(after["problems"][0]["since"], before["problems"][0]["since"]);
    let path = "/api/v1/events?from=2001-01-01T00:00:00Z&name=gone";
    let over = |told: &Value| told["events"][1]["event"] == "ended";
    let told = dashboard.json_when(path, over).await;
    assert_eq!(told["events"][1]["detail"], "unseen", "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holds_of_an_unknown_client_are_remembered_by_its_field() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    take(&mut redis, b"a", "worker <1>", 600_000);
    let dashboard = with_history(&server, &folder).await;
    let before = dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    dashboard.stop().await;
    let dashboard = with_history(&server, &folder).await;
    let lock = dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    assert_eq!(lock["holders"][0]["since"]["at"], before["holders"][0]["since"]["at"]);
    dashboard.source_when("channels", "on").await;
    release(&mut redis, "a");
    let lock = dashboard.lock_when("a", |lock| lock["past"][0]["ended"] == "released").await;
    assert_eq!(lock["past"][0]["id"], "worker <1>");
    assert!(lock["events"].to_string().contains("released by worker <1>"), "{lock}");
    let history = "/api/v1/events?from=2001-01-01T00:00:00Z&name=a";
    let ended = |json: &Value| json["events"].to_string().contains("\"ended\"");
    let events = dashboard.json_when(history, ended).await;
    let subjects = events["events"].as_array().unwrap().iter().map(|event| &event["subject"]);
    assert_eq!(subjects.collect::<Vec<_>>(), ["worker <1>"; 2]);
    let csv = dashboard.get(&format!("{history}&format=csv")).await.body;
    assert_eq!(csv.matches("worker <1>").count(), 2, "{csv}");
    for path in ["/lock?name=a", "/history?name=a"] {
        let page = dashboard.get(path).await.body;
        assert!(page.contains("worker &#60;1&#62;") || page.contains("worker &lt;1&gt;"), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_history_is_kept_and_a_new_one_begins() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    take(&mut redis, b"a", HOLDER, 600_000);
    let history = "/api/v1/events?from=2001-01-01T00:00:00Z&name=a";
    let taken = |json: &Value| json["events"].to_string().contains("taken");
    dashboard.json_when(history, taken).await;
    dashboard.stop().await;
    let path = folder.path().join("history.db");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(connection);
    // All pages but the first one.
    let mut damaged = std::fs::read(&path).unwrap();
    damaged[4_096..].fill(0xa5);
    std::fs::write(&path, &damaged).unwrap();

    let dashboard = with_history(&server, &folder).await;
    let sources = dashboard.json("/api/v1/sources").await["limits"].to_string();
    let (_, name) = sources.split_once("history.db.broken-").expect(&sources);
    let number: String = name.chars().take_while(char::is_ascii_digit).collect();
    let aside = folder.path().join(format!("history.db.broken-{number}"));
    assert!(std::fs::read(&aside).unwrap() == damaged);
    let page = dashboard.get("/sources").await.body;
    assert!(page.contains(&*aside.to_string_lossy()), "{page}");
    dashboard.json_when(history, taken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_lock_does_not_need_the_history() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    take(&mut redis, b"a", HOLDER, 600_000);
    dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    let file = Connection::open(folder.path().join("history.db")).unwrap();
    file.busy_timeout(Duration::from_secs(30)).unwrap();
    file.execute_batch("DROP TABLE hold").unwrap();
    let page = dashboard.get("/lock?name=a").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains(HOLDER), "{page:?}");
    assert!(page.body.contains("the history cannot be read now"), "{page:?}");
    let unknown = dashboard.get("/lock?name=b").await.body;
    assert!(unknown.contains("The history of this lock cannot be read now."), "{unknown}");
    assert_eq!(dashboard.get("/lock?name=a&format=bundle").await.status, 503);
    assert_eq!(dashboard.get("/lock?name=a&at=-1m").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_page_of_the_history_says_so_when_the_history_cannot_be_read() {
    let server = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_history(&server, &folder).await;
    let mut lists = dashboard.events("/live?path=/", &[]).await;
    let mut pages = Vec::new();
    for path in ["%2Fhistory", "%2Flock%3Fname%3Da%26at%3D-1m"] {
        let mut page = dashboard.events(&format!("/live?path={path}"), &[]).await;
        page.when(|event| event.data["full"] == true).await;
        pages.push((path, page));
    }
    let file = Connection::open(folder.path().join("history.db")).unwrap();
    file.busy_timeout(Duration::from_secs(30)).unwrap();
    file.execute_batch("ALTER TABLE hold RENAME TO away").unwrap();
    let unread = |event: &Event| event.data["unread"].as_u64().is_some_and(|age| age >= 10_000);
    for (path, page) in &mut pages {
        page.when(unread).await;
        // A reader that joins receives the version from before.
        let mut other = dashboard.events(&format!("/live?path={path}"), &[]).await;
        assert_eq!(other.next().await.unwrap().data["full"], true);
        assert!(unread(&other.next().await.unwrap()));
    }
    file.execute_batch("ALTER TABLE away RENAME TO hold").unwrap();
    for (_, page) in &mut pages {
        page.when(|event| event.data["unread"].is_null()).await;
    }
    let beat = lists.when(|event| event.data["rows"].is_null()).await;
    assert!(beat.data["unread"].is_null());
}
