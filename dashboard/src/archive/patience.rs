//! The time limit of a search.

use crate::clock::SteadyMillis;

/// The time after which a search returns what it has found so far, milliseconds.
const MILLIS: u64 = 400;
/// The number of rows between two reads of the clock.
const CLOCK_EVERY: usize = 256;

/// The remaining time of a search, which reads the clock only occasionally.
#[derive(Debug)]
pub(super) struct Patience {
    until: SteadyMillis,
    rows: usize,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { until: SteadyMillis::now().plus(MILLIS), rows: 0 }
    }

    /// Counts a row. Returns whether the time is over, if a read of the clock was due.
    pub(super) fn spend_row(&mut self) -> bool {
        let looks = self.rows.is_multiple_of(CLOCK_EVERY);
        self.rows += 1;
        looks && self.is_over()
    }

    /// Returns whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        SteadyMillis::now() > self.until
    }
}
