//! Sums over the active locks of a part of a snapshot: computed when first needed, then shared by all snapshots that have the
//! same part.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::client_view::ClientView;
use super::lock_view::{LockView, client_of};
use crate::clock::SteadyMillis;

/// The longest holds that are listed.
const LONGEST: usize = 8;

/// The sums over some active locks.
#[derive(Debug, Default)]
pub struct Sums {
    /// By deployment and lock group.
    pub groups: HashMap<(Arc<str>, Arc<str>), GroupSums>,
    /// The clients that hold them, and the hosts of those, each as a hash.
    pub clients: Vec<u64>,
    pub hosts: Vec<u64>,
    /// The longest holds that are not expected to be long, oldest first, at most eight.
    pub longest: Vec<Arc<LockView>>,
}

/// The sums over the locks of one group.
#[derive(Debug, Default, Clone)]
pub struct GroupSums {
    /// Held locks and their holders, by kind.
    pub held: BTreeMap<&'static str, (u64, u64)>,
    /// The waiters where all of them are counted; none if no lock has any.
    pub waiting: Option<u64>,
    /// The least number of waiters elsewhere.
    pub waiting_at_least: Option<u64>,
    /// The beginning of the longest hold that is not expected to be long.
    pub oldest: Option<SteadyMillis>,
}

impl Sums {
    #[must_use]
    pub fn of(locks: &[Arc<LockView>]) -> Self {
        let mut sums = Self::default();
        for lock in locks.iter().filter(|lock| lock.is_listed()) {
            let key = (Arc::clone(&lock.id.deployment), Arc::clone(&lock.group));
            sums.groups.entry(key).or_default().add(lock);
            for holder in &lock.holders {
                sums.clients.push(hash(client_of(&holder.id)));
                let host = holder.client.as_deref().and_then(ClientView::host);
                sums.hosts.extend(host.map(hash));
            }
            if !lock.expected_long {
                sums.longest.extend(lock.held_since().map(|_| Arc::clone(lock)));
            }
        }
        sums.keep_longest();
        for hashes in [&mut sums.clients, &mut sums.hosts] {
            hashes.sort_unstable();
            hashes.dedup();
            hashes.shrink_to_fit();
        }
        sums
    }

    /// Returns the sums over the locks of all parts.
    #[must_use]
    pub(super) fn total<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        let mut total = Self::default();
        let (mut clients, mut hosts) = (HashSet::<u64>::new(), HashSet::<u64>::new());
        for part in parts {
            for (key, group) in &part.groups {
                match total.groups.get_mut(key) {
                    Some(sum) => sum.join(group),
                    None => drop(total.groups.insert(key.clone(), group.clone())),
                }
            }
            clients.extend(&part.clients);
            hosts.extend(&part.hosts);
            total.longest.extend(part.longest.iter().cloned());
            if total.longest.len() > 64 * LONGEST {
                total.keep_longest();
            }
        }
        total.keep_longest();
        total.clients.extend(clients);
        total.hosts.extend(hosts);
        total
    }

    fn keep_longest(&mut self) {
        self.longest.sort_by_key(|lock| lock.held_since().map(|since| since.at));
        self.longest.truncate(LONGEST);
    }
}

impl GroupSums {
    fn add(&mut self, lock: &LockView) {
        if lock.is_held() {
            let (locks, holders) = self.held.entry(lock.kind.as_str()).or_default();
            *locks += 1;
            *holders += lock.holders.len() as u64;
        }
        if lock.is_awaited() {
            let waiting =
                if lock.waiters_exact { &mut self.waiting } else { &mut self.waiting_at_least };
            *waiting.get_or_insert_default() += lock.waiting;
        }
        if let Some(since) = lock.held_since().filter(|_| !lock.expected_long) {
            self.oldest = earlier(self.oldest, Some(since.at));
        }
    }

    fn join(&mut self, other: &Self) {
        for (kind, (locks, holders)) in &other.held {
            let sum = self.held.entry(kind).or_default();
            *sum = (sum.0 + locks, sum.1 + holders);
        }
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.waiting = sum(self.waiting, other.waiting);
        self.waiting_at_least = sum(self.waiting_at_least, other.waiting_at_least);
        self.oldest = earlier(self.oldest, other.oldest);
    }
}

fn earlier(one: Option<SteadyMillis>, other: Option<SteadyMillis>) -> Option<SteadyMillis> {
    one.into_iter().chain(other).min()
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::super::lock_view::Since;
    use super::super::snapshot::Snapshot;
    use super::*;
    use crate::query::fixtures::lock;

    fn held(name: &str, by: &str, from: u64) -> LockView {
        let mut view = lock(name);
        view.holders[0].id = format!("{by}:1").into();
        view.holders[0].since = Since { at: SteadyMillis(from), exact: true };
        view
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
        assert_eq!((sums.clients.len(), sums.hosts.len()), (8, 0));
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
        assert_eq!(sums.clients.len(), 7);
        assert_eq!(longest(&sums)[..2], ["report", "lock:1"]);
        assert_eq!(before.sums().groups[&key("x")].held["lock"], (101, 101), "as it was");
        drop(before);
        snapshot.put(Arc::new(held("lock:1", &uuid(1), 1)));
        assert_eq!(longest(&snapshot.sums())[..2], ["lock:1", "report"], "a part of its own");
    }
}
