//! Acquire: one waiter's attempt at a lock.

use std::time::Duration;

use redisson::script::{self, AcquireOutcome, BadReply, Call, Value};
use redisson::{Family, HolderId, Kind, LockName, Moment};
use service_kit::trace::TraceParent;

use super::operation::Operation;
use super::{FAIR_WAIT, Failure, Op, printable};
use crate::core::ids::OpId;
use crate::core::lock::waiter::{Left, Waiter};
use crate::core::ops::verb::Attempt;
use crate::core::report::refusals::{wrong_kind, wrong_type};
use crate::core::{Core, Lane, Node, Report};
use crate::journal::Record;
use crate::types::{End, Number};

impl Operation for Attempt {
    fn call(&self, core: &Core) -> Call {
        let Self { name, kind, number, lease, .. } = self;
        let holder = core.numbers.field(*kind, *number);
        match kind {
            // A red lock is a plain one on each of its servers.
            Kind::Lock | Kind::Red => script::acquire(name, &holder, *lease),
            Kind::Fenced => {
                script::acquire_fenced(name, &holder, *lease, core.locks.next_token(name))
            }
            Kind::Write => script::acquire_write(name, &holder, *lease),
            Kind::Read => {
                let under = self.under.map(|number| core.numbers.field(Kind::Write, number));
                script::acquire_read(name, &holder, *lease, under.as_ref())
            }
            Kind::Fair => {
                // A NOWAIT joins no queue.
                let waiter = core.locks.waiter(self.waiter).filter(|w| !w.is_now_or_never());
                let refreshed = |waiter: &Waiter| waiter.position.refreshed.unwrap_or(core.now);
                let queue = waiter.map(|waiter| core.now.since(refreshed(waiter)));
                let (first, publish) = (core.numbers.first_of_run(), core.settings.publish);
                script::acquire_fair(name, &holder, *lease, FAIR_WAIT, queue, &first, publish)
            }
        }
    }

    fn on_reply(&self, core: &mut Core, id: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let acquired = script::parse_acquire(reply)?;
        core.on_acquire_reply(id, op, self, acquired);
        Ok(())
    }

    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        core.on_attempt_failed(id, self, failure, pause);
    }

    fn on_give_up(&mut self, core: &mut Core, id: OpId) {
        core.clear_attempt(self, id);
        core.poll_queue(&self.name);
    }

    fn route(&self, core: &Core) -> (Node, Lane) {
        (Node::Main, core.grants_lane())
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        visit(self.number);
    }

    fn is_stale_after_sleep(&self, core: &Core) -> bool {
        core.locks.has_waiter(self.waiter)
    }

    fn trace_parent(&self, core: &Core) -> TraceParent {
        let waiter = core.locks.waiter(self.waiter);
        waiter.map_or_else(TraceParent::default, |waiter| TraceParent::of(&waiter.span))
    }

    fn records(&self) -> Vec<Record> {
        vec![Record::orphan(self.number, &self.name, self.kind, Moment::default())]
    }
}

impl Core {
    /// Applies the reply to an attempt.
    fn on_acquire_reply(&mut self, id: OpId, op: &Op, attempt: &Attempt, acquired: AcquireOutcome) {
        let name = &attempt.name;
        self.clear_attempt(attempt, id);
        if op.may_have_run {
            let applied = matches!(acquired, AcquireOutcome::Granted { .. });
            self.effects.report(Report::OutcomeKnown(if applied {
                "applied"
            } else {
                "not_applied"
            }));
        }
        self.locks.on_answered(name);
        match acquired {
            AcquireOutcome::Granted { token } => {
                self.locks.on_acquired(name, self.now);
                match self.replica_shortfall(name, op) {
                    Some(why) => self.withdraw(attempt, token, &why),
                    None => self.on_lock_obtained(attempt, op.sent, token),
                }
            }
            AcquireOutcome::Held { pttl_ms, holders } => {
                self.on_refused(attempt, op.sent, pttl_ms, &holders);
            }
            AcquireOutcome::WrongKind(kind) => {
                let sentence = wrong_kind(name, &printable(&kind), None);
                self.leave_unobtainable(attempt, op.may_have_run, sentence);
            }
            AcquireOutcome::WrongType(kind) => {
                let sentence = wrong_type(name, &printable(&kind), None);
                self.leave_unobtainable(attempt, op.may_have_run, sentence);
            }
        }
        self.poll_queue(name);
    }

    /// Ends the wait for a name whose key is not a lock, or has another kind.
    fn leave_unobtainable(&mut self, attempt: &Attempt, may_have_run: bool, sentence: String) {
        let Attempt { name, kind, waiter, number, lease, .. } = attempt;
        if may_have_run && *kind != Kind::Fair {
            // An earlier copy may have acquired the lock before the key became something else. A fair waiter leaves its
            // position in any case.
            self.undo(name, *kind, *number, *lease);
        }
        self.leave(*waiter, Left::Failed(sentence));
    }

    /// Handles the case where others hold the lock.
    fn on_refused(
        &mut self,
        attempt: &Attempt,
        sent: Moment,
        pttl_ms: Option<u64>,
        holders: &[HolderId],
    ) {
        let Attempt { name, kind, waiter: asked, under, .. } = attempt;
        self.remove_ghosts(name, *kind, holders);
        if let Some(lost) = *under {
            // Its write hold is gone. The reader waits like any other.
            self.lose(lost, End::Stolen);
        }
        let now = self.now;
        if let Some(waiter) = self.locks.on_refused(*asked) {
            if waiter.is_over(now) {
                if *kind == Kind::Fair && !waiter.is_now_or_never() {
                    // This attempt has joined the queue.
                    self.locks.set_may_be_queued(*asked, sent);
                }
                return self.leave(*asked, Left::TimedOut);
            }
            if under.is_some() && !self.locks.is_queued(name, *asked) {
                self.track(name);
                self.locks.enqueue(name, *asked);
            }
        }
        if *kind == Kind::Fair {
            return self.on_queued(attempt, sent, pttl_ms, holders);
        }
        // The waiter of this attempt is not the front one, which makes its own attempts.
        if !self.locks.is_front(name, *asked) {
            return;
        }
        self.subscribe(name);
        let interval = self.retry_interval(pttl_ms);
        // A message that arrived before the reply may be about the release that this attempt has missed.
        if self.locks.take_message(name, sent) {
            return;
        }
        self.locks.sleep(name, self.now + interval);
    }

    /// Removes numbers of this agent that nobody holds, which late copies of old scripts have left. Then the waiter tries
    /// again.
    fn remove_ghosts(&mut self, name: &LockName, asked: Kind, holders: &[HolderId]) {
        let ghosts: Vec<_> = holders
            .iter()
            .filter(|holder| self.is_ghost(holder))
            .map(|holder| {
                let kind = match asked.family() {
                    Family::ReadWrite if holder.write => Kind::Write,
                    Family::ReadWrite => Kind::Read,
                    Family::Plain | Family::Fair | Family::Red => asked,
                };
                (holder.thread, kind)
            })
            .collect();
        for (ghost, kind) in ghosts {
            self.effects.report(Report::OutcomeKnown("undone_late"));
            self.undo(name, kind, ghost, self.settings.lease);
        }
    }

    /// Returns whether a holder has a number of this run that belongs to no hold, waiter or script.
    pub(in crate::core) fn is_ghost(&self, holder: &HolderId) -> bool {
        let number = holder.thread;
        self.numbers.is_own(holder)
            && self.numbers.contains(number)
            && !self.leases.contains(number)
            && !self.ops.concerns(number)
            && !self.locks.is_wanted(number)
    }

    /// Handles an attempt without an answer.
    fn on_attempt_failed(
        &mut self,
        id: OpId,
        attempt: &Attempt,
        failure: &Failure,
        pause: Duration,
    ) {
        if let Failure::TooFewReplicas(why) = failure {
            return self.on_attempt_not_tried(id, attempt, why);
        }
        let Attempt { name, kind, waiter, number, lease, under } = attempt;
        let waiter = *waiter;
        let Some(op) = self.ops.get(id) else { return };
        let (may_have_run, sent) = (op.may_have_run, op.sent);
        let over = self.locks.waiter(waiter).map(|waiter| waiter.is_over(self.now));
        if over.is_some() {
            self.locks.set_last_error(name, Some(failure.text().to_owned()));
        }
        if matches!(failure, Failure::Lost(_)) {
            self.locks.set_may_be_queued(waiter, sent);
        }
        // A read under a write hold is in no queue that could try again for it.
        if over.is_some() && (under.is_some() || !matches!(failure, Failure::Refused(_))) {
            return self.retry(id, pause);
        }
        self.take_op(id);
        self.clear_attempt(attempt, id);
        if may_have_run && (*kind != Kind::Fair || over.is_none()) {
            // This copy did not run, but an earlier one may have, and nobody will try again under this number: its traces
            // are removed. A fair waiter has its position under its number, so it keeps both until its wait ends.
            self.renumber(waiter);
            self.undo(name, *kind, *number, *lease);
        }
        match over {
            None => return self.poll_queue(name),
            Some(true) => return self.leave(waiter, Left::TimedOut),
            Some(false) => {}
        }
        // Refused for now (full, loading, read-only, …): the waiter keeps its position and tries again.
        let failures = self.locks.add_failure(name);
        let pause = self.pause(failures);
        if *kind == Kind::Fair {
            return self.locks.retry_at(waiter, self.now + pause);
        }
        self.locks.sleep(name, self.now + pause);
    }

    /// Handles the case where an attempt was not even sent, because too few replicas are connected.
    fn on_attempt_not_tried(&mut self, id: OpId, attempt: &Attempt, why: &str) {
        self.ops.set_short_of_replicas(true);
        self.effects.report(Report::Confirmation("not_tried"));
        let Some(op) = self.take_op(id) else { return };
        self.clear_attempt(attempt, id);
        if op.may_have_run {
            return self.withdraw(attempt, None, why);
        }
        let sentence = format!("UNAVAILABLE `{}` is not granted: {why}", attempt.name);
        self.leave(attempt.waiter, Left::Failed(sentence));
        self.poll_queue(&attempt.name);
    }
}
