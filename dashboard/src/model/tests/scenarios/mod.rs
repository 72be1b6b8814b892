//! A simulated Redis with its clients in logical time, observed by any choice of sources: the sources that each problem needs,
//! the time to its detection and to its end, and the absence of problems in healthy locks.
//!
//! Clients behave as Redisson's do. Each of their actions changes the keys, and reaches the model as the enabled sources would
//! report it, at their own pace; keys are read when the model requests them.

mod clients;
mod found;
mod healthy;
mod replay;
mod server;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use redisson::shape::LockHash;
use redisson::{ClientId, HolderId, monitor};

use super::*;

pub(super) const SURE: Certainty = Certainty::Sure;
pub(super) const SUSPECTED: Certainty = Certainty::Suspected;

const MAIN: ScopeId = ScopeId(0);
/// The grid on which things happen, milliseconds.
const STEP: u64 = 20;
/// A watchdog's lease, milliseconds.
pub(super) const LEASE: u64 = 30_000;
/// Clients from this number on are agents, which tell of their holders.
pub(super) const AGENTS: u8 = 200;
/// Ours and the wall clock's zero apart, so that none is taken for the other.
const WALL: u64 = 1_000_000;

/// The enabled sources, in addition to scans and readings, which are always on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seeing {
    pub(super) channels: bool,
    pub(super) keyspace: bool,
    pub(super) subscribers: bool,
    pub(super) monitor: bool,
    pub(super) identity: bool,
}

impl Seeing {
    /// Every choice of them.
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
    /// The expiry; none: it does not expire.
    ends: Option<u64>,
}

/// A client's thread that renews a lock each third of its lease.
#[derive(Debug, Clone)]
struct Watchdog {
    lock: &'static str,
    by: HolderId,
    lease: u64,
    next: u64,
}

/// A client's thread that waits for a plain lock: it listens for the release, and tries again when the lock should
/// have run out.
#[derive(Debug, Clone)]
struct Sleeper {
    lock: &'static str,
    by: HolderId,
    next: u64,
}

/// A problem as it came or went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) ms: u64,
    pub(super) problem: ProblemKind,
    /// None: it went.
    pub(super) certainty: Option<Certainty>,
}

/// The model's input, in order.
#[derive(Debug, Clone)]
enum Given {
    Seen(Box<Observation>),
    Due(u64),
    Tick(u64),
    Publish(u64),
}

/// The Redis, its clients, and the model that looks.
pub(super) struct Play {
    seeing: Seeing,
    model: Model,
    settings: Settings,
    pub(super) now: u64,
    keys: BTreeMap<&'static str, Key>,
    queues: BTreeMap<&'static str, Vec<(HolderId, u64)>>,
    markers: BTreeMap<(&'static str, HolderId), u64>,
    watchdogs: Vec<Watchdog>,
    sleepers: Vec<Sleeper>,
    /// Clients that are gone: nobody is connected from where they were.
    gone: HashSet<ClientId>,
    /// Agents that do not tell of themselves, and holders that their agents do not tell of.
    silent: HashSet<ClientId>,
    untold: HashSet<HolderId>,
    /// By how much the server's clock is ahead of the dashboard's.
    pub(super) ahead_ms: i64,
    down: bool,
    /// The problems that are shown.
    shown: HashMap<(LockName, ProblemKind), Certainty>,
    turns: Vec<Turn>,
    /// True if input and output are recorded.
    recorded: bool,
    given: Vec<Given>,
    /// The model's output, for comparison.
    gave: Vec<String>,
}

/// A client's number: its id begins with it.
fn number(client: ClientId) -> u8 {
    let text = client.to_string();
    text.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap()
}

/// The address of a client's host.
fn address(client: ClientId) -> IpAddr {
    IpAddr::from([10, 0, 0, number(client)])
}

impl Play {
    pub(super) fn new(seeing: Seeing) -> Self {
        Self::with(seeing, settings())
    }

    pub(super) fn with(seeing: Seeing, settings: Settings) -> Self {
        let mut play = Self {
            seeing,
            model: model_with(settings.clone()),
            settings,
            now: 0,
            keys: BTreeMap::new(),
            queues: BTreeMap::new(),
            markers: BTreeMap::new(),
            watchdogs: Vec::new(),
            sleepers: Vec::new(),
            gone: HashSet::new(),
            silent: HashSet::new(),
            untold: HashSet::new(),
            ahead_ms: 0,
            down: false,
            shown: HashMap::new(),
            turns: Vec::new(),
            recorded: false,
            given: Vec::new(),
            gave: Vec::new(),
        };
        play.begin();
        play
    }

    fn begin(&mut self) {
        self.see(Observation::PubSubActive { on: self.seeing.channels, at: at(0) });
        self.see(Observation::MonitorActive { on: self.seeing.monitor, at: at(0) });
    }

    fn steady(&self) -> SteadyMillis {
        SteadyMillis(WALL + self.now)
    }

    /// The server's clock.
    pub(super) fn clock(&self) -> u64 {
        (WALL + self.now).saturating_add_signed(self.ahead_ms)
    }

    fn see(&mut self, observation: Observation) {
        if self.recorded {
            self.given.push(Given::Seen(Box::new(observation.clone())));
        }
        self.model.observe(MAIN, observation);
    }

    /// Goes on for so long.
    pub(super) fn pass(&mut self, ms: u64) {
        self.until(self.now + ms);
    }

    /// Goes on until that instant.
    pub(super) fn until(&mut self, end: u64) {
        while self.now < end {
            self.now = self.next().min(end);
            self.clients_go_on();
            if !self.down {
                self.sources_tell();
                self.read_what_is_due();
            }
            if self.now.is_multiple_of(1_000) {
                self.give(Given::Tick(self.now));
                self.model.tick(at(self.now));
            }
            self.publish();
        }
    }

    /// Nothing is looked at for so long, as when the whole machine sleeps.
    pub(super) fn skips(&mut self, ms: u64) {
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

    fn give(&mut self, given: Given) {
        if self.recorded {
            self.given.push(given);
        }
    }

    fn publish(&mut self) {
        self.give(Given::Publish(self.now));
        let Some((_, delta)) = self.model.publish(self.steady()) else { return };
        if self.recorded {
            self.gave.push(delta.json().to_string());
        }
        for view in &delta.changed {
            self.compare(view);
        }
    }

    /// Notes which problems of a lock came and went.
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
                self.turns.push(Turn { ms: self.now, problem, certainty });
            }
        }
    }

    /// Returns the problems that began and ended so far.
    pub(super) fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// A lock as it is shown.
    pub(super) fn shown(&self, lock: &str) -> Option<Arc<LockView>> {
        let id = self.model.scopes[0].id(&name(lock));
        self.model.snapshot.get(&id).cloned()
    }
}
