//! Traces of a lock, from its page or the API: every step that MONITOR shows, for a minute.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{AnyJson, body_if_may_watch};
use crate::clock::SteadyMillis;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, EmptyForm, VerifiedCall, VerifiedForm};
use crate::http::params::{LockParams, Params, understood};
use crate::model::types::LockId;
use crate::sources::trace::{Full, MAX_TRACES};
use crate::text;
use crate::views;

/// `/trace`, from the button on a lock's page.
///
/// # Errors
/// If the visitor lacks the right, the lock is not named, MONITOR is disabled, or too many locks are being traced.
pub async fn from_page(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Params<LockParams>,
    form: Result<VerifiedForm<EmptyForm>, ApiError>,
) -> Result<Redirect, ApiError> {
    body_if_may_watch(&visitor, form)?;
    let id = app.lock_id(&understood(params)?)?;
    start(&app, &visitor, &id)?;
    Ok(Redirect::to(&views::lock_trace(&id)))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Tracing {
    #[serde(flatten)]
    lock: LockId,
    /// The end, unless it is requested again.
    #[serde(serialize_with = "crate::clock::as_wall")]
    until: SteadyMillis,
}

/// Traces a lock for a minute. MONITOR is open during this time, regardless of the governor. A running trace continues
/// for another minute.
#[utoipa::path(
    post,
    path = "/api/v1/trace",
    params(LockParams),
    request_body = AnyJson,
    responses(
        (status = 202, description = "Requested. GET returns the steps.", body = Tracing),
        (status = 400, description = "A parameter is missing or wrong."),
        (status = 403, description = "The visitor lacks the `watch` right, or another site sent the request."),
        (status = 404, description = "There is no such deployment or database, or none of its servers is known yet."),
        (status = 409, description = "The settings disable MONITOR."),
        (status = 415, description = "The body is not JSON."),
        (status = 429, description = "Too many locks are being traced."),
    ),
)]
pub(in crate::http) async fn from_api(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Params<LockParams>,
    call: Result<VerifiedCall, ApiError>,
) -> Result<Response, ApiError> {
    body_if_may_watch(&visitor, call)?;
    let lock = app.lock_id(&understood(params)?)?;
    let until = start(&app, &visitor, &lock)?;
    Ok((StatusCode::ACCEPTED, Json(Tracing { lock, until })).into_response())
}

fn start(app: &App, visitor: &CurrentVisitor, id: &LockId) -> Result<SteadyMillis, ApiError> {
    let off = || ApiError::new(StatusCode::CONFLICT, "MONITOR is disabled by --monitor off");
    let unknown = || ApiError::new(StatusCode::NOT_FOUND, "none of its servers is known yet");
    // Only a trace that has been accepted may turn MONITOR on.
    let traces = app.sources.traces();
    let allowed = app.sources.may_watch(id).ok_or_else(unknown)?;
    if !allowed {
        return Err(off());
    }
    let until = traces.start(id, SteadyMillis::now()).map_err(|Full| {
        let why = format!("{MAX_TRACES} locks are being traced: try again in a minute");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, why)
    })?;
    app.sources.watch_lock(id);
    let (deployment, lock) = (&*id.deployment, text::shown_name(&id.name));
    tracing::info!(deployment, lock, visitor = visitor.name(), "trace requested");
    Ok(until)
}
