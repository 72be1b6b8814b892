//! The request for a page.

use std::convert::Infallible;

use axum::extract::{FromRef, FromRequestParts, OriginalUri};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;

use super::app::App;
use super::error::{ApiError, rendered};
use super::guard::CurrentVisitor;
use crate::views::{Chrome, ErrorPage, error_page};

/// The parts of a request that every page needs.
#[derive(Debug)]
pub struct PageRequest {
    pub(super) app: App,
    pub(super) visitor: CurrentVisitor,
    uri: Uri,
}

impl PageRequest {
    /// Returns the page's own path and query.
    pub(super) fn address(&self) -> String {
        self.uri.path_and_query().map_or_else(|| self.uri.path().to_owned(), ToString::to_string)
    }

    /// Returns the page's frame, with the visitor's name.
    pub(super) fn chrome(&self) -> Chrome {
        let mut chrome = self.app.chrome(&self.address());
        self.visitor.sign(&mut chrome);
        chrome
    }

    /// Returns an error as a page.
    pub(super) fn refused(&self, problem: &ApiError) -> Response {
        let (chrome, message) = (self.chrome(), problem.detail.clone());
        let page = ErrorPage { chrome, status: problem.status.as_u16(), message };
        rendered(problem.status, error_page(&page))
    }

    /// Returns a response, or its error as a page.
    pub(super) fn answered(&self, response: Result<Response, ApiError>) -> Response {
        response.unwrap_or_else(|problem| self.refused(&problem))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PageRequest
where
    App: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let OriginalUri(uri) = OriginalUri::from_request_parts(parts, state).await?;
        let visitor = CurrentVisitor::from_request_parts(parts, state).await?;
        Ok(Self { app: App::from_ref(state), visitor, uri })
    }
}
