//! A look by MONITOR, asked for from the page or the API: for a minute, whatever the governor says, but only where the
//! server bounds a reader that stalls.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use serde_json::json;

use crate::access::rights::Right;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, EmptyForm, VerifiedCall, VerifiedForm};
use crate::http::params::understood;
use crate::sources::monitor::switch::WATCH;

/// Which deployment; needed where there are several.
#[derive(Debug, Default, Deserialize)]
pub struct WatchParams {
    deployment: Option<String>,
}

/// `/sources/watch`, from the button on the page.
///
/// # Errors
/// As [`from_api`].
pub async fn from_page(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Result<Query<WatchParams>, QueryRejection>,
    form: Result<VerifiedForm<EmptyForm>, ApiError>,
) -> Result<Redirect, ApiError> {
    visitor.needs(Right::Watch)?;
    form?;
    watch(&app, &visitor, &understood(params)?)?;
    Ok(Redirect::to("/sources"))
}

/// `/api/v1/monitor/watch`
///
/// # Errors
/// Where the visitor may not, the deployment is not known, or the settings switch MONITOR off.
pub async fn from_api(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Result<Query<WatchParams>, QueryRejection>,
    call: Result<VerifiedCall, ApiError>,
) -> Result<Response, ApiError> {
    visitor.needs(Right::Watch)?;
    call?;
    watch(&app, &visitor, &understood(params)?)?;
    let body = json!({"seconds": WATCH.as_secs(), "state": "/api/v1/sources"});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

fn watch(app: &App, visitor: &CurrentVisitor, params: &WatchParams) -> Result<(), ApiError> {
    let deployment = params.deployment.as_deref();
    let allowed = app.sources.watch(deployment).ok_or_else(|| match deployment {
        Some(name) => ApiError::new(
            StatusCode::NOT_FOUND,
            format!("no deployment is called `{name}`, or no server of it is known yet"),
        ),
        None => ApiError::bad_request("there are several deployments; say `deployment=`"),
    })?;
    if allowed {
        tracing::info!(deployment, visitor = visitor.name(), "a look by MONITOR was asked for");
        Ok(())
    } else {
        Err(ApiError::new(StatusCode::CONFLICT, "MONITOR is switched off by --monitor off"))
    }
}
