//! Tests of the bundle: everything known about a lock, as one file.

use serde_json::{Value, json};
use tempfile::{NamedTempFile, tempdir};

use crate::redis_server::{HOLDER, RedisServer, release, run, take};
use crate::serving::Dashboard;

const TOKEN: &str = "5f1c0b6b7d6e4c1f9a2e";

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_has_all_that_a_ticket_needs_and_no_secret() {
    let (server, folder, file) =
        (RedisServer::start().await, tempdir().unwrap(), NamedTempFile::new());
    let (mut redis, file) = (server.connect(), file.unwrap());
    run::<String>(&mut redis, &["ACL", "SETUSER", "looker", "on", ">sesame", "~*", "&*", "+@all"]);
    std::fs::write(file.path(), format!("{TOKEN},Anna\n")).unwrap();
    let url = server.url().replace("redis://", "redis://looker:sesame@");
    let flags = [
        "--redis-url",
        &url,
        "--history-dir",
        folder.path().to_str().unwrap(),
        "--environment",
        "drill",
        "--note",
        "Mind the gap.",
        "--auth-token-file",
        file.path().to_str().unwrap(),
    ];
    take(&mut redis, b"orders:1", HOLDER, 600_000);
    let dashboard = Dashboard::with(&flags).await;
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Authorization", bearer.as_str())];
    let path = "/lock?name=orders:1&format=bundle";
    assert_eq!(dashboard.get(path).await.status, 401, "it tells as much as the page");
    let ask = async || dashboard.get_with(path, &headers).await;
    let deadline = tokio::time::Instant::now() + crate::serving::PATIENCE;
    let fits = |json: &Value| {
        let told = json["history"]["events"].as_array().map_or(0, Vec::len);
        json["now"]["state"] == "held" && told > 0
    };
    let answer = loop {
        let answer = ask().await;
        if fits(&answer.json()) {
            break answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "{answer:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let named = answer.header("content-disposition").unwrap();
    assert!(named.starts_with("attachment; filename=\"lockscope-orders_1-2"), "{named}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let json = answer.json();
    assert_eq!(json["form"], "lockscope-bundle/1");
    assert_eq!((&json["made_by"], &json["lock"]["name"]), (&json!("Anna"), &json!("orders:1")));
    assert_eq!(json["now"]["holders"][0]["id"], HOLDER);
    let about = &json["dashboard"];
    assert_eq!((&about["environment"], &about["note"]), (&json!("drill"), &json!("Mind the gap.")));
    assert_eq!(about["settings"]["usual"]["stuck_after_ms"], 300_000);
    assert!(json["sources"]["sources"].as_array().is_some_and(|sources| !sources.is_empty()));
    for secret in ["sesame", "looker", TOKEN, folder.path().to_str().unwrap()] {
        assert!(!answer.body.contains(secret), "{secret} in {}", answer.body);
    }
    // The page of the lock links to the bundle.
    let page = dashboard.get_with("/lock?name=orders:1", &headers).await.body;
    assert!(page.contains("name=orders:1&#38;format=bundle\" download"), "{page}");
    assert!(page.contains("Mind the gap."), "{page}");
    dashboard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_without_a_history_says_so() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    take(&mut redis, b"a", HOLDER, 600_000);
    let dashboard = Dashboard::start(&server.url()).await;
    let path = "/lock?name=a&format=bundle";
    dashboard.json_when(path, |json| json["now"]["state"] == "held").await;
    release(&mut redis, "a");
    let free = dashboard.json_when(path, |json| json["now"]["state"] == "free").await;
    assert_eq!(free["history"], Value::Null);
    assert_eq!(free["holds"][0]["id"], HOLDER, "what is remembered");
    let none = dashboard.json("/lock?name=never&format=bundle").await;
    assert_eq!(none["now"], Value::Null);
    assert!(none["why"].as_str().is_some_and(|why| why.contains("no such key")), "{none}");
    for (query, status) in [
        ("name=a&format=zip", 400),
        ("format=bundle", 400),
        ("name=a&format=bundle&window=x", 400),
        ("name=a&format=bundle&at=03:12", 404),
    ] {
        assert_eq!(dashboard.get(&format!("/lock?{query}")).await.status, status, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_of_a_busy_lock_has_the_latest_events() {
    let (server, folder) = (RedisServer::start().await, tempdir().unwrap());
    let url = server.url();
    let flags = ["--redis-url", &url, "--history-dir", folder.path().to_str().unwrap()];
    let dashboard = Dashboard::with(&flags).await;
    // Its first answer shows that the history is open.
    dashboard.json("/api/v1/locks").await;
    dashboard.stop().await;
    let history = rusqlite::Connection::open(folder.path().join("history.db")).unwrap();
    let now = "SELECT unixepoch() * 1000";
    let now: i64 = history.query_row(now, [], |row| row.get(0)).unwrap();
    let ago = |seconds: i64| now - seconds * 1_000;
    for second in 1..=700 {
        let began = ago(3_000 - second);
        history
            .execute(
                "INSERT INTO hold VALUES ('default', 0, CAST('busy' AS BLOB), ?1, ?2, 1, ?2 + 500, 'released')",
                rusqlite::params![format!("{HOLDER}{second}"), began],
            )
            .unwrap();
    }
    drop(history);
    let dashboard = Dashboard::with(&flags).await;
    let bundle = dashboard.json("/lock?name=busy&format=bundle").await;
    let events = bundle["history"]["events"].as_array().unwrap();
    let subject = |event: &Value| event["subject"].as_str().unwrap().to_owned();
    assert_eq!(events.len(), 1_000);
    assert_eq!(bundle["history"]["complete"], false);
    assert_eq!(subject(&events[0]), format!("{HOLDER}201"));
    assert_eq!(subject(&events[999]), format!("{HOLDER}700"), "oldest first");
    let short = dashboard.json("/lock?name=busy&format=bundle&window=45m").await;
    assert_eq!(short["history"]["complete"], true, "{}", short["history"]["events"]);
}
