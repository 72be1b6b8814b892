//! Serving HTTP/1 to operators, browsers and scrapers, within limits.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::{Admission, Ticket};
use super::tls::ServerTls;

/// The largest request head (line and headers), in bytes. A larger one is answered with the reason.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// The maximum number of bytes of a request head that are read. Beyond them the answer has no reason, since hyper
/// sends it.
const MAX_READ_BYTES: usize = 2 * MAX_HEAD_BYTES;
/// The time for responses in flight to finish after shutdown has begun.
const LAST_RESPONSES: Duration = Duration::from_secs(1);
/// The shortest and the longest pause after a failed accept, usually for lack of file descriptors, which become available
/// again. Each is twice as long as the one before.
const ACCEPT_PAUSES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(1);

/// The limits of one server's clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The number of concurrent connections whose requests are answered. When they are taken, those without a request in
    /// progress are closed, and the others after their response. Further requests wait, and are refused with 503 after
    /// [`Self::head_timeout`]; `/healthz` and `/readyz` are answered anyway. Of the connections that have not sent a
    /// request, the oldest of an address give way to its new ones.
    pub connections: usize,
    /// The limit for receiving a request head. Idle connections are closed after it too.
    pub head_timeout: Duration,
    /// The limit for a client that does not read its response, after which it is disconnected.
    pub stall_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            head_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// Serves `router` until `stop` is cancelled. Responses in flight then have one second to finish;
/// event streams should end on the same token. Handlers get the peer's address from
/// `ConnectInfo<SocketAddr>`.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    serve_with_tls(listener, None, router, limits, stop).await;
}

/// Serves as [`serve`] does, with TLS if it is given. The limit for the handshake is that for a request head.
pub async fn serve_with_tls(
    listener: TcpListener,
    tls: Option<ServerTls>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let admission = Admission::new(limits.connections);
    let connections = TaskTracker::new();
    let accepting = async {
        let mut pause = *ACCEPT_PAUSES.start();
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    pause = *ACCEPT_PAUSES.start();
                    if let Err(error) = set_tcp_options(&stream, limits.stall_timeout) {
                        tracing::debug!(%error, %peer, "TCP options were refused");
                    }
                    let (router, stop, tls) = (router.clone(), stop.clone(), tls.clone());
                    let ticket = admission.enter(peer.ip());
                    connections.spawn(async move {
                        let Some(tls) = tls else {
                            return serve_one(stream, peer, router, limits, stop, ticket).await;
                        };
                        let secured = secured(stream, peer, &tls, limits.head_timeout);
                        let secured = ticket.evicted.run_until_cancelled(secured);
                        if let Some(Some(stream)) =
                            stop.run_until_cancelled(secured).await.flatten()
                        {
                            serve_one(stream, peer, router, limits, stop, ticket).await;
                        }
                    });
                }
                Err(error) if is_of_one_client(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(*ACCEPT_PAUSES.end());
                }
            }
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Returns a connection after its TLS handshake, or `None` if that fails.
async fn secured(
    stream: TcpStream,
    peer: SocketAddr,
    tls: &ServerTls,
    limit: Duration,
) -> Option<TlsStream<TcpStream>> {
    match timeout(limit, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, %peer, "the TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
    }
    None
}

fn is_of_one_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
    ticket: Ticket,
) {
    let app = TowerToHyperService::new(router);
    let evicted = ticket.evicted.clone();
    let mut crowded = pin!(ticket.crowded());
    let seat = Arc::new((ticket, OnceCell::new()));
    let own_seat = Arc::clone(&seat);
    let service = service_fn(move |request: Request<Incoming>| {
        let (seat, is_probe) = (Arc::clone(&seat), is_probe(request.uri().path()));
        let is_too_large = head_bytes(&request) > MAX_HEAD_BYTES;
        let answer = answer(&app, peer, request);
        async move {
            if is_too_large {
                tracing::debug!(%peer, limit = MAX_HEAD_BYTES, "request head too large");
                return Ok(too_large());
            }
            if is_probe {
                // A probe needs no seat, and leaves at once.
                let mut response = answer.await?;
                if seat.1.get().is_none() {
                    response.headers_mut().insert(header::CONNECTION, CLOSE);
                }
                return Ok::<_, Infallible>(response);
            }
            let taken = seat
                .1
                .get_or_try_init(|| async { seat.0.activate(limits.head_timeout).await.ok_or(()) });
            let Ok(taken) = taken.await else {
                tracing::debug!(%peer, connections = limits.connections, "too many HTTP connections");
                return Ok(too_many());
            };
            let mut response = answer.await?;
            if taken.was_crowded {
                response.headers_mut().insert(header::CONNECTION, CLOSE);
            }
            Ok(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(MAX_READ_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = loop {
        tokio::select! {
            ended = &mut connection => break Some(ended),
            () = evicted.cancelled() => return,
            () = stop.cancelled() => break None,
            () = &mut crowded => {
                // `Admission::enter` limits those without a request.
                if own_seat.1.initialized() {
                    connection.as_mut().graceful_shutdown();
                }
                crowded.set(own_seat.0.crowded());
            }
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(LAST_RESPONSES, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "an HTTP connection broke");
    }
}

/// Returns the size of a request's line and headers, as HTTP/1.1 writes them.
fn head_bytes<T>(request: &Request<T>) -> usize {
    let uri = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let headers = request.headers().iter();
    let headers: usize = headers.map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    request.method().as_str().len() + uri + headers
}

fn too_large() -> Response {
    let why = format!(
        "the line and the headers of a request may have {MAX_HEAD_BYTES} bytes in total: a proxy may have added many groups or cookies\n"
    );
    // The connection has no seat, so it ends.
    (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, [(header::CONNECTION, CLOSE)], why)
        .into_response()
}

fn too_many() -> Response {
    let why = "all connections of this server are in use: try again later\n";
    (StatusCode::SERVICE_UNAVAILABLE, [(header::CONNECTION, CLOSE)], why).into_response()
}

/// Returns true for paths that are answered when all connections are taken.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

fn set_tcp_options(stream: &TcpStream, stall_timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let millis = u32::try_from(stall_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    Ok(())
}

fn answer(
    app: &TowerToHyperService<Router>,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
    request.extensions_mut().insert(ConnectInfo(peer));
    app.call(request)
}
