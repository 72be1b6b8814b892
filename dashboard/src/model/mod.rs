//! The model: the current state of every lock.
//!
//! [`Model`] is pure: it takes observations with their instants, and produces snapshots and deltas. One task owns it, see
//! [`actor`]; all other tasks read the snapshots that it publishes.

pub mod actor;
pub mod clients;
mod cluster;
pub mod contention;
mod correlate;
mod deadlines;
pub mod deadlock;
pub mod lease;
mod lock_table;
pub mod owner_names;
pub mod problem;
mod publish;
pub mod record;
mod red;
mod retention;
pub mod schedule;
mod scope;
#[cfg(test)]
mod tests;
pub mod types;
pub mod waiting;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redisson::{Grouping, LockName, Moment, keys};

use crate::clock::SteadyMillis;
use cluster::Cluster;
use contention::{Contention, Count, Totals};
use lock_table::LockEntry;
use scope::Scope;
use types::{
    ArchiveEntry, ClearedProblem, Ending, LockId, Notice, Observation, ProblemKind, ReadRequest,
    Reading, ScopeId, Settings, Snapshot, Source, Stamp,
};

use owner_names::OwnerNames;
pub use record::{Effect, RestoredLock};
use record::{Record, ScopeContext};

/// The time for which a free lock is retained.
const RETAINED: Duration = Duration::from_secs(600);
/// The longest time between two ticks that counts as waited.
const MAX_TICK: Duration = Duration::from_secs(5);
/// The most ended problems that are remembered.
const MAX_CLEARED: usize = 100;
/// The most notices that are retained.
const MAX_NOTICES: usize = 20;

#[derive(Debug)]
pub struct Model {
    settings: Settings,
    grouping: Grouping,
    scopes: Vec<Scope>,
    /// Clusters by the scopes of their fronts.
    clusters: HashMap<ScopeId, Cluster>,
    snapshot: Snapshot,
    notices: VecDeque<Notice>,
    effects: Vec<(ScopeId, Effect)>,
    totals: Totals,
    ticked: Moment,
    /// The state of an earlier run, of locks that have not been observed again yet.
    restored: HashMap<LockId, RestoredLock>,
    lock_count: usize,
    stale: bool,
    names: OwnerNames,
    /// Problems that have ended, the latest first.
    cleared: VecDeque<ClearedProblem>,
}

impl Model {
    /// Returns an empty model of the given databases, each a deployment's name and a number.
    #[must_use]
    pub fn new(
        settings: Settings,
        grouping: Grouping,
        scopes: &[(Arc<str>, u32)],
        now: Moment,
    ) -> Self {
        let rate = settings.reads_a_second(0);
        let names = OwnerNames::default();
        let scopes = scopes
            .iter()
            .map(|(deployment, db)| {
                Scope::new(Arc::clone(deployment), *db, rate, now, names.clone())
            })
            .collect();
        Self {
            settings,
            grouping,
            scopes,
            clusters: HashMap::new(),
            snapshot: Snapshot::empty(),
            notices: VecDeque::new(),
            effects: Vec::new(),
            totals: Totals::new(now),
            ticked: now,
            restored: HashMap::new(),
            lock_count: 0,
            stale: true,
            names,
            cleared: VecDeque::new(),
        }
    }

    /// Stores the state of an earlier run, for locks that are observed from now on; those with problems are read first. What is
    /// no longer watched has ended unobserved.
    pub fn restore(&mut self, mut restored: HashMap<LockId, RestoredLock>, steady: SteadyMillis) {
        let unwatched = |id: &LockId| self.scope(id).is_none();
        let gone: Vec<_> = restored.extract_if(|id, _| unwatched(id)).collect();
        // Before a scan comes to them, and where it would take them for something else.
        for (id, _) in restored.iter().filter(|(_, lock)| !lock.problems.is_empty()) {
            if let Some(scope) = self.scope(id) {
                self.prioritize(scope, &id.name);
            }
        }
        self.restored = restored;
        self.end_unobserved(ScopeId(0), gone, steady);
    }

    /// Returns the names of owners, which the model keeps current.
    #[must_use]
    pub fn names(&self) -> &OwnerNames {
        &self.names
    }

    /// Applies an observation.
    pub fn observe(&mut self, scope: ScopeId, observation: Observation) {
        let Some(scope) = self.target_scope(scope, &observation) else { return };
        match observation {
            Observation::Read { name, stamp, source, reading } => {
                self.read(scope, &name, stamp, source, &reading);
            }
            Observation::Released { names, at, steady } => self.released(scope, &names, at, steady),
            Observation::KeyChanged { name, expired, at, steady } => {
                self.key_changed(scope, &name, expired, at, steady);
            }
            Observation::CompanionKey { name } => {
                if !self.update(scope, &name, self.ticked, |record, _, _| record.confirm()) {
                    self.prioritize(scope, &name);
                }
            }
            Observation::Connected { connections, at, steady } => {
                self.connected(scope, &connections, at, steady);
            }
            Observation::AgentReport(report) => self.agent_report(scope, report),
            Observation::AgentWaiters(waiters) => self.agent_waiters(scope, &waiters),
            Observation::ForceRelease { name, holders, at } => {
                if let Some(entry) = self.scopes[scope.0].locks.get_mut(&name) {
                    entry.record.forcing(holders, at);
                }
            }
            Observation::Acknowledged { name, problem, acknowledgement, action } => {
                self.update(scope, &name, self.ticked, |record, _, effects| {
                    record.acknowledge(problem, acknowledgement, *action, effects);
                });
            }
            Observation::OperatorActed { name, word, text, steady } => {
                self.update(scope, &name, self.ticked, |record, _, effects| {
                    record.acted(word, text, steady, effects);
                });
                self.prioritize(scope, &name);
            }
            Observation::Traffic(traffic) => self.traffic(scope, &traffic),
            Observation::MonitorActive { on, .. } => {
                self.scopes[scope.0].monitored = on;
                if !on {
                    self.monitor_stopped(scope);
                }
            }
            Observation::PubSubActive { on, at } => {
                self.scopes[scope.0].listening_since = on.then_some(at);
            }
            Observation::ServerUp { at, steady, run_id, cluster } => {
                self.scopes[scope.0].cluster = cluster;
                self.scopes[scope.0].server_up(at, steady, run_id);
            }
            Observation::ServerAddress { address, replica } => {
                self.scopes[scope.0].set_address(address, replica);
            }
            Observation::Databases(with_keys) => {
                let watched: Vec<u32> =
                    self.databases(scope).iter().map(|scope| self.scopes[scope.0].db).collect();
                let elsewhere = with_keys.iter().any(|db| !watched.contains(db));
                self.scopes[scope.0].has_unwatched = elsewhere;
            }
            Observation::Clock { ahead_ms } => self.scopes[scope.0].ahead_ms = ahead_ms,
            Observation::Subscribers { counts, at, steady } => {
                for (name, count) in counts {
                    self.update(scope, &name, at, |record, _, _| {
                        record.count_subscribers(count, at, steady);
                    });
                }
            }
            Observation::ServerDown => self.scopes[scope.0].server_down(),
            Observation::SlotsAssigned(served) => self.assign_slots(scope, &served),
            Observation::ScanEnded { started, steady, skipped } => {
                let passed = &mut self.scopes[scope.0];
                let pass = passed.end_pass(started, skipped);
                self.stale |= pass.changed;
                let whole = match passed.front {
                    Some(front) => self.update_scanned(front).then_some(front),
                    None => pass.is_first.then_some(scope),
                };
                if let Some(scope) = whole.filter(|_| pass.kept_all) {
                    self.end_restored(scope, steady);
                }
            }
        }
    }

    /// Ends the restored holds and problems of locks that no longer exist; their ends were not observed.
    fn end_restored(&mut self, scope_id: ScopeId, steady: SteadyMillis) {
        let scope = &self.scopes[scope_id.0];
        let ours = |id: &LockId| id.deployment == scope.deployment && id.db == scope.db;
        let gone: Vec<_> = self.restored.extract_if(|id, _| ours(id)).collect();
        self.end_unobserved(scope_id, gone, steady);
    }

    /// Ends what an earlier run knew of locks.
    fn end_unobserved(
        &mut self,
        scope_id: ScopeId,
        mut gone: Vec<(LockId, RestoredLock)>,
        steady: SteadyMillis,
    ) {
        gone.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (id, lock) in gone {
            let unseen =
                lock.holds.into_iter().map(|(by, _)| ArchiveEntry::Unseen(id.clone(), by, steady));
            let problems = lock.problems.into_iter();
            let cleared =
                problems.map(|(problem, _)| ArchiveEntry::Cleared(id.clone(), problem, steady));
            let entries = unseen.chain(cleared).map(|entry| Effect::Archive(Box::new(entry)));
            self.effects.extend(entries.map(|effect| (scope_id, effect)));
        }
    }

    fn read(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
    ) {
        if !self.scopes[scope_id.0].locks.contains(name) {
            let new = match reading {
                Reading::Lock { hash, .. } => {
                    let id = self.scopes[scope_id.0].id(name);
                    let known =
                        || self.restored.get(&id).is_some_and(|lock| !lock.holds.is_empty());
                    hash.is_possible_lock() && (hash.unexpected.is_empty() || known())
                }
                // `a` and `{a}` have the same companions: a queue does not prove a second lock.
                Reading::Absent { companions } => {
                    companions.queue.is_some() && !self.has_twin(scope_id, name)
                }
                Reading::Other(_) => false,
            };
            if !new {
                return;
            }
            let is_possible = matches!(
                reading,
                Reading::Lock { ttl: None, companions, .. } if companions.queue.is_none()
            );
            let has_room = match is_possible {
                true => self.make_room_for_possible(scope_id, source),
                false => true,
            };
            if !(has_room && self.admit(scope_id, name, stamp.received)) {
                return;
            }
        }
        let context = self.scopes[scope_id.0].reading_context(name, source);
        self.update(scope_id, name, stamp.received, |record, _, effects| {
            record.read(stamp, source, reading, context, effects);
        });
    }

    /// Returns whether another known lock has the same queue and channel as this name.
    fn has_twin(&self, scope_id: ScopeId, name: &LockName) -> bool {
        let names = keys::locks_of_queue(&keys::queue(name));
        let locks = &self.scopes[scope_id.0].locks;
        names.iter().any(|other| other != name && locks.contains(other))
    }

    /// Changes the record of a lock as of an instant, and does what follows from it. Returns false if the lock is not known.
    fn update(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        now: Moment,
        change: impl FnOnce(&mut Record, ScopeContext, &mut Vec<Effect>),
    ) -> bool {
        let scope = &mut self.scopes[scope_id.0];
        let context = scope.context(name);
        let Some(entry) = scope.locks.get_mut(name) else { return false };
        let mut effects = Vec::new();
        change(&mut entry.record, context, &mut effects);
        self.route_effects(scope_id, name, now, effects);
        self.settle(scope_id, name);
        true
    }

    /// Adds counts to the totals, and queues all other effects for metrics and history.
    fn route_effects(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        now: Moment,
        effects: Vec<Effect>,
    ) {
        let scope = &mut self.scopes[scope_id.0];
        for effect in effects {
            match &effect {
                Effect::Detected(_, _, group) => {
                    self.totals.add_problem(now, &scope.deployment, group);
                }
                Effect::LostInRestart => scope.count_lost(),
                _ => {}
            }
            let Effect::Count(source, count) = effect else {
                self.effects.push((scope_id, effect));
                continue;
            };
            // While MONITOR shows all traffic, it alone counts acquisitions.
            let counted_twice =
                count == Count::Acquired && scope.monitored && source != Source::Monitor;
            if let Some(entry) = scope.locks.get(name).filter(|_| !counted_twice) {
                self.totals.add(now, entry.record.id(), entry.record.group(), count);
            }
        }
    }

    /// Applies a release message of a server, which does not say in which database the lock is: likeliest where it is held,
    /// else where it is known.
    fn released(&mut self, scope: ScopeId, names: &[LockName], at: Moment, steady: SteadyMillis) {
        let databases = self.databases(scope);
        if databases.len() < 2 {
            let elsewhere = self.scopes[scope.0].has_unwatched;
            return self.released_in(scope, names, at, steady, elsewhere);
        }
        let of = |model: &Self, fits: fn(&LockEntry) -> bool| -> Vec<ScopeId> {
            let locks = |scope: &ScopeId| &model.scopes[scope.0].locks;
            let fits = |scope: &ScopeId, name| locks(scope).get(name).is_some_and(fits);
            let any = |scope: &ScopeId| names.iter().any(|name| fits(scope, name));
            databases.iter().copied().filter(any).collect()
        };
        let held = of(self, |lock| lock.record.is_held());
        let places = if held.is_empty() { of(self, |_| true) } else { held };
        let in_doubt = places.len() > 1 || self.scopes[scope.0].has_unwatched;
        for place in &places {
            self.released_in(*place, names, at, steady, in_doubt);
        }
        if places.is_empty() {
            for (scope, name) in
                databases.iter().flat_map(|it| names.iter().map(|name| (*it, name)))
            {
                self.prioritize(scope, name);
            }
        }
    }

    /// Applies a release message that is about locks in this database; in doubt, the next reading decides.
    fn released_in(
        &mut self,
        scope: ScopeId,
        names: &[LockName],
        at: Moment,
        steady: SteadyMillis,
        in_doubt: bool,
    ) {
        let known = |name: &&LockName| self.scopes[self.home(scope, name).0].locks.contains(name);
        let candidates = names.iter().filter(known).count();
        // Locks share a channel if their names differ by braces only.
        let in_doubt = in_doubt || candidates > 1;
        if candidates == 0
            && let Some(first) = names.first()
        {
            self.admit(self.home(scope, first), first, at);
        }
        for name in names {
            let scope = self.home(scope, name);
            self.update(scope, name, at, |record, _, effects| {
                if in_doubt {
                    record.may_be_released(at, steady, effects);
                } else {
                    record.released(at, steady, Source::Channels, Ending::Released, effects);
                }
            });
            self.prioritize(scope, name);
        }
    }

    /// Applies a notification of a changed key; the next reading shows its new content.
    fn key_changed(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        expired: bool,
        at: Moment,
        steady: SteadyMillis,
    ) {
        let known = self.update(scope_id, name, at, |record, context, effects| {
            record.on_key_changed();
            if expired {
                record.on_key_expired(at, steady, context, effects);
            }
        });
        // Most keys that expire are not locks.
        if known {
            self.prioritize(scope_id, name);
        }
    }

    /// Evicts locks that have been free for long, adds up waiting times, concludes restarts, and searches for deadlocks.
    pub fn tick(&mut self, now: Moment) {
        self.count_waiting(now);
        for index in 0..self.scopes.len() {
            let scope_id = ScopeId(index);
            let scope = &mut self.scopes[index];
            scope.schedule.set_rate(self.settings.reads_a_second(scope.locks.len()));
            let scope = &self.scopes[index];
            let old =
                scope.locks.free().iter().take_while(|(since, _)| now.since(*since) > RETAINED);
            // Locks with problems stay: they are few, and bounded with the rest.
            let old = old.filter(|(_, name)| {
                scope.locks.get(name).is_none_or(|entry| !entry.record.has_problems())
            });
            let old: Vec<LockName> = old.map(|(_, name)| name.clone()).collect();
            for name in old {
                self.evict(scope_id, &name);
            }
            let scope = &mut self.scopes[index];
            if let Some((at, text)) = scope.conclude_restart() {
                let deployment = scope.deployment.to_string();
                self.notice(at, deployment, text);
            }
        }
        self.detect_deadlocks();
    }

    /// Adds up the waiting time of all locks.
    fn count_waiting(&mut self, now: Moment) {
        // Nothing is known about waiters during a pause of this program.
        let passed = now.since(self.ticked).min(MAX_TICK);
        self.ticked = self.ticked.max(now);
        for scope in self.scopes.iter().filter(|scope| scope.is_readable()) {
            for entry in scope.locks.awaited() {
                let waiters = u32::try_from(entry.record.waiting_at_least()).unwrap_or(u32::MAX);
                let waited = Count::Waiting(passed.saturating_mul(waiters));
                self.totals.add(now, entry.record.id(), entry.record.group(), waited);
            }
        }
    }

    /// Returns the acquisitions, holds and waits of the last hour.
    pub fn contention(&mut self, now: Moment, steady: SteadyMillis) -> Contention {
        self.totals.view(now, steady)
    }

    /// Ends the acknowledgements that have expired.
    pub fn end_acknowledgements(&mut self, steady: SteadyMillis) {
        for scope_id in (0..self.scopes.len()).map(ScopeId) {
            let names: Vec<LockName> =
                self.scopes[scope_id.0].locks.acknowledged().iter().cloned().collect();
            for name in names {
                let scope = &mut self.scopes[scope_id.0];
                let Some(entry) = scope.locks.get_mut(&name) else { continue };
                let mut effects = Vec::new();
                entry.record.end_acknowledgements(steady, &mut effects);
                if !effects.is_empty() {
                    self.effects.extend(effects.into_iter().map(|effect| (scope_id, effect)));
                    self.settle(scope_id, &name);
                }
            }
        }
    }

    fn notice(&mut self, at: SteadyMillis, deployment: String, text: String) {
        self.notices.push_front(Notice { at, deployment, text });
        self.notices.truncate(MAX_NOTICES);
        self.stale = true;
    }

    /// Schedules a read of the lock as soon as possible, known or not. Returns false if too many are scheduled already.
    pub fn prioritize(&mut self, scope: ScopeId, name: &LockName) -> bool {
        let scope = self.home(scope, name);
        self.scopes[scope.0].schedule.prioritize(name)
    }

    /// Schedules a read for which a request waits, as soon as possible. Returns false if too many are scheduled already.
    pub fn request(&mut self, scope: ScopeId, name: &LockName) -> bool {
        let scope = self.home(scope, name);
        self.scopes[scope.0].schedule.request(name)
    }

    /// Sets the locks that open pages show.
    pub fn set_viewed(&mut self, scope: ScopeId, names: impl IntoIterator<Item = LockName>) {
        self.scopes[scope.0].schedule.set_viewed(names);
    }

    /// Returns the locks of a scope to read now, at most `max`; none while it cannot be read.
    pub fn due(&mut self, scope: ScopeId, now: Moment, max: usize) -> Vec<ReadRequest> {
        self.scopes[scope.0].due(now, max)
    }

    #[must_use]
    pub fn is_readable(&self, scope: ScopeId) -> bool {
        self.scopes[scope.0].is_readable()
    }

    /// Returns the delay with which known locks of a scope are read.
    #[must_use]
    pub fn lag(&self, scope: ScopeId, now: Moment) -> Duration {
        self.scopes[scope.0].schedule.lag(now)
    }

    /// Returns the scope of a lock, if its database is watched; in a cluster that of its node.
    #[must_use]
    pub fn scope(&self, id: &LockId) -> Option<ScopeId> {
        let found = |scope: &Scope| scope.deployment == id.deployment && scope.db == id.db;
        let front = self.scopes.iter().position(found).map(ScopeId)?;
        Some(self.home(front, &id.name))
    }

    #[must_use]
    pub fn deployment(&self, scope: ScopeId) -> &Arc<str> {
        &self.scopes[scope.0].deployment
    }

    /// Returns the effects since the last call.
    pub fn take_effects(&mut self) -> Vec<(ScopeId, Effect)> {
        let effects = std::mem::take(&mut self.effects);
        for (_, effect) in &effects {
            if let Effect::Archive(entry) = effect
                && let ArchiveEntry::Cleared(lock, problem, at) = &**entry
            {
                self.remember_cleared(lock, *problem, *at);
            }
        }
        effects
    }

    /// Remembers that a problem has ended. One that comes and goes is remembered once.
    fn remember_cleared(&mut self, lock: &LockId, problem: ProblemKind, at: SteadyMillis) {
        let known = self.cleared.iter().position(|c| c.problem == problem && c.lock == *lock);
        let known = known.and_then(|known| self.cleared.remove(known));
        let times = known.map_or(0, |known| known.times).saturating_add(1);
        self.cleared.push_front(ClearedProblem { lock: lock.clone(), problem, at, times });
        self.cleared.truncate(MAX_CLEARED);
        self.snapshot.cleared = self.cleared.iter().cloned().collect();
        self.stale = true;
    }
}
