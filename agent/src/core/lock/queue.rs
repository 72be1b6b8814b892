//! The local waiters for a lock name, in order.

use std::collections::{BTreeMap, VecDeque};

use redisson::Kind;

use super::joiners::Joiners;
use super::waiter::{Arrival, Waiter};
use crate::core::ids::WaiterId;

/// The waiters for a lock name. An empty queue has no memory on the heap: most held locks have no waiters.
#[derive(Debug, Default)]
pub(in crate::core) struct Queue(Option<Box<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    ids: VecDeque<WaiterId>,
    joiners: Joiners,
}

impl Queue {
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(in crate::core) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |waiting| waiting.ids.len())
    }

    pub(in crate::core) fn front(&self) -> Option<WaiterId> {
        self.0.as_ref()?.ids.front().copied()
    }

    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = WaiterId> {
        self.0.iter().flat_map(|waiting| &waiting.ids).copied()
    }

    /// Adds a waiter at the end.
    pub(super) fn push(&mut self, id: WaiterId, waiter: &Waiter) {
        let waiting = self.0.get_or_insert_default();
        waiting.ids.push_back(id);
        waiting.joiners.update(id, waiter);
    }

    /// Removes a waiter.
    pub(super) fn remove(&mut self, id: WaiterId, waiters: &mut BTreeMap<WaiterId, Box<Waiter>>) {
        let Some(Waiting { ids, joiners }) = self.0.as_deref_mut() else { return };
        // Usually it is in front, or the queue is in order of numbers, so that it is found quickly: many may leave at
        // once.
        let at = ids.front().filter(|front| **front == id).map(|_| 0);
        let at = at.or_else(|| ids.binary_search(&id).ok());
        let at = at.or_else(|| ids.iter().position(|queued| *queued == id));
        let Some(at) = at else { return };
        ids.remove(at);
        if let Some(arrival) = waiters.get_mut(&id).and_then(|waiter| waiter.arrival.take()) {
            joiners.remove(arrival);
        }
        if joiners.take_barrier(id) {
            // Readers behind it may join now. None is passed twice, as those before the barrier stay there.
            let mut behind = ids.range(at..).filter_map(|id| Some((*id, waiters.get(id)?)));
            let next = behind.find(|(_, waiter)| waiter.kind != Kind::Read);
            if let Some((id, waiter)) = next {
                joiners.update(id, waiter);
            }
        }
        if ids.is_empty() {
            self.0 = None;
        }
    }

    /// Returns the readers that may join a read hold.
    pub(super) fn joiners(&self) -> Vec<WaiterId> {
        self.0.as_ref().map_or_else(Vec::new, |waiting| waiting.joiners.list())
    }

    /// Records the current state of a waiter of the queue.
    pub(super) fn update(&mut self, id: WaiterId, waiter: &Waiter) {
        if let Some(waiting) = &mut self.0 {
            waiting.joiners.update(id, waiter);
        }
    }

    /// Forgets a reader that is about to be removed.
    pub(super) fn remove_joiner(&mut self, arrival: Arrival) {
        if let Some(waiting) = &mut self.0 {
            waiting.joiners.remove(arrival);
        }
    }
}
