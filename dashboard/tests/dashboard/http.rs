//! Tests of the HTTP server: its routes and their limits.

use serde_json::{Value, json};

use crate::redis_server::{HOLDER, RedisServer, take};
use crate::serving::{Dashboard, request};

const NO_REDIS: &str = "redis://127.0.0.1:1";

#[tokio::test]
async fn every_answer_is_guarded() {
    let dashboard = Dashboard::start(NO_REDIS).await;
    for (path, status) in [
        ("/", 200),
        ("/sources", 200),
        ("/owners", 200),
        ("/owners?sort=x", 400),
        ("/owner?id=x", 200),
        ("/owner", 400),
        ("/problems", 200),
        ("/problems?filter=age:x", 400),
        ("/contention", 200),
        ("/contention?cursor=x", 400),
        ("/history", 200),
        ("/history?from=soon", 400),
        ("/history?from=-1m&to=-2m", 400),
        ("/history?filter=event:x", 400),
        ("/lock?name=a&window=x", 400),
        ("/nowhere", 404),
        ("/?filter=age:x", 400),
        ("/lock", 400),
        ("/static/app.css", 200),
        ("/static/../Cargo.toml", 404),
        ("/api/v1/locks", 200),
        ("/overview", 200),
        ("/api/v1/blockers", 200),
        ("/api/v1/incidents", 200),
        ("/api/v1/incidents?sort=name", 400),
        ("/api/v1/problems", 200),
        ("/api/v1/problems?filter=age:x", 400),
        ("/api/v1/problems?limit=0", 400),
        ("/api/v1/owners", 200),
        ("/api/v1/owners?limit=101", 400),
        ("/api/v1/owners?cursor=x", 400),
        ("/api/v1/contention", 200),
        ("/api/v1/contention?sort=age", 400),
        ("/api/v1/locks?format=csv", 200),
        ("/api/v1/locks?format=xml", 400),
        ("/api/v1/nowhere", 404),
        ("/api/v1/events", 400),
        ("/api/v1/events?from=-1h&filter=event:x", 400),
        ("/api/v1/events?from=-1h&limit=1001", 400),
        ("/api/v1/held", 400),
        ("/api/v1/held?at=-1m&filter=problem:any", 400),
        ("/api/v1/openapi.json", 200),
        ("/live?path=/nowhere", 400),
        ("/live?path=/owner", 400),
        ("/live?path=/history%3Ffrom%3Dsoon", 400),
        ("/live", 400),
        ("/metrics", 200),
        ("/healthz", 200),
    ] {
        let answer = dashboard.get(path).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("same-origin"), "{path}");
        assert!(answer.header("cache-control").is_some(), "{path}");
    }
}

#[tokio::test]
async fn a_change_that_takes_too_long_may_have_been_made() {
    let dashboard = Dashboard::start(NO_REDIS).await;
    // The body never arrives.
    let change = async |path: &str, kind: &str, accept: &str| {
        let headers = [
            ("Sec-Fetch-Site", "same-origin"),
            ("Content-Type", kind),
            ("Content-Length", "9"),
            ("Accept", accept),
        ];
        let answer = request(dashboard.address, "POST", path, &headers).await;
        assert_eq!(answer.status, 504, "{path}: {answer:?}");
        assert!(answer.body.contains("may have been made"), "{path}: {answer:?}");
        answer.header("content-type").unwrap_or_default().to_owned()
    };
    let (api, page) = tokio::join!(
        change("/api/v1/acknowledge?name=a", "application/json", "*/*"),
        change("/acknowledge?name=a", "application/x-www-form-urlencoded", "text/html"),
    );
    assert_eq!((&*api, &*page), ("application/problem+json", "text/html; charset=utf-8"));
}

#[tokio::test]
async fn strangers_names_are_refused() {
    let dashboard =
        Dashboard::with(&["--redis-url", NO_REDIS, "--public-url", "https://locks.example.com"])
            .await;
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:9761", 200),
        ("[::1]:9761", 200),
        ("locks.example.com", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
    ] {
        for path in ["/", "/api/v1/locks", "/metrics", "/healthz"] {
            let answer = dashboard.get_with(path, &[("Host", host)]).await;
            assert_eq!(answer.status, status, "{host} {path}");
        }
    }
}

#[tokio::test]
async fn nothing_but_reading_is_possible() {
    let dashboard = Dashboard::start(NO_REDIS).await;
    let headers = [("Content-Length", "0"), ("Sec-Fetch-Site", "same-origin")];
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        for path in ["/", "/lock?name=a", "/api/v1/lock?name=a", "/api/v1/locks"] {
            let answer = request(dashboard.address, method, path, &headers).await;
            assert_eq!(answer.status, 405, "{method} {path}");
        }
    }
    assert_eq!(request(dashboard.address, "HEAD", "/", &[]).await.status, 200);
}

#[tokio::test]
async fn a_wrong_method_is_explained_at_every_address() {
    let same_site = [("Content-Length", "0"), ("Sec-Fetch-Site", "same-origin")];
    let one = Dashboard::start(NO_REDIS).await;
    let two = Dashboard::with(&["--redis-url", NO_REDIS, "--metrics-listen", "127.0.0.1:0"]).await;
    let metrics = two.metrics.unwrap();
    for (address, method, path, allowed) in [
        (one.address, "POST", "/metrics", "GET,HEAD"),
        (one.address, "POST", "/healthz", "GET,HEAD"),
        (one.address, "POST", "/overview", "GET,HEAD"),
        (one.address, "PUT", "/login", "GET,HEAD,POST"),
        (one.address, "GET", "/logout", "POST"),
        (one.address, "GET", "/api/v1/acknowledge", "POST"),
        (metrics, "POST", "/metrics", "GET,HEAD"),
        (metrics, "POST", "/readyz", "GET,HEAD"),
    ] {
        let answer = request(address, method, path, &same_site).await;
        assert_eq!(answer.status, 405, "{method} {path}");
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        let detail = "method not allowed: see the `Allow` header";
        assert_eq!(answer.json()["detail"], detail, "{method} {path}");
    }
    // A proxy's login leads a browser back to the address of the form that it did not pass on.
    let html = [("Accept", "text/html")];
    let unsent = request(one.address, "GET", "/acknowledge?name=a", &html).await;
    assert_eq!((unsent.status, unsent.header("allow")), (405, Some("POST")));
    assert!(
        unsent.body.contains("Nothing was done: this address accepts forms only."),
        "{unsent:?}"
    );
    let nowhere = request(metrics, "GET", "/", &[]).await;
    assert_eq!(nowhere.status, 404);
    assert_eq!(nowhere.header("content-type"), Some("application/problem+json"));
}

#[tokio::test]
async fn mistakes_of_the_api_are_problems() {
    let dashboard = Dashboard::start(NO_REDIS).await;
    for (path, word) in [
        ("/api/v1/locks?filter=kind:x", "fair"),
        ("/api/v1/locks?sort=colour", "holder"),
        ("/api/v1/locks?order=up", "desc"),
        ("/api/v1/locks?limit=0", "100"),
        ("/api/v1/locks?limit=101", "100"),
        ("/api/v1/locks?cursor=x", "cursor"),
        ("/api/v1/locks?by=host", "only owners"),
        ("/api/v1/locks?facets=all", "yes or no"),
        ("/api/v1/owners?by=team", "instance, service, host"),
        ("/api/v1/owners?facets=yes", "list of locks"),
        ("/api/v1/lock", "name64"),
        ("/api/v1/lock?name=", "empty"),
        ("/api/v1/lock?name64=%25", "base64"),
        ("/api/v1/lock?name=bad%FF", "name64"),
        ("/api/v1/lock?name=a&name64=YQ==", "exclude"),
    ] {
        let answer = dashboard.get(path).await;
        assert_eq!(answer.status, 400, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        let problem = answer.json();
        assert_eq!((&problem["status"], &problem["type"]), (&json!(400), &json!("about:blank")));
        assert!(problem["detail"].as_str().unwrap().contains(word), "{path}: {problem}");
    }
    let long = format!("/api/v1/locks?filter={}", "x".repeat(513));
    assert_eq!(dashboard.get(&long).await.status, 400);
    let endless = format!("/?filter={}", "x".repeat(100_000));
    // How much of it has arrived decides which limit it exceeds first.
    let status = dashboard.get(&endless).await.status;
    assert!(matches!(status, 414 | 431), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_paged() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    for i in 0..230 {
        take(&mut redis, format!("lock:{i:03}").as_bytes(), HOLDER, 600_000);
    }
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.json_when("/api/v1/locks", |json| json["total"] == 230).await;
    let mut names = Vec::new();
    let mut path = "/api/v1/locks?sort=name".to_owned();
    loop {
        let page = dashboard.json(&path).await;
        let locks = page["locks"].as_array().unwrap();
        names.extend(locks.iter().map(|lock| lock["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/locks?sort=name&cursor={next}");
    }
    assert_eq!(names, (0..230).map(|i| format!("lock:{i:03}")).collect::<Vec<_>>());
    let page = dashboard.get("/?sort=name").await.body;
    assert!(page.contains("lock:099") && !page.contains("lock:100"));
    assert!(page.contains("cursor="), "there is a way to the next page");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_counted_by_property_and_grouped_on_request() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    for name in ["orders:1", "orders:2", "carts:1"] {
        take(&mut redis, name.as_bytes(), HOLDER, 600_000);
    }
    let dashboard = Dashboard::start(&server.url()).await;
    let locks = dashboard.json_when("/api/v1/locks", |json| json["total"] == 3).await;
    assert_eq!(locks["facets"], Value::Null);
    let facets = dashboard.json("/api/v1/locks?facets=yes&limit=1").await["facets"].clone();
    assert_eq!(facets["views"][0], json!({"filter": "", "count": 3}), "{facets:#}");
    let prefixes = json!([{"value": "orders:", "count": 2}, {"value": "carts:", "count": 1}]);
    let expected = json!({"property": "prefix", "values": prefixes, "more": 0});
    assert_eq!(facets["properties"][0], expected, "{facets:#}");
    for (by, id) in [("instance", &HOLDER[..36]), ("service", ""), ("host", "")] {
        let owners = dashboard.json(&format!("/api/v1/owners?by={by}")).await;
        let [owner] = owners["owners"].as_array().unwrap().as_slice() else { panic!("{owners:#}") };
        let found = (&owner["by"], &owner["id"], &owner["holds"]);
        assert_eq!(found, (&json!(by), &json!(id), &json!(3)), "{owners:#}");
        let page = dashboard.get(&format!("/owners?by={by}&filter=lock")).await;
        let current = format!("/owners?filter=lock&#38;by={by}\" aria-current");
        let current = current.replace("&#38;by=instance", "");
        assert!(page.body.contains(&current), "{current} in {}", page.body);
    }
}

#[tokio::test]
async fn files_are_cached_by_what_is_in_them() {
    let dashboard = Dashboard::start(NO_REDIS).await;
    let page = dashboard.get("/").await.body;
    let start = page.find("/static/app.css?v=").unwrap();
    let address: String = page[start..].chars().take_while(|c| *c != '"').collect();
    let file = dashboard.get(&address).await;
    assert_eq!(file.status, 200);
    assert!(file.header("cache-control").unwrap().contains("immutable"));
    let tag = file.header("etag").unwrap();
    let again = dashboard.get_with(&address, &[("If-None-Match", tag)]).await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    for other in ["/static/app.css", "/static/app.css?v=0"] {
        let file = dashboard.get(other).await;
        assert_eq!(file.header("cache-control"), Some("no-cache"), "{other}");
    }
    assert_eq!(dashboard.get("/static/none.js").await.status, 404);
}

#[tokio::test]
async fn the_description_of_the_api_names_every_route() {
    let dashboard = Dashboard::start(NO_REDIS).await;
    let api = dashboard.json("/api/v1/openapi.json").await;
    let paths: Vec<&String> = api["paths"].as_object().unwrap().keys().collect();
    let all = [
        "acknowledge",
        "blockers",
        "contention",
        "events",
        "held",
        "incident/release",
        "incidents",
        "lock",
        "locks",
        "monitor/watch",
        "owners",
        "problems",
        "release",
        "sources",
        "stream",
        "trace",
        "unacknowledge",
    ];
    assert_eq!(paths, all.map(|route| format!("/api/v1/{route}")).each_ref());
    assert!(api["openapi"].as_str().unwrap().starts_with("3."));
}

#[tokio::test]
async fn metrics_may_be_served_on_a_separate_address() {
    let flags = ["--redis-url", NO_REDIS, "--metrics-listen", "127.0.0.1:1"];
    let dashboard = Dashboard::with(&flags).await;
    assert_eq!(dashboard.get("/metrics").await.status, 404);
    let metrics = dashboard.metrics.unwrap();
    assert_eq!(request(metrics, "GET", "/metrics", &[]).await.status, 200);
    assert_eq!(request(metrics, "GET", "/", &[]).await.status, 404);
    assert_eq!(request(metrics, "GET", "/metrics", &[("Host", "evil.example")]).await.status, 421);
}

/// Returns the members that a schema requires, including those of the schemas that it consists of, sorted.
pub(crate) fn required(schemas: &Value, schema: &Value) -> Vec<String> {
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    let schema = name.map_or(schema, |name| &schemas[name]);
    let own = schema["required"].as_array().into_iter().flatten();
    let mut members: Vec<String> = own.map(|name| name.as_str().unwrap().to_owned()).collect();
    let parts = schema["allOf"].as_array().into_iter().flatten();
    members.extend(parts.flat_map(|part| required(schemas, part)));
    members.sort();
    members
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_what_the_description_says() {
    let server = RedisServer::start().await;
    take(&mut server.connect(), b"a", HOLDER, 600_000);
    let dashboard = Dashboard::start(&server.url()).await;
    let lock = dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    let schemas = dashboard.json("/api/v1/openapi.json").await["components"]["schemas"].clone();
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    for (value, schema) in [
        (&lock, "Lock"),
        (&lock["holders"][0], "Holder"),
        (&lock["holders"][0]["since"], "Since"),
        (&lock["events"][0], "Event"),
    ] {
        assert_eq!(keys(value), required(&schemas, &schemas[schema]), "{schema}");
    }
}
