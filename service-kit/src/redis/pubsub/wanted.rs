//! The wanted subscriptions, and the changes that the connection has not been sent.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::memory::Trim as _;

/// Something to subscribe to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    Channel(Vec<u8>),
    Pattern(Vec<u8>),
    /// A shard channel of a cluster.
    Shard(Vec<u8>),
}

impl Topic {
    pub(super) fn name(&self) -> &[u8] {
        match self {
            Self::Channel(name) | Self::Pattern(name) | Self::Shard(name) => name,
        }
    }

    pub(super) fn into_name(self) -> Vec<u8> {
        match self {
            Self::Channel(name) | Self::Pattern(name) | Self::Shard(name) => name,
        }
    }
}

/// A topic to subscribe or unsubscribe. Successive changes of one topic are merged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) topic: Topic,
    pub(super) wanted: bool,
}

#[derive(Debug, Default)]
pub(super) struct Wanted {
    sets: Mutex<Sets>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Sets {
    wanted: HashSet<Topic>,
    /// `None` without a connection: a new one is sent everything that is wanted.
    changed: Option<HashSet<Topic>>,
}

impl Wanted {
    pub(super) fn add(&self, topics: impl Iterator<Item = Topic>) {
        self.change(topics, |sets, topic| {
            sets.wanted.insert(topic.clone());
        });
    }

    pub(super) fn remove(&self, topics: impl Iterator<Item = Topic>) {
        self.change(topics, |sets, topic| {
            sets.wanted.remove(topic);
            sets.wanted.trim();
        });
    }

    fn change(&self, topics: impl Iterator<Item = Topic>, apply: impl Fn(&mut Sets, &Topic)) {
        let mut sets = self.sets.lock();
        for topic in topics {
            apply(&mut sets, &topic);
            if let Some(changed) = &mut sets.changed {
                changed.insert(topic);
            }
        }
        let any = sets.changed.as_ref().is_some_and(|changed| !changed.is_empty());
        drop(sets);
        if any {
            self.changed.notify_one();
        }
    }

    pub(super) fn contains(&self, topic: &Topic) -> bool {
        self.sets.lock().wanted.contains(topic)
    }

    pub(super) fn count(&self) -> usize {
        self.sets.lock().wanted.len()
    }

    /// Turns everything wanted into changes, for a new connection.
    pub(super) fn start_over(&self) {
        let mut sets = self.sets.lock();
        sets.changed = Some(sets.wanted.clone());
    }

    /// Drops the changes at the end of a connection.
    pub(super) fn stop(&self) {
        self.sets.lock().changed = None;
    }

    /// Takes at most `most` changes.
    pub(super) fn take_changes(&self, most: usize) -> Vec<Change> {
        let mut sets = self.sets.lock();
        let Sets { wanted, changed: Some(changed) } = &mut *sets else { return Vec::new() };
        let taken: Vec<Topic> = if changed.len() <= most {
            changed.drain().collect()
        } else {
            let some: Vec<Topic> = changed.iter().take(most).cloned().collect();
            for topic in &some {
                changed.remove(topic);
            }
            some
        };
        changed.trim();
        let change = |topic| Change { wanted: wanted.contains(&topic), topic };
        taken.into_iter().map(change).collect()
    }

    /// Turns those of the topics that are still wanted into changes once more, and returns them.
    pub(super) fn repeat(&self, mut topics: HashSet<Topic>) -> HashSet<Topic> {
        let mut sets = self.sets.lock();
        let Sets { wanted, changed: Some(changed) } = &mut *sets else { return HashSet::new() };
        topics.retain(|topic| wanted.contains(topic));
        changed.extend(topics.iter().cloned());
        topics
    }

    /// Waits for a change that may not have been taken.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(names: std::ops::Range<u32>) -> impl Iterator<Item = Topic> {
        names.map(|n| Topic::Channel(n.to_string().into_bytes()))
    }

    #[test]
    fn successive_changes_of_a_topic_are_merged() {
        let wanted = Wanted::default();
        wanted.start_over();
        wanted.add(topics(0..2));
        wanted.remove(topics(1..2));
        wanted.add(topics(1..2));
        wanted.remove(topics(0..1));
        let mut changes = wanted.take_changes(10);
        changes.sort_by_key(|change| change.wanted);
        let of = |n: &str, wanted| Change { topic: Topic::Channel(n.as_bytes().to_vec()), wanted };
        assert_eq!(changes, [of("0", false), of("1", true)]);
        assert!(wanted.take_changes(10).is_empty());
        assert_eq!(wanted.count(), 1);
    }

    #[test]
    fn changes_are_taken_in_batches_and_start_over_on_a_new_connection() {
        let wanted = Wanted::default();
        wanted.start_over();
        wanted.add(topics(0..1000));
        assert_eq!(wanted.take_changes(400).len(), 400);
        assert_eq!(wanted.take_changes(1000).len(), 600);
        wanted.remove(topics(0..100));
        wanted.start_over();
        let changes = wanted.take_changes(2000);
        assert_eq!(changes.len(), 900);
        assert!(changes.iter().all(|change| change.wanted));
    }

    #[test]
    fn topics_that_come_and_go_without_a_connection_leave_nothing() {
        let wanted = Wanted::default();
        let come_and_go = || {
            wanted.add(topics(0..100));
            wanted.remove(topics(0..99));
            let sets = wanted.sets.lock();
            (sets.wanted.len(), sets.changed.as_ref().map_or(0, HashSet::len))
        };
        assert_eq!(come_and_go(), (1, 0), "before the first connection");
        wanted.start_over();
        assert_eq!(come_and_go(), (1, 100));
        wanted.stop();
        assert_eq!(come_and_go(), (1, 0), "between two connections");
        wanted.start_over();
        let change = Change { topic: Topic::Channel(b"99".to_vec()), wanted: true };
        assert_eq!(wanted.take_changes(10), [change]);
    }
}
