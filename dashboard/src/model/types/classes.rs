//! Small numbers for what many locks have in common, so that a pass over all locks finds what it knows of a class by an index.

use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::by_hash::ByHash;
use super::client_view::ClientView;
use super::lock_view::{LockView, client_of};

/// The classes of a lock, as numbers that begin at 0 and are used again once no lock is of that class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassesOfLock {
    /// That of all that locks are filtered, sorted and counted by, except for the name, the owners, the group and instants.
    pub(super) class: u32,
    /// That of its class and of the clients that hold it with their processes, but not of their threads.
    pub(super) with_owners: u32,
    /// That of its class and its lock group.
    pub(super) with_group: u32,
}

/// The classes of all locks of a snapshot that changes.
#[derive(Debug, Default)]
pub(super) struct Classes {
    hasher: RandomState,
    /// True in a copy, which has no classes: copies of a snapshot are rarely changed, and cheap.
    are_left_out: bool,
    classes: Numbers,
    with_owners: Numbers,
    with_group: Numbers,
    /// The clients that hold active locks, and the hosts of those.
    clients: Tally,
    hosts: Tally,
}

impl Clone for Classes {
    fn clone(&self) -> Self {
        Self { are_left_out: true, ..Self::default() }
    }
}

impl Classes {
    /// Returns true in a copy.
    pub(super) fn are_left_out(&self) -> bool {
        self.are_left_out
    }

    /// Returns the number of clients that hold active locks, and of the hosts of those.
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

    /// Returns the classes of a lock that replaces another one. Most locks stay what they were.
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
        for holder in lock.holders.iter().filter(|_| lock.is_listed()) {
            change(&mut self.clients, self.hasher.hash_one(client_of(&holder.id)));
            if let Some(host) = holder.client.as_deref().and_then(ClientView::host) {
                change(&mut self.hosts, self.hasher.hash_one(host));
            }
        }
    }

    /// Returns the hashes of its class, of that with its owners, and of that with its group.
    fn hashes(&self, lock: &LockView) -> [u64; 3] {
        let class = class_of(lock, &self.hasher);
        let with_owners = self.hasher.hash_one((class, owners_of(lock, &self.hasher)));
        [class, with_owners, self.hasher.hash_one((class, &lock.group))]
    }
}

/// Numbers of hashes.
#[derive(Debug, Default)]
struct Numbers {
    by_hash: ByHash<u32>,
    /// By number.
    used: Vec<Used>,
    /// The numbers that are not in use.
    free: Vec<u32>,
}

/// A hash, and the number of locks that have it.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    hash: u64,
    locks: u32,
}

impl Numbers {
    /// Returns whether a number is that of a hash.
    fn is(&self, number: u32, hash: u64) -> bool {
        self.used[number as usize].hash == hash
    }

    fn add(&mut self, hash: u64) -> u32 {
        let Self { by_hash, used, free } = self;
        let number = *by_hash.entry(hash).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                used.push(Used::default());
                u32::try_from(used.len() - 1).unwrap_or(u32::MAX)
            })
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
            self.free.push(number);
        }
    }
}

/// The number of holders by a hash of what is told apart.
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

/// Returns the hash of all that the locks of a class have in common.
fn class_of(lock: &LockView, hasher: &RandomState) -> u64 {
    let LockView { id, state, confirmed, kind, holders, problems, waiters, .. } = lock;
    let mut hash = hasher.build_hasher();
    (&id.deployment, id.db, holders.len()).hash(&mut hash);
    (*state as u8, confirmed, kind).hash(&mut hash);
    (lock.is_awaited(), waiters.is_empty(), lock.expires_at.is_none()).hash(&mut hash);
    (lock.expected_long, lock.history.past.is_empty()).hash(&mut hash);
    for problem in problems {
        (problem.problem as u8, problem.certainty as u8).hash(&mut hash);
        problem.acknowledged.is_some().hash(&mut hash);
    }
    hash.finish()
}

/// Returns the hash of the owners of a lock.
fn owners_of(lock: &LockView, hasher: &RandomState) -> u64 {
    let mut hash = hasher.build_hasher();
    lock.id.deployment.hash(&mut hash);
    for holder in &lock.holders {
        let (client, thread) = holder.id.split_at(client_of(&holder.id).len());
        (client, is_plain(thread), holder.since.exact).hash(&mut hash);
        holder.client.as_deref().map(ClientView::identity).hash(&mut hash);
    }
    hash.finish()
}

/// Returns whether what follows the client in a holder's id is only a thread's number, and perhaps the suffix of a writer.
#[must_use]
pub fn is_plain(rest: &str) -> bool {
    rest.bytes().all(|byte| b"-0123456789:write".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
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
    }
}
