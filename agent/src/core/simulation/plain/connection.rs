//! A host's connections to Redis, and the state of the network on them.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::rng::Rng;
use super::event::Script;

/// The three connections of an agent.
pub(super) const COMMANDS: usize = 0;
pub(super) const RENEWALS: usize = 1;
pub(super) const MESSAGES: usize = 2;

/// The state of the network on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// Each direction takes up to that many microseconds.
    Up(u64),
    /// Nothing arrives in either direction. Some of it arrives later.
    HalfOpen,
    /// Scripts arrive, replies do not.
    OneWay,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) up: bool,
    /// Incremented with each connect.
    pub(super) generation: u64,
    /// Calls without a reply, oldest first.
    pub(super) in_flight: BTreeMap<u64, Rc<[Script]>>,
    /// Consecutive failures to connect.
    pub(super) failures: u32,
    /// The arrival of the last script: bytes keep their order.
    arrived: u64,
    answered: u64,
    network: Network,
    until: u64,
}

/// The longest delay without faults, in microseconds.
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

    /// Returns the end of the half-open state, if it is half-open.
    pub(super) fn half_open_until(&self, now: u64) -> Option<u64> {
        (self.network(now) == Network::HalfOpen).then_some(self.until)
    }

    pub(super) fn is_undisturbed(&self, now: u64) -> bool {
        self.up && self.network(now) == Network::Up(USUAL_DELAY)
    }

    /// Returns the arrival of something sent now; `None` if it is lost.
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

    /// Returns the arrival of a reply sent now; `None` if it is lost.
    pub(super) fn answer(&mut self, now: u64, rng: &mut Rng) -> Option<u64> {
        let at = match self.network(now) {
            Network::Up(most) => now + rng.within(most / 4..most),
            Network::HalfOpen => self.until + rng.within(0..2000),
            Network::OneWay => return None,
        };
        self.answered = self.answered.max(at);
        Some(self.answered)
    }

    /// Starts a new connection. It keeps no order with the bytes of the old one.
    pub(super) fn connected(&mut self) {
        self.up = true;
        self.generation += 1;
        self.failures = 0;
        (self.arrived, self.answered) = (0, 0);
    }
}
