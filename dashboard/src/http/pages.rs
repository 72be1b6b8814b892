//! The handlers of pages.

use axum::extract::rejection::QueryRejection;
use axum::extract::{OriginalUri, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};

use super::app::App;
use super::bundle::bundle;
use super::error::{ApiError, rendered};
use super::guard::{CurrentVisitor, accepts_html};
use super::lists::ListRequest;
use super::params::{EventsParams, ListParams, LockParams, OwnerParams, understood};
use crate::access::rights::Right;
use crate::query::Threads;
use crate::views::{self, ErrorPage, ListView, ReleaseAccess};

/// Returns a page's own path and query.
pub(super) fn address(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string)
}

pub(super) fn refused(
    app: &App,
    uri: &Uri,
    visitor: &CurrentVisitor,
    problem: &ApiError,
) -> Response {
    let mut chrome = app.chrome(&address(uri));
    visitor.sign(&mut chrome);
    let page =
        ErrorPage { chrome, status: problem.status.as_u16(), message: problem.detail.clone() };
    rendered(problem.status, views::error_page(&page))
}

pub async fn lock(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
) -> Response {
    let params = match understood(params) {
        Ok(params) => params,
        Err(problem) => return refused(&app, &uri, &visitor, &problem),
    };
    match params.format.as_deref() {
        None | Some("" | "html") => {}
        Some("bundle") => {
            return match bundle(&app, params, visitor.name()).await {
                Ok(file) => file,
                Err(problem) => problem.into_response(),
            };
        }
        Some(_) => {
            let problem = ApiError::bad_request("`format` must be html or bundle");
            return refused(&app, &uri, &visitor, &problem);
        }
    }
    match app.lock_page(&address(&uri), &params, None).await {
        Ok(mut page) => {
            page.may_acknowledge = visitor.needs_for(Right::Ack, &page.id).is_ok();
            page.release = match visitor.needs_for(Right::Release, &page.id) {
                _ if app.releases.is_none() => ReleaseAccess::Off,
                Ok(()) => ReleaseAccess::Allowed,
                Err(_) => ReleaseAccess::Forbidden,
            };
            page.may_watch = visitor.needs(Right::Watch).is_ok();
            visitor.sign(&mut page.chrome);
            rendered(StatusCode::OK, views::lock_page(&page))
        }
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

/// `/`, `/owners`, `/problems`, `/contention`
pub async fn list<T: ListView>(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Response {
    match understood(params).and_then(ListRequest::<T>::of_page) {
        Ok(request) => {
            let mut page =
                app.list_page(&address(&uri), &request, &app.counted(&request, Threads::Several));
            visitor.sign(&mut page.chrome);
            let status = match page.filter_error {
                Some(_) => StatusCode::BAD_REQUEST,
                None => StatusCode::OK,
            };
            rendered(status, views::list_page(&page))
        }
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

pub async fn owner(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
    params: Result<Query<OwnerParams>, QueryRejection>,
) -> Response {
    match understood(params).and_then(|params| app.owner_page(&address(&uri), &params)) {
        Ok(mut page) => {
            visitor.sign(&mut page.chrome);
            rendered(StatusCode::OK, views::owner_page(&page))
        }
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

pub async fn history(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
    params: Result<Query<EventsParams>, QueryRejection>,
) -> Response {
    let page = async { app.history_page(&address(&uri), &understood(params)?).await };
    match page.await {
        Ok(mut page) => {
            visitor.sign(&mut page.chrome);
            let status = match page.is_understood() {
                true => StatusCode::OK,
                false => StatusCode::BAD_REQUEST,
            };
            rendered(status, views::history_page(&page))
        }
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

/// The address of the history from before it became one page.
pub async fn events(OriginalUri(uri): OriginalUri) -> Redirect {
    match uri.query() {
        Some(query) => Redirect::permanent(&format!("/history?{query}")),
        None => Redirect::permanent("/history"),
    }
}

pub async fn overview(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
) -> Response {
    let mut page = app.overview_page(&address(&uri));
    visitor.sign(&mut page.chrome);
    rendered(StatusCode::OK, views::overview_page(&page))
}

pub async fn sources(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
) -> Response {
    let mut page = app.sources_page(&address(&uri));
    visitor.sign(&mut page.chrome);
    rendered(StatusCode::OK, views::sources_page(&page))
}

/// Responds that there is no such path.
pub async fn nowhere(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
    headers: HeaderMap,
) -> Response {
    page_or_json(&app, &uri, &visitor, &headers, ApiError::nowhere())
}

/// Responds that the address answers other methods only.
pub async fn wrong_method(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
    headers: HeaderMap,
) -> Response {
    page_or_json(&app, &uri, &visitor, &headers, ApiError::wrong_method())
}

/// Returns an error as a page for browsers, or as JSON for the API and other programs. A page shows the number of problems and the state
/// of the sources, so visitors who have not logged in receive JSON, too.
fn page_or_json(
    app: &App,
    uri: &Uri,
    visitor: &CurrentVisitor,
    headers: &HeaderMap,
    problem: ApiError,
) -> Response {
    let may_see = visitor.auth().is_some();
    if may_see && !uri.path().starts_with("/api/") && accepts_html(headers) {
        refused(app, uri, visitor, &problem)
    } else {
        problem.into_response()
    }
}
