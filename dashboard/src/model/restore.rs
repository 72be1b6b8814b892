//! The state of an earlier run of this program.

use std::collections::HashMap;

use super::Model;
use super::record::{Effect, RestoredLock};
use crate::clock::{SteadyMillis, Time};
use crate::model::types::{ArchiveEntry, LockId, ScopeId};

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
            if self.admit(home, &name, now) {
                self.settle(home, &name);
            }
        }
        let scope = &self.scopes[scope_id.0];
        let ours = |id: &LockId| id.deployment == scope.deployment && id.db == scope.db;
        let gone: Vec<_> = self.restored.extract_if(|id, _| ours(id)).collect();
        self.end_unobserved(scope_id, gone, now.steady());
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
