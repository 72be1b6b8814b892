//! Metrics of requests: number, status and duration; and a span of each while traces are sent.

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use prometheus::{HistogramVec, IntCounterVec, Registry};
use tokio::time::Instant;
use tracing::Span;
use tracing::field::Empty;

use crate::metrics::Registrar;
use crate::trace::{self, TraceParent};

/// The bounds of the histogram, in seconds. Requests are answered from memory, so a second is already slow.
const BUCKETS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0];

/// The metrics of one server: `<prefix>_http_requests_total` by route and status, and
/// `<prefix>_http_request_seconds` by route, until the response's head. A route is the pattern
/// that matched and never the requested path, so clients cannot add label values.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
}

impl HttpMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    ///
    /// Metrics of these names in the registry.
    pub fn register(registry: &Registry, prefix: &str) -> prometheus::Result<Self> {
        let make = Registrar::new(registry, prefix);
        Ok(Self {
            requests: make.counters(
                "http_requests_total",
                "HTTP requests answered.",
                &["route", "status"],
            )?,
            seconds: make.histograms(
                "http_request_seconds",
                "Seconds from a request's head to its response's head.",
                &["route"],
                &BUCKETS,
            )?,
        })
    }
}

/// The routes that are polled every few seconds. Traces of them would be noise.
const PROBED: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// Middleware for `axum::middleware::from_fn_with_state` that records [`HttpMetrics`]. It is added
/// with `Router::layer` after the routes, so that it sees the matched one.
pub async fn measure(State(metrics): State<HttpMetrics>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let start = Instant::now();
    let span = server_span(&request, route.as_ref());
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    span.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    metrics.requests.with_label_values(&[route, response.status().as_str()]).inc();
    metrics.seconds.with_label_values(&[route]).observe(start.elapsed().as_secs_f64());
    response
}

/// Returns the span of a request. OpenTelemetry names server spans by the route, since paths may contain anything.
fn server_span(request: &Request, route: Option<&MatchedPath>) -> Span {
    let Some(route) = route.map(MatchedPath::as_str).filter(|route| !PROBED.contains(route)) else {
        return Span::none();
    };
    if !trace::is_on() {
        return Span::none();
    }
    let parent = request.headers().get("traceparent").map(HeaderValue::as_bytes);
    trace::root(&parent.map_or_else(TraceParent::default, TraceParent::read), || {
        tracing::info_span!(
            target: trace::TARGET, parent: None, "GET",
            otel.name = format_args!("{} {route}", request.method()), otel.kind = "server",
            http.request.method = request.method().as_str(), http.route = route,
            http.response.status_code = Empty, otel.status_code = Empty,
        )
    })
}
