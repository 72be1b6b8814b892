//! The pages themselves.

use axum::extract::rejection::QueryRejection;
use axum::extract::{OriginalUri, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};

use super::app::App;
use super::params::{LockParams, TableParams, instant, understood};
use super::problem::Problem;
use crate::views::{self, ErrorPage};

/// A page's own path and query.
fn address(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string)
}

fn rendered(status: StatusCode, html: Result<String, askama::Error>) -> Response {
    match html {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page could not be made");
            (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made\n").into_response()
        }
    }
}

fn refused(app: &App, uri: &Uri, problem: &Problem) -> Response {
    let page = ErrorPage {
        chrome: app.chrome(&address(uri)),
        status: problem.status.as_u16(),
        message: problem.detail.clone(),
    };
    rendered(problem.status, views::error_page(&page))
}

/// `/`
pub async fn locks(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    params: Result<Query<TableParams>, QueryRejection>,
) -> Response {
    match understood(params).and_then(|params| app.locks_page(&address(&uri), &params)) {
        Ok(page) => {
            let status = match page.filter_error {
                Some(_) => StatusCode::BAD_REQUEST,
                None => StatusCode::OK,
            };
            rendered(status, views::locks_page(&page))
        }
        Err(problem) => refused(&app, &uri, &problem),
    }
}

/// `/lock`
pub async fn lock(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    params: Result<Query<LockParams>, QueryRejection>,
) -> Response {
    let page = async {
        let params = understood(params)?;
        let then = params.at.as_deref().map(|at| instant("at", at)).transpose()?;
        app.lock_page(&address(&uri), app.lock_id(&params)?, then).await
    };
    match page.await {
        Ok(page) => rendered(StatusCode::OK, views::lock_page(&page)),
        Err(problem) => refused(&app, &uri, &problem),
    }
}

/// `/sources`
pub async fn sources(State(app): State<App>, OriginalUri(uri): OriginalUri) -> Response {
    rendered(StatusCode::OK, views::sources_page(&app.sources_page(&address(&uri))))
}

/// What there is not: as a page for browsers, as a problem below the API.
pub async fn nowhere(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Response {
    let problem = Problem::new(StatusCode::NOT_FOUND, "there is nothing at this address");
    told(&app, &uri, &headers, problem)
}

/// Only GET and HEAD are known.
pub async fn wrong_method(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Response {
    let problem =
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here");
    told(&app, &uri, &headers, problem)
}

fn told(app: &App, uri: &Uri, headers: &HeaderMap, problem: Problem) -> Response {
    let html = |value: &header::HeaderValue| value.to_str().is_ok_and(|v| v.contains("text/html"));
    if !uri.path().starts_with("/api/") && headers.get(header::ACCEPT).is_some_and(html) {
        refused(app, uri, &problem)
    } else {
        problem.into_response()
    }
}
