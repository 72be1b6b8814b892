//! Retention: admission and eviction of locks, and the indexes that depend on them.

use std::sync::Arc;

use redisson::group::glob_matches;
use redisson::{LockName, Moment};

use super::Model;
use super::record::Record;
use super::scope::LockEntry;
use crate::model::types::{ScopeId, Source};

/// The most free locks that are retained in one scope.
pub(super) const MAX_FREE: usize = 10_000;

/// The age at which a view that does not age by itself is replaced after a reading without changes.
const REFRESH_MS: u64 = 2_000;

impl Model {
    /// Creates the record of a new lock. Returns false if it is ignored, or there is no room.
    pub(super) fn admit(&mut self, scope_id: ScopeId, name: &LockName, now: Moment) -> bool {
        let bytes = name.as_bytes();
        if self.settings.ignore.iter().any(|glob| glob_matches(glob, bytes)) {
            return false;
        }
        if self.lock_count >= self.settings.max_locks
            && !self.evict_oldest_free(scope_id)
            && !self.evict_possible(scope_id)
        {
            self.scopes[scope_id.0].refused += 1;
            return false;
        }
        let rule = self.settings.rules.iter().find(|rule| glob_matches(&rule.pattern, bytes));
        let rule = rule.map_or(&self.settings.usual, |rule| &rule.rule);
        let group = self.grouping.label(name);
        let scope = &mut self.scopes[scope_id.0];
        let mut record = Record::new(scope.id(name), group, Arc::clone(rule), now);
        if let Some(restored) = self.restored.remove(&scope.id(name)) {
            if !restored.acknowledged.is_empty() {
                scope.acknowledged.insert(name.clone());
            }
            record.restore(restored);
        }
        let entry =
            Box::new(LockEntry { record, published: None, clients: 0, free: None, due: None });
        scope.locks.insert(name.clone(), entry);
        self.lock_count += 1;
        true
    }

    /// Returns whether a possible lock may be added. One that something has pointed out replaces another; of those that
    /// merely the scan has met only the first ones are kept.
    pub(super) fn make_room_for_possible(&mut self, scope_id: ScopeId, source: Source) -> bool {
        let scope = &mut self.scopes[scope_id.0];
        if scope.possible.len() < self.settings.max_possible() {
            return true;
        }
        if source == Source::Scan {
            scope.possible_refused += 1;
            return false;
        }
        self.evict_possible(scope_id)
    }

    /// Updates schedule and indexes after a lock's record has changed.
    pub(super) fn settle(&mut self, scope_id: ScopeId, name: &LockName) {
        let scope = &mut self.scopes[scope_id.0];
        let Some(entry) = scope.locks.get_mut(name) else { return };
        if !entry.record.is_retained() {
            self.evict(scope_id, name);
            return;
        }
        if entry.record.is_confirmed() {
            let next = entry.record.next_read();
            if entry.record.needs_close_reads() {
                scope.schedule.set_close(&mut entry.due, name, next);
            } else {
                scope.schedule.set(&mut entry.due, name, next);
            }
            scope.possible.remove(name);
        } else {
            scope.schedule.set_possible(&mut entry.due, name, entry.record.next_read());
            scope.possible.insert(name.clone());
        }
        if entry.record.has_named_waiters() {
            scope.contended.insert(name.clone());
        } else if !entry.record.is_in_cycle() {
            scope.contended.remove(name);
        }
        if entry.record.is_awaited() {
            scope.awaited.insert(name.clone());
        } else {
            scope.awaited.remove(name);
        }
        // Problems of a free lock are reported for as long as they last, within bounds.
        let free = (!entry.record.is_held()).then(|| entry.record.free_since());
        if entry.free != free {
            if let Some(before) = std::mem::replace(&mut entry.free, free) {
                scope.free.remove(&(before, name.clone()));
            }
            if let Some(free) = free {
                scope.free.insert((free, name.clone()));
            }
        }
        let (since, clients) = (scope.readable_since, scope.clients.version());
        let current = entry
            .published
            .as_ref()
            .filter(|view| entry.clients == clients && entry.record.is_view_current(view, since));
        let observed = entry.record.observed_at();
        match current {
            // Open pages compute ages from the last reading that they received. A marker's time is as of its view.
            Some(view) if scope.schedule.is_viewed(name) || view.has_marker_times() => {
                if observed.millis_since(view.observed_at()) >= REFRESH_MS {
                    scope.dirty.insert(name.clone());
                }
            }
            Some(view) => view.observed.again(observed),
            None => {
                scope.dirty.insert(name.clone());
            }
        }
        if scope.free.len() > MAX_FREE {
            self.evict_oldest_free(scope_id);
        }
    }

    fn evict_oldest_free(&mut self, scope: ScopeId) -> bool {
        let oldest = self.scopes[scope.0].free.first().map(|(_, name)| name.clone());
        oldest.map(|name| self.evict(scope, &name)).is_some()
    }

    fn evict_possible(&mut self, scope: ScopeId) -> bool {
        let one = self.scopes[scope.0].possible.first().cloned();
        one.map(|name| self.evict(scope, &name)).is_some()
    }

    pub(super) fn evict(&mut self, scope_id: ScopeId, name: &LockName) {
        let scope = &mut self.scopes[scope_id.0];
        let Some(mut entry) = scope.locks.remove(name) else { return };
        self.lock_count -= 1;
        let mut effects = Vec::new();
        entry.record.clear_all(&mut effects);
        self.effects.extend(effects.into_iter().map(|effect| (scope_id, effect)));
        if let Some(free) = entry.free {
            scope.free.remove(&(free, name.clone()));
        }
        scope.possible.remove(name);
        scope.contended.remove(name);
        scope.awaited.remove(name);
        scope.acknowledged.remove(name);
        scope.dirty.remove(name);
        if entry.published.is_some() {
            let id = scope.id(name);
            scope.removed.push(id);
        }
    }
}
