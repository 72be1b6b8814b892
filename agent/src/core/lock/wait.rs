//! Waiting: a LOCK joins its name's queue, and leaves it with or without the lock.

use std::time::Duration;

use redisson::{Kind, Moment, millis};
use tracing::Span;

use crate::core::ids::{OpId, Owner, ReplyTo, WaiterId};
use crate::core::lock::state::LockState;
use crate::core::lock::table::RemovedWaiter;
use crate::core::lock::waiter::{FairPosition, Left, Waiter};
use crate::core::ops::verb::{Attempt, Verb};
use crate::core::ops::{NO_ANSWER, Op};
use crate::core::timer::{CATCH_UP, HELD_UP};
use crate::core::{Core, Effect, Node, Report};
use crate::protocol::command::{LockRequest, Wait};
use crate::protocol::resp::Frame;

/// The minimum time that a wait has for its first answer from Redis, which under load takes longer than the shortest
/// waits.
const FIRST_ANSWER: Duration = Duration::from_millis(250);

impl Core {
    /// Puts a LOCK into its name's queue.
    pub(in crate::core) fn queue_up(&mut self, mut waiter: Box<Waiter>) {
        self.link_to_holds(&mut waiter);
        let name = waiter.name.clone();
        let fair = waiter.kind == Kind::Fair;
        self.track(&name);
        let id = self.begin_wait(waiter);
        self.locks.enqueue(&name, id);
        if fair {
            // Redis decides about its position among the waiters here and elsewhere.
            self.attempt(id);
        }
        self.poll_queue(&name);
    }

    /// Registers a LOCK that waits for its answer.
    pub(in crate::core) fn begin_wait(&mut self, mut waiter: Box<Waiter>) -> WaiterId {
        let number = self.numbers.draw();
        waiter.number = number;
        let deadline = self.wait_end(&waiter);
        let name = waiter.name.clone();
        let group = self.group_label(&name);
        let (kind, since) = (waiter.kind, waiter.since);
        self.effects.report(Report::WaitBegan { group, kind, number, since });
        self.sessions.add_wait(waiter.owner, number);
        self.locks.add_waiter(number, waiter, deadline);
        self.journal_attempts(number);
        number
    }

    pub(in crate::core) fn new_waiter(
        &self,
        reply_to: ReplyTo,
        owner: Owner,
        request: LockRequest,
        refused: bool,
        span: Span,
    ) -> Box<Waiter> {
        Box::new(Waiter {
            name: request.name,
            kind: request.kind,
            number: 0,
            owner,
            uid: self
                .sessions
                .get(&reply_to.connection)
                .map_or(u32::MAX, |session| session.peer.uid),
            reply_to,
            lease: request.lease,
            wait: request.wait,
            since: self.now,
            trace: request.traceparent.map(|v| String::from_utf8_lossy(&v).into()),
            span,
            behind: None,
            refused,
            position: FairPosition::default(),
            attempt: None,
            undoing: None,
            arrival: None,
            armed: Moment::NEVER,
        })
    }

    /// Gives a waiter another number, because a script that removes the old one has been or may be sent: if that ran
    /// late, it would end a grant under the same number.
    pub(in crate::core) fn renumber(&mut self, waiter: WaiterId) {
        if self.locks.has_waiter(waiter) {
            let number = self.numbers.draw();
            self.locks.renumber(waiter, number);
            self.journal_attempts(waiter);
        }
    }

    pub(in crate::core) fn on_waiter_due(&mut self, number: WaiterId) {
        let Some(due) = self.locks.on_wait_due(number) else { return };
        match self.first_answer_due(number) {
            Some(until) if self.now < until => self.locks.prolong_wait(number, until),
            // The agent was held up, so the answer may have arrived unread.
            Some(_) if self.now.since(due) >= HELD_UP && !self.is_prolonged(number, due) => {
                self.locks.prolong_wait(number, self.now + CATCH_UP);
            }
            _ => self.leave(number, Left::TimedOut),
        }
    }

    /// Returns whether this deadline of a wait was already put off because the agent was held up.
    fn is_prolonged(&self, number: WaiterId, due: Moment) -> bool {
        let waiter = self.locks.waiter(number);
        let first = waiter
            .map(|waiter| self.wait_end(waiter).max(waiter.since + self.first_answer_limit()));
        first.is_none_or(|first| due > first)
    }

    /// Returns the instant at which a wait ends, unless its first answer is under way.
    fn wait_end(&self, waiter: &Waiter) -> Moment {
        match waiter.wait {
            Wait::Forever => Moment::NEVER,
            // NOWAIT ends with the first answer; only silence is limited.
            Wait::AtMost(_) if waiter.is_now_or_never() => {
                waiter.since + self.settings.response_timeout
            }
            Wait::AtMost(wait) => waiter.since + wait,
        }
    }

    /// Returns the instant until which a waiter has time for its first answer, if that is under way. A wait may be shorter
    /// than a round trip to Redis: then it ends with that answer, as NOWAIT does.
    fn first_answer_due(&self, number: WaiterId) -> Option<Moment> {
        let waiter = self.locks.waiter(number)?;
        let failed = self.locks.get(&waiter.name).is_some_and(|state| state.last_error.is_some());
        let pending = !failed && !self.is_refused(waiter);
        pending.then(|| waiter.since + self.first_answer_limit())
    }

    /// Returns whether someone else has the lock or waits for it, as far as this agent knows. Removals under way only
    /// delay a waiter's attempt; one that is planned for later belongs to a hold on which someone may still rely.
    pub(super) fn is_refused(&self, waiter: &Waiter) -> bool {
        let Waiter { name, kind, .. } = waiter;
        let held = |state: &LockState| {
            state.excludes(*kind) || state.keeps_out(*kind) && self.ops.has_planned_removal(name)
        };
        waiter.refused || waiter.attempt.is_none() && self.locks.get(name).is_some_and(held)
    }

    /// Returns the time that a wait has at least for its first answer.
    pub(in crate::core) fn first_answer_limit(&self) -> Duration {
        self.settings.response_timeout.min(FIRST_ANSWER)
    }

    /// Removes a waiter from every table.
    pub(in crate::core) fn remove_waiter(&mut self, number: WaiterId) -> Option<Box<Waiter>> {
        let RemovedWaiter { waiter, channel } = self.locks.remove_waiter(number)?;
        if let Some(channel) = channel {
            self.effects.push(Effect::Unsubscribe(Node::Main, channel));
        }
        self.sessions.remove_wait(waiter.owner, number);
        self.track(&waiter.name);
        self.locks.dequeue(&waiter.name, number);
        let group = self.group_label(&waiter.name);
        let (kind, since) = (waiter.kind, waiter.since);
        self.effects.report(Report::WaitEnded { group, kind, number, since });
        Some(waiter)
    }

    /// Ends a wait without the lock. If the waiter was in front, the next one tries at once.
    pub(in crate::core) fn leave(&mut self, number: WaiterId, why: Left) {
        let front = self
            .locks
            .waiter(number)
            .is_some_and(|waiter| self.locks.is_front(&waiter.name, number));
        let Some(waiter) = self.remove_waiter(number) else { return };
        let wait = self.now.since(waiter.since);
        let name = &waiter.name;
        let (outcome, reply) = match why {
            Left::Cancelled => ("cancelled", Frame::Null),
            Left::Draining => ("error", Self::draining(name)),
            Left::Failed(sentence) => ("error", Frame::Error(sentence)),
            Left::TimedOut => self.timed_out(&waiter),
        };
        self.locks.forget_old_error(name);
        waiter.span.record("lock.wait_ms", millis(wait));
        self.on_wait_over(&waiter, outcome, wait);
        match waiter.kind {
            Kind::Red => self.tell_once_undone(&waiter, reply),
            Kind::Lock | Kind::Fair | Kind::Read | Kind::Write | Kind::Fenced => {
                self.answer(waiter.reply_to, reply);
            }
        }
        let is_settled = waiter.attempt.is_none() && !self.ops.concerns(waiter.number);
        if is_settled && waiter.kind != Kind::Fair {
            // Everything it asked was answered, and has left nothing. No hand-over to it is in flight.
            self.journal_gone(waiter.number);
        }
        self.abandon_attempt(&waiter, front);
        self.leave_position(&waiter, waiter.attempt);
        self.poll_queue(name);
    }

    /// Returns the outcome of a wait whose time is over, as metrics show it, and the reply to its LOCK.
    pub(super) fn timed_out(&self, waiter: &Waiter) -> (&'static str, Frame) {
        let name = &waiter.name;
        // A waiter that a local hold excludes makes no attempts, unless it is fair or reads under its own write hold: the
        // error is that of another one.
        let tries = |state: &&LockState| {
            waiter.attempt.is_some() || waiter.kind == Kind::Fair || !state.excludes(waiter.kind)
        };
        match self.locks.get(name).filter(tries).and_then(|state| state.last_error.as_deref()) {
            Some(last_error) => ("error", Self::unavailable_for(name, last_error)),
            None if !self.is_refused(waiter) => ("error", Self::unavailable_for(name, NO_ANSWER)),
            None if waiter.is_now_or_never() => ("busy", Frame::Null),
            None => ("timeout", Frame::Null),
        }
    }

    /// Counts a LOCK that ends without the lock after it has waited that long.
    pub(super) fn on_wait_over(&mut self, waiter: &Waiter, outcome: &'static str, wait: Duration) {
        let group = self.on_not_acquired(&waiter.name, waiter.kind, &waiter.span, outcome);
        let outcome = if outcome == "timeout" { outcome } else { "other" };
        self.effects.report(Report::Waited { group, outcome, wait });
    }

    /// Ends the attempt of a waiter that has just left. An attempt in flight may complete: its grant is passed on or
    /// undone. One that waits to be sent again is dropped, or undone if an earlier copy may have run, and the next
    /// waiter makes its own.
    fn abandon_attempt(&mut self, waiter: &Waiter, front: bool) {
        let Some(id) = waiter.attempt else {
            if front {
                // The next one tries at once.
                self.locks.wake(&waiter.name);
            }
            return;
        };
        // A hand-over ends another hold too, so it is repeated in any case.
        let is_attempt = |op: &Op| matches!(op.verb, Verb::Acquire(_));
        if self.ops.get(id).is_none_or(|op| op.is_on_its_way() || !is_attempt(op)) {
            return;
        }
        let Some(Op { verb: Verb::Acquire(attempt), may_have_run, .. }) = self.take_op(id) else {
            return;
        };
        self.clear_attempt(&attempt, id);
        // A fair waiter's position is left in any case.
        if may_have_run && attempt.kind != Kind::Fair {
            self.undo(&attempt.name, attempt.kind, attempt.number, attempt.lease);
        }
    }

    /// Records that an attempt or a hand-over is over.
    pub(in crate::core) fn clear_attempt(&mut self, attempt: &Attempt, id: OpId) {
        self.locks.end_attempt(&attempt.name, attempt.waiter, id);
    }

    /// Returns the milliseconds that a waiter has waited.
    pub(in crate::core) fn waited_ms(&self, waiter: &Waiter) -> u64 {
        millis(self.now.since(waiter.since))
    }
}
