//! Waiting: one local queue a name, first come, first served. Only the front waiter competes in Redis.

use redisson::{Kind, Lease, LockName, Moment};
use std::sync::Arc;
use tracing::Span;

use crate::core::Report;
use crate::core::lease::hold::millis;
use crate::core::lock::fair::Place;
use crate::core::lock::state::Contest;
use crate::core::ops::acquire::Attempt;
use crate::core::ops::operation::Verb;
use crate::core::ops::{Op, OpId};
use crate::core::session::{Owner, Slot};
use crate::core::timer::Timer;
use crate::core::{Core, spans};
use crate::protocol::command::Wait;
use crate::protocol::resp::Frame;
use crate::types::Number;

/// A wait's name: the first number drawn for it.
pub(in crate::core) type WaiterId = Number;

/// A LOCK that has not been answered yet.
#[derive(Debug)]
pub(in crate::core) struct Waiter {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    /// The number of its attempts: one that no script has been sent to remove.
    pub(in crate::core) number: Number,
    pub(in crate::core) owner: Owner,
    /// The user of its process.
    pub(in crate::core) uid: u32,
    pub(in crate::core) slot: Slot,
    /// The lease it asked for; none for the watchdog's care.
    pub(in crate::core) lease: Option<Lease>,
    pub(in crate::core) wait: Wait,
    pub(in crate::core) since: Moment,
    /// The trace its LOCK is part of.
    pub(in crate::core) trace: Option<Box<str>>,
    /// Its own span.
    pub(in crate::core) span: Span,
    /// The hold of this agent that it stood behind when it came, where it has a span to say so.
    pub(in crate::core) behind: Option<Number>,
    /// It has been told by Redis, or knows from a local hold, that the lock is taken.
    pub(in crate::core) refused: bool,
    /// Its place in a fair lock's queue.
    pub(in crate::core) place: Place,
    /// Its attempt that is on its way, or waits to be sent again.
    pub(in crate::core) asking: Option<OpId>,
    /// The quorum operation that takes back what its latest attempt at a red lock has got.
    pub(in crate::core) undoing: Option<OpId>,
    /// The deadline that is set.
    armed: Moment,
}

impl Waiter {
    pub(in crate::core) fn is_now_or_never(&self) -> bool {
        self.wait == Wait::AtMost(std::time::Duration::ZERO)
    }
}

/// The reason that a waiter leaves without the lock.
#[derive(Debug, Clone)]
pub(in crate::core) enum Left {
    /// Its time is over.
    TimedOut,
    /// It was cancelled, or its session ended.
    Cancelled,
    /// The agent ends.
    Draining,
    /// The lock cannot be had at all, for this reason.
    Failed(String),
}

impl Core {
    /// Puts a LOCK into its name's queue.
    pub(in crate::core) fn queue_up(&mut self, mut waiter: Waiter) {
        self.link_to_holds(&mut waiter);
        let name = waiter.name.clone();
        let fair = waiter.kind == Kind::Fair;
        let id = self.begin_wait(waiter);
        self.lock_mut(&name).queue.push_back(id);
        if fair {
            // Whoever is before it here or elsewhere: Redis gives it its place.
            self.attempt(id);
        }
        self.poll_queue(&name);
    }

    /// Lets a LOCK wait for its answer.
    pub(in crate::core) fn begin_wait(&mut self, mut waiter: Waiter) -> WaiterId {
        let number = self.draw_number();
        waiter.number = number;
        let deadline = match waiter.wait {
            Wait::Forever => Moment::NEVER,
            // NOWAIT ends with the first answer; only silence is timed.
            Wait::AtMost(_) if waiter.is_now_or_never() => {
                self.now + self.settings.response_timeout
            }
            Wait::AtMost(wait) => self.now + wait,
        };
        let name = waiter.name.clone();
        let group = self.group_label(&name);
        self.effects.report(Report::WaitBegan { group, kind: waiter.kind, number });
        if let Some(session) = self.sessions.get_mut(&waiter.owner.session) {
            session.waits.insert(waiter.owner.owner, number);
        }
        self.quota.add(waiter.uid);
        let waiter = self.waiters.entry(number).or_insert(waiter);
        self.timers.set(&mut waiter.armed, deadline, Timer::Waiter(number));
        self.journal_attempts(number);
        number
    }

    pub(in crate::core) fn new_waiter(
        &self,
        slot: Slot,
        owner: Owner,
        request: crate::protocol::command::LockRequest,
        refused: bool,
        span: Span,
    ) -> Waiter {
        Waiter {
            name: request.name,
            kind: request.kind,
            number: 0,
            owner,
            uid: self.sessions.get(&slot.session).map_or(u32::MAX, |session| session.peer.uid),
            slot,
            lease: request.lease,
            wait: request.wait,
            since: self.now,
            trace: request.traceparent.map(|v| String::from_utf8_lossy(&v).into()),
            span,
            behind: None,
            refused,
            place: Place::default(),
            asking: None,
            undoing: None,
            armed: Moment::NEVER,
        }
    }

    /// Gives a waiter another number, because a script that removes the old one has been or may be sent: were that
    /// to run late, it would end a grant under the same number.
    pub(in crate::core) fn renumber(&mut self, waiter: WaiterId) {
        if self.waiters.contains_key(&waiter) {
            let number = self.draw_number();
            if let Some(waiter) = self.waiters.get_mut(&waiter) {
                waiter.number = number;
            }
            self.journal_attempts(waiter);
        }
    }

    pub(in crate::core) fn waiter_due(&mut self, number: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&number) {
            waiter.armed = Moment::NEVER;
            self.leave(number, Left::TimedOut);
        }
    }

    /// Takes a waiter out of everything that knows it.
    pub(in crate::core) fn remove_waiter(&mut self, number: WaiterId) -> Option<Waiter> {
        let mut waiter = self.waiters.remove(&number)?;
        self.quota.remove(waiter.uid);
        self.timers.set(&mut waiter.armed, Moment::NEVER, Timer::Waiter(number));
        self.clear_place(number, &mut waiter);
        if let Some(session) = self.sessions.get_mut(&waiter.owner.session)
            && session.waits.get(&waiter.owner.owner) == Some(&number)
        {
            session.waits.remove(&waiter.owner.owner);
        }
        let name = self.lock_mut(&waiter.name);
        if name.queue.front() == Some(&number) {
            name.queue.pop_front();
        } else {
            // In order of their numbers as a rule, and then soon found: a crowd may leave all at once.
            let at = name.queue.binary_search(&number).ok();
            let at = at.or_else(|| name.queue.iter().position(|queued| *queued == number));
            at.and_then(|at| name.queue.remove(at));
        }
        let group = self.group_label(&waiter.name);
        self.effects.report(Report::WaitEnded { group, kind: waiter.kind, number });
        Some(waiter)
    }

    /// Ends a wait without the lock. If the waiter was in front, the next one tries at once.
    pub(in crate::core) fn leave(&mut self, number: WaiterId, why: Left) {
        let front = self
            .waiters
            .get(&number)
            .and_then(|waiter| self.locks.get(&waiter.name))
            .is_some_and(|state| state.queue.front() == Some(&number));
        let Some(waiter) = self.remove_waiter(number) else { return };
        let waited = self.now.since(waiter.since);
        let group = self.group_label(&waiter.name);
        let name = &waiter.name;
        let trouble = self.locks.get(name).and_then(|state| state.trouble.clone());
        let (outcome, reply) = match why {
            Left::Cancelled => ("cancelled", Frame::Null),
            Left::Draining => ("error", Self::draining(name)),
            Left::Failed(sentence) => ("error", Frame::Error(sentence)),
            Left::TimedOut => match trouble {
                Some(trouble) => ("error", Self::unavailable_for(name, &trouble)),
                None if !waiter.refused => {
                    ("error", Self::unavailable_for(name, "Redis has not answered in time"))
                }
                None => ("timeout", Frame::Null),
            },
        };
        self.effects.report(Report::Acquisition {
            group: Arc::clone(&group),
            kind: waiter.kind,
            outcome,
        });
        spans::outcome(&waiter.span, outcome);
        waiter.span.record("lock.wait_ms", millis(waited));
        let outcome = if outcome == "timeout" { outcome } else { "other" };
        self.effects.report(Report::Waited { group, outcome, wait: waited });
        match waiter.kind {
            Kind::Red => self.tell_once_undone(&waiter, reply),
            _ => self.answer(waiter.slot, reply),
        }
        if waiter.asking.is_none() && waiter.kind != Kind::Fair {
            // Whatever it asked was answered, and has left nothing.
            self.journal_gone(waiter.number);
        }
        self.abandon_attempt(&waiter, front);
        self.leave_place(&waiter, waiter.asking);
        self.poll_queue(name);
    }

    /// Ends the attempt of a waiter that has just gone. One in flight is left to come back: its grant is
    /// passed on or undone. One that waits to be sent again is dropped, undone where an earlier copy may have run, and
    /// the next waiter tries for itself.
    fn abandon_attempt(&mut self, waiter: &Waiter, front: bool) {
        let Some(id) = waiter.asking else {
            if let Some(state) = self.locks.get_mut(&waiter.name)
                && front
                && matches!(state.contest, Contest::Asleep(_))
            {
                state.contest = Contest::Idle;
            }
            return;
        };
        if self.ops.get(id).is_none_or(Op::is_on_its_way) {
            return;
        }
        let Some(Op { verb: Verb::Acquire(attempt), may_have_run, .. }) = self.take_op(id) else {
            return;
        };
        self.clear_attempt(&attempt, id);
        // A fair waiter's place is left in any case.
        if may_have_run && attempt.kind != Kind::Fair {
            self.undo(&attempt.name, attempt.kind, attempt.number, attempt.lease);
        }
    }

    /// An attempt or a hand-over is over.
    pub(in crate::core) fn clear_attempt(&mut self, attempt: &Attempt, id: OpId) {
        if let Some(waiter) = self.waiters.get_mut(&attempt.waiter)
            && waiter.asking == Some(id)
        {
            waiter.asking = None;
        }
        if let Some(state) = self.locks.get_mut(&attempt.name)
            && state.contest == Contest::Asking(id)
        {
            state.contest = Contest::Idle;
        }
    }

    /// Milliseconds that a waiter has waited.
    pub(in crate::core) fn waited_ms(&self, waiter: &Waiter) -> u64 {
        millis(self.now.since(waiter.since))
    }
}
