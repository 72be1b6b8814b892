//! A simulated Redis with its clients in logical time, observed by any combination of sources. The tests check the
//! sources that each problem needs, the time to its detection and to its end, and the absence of problems in healthy
//! locks.
//!
//! The clients behave like Redisson's. Each of their actions changes the keys, and reaches the model in the way and at
//! the pace of the enabled sources. Keys are read when the model requests them.

mod clients;
mod crowd;
mod detection;
mod healthy;
mod replay;
mod server;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use redisson::shape::LockHash;
use redisson::{ClientId, HolderId, monitor};

use super::*;

pub(super) const CERTAIN: Certainty = Certainty::Certain;
pub(super) const SUSPECTED: Certainty = Certainty::Suspected;

const MAIN: ScopeId = ScopeId(0);
/// The resolution of the time, in milliseconds.
const STEP: u64 = 20;
/// A watchdog's lease, in milliseconds.
pub(super) const LEASE: u64 = 30_000;
/// The number from which clients are agents, which publish their holders.
pub(super) const AGENTS: u8 = 200;
/// The offset of the steady clock from the simulated time, so that confusing them fails.
const WALL: u64 = 1_000_000;

/// The enabled sources, in addition to scans and readings, which are always on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EnabledSources {
    pub(super) channels: bool,
    pub(super) keyspace: bool,
    pub(super) subscribers: bool,
    pub(super) monitor: bool,
    pub(super) identity: bool,
}

impl EnabledSources {
    /// Returns every combination of sources.
    pub(super) fn every() -> impl Iterator<Item = Self> {
        (0..32_u8).map(|bits| Self {
            channels: bits & 1 != 0,
            keyspace: bits & 2 != 0,
            subscribers: bits & 4 != 0,
            monitor: bits & 8 != 0,
            identity: bits & 16 != 0,
        })
    }
}

/// A key that is a hash.
#[derive(Debug, Clone, Default)]
struct Key {
    hash: LockHash,
    /// The instant at which the key expires, or `None`.
    ends: Option<u64>,
}

/// A client's thread that renews a lock every third of its lease.
#[derive(Debug, Clone)]
struct Watchdog {
    lock: &'static str,
    by: HolderId,
    lease: u64,
    next: u64,
}

/// A client's thread that waits for a plain lock: it subscribes to the release, and retries when the lock should
/// have expired.
#[derive(Debug, Clone)]
struct SleepingWaiter {
    lock: &'static str,
    by: HolderId,
    next: u64,
}

/// The beginning or the end of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProblemChange {
    pub(super) ms: u64,
    pub(super) problem: ProblemKind,
    /// The certainty, or `None` if the problem ended.
    pub(super) certainty: Option<Certainty>,
}

/// The model's input, in order.
#[derive(Debug, Clone)]
enum Input {
    Seen(Box<Observation>),
    Due(u64),
    Tick(u64),
    Publish(u64),
}

/// The simulated Redis, its clients, and the model that observes them.
pub(super) struct Scenario {
    sources: EnabledSources,
    model: Model,
    settings: Settings,
    pub(super) now: u64,
    keys: BTreeMap<&'static str, Key>,
    queues: BTreeMap<&'static str, Vec<(HolderId, u64)>>,
    markers: BTreeMap<(&'static str, HolderId), u64>,
    watchdogs: Vec<Watchdog>,
    sleepers: Vec<SleepingWaiter>,
    /// The clients that are gone, and have no connection left.
    gone: HashSet<ClientId>,
    /// Agents that do not publish themselves, and holders that their agents do not publish.
    silent_agents: HashSet<ClientId>,
    unreported: HashSet<HolderId>,
    /// Milliseconds by which the server's clock is ahead of the dashboard's.
    pub(super) ahead_ms: i64,
    down: bool,
    /// The current problems.
    shown: HashMap<(LockName, ProblemKind), Certainty>,
    changes: Vec<ProblemChange>,
    /// True if input and output are recorded.
    recorded: bool,
    inputs: Vec<Input>,
    /// The model's output, for comparison.
    outputs: Vec<String>,
}

/// Returns a client's number, with which its id begins.
fn number(client: ClientId) -> u8 {
    let text = client.to_string();
    text.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap()
}

/// Returns the address of a client's host.
fn address(client: ClientId) -> IpAddr {
    IpAddr::from([10, 0, 0, number(client)])
}

impl Scenario {
    pub(super) fn new(sources: EnabledSources) -> Self {
        Self::with(sources, settings())
    }

    pub(super) fn with(sources: EnabledSources, settings: Settings) -> Self {
        let mut scenario = Self {
            sources,
            model: model_with(settings.clone()),
            settings,
            now: 0,
            keys: BTreeMap::new(),
            queues: BTreeMap::new(),
            markers: BTreeMap::new(),
            watchdogs: Vec::new(),
            sleepers: Vec::new(),
            gone: HashSet::new(),
            silent_agents: HashSet::new(),
            unreported: HashSet::new(),
            ahead_ms: 0,
            down: false,
            shown: HashMap::new(),
            changes: Vec::new(),
            recorded: false,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        scenario.begin();
        scenario
    }

    fn begin(&mut self) {
        self.observe(Observation::PubSubActive { on: self.sources.channels, at: at(0) });
        self.observe(Observation::MonitorActive { on: self.sources.monitor });
    }

    fn time(&self) -> Time {
        Time::of_test(self.now, WALL)
    }

    /// Returns the time of the server's clock.
    pub(super) fn clock(&self) -> u64 {
        (WALL + self.now).saturating_add_signed(self.ahead_ms)
    }

    fn observe(&mut self, observation: Observation) {
        if self.recorded {
            self.inputs.push(Input::Seen(Box::new(observation.clone())));
        }
        self.model.observe(MAIN, observation);
    }

    /// Advances the time by this number of milliseconds.
    pub(super) fn advance(&mut self, ms: u64) {
        self.advance_to(self.now + ms);
    }

    /// Advances the time to that instant.
    pub(super) fn advance_to(&mut self, end: u64) {
        while self.now < end {
            self.now = self.next().min(end);
            self.advance_clients();
            if !self.down {
                self.report_sources();
                self.read_what_is_due();
            }
            if self.now.is_multiple_of(1_000) {
                self.record(Input::Tick(self.now));
                self.model.tick(at(self.now));
            }
            self.publish();
        }
    }

    /// Skips this number of milliseconds without any observation, as if the machine slept.
    pub(super) fn skip(&mut self, ms: u64) {
        self.now += ms;
    }

    /// Returns the time of the next event.
    fn next(&self) -> u64 {
        let ends = self.keys.values().filter_map(|key| key.ends);
        let renewals = self.watchdogs.iter().map(|watchdog| watchdog.next);
        let attempts = self.sleepers.iter().map(|sleeper| sleeper.next);
        let due = self.model.scopes[0].schedule.next(at(self.now));
        let due = due.map(|due| due.as_micros().div_ceil(1_000));
        let tick = self.now - self.now % 1_000 + 1_000;
        let next = ends.chain(renewals).chain(attempts).chain(due).min().unwrap_or(tick).min(tick);
        next.max(self.now + 1).next_multiple_of(STEP)
    }

    fn record(&mut self, input: Input) {
        if self.recorded {
            self.inputs.push(input);
        }
    }

    fn publish(&mut self) {
        self.record(Input::Publish(self.now));
        let Some((_, delta)) = self.model.publish(self.time().steady()) else { return };
        if self.recorded {
            self.outputs.push(delta.json().to_string());
        }
        for view in &delta.changed {
            self.compare(view);
        }
    }

    /// Records the problems of a lock that began and ended.
    fn compare(&mut self, view: &LockView) {
        let name = &view.id.name;
        for problem in ProblemKind::ALL {
            let found = view.problems.iter().find(|view| view.problem == problem);
            let certainty = found.map(|view| view.certainty);
            let key = (name.clone(), problem);
            let before = match certainty {
                Some(certainty) => self.shown.insert(key, certainty),
                None => self.shown.remove(&key),
            };
            if before != certainty {
                self.changes.push(ProblemChange { ms: self.now, problem, certainty });
            }
        }
    }

    /// Returns the problems that began and ended so far.
    pub(super) fn changes(&self) -> &[ProblemChange] {
        &self.changes
    }

    /// Returns the published view of a lock.
    pub(super) fn shown(&self, lock: &str) -> Option<Arc<LockView>> {
        let id = self.model.scopes[0].id(&name(lock));
        self.model.snapshot.get(&id).cloned()
    }
}
