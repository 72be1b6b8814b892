//! Observed renewals of the current hold.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::{SteadyMillis, millis};

/// The maximum number of instants that are retained. Earlier ones are only counted.
const MAX: usize = 64;

/// The number of renewals of a hold, and the instants of the latest ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Renewals {
    count: u64,
    latest: VecDeque<SteadyMillis>,
}

impl Renewals {
    /// Adds a renewal. Two sources may report the same renewal: one that follows the last sooner than that lease can be
    /// renewed is the same.
    pub fn add(&mut self, at: SteadyMillis, lease: Option<Duration>) {
        let apart = lease.map_or(0, |lease| millis(lease) / 6);
        if self.latest.back().is_some_and(|last| at <= last.plus(apart)) {
            return;
        }
        self.count += 1;
        if self.latest.len() >= MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(at);
    }

    /// Returns the number of renewals seen.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the instants of the latest renewals, in order.
    pub fn latest(&self) -> impl ExactSizeIterator<Item = SteadyMillis> {
        self.latest.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_renewal_counts_once_and_the_latest_are_retained() {
        let mut renewals = Renewals::default();
        let lease = Some(Duration::from_secs(30));
        for i in 0..100 {
            renewals.add(SteadyMillis(i * 10_000), lease);
            // MONITOR and the next reading report the same renewal, in either order.
            renewals.add(SteadyMillis(i * 10_000 + 900), lease);
            renewals.add(SteadyMillis((i * 10_000).saturating_sub(300)), lease);
        }
        assert_eq!((renewals.count(), renewals.latest().len()), (100, MAX));
        assert_eq!(renewals.latest().next(), Some(SteadyMillis(36 * 10_000)));
        renewals.add(SteadyMillis(995_000), Some(Duration::from_secs(3)));
        assert_eq!(renewals.count(), 101, "a short lease is renewed often");
    }
}
