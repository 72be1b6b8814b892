//! Event streams: of pages and of the API.

use serde_json::{Value, json};

use crate::redis_server::{HOLDER, RedisServer, release, take};
use crate::serving::{Dashboard, Event};

fn rows(event: &Event) -> String {
    event.data["rows"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_appears_and_goes_on_an_open_page() {
    let server = RedisServer::start();
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
    let server = RedisServer::start();
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
    let server = RedisServer::start();
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
async fn machines_get_a_snapshot_and_then_changes() {
    let server = RedisServer::start();
    let mut redis = server.connect();
    for i in 0..1_200 {
        take(&mut redis, format!("lock:{i}").as_bytes(), HOLDER, 600_000);
    }
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.json_when("/api/v1/locks", |json| json["total"] == 1_200).await;
    let mut stream = dashboard.events("/api/v1/stream", &[]).await;
    let mut known = 0;
    loop {
        let event = stream.next().await.unwrap();
        assert_eq!(event.event, "snapshot");
        known += event.data["locks"].as_array().unwrap().len();
        if event.data["more"] == false {
            assert!(event.id.is_some());
            break;
        }
    }
    assert_eq!(known, 1_200);
    take(&mut redis, b"new", HOLDER, 600_000);
    let names = |event: &Event| {
        event.data["changed"].as_array().unwrap().iter().any(|lock| lock["name"] == "new")
    };
    let last = stream.when(|event| event.event == "delta" && names(event)).await.id.unwrap();

    // Whoever comes back in time misses nothing and is told nothing twice.
    drop(stream);
    release(&mut redis, "new");
    dashboard.lock_when("new", |lock| lock["state"] == "free").await;
    let mut back = dashboard.events("/api/v1/stream", &[("Last-Event-ID", &last)]).await;
    let free = |event: &Event| {
        let changed = event.data["changed"].as_array().unwrap();
        changed.iter().any(|lock| lock["name"] == "new" && lock["state"] == "free")
    };
    let mut seq: u64 = last.rsplit_once('-').unwrap().1.parse().unwrap();
    back.when(|event| {
        seq += 1;
        assert_eq!((event.event.as_str(), event.data["seq"].as_u64()), ("delta", Some(seq)));
        free(event)
    })
    .await;

    // Whoever comes from elsewhere begins anew, and is told so.
    for id in ["0-1", "nonsense", &format!("{last}9")] {
        let mut stream = dashboard.events("/api/v1/stream", &[("Last-Event-ID", id)]).await;
        assert_eq!(stream.next().await.unwrap().event, "resync", "{id}");
        assert_eq!(stream.next().await.unwrap().event, "snapshot", "{id}");
    }
    let metrics = dashboard.get("/metrics").await.body;
    assert!(metrics.contains("lockscope_dashboard_stream_resyncs_total 3"), "{metrics}");
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
