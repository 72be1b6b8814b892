//! The time along the bottom of a picture.

use super::super::format::rfc3339;
use crate::clock::SteadyMillis;

/// The number of parts into which labels divide the time.
const PARTS: u64 = 4;

/// A span of time along the width of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeAxis {
    pub(super) from: SteadyMillis,
    /// The length of the span, in milliseconds.
    pub(super) millis: u64,
    pub(super) width: u64,
}

impl TimeAxis {
    /// Returns the position of an instant. An instant outside is drawn at the edge.
    pub(super) fn x(&self, at: SteadyMillis) -> u64 {
        let passed = u128::from(at.millis_since(self.from).min(self.millis));
        let x = passed * u128::from(self.width) / u128::from(self.millis.max(1));
        u64::try_from(x).unwrap_or(self.width)
    }

    /// Returns the labels: instants of the wall clock, and their times of day.
    pub(super) fn marks(&self) -> Vec<(u64, String)> {
        let mark = |i: u64| self.from.plus(self.millis * i / PARTS);
        (0..=PARTS).map(mark).map(|at| (at.to_wall().0, time_of_day(at))).collect()
    }
}

/// Returns the time of day in UTC, to the second.
pub(super) fn time_of_day(at: SteadyMillis) -> String {
    rfc3339(at).get(11..19).unwrap_or_default().to_owned()
}
