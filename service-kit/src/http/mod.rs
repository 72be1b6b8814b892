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

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::Registry;

pub use client::HttpClient;
pub use host::{AllowedHosts, check_host};
pub use listen::ListenError;
pub use request_metrics::{HttpMetrics, measure};
pub use serve::{Limits, serve, serve_with_tls};
pub use tls::ServerTls;

/// The media type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A program's ability to do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The program can do its work.
    Ready,
    /// The program cannot do its work, for these reasons, each a sentence for an operator.
    NotReady(Vec<String>),
}

/// Returns the routes `/healthz`, which responds with 200 while the process responds at all, and
/// `/readyz`, which responds with 200, or with 503 and the reasons. Each request calls `readiness`.
pub fn health_routes(readiness: impl Fn() -> Readiness + Send + Sync + 'static) -> Router {
    let readiness = Arc::new(readiness);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || std::future::ready(readyz(&readiness()))))
}

/// Returns the route `/metrics`: all metrics of `registry` in Prometheus' text format.
pub fn metrics_route(registry: Registry) -> Router {
    Router::new().route("/metrics", get(move || std::future::ready(metrics(&registry))))
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
