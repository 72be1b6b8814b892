//! A look by MONITOR, asked for from the page or the API: for a minute, whatever the governor says, but only where the
//! server bounds a reader that stalls.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use serde_json::json;

use super::app::App;
use super::params::understood;
use super::problem::Problem;
use crate::sources::tap::WATCH;

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
    headers: HeaderMap,
    params: Result<Query<WatchParams>, QueryRejection>,
) -> Result<Redirect, Problem> {
    watch(&app, &headers, &understood(params)?)?;
    Ok(Redirect::to("/sources"))
}

/// `/api/v1/monitor/watch`
///
/// # Errors
/// Where another site's page sent it, the deployment is not known, or the settings switch MONITOR off.
pub async fn from_api(
    State(app): State<App>,
    headers: HeaderMap,
    params: Result<Query<WatchParams>, QueryRejection>,
) -> Result<Response, Problem> {
    watch(&app, &headers, &understood(params)?)?;
    let body = json!({"seconds": WATCH.as_secs(), "state": "/api/v1/sources"});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

fn watch(app: &App, headers: &HeaderMap, params: &WatchParams) -> Result<(), Problem> {
    if !is_own(headers) {
        let why = "only this server's own pages may ask a browser to send this";
        return Err(Problem::new(StatusCode::FORBIDDEN, why));
    }
    let deployment = params.deployment.as_deref();
    let switch = app.sources.switch(deployment).ok_or_else(|| match deployment {
        Some(name) => {
            Problem::new(StatusCode::NOT_FOUND, format!("no deployment is called `{name}`"))
        }
        None => Problem::bad_request("there are several deployments; say `deployment=`"),
    })?;
    if switch.watch() {
        tracing::info!(deployment, "a look by MONITOR was asked for");
        Ok(())
    } else {
        Err(Problem::new(StatusCode::CONFLICT, "MONITOR is switched off by --monitor off"))
    }
}

/// Whether a browser sent it for one of our own pages, or no browser did: a stranger's page must not be able to.
fn is_own(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let Some(origin) = text(header::ORIGIN.as_str()) else { return true };
    let host = text(header::HOST.as_str()).unwrap_or("");
    origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host))
}
