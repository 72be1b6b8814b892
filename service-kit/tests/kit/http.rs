//! Tests of the HTTP parts behind a real socket.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use futures_util::stream;
use prometheus::Registry;
use service_kit::http::{
    AllowedHosts, HttpMetrics, Limits, Readiness, check_host, health_routes, measure,
    metrics_route, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::in_time;

struct Site {
    address: SocketAddr,
    stop: CancellationToken,
    served: JoinHandle<()>,
}

impl Site {
    async fn start(router: Router, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(listener, router, limits, stop.clone()));
        Self { address, stop, served }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends these lines as a request's head, and returns everything received until the end.
    async fn send(&self, lines: &[&str]) -> String {
        let mut stream = self.connect().await;
        let head = format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n"));
        stream.write_all(head.as_bytes()).await.unwrap();
        rest_of(stream).await
    }

    async fn get(&self, path: &str) -> String {
        self.send(&[&format!("GET {path} HTTP/1.1"), "Host: localhost"]).await
    }
}

async fn rest_of(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    in_time("the server closes", stream.read_to_end(&mut text)).await.unwrap();
    String::from_utf8(text).unwrap()
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or(response)
}

/// Returns a response body that never ends and ignores any shutdown.
async fn endless() -> Body {
    Body::from_stream(stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"x")), ()))
    }))
}

#[tokio::test]
async fn health_readiness_and_metrics_are_served() {
    let registry = Registry::new();
    service_kit::metrics::register_build_info(&registry, "thing", "1", "abc").unwrap();
    let ready = Arc::new(AtomicBool::new(false));
    let is_ready = Arc::clone(&ready);
    let readiness = move || match is_ready.load(Ordering::Relaxed) {
        true => Readiness::Ready,
        false => Readiness::NotReady(vec!["no Redis".to_owned(), "draining".to_owned()]),
    };
    let router = health_routes(Handle::current(), readiness).merge(metrics_route(registry));
    let site = Site::start(router, Limits::default()).await;
    assert_eq!(status(&site.get("/healthz").await), "200");
    let not_ready = site.get("/readyz").await;
    assert_eq!(status(&not_ready), "503");
    assert!(not_ready.ends_with("\r\n\r\nno Redis\ndraining\n"), "{not_ready}");
    ready.store(true, Ordering::Relaxed);
    assert_eq!(status(&site.get("/readyz").await), "200");
    let metrics = site.get("/metrics").await;
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains("thing_build_info{"), "{metrics}");
}

#[tokio::test]
async fn requests_for_other_hosts_are_rejected() {
    let allowed = AllowedHosts::new(["locks.example.org".to_owned()], "--allowed-host");
    let router = Router::new()
        .route("/", get(|| async { "in" }))
        .layer(from_fn_with_state(allowed, check_host));
    let site = Site::start(router, Limits::default()).await;
    for (lines, expected) in [
        (&["GET / HTTP/1.1", "Host: localhost:9761"][..], "200"),
        (&["GET / HTTP/1.1", "Host: LOCKS.example.org"], "200"),
        (&["GET / HTTP/1.1", "Host: [::1]:9761"], "200"),
        (&["GET / HTTP/1.1", "Host: evil.example.org"], "421"),
        (&["GET / HTTP/1.1", "Host: localhost.evil.org"], "421"),
        (&["GET http://evil.example.org/ HTTP/1.1", "Host: localhost"], "421"),
        (&["GET / HTTP/1.1"], "400"),
        (&["GET / HTTP/1.1", "Host: localhost", "Host: localhost"], "400"),
        (&["GET / HTTP/1.1", "Host: user@localhost"], "400"),
    ] {
        assert_eq!(status(&site.send(lines).await), expected, "{lines:?}");
    }
    let refusal = site.send(&["GET / HTTP/1.1", "Host: evil.example.org"]).await;
    assert!(
        refusal.ends_with(
            "this server is not called `evil.example.org`: add the name by --allowed-host\n"
        ),
        "{refusal}"
    );
}

#[tokio::test]
async fn requests_are_counted_by_route_never_by_path() {
    let registry = Registry::new();
    let metrics = HttpMetrics::register(&registry, "thing").unwrap();
    let router = Router::new()
        .route("/lock/{name}", get(|| async { "a lock" }))
        .layer(from_fn_with_state(metrics, measure));
    let site = Site::start(router, Limits::default()).await;
    for path in ["/lock/a", "/lock/b", "/nothing", "/nowhere"] {
        site.get(path).await;
    }
    let text = service_kit::metrics::encode(&registry).unwrap();
    assert!(
        text.contains("thing_http_requests_total{route=\"/lock/{name}\",status=\"200\"} 2"),
        "{text}"
    );
    assert!(text.contains("thing_http_requests_total{route=\"none\",status=\"404\"} 2"), "{text}");
    assert!(text.contains("thing_http_request_seconds_count{route=\"none\"} 2"), "{text}");
}

#[tokio::test]
async fn handlers_get_the_peers_address() {
    let who = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
    let site = Site::start(Router::new().route("/", get(who)), Limits::default()).await;
    assert!(site.get("/").await.ends_with("\r\n\r\n127.0.0.1"));
}

#[tokio::test]
async fn slow_clients_are_disconnected() {
    let limits = Limits { head_timeout: Duration::from_millis(100), ..Limits::default() };
    let site = Site::start(Router::new().route("/", get(|| async { "in" })), limits).await;
    for sent in ["", "GET / HTTP/1.1\r\nHost: loc", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = site.connect().await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        rest_of(stream).await;
    }
}

#[tokio::test]
async fn a_client_that_never_reads_is_disconnected() {
    let limits =
        Limits { connections: 1, stall_timeout: Duration::from_millis(200), ..Limits::default() };
    let flood = || async {
        Body::from_stream(stream::repeat_with(|| {
            Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 65_536]))
        }))
    };
    let router = Router::new().route("/flood", get(flood)).route("/", get(|| async { "in" }));
    let site = Site::start(router, limits).await;
    let mut unread = site.connect().await;
    unread.write_all(b"GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    unread.readable().await.unwrap();
    assert_eq!(status(&site.get("/").await), "200");
}

#[tokio::test]
async fn a_request_head_that_is_too_large_is_answered_with_the_reason() {
    let site = Site::start(Router::new().route("/", get(async || "fine")), Limits::default()).await;
    for (length, status) in [(32_000, "200 OK"), (33_000, "431"), (60_000, "431")] {
        let groups = format!("X-Groups: {}", "g".repeat(length));
        let answer = site.send(&["GET / HTTP/1.1", "Host: localhost", &groups]).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{length}: {answer}");
        assert_eq!(answer.contains("may have 32768 bytes in total"), status == "431", "{answer}");
    }
}

#[tokio::test]
async fn an_endless_request_head_is_rejected() {
    let site = Site::start(Router::new(), Limits::default()).await;
    let mut stream = site.connect().await;
    let line = format!("X: {}\r\n", "x".repeat(1000));
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    // The server may close before everything is written.
    let rejected = async { while stream.write_all(line.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(30), rejected).await.expect("it is rejected");
}

#[tokio::test]
async fn probes_are_answered_while_one_address_takes_every_connection() {
    let head_timeout = Duration::from_secs(600);
    let limits = Limits { connections: 2, head_timeout, ..Limits::default() };
    let router = Router::new().route("/", get(|| async { "in" }));
    let router = router.merge(health_routes(Handle::current(), || Readiness::Ready));
    let site = Site::start(router, limits).await;
    let mut taken = Vec::new();
    for sent in 0..20 {
        let mut stream = site.connect().await;
        let head = if sent < 2 { "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" } else { "GET / HT" };
        stream.write_all(head.as_bytes()).await.unwrap();
        taken.push(stream);
    }
    for path in ["/healthz", "/readyz"] {
        let answer = tokio::time::timeout(Duration::from_secs(30), site.get(path)).await;
        assert_eq!(answer.as_deref().map(status), Ok("200"), "{path}");
    }
    // The oldest connection without a request gives way to a new one before its head is overdue.
    one_gives_way(&site, taken.split_off(2)).await;
}

fn is_closed(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Ok(0))
}

/// Opens connections until one of them and `idle` is closed.
async fn one_gives_way(site: &Site, mut idle: Vec<TcpStream>) {
    let closed = async {
        while !idle.iter().any(is_closed) {
            idle.push(site.connect().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, closed).await.expect("a connection gives way");
}

/// Returns a site for one connection with requests, and that connection.
async fn full_site() -> (Site, TcpStream) {
    let limits =
        Limits { connections: 1, head_timeout: Duration::from_secs(600), ..Limits::default() };
    let router = Router::new().route("/endless", get(endless)).route("/", get(|| async { "in" }));
    let site = Site::start(router, limits).await;
    let mut first = site.connect().await;
    begin(&mut first, "/endless").await;
    (site, first)
}

#[tokio::test]
async fn requests_that_wait_do_not_give_way_to_new_connections() {
    let (site, first) = full_site().await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mut stream = site.connect().await;
        let head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(head).await.unwrap();
        waiting.push(stream);
    }
    one_gives_way(&site, Vec::new()).await;
    drop(first);
    for stream in waiting {
        assert_eq!(status(&rest_of(stream).await), "200");
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let (site, first) = full_site().await;
    let second = site.get("/");
    tokio::pin!(second);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut second).await;
    assert!(early.is_err(), "the first connection is still there");
    drop(first);
    assert_eq!(status(&second.await), "200");
}

/// Sends a request on a connection that stays open, and returns the response's head.
async fn begin(stream: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(in_time("the response", stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn idle_connections_give_way_and_responses_in_progress_do_not() {
    let limits =
        Limits { connections: 2, head_timeout: Duration::from_secs(600), ..Limits::default() };
    let router = Router::new().route("/endless", get(endless)).route("/", get(|| async { "in" }));
    let site = Site::start(router, limits).await;
    let (mut idle, mut stream) = (site.connect().await, site.connect().await);
    begin(&mut idle, "/").await;
    begin(&mut stream, "/endless").await;
    let head = begin(&mut site.connect().await, "/").await;
    assert_eq!(status(&head), "200");
    assert!(head.contains("connection: close\r\n"), "{head}");
    assert_eq!(in_time("the rest", rest_of(idle)).await, "in");
    for _ in 0..100 {
        in_time("more of the stream", stream.read_u8()).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_is_refused_if_no_connection_ends_in_time() {
    let limits =
        Limits { connections: 1, head_timeout: Duration::from_secs(2), ..Limits::default() };
    let site = Site::start(Router::new().route("/endless", get(endless)), limits).await;
    let mut stream = site.connect().await;
    begin(&mut stream, "/endless").await;
    assert_eq!(status(&in_time("the refusal", site.get("/endless")).await), "503");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_endless_responses_or_idle_connections() {
    let router = Router::new().route("/endless", get(endless)).route("/", get(|| async { "in" }));
    let site = Site::start(router, Limits::default()).await;
    let _idle = site.connect().await;
    let mut stream = site.connect().await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).await.unwrap();
    site.stop.cancel();
    in_time("the server ends", site.served).await.unwrap();
    assert!(TcpStream::connect(site.address).await.is_err());
}
