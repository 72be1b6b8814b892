//! The handlers of pages.

use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::bundle::bundle;
use super::error::{ApiError, rendered};
use super::guard::accepts_html;
use super::lists::ListRequest;
use super::page_request::PageRequest;
use super::params::{EventsParams, ListParams, LockParams, OwnerParams, Params, understood};
use crate::access::rights::Right;
use crate::query::Threads;
use crate::views::{self, ListView, ReleaseAccess};

pub async fn lock(page: PageRequest, params: Params<LockParams>) -> Response {
    let response = async {
        let (app, visitor, params) = (&page.app, &page.visitor, understood(params)?);
        match params.format.as_deref() {
            None | Some("" | "html") => {}
            Some("bundle") => {
                let file = bundle(app, params, visitor.name()).await;
                return Ok(file.unwrap_or_else(ApiError::into_response));
            }
            Some(_) => return Err(ApiError::bad_request("`format` must be html or bundle")),
        }
        let mut shown = app.lock_page(&page.address(), &params, None).await?;
        shown.may_acknowledge = visitor.needs_for(Right::Ack, &shown.id).is_ok();
        shown.release = match visitor.needs_for(Right::Release, &shown.id) {
            _ if app.releases.is_none() => ReleaseAccess::Off,
            Ok(()) => ReleaseAccess::Allowed,
            Err(_) => ReleaseAccess::Forbidden,
        };
        shown.may_watch = visitor.needs(Right::Watch).is_ok();
        visitor.sign(&mut shown.chrome);
        Ok(rendered(StatusCode::OK, views::lock_page(&shown)))
    };
    page.answered(response.await)
}

/// `/`, `/owners`, `/problems`, `/contention`
pub async fn list<T: ListView>(page: PageRequest, params: Params<ListParams>) -> Response {
    let response = understood(params).and_then(|params| {
        let request = ListRequest::<T>::of_page(params)?;
        let counted = page.app.counted(&request, Threads::Several);
        let mut list = page.app.list_page(&page.address(), &request, &counted);
        page.visitor.sign(&mut list.chrome);
        let status = match list.filter_error {
            Some(_) => StatusCode::BAD_REQUEST,
            None => StatusCode::OK,
        };
        Ok(rendered(status, views::list_page(&list)))
    });
    page.answered(response)
}

pub async fn owner(page: PageRequest, params: Params<OwnerParams>) -> Response {
    let response = understood(params).and_then(|params| {
        let mut owner = page.app.owner_page(&page.address(), &params)?;
        page.visitor.sign(&mut owner.chrome);
        Ok(rendered(StatusCode::OK, views::owner_page(&owner)))
    });
    page.answered(response)
}

pub async fn history(page: PageRequest, params: Params<EventsParams>) -> Response {
    let response = async {
        let params = understood(params)?;
        let mut history = page.app.history_page(&page.address(), &params).await?;
        page.visitor.sign(&mut history.chrome);
        let status = match history.is_understood() {
            true => StatusCode::OK,
            false => StatusCode::BAD_REQUEST,
        };
        Ok(rendered(status, views::history_page(&history)))
    };
    page.answered(response.await)
}

pub async fn overview(page: PageRequest) -> Response {
    let mut overview = page.app.overview_page(&page.address());
    page.visitor.sign(&mut overview.chrome);
    rendered(StatusCode::OK, views::overview_page(&overview))
}

pub async fn sources(page: PageRequest) -> Response {
    let mut sources = page.app.sources_page(&page.address());
    page.visitor.sign(&mut sources.chrome);
    rendered(StatusCode::OK, views::sources_page(&sources))
}

/// Responds that there is no such path.
pub async fn nowhere(page: PageRequest, headers: HeaderMap) -> Response {
    page_or_json(&page, &headers, ApiError::nowhere())
}

/// Responds that the address answers other methods only. A browser requests the address of a form as a page after a proxy asked for a login
/// instead of passing the form on.
pub async fn wrong_method(page: PageRequest, method: Method, headers: HeaderMap) -> Response {
    let problem = if method == Method::GET && is_for_browser(&page, &headers) {
        ApiError::unsent_form()
    } else {
        ApiError::wrong_method()
    };
    page_or_json(&page, &headers, problem)
}

/// Returns true if an error is shown as a page, and false for the API and other programs. A page shows the number of problems and the state
/// of the sources, so visitors who have not logged in receive JSON, too.
fn is_for_browser(page: &PageRequest, headers: &HeaderMap) -> bool {
    let may_see = page.visitor.auth().is_some();
    may_see && !page.address().starts_with("/api/") && accepts_html(headers)
}

fn page_or_json(page: &PageRequest, headers: &HeaderMap, problem: ApiError) -> Response {
    if is_for_browser(page, headers) { page.refused(&problem) } else { problem.into_response() }
}
