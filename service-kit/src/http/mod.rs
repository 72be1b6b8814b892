//! What the programs' HTTP servers share: the serving itself, health and metrics routes, the check
//! of the Host header, and figures of the requests.

mod host;
mod request_metrics;
mod serve;
mod tls;

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::Registry;

pub use host::{AllowedHosts, check_host};
pub use request_metrics::{HttpMetrics, measure};
pub use serve::{Limits, serve, serve_with_tls};
pub use tls::ServerTls;

/// The media type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a program can do its work now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It cannot, for these reasons, each a sentence for an operator.
    NotReady(Vec<String>),
}

/// `/healthz`, which answers 200 as long as the process can answer at all, and `/readyz`, which
/// answers 200 or 503 with the reasons. `readiness` is asked for each request.
pub fn health_routes(readiness: impl Fn() -> Readiness + Send + Sync + 'static) -> Router {
    let readiness = Arc::new(readiness);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || std::future::ready(readyz(&readiness()))))
}

/// `/metrics`: everything in `registry` in Prometheus' text format.
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
