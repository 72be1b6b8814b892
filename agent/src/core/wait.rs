//! Waiting: one local queue a name, first come, first served. Only the front waiter competes in Redis.

use redisson::{Kind, Lease, LockName, Moment};
use tracing::Span;

use super::fair::Place;
use super::hold::millis;
use super::name::Contest;
use super::op::{Attempt, Op, OpId, Purpose};
use super::session::{Owner, Slot};
use super::timer::Timer;
use super::{Core, trace};
use crate::protocol::command::Wait;
use crate::protocol::resp::Frame;
use crate::types::Number;

/// A wait's name: the first number drawn for it.
pub(super) type WaiterId = Number;

/// A LOCK that has not been answered yet.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) name: LockName,
    pub(super) kind: Kind,
    /// Under which number it asks: one that no script has been sent to remove.
    pub(super) number: Number,
    pub(super) owner: Owner,
    /// Whose process it is.
    pub(super) uid: u32,
    pub(super) slot: Slot,
    /// The lease it asked for; none for the watchdog's care.
    pub(super) lease: Option<Lease>,
    pub(super) wait: Wait,
    pub(super) since: Moment,
    /// The trace its LOCK is part of.
    pub(super) trace: Option<Box<str>>,
    /// Its own span.
    pub(super) span: Span,
    /// The hold of this agent that it stood behind when it came, where it has a span to say so.
    pub(super) behind: Option<Number>,
    /// It has been told by Redis, or knows from a local hold, that the lock is taken.
    pub(super) refused: bool,
    /// Its place in a fair lock's queue.
    pub(super) place: Place,
    /// Its attempt that is on its way, or waits to be sent again.
    pub(super) asking: Option<OpId>,
    /// The ballot that takes back what its latest attempt at a red lock has got.
    pub(super) undoing: Option<OpId>,
    /// Where its deadline stands among the timers.
    armed: Moment,
}

impl Waiter {
    pub(super) fn is_now_or_never(&self) -> bool {
        self.wait == Wait::AtMost(std::time::Duration::ZERO)
    }
}

/// Why a waiter leaves without the lock.
#[derive(Debug, Clone)]
pub(super) enum Left {
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
    pub(super) fn queue_up(&mut self, mut waiter: Waiter) {
        self.link_to_holds(&mut waiter);
        let name = waiter.name.clone();
        let fair = waiter.kind == Kind::Fair;
        let id = self.begin_wait(waiter);
        self.name_mut(&name).queue.push_back(id);
        if fair {
            // Whoever is before it here or elsewhere: Redis gives it its place.
            self.attempt(id);
        }
        self.advance(&name);
    }

    /// Lets a LOCK wait for its answer.
    pub(super) fn begin_wait(&mut self, mut waiter: Waiter) -> WaiterId {
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
        let group = self.group(&name);
        self.figures.wait_began(&group, waiter.kind, number);
        if let Some(session) = self.sessions.get_mut(&waiter.owner.session) {
            session.waits.insert(waiter.owner.owner, number);
        }
        self.claims.add(waiter.uid);
        let waiter = self.waiters.entry(number).or_insert(waiter);
        self.timers.set(&mut waiter.armed, deadline, Timer::Waiter(number));
        self.note_attempts(number);
        number
    }

    pub(super) fn new_waiter(
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
    pub(super) fn renumber(&mut self, waiter: WaiterId) {
        if self.waiters.contains_key(&waiter) {
            let number = self.draw_number();
            if let Some(waiter) = self.waiters.get_mut(&waiter) {
                waiter.number = number;
            }
            self.note_attempts(waiter);
        }
    }

    pub(super) fn waiter_due(&mut self, number: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&number) {
            waiter.armed = Moment::NEVER;
            self.leave(number, Left::TimedOut);
        }
    }

    /// Takes a waiter out of everything that knows it.
    pub(super) fn remove_waiter(&mut self, number: WaiterId) -> Option<Waiter> {
        let mut waiter = self.waiters.remove(&number)?;
        self.claims.remove(waiter.uid);
        self.timers.set(&mut waiter.armed, Moment::NEVER, Timer::Waiter(number));
        self.clear_place(number, &mut waiter);
        if let Some(session) = self.sessions.get_mut(&waiter.owner.session)
            && session.waits.get(&waiter.owner.owner) == Some(&number)
        {
            session.waits.remove(&waiter.owner.owner);
        }
        let name = self.name_mut(&waiter.name);
        if name.queue.front() == Some(&number) {
            name.queue.pop_front();
        } else {
            // In order of their numbers as a rule, and then soon found: a crowd may leave all at once.
            let at = name.queue.binary_search(&number).ok();
            let at = at.or_else(|| name.queue.iter().position(|queued| *queued == number));
            at.and_then(|at| name.queue.remove(at));
        }
        let group = self.group(&waiter.name);
        self.figures.wait_ended(&group, waiter.kind, number);
        Some(waiter)
    }

    /// A waiter goes without the lock. If it was in front, the next one tries at once.
    pub(super) fn leave(&mut self, number: WaiterId, why: Left) {
        let front = self
            .waiters
            .get(&number)
            .and_then(|waiter| self.names.get(&waiter.name))
            .is_some_and(|state| state.queue.front() == Some(&number));
        let Some(waiter) = self.remove_waiter(number) else { return };
        let waited = self.now.since(waiter.since);
        let group = self.group(&waiter.name);
        let name = &waiter.name;
        let trouble = self.names.get(name).and_then(|state| state.trouble.clone());
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
        self.figures.acquisition(&group, waiter.kind, outcome);
        trace::outcome(&waiter.span, outcome);
        waiter.span.record("lock.wait_ms", millis(waited));
        self.figures.waited(&group, if outcome == "timeout" { outcome } else { "other" }, waited);
        match waiter.kind {
            Kind::Red => self.tell_once_undone(&waiter, reply),
            _ => self.answer(waiter.slot, reply),
        }
        if waiter.asking.is_none() && waiter.kind != Kind::Fair {
            // Whatever it asked was answered, and has left nothing.
            self.note_gone(waiter.number);
        }
        self.abandon_attempt(&waiter, front);
        self.leave_place(&waiter, waiter.asking);
        self.advance(name);
    }

    /// What was under way for a waiter that has just gone. An attempt on its way is left to come back: its grant is
    /// passed on or undone. One that waits to be sent again is dropped, undone where an earlier copy may have run, and
    /// the next waiter tries for itself.
    fn abandon_attempt(&mut self, waiter: &Waiter, front: bool) {
        let Some(id) = waiter.asking else {
            if let Some(state) = self.names.get_mut(&waiter.name)
                && front
                && matches!(state.contest, Contest::Asleep(_))
            {
                state.contest = Contest::Idle;
            }
            return;
        };
        if self.ops.get(&id).is_none_or(Op::is_on_its_way) {
            return;
        }
        let Some(Op { purpose: Purpose::Acquire(attempt), doubt, .. }) = self.take_op(id) else {
            return;
        };
        self.stop_asking(&attempt, id);
        // A fair waiter's place is left in any case.
        if doubt && attempt.kind != Kind::Fair {
            self.undo(&attempt.name, attempt.kind, attempt.number, attempt.lease);
        }
    }

    /// An attempt or a hand-over is over.
    pub(super) fn stop_asking(&mut self, attempt: &Attempt, id: OpId) {
        if let Some(waiter) = self.waiters.get_mut(&attempt.waiter)
            && waiter.asking == Some(id)
        {
            waiter.asking = None;
        }
        if let Some(state) = self.names.get_mut(&attempt.name)
            && state.contest == Contest::Asking(id)
        {
            state.contest = Contest::Idle;
        }
    }

    /// Milliseconds that a waiter has waited.
    pub(super) fn waited_ms(&self, waiter: &Waiter) -> u64 {
        millis(self.now.since(waiter.since))
    }
}
