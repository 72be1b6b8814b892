//! From the server's bytes to the model.

use std::collections::HashMap;
use std::time::Duration;

use redisson::monitor::{Counts, Decoder, Event, Vantage};

use crate::metrics::TapMetrics;
use crate::model::actor::{ModelHandle, now, wall};
use crate::model::{Observation, Traffic};
use crate::sources::Scope;

/// Decodes, and hands over without ever waiting: a reader that waits makes the server keep what it does not read.
#[derive(Debug)]
pub(super) struct Delivery {
    decoder: Decoder,
    events: Vec<Event>,
    scopes: Vec<Scope>,
    model: ModelHandle,
    metrics: TapMetrics,
    told: Counts,
    missed: u64,
    lag: Lag,
}

impl Delivery {
    pub(super) fn new(scopes: Vec<Scope>, model: ModelHandle, metrics: TapMetrics) -> Self {
        Self {
            decoder: Decoder::new(Vantage::Master),
            events: Vec::new(),
            scopes,
            model,
            metrics,
            told: Counts::default(),
            missed: 0,
            lag: Lag::default(),
        }
    }

    /// The connection is a new one.
    pub(super) fn restart(&mut self, vantage: Vantage) {
        self.decoder.restart(vantage);
        self.lag = Lag::default();
    }

    /// Takes in what was read.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.decoder.bytes(bytes, &mut self.events);
        self.hand_over();
    }

    /// Nothing more comes for the moment.
    pub(super) fn pause(&mut self) {
        self.decoder.pause(&mut self.events);
        self.hand_over();
    }

    fn hand_over(&mut self) {
        let counts = self.decoder.counts();
        self.metrics.count(self.told, counts);
        self.told = counts;
        if self.events.is_empty() {
            return;
        }
        let (at, wall) = (now(), wall());
        if let Some(last) = self.events.last() {
            self.lag.note(wall.0.saturating_mul(1_000), last.at_micros);
        }
        let mut by_db: HashMap<u32, Vec<Event>> = HashMap::new();
        for event in self.events.drain(..) {
            by_db.entry(event.db).or_default().push(event);
        }
        for (db, events) in by_db {
            let Some(scope) = self.scopes.iter().find(|scope| scope.db == db) else { continue };
            let count = events.len() as u64;
            let missed = std::mem::take(&mut self.missed);
            let traffic = Observation::Traffic(Traffic { events, at, wall, missed });
            if !self.model.try_see(scope.id, traffic) {
                self.missed = missed + count;
            }
        }
    }

    /// Lines of all kinds so far.
    pub(super) fn lines(&self) -> u64 {
        let Counts { lock, other, garbage, cut } = self.told;
        lock + other + garbage + cut
    }

    /// Lines about locks so far.
    pub(super) fn lock_lines(&self) -> u64 {
        self.told.lock
    }

    /// Events that the model had no room for and has not been told of.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// How late what is read now is.
    pub(super) fn lag(&self) -> Duration {
        self.lag.now
    }
}

/// How much later than at best lines come, by the server's clock and ours, which need not agree.
#[derive(Debug, Default)]
struct Lag {
    /// The least difference of the clocks, and when by ours.
    least: Option<(i64, i64)>,
    now: Duration,
}

/// The least difference grows by this share of the time, so that a step of a clock is forgotten some day.
const CREEP: i64 = 100;

impl Lag {
    fn note(&mut self, ours_micros: u64, theirs_micros: u64) {
        let ours = i64::try_from(ours_micros).unwrap_or(i64::MAX);
        let apart = ours.saturating_sub(i64::try_from(theirs_micros).unwrap_or(i64::MAX));
        let least = self.least.map_or(apart, |(least, at)| {
            apart.min(least.saturating_add(ours.saturating_sub(at).max(0) / CREEP))
        });
        self.least = Some((least, ours));
        self.now = Duration::from_micros(u64::try_from(apart.saturating_sub(least)).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_disagree_are_no_lag() {
        let mut lag = Lag::default();
        let hour = 3_600_000_000;
        for i in 0..10 {
            lag.note(i * 1_000 + hour, i * 1_000);
            assert_eq!(lag.now, Duration::ZERO);
        }
        lag.note(hour + 5_000_000, 10_000);
        assert!(lag.now > Duration::from_secs(4), "{:?}", lag.now);
        // Half as quick as it should be it stays late.
        for i in 6..20 {
            lag.note(hour + i * 1_000_000, i * 500_000);
        }
        assert!(lag.now > Duration::from_secs(8), "{:?}", lag.now);
        for i in 0..3_000 {
            lag.note(hour + i * 1_000_000, i * 1_000_000 - i.min(1) * 10_000);
        }
        assert_eq!(lag.now, Duration::ZERO);
        for i in 3_000..6_000 {
            lag.note(2 * hour + i * 1_000_000, i * 1_000_000);
        }
        lag.note(0, 0);
        assert_eq!(lag.now, Duration::ZERO, "a step back");
    }
}
