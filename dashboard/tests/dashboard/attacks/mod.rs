//! Tests of attacks: each must fail.

mod forms;
mod logins;
mod text;

use serde_json::json;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::serving::{Dashboard, PATIENCE, post, post_json, request};

const NO_REDIS: &str = "redis://127.0.0.1:1";
/// One token for each right. Each of them also grants the right to look.
const TOKENS: [(&str, &str); 4] = [
    ("look", "0a1b2c3d4e5f60718293"),
    ("ack", "1a1b2c3d4e5f60718293"),
    ("watch", "2a1b2c3d4e5f60718293"),
    ("release", "3a1b2c3d4e5f60718293"),
];
/// The right of a route that needs no login.
const OPEN: &str = "open";

/// Every route: method, path and query, and the right that it needs.
const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "/", "look"),
    ("GET", "/lock?name=a", "look"),
    ("GET", "/lock?name=a&format=bundle", "look"),
    ("POST", "/acknowledge?name=a", "ack"),
    ("POST", "/unacknowledge?name=a", "ack"),
    ("POST", "/api/v1/acknowledge?name=a", "ack"),
    ("POST", "/api/v1/unacknowledge?name=a", "ack"),
    ("GET", "/release?name=a", "release"),
    ("POST", "/release?name=a", "release"),
    ("GET", "/api/v1/release?name=a", "release"),
    ("POST", "/api/v1/release?name=a", "release"),
    ("GET", "/incident?problem=leaked&key=a", "look"),
    ("POST", "/incident/acknowledge?problem=leaked&key=a", "ack"),
    ("GET", "/incident/release?problem=leaked&key=a", "release"),
    ("POST", "/incident/release?problem=leaked&key=a", "release"),
    ("GET", "/api/v1/incident/release?problem=leaked&key=a", "release"),
    ("POST", "/api/v1/incident/release?problem=leaked&key=a", "release"),
    ("GET", "/owners", "look"),
    ("GET", "/owner?id=x", "look"),
    ("GET", "/problems", "look"),
    ("GET", "/contention", "look"),
    ("GET", "/history", "look"),
    ("GET", "/sources", "look"),
    ("POST", "/sources/watch", "watch"),
    ("POST", "/api/v1/monitor/watch", "watch"),
    ("POST", "/trace?name=a", "watch"),
    ("POST", "/api/v1/trace?name=a", "watch"),
    ("GET", "/api/v1/trace?name=a", "look"),
    ("GET", "/live?path=/", "look"),
    ("GET", "/static/{name}", OPEN),
    ("GET", "/favicon.ico", OPEN),
    ("GET", "/api/v1/locks", "look"),
    ("GET", "/api/v1/lock?name=a", "look"),
    ("GET", "/api/v1/events?from=-1h", "look"),
    ("GET", "/api/v1/held?at=-1h", "look"),
    ("GET", "/api/v1/owners", "look"),
    ("GET", "/overview", "look"),
    ("GET", "/api/v1/blockers", "look"),
    ("GET", "/api/v1/incidents", "look"),
    ("GET", "/api/v1/problems", "look"),
    ("GET", "/api/v1/contention", "look"),
    ("GET", "/api/v1/sources", "look"),
    ("GET", "/api/v1/stream", "look"),
    ("GET", "/api/v1/openapi.json", "look"),
    ("GET", "/metrics", "look"),
    ("GET", "/nowhere", "look"),
    ("GET", "/login", OPEN),
    ("POST", "/logout", "look"),
];

async fn guarded(redis_url: &str) -> (Dashboard, NamedTempFile) {
    let file = NamedTempFile::new().unwrap();
    let lines = TOKENS.map(|(right, token)| format!("{token},{right}er,{right}\n"));
    std::fs::write(file.path(), lines.concat()).unwrap();
    let tokens = file.path().to_str().unwrap().to_owned();
    let flags = ["--redis-url", redis_url, "--allow-release", "--auth-token-file", &tokens];
    (Dashboard::with(&flags).await, file)
}

fn token(right: &str) -> &'static str {
    TOKENS.iter().find(|(name, _)| *name == right).unwrap().1
}

/// Sends these bytes and returns the status and the head of the answer. The body, which may be endless, is not read.
async fn raw(dashboard: &Dashboard, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(dashboard.address).await.unwrap();
    // A server that has refused the first part may close the connection before it has read the rest.
    let sent = stream.write_all(bytes).await;
    let mut head = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        while !head.windows(4).any(|window| window == b"\r\n\r\n") {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(n) => head.extend_from_slice(&buffer[..n]),
            }
        }
    };
    timeout(PATIENCE, read).await.expect("an answer");
    let head = String::from_utf8_lossy(&head).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no answer ({sent:?}): {head}"));
    (status, head.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase())
}

async fn ask(
    dashboard: &Dashboard,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, String) {
    let body = if path.starts_with("/api/") { "{}" } else { "" };
    let kind = if path.starts_with("/api/") {
        "application/json"
    } else {
        "application/x-www-form-urlencoded"
    };
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text.push_str(&format!("Host: {}\r\n", dashboard.address));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if method == "POST" {
        text.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len()));
        text.push_str(&format!("\r\n{body}"));
    } else {
        text.push_str("\r\n");
    }
    raw(dashboard, text.as_bytes()).await
}

/// Returns the cookie of a login with this token.
async fn cookie(dashboard: &Dashboard, token: &str) -> String {
    let answer = dashboard.log_in(token, "/").await;
    let set = answer.header("set-cookie").expect("a cookie");
    set.split(';').next().unwrap().to_owned()
}

#[test]
fn every_route_is_on_the_list() {
    let source = include_str!("../../../src/http/router.rs");
    let routes: Vec<&str> = source
        .split(".route(\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap_or_default())
        .collect();
    assert!(routes.len() > 25, "{routes:?}");
    for route in routes {
        let known = |(_, path, _): &&(&str, &str, &str)| path.split('?').next() == Some(route);
        assert!(ROUTES.iter().any(|row| known(&row)), "{route} has no row");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_route_needs_its_right_and_no_other_will_do() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    for (method, path, needed) in ROUTES {
        let (status, head) = ask(&dashboard, method, path, &[]).await;
        assert_eq!(status == 401, *needed != OPEN, "{method} {path}, a stranger: {status}");
        assert!(head.contains("content-security-policy: default-src 'none'"), "{path}: {head}");
        for (right, token) in TOKENS {
            let bearer = format!("Bearer {token}");
            let (status, head) = ask(&dashboard, method, path, &[("Authorization", &bearer)]).await;
            let refused = matches!(status, 401 | 403);
            let may = *needed == OPEN || *needed == "look" || *needed == right;
            assert_eq!(!refused, may, "{method} {path} with {right}: {status} {head}");
            assert!(head.contains("x-content-type-options: nosniff"), "{path}: {head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_ours_gets_nothing() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let bearer = format!("Bearer {}", token("look"));
    for (method, path, _) in ROUTES.iter().chain(&[("GET", "/healthz", OPEN)]) {
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9761"] {
            let headers = [("Host", host), ("Authorization", bearer.as_str())];
            let (status, head) = ask(&dashboard, method, path, &headers).await;
            assert_eq!(status, 421, "{method} {path} for {host}: {head}");
        }
    }
    let own = dashboard.address;
    for (request, wanted) in [
        (format!("GET / HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n"), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET http://evil.example/ HTTP/1.1\r\nHost: {own}\r\n\r\n"), 421),
        (format!("GET / HTTP/1.1\r\nHost: x@{own}\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\nHost: {own}\r\nX-Forwarded-Host: evil.example\r\n\r\n"), 401),
    ] {
        assert_eq!(raw(&dashboard, request.as_bytes()).await.0, wanted, "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_is_split_and_no_request_smuggled() {
    let dashboard = Dashboard::with(&["--redis-url", NO_REDIS]).await;
    let evil = "a%0d%0aX-Evil:%20yes%0d%0a%0d%0a%3Cscript%3E";
    for (method, path, _) in ROUTES.iter().filter(|(method, ..)| *method == "GET") {
        let path = path.split('?').next().unwrap();
        let query = ["name", "id", "filter", "next", "deployment", "path", "format", "at", "from"]
            .map(|key| format!("{key}={evil}"))
            .join("&");
        let (_, head) = ask(&dashboard, method, &format!("{path}?{query}"), &[]).await;
        // A redirect repeats the query as it was encoded.
        assert!(!head.contains("\nx-evil"), "{path}: {head}");
        // The name of a bundle's file contains the query too.
        let (_, head) =
            ask(&dashboard, method, &format!("{path}?name={evil}&format=bundle"), &[]).await;
        assert!(!head.contains("\nx-evil") && !head.contains('<'), "{path}: {head}");
    }
    let own = dashboard.address;
    for (request, wanted) in [
        ("Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", &[400][..]),
        ("Content-Length: +4\r\n\r\nabcd", &[400]),
        ("Content-Length: -1\r\n\r\n", &[400]),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", &[400]),
        ("X-A: b\r\n folded: c\r\n\r\n", &[400]),
        ("X A: b\r\n\r\n", &[400]),
        ("X-A: a\0b\r\n\r\n", &[400]),
    ] {
        let text = format!("POST /logout HTTP/1.1\r\nHost: {own}\r\n{request}");
        let (status, head) = raw(&dashboard, text.as_bytes()).await;
        assert!(wanted.contains(&status), "{request:?}: {head}");
    }
    for method in ["TRACE", "CONNECT", "DELETE", "PUT", "PATCH", "DEBUG"] {
        let same = [("Sec-Fetch-Site", "same-origin"), ("X-Secret", "mirror")];
        let answer = request(dashboard.address, method, "/sources", &same).await;
        assert!((400..500).contains(&answer.status), "{method}: {answer:?}");
        assert!(!answer.body.contains("mirror"), "{method} sends back what it got");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_too_large_are_rejected() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let bearer = format!("Bearer {}", token("release"));
    let long = |n: usize| "x".repeat(n);
    for (path, wanted) in [
        (format!("/?filter={}", long(513)), 400),
        (format!("/?filter={}", "a+".repeat(17)), 400),
        (format!("/lock?name={}", long(70_000)), 431),
        (format!("/{}", long(70_000)), 431),
        (format!("/live?path=/%3Ffilter={}", long(513)), 400),
        (format!("/api/v1/locks?cursor={}", long(5_000)), 400),
        (format!("/owner?id={}", long(5_000)), 200),
    ] {
        let (status, _) = ask(&dashboard, "GET", &path, &[("Authorization", &bearer)]).await;
        let short: String = path.chars().take(40).collect();
        assert!(status == wanted || status == 414 && wanted == 431, "{short}…: {status}");
    }
    for (_, path, needed) in ROUTES.iter().filter(|(method, ..)| *method == "POST") {
        // These routes do not read the body.
        if *needed == "watch" || *path == "/logout" {
            continue;
        }
        let bearer = format!("Bearer {}", token(needed));
        let headers = [("Authorization", bearer.as_str())];
        let answer = if path.starts_with("/api/") {
            post_json(dashboard.address, path, &headers, &json!({"reason": long(20_000)})).await
        } else {
            post(dashboard.address, path, &headers, &format!("reason={}", long(20_000))).await
        };
        assert_eq!(answer.status, 413, "{path}: {}", answer.body);
    }
    let many: String = (0..500).map(|i| format!("X-{i}: y\r\n")).collect();
    let text = format!("GET / HTTP/1.1\r\nHost: {}\r\n{many}\r\n", dashboard.address);
    assert_eq!(raw(&dashboard, text.as_bytes()).await.0, 431);
}

#[tokio::test(flavor = "multi_thread")]
async fn static_is_no_way_to_other_files() {
    let dashboard = Dashboard::with(&["--redis-url", NO_REDIS]).await;
    for path in [
        "/static/../Cargo.toml",
        "/static/../../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static/..%5c..%5cetc%5cpasswd",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/....//....//etc/passwd",
        "/static/%252e%252e%252fetc%252fpasswd",
        "/static/app.css%00.js",
        "/static/app.css/../../Cargo.toml",
        "/static/.git",
        "/static/",
        "/static/%ff",
        "/static/APP.CSS",
    ] {
        let answer = dashboard.get(path).await;
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
        assert!(!answer.body.contains("root:") && !answer.body.contains("[package]"), "{path}");
    }
}
