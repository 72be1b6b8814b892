//! Rates of MONITOR's output.

use std::time::Duration;

use tokio::time::Instant;

use super::delivery::Delivery;
use crate::clock::millis;

/// The output of the last second.
#[derive(Debug)]
pub(super) struct Meter {
    since: Instant,
    pub(super) bytes: u64,
    lines: u64,
    lock_lines: u64,
    pub(super) bytes_a_second: u64,
    pub(super) lines_a_second: u64,
    pub(super) lock_lines_a_second: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            bytes: 0,
            lines: 0,
            lock_lines: 0,
            bytes_a_second: 0,
            lines_a_second: 0,
            lock_lines_a_second: 0,
        }
    }
}

impl Meter {
    /// Begins the next second. Returns the length of the last one.
    pub(super) fn roll(&mut self, delivery: &Delivery) -> Duration {
        let elapsed = self.since.elapsed();
        let millis = millis(elapsed).max(1);
        let rate = |count: u64| count.saturating_mul(1_000) / millis;
        self.bytes_a_second = rate(std::mem::take(&mut self.bytes));
        let (lines, lock_lines) = (delivery.lines(), delivery.lock_lines());
        self.lines_a_second = rate(lines - std::mem::replace(&mut self.lines, lines));
        self.lock_lines_a_second =
            rate(lock_lines - std::mem::replace(&mut self.lock_lines, lock_lines));
        self.since = Instant::now();
        elapsed
    }
}
