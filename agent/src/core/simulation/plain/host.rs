//! One host: an agent's core with the driver around it, a clock of its own, and workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson::{ClientId, Grouping, Lease, LockName, Moment};

use super::super::rng::Rng;
use super::super::schedule::micros;
use super::connection::Connection;
use super::event::Input;
use super::session::Session;
use crate::core::tests::settings;
use crate::core::{Core, Settings};
use crate::journal::Restored;
use crate::types::{Number, SessionId};

/// A stretch of time in which the host does nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stall {
    pub(super) until: u64,
    /// The whole host was suspended: its timers do not know, so that what has arrived comes before they do.
    pub(super) suspended: bool,
}

pub(super) struct Host {
    pub(super) core: Core,
    pub(super) settings: Settings,
    pub(super) client: ClientId,
    /// Grows when the agent is killed and started again.
    pub(super) run: u64,
    pub(super) connections: [Connection; 3],
    /// Channels it pending for.
    pub(super) wanted_channels: BTreeSet<LockName>,
    pub(super) stall: Option<Stall>,
    pub(super) inbox: Vec<Input>,
    pub(super) tick_at: Moment,
    /// When, in true time, its alarm goes off.
    pub(super) alarm_at: u64,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) next_session: u64,
    /// Since when nothing at all has been wrong between it and Redis.
    pub(super) fault_free_since: u64,
    /// Numbers that a script was sent to remove, and those that were ever granted.
    pub(super) removed: BTreeSet<Number>,
    pub(super) granted: BTreeSet<Number>,
    pub(super) disk: Disk,
    /// What workers held that have died: nobody else may have it yet.
    pub(super) departed: Vec<Departed>,
    offset: u64,
    /// How much faster its clock runs than Redis', in millionths.
    drift: i64,
}

/// A host's disk, as far as the journal uses it.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) past: Restored,
    /// Records that this run has written.
    pub(super) records: u64,
    pub(super) full: bool,
    /// A record was refused: the next one brings all the others with it.
    pub(super) broken: bool,
}

/// A hold whose worker has died.
#[derive(Debug)]
pub(super) struct Departed {
    pub(super) lock: &'static str,
    pub(super) holder: String,
    pub(super) number: Number,
    /// Until when nobody else gets the lock.
    pub(super) until: Moment,
    /// Until when it was valid when it was last seen.
    pub(super) valid_until: Moment,
}

/// What an agent is set to, different with each seed. Short leases make more happen in less time.
pub(super) fn settings(rng: &mut Rng) -> Settings {
    let lease = rng.pick(&[600, 1000, 3000, 10_000]);
    let response_timeout = rng.pick(&[lease / 20, lease / 6, lease / 3]);
    Settings {
        lease: Lease::new(Duration::from_millis(lease)).expect("a lease within bounds"),
        lost_margin: Duration::from_millis(rng.pick(&[10, 100, 500])),
        handover_max: rng.pick(&[1, 4, 32]),
        handover_max_time: Duration::from_millis(rng.pick(&[20, 100])),
        poll_max: Duration::from_millis(rng.pick(&[1000, 5000])),
        max_waiters: rng.pick(&[3, 1000, 1000, 1000]),
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
        let core = Core::new(settings.clone(), client, 1 << 30, grouping(), now);
        Self {
            core,
            settings,
            client,
            run: 1,
            connections: [Connection::new(), Connection::new(), Connection::new()],
            wanted_channels: BTreeSet::new(),
            stall: None,
            inbox: Vec::new(),
            tick_at: Moment::default(),
            alarm_at: u64::MAX,
            sessions: BTreeMap::new(),
            next_session: 0,
            fault_free_since: 0,
            removed: BTreeSet::new(),
            granted: BTreeSet::new(),
            disk: Disk::default(),
            departed: Vec::new(),
            offset,
            drift,
        }
    }

    /// The agent is killed and started again, with numbers that were never used.
    pub(super) fn restart(&mut self, now: u64) {
        self.run += 1;
        let first = i64::try_from(self.run << 30).expect("few runs");
        self.core =
            Core::new(self.settings.clone(), self.client, first, grouping(), self.boot(now));
        self.connections = [Connection::new(), Connection::new(), Connection::new()];
        self.wanted_channels.clear();
        self.stall = None;
        self.inbox.clear();
        self.tick_at = Moment::default();
        self.alarm_at = u64::MAX;
        self.fault_free_since = now;
        self.disk.records = 0;
        // Nobody keeps them back any more but their leases.
        self.departed.clear();
        let past = self.disk.past.clone();
        self.core.restore(self.boot(now), past);
    }

    /// Its boot clock at a true instant.
    pub(super) fn boot(&self, now: u64) -> Moment {
        let drifted = now.saturating_add_signed(self.elapsed_drift(now));
        Moment::from_micros(self.offset + drifted)
    }

    fn elapsed_drift(&self, now: u64) -> i64 {
        i64::try_from(now).expect("years of simulation") * self.drift / 1_000_000
    }

    /// The first true instant at which its boot clock has reached `moment`.
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
        i64::try_from(self.run << 30).expect("few runs")
    }

    /// When the driver is to call `on_time`.
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
