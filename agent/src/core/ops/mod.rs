//! Scripts on their way to Redis, and what becomes of their outcomes.
//!
//! A script whose reply is lost may have run or may yet run: it is in doubt. Since each names the state it wants, it
//! is sent again as it is, until Redis answers or the lease it is about has run out by itself.

mod adopt;
mod call;
pub(in crate::core) mod force;

use std::time::Duration;

use redisson::script::{self, Value};
use redisson::{Kind, Lease, LockName, Moment};
use tracing::Span;

use crate::core::lock::release::Ending;
use crate::core::lock::replicas::Confirmed;
use crate::core::lock::waiter::WaiterId;
use crate::core::ops::force::Force;
use crate::core::red::Ask;
use crate::core::session::{Owner, Slot};
use crate::core::timer::Timer;
use crate::core::{Core, Effect, Lane, Node, spans};
use crate::journal::HoldRecord;
use crate::protocol::resp::Frame;
use crate::types::Number;

/// For how long a place in a fair lock's queue stands without a sign of life.
pub(in crate::core) const FAIR_WAIT: Duration = Duration::from_secs(15);

/// For how long the end of a hold waits for a disk that takes no word of it. A lock that stays taken is worse than a
/// loss told in error, which needs a crash in that very moment as well.
const JOURNAL_PATIENCE: Duration = Duration::from_millis(250);

/// One op's name towards the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// Why a script brought no reply of its own.
#[derive(Debug, Clone)]
pub enum Failure {
    /// It was surely not sent: no connection.
    Unsent(String),
    /// It may have run, or may yet run: time-out, or the connection broke.
    Lost(String),
    /// Redis refused it and changed nothing.
    Refused(String),
    /// It was not sent, since so few replicas are connected.
    Lacking(String),
}

impl Failure {
    /// What happened, in words.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Unsent(text) | Self::Lost(text) | Self::Refused(text) | Self::Lacking(text) => {
                text
            }
        }
    }
}

/// A hold about which its owner asks something.
#[derive(Debug, Clone)]
pub(in crate::core) struct Asked {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) number: Number,
    /// The count it is to have afterwards.
    pub(in crate::core) count: u32,
    pub(in crate::core) owner: Owner,
    pub(in crate::core) slot: Slot,
    /// That of a LOCK that enters again; what is asked otherwise is a part of the hold's.
    pub(in crate::core) span: Span,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) enum Change {
    /// One hold more. With a lease it stays fixed, without one the watchdog keeps it from now on.
    Reenter(Option<Lease>),
    /// One hold less.
    Partial,
    /// A fixed lease from now, or the watchdog's care.
    Extend(Option<Lease>),
}

impl Change {
    /// The lease that is asked for, where one is.
    pub(in crate::core) fn lease(self) -> Option<Lease> {
        match self {
            Self::Reenter(lease) | Self::Extend(lease) => lease,
            Self::Partial => None,
        }
    }
}

/// One waiter's attempt at a lock.
#[derive(Debug, Clone)]
pub(in crate::core) struct Attempt {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) waiter: WaiterId,
    pub(in crate::core) number: Number,
    pub(in crate::core) lease: Lease,
    /// The write hold of its owner's under which it reads.
    pub(in crate::core) under: Option<Number>,
}

/// A hold to be renewed, as it is when that is sent.
#[derive(Debug, Clone)]
pub(in crate::core) struct Renewal {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) number: Number,
    pub(in crate::core) count: u32,
}

/// What a script is for.
#[derive(Debug, Clone)]
pub(in crate::core) enum Purpose {
    /// To take the lock for a waiter.
    Acquire(Attempt),
    /// To see whether holds of an earlier run are still there, and to keep them: read holds, or others.
    Adopt { reads: bool, holds: Vec<HoldRecord> },
    /// To change one hold's count or lease for its owner.
    Keep(Asked, Change),
    /// To renew holds, at the counts they had: read holds, or others.
    Renew { reads: bool, holds: Vec<Renewal>, span: Span },
    /// To end a hold.
    Release(Ending),
    /// To pass a hold on to a waiter.
    HandOver { from: Ending, to: Attempt },
    /// To remove a number of ours that nobody holds.
    Undo { name: LockName, kind: Kind, number: Number },
    /// To see a lock.
    Show { name: LockName, slot: Slot },
    /// To see a lock that an operator wants released, from this holder where one is named.
    Look { name: LockName, slot: Slot, holder: Option<Vec<u8>> },
    /// To release a lock for an operator.
    Force(Force),
    /// One node's share of what is asked about a red lock.
    Red(Ask),
}

impl Purpose {
    /// The number whose field in Redis it may write or remove.
    pub(in crate::core) fn concerns(&self, sought: Number) -> bool {
        match self {
            Self::Acquire(attempt) => attempt.number == sought,
            Self::Undo { number, .. } => *number == sought,
            Self::Keep(asked, _) => asked.number == sought,
            Self::Release(ending) => ending.number == sought,
            Self::HandOver { from, to } => from.number == sought || to.number == sought,
            Self::Adopt { holds, .. } => holds.iter().any(|hold| hold.number == sought),
            Self::Red(ask) => ask.concerns(sought),
            Self::Renew { .. } | Self::Show { .. } | Self::Look { .. } | Self::Force(_) => false,
        }
    }
}

/// One script on its way.
#[derive(Debug)]
pub(in crate::core) struct Op {
    pub(in crate::core) purpose: Purpose,
    /// When it was last sent; what it sets is valid from then.
    pub(in crate::core) sent: Moment,
    /// An earlier copy may have run.
    pub(in crate::core) may_have_run: bool,
    pub(in crate::core) failures: u32,
    /// What replicas have of it, where that matters.
    pub(in crate::core) confirmed: Confirmed,
    /// When it is to be sent again; never while it is on its way.
    retry_at: Moment,
    /// When who waits for it hears that Redis does not answer.
    answer_by: Moment,
    /// When to give it up: the lease it is about has run out by itself.
    give_up_at: Moment,
    armed: Moment,
}

impl Op {
    /// Whether its outcome is yet to come, rather than the time to send it again.
    pub(in crate::core) fn is_on_its_way(&self) -> bool {
        self.retry_at == Moment::NEVER
    }
}

impl Core {
    /// Sends a script. `give_up` is how long it is worth repeating.
    pub(in crate::core) fn send(&mut self, purpose: Purpose, give_up: Duration) -> OpId {
        self.send_at(self.now, purpose, give_up)
    }

    /// Sends a script at that instant, not before; and one that ends a hold not before the journal has it.
    pub(in crate::core) fn send_at(
        &mut self,
        at: Moment,
        purpose: Purpose,
        give_up: Duration,
    ) -> OpId {
        let id = self.plan(purpose, give_up);
        let pause = at.since(self.now);
        if !pause.is_zero() {
            self.retry(id, pause);
        } else if self.waits_for_journal(id) {
            self.retry(id, JOURNAL_PATIENCE);
        } else {
            self.dispatch(id);
        }
        id
    }

    /// Whether a script is kept until the journal says what it does: a successor that finds a hold there and not in
    /// Redis would take it for lost.
    fn waits_for_journal(&mut self, id: OpId) -> bool {
        let ended = match self.ops.get(&id).map(|op| &op.purpose) {
            Some(Purpose::Release(ending) | Purpose::HandOver { from: ending, .. }) => {
                ending.number
            }
            _ => return false,
        };
        self.journal.keep(id, ended)
    }

    /// The journal has what these scripts do, or never will.
    pub(in crate::core) fn send_kept(&mut self, ids: Vec<OpId>) {
        for id in ids {
            // Unless its patience has ended first.
            if self.ops.get(&id).is_some_and(|op| op.failures == 0 && !op.is_on_its_way()) {
                self.dispatch(id);
            }
        }
    }

    fn plan(&mut self, purpose: Purpose, give_up: Duration) -> OpId {
        let id = self.draw_op();
        let answer_by = match &purpose {
            Purpose::Keep(..) | Purpose::Show { .. } | Purpose::Look { .. } | Purpose::Force(_) => {
                self.now + self.settings.response_timeout
            }
            Purpose::Release(ending) | Purpose::HandOver { from: ending, .. }
                if ending.slot.is_some() =>
            {
                self.now + self.settings.response_timeout
            }
            _ => Moment::NEVER,
        };
        let op = Op {
            purpose,
            sent: self.now,
            may_have_run: false,
            failures: 0,
            confirmed: Confirmed::default(),
            retry_at: Moment::NEVER,
            answer_by,
            give_up_at: self.now + give_up,
            armed: Moment::NEVER,
        };
        self.ops.insert(id, op);
        id
    }

    pub(in crate::core) fn draw_op(&mut self) -> OpId {
        let id = OpId(self.next_op);
        self.next_op += 1;
        id
    }

    fn dispatch(&mut self, id: OpId) {
        let now = self.now;
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.sent = now;
        op.confirmed = Confirmed::default();
        op.retry_at = Moment::NEVER;
        let answer_by = op.answer_by;
        self.timers.set(&mut op.armed, answer_by, Timer::Op(id));
        let Some(op) = self.ops.get(&id) else { return };
        let (node, lane) = match &op.purpose {
            Purpose::Renew { .. } | Purpose::Adopt { .. } => (Node::Main, Lane::Renewals),
            Purpose::Red(ask) => (Node::Red(ask.node), ask.lane()),
            purpose if self.awaits_replicas(purpose) => (Node::Main, Lane::Grants),
            _ => (Node::Main, Lane::Commands),
        };
        let (call, place) = (self.call(&op.purpose), self.place_of(&op.purpose));
        self.effects.push(Effect::Send { op: id, node, lane, call, place });
    }

    /// Redis answered a script.
    pub fn on_reply(&mut self, now: Moment, id: OpId, reply: &Value) {
        self.advance_clock(now);
        if self.was_slept_over(id) {
            return self.ask_again(id);
        }
        let Some(op) = self.take_op(id) else { return };
        let took = self.now.since(op.sent);
        if !op.may_have_run && !matches!(op.purpose, Purpose::Red(_)) {
            self.round_trip = (self.round_trip * 7 + took) / 8;
        }
        let result = match &op.purpose {
            Purpose::Acquire(attempt) => script::parse_acquire(reply)
                .map(|acquired| self.on_acquire_reply(id, &op, attempt, acquired)),
            Purpose::Keep(asked, change) => script::parse_renew(reply, 1)
                .map(|kept| self.on_confirmed_update(&op, asked, *change, kept[0])),
            Purpose::Renew { holds, span, .. } => script::parse_renew(reply, holds.len())
                .map(|kept| self.renewed(&op, holds, &kept, span)),
            Purpose::Release(ending) => script::parse_release(reply)
                .map(|released| self.released(ending, op.may_have_run, released)),
            Purpose::HandOver { from, to } => script::parse_hand_over(reply)
                .map(|passed| self.handed_over(id, &op, from, to, passed)),
            Purpose::Undo { name, kind, number } => script::parse_release(reply)
                .map(|released| self.undone(name, *kind, *number, released)),
            Purpose::Adopt { holds, .. } => script::parse_renew(reply, holds.len())
                .map(|kept| self.adopted(op.sent, holds, &kept)),
            Purpose::Show { name, slot } => {
                script::parse_show(reply).map(|shown| self.shown(*slot, name, &shown))
            }
            Purpose::Look { name, slot, holder } => script::parse_show(reply)
                .map(|shown| self.looked(*slot, name, holder.as_deref(), &shown)),
            Purpose::Force(force) => script::parse_force_release(reply)
                .map(|forced| self.force_answered(force, op.may_have_run, forced)),
            Purpose::Red(ask) => self.node_answered(&op, ask, reply),
        };
        if let Err(bad) = result {
            // Whatever answers there does not run our scripts: as good as refused.
            self.ops.insert(id, op);
            self.on_failure(now, id, &Failure::Refused(bad.to_string()));
            return;
        }
        self.run_ready();
    }

    /// Whether a reply may have waited for us while the agent slept, so that what it says of a lock is out of date.
    fn was_slept_over(&self, id: OpId) -> bool {
        self.ops.get(&id).filter(|op| op.sent < self.woke).is_some_and(|op| match &op.purpose {
            Purpose::Acquire(attempt) | Purpose::HandOver { to: attempt, .. } => {
                self.waiters.contains_key(&attempt.waiter)
            }
            Purpose::Keep(..) => true,
            Purpose::Red(ask) => self.asks_again(ask),
            _ => false,
        })
    }

    /// Asks Redis once more for the state wanted, rather than to pass on what it said before.
    fn ask_again(&mut self, id: OpId) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.may_have_run = true;
        }
        self.dispatch(id);
        self.run_ready();
    }

    /// A script brought no reply of its own.
    pub fn on_failure(&mut self, now: Moment, id: OpId, failure: &Failure) {
        self.advance_clock(now);
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.failures += 1;
        op.may_have_run |= matches!(failure, Failure::Lost(_));
        let (failures, purpose) = (op.failures, op.purpose.clone());
        // The first repeat goes at once, down a fresh connection; after that Redis is given a moment.
        let at_once = failures == 1 && matches!(failure, Failure::Lost(_));
        let pause = if at_once { Duration::ZERO } else { self.pause(failures) };
        match purpose {
            Purpose::Renew { holds, span, .. } => {
                self.take_op(id);
                span.record("otel.status_code", "ERROR");
                self.renewal_failed(&holds, pause);
            }
            Purpose::Acquire(_) => self.attempt_failed(id, failure, pause),
            Purpose::Red(ask) => self.node_failed(id, &ask, failure, pause),
            Purpose::HandOver { .. }
                if matches!(failure, Failure::Refused(_) | Failure::Lacking(_)) =>
            {
                // Redis takes no new field (full, say): then the old hold is simply released.
                if let Some(op) = self.take_op(id) {
                    self.hand_over_refused(id, op);
                }
            }
            Purpose::Show { name, slot }
            | Purpose::Look { name, slot, .. }
            | Purpose::Force(Force { name, slot, .. })
                if matches!(failure, Failure::Refused(_)) =>
            {
                self.take_op(id);
                self.answer(slot, Self::unavailable_for(&name, failure.text()));
            }
            Purpose::Keep(asked, Change::Reenter(_) | Change::Extend(_))
                if matches!(failure, Failure::Refused(_) | Failure::Lacking(_)) =>
            {
                self.take_op(id);
                spans::outcome(&asked.span, "error");
                self.answer(asked.slot, Self::unavailable_for(&asked.name, failure.text()));
            }
            _ => self.retry(id, pause),
        }
        self.run_ready();
    }

    /// 0, 10 ms, 20 ms … up to 500 ms, jittered.
    pub(in crate::core) fn pause(&mut self, failures: u32) -> Duration {
        let base = Duration::from_millis(5 << failures.clamp(1, 7)).min(Duration::from_millis(500));
        let share = u32::try_from(self.jitter() % 50).unwrap_or(0);
        base + base * share / 100
    }

    /// Sends an op again after a pause, unless it is not worth it any more.
    pub(in crate::core) fn retry(&mut self, id: OpId, pause: Duration) {
        let now = self.now;
        let Some(op) = self.ops.get_mut(&id) else { return };
        if now >= op.give_up_at {
            return self.give_up(id);
        }
        if pause.is_zero() {
            return self.dispatch(id);
        }
        op.retry_at = now + pause;
        let due = op.retry_at.min(op.answer_by);
        self.timers.set(&mut op.armed, due, Timer::Op(id));
    }

    pub(in crate::core) fn op_due(&mut self, id: OpId) {
        let now = self.now;
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.armed = Moment::NEVER;
        if op.answer_by <= now {
            op.answer_by = Moment::NEVER;
            self.answer_unconfirmed(id);
        }
        let Some(op) = self.ops.get_mut(&id) else { return };
        if op.retry_at <= now {
            self.retry(id, Duration::ZERO);
        } else {
            let due = op.retry_at;
            self.timers.set(&mut op.armed, due, Timer::Op(id));
        }
    }

    /// Whoever waits for this op has waited long enough.
    fn answer_unconfirmed(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let silence = "Redis has not answered in time";
        match &mut op.purpose {
            Purpose::Release(ending) | Purpose::HandOver { from: ending, .. } => {
                if let Some(slot) = ending.slot.take() {
                    let name = ending.name.clone();
                    let text = format!(
                        "UNAVAILABLE `{name}` is no longer yours, but {silence}: the agent goes on releasing it"
                    );
                    self.answer(slot, Frame::Error(text));
                }
            }
            // A hold's count in Redis may differ from ours now: the next renewal puts it right.
            Purpose::Keep(Asked { name, slot, .. }, _)
            | Purpose::Show { name, slot }
            | Purpose::Look { name, slot, .. }
            | Purpose::Force(Force { name, slot, .. }) => {
                let (name, slot) = (name.clone(), *slot);
                if let Some(Purpose::Keep(asked, _)) = self.take_op(id).map(|op| op.purpose) {
                    spans::outcome(&asked.span, "error");
                }
                self.answer(slot, Self::unavailable_for(&name, silence));
            }
            Purpose::Acquire(_)
            | Purpose::Renew { .. }
            | Purpose::Adopt { .. }
            | Purpose::Undo { .. }
            | Purpose::Red(_) => {}
        }
    }

    /// The lease this op is about has run out by itself: there is nothing left to repeat it for.
    fn give_up(&mut self, id: OpId) {
        let Some(op) = self.take_op(id) else { return };
        match op.purpose {
            Purpose::Release(Ending { name, kind, number, .. })
            | Purpose::Undo { name, kind, number } => self.on_released(&name, kind, number),
            Purpose::Adopt { holds, .. } => self.not_adopted(&holds),
            Purpose::HandOver { from, to } => {
                self.journal_gone(from.number);
                self.renumber(to.waiter);
                self.clear_attempt(&to, id);
                // The old field has run out by now; a copy may have set the new one just before.
                self.undo(&to.name, to.kind, to.number, to.lease);
            }
            Purpose::Acquire(attempt) => {
                self.clear_attempt(&attempt, id);
                self.poll_queue(&attempt.name);
            }
            Purpose::Keep(Asked { slot, name, span, .. }, _) => {
                spans::outcome(&span, "error");
                self.answer(slot, Self::unavailable_for(&name, "Redis has not answered in time"));
            }
            Purpose::Show { slot, name }
            | Purpose::Look { slot, name, .. }
            | Purpose::Force(Force { slot, name, .. }) => {
                self.answer(slot, Self::unavailable_for(&name, "Redis has not answered in time"));
            }
            Purpose::Red(ask) => self.node_given_up(&ask),
            Purpose::Renew { .. } => {}
        }
    }

    pub(in crate::core) fn take_op(&mut self, id: OpId) -> Option<Op> {
        let mut op = self.ops.remove(&id)?;
        self.timers.set(&mut op.armed, Moment::NEVER, Timer::Op(id));
        Some(op)
    }
}
