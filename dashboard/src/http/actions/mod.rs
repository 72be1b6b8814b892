//! Requests that change something: acknowledgements, forced releases, logins, and MONITOR on demand.

pub mod acknowledge;
pub mod incident;
pub mod incident_api;
pub mod login;
pub mod release;
pub mod trace;
pub mod watch;

use utoipa::ToSchema;

use super::app::App;
use super::error::ApiError;
use super::guard::CurrentVisitor;
use super::params::{LockParams, Params, understood};
use crate::access::rights::Right;
use crate::model::types::LockId;

/// Any JSON; it is ignored. Without a Bearer token the request must have `Content-Type: application/json`, so that no form of
/// another site can send it.
#[derive(ToSchema)]
#[schema(value_type = Value)]
struct AnyJson(#[expect(dead_code, reason = "only described")] serde_json::Value);

/// Returns the body of a request to open MONITOR, if the visitor may open it. A missing right is reported before any
/// other error.
fn body_if_may_watch<T>(
    visitor: &CurrentVisitor,
    body: Result<T, ApiError>,
) -> Result<T, ApiError> {
    visitor.needs(Right::Watch)?;
    body
}

/// Returns the lock that a request names, if the visitor has this right for it. A missing right is reported before any
/// other error.
fn lock_if_may(
    app: &App,
    visitor: &CurrentVisitor,
    right: Right,
    params: Params<LockParams>,
) -> Result<LockId, ApiError> {
    match understood(params).and_then(|params| app.lock_id(&params)) {
        Ok(id) => visitor.needs_for(right, &id).map(|()| id),
        Err(error) => visitor.needs(right).and(Err(error)),
    }
}
