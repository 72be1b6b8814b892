//! The pages themselves.

use axum::extract::rejection::QueryRejection;
use axum::extract::{OriginalUri, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};

use super::app::App;
use super::bundle::bundle;
use super::guard::Who;
use super::lists::ListRequest;
use super::params::{EventsParams, ListParams, LockParams, OwnerParams, understood};
use super::problem::Problem;
use crate::access::rights::Right;
use crate::views::{self, ErrorPage, ListView};

/// A page's own path and query.
pub(super) fn address(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string)
}

pub(super) fn rendered(status: StatusCode, html: Result<String, askama::Error>) -> Response {
    match html {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page could not be made");
            (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made\n").into_response()
        }
    }
}

pub(super) fn refused(app: &App, uri: &Uri, who: &Who, problem: &Problem) -> Response {
    let mut chrome = app.chrome(&address(uri));
    who.sign(&mut chrome);
    let page =
        ErrorPage { chrome, status: problem.status.as_u16(), message: problem.detail.clone() };
    rendered(problem.status, views::error_page(&page))
}

pub async fn lock(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    who: Who,
    params: Result<Query<LockParams>, QueryRejection>,
) -> Response {
    let params = match understood(params) {
        Ok(params) => params,
        Err(problem) => return refused(&app, &uri, &who, &problem),
    };
    match params.format.as_deref() {
        None | Some("" | "html") => {}
        Some("bundle") => {
            return match bundle(&app, params, who.name()).await {
                Ok(file) => file,
                Err(problem) => problem.into_response(),
            };
        }
        Some(_) => {
            let problem = Problem::bad_request("`format` must be html or bundle");
            return refused(&app, &uri, &who, &problem);
        }
    }
    match app.lock_page(&address(&uri), &params, None).await {
        Ok(mut page) => {
            page.may_acknowledge = who.needs(Right::Ack).is_ok();
            page.may_release = app.releases.is_some() && who.needs(Right::Release).is_ok();
            who.sign(&mut page.chrome);
            rendered(StatusCode::OK, views::lock_page(&page))
        }
        Err(problem) => refused(&app, &uri, &who, &problem),
    }
}

/// `/`, `/owners`, `/problems`, `/contention`
pub async fn list<T: ListView>(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    who: Who,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Response {
    match understood(params).and_then(ListRequest::<T>::of_page) {
        Ok(request) => {
            let mut page = app.list_page(&address(&uri), &request, &app.rows(&request));
            who.sign(&mut page.chrome);
            let status = match page.filter_error {
                Some(_) => StatusCode::BAD_REQUEST,
                None => StatusCode::OK,
            };
            rendered(status, views::list_page(&page))
        }
        Err(problem) => refused(&app, &uri, &who, &problem),
    }
}

pub async fn owner(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    who: Who,
    params: Result<Query<OwnerParams>, QueryRejection>,
) -> Response {
    match understood(params).and_then(|params| app.owner_page(&address(&uri), &params)) {
        Ok(mut page) => {
            who.sign(&mut page.chrome);
            rendered(StatusCode::OK, views::owner_page(&page))
        }
        Err(problem) => refused(&app, &uri, &who, &problem),
    }
}

pub async fn events(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    who: Who,
    params: Result<Query<EventsParams>, QueryRejection>,
) -> Response {
    let page = async { app.events_page(&address(&uri), &understood(params)?).await };
    match page.await {
        Ok(mut page) => {
            who.sign(&mut page.chrome);
            rendered(StatusCode::OK, views::events_page(&page))
        }
        Err(problem) => refused(&app, &uri, &who, &problem),
    }
}

pub async fn sources(State(app): State<App>, OriginalUri(uri): OriginalUri, who: Who) -> Response {
    let mut page = app.sources_page(&address(&uri));
    who.sign(&mut page.chrome);
    rendered(StatusCode::OK, views::sources_page(&page))
}

/// What there is not: as a page for browsers, as a problem below the API.
pub async fn nowhere(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    who: Who,
    headers: HeaderMap,
) -> Response {
    let problem = Problem::new(StatusCode::NOT_FOUND, "there is nothing at this address");
    told(&app, &uri, &who, &headers, problem)
}

/// Only GET and HEAD are known.
pub async fn wrong_method(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    who: Who,
    headers: HeaderMap,
) -> Response {
    let problem =
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here");
    told(&app, &uri, &who, &headers, problem)
}

fn told(app: &App, uri: &Uri, who: &Who, headers: &HeaderMap, problem: Problem) -> Response {
    let html = |value: &header::HeaderValue| value.to_str().is_ok_and(|v| v.contains("text/html"));
    if !uri.path().starts_with("/api/") && headers.get(header::ACCEPT).is_some_and(html) {
        refused(app, uri, who, &problem)
    } else {
        problem.into_response()
    }
}
