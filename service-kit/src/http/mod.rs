//! HTTP servers: serving within limits, health and metrics routes, the check of the Host header,
//! and request metrics. Also a small client.

mod admission;
mod client;
mod host;
mod listen;
mod own_names;
mod request_metrics;
mod serve;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::Registry;
use tokio::runtime::Handle;

pub use admission::most_connections;
pub use client::HttpClient;
pub use host::{AllowedHosts, check_host};
pub use listen::ListenError;
pub use request_metrics::{HttpMetrics, measure};
pub use serve::{Limits, serve, serve_with_tls};
pub use tls::ServerTls;

/// The media type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The time within which a runtime that is alive runs a new task, even if the machine is overloaded.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);

/// A program's ability to do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The program can do its work.
    Ready,
    /// The program cannot do its work, for these reasons, each a sentence for an operator.
    NotReady(Vec<String>),
}

/// Returns the routes `/healthz`, which responds with 200 while `runtime` runs tasks, otherwise with 503, and `/readyz`,
/// which responds with 200, or with 503 and the reasons. Each request calls `readiness`.
pub fn health_routes(
    runtime: Handle,
    readiness: impl Fn() -> Readiness + Send + Sync + 'static,
) -> Router {
    let readiness = Arc::new(readiness);
    Router::new()
        .route("/healthz", get(move || healthz(runtime.clone())))
        .route("/readyz", get(move || std::future::ready(readyz(&readiness()))))
}

/// Returns the route `/metrics`: all metrics of `registry` in Prometheus' text format.
pub fn metrics_route(registry: Registry) -> Router {
    Router::new().route("/metrics", get(move || std::future::ready(metrics(&registry))))
}

async fn healthz(runtime: Handle) -> Response {
    match tokio::time::timeout(ALIVE_WITHIN, runtime.spawn(async {})).await {
        Ok(Ok(())) => "ok\n".into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the program hangs\n").into_response(),
    }
}

fn readyz(readiness: &Readiness) -> Response {
    match readiness {
        Readiness::Ready => "ready\n".into_response(),
        Readiness::NotReady(reasons) => {
            let text: String = reasons.iter().map(|reason| format!("{reason}\n")).collect();
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

fn metrics(registry: &Registry) -> Response {
    match crate::metrics::encode(registry) {
        Ok(text) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics cannot be written: {error}\n"))
                .into_response()
        }
    }
}
