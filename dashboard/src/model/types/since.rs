//! The beginnings of holds and waits.

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::SteadyMillis;

/// The beginning of something: exact, or only the latest possible (shown with `≥` before the age).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Since {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    /// False: it had begun already when it was first observed.
    pub exact: bool,
}
