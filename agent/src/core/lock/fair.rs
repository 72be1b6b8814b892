//! Fair locks: every waiter is in the queue in Redis, whose order applies to all clients, and makes its own attempts.
//!
//! A refused waiter has a position, and subscribes to its own channel, on which the release before its turn is
//! published. It tries again on that message, when the time of the queue's head or of the holder is over, and often
//! enough to prove that it is alive. If the next waiter is on the holder's host, the lock is handed over
//! (`core/ops/hand_over.rs`), without a message.

use redisson::{HolderId, Kind, LockName, Moment, keys};

use crate::core::ids::{OpId, WaiterId};
use crate::core::lock::table::ChannelChange;
use crate::core::lock::waiter::Waiter;
use crate::core::ops::FAIR_WAIT;
use crate::core::ops::verb::Attempt;
use crate::core::{Core, Effect, Node};
use crate::types::Number;

impl Core {
    /// Handles the refusal of a fair waiter, which now has a position behind these numbers.
    pub(in crate::core) fn on_queued(
        &mut self,
        attempt: &Attempt,
        sent: Moment,
        pttl_ms: Option<u64>,
        holders: &[HolderId],
    ) {
        let ours = holders.iter().filter(|holder| self.numbers.is_own(holder));
        let behind = ours.map(|holder| holder.thread).collect();
        let poll = self.retry_interval(pttl_ms).min(FAIR_WAIT / 3);
        let until = self.now + poll;
        let channel =
            keys::fair_channel(&attempt.name, &self.numbers.field(Kind::Fair, attempt.number));
        if !self.locks.has_waiter(attempt.waiter) {
            // It may have a position: with replicas to wait for, attempts have a connection of their own, and the script
            // that releases the position may have run before.
            if self.settings.min_replicas > 0 {
                self.undo(&attempt.name, Kind::Fair, attempt.number, attempt.lease);
            }
            return;
        }
        if let Some(ahead) = holders.last() {
            self.suspect(ahead, &attempt.name);
        }
        if let Some(ChannelChange { old, new }) =
            self.locks.on_queued(attempt.waiter, sent, behind, channel)
        {
            if let Some(old) = old {
                self.effects.push(Effect::Unsubscribe(Node::Main, old));
            }
            self.effects.push(Effect::Subscribe(Node::Main, new));
        }
        // A message that arrived before the answer may have announced this very turn.
        if self.locks.take_turn(attempt.waiter, sent) {
            self.attempt(attempt.waiter);
            return;
        }
        self.locks.retry_at(attempt.waiter, until);
    }

    pub(in crate::core) fn on_fair_position_due(&mut self, id: WaiterId) {
        if self.locks.on_position_due(id) {
            self.attempt(id);
        }
    }

    /// Handles the message that a fair waiter's turn has come.
    pub fn on_turn(&mut self, now: Moment, name: &LockName, number: Number) {
        self.now = self.now.max(now);
        if let Some(id) = self.locks.waiter_under(name, number) {
            self.locks.on_turn(id, self.now);
            self.ask_at_once(id);
        }
        self.run_ready();
    }

    /// Handles an active subscription to a fair waiter's own channel, new or restored: earlier messages were missed, so
    /// the waiter tries again, unless its turn cannot have come yet.
    pub fn on_turn_subscribed(&mut self, now: Moment, name: &LockName, number: Number) {
        self.now = self.now.max(now);
        if let Some(id) = self.locks.waiter_under(name, number)
            && !self.is_behind_ours(id)
        {
            self.ask_at_once(id);
        }
        self.run_ready();
    }

    /// Returns whether a number of this agent is still before a fair waiter: one that held the lock or was ahead in the
    /// queue when Redis was asked, and has released neither since. Numbers are never reused.
    fn is_behind_ours(&self, id: WaiterId) -> bool {
        let Some(waiter) = self.locks.waiter(id) else { return false };
        waiter.position.behind.iter().any(|before| {
            let held = self.leases.get(*before).is_some_and(|hold| hold.name == waiter.name);
            held || self.locks.waiter_under(&waiter.name, *before).is_some()
        })
    }

    fn ask_at_once(&mut self, id: WaiterId) {
        if self.locks.wake_fair(id) {
            self.attempt(id);
        }
    }

    /// Releases the position of a fair waiter that left without the lock, and notifies the next one. `asked` is the
    /// attempt that it had in flight.
    pub(in crate::core) fn leave_position(&mut self, waiter: &Waiter, asked: Option<OpId>) {
        if waiter.kind != Kind::Fair {
            return;
        }
        let under_way = asked.is_some_and(|id| self.ops.contains(id));
        if waiter.position.refreshed.is_some() || under_way {
            let lease = waiter.lease.unwrap_or(self.settings.lease);
            self.undo(&waiter.name, Kind::Fair, waiter.number, lease);
        } else {
            self.journal_gone(waiter.number);
        }
    }
}
