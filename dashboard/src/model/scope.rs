//! The model's state of one database of one deployment, or of one node of a cluster.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, LockName, Moment};

use super::clients::Clients;
use super::lock_table::{LockEntry, LockTable};
use super::owner_names::OwnerNames;
use super::record::{Record, ScopeContext};
use super::schedule::Schedule;
use super::silence::Silence;
use crate::clock::{SteadyMillis, Time};
use crate::model::types::{
    AgentWaiters, KnownParts, LockId, LockView, ReadRequest, ScopeId, Source,
};
use crate::text::counted;

/// The age at which a view with values that do not age by themselves is replaced after a reading without changes.
const REFRESH_MS: u64 = 2_000;
/// The minimum difference between two readings of a server's clock that shows that the clock was set. Slow replies cause
/// less.
const CLOCK_STEP: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Scope {
    pub(super) deployment: Arc<str>,
    pub(super) db: u32,
    /// The front of the cluster that contains this node.
    pub(super) front: Option<ScopeId>,
    /// True if the server is a node of a cluster.
    pub(super) cluster: bool,
    pub(super) locks: LockTable,
    pub(super) schedule: Schedule,
    pub(super) clients: Clients,
    /// The locks that workers of each agent wait for.
    agent_waits: HashMap<ClientId, AgentWaits>,
    /// The silence since the latest count of subscribers.
    uncounted: Silence,
    /// The instant since which release messages arrive without a gap.
    pub(super) listening_since: Option<Moment>,
    /// The milliseconds by which the server's clock was ahead of ours when it was last read.
    ahead_ms: Option<i64>,
    /// True if the server has keys in databases that are not watched.
    pub(super) has_unwatched: bool,
    /// The instant since which MONITOR shows all traffic, if it does.
    pub(super) monitored_since: Option<Moment>,
    /// The instant since which the server can be read without a gap.
    readable_since: Option<Moment>,
    run_id: Option<String>,
    address: Option<ServerAddress>,
    /// The change of server that the next `ServerUp` concludes.
    server_change: Option<RestartCause>,
    restart: Option<Restart>,
    /// The beginning of the newest complete scan of all keys.
    pass_began: Option<Moment>,
    /// The locks without room during the current scan so far.
    refused: Refused,
    /// The locks without room during the newest complete scan.
    refused_before: Refused,
}

/// The locks that workers of one agent wait for, as of its latest list.
#[derive(Debug)]
struct AgentWaits {
    names: Vec<LockName>,
    at: Time,
    silence: Silence,
}

/// The numbers of locks for which there was no room during a scan of all keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) locks: u64,
    pub(super) possible: u64,
}

/// The server that is read.
#[derive(Debug)]
struct ServerAddress {
    address: String,
    replica: bool,
    /// The id of its replication history, if the server reports one.
    replid: Option<String>,
}

/// A complete scan of all keys.
pub(super) struct Pass {
    pub(super) is_first: bool,
    /// True if there was room for every lock.
    pub(super) kept_all: bool,
    /// True if the published completeness of the scope has changed.
    pub(super) changed: bool,
}

/// A server that has restarted, or that has taken over locks from another server. Reading them again shows which were
/// lost.
#[derive(Debug, Clone)]
struct Restart {
    /// The locks concerned have to be read again after this instant.
    since: Moment,
    /// The instant of the notice about the restart.
    at: SteadyMillis,
    lost: usize,
    cause: RestartCause,
}

/// The reason to read a server's locks again.
#[derive(Debug, Clone)]
enum RestartCause {
    /// The server restarted, so all of its locks may be gone.
    Started,
    /// The server at this address was promoted to master, so locks that had not been replicated to it are gone.
    Promoted(String),
    /// The server at this address is now read instead. It `may_lack` locks if it is a replica that lags, or a master that
    /// has restarted or been promoted since the replica before received its data.
    Chosen { address: String, may_lack: bool },
    /// These locks have moved here from a node of the cluster that no longer serves any slot: it may have failed.
    Moved { names: HashSet<LockName>, count: usize },
}

impl Restart {
    /// Returns a restart for a lock that has moved here from another node.
    fn of_move(name: &LockName, at: Time) -> Self {
        let cause = RestartCause::Moved { names: HashSet::from([name.clone()]), count: 1 };
        Self { since: at.moment(), at: at.steady(), lost: 0, cause }
    }

    /// Adds another lock that has moved here.
    fn moved(&mut self, name: &LockName, at: Moment) {
        self.since = self.since.max(at);
        if let RestartCause::Moved { names, count } = &mut self.cause {
            *count += usize::from(names.insert(name.clone()));
        }
    }

    fn concerns(&self, name: &LockName) -> bool {
        match &self.cause {
            RestartCause::Started | RestartCause::Promoted(_) => true,
            RestartCause::Chosen { may_lack, .. } => *may_lack,
            RestartCause::Moved { names, .. } => names.contains(name),
        }
    }

    /// Returns the text of the notice.
    fn notice(&self, db: u32) -> String {
        let lost = counted(self.lost as u64, "held lock");
        let what = match &self.cause {
            RestartCause::Started => "the server restarted, or another one took over".to_owned(),
            RestartCause::Promoted(address) => format!("{address} is the master now"),
            RestartCause::Chosen { address, .. } => format!("{address} is read from now on"),
            RestartCause::Moved { count, .. } => {
                let have = if *count == 1 { "has" } else { "have" };
                let were = if self.lost == 1 { "was" } else { "were" };
                let moved = counted(*count as u64, "known lock");
                return format!(
                    "{moved} {have} moved to another node of the cluster; {lost} {were} gone there"
                );
            }
        };
        match (self.lost, &self.cause) {
            (0, RestartCause::Chosen { .. }) => what,
            (0, _) => format!("{what}; no held lock of database {db} was gone"),
            _ => format!("{what}, without {lost} of database {db}"),
        }
    }
}

impl Scope {
    /// Returns an empty scope that reads at most `rate` locks a second.
    pub(super) fn new(
        deployment: Arc<str>,
        db: u32,
        rate: u32,
        now: Moment,
        names: OwnerNames,
    ) -> Self {
        Self {
            deployment,
            db,
            front: None,
            cluster: false,
            locks: LockTable::default(),
            schedule: Schedule::new(rate, now),
            clients: Clients::new(names),
            agent_waits: HashMap::new(),
            uncounted: Silence::default(),
            listening_since: None,
            ahead_ms: None,
            has_unwatched: false,
            monitored_since: None,
            readable_since: None,
            run_id: None,
            address: None,
            server_change: None,
            restart: None,
            pass_began: None,
            refused: Refused::default(),
            refused_before: Refused::default(),
        }
    }

    /// Stores the locks that workers of an agent wait for. Returns those for which they no longer wait.
    pub(super) fn set_agent_waits(&mut self, waiters: &AgentWaiters) -> Vec<LockName> {
        let AgentWaiters { agent, locks, at } = waiters;
        let before = self.agent_waits.remove(agent);
        let mut over = before.map(|waits| waits.names).unwrap_or_default();
        over.retain(|name| !locks.iter().any(|awaited| awaited.lock == *name));
        if !locks.is_empty() {
            let names = locks.iter().map(|awaited| awaited.lock.clone()).collect();
            let waits = AgentWaits { names, at: *at, silence: Silence::default() };
            self.agent_waits.insert(*agent, waits);
        }
        over
    }

    /// Records that time has passed. Returns an empty list for each agent whose latest one is too old.
    pub(super) fn unreported_waiters(&mut self, passed: Duration) -> Vec<AgentWaiters> {
        let list = |(agent, waits): (&ClientId, &mut AgentWaits)| {
            let none = || AgentWaiters { agent: *agent, locks: Vec::new(), at: waits.at };
            waits.silence.add(passed).then(none)
        };
        let mut lists: Vec<AgentWaiters> = self.agent_waits.iter_mut().filter_map(list).collect();
        lists.sort_unstable_by_key(|list| list.agent);
        lists
    }

    /// Records that subscribers were counted.
    pub(super) fn counted_subscribers(&mut self) {
        self.uncounted.end();
    }

    /// Records that time has passed. Returns the locks with subscribers if the latest count is too old.
    pub(super) fn uncounted_locks(&mut self, passed: Duration) -> Vec<LockName> {
        if !self.uncounted.add(passed) {
            return Vec::new();
        }
        let counted = self.locks.awaited().filter(|entry| entry.record.has_subscribers());
        counted.map(|entry| entry.record.id().name.clone()).collect()
    }

    /// Sets the address, role and replication id of the server that is about to be reported as up.
    pub(super) fn set_address(&mut self, address: String, replica: bool, replid: Option<String>) {
        let now = ServerAddress { address: address.clone(), replica, replid: replid.clone() };
        let Some(before) = self.address.replace(now).filter(|before| before.address != address)
        else {
            return;
        };
        self.server_change = Some(match replica || before.replica {
            true => {
                let other_data = replid.zip(before.replid).is_some_and(|(now, then)| now != then);
                RestartCause::Chosen { address, may_lack: replica || other_data }
            }
            false => RestartCause::Promoted(address),
        });
    }

    /// Records that the server can be read since that instant, which was reported at `at`. If it is another server, or
    /// has restarted, all locks are read again.
    pub(super) fn server_up(&mut self, since: Moment, at: SteadyMillis, run_id: Option<String>) {
        if self.readable_since.is_none() {
            self.readable_since = Some(since);
            self.locks.mark_all_changed();
        }
        let other = run_id.is_some_and(|run_id| {
            self.run_id.replace(run_id.clone()).is_some_and(|before| before != run_id)
        });
        let moved = self.server_change.take();
        if let Some(cause) = moved.or(other.then_some(RestartCause::Started)) {
            // What an earlier change has lost, if not all was read again since, is part of this notice.
            let lost = self.restart.take().map_or(0, |unfinished| unfinished.lost);
            self.restart = Some(Restart { since, at, lost, cause });
            self.ahead_ms = None;
            for (name, entry) in self.locks.iter_mut() {
                self.schedule.advance(&mut entry.due, name, since);
            }
        }
    }

    /// Records by how much the server's clock is ahead of ours. Returns the text of a notice if it was set since it was
    /// last read.
    pub(super) fn set_clock(&mut self, ahead_ms: i64) -> Option<String> {
        let before = self.ahead_ms.replace(ahead_ms)?;
        let step = Duration::from_millis(ahead_ms.abs_diff(before));
        let server = self.address.as_ref().map_or("the server", |server| &server.address);
        (step >= CLOCK_STEP).then(|| match ahead_ms < before {
            true => format!(
                "the clock of {server} was set back by {} s: leases that were running expire that much later unless they are renewed, also those of dead processes",
                step.as_secs()
            ),
            false => format!(
                "the clock of {server} is {} s further ahead of this host's: it was set, or this host was paused. If it was set, leases that were running expired that much sooner, perhaps while their holders were working",
                step.as_secs()
            ),
        })
    }

    /// Records that the server cannot be read.
    pub(super) fn server_down(&mut self) {
        if self.readable_since.take().is_some() {
            self.locks.mark_all_changed();
        }
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable_since.is_some()
    }

    /// Returns whether the server could be identified before, and cannot be read now.
    pub(super) fn is_lost(&self) -> bool {
        self.run_id.is_some() && !self.is_readable()
    }

    /// Returns whether the newest reading of one of its locks shows the current state.
    pub(super) fn is_current(&self, record: &Record) -> bool {
        record.is_current(self.readable_since)
    }

    /// Returns the locks to read now, at most `max`, or none while the server cannot be read.
    pub(super) fn due(&mut self, now: Moment, max: usize) -> Vec<ReadRequest> {
        if !self.is_readable() {
            return Vec::new();
        }
        let names = self.schedule.take(now, max, &mut self.locks);
        let request = |name: LockName| ReadRequest {
            known: match self.locks.get(&name) {
                Some(entry) => entry.record.known(now),
                None => KnownParts { token: true, ..KnownParts::default() },
            },
            name,
        };
        names.into_iter().map(request).collect()
    }

    /// Updates schedule, indexes and marks after a lock's record has changed. Returns false if the lock should not be
    /// retained.
    pub(super) fn settle(&mut self, name: &LockName) -> bool {
        let clients = self.clients.version();
        let Some(entry) = self.locks.get_mut(name) else { return true };
        let record = &entry.record;
        if !record.is_retained() {
            return false;
        }
        let (due, next) = (&mut entry.due, record.next_read());
        match (record.is_confirmed(), record.needs_close_reads()) {
            (true, true) => self.schedule.set_close(due, name, next),
            (true, false) => self.schedule.set(due, name, next),
            (false, _) => self.schedule.set_possible(due, name, next),
        }
        let observed = record.observed_at();
        let current = entry.published.as_ref().filter(|view| {
            entry.clients == clients && record.is_view_current(view, self.readable_since)
        });
        let changed = match current {
            // Open pages compute ages from the last reading that they received. A marker's time is as of its view.
            Some(view) if self.schedule.is_viewed(name) || view.has_marker_times() => {
                observed.millis_since(view.observed_at()) >= REFRESH_MS
            }
            Some(view) => {
                view.observed.again(observed);
                false
            }
            None => true,
        };
        self.locks.update_indexes(name);
        if changed {
            self.locks.mark_changed(name);
        }
        true
    }

    /// Builds the next view of a lock to publish.
    pub(super) fn next_view(&mut self, name: &LockName) -> Option<LockView> {
        let entry = self.locks.get_mut(name)?;
        entry.clients = self.clients.version();
        Some(entry.record.next_view(self.readable_since, &self.clients))
    }

    /// Counts a held lock that was gone after a restart.
    pub(super) fn count_lost(&mut self) {
        if let Some(restart) = &mut self.restart {
            restart.lost += 1;
        }
    }

    /// Ends a restart once all locks that it concerns have been read again. Returns the notice.
    pub(super) fn conclude_restart(&mut self) -> Option<(SteadyMillis, String)> {
        if !self.is_restart_over() {
            return None;
        }
        let restart = self.restart.take()?;
        Some((restart.at, restart.notice(self.db)))
    }

    /// Removes a lock that moves to another node.
    pub(super) fn move_out(&mut self, name: &LockName) -> Option<LockEntry> {
        let entry = self.locks.move_out(name)?;
        if let Some(Restart { cause: RestartCause::Moved { names, .. }, .. }) = &mut self.restart {
            names.remove(name);
        }
        Some(entry)
    }

    /// Adds a lock that has moved here from another node. `drained` is true if that node no longer serves any slot. A node that
    /// still serves some has handed over all keys, so a lock that is not here has been released, perhaps on a sharded
    /// channel before this program listened here.
    pub(super) fn move_in(&mut self, name: &LockName, entry: LockEntry, at: Time, drained: bool) {
        // From now on the lists of agents that are read for this node end these waits.
        for agent in entry.record.agents_with_waiters() {
            let none = AgentWaits { names: Vec::new(), at, silence: Silence::default() };
            self.agent_waits.entry(agent).or_insert(none).names.push(name.clone());
        }
        self.locks.insert(name.clone(), entry);
        self.locks.mark_changed(name);
        match &mut self.restart {
            _ if !drained => {}
            Some(restart) => restart.moved(name, at.moment()),
            none => *none = Some(Restart::of_move(name, at)),
        }
    }

    /// Returns whether all locks that a restart concerns have been read again.
    fn is_restart_over(&self) -> bool {
        let Some(restart) = self.restart.as_ref().filter(|_| self.is_readable()) else {
            return false;
        };
        let read_again =
            |entry: &LockEntry| entry.record.last_sent().is_none_or(|sent| sent >= restart.since);
        match &restart.cause {
            RestartCause::Started | RestartCause::Promoted(_) | RestartCause::Chosen { .. } => {
                self.locks.iter().all(|(_, entry)| read_again(entry))
            }
            RestartCause::Moved { names, .. } => {
                names.iter().filter_map(|name| self.locks.get(name)).all(read_again)
            }
        }
    }

    /// Counts a lock for which there is no room.
    pub(super) fn refuse(&mut self) {
        self.refused.locks += 1;
    }

    /// Counts a possible lock for which there is no room.
    pub(super) fn refuse_possible(&mut self) {
        self.refused.possible += 1;
    }

    /// Forgets the locks for which there was no room, since the server is no longer watched.
    pub(super) fn forget_refused(&mut self) {
        (self.refused, self.refused_before) = (Refused::default(), Refused::default());
    }

    /// Returns the larger numbers of locks without room, of the newest complete scan and the current one.
    pub(super) fn refused(&self) -> Refused {
        let (before, now) = (self.refused_before, self.refused);
        Refused { locks: before.locks.max(now.locks), possible: before.possible.max(now.possible) }
    }

    /// Begins a scan of all keys. The one before may not have been completed.
    pub(super) fn begin_pass(&mut self) {
        self.refused = Refused::default();
    }

    /// Concludes a scan of all keys that skipped some possible locks.
    pub(super) fn end_pass(&mut self, began: Moment, skipped: u64) -> Pass {
        let mut refused = std::mem::take(&mut self.refused);
        refused.possible += skipped;
        let before = std::mem::replace(&mut self.refused_before, refused);
        let is_first = self.pass_began.replace(began).is_none();
        Pass {
            is_first,
            kept_all: refused == Refused::default(),
            changed: is_first || before != refused,
        }
    }

    /// Returns the beginning of the newest complete scan of all keys.
    pub(super) fn pass_began(&self) -> Option<Moment> {
        self.pass_began
    }

    /// Marks a cluster's front as scanned. Returns false if it was marked before.
    pub(super) fn mark_scanned(&mut self, began: Moment) -> bool {
        let new = self.pass_began.is_none();
        self.pass_began.get_or_insert(began);
        new
    }

    /// Returns the context for a reading of one of its locks.
    pub(super) fn reading_context(&self, name: &LockName, source: Source) -> ScopeContext {
        // A scan misses no key that exists from its beginning to its end. A scan without room for all locks proves
        // nothing. In a cluster, a key may move from a node that has not been scanned yet to one that has.
        let proves =
            source == Source::Scan && self.refused() == Refused::default() && !self.cluster;
        let pass_began = self.pass_began.filter(|_| proves);
        ScopeContext { pass_began, ..self.context(name) }
    }

    /// Returns the context for an observation of one of its locks.
    pub(super) fn context(&self, name: &LockName) -> ScopeContext {
        ScopeContext {
            listening_since: self.listening_since,
            pass_began: None,
            restarted: self.restart.as_ref().filter(|it| it.concerns(name)).map(|it| it.since),
            readable_since: self.readable_since,
            monitored_since: self.monitored_since,
            ahead_ms: self.ahead_ms.unwrap_or(0),
            cluster: self.cluster,
        }
    }

    /// Returns the identity of one of its locks.
    pub(super) fn id(&self, name: &LockName) -> LockId {
        LockId { deployment: Arc::clone(&self.deployment), db: self.db, name: name.clone() }
    }
}
