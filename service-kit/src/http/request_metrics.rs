//! How many requests, how they ended, how long they took.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use tokio::time::Instant;

/// Seconds; requests are answered from memory, so a second is already bad.
const BUCKETS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0];

/// The figures of one server: `<prefix>_http_requests_total` by route and status, and
/// `<prefix>_http_request_seconds` by route, until the response's head. A route is the pattern
/// that matched, never the path that was asked for, so strangers cannot add label values.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
}

impl HttpMetrics {
    /// Makes and registers them.
    ///
    /// # Errors
    ///
    /// When the registry has metrics of these names.
    pub fn register(registry: &Registry, prefix: &str) -> prometheus::Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new(format!("{prefix}_http_requests_total"), "HTTP requests answered."),
            &["route", "status"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                format!("{prefix}_http_request_seconds"),
                "Seconds from a request's head to its response's head.",
            )
            .buckets(BUCKETS.to_vec()),
            &["route"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self { requests, seconds })
    }
}

/// Middleware for `axum::middleware::from_fn_with_state` that counts into [`HttpMetrics`]. Add it
/// with `Router::layer` after the routes, so that it knows which one matched.
pub async fn measure(State(metrics): State<HttpMetrics>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let start = Instant::now();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    metrics.requests.with_label_values(&[route, response.status().as_str()]).inc();
    metrics.seconds.with_label_values(&[route]).observe(start.elapsed().as_secs_f64());
    response
}
