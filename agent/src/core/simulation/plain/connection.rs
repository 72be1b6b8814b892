//! A host's connections to Redis, and the network they are exposed to.

use std::collections::BTreeMap;

use super::super::rng::Rng;
use crate::core::OpId;

/// The three connections of an agent.
pub(super) const COMMANDS: usize = 0;
pub(super) const RENEWALS: usize = 1;
pub(super) const MESSAGES: usize = 2;

/// What the network does to a connection until some instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// Every byte takes up to that many microseconds.
    Up(u64),
    /// Half-open: nothing arrives in either direction. Some of it does at last.
    HalfOpen,
    /// What we send arrives, what Redis answers does not.
    OneWay,
}

#[derive(Debug)]
pub(super) struct Connection {
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
    network: Network,
    until: u64,
}

/// How long bytes take at most on a good day, in microseconds.
const USUAL_DELAY: u64 = 400;

impl Connection {
    pub(super) fn new() -> Self {
        Self {
            up: false,
            generation: 0,
            in_flight: BTreeMap::new(),
            failures: 0,
            arrived: 0,
            answered: 0,
            network: Network::Up(USUAL_DELAY),
            until: 0,
        }
    }

    pub(super) fn set_network(&mut self, network: Network, until: u64) {
        (self.network, self.until) = (network, until);
    }

    pub(super) fn network(&self, now: u64) -> Network {
        if now < self.until { self.network } else { Network::Up(USUAL_DELAY) }
    }

    /// Until when nothing gets through, if so now.
    pub(super) fn half_open_until(&self, now: u64) -> Option<u64> {
        (self.network(now) == Network::HalfOpen).then_some(self.until)
    }

    pub(super) fn is_undisturbed(&self, now: u64) -> bool {
        self.up && self.network(now) == Network::Up(USUAL_DELAY)
    }

    /// When something sent now arrives; none where it is lost for ever.
    pub(super) fn arrival(&mut self, now: u64, rng: &mut Rng) -> Option<u64> {
        let at = match self.network(now) {
            Network::Up(most) => now + rng.within(most / 4..most),
            Network::OneWay => now + rng.within(USUAL_DELAY / 4..USUAL_DELAY),
            Network::HalfOpen if rng.one_in(2) => self.until + rng.within(0..3_000_000),
            Network::HalfOpen => return None,
        };
        self.arrived = self.arrived.max(at);
        Some(self.arrived)
    }

    /// When the answer to something served now is there; none where it never is.
    pub(super) fn answer(&mut self, now: u64, rng: &mut Rng) -> Option<u64> {
        let at = match self.network(now) {
            Network::Up(most) => now + rng.within(most / 4..most),
            Network::HalfOpen => self.until + rng.within(0..2000),
            Network::OneWay => return None,
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
