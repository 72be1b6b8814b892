//! Fair locks: every waiter stands in Redis's own queue, since its order holds for all clients, and asks for itself.
//!
//! A waiter that was refused has a place, and listens to a channel of its own, on which the release before its turn is
//! told. It asks again upon that, when the head's time or the holder's is over, and often enough to show that it lives.

use redisson::{HolderId, Kind, LockName, Moment, keys};

use crate::core::lock::waiter::{Waiter, WaiterId};
use crate::core::ops::acquire::Attempt;
use crate::core::ops::{FAIR_WAIT, OpId};
use crate::core::timer::Timer;
use crate::core::{Core, Effect, Node};
use crate::types::Number;

/// A fair waiter's place in the queue.
#[derive(Debug, Default)]
pub(in crate::core) struct Place {
    /// Redis may have it.
    pub(in crate::core) may_stand: bool,
    /// The channel it listens to.
    listening: Option<Vec<u8>>,
    /// The instant of the latest message.
    message_at: Option<Moment>,
    /// The deadline of the next attempt.
    armed: Option<Moment>,
    /// The numbers of ours that had the lock, or the turn before it, when Redis last refused it.
    behind: Vec<Number>,
}

impl Core {
    /// Redis refused a fair waiter, who has a place now behind these.
    pub(in crate::core) fn queued(
        &mut self,
        attempt: &Attempt,
        sent: Moment,
        pttl_ms: Option<u64>,
        holders: &[HolderId],
    ) {
        let ours = holders.iter().filter(|holder| holder.client == self.client);
        let behind = ours.map(|holder| holder.thread).collect();
        let poll = self.poll(pttl_ms).min(FAIR_WAIT / 3);
        let until = self.now + poll;
        let channel = keys::fair_channel(&attempt.name, &self.field(Kind::Fair, attempt.number));
        let Some(waiter) = self.waiters.get_mut(&attempt.waiter) else {
            return self.place_for_nobody(attempt);
        };
        waiter.place.may_stand = true;
        waiter.place.behind = behind;
        if waiter.place.listening.as_ref() != Some(&channel) {
            if let Some(old) = waiter.place.listening.replace(channel.clone()) {
                self.effects.push(Effect::Unsubscribe(Node::Main, old));
            } else {
                self.gauges.subscriptions += 1;
            }
            self.effects.push(Effect::Subscribe(Node::Main, channel));
        }
        // A message that came while the answer was under way may have told of this very turn.
        if waiter.place.message_at.take().is_some_and(|at| at >= sent) {
            self.attempt(attempt.waiter);
            return;
        }
        self.look_again(attempt.waiter, until);
    }

    /// Lets a fair waiter ask again at that instant, or upon a message.
    pub(in crate::core) fn look_again(&mut self, id: WaiterId, at: Moment) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let mut armed = waiter.place.armed.unwrap_or(Moment::NEVER);
        self.timers.set(&mut armed, at, Timer::FairPosition(id));
        waiter.place.armed = Some(armed);
    }

    pub(in crate::core) fn place_due(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        waiter.place.armed = None;
        if waiter.asking.is_none() {
            self.attempt(id);
        }
    }

    /// Somebody told a fair waiter of ours that its turn has come.
    pub fn on_turn(&mut self, now: Moment, name: &LockName, number: Number) {
        self.now = self.now.max(now);
        let at = self.now;
        if let Some(id) = self.waiter_under(name, number) {
            if let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.place.message_at = Some(at);
            }
            self.ask_at_once(id);
        }
        self.run_ready();
    }

    /// The subscription to a fair waiter's own channel stands, for the first time or again: what was published before
    /// it did is lost, so it asks again, unless its turn cannot have come yet.
    pub fn on_turn_subscribed(&mut self, now: Moment, name: &LockName, number: Number) {
        self.now = self.now.max(now);
        if let Some(id) = self.waiter_under(name, number)
            && !self.is_behind_ours(id)
        {
            self.ask_at_once(id);
        }
        self.run_ready();
    }

    /// Returns whether one of ours is still before a fair waiter: one that had the lock or the turn before it when Redis was
    /// asked, and has given up neither since. Numbers are never used twice.
    fn is_behind_ours(&self, id: WaiterId) -> bool {
        let Some(waiter) = self.waiters.get(&id) else { return false };
        waiter.place.behind.iter().any(|before| {
            let held = self.leases.get(*before).is_some_and(|hold| hold.name == waiter.name);
            held || self.waiter_under(&waiter.name, *before).is_some()
        })
    }

    fn waiter_under(&self, name: &LockName, number: Number) -> Option<WaiterId> {
        // Waiters are known by their first number, and seldom have another.
        let fits = |waiter: &Waiter| waiter.number == number && waiter.name == *name;
        if self.waiters.get(&number).is_some_and(fits) {
            return Some(number);
        }
        let queue = &self.locks.get(name)?.queue;
        queue.iter().copied().find(|id| self.waiters.get(id).is_some_and(fits))
    }

    fn ask_at_once(&mut self, id: WaiterId) {
        let asleep = |waiter: &Waiter| waiter.asking.is_none() && waiter.place.armed.is_some();
        if self.waiters.get(&id).is_some_and(asleep) {
            self.look_again(id, Moment::NEVER);
            self.place_due(id);
        }
    }

    /// A fair waiter waits no longer: it needs no messages and no clock.
    pub(in crate::core) fn clear_place(&mut self, id: WaiterId, waiter: &mut Waiter) {
        if let Some(armed) = waiter.place.armed.take() {
            self.timers.clear(armed, Timer::FairPosition(id));
        }
        if let Some(channel) = waiter.place.listening.take() {
            self.effects.push(Effect::Unsubscribe(Node::Main, channel));
            self.gauges.subscriptions -= 1;
        }
    }

    /// A fair waiter went without the lock: its place is given up, and whoever is next is told. `asked` is the attempt
    /// that it had under way.
    pub(in crate::core) fn leave_place(&mut self, waiter: &Waiter, asked: Option<OpId>) {
        let under_way = asked.is_some_and(|id| self.ops.contains_key(&id));
        if waiter.kind != Kind::Fair {
            return;
        }
        if waiter.place.may_stand || under_way {
            let lease = waiter.lease.unwrap_or(self.settings.lease);
            self.undo(&waiter.name, Kind::Fair, waiter.number, lease);
        } else {
            self.journal_gone(waiter.number);
        }
    }
}
