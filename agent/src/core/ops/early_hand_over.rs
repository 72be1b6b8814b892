//! Early hand-over: the next local waiter holds the lock before Redis has answered.
//!
//! While a hold is valid nobody else can acquire its lock, no matter which number of this agent Redis has for it. So
//! the successor begins at once, within the rest of that validity, and `hand_over` puts its number into Redis
//! meanwhile. If further holds follow before the reply, Redis gets the number of the latest one next and never sees
//! those between. All who relied on the lock receive `lost` if Redis turns out not to have it.

use std::time::Duration;

use redisson::script::{self, BadReply, Call, HandOverOutcome, Value};
use redisson::{Kind, Moment};
use service_kit::trace::TraceParent;

use super::operation::{Operation, Silence};
use super::{Failure, NO_ANSWER, Op};
use crate::core::Core;
use crate::core::ids::{OpId, ReplyTo};
use crate::core::lock::grant::Terms;
use crate::core::ops::verb::{Attempt, EarlyHandOver, Ending, Verb};
use crate::journal::Record;
use crate::types::{End, Number};

impl EarlyHandOver {
    /// Returns the holds that have ended, oldest first.
    fn endings(&self) -> impl Iterator<Item = &Ending> {
        std::iter::once(&self.from).chain(&self.ended)
    }

    pub(super) fn endings_mut(&mut self) -> impl Iterator<Item = &mut Ending> {
        std::iter::once(&mut self.from).chain(&mut self.ended)
    }
}

impl Operation for EarlyHandOver {
    fn call(&self, core: &Core) -> Call {
        let Ending { name, kind, number, .. } = &self.from;
        let (old, new) = (core.numbers.field(*kind, *number), core.numbers.field(*kind, self.to));
        script::hand_over(name, &old, &new, self.lease)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let passed = script::parse_hand_over(reply)?;
        core.on_early_reply(op, self, passed);
        Ok(())
    }

    /// The successor relies on the number that Redis has, so it is sent again whatever the failure. If Redis refuses
    /// hand-overs, other waiters wait for the reply from now on.
    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        if let Failure::Refused(_) = failure {
            core.ops.set_hand_overs_refused(true);
        }
        core.retry(id, pause);
    }

    fn on_give_up(&mut self, core: &mut Core, _: OpId) {
        if let Some(silence) = self.silence(NO_ANSWER) {
            core.answer_all(silence);
        }
        core.lose_early(self, End::Unconfirmed);
        // The old number has expired by now; a copy may have set the new one just before.
        core.undo(&self.from.name, self.from.kind, self.to, self.lease);
        core.poll_queue(&self.from.name);
    }

    fn is_awaited(&self) -> bool {
        self.from.reply_to.is_some()
    }

    /// Answers an EXTEND that waits for the hand-over.
    fn on_silence(&self, core: &mut Core) {
        let name = &self.from.name;
        let hold = core.locks.get(name).and_then(|state| state.hold);
        if let Some(extend) = hold.and_then(|number| core.leases.take_waiting_extend(number)) {
            core.answer(extend.reply_to, Core::unavailable_for(name, NO_ANSWER));
        }
    }

    fn silence(&mut self, why: &str) -> Option<Silence> {
        let reply = Core::unconfirmed_end(&self.from.name, why);
        let reply_to: Vec<ReplyTo> =
            self.endings_mut().filter_map(|ending| ending.reply_to.take()).collect();
        (!reply_to.is_empty()).then_some(Silence { reply_to, reply, goes_on: true })
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        visit(self.from.number);
        visit(self.to);
    }

    fn is_stale_after_sleep(&self, _: &Core) -> bool {
        true
    }

    fn trace_parent(&self, core: &Core) -> TraceParent {
        // When the first hand-over is sent, the successor still waits.
        let waiter = core.locks.waiter(self.to);
        waiter.map_or_else(|| core.hold_parent(self.to), |waiter| TraceParent::of(&waiter.span))
    }

    fn records(&self) -> Vec<Record> {
        let Ending { name, kind, number, .. } = &self.from;
        [*number, self.to]
            .map(|number| Record::orphan(number, name, *kind, Moment::default()))
            .into()
    }
}

impl Core {
    /// Returns the instant until which the next waiter may hold the lock before Redis has answered. Returns `None` if
    /// it has to wait for the answer: its grant needs a token, replicas, a record in the journal, or a fixed lease, too
    /// little validity is left, or a message says that the lock was released by force.
    pub(in crate::core) fn early_validity(&self, from: &Ending, to: &Attempt) -> Option<Moment> {
        let waiter = self.locks.waiter(to.waiter)?;
        let plain = from.kind == Kind::Lock && to.kind == Kind::Lock && waiter.lease.is_none();
        let recorded =
            self.journal.has(from.number) || self.sessions.has_grace(waiter.owner.connection);
        let lease = self.settings.lease;
        // The script sets this lease, regardless of the old one.
        let valid_until = from.valid_until.min(lease.valid_until(self.now));
        let enough = self.now < lease.at_risk_at(valid_until);
        let possible = plain
            && enough
            && !recorded
            && !from.claimed_forced
            && self.settings.min_replicas == 0
            && !self.ops.are_hand_overs_refused();
        possible.then_some(valid_until)
    }

    /// Hands over a lock to a waiter that holds it at once.
    pub(in crate::core) fn hand_over_early(
        &mut self,
        from: Ending,
        next: &Attempt,
        valid_until: Moment,
    ) {
        let name = from.name.clone();
        let id = self.send_early(from, next.number);
        self.locks.begin_early(&name, id);
        self.begin_early_hold(next, valid_until);
    }

    fn send_early(&mut self, from: Ending, to: Number) -> OpId {
        let lease = self.settings.lease;
        let give_up = self.retry_window(from.longest.max(lease));
        self.send(
            Verb::EarlyHandOver(EarlyHandOver { from, to, lease, ended: Vec::new() }),
            give_up,
        )
    }

    fn begin_early_hold(&mut self, next: &Attempt, valid_until: Moment) {
        self.count_hand_over(&next.name);
        // Redis can renew it once it has it.
        let renew_at = Moment::NEVER;
        let number = next.number;
        let terms = Terms { number, token: None, valid_until, renew_at, early: true };
        self.begin_hold(next.waiter, terms);
    }

    /// Ends a hold that Redis does not have yet. The next waiter may hold the lock at once; everything else waits for
    /// the reply.
    pub(in crate::core) fn end_early_hold(&mut self, hand_over: OpId, ending: Ending) {
        let name = ending.name.clone();
        let next = self.next_in_line(&ending).filter(|_| !self.must_yield(&name));
        let next = next.and_then(|next| Some((self.early_validity(&ending, &next)?, next)));
        if let Some((_, next)) = &next {
            self.link_to_predecessor(next.waiter, ending.number, &ending.trace_parent);
        }
        if ending.reply_to.is_some() {
            self.ops.answer_by(hand_over, self.now + self.settings.response_timeout);
        }
        if let Some(ending) = self.ops.add_ended(hand_over, ending) {
            // The operation has ended and the state in Redis is unknown: the next attempt finds it out.
            self.locks.end_early(&name);
            return self.release(ending);
        }
        if let Some((valid_until, next)) = next {
            self.begin_early_hold(&next, valid_until);
        }
    }

    /// Applies the reply to an early hand-over.
    fn on_early_reply(&mut self, op: &Op, early: &EarlyHandOver, passed: HandOverOutcome) {
        let name = &early.from.name;
        match passed {
            HandOverOutcome::Passed { subscribers, .. } => {
                self.on_handed_over(name, subscribers);
                self.long_releases.add(self.now, &early.from);
                // The latest one is confirmed once it is released, if nobody holds the lock.
                let released = self.follow_up(op.sent, early);
                let confirmed = early.ended.len() - usize::from(released);
                for ending in early.endings().take(1 + confirmed) {
                    self.confirm(ending, None);
                }
                for ending in early.endings().filter(|ending| ending.number != early.to) {
                    self.journal_gone(ending.number);
                }
            }
            HandOverOutcome::Released | HandOverOutcome::Missing | HandOverOutcome::WrongType => {
                self.on_early_refused(op, early, End::Missing);
            }
            HandOverOutcome::Stolen => self.on_early_refused(op, early, End::Stolen),
        }
        self.poll_queue(name);
    }

    /// Handles the case where Redis has the successor, with a lease that was set at `sent`. Gives Redis the number of
    /// the current hold, or ends the one that ended last. Returns whether that was one of `early.ended`.
    fn follow_up(&mut self, sent: Moment, early: &EarlyHandOver) -> bool {
        let EarlyHandOver { from, to, lease, ended } = early;
        let now = self.locks.end_early(&from.name);
        if now == Some(*to) {
            let jitter = self.numbers.jitter();
            let extend = self.leases.on_handed_over(*to, sent, self.now, jitter);
            self.clear_jeopardy(*to);
            if let Some(extend) = extend {
                self.update_hold(extend);
            }
            return false;
        }
        // In Redis it has the successor's number.
        let valid_until = lease.valid_until(sent);
        let last = ended.last().unwrap_or(from);
        let longest = *lease;
        let claimed_forced = ended.first().is_some_and(|first| first.claimed_forced);
        let ending = Ending { number: *to, valid_until, longest, claimed_forced, ..last.clone() };
        if let Some(number) = now {
            let ending = Ending { end: End::Released, reply_to: None, ..ending };
            let id = self.send_early(ending, number);
            self.locks.begin_early(&from.name, id);
            if self.leases.get(number).is_some_and(|hold| hold.extend.is_some()) {
                self.ops.answer_by(id, self.now + self.settings.response_timeout);
            }
            self.leases.follow(number, sent);
            self.clear_jeopardy(number);
            return false;
        }
        match last.end {
            // Its owner was promised the time until then.
            End::Unconfirmed | End::Frozen => self.release_after(last.valid_until, ending),
            // A live worker may still rely on it; its lease runs out.
            End::Drained => self.journal_gone(*to),
            _ => self.pass_on(ending),
        }
        !ended.is_empty()
    }

    /// Handles the case where Redis no longer had the lock.
    fn on_early_refused(&mut self, op: &Op, early: &EarlyHandOver, end: End) {
        let forced = early.endings().any(|ending| ending.claimed_forced);
        let end = if forced { End::Forced } else { end };
        // An earlier copy of it may have removed the first hold; while that was valid nothing else can have.
        let ran = op.may_have_run && self.now < early.from.valid_until;
        self.confirm(&early.from, early.from.lost(op, end).filter(|_| !ran));
        for ending in &early.ended {
            self.confirm(ending, ending.lost(op, end));
        }
        self.lose_early(early, end);
    }

    /// Ends the hold that relies on an early hand-over. Nothing of it is left in Redis.
    fn lose_early(&mut self, early: &EarlyHandOver, end: End) {
        let hold = self.locks.end_early(&early.from.name);
        for ending in early.endings() {
            self.journal_gone(ending.number);
        }
        if let Some(number) = hold {
            self.lose(number, end);
        }
    }
}
