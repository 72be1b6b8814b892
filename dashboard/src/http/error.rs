//! Errors of the API, as RFC 9457 describes them.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::release::Outcome;
use crate::schema::words;
use crate::text::revealed;

/// The reason for which a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    /// A sentence about the failure and the next step.
    pub detail: String,
    /// The outcome of a release that failed.
    outcome: Option<&'static str>,
}

/// RFC 9457.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemJson<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    /// The outcome of a forced release that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = failed_outcomes, required = false)]
    outcome: Option<&'static str>,
}

fn failed_outcomes() -> utoipa::openapi::Object {
    words(Outcome::FAILED)
}

impl ApiError {
    /// Creates an error. Its detail may quote a request.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: revealed(&detail.into()), outcome: None }
    }

    /// Adds the outcome of a release, for programs to act on.
    #[must_use]
    pub fn with_outcome(self, outcome: &Outcome) -> Self {
        Self { outcome: Some(outcome.as_str()), ..self }
    }

    /// An address without a page.
    #[must_use]
    pub fn nowhere() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no such page or API path")
    }

    /// An address that answers other methods only. They are in the header `Allow`.
    #[must_use]
    pub fn wrong_method() -> Self {
        let why = "method not allowed: see the `Allow` header";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, why)
    }

    /// The address of a form that a browser requests as a page.
    #[must_use]
    pub fn unsent_form() -> Self {
        let why = "nothing was done: this address accepts forms only. If you had to log in, open the form again";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, why)
    }

    #[must_use]
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

/// Returns a page as a response.
pub(super) fn rendered(status: StatusCode, html: Result<String, askama::Error>) -> Response {
    match html {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "page rendering failed");
            (StatusCode::INTERNAL_SERVER_ERROR, "page rendering failed\n").into_response()
        }
    }
}

impl From<JsonRejection> for ApiError {
    fn from(error: JsonRejection) -> Self {
        Self::new(error.status(), error.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ProblemJson {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            outcome: self.outcome,
        };
        let headers = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, headers, Json(body)).into_response()
    }
}
