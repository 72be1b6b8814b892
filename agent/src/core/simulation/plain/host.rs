//! A host: an agent's core with its connections and clock, and workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson::{ClientId, Grouping, Lease, LockName, Moment};

use super::super::first_number;
use super::super::rng::Rng;
use super::super::schedule::micros;
use super::connection::Connection;
use super::event::{Input, Script};
use super::session::Session;
use crate::core::tests::settings;
use crate::core::{Core, Limits, Settings};
use crate::journal::Restored;
use crate::types::{ConnectionId, Number};

/// A stretch of time in which the host does nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stall {
    pub(super) until: u64,
    /// The whole host is suspended, timers included. On resume, inputs are handled before timers.
    pub(super) suspended: bool,
}

pub(super) struct Host {
    pub(super) core: Core,
    pub(super) settings: Settings,
    pub(super) client: ClientId,
    /// Incremented when the agent is killed and restarted.
    pub(super) run: u64,
    pub(super) connections: [Connection; 3],
    /// Locks whose channels the core subscribed to.
    pub(super) wanted_channels: BTreeSet<LockName>,
    /// Scripts that are about to be sent in one call.
    pub(super) sharing: Vec<Script>,
    pub(super) stall: Option<Stall>,
    pub(super) inbox: Vec<Input>,
    pub(super) tick_at: Moment,
    /// The true instant of its next alarm.
    pub(super) alarm_at: u64,
    pub(super) sessions: BTreeMap<ConnectionId, Session>,
    pub(super) next_connection: u64,
    /// The instant since which no fault has separated it from Redis.
    pub(super) fault_free_since: u64,
    /// Numbers that a script was sent to remove.
    pub(super) removed: BTreeSet<Number>,
    /// All numbers that were ever granted.
    pub(super) granted: BTreeSet<Number>,
    pub(super) disk: Disk,
    /// Holds of dead workers that are in their lock delay.
    pub(super) departed: Vec<Departed>,
    offset: u64,
    /// The drift of its clock against Redis, in millionths.
    drift: i64,
}

/// The journal on a host's disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) past: Restored,
    /// The number of records written by this run of the agent.
    pub(super) records: u64,
    pub(super) full: bool,
    /// A write failed. The next one rewrites the whole journal.
    pub(super) broken: bool,
}

/// A hold of a dead worker.
#[derive(Debug)]
pub(super) struct Departed {
    pub(super) lock: &'static str,
    pub(super) holder: String,
    pub(super) number: Number,
    /// The end of the lock delay.
    pub(super) until: Moment,
    /// Its last known validity.
    pub(super) valid_until: Moment,
}

/// Returns random settings. Short leases make more happen in less time.
pub(super) fn settings(rng: &mut Rng) -> Settings {
    let lease = rng.pick(&[600, 1000, 3000, 10_000]);
    let response_timeout = rng.pick(&[lease / 20, lease / 6, lease / 3]);
    Settings {
        lease: Lease::new(Duration::from_millis(lease)).expect("a lease within bounds"),
        lost_margin: Duration::from_millis(rng.pick(&[10, 100, 500])),
        handover_max: rng.pick(&[1, 4, 32]),
        handover_max_time: Duration::from_millis(rng.pick(&[20, 100])),
        poll_max: Duration::from_millis(rng.pick(&[1000, 5000])),
        limits: Limits { max_waiters: rng.pick(&[3, 1000, 1000, 1000]), max_locks: 1_000_000 },
        max_grace: Duration::from_secs(600),
        max_graced: 1000,
        response_timeout: Duration::from_millis(response_timeout),
        ..settings::settings()
    }
}

impl Host {
    pub(super) fn new(index: u8, settings: Settings, rng: &mut Rng) -> Self {
        let client = ClientId::from_random([index + 1; 16]);
        let offset = rng.within(1_000_000..1_000_000_000);
        let drift = rng.pick(&[0, 0, 2000, -2000]);
        let now = Moment::from_micros(offset);
        let core = Core::new(settings.clone(), client, first_number(1), grouping(), now);
        Self {
            core,
            settings,
            client,
            run: 1,
            connections: [Connection::new(), Connection::new(), Connection::new()],
            wanted_channels: BTreeSet::new(),
            sharing: Vec::new(),
            stall: None,
            inbox: Vec::new(),
            tick_at: Moment::default(),
            alarm_at: u64::MAX,
            sessions: BTreeMap::new(),
            next_connection: 0,
            fault_free_since: 0,
            removed: BTreeSet::new(),
            granted: BTreeSet::new(),
            disk: Disk::default(),
            departed: Vec::new(),
            offset,
            drift,
        }
    }

    /// Kills and restarts the agent, with numbers that were never used.
    pub(super) fn restart(&mut self, now: u64) {
        self.run += 1;
        let first = self.first_number();
        self.core =
            Core::new(self.settings.clone(), self.client, first, grouping(), self.boot(now));
        self.connections = [Connection::new(), Connection::new(), Connection::new()];
        self.wanted_channels.clear();
        self.sharing.clear();
        self.stall = None;
        self.inbox.clear();
        self.tick_at = Moment::default();
        self.alarm_at = u64::MAX;
        self.fault_free_since = now;
        self.disk.records = 0;
        // From now on only their leases protect them.
        self.departed.clear();
        let past = self.disk.past.clone();
        self.core.restore(self.boot(now), past);
    }

    /// Returns its boot clock at a true instant.
    pub(super) fn boot(&self, now: u64) -> Moment {
        let drifted = now.saturating_add_signed(self.elapsed_drift(now));
        Moment::from_micros(self.offset + drifted)
    }

    fn elapsed_drift(&self, now: u64) -> i64 {
        i64::try_from(now).expect("years of simulation") * self.drift / 1_000_000
    }

    /// Returns the first true instant at which its boot clock has reached `moment`.
    pub(super) fn true_time(&self, moment: Moment) -> u64 {
        if moment == Moment::NEVER {
            return u64::MAX;
        }
        let wanted = moment.as_micros().saturating_sub(self.offset);
        let mut at = wanted.saturating_add_signed(-self.elapsed_drift(wanted));
        while self.boot(at) < moment {
            at += 1 + micros(moment.since(self.boot(at))) / 2;
        }
        at
    }

    pub(super) fn lease(&self) -> Duration {
        self.settings.lease.duration()
    }

    pub(super) fn first_number(&self) -> Number {
        first_number(self.run)
    }

    /// Returns the instant at which the runtime calls `on_time`.
    pub(super) fn due(&self) -> Moment {
        let due = self.core.next_deadline().unwrap_or(Moment::NEVER);
        if self.core.holds() > 0 { due.min(self.tick_at) } else { due }
    }

    pub(super) fn is_fault_free(&self, now: u64) -> bool {
        self.stall.is_none()
            && self.connections.iter().all(|connection| connection.is_undisturbed(now))
    }
}

fn grouping() -> Grouping {
    Grouping::new(vec![], 50)
}
