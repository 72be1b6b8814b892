//! Sharded channels of a cluster: Redisson 3.22 and later publishes releases on them, and patterns do not match them.
//!
//! A subscriber looks like a waiter to other observers, and to agents that check for waiters. Therefore few channels
//! are subscribed, and none for locks that an agent holds.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use redisson::{HolderId, Kind, keys};
use service_kit::redis::Subscriber;

use super::choice::Choice;
use super::client_list;
use super::slot_share::SlotShare;
use crate::model::types::{LockView, Snapshot};
use crate::redis::CLIENT_NAME;

/// The maximum number of locks of one server.
const MAX_LOCKS: usize = 1_000;

/// The subscribed sharded channels. Cheap to clone, and clones share them.
#[derive(Debug, Clone, Default)]
pub struct Shards(Arc<Mutex<Sets>>);

#[derive(Debug, Default)]
struct Sets {
    choice: Choice,
    wanted: HashSet<Vec<u8>>,
    subscribed: HashSet<Vec<u8>>,
    /// The channels left at the latest choice: Redis may still count their subscriptions.
    left: HashSet<Vec<u8>>,
    /// The number of other dashboards with such subscriptions.
    others: u64,
}

impl Shards {
    /// Updates the subscriptions to the channels of the chosen locks, if the server has sharded channels.
    pub(super) fn choose(
        &self,
        subscriber: &Subscriber,
        snapshot: &Snapshot,
        (deployment, share): (&str, &SlotShare),
        sharded: bool,
    ) {
        let mut sets = self.0.lock();
        let wanted = if sharded {
            wanted(snapshot, (deployment, share), &mut sets.choice)
        } else if sets.wanted.is_empty() {
            sets.left.clear();
            return;
        } else {
            HashSet::new()
        };
        let new: Vec<_> = wanted.difference(&sets.wanted).cloned().collect();
        let left = sets.set_wanted(wanted);
        drop(sets);
        subscriber.sunsubscribe(left);
        subscriber.ssubscribe(new);
    }

    pub(super) fn subscribed(&self, channel: &[u8]) {
        let mut sets = self.0.lock();
        if sets.wanted.contains(channel) {
            sets.subscribed.insert(channel.to_vec());
        }
    }

    /// Removes a channel whose slot has moved to another server.
    pub(super) fn remove(&self, channel: &[u8]) {
        self.0.lock().subscribed.remove(channel);
    }

    /// Removes all channels after the connection was lost.
    pub(super) fn clear(&self) {
        let mut sets = self.0.lock();
        sets.subscribed.clear();
        sets.left.clear();
    }

    /// Returns the number of subscribed channels.
    pub(super) fn count(&self) -> usize {
        self.0.lock().subscribed.len()
    }

    /// Returns the number of dashboards among a channel's subscribers. The others subscribe to the same locks as this
    /// one unless there are very many locks. The number of waiters is a lower bound in any case.
    pub(super) fn dashboards(&self, channel: &[u8]) -> u64 {
        let sets = self.0.lock();
        let subscribed = sets.subscribed.contains(channel) || sets.left.contains(channel);
        u64::from(subscribed) + sets.others
    }

    /// Counts other dashboards in the reply to CLIENT LIST.
    pub(super) fn count_dashboards(&self, list: &str) {
        let listening = list.lines().filter(|line| is_listening_dashboard(line)).count() as u64;
        let mut sets = self.0.lock();
        sets.others = listening.saturating_sub(u64::from(!sets.subscribed.is_empty()));
    }
}

impl Sets {
    /// Replaces the wanted channels. Returns those that are no longer wanted.
    fn set_wanted(&mut self, wanted: HashSet<Vec<u8>>) -> Vec<Vec<u8>> {
        let left: Vec<_> = self.wanted.difference(&wanted).cloned().collect();
        self.subscribed.retain(|channel| wanted.contains(channel));
        self.left = left.iter().cloned().collect();
        self.wanted = wanted;
        left
    }
}

fn is_listening_dashboard(client: &str) -> bool {
    let field = |name| client_list::field(client, name);
    field("name") == Some(CLIENT_NAME) && field("ssub").is_some_and(|count| count != "0")
}

/// Returns the channels of the held locks to follow, except for locks that an agent holds.
fn wanted(
    snapshot: &Snapshot,
    (deployment, share): (&str, &SlotShare),
    choice: &mut Choice,
) -> HashSet<Vec<u8>> {
    let by_agent = |lock: &LockView| {
        let mut ids = lock.holders.iter().map(|holder| HolderId::parse(holder.id.as_bytes()));
        ids.any(|id| id.is_some_and(|id| id.looks_like_agent()))
    };
    let locks = choice.update(snapshot, MAX_LOCKS, |lock| {
        &*lock.id.deployment == deployment
            && lock.confirmed
            && lock.is_held()
            && share.has(&lock.id.name)
            && !by_agent(lock)
    });
    locks.into_iter().map(|lock| channel(lock)).collect()
}

/// Returns the channel that the lock's waiters subscribe to.
pub(super) fn channel(lock: &LockView) -> Vec<u8> {
    if matches!(lock.kind, Kind::Read | Kind::Write) {
        keys::read_write_channel(&lock.id.name)
    } else {
        keys::channel(&lock.id.name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::query::fixtures::lock;

    #[test]
    fn other_dashboards_are_not_counted_as_waiters() {
        let list = "id=3 addr=10.0.0.1:5 name=lockscope-dashboard sub=0 psub=4 ssub=2 cmd=ssubscribe\n\
            id=4 addr=10.0.0.1:6 name=lockscope-dashboard sub=0 psub=0 ssub=0 cmd=ping\n\
            id=5 addr=10.0.0.2:7 name=lockscope-dashboard sub=0 psub=4 ssub=2 cmd=ssubscribe\n\
            id=6 addr=10.0.0.3:8 name=billing sub=0 psub=0 ssub=1 cmd=ssubscribe\n";
        let shards = Shards::default();
        assert_eq!(shards.dashboards(b"a"), 0);
        shards.count_dashboards(list);
        assert_eq!(shards.dashboards(b"a"), 2, "neither is this dashboard");
        shards.0.lock().subscribed.insert(b"a".to_vec());
        shards.count_dashboards(list);
        assert_eq!((shards.dashboards(b"a"), shards.dashboards(b"b")), (2, 1));
        shards.count_dashboards("");
        assert_eq!(shards.dashboards(b"b"), 0);
    }

    #[test]
    fn a_subscription_that_ends_is_not_counted_as_a_waiter() {
        let shards = Shards::default();
        let want = |channels: &[&str]| {
            let wanted = channels.iter().map(|channel| channel.as_bytes().to_vec()).collect();
            shards.0.lock().set_wanted(wanted)
        };
        assert!(want(&["a", "b"]).is_empty());
        shards.subscribed(b"a");
        assert_eq!(want(&["b"]), [b"a"]);
        assert_eq!(shards.dashboards(b"a"), 1, "Redis may not have ended the subscription yet");
        assert!(want(&["b"]).is_empty());
        assert_eq!(shards.dashboards(b"a"), 0);
    }

    #[test]
    fn subscriptions_are_bounded_stable_and_exclude_locks_of_agents() {
        let mut snapshot = Snapshot::empty();
        for i in 0..MAX_LOCKS + 10 {
            snapshot.put(Arc::new(lock(&format!("l:{i:05}"))));
        }
        let mut choice = Choice::default();
        let first = wanted(&snapshot, ("main", &SlotShare::Whole), &mut choice);
        assert_eq!(first.len(), MAX_LOCKS);
        snapshot.put(Arc::new(lock("a:new")));
        assert_eq!(wanted(&snapshot, ("main", &SlotShare::Whole), &mut choice), first);
        let mut agents = lock("agents");
        let agent = redisson::ClientId::from_random([7; 16]);
        agents.holders[0].id = HolderId::new(agent, 1_700_000_000 << 30).to_string().into();
        let mut snapshot = Snapshot::empty();
        snapshot.put(Arc::new(agents));
        assert!(wanted(&snapshot, ("main", &SlotShare::Whole), &mut choice).is_empty());
        assert!(wanted(&snapshot, ("other", &SlotShare::Whole), &mut choice).is_empty());
    }
}
