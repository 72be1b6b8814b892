//! The description of the API, for programs.

#[cfg(test)]
mod description;

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The description that the tests derive from the handlers and their types. It is stored, so that each change of the API
/// shows as a difference, and the program does not contain the megabyte of code that derives it.
const JSON: &str = include_str!("../../../../docs/reference/openapi.json");

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], JSON).into_response()
}
