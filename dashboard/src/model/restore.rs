//! The state of an earlier run of this program.

use std::collections::HashMap;

use redisson::LockName;

use super::Model;
use super::record::{Effect, RestoredLock};
use crate::clock::{SteadyMillis, Time};
use crate::model::types::{ArchiveEntry, LockId, ScopeId, Source};

/// The maximum number of locks of an earlier run that are read after a scan which did not show whether they exist.
const MAX_READ: usize = 1_000;

impl Model {
    /// Stores the state of an earlier run, for locks that are observed from now on. Locks with problems are read first.
    /// The holds of a lock that is no longer watched ended unobserved.
    pub fn restore(&mut self, mut restored: HashMap<LockId, RestoredLock>, steady: SteadyMillis) {
        let unwatched = |id: &LockId| self.scope(id).is_none();
        let gone: Vec<_> = restored.extract_if(|id, _| unwatched(id)).collect();
        // They are read before a scan reaches them, even if the scan would not recognize them as locks.
        for (id, _) in restored.iter().filter(|(_, lock)| !lock.problems.is_empty()) {
            if let Some(scope) = self.scope(id) {
                self.prioritize(scope, &id.name);
            }
        }
        self.restored = restored;
        self.end_unobserved(ScopeId(0), gone, steady);
    }

    /// Ends the restored holds and problems of locks that no longer exist; their ends were not observed. Some problems
    /// are reported although the lock does not exist, so such a lock is read first.
    pub(super) fn end_restored(&mut self, scope_id: ScopeId, now: Time) {
        let scope = &self.scopes[scope_id.0];
        let ours = |id: &LockId| id.deployment == scope.deployment && id.db == scope.db;
        let reported =
            self.restored.iter().filter(|(id, lock)| ours(id) && lock.is_reported_when_free());
        let mut reported: Vec<LockId> = reported.map(|(id, _)| id.clone()).collect();
        reported.sort_unstable();
        for LockId { name, .. } in reported {
            let home = self.home(scope_id, &name);
            if self.admit(home, &name, Source::Poll, now) {
                self.settle(home, &name);
            }
        }
        let scope = &self.scopes[scope_id.0];
        let ours = |id: &LockId| id.deployment == scope.deployment && id.db == scope.db;
        let gone: Vec<_> = self.restored.extract_if(|id, _| ours(id)).collect();
        self.restored.shrink_to_fit();
        self.end_unobserved(scope_id, gone, now.steady());
    }

    /// Takes the state of a lock in an earlier run, if it has not been taken yet.
    pub(super) fn take_earlier(&mut self, id: &LockId) -> Option<RestoredLock> {
        let taken = self.restored.remove(id);
        if self.restored.is_empty() {
            // Frees its memory, which removals do not.
            self.restored = HashMap::new();
        }
        taken
    }

    /// Reads some of the locks that an earlier run knew and that a scan has not shown, although they may exist. Those with
    /// holds or problems come first.
    pub(super) fn read_restored(&mut self, scope_id: ScopeId) {
        let scope = &self.scopes[scope_id.0];
        // Otherwise those that exist would be read again after each scan.
        if self.restored.is_empty() || scope.refused().locks > 0 {
            return;
        }
        let ours = |id: &LockId| {
            id.deployment == scope.deployment
                && id.db == scope.db
                && self.home(scope_id, &id.name) == scope_id
        };
        let lasts = |lock: &RestoredLock| !(lock.holds.is_empty() && lock.problems.is_empty());
        let some = |lasting: bool| {
            let all = self.restored.iter();
            all.filter(move |(id, lock)| lasts(lock) == lasting && ours(id)).map(|(id, _)| &id.name)
        };
        let names = some(true).chain(some(false)).take(MAX_READ).cloned();
        for name in names.collect::<Vec<_>>() {
            self.prioritize(scope_id, &name);
        }
    }

    /// Ends the holds and problems of a lock that an earlier run knew, since a reading shows that it does not exist, or that its
    /// key is something else.
    pub(super) fn end_absent(&mut self, scope_id: ScopeId, name: &LockName, at: SteadyMillis) {
        if self.restored.is_empty() {
            return;
        }
        let id = self.scopes[scope_id.0].id(name);
        // Such a problem lasts although the lock does not exist.
        let is_over = |lock: &RestoredLock| !lock.is_reported_when_free();
        if self.restored.get(&id).is_some_and(is_over) {
            let gone = self.take_earlier(&id).map(|lock| (id, lock));
            self.end_unobserved(scope_id, gone.into_iter().collect(), at);
        }
    }

    /// Ends the holds and problems of locks that an earlier run knew.
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
}
