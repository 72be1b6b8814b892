//! Errors of the API, as RFC 9457 has them.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use redisson::name::is_invisible;
use serde_json::json;

/// Why a request of the API has no other answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    /// What went wrong and what to do, a sentence.
    pub detail: String,
    /// A member of its own that machines may act on.
    pub more: Option<(&'static str, &'static str)>,
}

/// A sentence that quotes what somebody sent, with characters spelled out that would not be seen or turn it round.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

impl ApiError {
    /// A problem with that status.
    #[must_use]
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: visible(&detail.into()), more: None }
    }

    /// The same with a member of its own.
    #[must_use]
    pub fn with(self, member: &'static str, value: &'static str) -> Self {
        Self { more: Some((member, value)), ..self }
    }

    /// The request itself is wrong.
    #[must_use]
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some((member, value)) = self.more {
            body[member] = value.into();
        }
        let headers = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, headers, Json(body)).into_response()
    }
}
