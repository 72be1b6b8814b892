//! Units of the protocol.

use std::time::Duration;

/// Returns a duration in milliseconds, as replies give it.
pub(in crate::core) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
