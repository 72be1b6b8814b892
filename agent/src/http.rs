//! The HTTP server: metrics, health and, with --http-sessions, holds and sessions. Runs on a separate thread.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use prometheus::{PullingGauge, Registry};
use redisson::{LockName, Moment};
use serde::Deserialize;
use serde_json::json;
use service_kit::clock::boot_micros;
use service_kit::http::{self, AllowedHosts, Limits, Readiness};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::core::Input;
use crate::core::report::ListPage;
use crate::protocol::command::ListRequest;
use crate::types::Status;

/// The maximum number of concurrent HTTP connections.
pub(crate) const CONNECTIONS: usize = 64;
const MAX_COUNT: usize = 1000;
const CORE_TIMEOUT: Duration = Duration::from_secs(5);

/// The data sources of the pages.
#[derive(Debug, Clone)]
pub struct Sources {
    pub registry: Registry,
    pub status: watch::Receiver<Status>,
    /// The runtime of everything that a lock passes through.
    pub locks: Handle,
    /// The core's queue; `None` if holds and sessions are not shown.
    pub core: Option<mpsc::Sender<Input>>,
    /// The host names accepted in addition to localhost and IP addresses.
    pub hosts: Vec<String>,
}

/// Serves HTTP on a new thread until `stop` is cancelled.
///
/// # Errors
/// Fails if the thread or its runtime cannot be created.
pub fn start(
    listener: std::net::TcpListener,
    sources: Sources,
    stop: CancellationToken,
) -> anyhow::Result<thread::JoinHandle<()>> {
    // Created first: if that fails, a runtime that moved to the thread would be dropped by a task of another runtime, which panics.
    let (send, receive) = std::sync::mpsc::sync_channel::<Runtime>(1);
    let (registry, status) = (sources.registry.clone(), sources.status.clone());
    listener.set_nonblocking(true)?;
    let router = router(sources, listener.local_addr()?.ip());
    let serve = async move {
        let limits = Limits { connections: CONNECTIONS, ..Limits::default() };
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => http::serve(listener, router, limits, stop).await,
            Err(error) => tracing::error!(%error, "cannot serve HTTP"),
        }
    };
    let thread = thread::Builder::new()
        .name("http".to_owned())
        .spawn(move || {
            if let Ok(runtime) = receive.recv() {
                runtime.block_on(serve);
            }
        })
        .context("cannot start the HTTP thread")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot create a runtime for HTTP")?;
    service_kit::metrics::register_runtime(&registry, "http", runtime.handle().clone())?;
    let journal = status.clone();
    let missing = PullingGauge::new(
        "lockscope_agent_socket_missing",
        "1 while the socket's file is missing, so that no worker can connect.",
        Box::new(move || f64::from(u8::from(status.borrow().socket_missing))),
    );
    registry.register(Box::new(missing?))?;
    let missing = PullingGauge::new(
        "lockscope_agent_journal_missing",
        "1 if the agent has found no usable journal at its start, so that sessions get no grace.",
        Box::new(move || f64::from(u8::from(journal.borrow().journal_missing.is_some()))),
    );
    registry.register(Box::new(missing?))?;
    send.send(runtime).context("the HTTP thread has ended")?;
    Ok(thread)
}

fn router(sources: Sources, address: IpAddr) -> Router {
    let status = sources.status.clone();
    let hosts = AllowedHosts::new(sources.hosts, "--http-allowed-host").with_own_names(address);
    let pages = Router::new()
        .route("/", get(index))
        .route("/api/v1/locks", get(locks))
        .route("/api/v1/sessions", get(sessions))
        .with_state(sources.core);
    pages
        .merge(http::metrics_route(sources.registry))
        .merge(http::health_routes(sources.locks, move || readiness(&status.borrow())))
        .method_not_allowed_fallback(async || {
            let why = "method not allowed: see the `Allow` header";
            error_response(StatusCode::METHOD_NOT_ALLOWED, why)
        })
        .fallback(async || error_response(StatusCode::NOT_FOUND, "no such page; see / for a list"))
        .layer(middleware::from_fn_with_state(hosts, http::check_host))
}

fn readiness(status: &Status) -> Readiness {
    if let Some(awaited) = &status.awaited {
        return Readiness::NotReady(vec![format!("the agent has not started: {awaited}")]);
    }
    let mut reasons = Vec::new();
    if !status.redis_up {
        reasons.push(format!("Redis is unreachable: {}", status.detail));
    }
    if let Some(refusal) = status.refusal(Moment::from_micros(boot_micros())) {
        reasons.push(format!("Redis refuses to change locks: {refusal}"));
    }
    if status.socket_missing {
        reasons.push("the socket's file was removed or replaced: no worker can connect".to_owned());
    }
    if status.draining {
        reasons.push("the agent is draining: new locks are refused".to_owned());
    }
    if reasons.is_empty() { Readiness::Ready } else { Readiness::NotReady(reasons) }
}

async fn index(State(core): State<CoreQueue>) -> Html<String> {
    let lists = match core {
        Some(_) => {
            "<li><a href=\"/api/v1/locks\">/api/v1/locks</a>: holds and waits\
             <li><a href=\"/api/v1/sessions\">/api/v1/sessions</a>: connected workers"
        }
        None => "<li>/api/v1/locks and /api/v1/sessions require --http-sessions",
    };
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>lockscope-agent</title>\
         <h1>lockscope-agent {}</h1><ul>\
         <li><a href=\"/metrics\">/metrics</a>: metrics for Prometheus\
         <li><a href=\"/healthz\">/healthz</a>: liveness: the thread that serves locks does not hang\
         <li><a href=\"/readyz\">/readyz</a>: readiness: Redis answers and locks are granted\
         {lists}</ul></html>\n",
        env!("CARGO_PKG_VERSION")
    ))
}

/// The query parameters of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    #[serde(rename = "match")]
    pattern: Option<String>,
    #[serde(default)]
    cursor: u64,
    count: Option<usize>,
}

type CoreQueue = Option<mpsc::Sender<Input>>;
type ParsedQuery = Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>;

async fn locks(State(core): State<CoreQueue>, query: ParsedQuery) -> Response {
    list(core, query, |query, count, reply| {
        let pattern = query.pattern.map(String::into_bytes);
        Input::ListLocks(ListRequest { pattern, cursor: query.cursor, count }, reply)
    })
    .await
}

async fn sessions(State(core): State<CoreQueue>, query: ParsedQuery) -> Response {
    if matches!(&query, Ok(Query(ListQuery { pattern: Some(_), .. }))) {
        return error_response(
            StatusCode::BAD_REQUEST,
            "match applies to locks, not to sessions: omit it",
        );
    }
    list(core, query, |query, count, reply| Input::ListSessions(query.cursor, count, reply)).await
}

/// Requests a page of rows from the core.
async fn list<Row: serde::Serialize>(
    core: CoreQueue,
    query: ParsedQuery,
    request: impl FnOnce(ListQuery, usize, oneshot::Sender<ListPage<Row>>) -> Input,
) -> Response {
    let Some(core) = core else {
        let why = "holds and sessions are not shown: start the agent with --http-sessions";
        return error_response(StatusCode::NOT_FOUND, why);
    };
    let query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return error_response(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    // As for LOCKS: the core compares the pattern with every name.
    let length = query.pattern.as_ref().map_or(0, String::len);
    if length > LockName::MAX {
        let why =
            format!("match has {length} bytes, and the limit is {}: shorten it", LockName::MAX);
        return error_response(StatusCode::BAD_REQUEST, &why);
    }
    let count = query.count.unwrap_or(100);
    if !(1..=MAX_COUNT).contains(&count) {
        let why = format!("count must be from 1 to {MAX_COUNT}");
        return error_response(StatusCode::BAD_REQUEST, &why);
    }
    let (reply, page) = oneshot::channel();
    let request = request(query, count, reply);
    let page = async {
        core.send(request).await.ok()?;
        page.await.ok()
    };
    match tokio::time::timeout(CORE_TIMEOUT, page).await {
        Ok(Some(page)) => ([(header::CACHE_CONTROL, "no-store")], Json(page)).into_response(),
        Ok(None) => error_response(StatusCode::SERVICE_UNAVAILABLE, "the agent is shutting down"),
        Err(_) => error_response(StatusCode::SERVICE_UNAVAILABLE, "the agent is busy; try again"),
    }
}

fn error_response(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Refusal;
    use std::io::{Read, Write};

    use crate::core::report::ListRow;

    struct Server {
        address: std::net::SocketAddr,
        status: watch::Sender<Status>,
        locks: Runtime,
        stop: CancellationToken,
        thread: Option<thread::JoinHandle<()>>,
    }

    impl Server {
        fn start(core: Option<mpsc::Sender<Input>>) -> Self {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (sender, status) = watch::channel(Status::default());
            let locks = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
            let locks = locks.unwrap();
            let sources = Sources {
                registry: Registry::new(),
                status,
                locks: locks.handle().clone(),
                core,
                hosts: vec!["agent.test".into()],
            };
            let stop = CancellationToken::new();
            let thread = Some(start(listener, sources, stop.clone()).unwrap());
            Self { address, status: sender, locks, stop, thread }
        }

        fn get(&self, path: &str) -> String {
            self.get_as(path, "localhost")
        }

        fn get_as(&self, path: &str, host: &str) -> String {
            self.request("GET", path, host)
        }

        fn request(&self, method: &str, path: &str, host: &str) -> String {
            let mut stream = std::net::TcpStream::connect(self.address).unwrap();
            let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close");
            write!(stream, "{head}\r\n\r\n").unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).unwrap();
            response
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.stop.cancel();
            self.thread.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn health_and_readiness_follow_the_status() {
        let server = Server::start(None);
        assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
        let detail = "connection refused".to_owned();
        server.status.send_replace(Status { detail, ..Status::default() });
        let response = server.get("/readyz");
        assert!(response.starts_with("HTTP/1.1 503") && response.contains("connection refused"));
        server.status.send_replace(Status { redis_up: true, ..Status::default() });
        assert!(server.get("/readyz").starts_with("HTTP/1.1 200"));
        let at = Moment::from_micros(boot_micros());
        let refusal = Some(Refusal { at, error: "NOREPLICAS too few".to_owned() });
        server.status.send_replace(Status { redis_up: true, refusal, ..Status::default() });
        let response = server.get("/readyz");
        assert!(response.starts_with("HTTP/1.1 503") && response.contains("NOREPLICAS too few"));
        // An old refusal is over.
        let refusal = Some(Refusal { at: Moment::default(), error: "NOREPLICAS".to_owned() });
        server.status.send_replace(Status { redis_up: true, refusal, ..Status::default() });
        assert!(server.get("/readyz").starts_with("HTTP/1.1 200"));
        let missing = Status { redis_up: true, socket_missing: true, ..Status::default() };
        server.status.send_replace(missing);
        assert!(server.get("/readyz").contains("no worker can connect"));
        assert!(server.get("/metrics").contains("lockscope_agent_socket_missing 1"));
        assert!(server.get("/metrics").contains("lockscope_agent_journal_missing 0"));
        let journal_missing = Some("it cannot be written".to_owned());
        server.status.send_replace(Status { journal_missing, ..Status::default() });
        assert!(server.get("/metrics").contains("lockscope_agent_journal_missing 1"));
        server.status.send_replace(Status { redis_up: true, draining: true, ..Status::default() });
        assert!(server.get("/readyz").contains("draining"));
        assert!(server.get("/metrics").contains("tokio_workers{runtime=\"http\"} 1"));
    }

    #[test]
    fn a_hanging_thread_of_locks_is_not_alive() {
        let server = Server::start(None);
        let (resume, hangs) = std::sync::mpsc::channel::<()>();
        server.locks.spawn(async move { hangs.recv().ok() });
        assert!(server.get("/healthz").starts_with("HTTP/1.1 503"));
        drop(resume);
        assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn unknown_host_names_are_rejected() {
        let server = Server::start(None);
        assert!(server.get_as("/", "agent.test").starts_with("HTTP/1.1 200"));
        assert!(server.get_as("/", "evil.test").starts_with("HTTP/1.1 421"));
        assert!(server.get_as("/nothing", "evil.test").starts_with("HTTP/1.1 421"));
    }

    #[test]
    fn a_wrong_method_is_explained() {
        let server = Server::start(None);
        for path in ["/", "/metrics", "/healthz", "/readyz", "/api/v1/locks"] {
            let response = server.request("POST", path, "localhost");
            assert!(response.starts_with("HTTP/1.1 405"), "{path}: {response}");
            assert!(response.contains("\r\nallow: GET,HEAD\r\n"), "{path}: {response}");
            assert!(response.contains("method not allowed"), "{path}: {response}");
        }
    }

    #[test]
    fn holds_are_shown_only_with_the_flag() {
        let server = Server::start(None);
        let response = server.get("/api/v1/locks");
        assert!(response.starts_with("HTTP/1.1 404") && response.contains("--http-sessions"));
        assert!(server.get("/").contains("--http-sessions"));
        assert!(server.get("/no/such").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn locks_are_listed_in_pages() {
        let (core, mut inbox) = mpsc::channel(4);
        let server = Server::start(Some(core));
        let answering = thread::spawn(move || {
            let Some(Input::ListLocks(request, answer)) = inbox.blocking_recv() else { panic!() };
            let row = ListRow {
                session: "1-2".to_owned(),
                lock: "a".into(),
                name: b"a".to_vec(),
                kind: "lock",
                holder: None,
                state: "waiting",
                frozen: false,
                pid: Some(1),
                uid: 0,
                comm: None,
                client: None,
                age_ms: 5,
                valid_ms: None,
                valid_until_ns: None,
            };
            answer.send(ListPage { next: 9, rows: vec![row] }).unwrap();
            request
        });
        let response = server.get("/api/v1/locks?match=a*&cursor=3&count=10");
        let request = ListRequest { pattern: Some(b"a*".to_vec()), cursor: 3, count: 10 };
        assert_eq!(answering.join().unwrap(), request);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("\"next\":\"9\"") && response.contains("\"state\":\"waiting\""));
        let long = format!("match={}", "a".repeat(LockName::MAX + 1));
        for bad in ["count=0", "count=1001", "cursor=x", "page=2", &long] {
            let response = server.get(&format!("/api/v1/locks?{bad}"));
            assert!(response.starts_with("HTTP/1.1 400"), "{bad}: {response}");
        }
        let response = server.get("/api/v1/locks");
        assert!(
            response.starts_with("HTTP/1.1 503") && response.contains("shutting down"),
            "{response}"
        );
    }
}
