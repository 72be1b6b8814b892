//! The time limit of a search.

use crate::clock::SteadyMillis;

/// The time after which a search returns what it has found so far, milliseconds.
const MILLIS: u64 = 400;
/// The number of rows between two reads of the clock. A search reads nearly as many in any case, so that each one gets
/// further than the one before.
const CLOCK_EVERY: usize = 256;

/// The remaining time of a search, which reads the clock only occasionally.
#[derive(Debug)]
pub(super) struct SearchDeadline {
    until: SteadyMillis,
    rows: usize,
}

impl SearchDeadline {
    pub(super) fn new() -> Self {
        Self { until: SteadyMillis::now().plus(MILLIS), rows: 0 }
    }

    /// Counts a row. Returns whether the time is over, if a read of the clock was due.
    pub(super) fn spend_row(&mut self) -> bool {
        self.rows += 1;
        self.rows.is_multiple_of(CLOCK_EVERY) && self.is_over()
    }

    /// Returns whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        SteadyMillis::now() > self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_reads_some_rows_even_if_its_time_is_over() {
        let mut deadline = SearchDeadline { until: SteadyMillis(0), rows: 0 };
        assert!(deadline.is_over());
        let read = (0..).take_while(|_| !deadline.spend_row()).count();
        assert_eq!(read, CLOCK_EVERY - 1);
    }
}
