//! Sums over the active locks of a snapshot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use redisson::LockName;

use super::by_number::ByNumber;
use super::lock_view::LockView;
use super::part::Part;
use crate::clock::SteadyMillis;

/// The maximum number of long holds that are listed.
const LONGEST: usize = 8;

/// The sums over all active locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The sums by deployment and lock group.
    pub groups: HashMap<(Arc<str>, Arc<str>), GroupSums>,
    /// The number of clients that hold these locks, and that of their hosts.
    pub clients: usize,
    pub hosts: usize,
    /// The longest holds of locks that are not expected to be held for long, oldest first, at most eight.
    pub longest: Vec<Arc<LockView>>,
}

/// The sums over the locks of one group.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct GroupSums {
    /// The numbers of held locks and of their holders, by kind.
    pub held: BTreeMap<&'static str, (u64, u64)>,
    /// The number of waiters of locks whose waiters are all counted, or `None` if there are no such waiters.
    pub waiting: Option<u64>,
    /// The minimum number of waiters of the other locks.
    pub waiting_at_least: Option<u64>,
    /// The beginning of the longest hold that is not expected to be long.
    pub oldest: Option<SteadyMillis>,
}

/// The locks of one class and group.
#[derive(Debug)]
struct Alike<'s> {
    /// Any lock of the class; it stands for all in what the class has in common.
    lock: &'s LockView,
    is_listed: bool,
    is_expected_long: bool,
    number: u64,
    /// The beginning of the longest hold.
    oldest: Option<SteadyMillis>,
}

impl Sums {
    /// Returns the sums over the active locks of all parts, without the numbers of clients and hosts.
    #[must_use]
    pub(super) fn of<'s>(parts: impl Iterator<Item = &'s Part>) -> Self {
        let mut all = ByNumber::default();
        let (mut longest, mut waits, mut sums) =
            (Longest::default(), Waits::default(), Self::default());
        for part in parts {
            for entry in part.entries() {
                let lock: &LockView = entry.lock;
                let alike = all.get_or_insert_with(entry.class_with_group(), || Alike {
                    lock,
                    is_listed: lock.is_listed(),
                    is_expected_long: lock.expected_long,
                    number: 0,
                    oldest: None,
                });
                if !alike.is_listed {
                    continue;
                }
                alike.number += 1;
                if let Some(since) = entry.since().filter(|_| !alike.is_expected_long) {
                    alike.oldest = earlier(alike.oldest, Some(since));
                    longest.offer(since, entry.lock);
                }
            }
            let awaited = part.notable().iter().filter(|lock| lock.is_awaited());
            awaited.filter(|lock| lock.is_listed()).for_each(|lock| waits.add(lock));
        }
        waits.locks().for_each(|lock| sums.group(lock).wait(lock));
        for Alike { lock, number, oldest, .. } in all.into_values().filter(|it| it.is_listed) {
            sums.group(lock).add(lock, number, oldest);
        }
        sums.longest = longest.into_locks();
        sums
    }

    fn group(&mut self, lock: &LockView) -> &mut GroupSums {
        let key = (Arc::clone(&lock.id.deployment), Arc::clone(&lock.group));
        self.groups.entry(key).or_default()
    }
}

/// The awaited locks. A red lock's waiters wait on all of its servers, so only one of them is used: the one with the most waiters.
#[derive(Debug, Default)]
struct Waits<'s> {
    plain: Vec<&'s LockView>,
    /// The red locks by group of servers, database and name.
    red: HashMap<(&'s str, u32, &'s LockName), &'s LockView>,
}

impl<'s> Waits<'s> {
    fn add(&mut self, lock: &'s LockView) {
        let Some(red) = &lock.red else {
            self.plain.push(lock);
            return;
        };
        let most = self.red.entry((&red.group, lock.id.db, &lock.id.name)).or_insert(lock);
        // Between equal servers the choice stays the same.
        if (most.waiting, &lock.id.deployment) < (lock.waiting, &most.id.deployment) {
            *most = lock;
        }
    }

    fn locks(self) -> impl Iterator<Item = &'s LockView> {
        self.plain.into_iter().chain(self.red.into_values())
    }
}

/// The longest holds so far, oldest first.
#[derive(Debug, Default)]
struct Longest<'s>(Vec<(SteadyMillis, &'s Arc<LockView>)>);

impl<'s> Longest<'s> {
    fn offer(&mut self, since: SteadyMillis, lock: &'s Arc<LockView>) {
        let at = self.0.partition_point(|(other, _)| *other <= since);
        if at < LONGEST {
            self.0.truncate(LONGEST - 1);
            self.0.insert(at, (since, lock));
        }
    }

    fn into_locks(self) -> Vec<Arc<LockView>> {
        self.0.into_iter().map(|(_, lock)| Arc::clone(lock)).collect()
    }
}

impl GroupSums {
    /// Adds locks that are like this one. `oldest` is the beginning of the longest hold, unless the locks are expected
    /// to be held for long.
    fn add(&mut self, lock: &LockView, number: u64, oldest: Option<SteadyMillis>) {
        if lock.is_held() {
            let (locks, holders) = self.held.entry(lock.kind.as_str()).or_default();
            *locks += number;
            *holders += number * lock.holders.len() as u64;
        }
        self.oldest = earlier(self.oldest, oldest);
    }

    /// Adds the waiters of a lock.
    fn wait(&mut self, lock: &LockView) {
        let waiting =
            if lock.waiters_exact { &mut self.waiting } else { &mut self.waiting_at_least };
        *waiting.get_or_insert_default() += lock.waiting;
    }
}

fn earlier(one: Option<SteadyMillis>, other: Option<SteadyMillis>) -> Option<SteadyMillis> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashSet;

    use super::super::client_view::ClientView;
    use super::super::lock_view::{RedView, client_of};
    use super::super::since::Since;
    use super::super::snapshot::Snapshot;
    use super::*;
    use crate::query::fixtures::lock;

    /// Returns the sums over a snapshot, made by looking at each lock.
    pub(crate) fn by_looking(snapshot: &Snapshot) -> Sums {
        let mut sums = Sums::default();
        let (mut clients, mut hosts) = (HashSet::new(), HashSet::new());
        let (mut longest, mut waits): (Vec<&Arc<LockView>>, _) = (Vec::new(), Waits::default());
        for lock in snapshot.locks().filter(|lock| lock.is_listed()) {
            let since = lock.held_since().filter(|_| !lock.expected_long);
            sums.group(lock).add(lock, 1, since.map(|since| since.at));
            if lock.is_awaited() {
                waits.add(lock);
            }
            for holder in &lock.holders {
                clients.insert(client_of(&holder.id));
                hosts.extend(holder.client.as_deref().and_then(ClientView::host));
            }
            longest.extend(since.map(|_| lock));
        }
        waits.locks().for_each(|lock| sums.group(lock).wait(lock));
        (sums.clients, sums.hosts) = (clients.len(), hosts.len());
        longest.sort_by_key(|lock| lock.held_since().map(|since| since.at));
        sums.longest = longest.into_iter().take(LONGEST).map(Arc::clone).collect();
        sums
    }

    fn held(name: &str, by: &str, from: u64) -> LockView {
        let mut view = lock(name);
        view.holders[0].id = format!("{by}:1").into();
        view.holders[0].since = Since { at: SteadyMillis(from), exact: true };
        view
    }

    #[test]
    fn the_waiters_of_a_red_lock_are_counted_on_one_of_its_servers() {
        let mut snapshot = Snapshot::empty();
        let mut put = |name: &str, deployment: &str, waiting: u64, group: Option<&str>| {
            let red = |group: &str| {
                let held = vec!["a".into(), "b".into()];
                Box::new(RedView { group: group.into(), held, unread: Vec::new(), of: 3 })
            };
            let mut view = LockView { waiting, red: group.map(red), ..lock(name) };
            view.id.deployment = deployment.into();
            snapshot.put(Arc::new(view));
        };
        for (deployment, waiting) in [("c", 5), ("a", 4), ("b", 5)] {
            put("orders", deployment, waiting, Some("red"));
        }
        put("orders", "d", 2, Some("other"));
        put("carts", "a", 1, Some("red"));
        put("plain", "a", 3, None);
        put("plain", "b", 3, None);
        let sums = snapshot.sums();
        let waiting = |deployment: &str| {
            let key = (Arc::from(deployment), Arc::from("x"));
            sums.groups[&key].waiting_at_least
        };
        assert_eq!(["a", "b", "c", "d"].map(waiting), [Some(4), Some(8), None, Some(2)]);
    }

    #[test]
    fn the_sums_of_a_snapshot_follow_its_changes() {
        let mut snapshot = Snapshot::empty();
        let uuid = |n: u64| format!("285475da-9152-4c83-822a-{n:012}");
        for n in 0..100 {
            snapshot.put(Arc::new(held(&format!("lock:{n}"), &uuid(n % 7), 1_000 + n)));
        }
        let mut long = held("report", &uuid(99), 10);
        long.expected_long = true;
        snapshot.put(Arc::new(long));
        let mut awaited = held("awaited", &uuid(0), 5_000);
        (awaited.group, awaited.kind, awaited.waiting) = ("other".into(), redisson::Kind::Read, 3);
        snapshot.put(Arc::new(awaited.clone()));
        let key = |group: &str| (Arc::from("main"), Arc::from(group));
        let before = snapshot.clone();
        let sums = before.sums();
        let group = &sums.groups[&key("x")];
        assert_eq!((group.held["lock"], group.oldest), ((101, 101), Some(SteadyMillis(1_000))));
        assert_eq!((group.waiting, group.waiting_at_least), (None, None));
        let other = &sums.groups[&key("other")];
        assert_eq!((other.held["read"], other.waiting_at_least), ((1, 1), Some(3)));
        assert_eq!((sums.clients, sums.hosts), (8, 0));
        let longest = |sums: &Sums| -> Vec<String> {
            sums.longest.iter().map(|lock| lock.id.name.to_string()).collect()
        };
        assert_eq!(longest(&sums), (0..8).map(|n| format!("lock:{n}")).collect::<Vec<_>>());

        snapshot.remove(&lock("lock:0").id);
        awaited.waiters_exact = true;
        snapshot.put(Arc::new(awaited));
        snapshot.put(Arc::new(held("report", &uuid(1), 20)));
        let sums = snapshot.sums();
        assert_eq!(sums.groups[&key("x")].held["lock"], (100, 100));
        assert_eq!(sums.groups[&key("other")].waiting, Some(3));
        assert_eq!(sums.clients, 7);
        assert_eq!(longest(&sums)[..2], ["report", "lock:1"]);
        assert_eq!(before.sums().groups[&key("x")].held["lock"], (101, 101), "as it was");
        drop(before);
        snapshot.put(Arc::new(held("lock:1", &uuid(1), 1)));
        assert_eq!(longest(&snapshot.sums())[..2], ["lock:1", "report"], "a part of its own");
    }
}
