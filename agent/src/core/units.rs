//! Units of the protocol.

use std::time::Duration;

use redisson::Moment;

/// Returns an instant in nanoseconds of the boot clock, as stated in replies.
pub(in crate::core) fn boot_nanos(at: Moment) -> u64 {
    at.as_micros().saturating_mul(1_000)
}

/// Returns a duration in milliseconds, as stated in replies.
pub(in crate::core) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
