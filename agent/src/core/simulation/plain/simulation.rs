//! The event loop: one queue of what happens when, in true time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::redis::{Entry, Redis};
use super::super::rng::Rng;
use super::super::schedule::{Schedule, Trace};
use super::connection::{COMMANDS, MESSAGES, RENEWALS};
use super::event::Event;
use super::history::History;
use super::host::{Host, settings};
use super::other_client::OtherClient;
use crate::core::Frozen;
use crate::types::SessionId;

/// The server, and what surrounds the model of it.
pub(super) struct Server {
    pub(super) redis: Redis,
    /// Its wall clock less true time.
    pub(super) offset_ms: u64,
    pub(super) up: bool,
    pub(super) frozen_until: u64,
    /// It answers every script with this error, and runs none: loading, a replica, unable to save.
    pub(super) refusal: Option<&'static str>,
    /// What a replica that lags has, or what was saved to disk.
    pub(super) copy: BTreeMap<String, Entry>,
    /// Channel, host, generation.
    pub(super) subscriptions: BTreeSet<(String, usize, u64, u64)>,
    /// Since when nothing has been wrong with it.
    pub(super) fault_free_since: u64,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Work, and faults all the time.
    Trouble,
    /// Everything is repaired and stays so; work goes on.
    Repaired,
    /// Nobody begins anything, everybody finishes.
    Ending,
}

pub(super) struct Simulation {
    pub(super) now: u64,
    pub(super) schedule: Schedule<Event>,
    pub(super) rng: Rng,
    pub(super) server: Server,
    pub(super) hosts: Vec<Host>,
    pub(super) other_clients: Vec<OtherClient>,
    pub(super) history: History,
    pub(super) phase: Phase,
    /// How many more things the workers do.
    pub(super) work_left: u64,
    pub(super) next_packet: u64,
    /// Who was granted a lock, in order.
    pub(super) grants: Vec<(usize, SessionId)>,
    /// Under contention every worker wants the same lock again and again, and holds it for that long.
    pub(super) contention: Option<u64>,
    /// Events so far: a measure of a run's length.
    pub(super) events: u64,
    pub(super) trace: Trace,
}

impl Simulation {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let hosts = rng.pick(&[1, 2, 2]);
        let mut settings = settings(&mut rng);
        // Dead workers' locks are kept back in half of the runs, stopped workers' ones are let lapse in half of them.
        settings.lock_delay = match seed % 8 {
            2 | 3 => Duration::from_millis(200),
            4 | 5 => settings.lease.duration() * 3 / 2,
            _ => Duration::ZERO,
        };
        settings.frozen = if seed % 8 < 4 { Frozen::Keep } else { Frozen::Lapse };
        let hosts: Vec<Host> =
            (0..hosts).map(|index| Host::new(index, settings.clone(), &mut rng)).collect();
        let mut simulation = Self::empty(rng, hosts, traced);
        simulation.other_clients = (0..simulation.rng.within(0..3)).map(OtherClient::new).collect();
        simulation
    }

    /// Hosts that begin to connect, and nobody who does anything.
    pub(super) fn empty(rng: Rng, hosts: Vec<Host>, traced: bool) -> Self {
        let server = Server {
            redis: Redis::default(),
            offset_ms: 1_800_000_000_000,
            up: true,
            frozen_until: 0,
            refusal: None,
            copy: BTreeMap::new(),
            subscriptions: BTreeSet::new(),
            fault_free_since: 0,
        };
        let mut simulation = Self {
            now: 1,
            schedule: Schedule::default(),
            rng,
            server,
            hosts,
            other_clients: Vec::new(),
            history: History::default(),
            phase: Phase::Trouble,
            work_left: 0,
            next_packet: 0,
            grants: Vec::new(),
            contention: None,
            events: 0,
            trace: Trace::new(traced),
        };
        for host in 0..simulation.hosts.len() {
            simulation.connect_all(host);
        }
        simulation
    }

    pub(super) fn connect_all(&mut self, host: usize) {
        let run = self.hosts[host].run;
        for lane in [COMMANDS, RENEWALS, MESSAGES] {
            self.after(1000, Event::Connect { host, run, lane });
        }
    }

    /// A line of the trace, made only where one is kept.
    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        self.trace.log(self.now, line);
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.schedule.insert(at.max(self.now), event);
    }

    pub(super) fn after(&mut self, micros: u64, event: Event) {
        self.at(self.now + micros, event);
    }

    pub(super) fn set_clock(&mut self) {
        self.server.redis.set_clock(self.server.offset_ms + self.now / 1000);
    }

    pub(super) fn is_run(&self, host: usize, run: u64) -> bool {
        self.hosts[host].run == run
    }
}
