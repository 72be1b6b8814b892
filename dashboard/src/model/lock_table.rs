//! The known locks of a scope, with indexes of those that need attention.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redisson::{LockName, Moment};
use service_kit::memory::Trim as _;

use super::deadlines::{Due, Locks};
use super::record::Record;
use crate::model::types::LockView;

/// A lock's record and its published view.
#[derive(Debug)]
pub(super) struct LockEntry {
    pub(super) record: Record,
    pub(super) published: Option<Arc<LockView>>,
    /// The version of the clients that the published view shows.
    pub(super) clients: u64,
    pub(super) due: Option<Due>,
    /// The key of the lock in the index of free locks.
    free: Option<Moment>,
}

impl LockEntry {
    pub(super) fn new(record: Record) -> Self {
        Self { record, published: None, clients: 0, due: None, free: None }
    }
}

/// The free locks of a scope, each part in the order in which they became free.
#[derive(Debug, Default)]
pub(super) struct FreeLocks {
    sound: BTreeSet<(Moment, LockName)>,
    in_trouble: BTreeSet<(Moment, LockName)>,
}

impl FreeLocks {
    /// Moves a lock from its place, if it was free since `before`, to that of a lock that is free since `now`, if any.
    fn update(
        &mut self,
        name: &LockName,
        before: Option<Moment>,
        now: Option<Moment>,
        in_trouble: bool,
    ) {
        if before == now && !in_trouble && self.in_trouble.is_empty() {
            return;
        }
        if let Some(before) = before {
            let key = (before, name.clone());
            if now == Some(before) && self.in_trouble.contains(&key) == in_trouble {
                return;
            }
            if !self.sound.remove(&key) {
                self.in_trouble.remove(&key);
            }
        }
        if let Some(now) = now {
            let part = if in_trouble { &mut self.in_trouble } else { &mut self.sound };
            part.insert((now, name.clone()));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sound.len() + self.in_trouble.len()
    }

    /// Returns the lock that has been free for the longest; one in trouble only if there is no other.
    pub(super) fn first(&self) -> Option<&LockName> {
        self.sound.first().or_else(|| self.in_trouble.first()).map(|(_, name)| name)
    }

    /// Returns the locks that have been free for longer than `age`.
    pub(super) fn older_than(&self, age: Duration, now: Moment) -> impl Iterator<Item = &LockName> {
        [&self.sound, &self.in_trouble].into_iter().flat_map(move |part| {
            part.iter().take_while(move |(at, _)| now.since(*at) > age).map(|(_, name)| name)
        })
    }
}

/// The locks of a scope by name.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    /// The entries are boxed, since the map has room for nearly twice as many after it has grown.
    entries: HashMap<LockName, Box<LockEntry>>,
    free: FreeLocks,
    awaited: HashSet<LockName>,
    /// The set is sorted, like `changed`, so that the same input gives the same output.
    with_named_waiters: BTreeSet<LockName>,
    acknowledged: HashSet<LockName>,
    possible: BTreeSet<LockName>,
    changed: BTreeSet<LockName>,
    removed: Vec<LockName>,
}

impl LockTable {
    pub(super) fn contains(&self, name: &LockName) -> bool {
        self.entries.contains_key(name)
    }

    pub(super) fn get(&self, name: &LockName) -> Option<&LockEntry> {
        self.entries.get(name).map(|entry| &**entry)
    }

    /// Returns a lock. After a change of its record, [`update_indexes`](Self::update_indexes) must be called.
    pub(super) fn get_mut(&mut self, name: &LockName) -> Option<&mut LockEntry> {
        self.entries.get_mut(name).map(|entry| &mut **entry)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &LockName> {
        self.entries.keys()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&LockName, &LockEntry)> {
        self.entries.iter().map(|(name, entry)| (name, &**entry))
    }

    /// Returns all locks. After a change of a record, [`update_indexes`](Self::update_indexes) must be called.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&LockName, &mut LockEntry)> {
        self.entries.iter_mut().map(|(name, entry)| (name, &mut **entry))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the table has no locks, including locks that the next snapshot drops.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.removed.is_empty()
    }

    pub(super) fn insert(&mut self, name: LockName, entry: LockEntry) {
        self.entries.insert(name, Box::new(entry));
    }

    /// Removes a lock permanently. If it is published, the next snapshot drops it.
    pub(super) fn remove(&mut self, name: &LockName) -> Option<LockEntry> {
        let entry = self.move_out(name)?;
        if entry.published.is_some() {
            self.removed.push(name.clone());
        }
        Some(entry)
    }

    /// Removes a lock that moves to another table. It remains published, and is not scheduled.
    pub(super) fn move_out(&mut self, name: &LockName) -> Option<LockEntry> {
        let mut entry = *self.entries.remove(name)?;
        self.entries.trim();
        entry.due = None;
        self.free.update(name, entry.free.take(), None, false);
        self.possible.remove(name);
        self.with_named_waiters.remove(name);
        if self.awaited.remove(name) {
            self.awaited.trim();
        }
        self.acknowledged.remove(name);
        self.changed.remove(name);
        Some(entry)
    }

    /// Updates the indexes after a lock's record has changed.
    pub(super) fn update_indexes(&mut self, name: &LockName) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let record = &entry.record;
        if record.is_confirmed() {
            self.possible.remove(name);
        } else {
            self.possible.insert(name.clone());
        }
        if record.has_named_waiters() {
            self.with_named_waiters.insert(name.clone());
        } else if record.cycle().is_none() {
            self.with_named_waiters.remove(name);
        }
        if record.is_awaited() {
            self.awaited.insert(name.clone());
        } else if self.awaited.remove(name) {
            self.awaited.trim();
        }
        if record.has_acknowledgements() {
            self.acknowledged.insert(name.clone());
        } else {
            self.acknowledged.remove(name);
        }
        let free = (!record.is_held()).then(|| record.free_since());
        let in_trouble = record.is_in_trouble();
        self.free.update(name, std::mem::replace(&mut entry.free, free), free, in_trouble);
    }

    /// Marks a lock, so that the next snapshot contains a new view of it.
    pub(super) fn mark_changed(&mut self, name: &LockName) {
        if self.contains(name) {
            self.changed.insert(name.clone());
        }
    }

    /// Marks all locks, so that the next snapshots contain new views of them.
    pub(super) fn mark_all_changed(&mut self) {
        self.changed.extend(self.entries.keys().cloned());
    }

    /// Unmarks up to `max` locks and returns them.
    pub(super) fn take_changed(&mut self, max: usize) -> Vec<LockName> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(name) = self.changed.pop_first()
        {
            taken.push(name);
        }
        taken
    }

    /// Returns the published locks that have been removed since the last call.
    pub(super) fn take_removed(&mut self) -> Vec<LockName> {
        std::mem::take(&mut self.removed)
    }

    pub(super) fn free(&self) -> &FreeLocks {
        &self.free
    }

    /// Returns the locks with waiters.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &LockEntry> {
        self.awaited.iter().filter_map(|name| self.get(name))
    }

    /// Returns the locks with waiters known by name, or in a deadlock. Deadlocks are searched among these.
    pub(super) fn with_named_waiters(&self) -> &BTreeSet<LockName> {
        &self.with_named_waiters
    }

    /// Returns the locks with acknowledged problems.
    pub(super) fn acknowledged(&self) -> &HashSet<LockName> {
        &self.acknowledged
    }

    /// Returns the possible locks, which are not proven to be locks.
    pub(super) fn possible(&self) -> &BTreeSet<LockName> {
        &self.possible
    }
}

impl Locks for LockTable {
    fn due(&mut self, name: &LockName) -> Option<&mut Option<Due>> {
        self.get_mut(name).map(|entry| &mut entry.due)
    }

    fn last_sent(&self, name: &LockName) -> Option<Moment> {
        self.get(name)?.record.last_sent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dashboard has both types for each of up to a million locks, and the allocator has blocks of these sizes.
    #[test]
    fn a_lock_needs_little_memory() {
        assert!(size_of::<LockEntry>() <= 384);
        assert!(size_of::<LockView>() + 2 * size_of::<usize>() <= 256);
    }
}
