//! The waiters of the table: queues, deadlines, attempts in flight, and positions in Redis's queue of a fair lock.

use std::ops::RangeBounds;

use redisson::{Kind, LockName, Moment};

use super::{LockTable, LockTimer};
use crate::core::ids::{OpId, WaiterId};
use crate::core::lock::state::Contest;
use crate::core::lock::waiter::Waiter;
use crate::types::Number;

/// A waiter that was removed.
#[derive(Debug)]
pub(in crate::core) struct RemovedWaiter {
    pub(in crate::core) waiter: Box<Waiter>,
    /// The fair waiter's own channel, to which it was subscribed.
    pub(in crate::core) channel: Option<Vec<u8>>,
}

/// A channel to subscribe to, and the one that it replaces.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::core) struct ChannelChange {
    pub(in crate::core) old: Option<Vec<u8>>,
    pub(in crate::core) new: Vec<u8>,
}

impl LockTable {
    pub(in crate::core) fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(&id).map(Box::as_ref)
    }

    pub(in crate::core) fn has_waiter(&self, id: WaiterId) -> bool {
        self.waiters.contains_key(&id)
    }

    /// Returns the number of waiters.
    pub(in crate::core) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Returns the waiters in order of arrival.
    pub(in crate::core) fn waiters(
        &self,
        ids: impl RangeBounds<WaiterId>,
    ) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.waiters.range(ids).map(|(id, waiter)| (*id, waiter.as_ref()))
    }

    /// Returns whether a waiter makes its attempts under this number.
    pub(in crate::core) fn is_wanted(&self, number: Number) -> bool {
        self.id_under(number).is_some()
    }

    /// Returns the waiters whose attempts carry another number than their first one, with that number.
    pub(in crate::core) fn renumbered(&self) -> impl Iterator<Item = (Number, &Waiter)> {
        self.renumbered
            .iter()
            .filter_map(|(number, id)| Some((*number, self.waiters.get(id)?.as_ref())))
    }

    /// Returns the waiter for a name that makes its attempts under this number.
    pub(in crate::core) fn waiter_under(
        &self,
        name: &LockName,
        number: Number,
    ) -> Option<WaiterId> {
        let id = self.id_under(number)?;
        self.waiters.get(&id).is_some_and(|waiter| waiter.name == *name).then_some(id)
    }

    /// Returns the waiter that makes its attempts under this number.
    fn id_under(&self, number: Number) -> Option<WaiterId> {
        // Waiters are known by their first number, and rarely have another. No number is drawn twice.
        match self.waiters.get(&number) {
            Some(waiter) => (waiter.number == number).then_some(number),
            None => self.renumbered.get(&number).copied(),
        }
    }

    /// Adds a waiter, not in any queue yet, whose wait ends at that instant.
    pub(in crate::core) fn add_waiter(&mut self, id: WaiterId, waiter: Box<Waiter>, until: Moment) {
        self.quota.add_wait(waiter.uid);
        let waiter = self.waiters.entry(id).or_insert(waiter);
        self.timers.set(&mut waiter.armed, until, LockTimer::Waiter(id));
    }

    /// Removes a waiter from everything but its queue.
    pub(in crate::core) fn remove_waiter(&mut self, id: WaiterId) -> Option<RemovedWaiter> {
        let mut waiter = self.waiters.remove(&id)?;
        self.renumbered.remove(&waiter.number);
        if let Some(arrival) = waiter.arrival.take()
            && waiter.kind == Kind::Read
            && let Some(state) = self.locks.get_mut(&waiter.name)
        {
            state.queue.remove_joiner(arrival);
        }
        self.quota.remove_wait(waiter.uid);
        self.timers.set(&mut waiter.armed, Moment::NEVER, LockTimer::Waiter(id));
        if let Some(armed) = waiter.position.armed.take() {
            self.timers.clear(armed, LockTimer::FairPosition(id));
        }
        let channel = waiter.position.listening.take();
        self.subscriptions -= usize::from(channel.is_some());
        Some(RemovedWaiter { waiter, channel })
    }

    /// Adds a waiter at the end of the queue of a name in use.
    pub(in crate::core) fn enqueue(&mut self, name: &LockName, id: WaiterId) {
        let Some(state) = self.locks.get_mut(name) else { return };
        if let Some(waiter) = self.waiters.get_mut(&id) {
            self.latest_arrival += 1;
            waiter.arrival = Some(self.latest_arrival);
            state.queue.push(id, waiter);
        }
    }

    pub(in crate::core) fn is_queued(&self, name: &LockName, id: WaiterId) -> bool {
        self.locks.get(name).is_some_and(|state| state.queue.iter().any(|queued| queued == id))
    }

    pub(in crate::core) fn dequeue(&mut self, name: &LockName, id: WaiterId) {
        if let Some(state) = self.locks.get_mut(name) {
            state.queue.remove(id, &mut self.waiters);
        }
    }

    /// Returns whether a waiter is the front one of its name.
    pub(in crate::core) fn is_front(&self, name: &LockName, id: WaiterId) -> bool {
        self.locks.get(name).is_some_and(|state| state.queue.front() == Some(id))
    }

    /// Handles the end of a wait. Returns its deadline, or `None` if there is no such waiter.
    pub(in crate::core) fn on_wait_due(&mut self, id: WaiterId) -> Option<Moment> {
        let waiter = self.waiters.get_mut(&id)?;
        Some(std::mem::replace(&mut waiter.armed, Moment::NEVER))
    }

    /// Sets the end of a wait that was due.
    pub(in crate::core) fn prolong_wait(&mut self, id: WaiterId, until: Moment) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            self.timers.set(&mut waiter.armed, until, LockTimer::Waiter(id));
        }
    }

    /// Sets the grant number that a waiter's next attempts carry.
    pub(in crate::core) fn renumber(&mut self, id: WaiterId, number: Number) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            self.renumbered.remove(&waiter.number);
            self.renumbered.insert(number, id);
            waiter.number = number;
        }
    }

    /// Records that a waiter's attempt is in flight.
    pub(in crate::core) fn begin_attempt(&mut self, id: WaiterId, op: OpId) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.attempt = Some(op);
        }
        self.update_joiners(id);
    }

    /// Records whether a reader has an attempt in flight.
    fn update_joiners(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get(&id)
            && waiter.kind == Kind::Read
            && let Some(state) = self.locks.get_mut(&waiter.name)
        {
            state.queue.update(id, waiter);
        }
    }

    /// Records that an attempt or a hand-over is over.
    pub(in crate::core) fn end_attempt(&mut self, name: &LockName, id: WaiterId, op: OpId) {
        if let Some(waiter) = self.waiters.get_mut(&id)
            && waiter.attempt == Some(op)
        {
            waiter.attempt = None;
            self.update_joiners(id);
        }
        if let Some(state) = self.locks.get_mut(name)
            && state.contest == Contest::Attempting(op)
        {
            state.contest = Contest::Idle;
        }
    }

    /// Records that Redis reported other holders to a waiter.
    pub(in crate::core) fn on_refused(&mut self, id: WaiterId) -> Option<&Waiter> {
        let waiter = self.waiters.get_mut(&id)?;
        waiter.refused = true;
        Some(waiter)
    }

    /// Sets the quorum operation that removes what a waiter's latest attempt has acquired.
    pub(in crate::core) fn set_undoing(&mut self, id: WaiterId, op: Option<OpId>) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.undoing = op;
        }
    }

    /// Records that an attempt of that instant may have created or refreshed a waiter's position.
    pub(in crate::core) fn set_may_be_queued(&mut self, id: WaiterId, sent: Moment) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.position.refreshed = Some(sent);
        }
    }

    /// Records a fair waiter's position, created or refreshed by an attempt of that instant, behind these numbers of this
    /// agent. Returns the subscription to make, if any.
    pub(in crate::core) fn on_queued(
        &mut self,
        id: WaiterId,
        sent: Moment,
        behind: Vec<Number>,
        channel: Vec<u8>,
    ) -> Option<ChannelChange> {
        let position = &mut self.waiters.get_mut(&id)?.position;
        position.refreshed = Some(sent);
        position.behind = behind;
        if position.listening.as_ref() == Some(&channel) {
            return None;
        }
        let old = position.listening.replace(channel.clone());
        self.subscriptions += usize::from(old.is_none());
        Some(ChannelChange { old, new: channel })
    }

    /// Records the message that a fair waiter's turn has come.
    pub(in crate::core) fn on_turn(&mut self, id: WaiterId, now: Moment) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.position.message_at = Some(now);
        }
    }

    /// Takes the latest message about a fair waiter's turn. Returns whether it arrived at that instant or later.
    pub(in crate::core) fn take_turn(&mut self, id: WaiterId, since: Moment) -> bool {
        let waiter = self.waiters.get_mut(&id);
        waiter.and_then(|waiter| waiter.position.message_at.take()).is_some_and(|at| at >= since)
    }

    /// Sets the instant of a fair waiter's next attempt.
    pub(in crate::core) fn retry_at(&mut self, id: WaiterId, at: Moment) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let mut armed = waiter.position.armed.unwrap_or(Moment::NEVER);
        self.timers.set(&mut armed, at, LockTimer::FairPosition(id));
        waiter.position.armed = Some(armed);
    }

    /// Wakes a fair waiter that sleeps. Returns whether it did.
    pub(in crate::core) fn wake_fair(&mut self, id: WaiterId) -> bool {
        let asleep = |waiter: &Waiter| waiter.attempt.is_none() && waiter.position.armed.is_some();
        if !self.waiter(id).is_some_and(asleep) {
            return false;
        }
        self.retry_at(id, Moment::NEVER);
        self.on_position_due(id)
    }

    /// Handles the instant of a fair waiter's next attempt. Returns whether none is in flight.
    pub(in crate::core) fn on_position_due(&mut self, id: WaiterId) -> bool {
        let Some(waiter) = self.waiters.get_mut(&id) else { return false };
        waiter.position.armed = None;
        waiter.attempt.is_none()
    }
}
