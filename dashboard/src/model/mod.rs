//! The model: the current state of every lock.
//!
//! [`Model`] is pure: it takes observations with their instants, and produces snapshots and deltas. One task owns it, see
//! [`actor`]; all other tasks read the snapshots that it publishes.
//!
//! An observation of one lock changes its [`record`]. Observations of several locks are handled in `correlate`.
//! `retention` decides which locks have a record, [`schedule`] when each is read again, and `publish` what the next
//! snapshot contains.

pub mod actor;
pub mod clients;
mod cluster;
pub mod contention;
mod correlate;
mod deadlines;
pub mod deadlock;
pub mod lease;
mod lock_table;
mod observe;
pub mod owner_names;
pub mod problem;
mod publish;
pub mod record;
mod red;
mod restore;
mod retention;
pub mod schedule;
mod scope;
mod silence;
#[cfg(test)]
mod tests;
pub mod types;
pub mod waiting;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redisson::{Grouping, LockName, Moment};

use crate::clock::{SteadyMillis, Time};
use clients::Clients;
use cluster::Cluster;
use contention::{Contention, Count, Totals};
use scope::Scope;
use types::{
    ArchiveEntry, ClearedProblem, LockId, Notice, ProblemKind, ReadRequest, ScopeId, Settings,
    Snapshot, Source,
};

use owner_names::OwnerNames;
pub use record::{Effect, RestoredLock};
use record::{Record, ScopeContext};

/// The time for which a free lock is retained.
const RETAINED: Duration = Duration::from_secs(600);
/// The longest time between two ticks that counts as passed.
const MAX_TICK: Duration = Duration::from_secs(5);
/// The maximum number of ended problems that are remembered.
const MAX_CLEARED: usize = 100;
/// The maximum number of notices that are retained.
const MAX_NOTICES: usize = 20;

#[derive(Debug)]
pub struct Model {
    settings: Settings,
    grouping: Grouping,
    scopes: Vec<Scope>,
    /// The clusters by the scopes of their fronts.
    clusters: HashMap<ScopeId, Cluster>,
    snapshot: Snapshot,
    notices: VecDeque<Notice>,
    effects: Vec<(ScopeId, Effect)>,
    totals: Totals,
    ticked: Moment,
    /// The state of an earlier run, for locks that have not been observed again yet.
    restored: HashMap<LockId, RestoredLock>,
    /// The number of records in all scopes.
    lock_count: usize,
    /// The published snapshot is outdated, even if no lock has changed.
    stale: bool,
    names: OwnerNames,
    /// The problems that have ended, latest first.
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

    /// Returns the names of owners, which the model keeps current.
    #[must_use]
    pub fn names(&self) -> &OwnerNames {
        &self.names
    }

    /// Changes the record of a lock as of an instant, and applies the consequences. Returns false if the lock is not
    /// known.
    fn update(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        now: impl Into<Moment>,
        change: impl FnOnce(&mut Record, ScopeContext, &mut Vec<Effect>),
    ) -> bool {
        self.update_among(scope_id, name, now, |record, _, context, effects| {
            change(record, context, effects);
        })
    }

    /// Changes the record of a lock like [`Self::update`], with knowledge of its clients.
    fn update_among(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        now: impl Into<Moment>,
        change: impl FnOnce(&mut Record, &Clients, ScopeContext, &mut Vec<Effect>),
    ) -> bool {
        let scope = &mut self.scopes[scope_id.0];
        let context = scope.context(name);
        let Some(entry) = scope.locks.get_mut(name) else { return false };
        let mut effects = Vec::new();
        change(&mut entry.record, &scope.clients, context, &mut effects);
        self.route_effects(scope_id, name, now.into(), effects);
        self.settle(scope_id, name);
        true
    }

    /// Adds counts to the totals and to the losses of a restart, and queues all other effects for metrics and history.
    fn route_effects(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        now: Moment,
        effects: Vec<Effect>,
    ) {
        for effect in effects {
            let repeats = match &effect {
                Effect::Detected(problem, ..) => self.is_shown_elsewhere(scope_id, name, *problem),
                _ => false,
            };
            if repeats {
                continue;
            }
            let scope = &mut self.scopes[scope_id.0];
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
            // While MONITOR shows all traffic, only its acquisitions are counted.
            let counted_twice = count == Count::Acquired
                && scope.monitored_since.is_some()
                && source != Source::Monitor;
            if let Some(entry) = scope.locks.get(name).filter(|_| !counted_twice) {
                self.totals.add(now, entry.record.id(), entry.record.group(), &count);
            }
        }
    }

    /// Evicts locks that have been free for a long time, adds up waiting times, concludes restarts, and searches for
    /// deadlocks.
    pub fn tick(&mut self, now: Moment) {
        // Nothing is known about the time in which this program was paused.
        let passed = now.since(self.ticked).min(MAX_TICK);
        self.ticked = self.ticked.max(now);
        self.count_waiting(passed, now);
        self.forget_unreported(passed, now);
        for index in 0..self.scopes.len() {
            let scope_id = ScopeId(index);
            let scope = &mut self.scopes[index];
            scope.schedule.set_rate(self.settings.reads_a_second(scope.locks.len()));
            let scope = &self.scopes[index];
            // Locks with problems are retained: they are few, and are bounded together with the others.
            let old = scope.locks.free().older_than(RETAINED, now).filter(|name| {
                scope.locks.get(name).is_none_or(|entry| !entry.record.has_problems())
            });
            let old: Vec<LockName> = old.cloned().collect();
            for name in old {
                self.evict(scope_id, &name);
            }
            let scope = &mut self.scopes[index];
            if let Some((at, text)) = scope.conclude_restart() {
                let deployment = scope.deployment.to_string();
                self.notice(at, deployment, text);
            }
        }
        self.detect_deadlocks(now);
    }

    /// Adds up the waiting time of all locks.
    fn count_waiting(&mut self, passed: Duration, now: Moment) {
        for scope in self.scopes.iter().filter(|scope| scope.is_readable()) {
            for entry in scope.locks.awaited() {
                let waiters = u32::try_from(entry.record.waiter_count().0).unwrap_or(u32::MAX);
                let waited = Count::Waiting(passed.saturating_mul(waiters));
                self.totals.add(now, entry.record.id(), entry.record.group(), &waited);
            }
        }
    }

    /// Returns the acquisitions, holds and waits of the last hour.
    pub fn contention(&mut self, now: Time) -> Contention {
        self.totals.view(now)
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

    /// Schedules a read for a waiting request, as soon as possible. Returns false if too many are scheduled already.
    pub fn request(&mut self, scope: ScopeId, name: &LockName) -> bool {
        let scope = self.home(scope, name);
        self.scopes[scope.0].schedule.request(name)
    }

    /// Sets the locks that open pages show.
    pub fn set_viewed(&mut self, scope: ScopeId, names: impl IntoIterator<Item = LockName>) {
        self.scopes[scope.0].schedule.set_viewed(names);
    }

    /// Returns the locks of a scope to read now, at most `max`, or none while the scope cannot be read.
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

    /// Returns the scope of a lock if its database is watched. In a cluster, this is the scope of its node.
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

    /// Remembers that a problem has ended. A problem that comes and goes is remembered once.
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
