//! The locks that workers of this agent wait for, as the holder registry publishes them.

use std::time::Duration;

use redisson::{Kind, LockName, Moment};

use crate::collections::HashSet;
use crate::core::Core;
use crate::core::report::AwaitedLock;

/// The maximum number of waiters visited for one answer, the longest waits first.
const LOOKED_AT: usize = 1_000;
/// The maximum number of locks of an answer.
const MAX_LOCKS: usize = 200;
/// The maximum number of waiters of one lock that are named.
const MAX_NAMED: usize = 8;

impl Core {
    /// Returns the locks with the longest waits: the red ones, or those of all other kinds. A lock is left out if Redis has the
    /// queue of its waiters, or if all of its waits are younger than `min_age`.
    #[must_use]
    pub fn awaited(&self, red: bool, min_age: Duration) -> Vec<AwaitedLock> {
        let mut seen: HashSet<&LockName> = HashSet::default();
        let is_due = |since: Moment| self.now.since(since) >= min_age;
        let waiters = self.locks.waiters(..).take(LOOKED_AT).filter(|(_, waiter)| {
            waiter.kind != Kind::Fair && (waiter.kind == Kind::Red) == red && is_due(waiter.since)
        });
        let mut awaited = Vec::new();
        for (_, waiter) in waiters {
            if awaited.len() >= MAX_LOCKS || !seen.insert(&waiter.name) {
                continue;
            }
            let Some(state) = self.locks.get(&waiter.name) else { continue };
            if state.queue.is_empty() {
                // A reader below its own write hold waits only for the reply.
                continue;
            }
            let queued = state.queue.iter().filter_map(|id| self.locks.waiter(id));
            let named = queued.take(MAX_NAMED).map(|waiter| (waiter.number, waiter.since));
            awaited.push(AwaitedLock {
                lock: waiter.name.clone(),
                count: state.queue.len(),
                named: named.collect(),
            });
        }
        awaited
    }
}
