//! Small numbers for the common properties of many locks, so that a pass over all locks finds the data of a class by an
//! index.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::by_hash::ByHash;
use super::client_view::ClientView;
use super::lock_view::{LockView, client_of};

/// The numbers of a lock's classes. A number is reused once no lock has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassesOfLock {
    /// Locks with the same number are equal in everything that filters, sorts and counts read, except for names,
    /// owners, groups and times.
    pub(super) class: u32,
    /// Locks with the same number are also equal in their owners: the clients that hold them and the processes of
    /// these. Threads may differ.
    pub(super) with_owners: u32,
    /// Locks with the same number are also equal in their lock group.
    pub(super) with_group: u32,
}

/// The classes of all locks of a snapshot that changes.
#[derive(Debug, Default)]
pub(super) struct Classes {
    hasher: RandomState,
    /// True in a clone. A clone has no classes, so it is cheap. Its first change classifies all locks again.
    is_clone: bool,
    classes: Numbers,
    with_owners: Numbers,
    with_group: Numbers,
    /// The clients that hold active locks, and the hosts of these clients.
    clients: Tally,
    hosts: Tally,
}

impl Clone for Classes {
    fn clone(&self) -> Self {
        Self { is_clone: true, ..Self::default() }
    }
}

impl Classes {
    /// Returns true in a clone.
    pub(super) fn is_clone(&self) -> bool {
        self.is_clone
    }

    /// Returns the number of clients that hold active locks, and that of their hosts.
    pub(super) fn clients_and_hosts(&self) -> (usize, usize) {
        (self.clients.0.len(), self.hosts.0.len())
    }

    /// Returns the classes of a lock that is added.
    pub(super) fn add(&mut self, lock: &LockView) -> ClassesOfLock {
        self.tally(lock, Tally::add);
        let hashes = self.hashes(lock);
        ClassesOfLock {
            class: self.classes.add(hashes[0]),
            with_owners: self.with_owners.add(hashes[1]),
            with_group: self.with_group.add(hashes[2]),
        }
    }

    /// Returns the classes of a lock that replaces another one. Most locks keep their classes.
    pub(super) fn replace(
        &mut self,
        before: &LockView,
        of: ClassesOfLock,
        lock: &LockView,
    ) -> ClassesOfLock {
        let [class, with_owners, with_group] = self.hashes(lock);
        let is_same = self.classes.is(of.class, class)
            && self.with_owners.is(of.with_owners, with_owners)
            && self.with_group.is(of.with_group, with_group);
        if is_same {
            return of;
        }
        let classes = self.add(lock);
        self.remove(before, of);
        classes
    }

    /// Removes a lock of these classes.
    pub(super) fn remove(&mut self, lock: &LockView, of: ClassesOfLock) {
        self.tally(lock, Tally::remove);
        self.classes.remove(of.class);
        self.with_owners.remove(of.with_owners);
        self.with_group.remove(of.with_group);
    }

    /// Adds the holders of a lock to the clients and hosts, or removes them.
    fn tally(&mut self, lock: &LockView, change: fn(&mut Tally, u64)) {
        if !lock.is_listed() {
            return;
        }
        for holder in &lock.holders {
            change(&mut self.clients, self.hasher.hash_one(client_of(&holder.id)));
            if let Some(host) = holder.client.as_deref().and_then(ClientView::host) {
                change(&mut self.hosts, self.hasher.hash_one(host));
            }
        }
    }

    /// Returns the hashes of the lock's class, of its class with owners, and of its class with the group.
    fn hashes(&self, lock: &LockView) -> [u64; 3] {
        let class = class_of(lock, &self.hasher);
        let with_owners = self.hasher.hash_one((class, owners_of(lock, &self.hasher)));
        [class, with_owners, self.hasher.hash_one((class, &lock.group))]
    }
}

/// Assigns a small number to each hash.
#[derive(Debug, Default)]
struct Numbers {
    by_hash: ByHash<u32>,
    /// The hashes by number.
    used: Vec<Used>,
    /// The unused numbers. The least is used first, so that numbers become small again after there were many.
    free: BinaryHeap<Reverse<u32>>,
}

/// A hash, and the number of locks that have it.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    hash: u64,
    locks: u32,
}

impl Numbers {
    /// Returns whether a number belongs to a hash.
    fn is(&self, number: u32, hash: u64) -> bool {
        self.used[number as usize].hash == hash
    }

    fn add(&mut self, hash: u64) -> u32 {
        let Self { by_hash, used, free } = self;
        let number = *by_hash.entry(hash).or_insert_with(|| {
            free.pop().map_or_else(
                || {
                    used.push(Used::default());
                    u32::try_from(used.len() - 1).unwrap_or(u32::MAX)
                },
                |Reverse(number)| number,
            )
        });
        let it = &mut used[number as usize];
        *it = Used { hash, locks: it.locks + 1 };
        number
    }

    fn remove(&mut self, number: u32) {
        let it = &mut self.used[number as usize];
        it.locks -= 1;
        if it.locks == 0 {
            self.by_hash.remove(&it.hash);
            self.free.push(Reverse(number));
        }
    }
}

/// Counts holders by the hash of their client or host.
#[derive(Debug, Default)]
struct Tally(ByHash<u32>);

impl Tally {
    fn add(&mut self, hash: u64) {
        *self.0.entry(hash).or_default() += 1;
    }

    fn remove(&mut self, hash: u64) {
        if let Entry::Occupied(mut holders) = self.0.entry(hash) {
            *holders.get_mut() -= 1;
            if *holders.get() == 0 {
                holders.remove();
            }
        }
    }
}

/// Returns the hash of everything that the locks of a class have in common.
fn class_of(lock: &LockView, hasher: &RandomState) -> u64 {
    // Every field is named, so that a new field is not forgotten if lists depend on it.
    let LockView {
        id,
        state,
        confirmed,
        kind,
        holders,
        expires_at,
        observed: _,
        lease_ms: _,
        renewed: _,
        renewals: _,
        problems,
        events: _,
        history,
        red,
        sources: _,
        queued: _,
        waiters,
        waiting: _,
        waiters_exact: _,
        queue: _,
        token: _,
        group: _,
        expected_long,
    } = lock;
    let mut hash = hasher.build_hasher();
    (&id.deployment, id.db, holders.len()).hash(&mut hash);
    (*state as u8, confirmed, kind, red.is_some()).hash(&mut hash);
    (lock.is_awaited(), waiters.is_empty(), expires_at.is_none()).hash(&mut hash);
    (expected_long, history.past.is_empty()).hash(&mut hash);
    for problem in problems {
        (problem.problem as u8, problem.certainty as u8).hash(&mut hash);
        problem.acknowledged.is_some().hash(&mut hash);
    }
    hash.finish()
}

/// Returns the hash of the owners of a lock.
fn owners_of(lock: &LockView, hasher: &RandomState) -> u64 {
    let mut hash = hasher.build_hasher();
    for holder in &lock.holders {
        let (client, thread) = holder.id.split_at(client_of(&holder.id).len());
        (client, is_plain(thread), holder.since.exact).hash(&mut hash);
        holder.client.as_deref().map(ClientView::identity).hash(&mut hash);
    }
    hash.finish()
}

/// Returns whether a text only has characters of a thread's number and of the suffix `:write`.
#[must_use]
pub fn is_plain(rest: &str) -> bool {
    rest.bytes().all(|byte| b"-0123456789:write".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::RedView;
    use crate::query::fixtures::lock;

    #[test]
    fn numbers_are_shared_by_equal_locks_and_used_again() {
        let mut classes = Classes::default();
        let (a, b) = (lock("a"), lock("b"));
        let mut other_group = lock("c");
        other_group.group = "other".into();
        let first = classes.add(&a);
        assert_eq!(classes.add(&b), first);
        let third = classes.add(&other_group);
        assert_eq!((third.class, third.with_owners), (first.class, first.with_owners));
        assert_ne!(third.with_group, first.with_group);
        let mut other_owner = lock("d");
        other_owner.holders[0].id = "7ee2f116-9152-4c83-822a-285475da0000:1".into();
        let fourth = classes.add(&other_owner);
        assert_eq!((fourth.class, fourth.with_group), (first.class, first.with_group));
        assert_ne!(fourth.with_owners, first.with_owners);
        assert_eq!(classes.clients_and_hosts(), (2, 0));
        classes.remove(&a, first);
        assert_eq!(classes.add(&b), first, "one is left");
        classes.remove(&other_owner, fourth);
        assert_eq!(classes.clients_and_hosts(), (1, 0));
        let mut fifth = lock("e");
        fifth.holders[0].id = "0ee2f116-9152-4c83-822a-285475da0000:1".into();
        assert_eq!(classes.add(&fifth).with_owners, fourth.with_owners, "used again");
        assert_eq!(classes.with_owners.used.len(), 2);
        let mut red = lock("r");
        let (held, unread) = (Vec::new(), Vec::new());
        red.red = Some(Box::new(RedView { group: "g".into(), held, unread, of: 3 }));
        assert_ne!(classes.add(&red).class, first.class, "a list may ask for red locks");
    }
}
