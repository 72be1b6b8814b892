//! MONITOR on demand, from the page or the API: for a minute, regardless of the governor, but only on servers that
//! limit a stalled reader.
#![expect(unused_qualifications, reason = "in code that utoipa generates")]

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{AnyJson, body_if_may_watch};
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, EmptyForm, VerifiedCall, VerifiedForm};
use crate::http::params::{Params, understood};
use crate::sources::monitor::switch::WATCH;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WatchParams {
    /// Required if there are several.
    deployment: Option<String>,
}

/// `/sources/watch`, from the button on the page.
///
/// # Errors
/// If the visitor lacks the right, the deployment is unknown, or the settings disable MONITOR.
pub async fn from_page(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Params<WatchParams>,
    form: Result<VerifiedForm<EmptyForm>, ApiError>,
) -> Result<Redirect, ApiError> {
    body_if_may_watch(&visitor, form)?;
    watch(&app, &visitor, &understood(params)?)?;
    Ok(Redirect::to("/sources"))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Watching {
    /// The duration, seconds.
    seconds: u64,
    /// The address that reports whether MONITOR is on.
    state: &'static str,
}

/// Runs MONITOR for a minute, regardless of the governor. /api/v1/sources reports whether it is on.
#[utoipa::path(
    post,
    path = "/api/v1/monitor/watch",
    params(WatchParams),
    request_body = AnyJson,
    responses(
        (status = 202, description = "Requested.", body = Watching),
        (status = 400, description = "There are several deployments and none is named."),
        (status = 403, description = "The visitor lacks the `watch` right, or another site sent the request."),
        (status = 404, description = "There is no such deployment."),
        (status = 409, description = "The settings disable MONITOR."),
        (status = 415, description = "The body is not JSON."),
    ),
)]
pub(in crate::http) async fn from_api(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Params<WatchParams>,
    call: Result<VerifiedCall, ApiError>,
) -> Result<Response, ApiError> {
    body_if_may_watch(&visitor, call)?;
    watch(&app, &visitor, &understood(params)?)?;
    let body = Watching { seconds: WATCH.as_secs(), state: "/api/v1/sources" };
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

fn watch(app: &App, visitor: &CurrentVisitor, params: &WatchParams) -> Result<(), ApiError> {
    let deployment = params.deployment.as_deref();
    let allowed = app.sources.watch(deployment).ok_or_else(|| match deployment {
        Some(name) => ApiError::new(
            StatusCode::NOT_FOUND,
            format!("there is no deployment `{name}`, or none of its servers is known yet"),
        ),
        None => ApiError::bad_request("there are several deployments: `deployment` is needed"),
    })?;
    if allowed {
        tracing::info!(deployment, visitor = visitor.name(), "MONITOR requested");
        Ok(())
    } else {
        Err(ApiError::new(StatusCode::CONFLICT, "MONITOR is disabled by --monitor off"))
    }
}
