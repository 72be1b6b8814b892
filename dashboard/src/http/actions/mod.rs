//! Requests that change something: acknowledgements, releases by force, logins, and MONITOR on demand.

pub mod acknowledge;
pub mod incident;
pub mod incident_api;
pub mod login;
pub mod release;
pub mod trace;
pub mod watch;

use utoipa::ToSchema;

use super::error::ApiError;
use super::guard::CurrentVisitor;
use crate::access::rights::Right;

/// Any JSON; it is ignored. Without a Bearer token the request must have `Content-Type: application/json`, so that no form of
/// another site can send it.
#[derive(ToSchema)]
#[schema(value_type = Value)]
struct AnyJson(#[expect(dead_code, reason = "only described")] serde_json::Value);

/// Returns the body of a request to open MONITOR, from a visitor who may. A missing right is reported before anything else.
fn body_if_may_watch<T>(
    visitor: &CurrentVisitor,
    body: Result<T, ApiError>,
) -> Result<T, ApiError> {
    visitor.needs(Right::Watch)?;
    body
}
