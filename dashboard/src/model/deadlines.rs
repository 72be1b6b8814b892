//! Locks by the time of their next read, in buckets. Each lock stores its deadline, which can be moved to a later time
//! at no cost: the lock stays in its bucket, and moves to the right one when that bucket is due.

use std::collections::{BTreeMap, VecDeque};

use redisson::{LockName, Moment};

/// The width of a bucket in microseconds. A lock is found at most this much later than it is due.
const WIDTH: u64 = 10_000;

/// The kinds of locks whose deadlines are stored separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    Confirmed,
    /// Confirmed locks that need some readings in quick succession.
    Close,
    /// Keys that have not been proven to be locks.
    Possible,
}

/// A lock's deadline, and its bucket: that of the deadline, or an earlier one.
#[derive(Debug, Clone, Copy)]
pub struct Due {
    pub at: Moment,
    pub queue: Queue,
    /// The number of close reads that are left. It is only valid in that queue.
    pub close_left: u8,
    bucket: u64,
}

/// The locks that a schedule reads.
pub trait Locks {
    /// Returns a lock's deadline, or `None` if the lock is not known.
    fn due(&mut self, name: &LockName) -> Option<&mut Option<Due>>;

    /// Returns a lock's last request.
    fn last_sent(&self, name: &LockName) -> Option<Moment>;
}

/// The deadlines of one queue.
#[derive(Debug)]
pub(super) struct Deadlines {
    queue: Queue,
    buckets: BTreeMap<u64, VecDeque<LockName>>,
}

impl Deadlines {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue, buckets: BTreeMap::new() }
    }

    /// Sets the deadline of a lock, and thereby removes it from the other queues.
    pub(super) fn set(&mut self, due: &mut Option<Due>, name: &LockName, at: Moment) {
        let (queue, bucket) = (self.queue, at.as_micros().div_ceil(WIDTH));
        match due {
            // The lock's bucket is due no later. Once it is due, the lock moves to the bucket of its deadline.
            Some(due) if due.queue == queue && due.bucket <= bucket => due.at = at,
            _ => {
                *due = Some(Due { at, queue, close_left: 0, bucket });
                self.buckets.entry(bucket).or_default().push_back(name.clone());
            }
        }
    }

    /// Returns the lock that has been due for the longest, with its deadline.
    pub(super) fn first(
        &mut self,
        now: Moment,
        locks: &mut impl Locks,
    ) -> Option<(LockName, Moment)> {
        loop {
            let mut first = self.buckets.first_entry()?;
            let bucket = *first.key();
            if bucket.saturating_mul(WIDTH) > now.as_micros() {
                return None;
            }
            let Some(name) = first.get().front() else {
                first.remove();
                continue;
            };
            let due = locks.due(name).and_then(Option::as_mut);
            // Otherwise the lock is gone, or in another bucket.
            let due = due.filter(|due| due.queue == self.queue && due.bucket == bucket);
            let later = due.as_ref().map(|due| due.at.as_micros().div_ceil(WIDTH));
            if let (Some(due), true) = (&due, later == Some(bucket)) {
                return Some((name.clone(), due.at));
            }
            let name = first.get_mut().pop_front();
            if let (Some(due), Some(later), Some(name)) = (due, later, name) {
                due.bucket = later;
                self.buckets.entry(later).or_default().push_back(name);
            }
        }
    }

    /// Returns the time from which [`Self::first`] finds a lock, or moves some to other buckets.
    #[cfg(test)]
    pub(super) fn next(&self) -> Option<Moment> {
        self.buckets.keys().next().map(|bucket| Moment::from_micros(bucket * WIDTH))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[derive(Default)]
    struct Known(HashMap<LockName, Option<Due>>);

    impl Locks for Known {
        fn due(&mut self, name: &LockName) -> Option<&mut Option<Due>> {
            self.0.get_mut(name)
        }

        fn last_sent(&self, _name: &LockName) -> Option<Moment> {
            None
        }
    }

    #[test]
    fn a_lock_is_found_once_at_its_latest_deadline() {
        let at = |ms: u64| Moment::from_micros(ms * 1_000);
        let name = |i: u64| LockName::new(i.to_be_bytes()).unwrap();
        let (mut deadlines, mut known) = (Deadlines::new(Queue::Confirmed), Known::default());
        let set = |deadlines: &mut Deadlines, known: &mut Known, i: u64, ms: u64| {
            let due = known.0.entry(name(i)).or_default();
            deadlines.set(due, &name(i), at(ms));
        };
        // Each lock moves several times, back and forth.
        let last = |i: u64| 1_000 + i * 7 % 500;
        for i in 0..100 {
            for ms in [2_000, 300 + i, 5_000, 900, last(i)] {
                set(&mut deadlines, &mut known, i, ms);
            }
        }
        let mut found = Vec::new();
        for now in 0..6_000 {
            while let Some((name, due)) = deadlines.first(at(now), &mut known) {
                assert!(due <= at(now) && at(now).since(due).as_millis() <= 10, "{due:?} at {now}");
                known.0.remove(&name);
                found.push(name);
            }
        }
        found.sort();
        assert_eq!(found, (0..100).map(name).collect::<Vec<_>>());
        assert!(deadlines.is_empty());
    }
}
