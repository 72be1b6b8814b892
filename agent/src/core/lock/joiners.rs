//! The readers of a name's queue that may join a read hold.

use std::collections::BTreeMap;

use redisson::Kind;

use super::waiter::{Arrival, Waiter};
use crate::core::ids::WaiterId;

/// The readers of a queue that have no attempt in flight and only readers before them. Readers whose attempts are
/// already in flight are therefore not visited again with each reply.
#[derive(Debug, Default)]
pub(super) struct Joiners {
    /// All readers of the queue without an attempt, in its order.
    idle: BTreeMap<Arrival, WaiterId>,
    /// The first waiter of the queue that is not a reader: those behind it may not join.
    barrier: Option<(Arrival, WaiterId)>,
}

impl Joiners {
    /// Returns those that may join, in the order of the queue.
    pub(super) fn list(&self) -> Vec<WaiterId> {
        let end = self.barrier.map_or(Arrival::MAX, |(arrival, _)| arrival);
        self.idle.range(..end).map(|(_, id)| *id).collect()
    }

    /// Records the current state of a waiter of the queue.
    pub(super) fn update(&mut self, id: WaiterId, waiter: &Waiter) {
        let Some(arrival) = waiter.arrival else { return };
        if waiter.kind != Kind::Read {
            self.barrier.get_or_insert((arrival, id));
        } else if waiter.attempt.is_none() {
            self.idle.insert(arrival, id);
        } else {
            self.idle.remove(&arrival);
        }
    }

    /// Forgets a reader that leaves the queue.
    pub(super) fn remove(&mut self, arrival: Arrival) {
        self.idle.remove(&arrival);
    }

    /// Removes the barrier if it is this waiter. Returns whether it was.
    pub(super) fn take_barrier(&mut self, id: WaiterId) -> bool {
        self.barrier.take_if(|(_, barrier)| *barrier == id).is_some()
    }
}
