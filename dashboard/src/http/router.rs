//! The routes, and the common parts of every answer.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, Request};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use prometheus::Registry;
use service_kit::http::{
    AllowedHosts, HttpMetrics, Readiness, check_host, health_routes, measure, metrics_route,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;

use super::actions::{self, acknowledge, incident, incident_api, login, release, watch};
use super::app::App;
use super::error::ApiError;
use super::live::{self, Feeds, stream};
use super::{api, assets, guard, history_api, lists, openapi, pages, trace};

use crate::access::Access;
use crate::query::LockRow;
use crate::query::contention::ContentionRow;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;

/// The largest form, bytes.
const MAX_FORM: usize = 16 << 10;

/// Pages load and send nothing elsewhere, contain no scripts or styles, and are not shown inside other pages.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    // Our own forms must show their origin. Without this, the origin would be hidden from us too.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// The state of all handlers.
#[derive(Debug, Clone)]
struct Web {
    app: App,
    feeds: Feeds,
}

impl FromRef<Web> for App {
    fn from_ref(web: &Web) -> Self {
        web.app.clone()
    }
}

impl FromRef<Web> for Feeds {
    fn from_ref(web: &Web) -> Self {
        web.feeds.clone()
    }
}

/// Returns the routes on the address of the pages. `registry` contains the metrics, if they are served here too.
pub fn router(
    app: App,
    access: Access,
    hosts: AllowedHosts,
    requests: HttpMetrics,
    registry: Option<Registry>,
    stop: &CancellationToken,
) -> Router {
    let access = Arc::new(access);
    let doors = Router::new()
        .route("/login", get(login::page).post(login::enter))
        .route("/logout", post(login::leave))
        .with_state(Arc::clone(&access));
    let metrics = registry.map(metrics_route).unwrap_or_default();
    let pages = Router::new()
        .route("/", get(pages::list::<LockRow>))
        .route("/overview", get(pages::overview))
        .route("/lock", get(pages::lock))
        .route("/acknowledge", post(acknowledge::from_page))
        .route("/unacknowledge", post(acknowledge::undo_from_page))
        .route("/api/v1/acknowledge", post(acknowledge::from_api))
        .route("/api/v1/unacknowledge", post(acknowledge::undo_from_api))
        .route("/release", get(release::page).post(release::from_page))
        .route("/api/v1/release", get(release::look).post(release::from_api))
        .route("/incident", get(incident::page))
        .route("/incident/acknowledge", post(incident::acknowledge_from_page))
        .route("/incident/release", get(incident::release_page).post(incident::release_from_page))
        .route("/api/v1/incident/release", get(incident_api::look).post(incident_api::from_api))
        .route("/owners", get(pages::list::<OwnerRow>))
        .route("/owner", get(pages::owner))
        .route("/problems", get(pages::list::<IncidentRow>))
        .route("/contention", get(pages::list::<ContentionRow>))
        .route("/history", get(pages::history))
        .route("/sources", get(pages::sources))
        .route("/sources/watch", post(watch::from_page))
        .route("/api/v1/monitor/watch", post(watch::from_api))
        .route("/trace", post(actions::trace::from_page))
        .route("/api/v1/trace", get(trace::read).post(actions::trace::from_api))
        .route("/live", get(live::live))
        .route("/static/{name}", get(assets::file))
        .route("/favicon.ico", get(assets::icon))
        .route("/api/v1/locks", get(lists::locks))
        .route("/api/v1/lock", get(api::lock))
        .route("/api/v1/events", get(history_api::events))
        .route("/api/v1/held", get(history_api::held))
        .route("/api/v1/owners", get(lists::owners))
        .route("/api/v1/problems", get(lists::problems))
        .route("/api/v1/blockers", get(lists::blockers))
        .route("/api/v1/incidents", get(lists::incidents))
        .route("/api/v1/contention", get(lists::contention))
        .route("/api/v1/sources", get(api::sources))
        .route("/api/v1/stream", get(stream::stream))
        .route("/api/v1/openapi.json", get(openapi::openapi))
        .merge(doors)
        .merge(metrics.with_state(()))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .fallback(pages::nowhere)
        .method_not_allowed_fallback(pages::wrong_method)
        .with_state(Web { feeds: Feeds::new(app.clone()), app });
    pages
        .layer(from_fn_with_state(access, guard::check_visitor))
        // The compression skips streams by their type, since they have a separate one.
        .layer(CompressionLayer::new().quality(CompressionLevel::Fastest))
        .merge(health(stop))
        .layer(from_fn(guard::answer_in_time))
        .layer(from_fn_with_state(hosts, check_host))
        .layer(from_fn(with_headers))
        .layer(from_fn_with_state(requests, measure))
}

/// Returns the routes of an address for metrics alone.
pub fn metrics_router(hosts: AllowedHosts, registry: Registry, stop: &CancellationToken) -> Router {
    metrics_route(registry)
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .merge(health(stop))
        .fallback(async || ApiError::nowhere())
        .layer(from_fn_with_state(hosts, check_host))
        .layer(from_fn(with_headers))
}

/// The server is ready as long as it listens: with Redis down, its pages must show that.
fn health(stop: &CancellationToken) -> Router {
    let stop = stop.clone();
    let routes = health_routes(Handle::current(), move || {
        if stop.is_cancelled() {
            Readiness::NotReady(vec!["it is ending".to_owned()])
        } else {
            Readiness::Ready
        }
    });
    routes.method_not_allowed_fallback(async || ApiError::wrong_method())
}

async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, value);
    }
    // Other answers show a moment that has passed.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
