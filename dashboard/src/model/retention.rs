//! The admission and eviction of locks.

use std::sync::Arc;

use redisson::LockName;
use redisson::group::glob_matches;

use super::Model;
use super::lock_table::LockEntry;
use super::record::Record;
use crate::clock::Time;
use crate::model::types::{ScopeId, Source};

/// The maximum number of free locks that are retained in one scope.
pub(super) const MAX_FREE: usize = 10_000;

impl Model {
    /// Creates the record of a new lock that this source has reported. Returns false if it is ignored, or there is no room.
    pub(super) fn admit(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        source: Source,
        now: Time,
    ) -> bool {
        let bytes = name.as_bytes();
        if self.settings.ignore.iter().any(|glob| glob_matches(glob, bytes)) {
            return false;
        }
        if self.lock_count >= self.settings.max_locks
            && !self.evict_oldest_free(scope_id)
            && !self.evict_possible(scope_id)
        {
            // A scan reports each lock once.
            if source == Source::Scan {
                self.scopes[scope_id.0].refuse();
            }
            return false;
        }
        let rule = self.settings.rules.iter().find(|rule| glob_matches(&rule.pattern, bytes));
        let rule = rule.map_or(&self.settings.usual, |rule| &rule.rule);
        let group = self.grouping.label(name);
        let id = self.scopes[scope_id.0].id(name);
        let mut record = Record::new(id.clone(), group, Arc::clone(rule), now);
        if let Some(restored) = self.take_earlier(&id) {
            record.restore(restored, now);
        }
        self.scopes[scope_id.0].locks.insert(name.clone(), LockEntry::new(record));
        self.lock_count += 1;
        true
    }

    /// Returns whether a possible lock may be added. A lock that another source than the scan has reported replaces an
    /// existing one. Of those that only the scan has found, the first ones are retained.
    pub(super) fn make_room_for_possible(&mut self, scope_id: ScopeId, source: Source) -> bool {
        let scope = &mut self.scopes[scope_id.0];
        if scope.locks.possible().len() < self.settings.max_possible() {
            return true;
        }
        if source == Source::Scan {
            scope.refuse_possible();
            return false;
        }
        self.evict_possible(scope_id)
    }

    /// Updates schedule and indexes after a lock's record has changed.
    pub(super) fn settle(&mut self, scope_id: ScopeId, name: &LockName) {
        let scope = &mut self.scopes[scope_id.0];
        // Problems of a free lock are reported as long as they last, within bounds.
        if !scope.settle(name) {
            self.evict(scope_id, name);
        } else if scope.locks.free().len() > MAX_FREE {
            self.evict_oldest_free(scope_id);
        }
    }

    /// Evicts the lock that has been free for the longest; one in trouble only if there is no other. Returns false if no
    /// lock is free.
    fn evict_oldest_free(&mut self, scope: ScopeId) -> bool {
        let oldest = self.scopes[scope.0].locks.free().first().cloned();
        oldest.map(|name| self.evict(scope, &name)).is_some()
    }

    fn evict_possible(&mut self, scope: ScopeId) -> bool {
        let one = self.scopes[scope.0].locks.possible().first().cloned();
        one.map(|name| self.evict(scope, &name)).is_some()
    }

    pub(super) fn evict(&mut self, scope_id: ScopeId, name: &LockName) {
        let scope = &mut self.scopes[scope_id.0];
        let Some(mut entry) = scope.locks.remove(name) else { return };
        self.lock_count -= 1;
        let mut effects = Vec::new();
        entry.record.clear_all(&mut effects);
        self.effects.extend(effects.into_iter().map(|effect| (scope_id, effect)));
    }
}
