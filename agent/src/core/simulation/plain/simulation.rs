//! The state of a run. All instants are true time, unlike those of the drifting clocks of the hosts.

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
use crate::types::ConnectionId;

/// The Redis server, with the faults around its model.
pub(super) struct Server {
    pub(super) redis: Redis,
    /// The difference between its wall clock and true time.
    pub(super) offset_ms: u64,
    pub(super) up: bool,
    pub(super) frozen_until: u64,
    /// The error that replies to every script without running it: loading, read-only replica, failing disk.
    pub(super) refusal: Option<&'static str>,
    /// The data of a lagging replica, or of the last save to disk.
    pub(super) copy: BTreeMap<String, Entry>,
    /// Channel, host, run of its agent, generation of its connection.
    pub(super) subscriptions: BTreeSet<(String, usize, u64, u64)>,
    /// The instant since which it has had no fault.
    pub(super) fault_free_since: u64,
}

/// The phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Workers work, and faults occur.
    Trouble,
    /// Workers work, and no more faults occur.
    Repaired,
    /// Workers finish, and start nothing new.
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
    /// The number of actions left to the workers.
    pub(super) work_left: u64,
    pub(super) next_packet: u64,
    /// Grants in order.
    pub(super) grants: Vec<(usize, ConnectionId)>,
    /// If set, every worker repeatedly acquires the same lock and holds it for that long.
    pub(super) contention: Option<u64>,
    /// The number of events so far.
    pub(super) events: u64,
    pub(super) trace: Trace,
}

impl Simulation {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let hosts = rng.pick(&[1, 2, 2]);
        let mut settings = settings(&mut rng);
        // Half of the runs have a lock delay; half let the holds of stopped workers lapse.
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

    /// A run of hosts that start to connect, without workers or other clients.
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
