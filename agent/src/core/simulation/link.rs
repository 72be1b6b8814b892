//! A host's connections to Redis, and the weather they are exposed to.

use std::collections::BTreeMap;

use super::dice::Dice;
use crate::core::OpId;

/// The three connections of an agent.
pub(super) const COMMANDS: usize = 0;
pub(super) const RENEWALS: usize = 1;
pub(super) const MESSAGES: usize = 2;

/// What the network does to a connection until some instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// Every byte takes up to that many microseconds.
    Fair(u64),
    /// Half-open: nothing arrives in either direction. Some of it does at last.
    Dark,
    /// What we send arrives, what Redis answers does not.
    Deaf,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) up: bool,
    /// Grows with each connection made.
    pub(super) generation: u64,
    /// Calls without an answer, oldest first.
    pub(super) in_flight: BTreeMap<u64, OpId>,
    /// Connecting failed so many times in a row.
    pub(super) failures: u32,
    /// Bytes stay in order: nothing arrives before what was sent earlier.
    arrived: u64,
    answered: u64,
    weather: Weather,
    until: u64,
}

/// How long bytes take at most on a good day, in microseconds.
const GOOD_DAY: u64 = 400;

impl Link {
    pub(super) fn new() -> Self {
        Self {
            up: false,
            generation: 0,
            in_flight: BTreeMap::new(),
            failures: 0,
            arrived: 0,
            answered: 0,
            weather: Weather::Fair(GOOD_DAY),
            until: 0,
        }
    }

    pub(super) fn set_weather(&mut self, weather: Weather, until: u64) {
        (self.weather, self.until) = (weather, until);
    }

    pub(super) fn weather(&self, now: u64) -> Weather {
        if now < self.until { self.weather } else { Weather::Fair(GOOD_DAY) }
    }

    /// Until when nothing gets through, if so now.
    pub(super) fn dark_until(&self, now: u64) -> Option<u64> {
        (self.weather(now) == Weather::Dark).then_some(self.until)
    }

    pub(super) fn is_good(&self, now: u64) -> bool {
        self.up && self.weather(now) == Weather::Fair(GOOD_DAY)
    }

    /// When something sent now arrives; none where it is lost for ever.
    pub(super) fn arrival(&mut self, now: u64, dice: &mut Dice) -> Option<u64> {
        let at = match self.weather(now) {
            Weather::Fair(most) => now + dice.within(most / 4..most),
            Weather::Deaf => now + dice.within(GOOD_DAY / 4..GOOD_DAY),
            Weather::Dark if dice.one_in(2) => self.until + dice.within(0..3_000_000),
            Weather::Dark => return None,
        };
        self.arrived = self.arrived.max(at);
        Some(self.arrived)
    }

    /// When the answer to something served now is there; none where it never is.
    pub(super) fn answer(&mut self, now: u64, dice: &mut Dice) -> Option<u64> {
        let at = match self.weather(now) {
            Weather::Fair(most) => now + dice.within(most / 4..most),
            Weather::Dark => self.until + dice.within(0..2000),
            Weather::Deaf => return None,
        };
        self.answered = self.answered.max(at);
        Some(self.answered)
    }

    /// A new connection keeps no order with the old one's bytes.
    pub(super) fn connected(&mut self) {
        self.up = true;
        self.generation += 1;
        self.failures = 0;
        (self.arrived, self.answered) = (0, 0);
    }
}
