//! Random choices of workers.

use std::time::Duration;

use redisson::Lease;

use super::super::schedule::micros;
use super::{Scenario, World};
use crate::protocol::command::Wait;

impl<S: Scenario> World<S> {
    /// Returns a pause in microseconds: mostly brief, sometimes longer than a lease.
    pub(in crate::core::simulation) fn think(&mut self) -> u64 {
        let lease = micros(self.settings.lease.duration());
        let most = match self.rng.within(0..10) {
            0..4 => 1000,
            4..7 => 60_000,
            7..9 => lease / 3,
            _ => lease * 3 / 2,
        };
        self.rng.within(20..most)
    }

    pub(in crate::core::simulation) fn wait(&mut self) -> Wait {
        match self.rng.within(0..4) {
            0 | 1 => Wait::Forever,
            2 => Wait::AtMost(Duration::ZERO),
            _ => Wait::AtMost(Duration::from_micros(self.think())),
        }
    }

    pub(in crate::core::simulation) fn lease(&mut self) -> Option<Lease> {
        let most = self.rng.pick(&[300, 2000, 5000]);
        Lease::new(Duration::from_millis(self.rng.within(100..most)))
    }
}
