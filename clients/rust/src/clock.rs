//! The clock of deadlines.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the host has booted, including the time it was suspended.
pub(crate) fn boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
