//! Hand-over: ends a hold and begins that of the next local waiter, in one script. Redis decides whether a fair lock's
//! waiter is next.

use std::time::Duration;

use redisson::script::{self, BadReply, Call, HandOverOutcome, Value};
use redisson::{Kind, LockName, Moment};
use service_kit::trace::TraceParent;

use super::operation::{Operation, Silence};
use super::{FAIR_WAIT, Failure, Op};
use crate::core::ids::OpId;
use crate::core::ops::verb::{Attempt, Ending, HandOver};
use crate::core::{Core, Lane, Node, Report};
use crate::journal::Record;
use crate::types::{End, Number};

impl Operation for HandOver {
    fn call(&self, core: &Core) -> Call {
        let Self { from, to } = self;
        let old = core.numbers.field(from.kind, from.number);
        let new = core.numbers.field(to.kind, to.number);
        match to.kind {
            Kind::Fenced => {
                let least = core.locks.next_token(&to.name);
                script::hand_over_fenced(&to.name, &old, &new, to.lease, least)
            }
            Kind::Fair => {
                let (first, publish) = (core.numbers.first_of_run(), core.settings.publish);
                let between = (&old, &new);
                script::hand_over_fair(&to.name, between, to.lease, FAIR_WAIT, &first, publish)
            }
            Kind::Lock | Kind::Read | Kind::Write | Kind::Red => {
                script::hand_over(&to.name, &old, &new, to.lease)
            }
        }
    }

    fn on_reply(&self, core: &mut Core, id: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let passed = match self.to.kind {
            Kind::Fair => {
                core.note_message(&self.to.name, reply);
                script::parse_hand_over_fair(reply)?
            }
            Kind::Lock | Kind::Read | Kind::Write | Kind::Fenced | Kind::Red => {
                script::parse_hand_over(reply)?
            }
        };
        core.on_hand_over_reply(id, op, &self.from, &self.to, passed);
        Ok(())
    }

    /// If Redis accepts no new field (because it is full, say), it still accepts a release.
    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        if !matches!(failure, Failure::Refused(_) | Failure::TooFewReplicas(_)) {
            return core.retry(id, pause);
        }
        if let Some(op) = core.take_op(id) {
            core.on_hand_over_refused(id, self, op.may_have_run);
        }
    }

    fn on_give_up(&mut self, core: &mut Core, id: OpId) {
        let Self { from, to } = self;
        core.journal_gone(from.number);
        core.renumber(to.waiter);
        core.clear_attempt(to, id);
        // The old field has expired by now; a copy may have set the new one just before.
        core.undo(&to.name, to.kind, to.number, to.lease);
        core.ask_again_if_fair(to);
    }

    fn route(&self, core: &Core) -> (Node, Lane) {
        (Node::Main, core.grants_lane())
    }

    fn is_awaited(&self) -> bool {
        self.from.reply_to.is_some()
    }

    fn silence(&mut self, why: &str) -> Option<Silence> {
        self.from.silence(why)
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        visit(self.from.number);
        visit(self.to.number);
    }

    fn ends_hold(&self) -> Option<Number> {
        Some(self.from.number)
    }

    fn is_stale_after_sleep(&self, core: &Core) -> bool {
        self.to.is_stale_after_sleep(core)
    }

    fn trace_parent(&self, core: &Core) -> TraceParent {
        self.to.trace_parent(core)
    }

    fn records(&self) -> Vec<Record> {
        let Self { from, to } = self;
        let orphan = |number, kind| Record::orphan(number, &to.name, kind, Moment::default());
        vec![orphan(from.number, from.kind), orphan(to.number, to.kind)]
    }
}

impl Core {
    /// Applies the reply to a hand-over.
    fn on_hand_over_reply(
        &mut self,
        id: OpId,
        op: &Op,
        from: &Ending,
        to: &Attempt,
        passed: HandOverOutcome,
    ) {
        let name = from.name.clone();
        self.journal_gone(from.number);
        self.long_releases.add(self.now, from);
        self.clear_attempt(to, id);
        let lost = match passed {
            HandOverOutcome::Passed { subscribers, token } => {
                self.count_hand_over(&name);
                self.on_handed_over(&name, subscribers);
                self.confirm(from, None);
                match self.replica_shortfall(&name, op) {
                    Some(why) => self.withdraw(to, token, &why),
                    None => self.on_lock_obtained(to, op.sent, token),
                }
                return self.poll_queue(&name);
            }
            HandOverOutcome::Released => {
                self.forget_successor(to);
                self.confirm(from, None);
                // A message that arrived meanwhile found this script in flight and was ignored.
                self.ask_again_if_fair(to);
                return self.poll_queue(&name);
            }
            _ if op.may_have_run && self.now < from.valid_until => None,
            HandOverOutcome::Missing | HandOverOutcome::WrongType => from.lost(op, End::Missing),
            HandOverOutcome::Stolen => from.lost(op, End::Stolen),
        };
        self.forget_successor(to);
        self.confirm(from, lost);
        self.ask_again_if_fair(to);
        self.poll_queue(&name);
    }

    /// Records that Redis does not have the number of a waiter that did not get the lock and has left meanwhile.
    fn forget_successor(&mut self, to: &Attempt) {
        if !self.locks.is_wanted(to.number) && to.kind != Kind::Fair {
            self.journal_gone(to.number);
        }
    }

    /// Counts a hand-over of this lock.
    pub(super) fn count_hand_over(&mut self, name: &LockName) {
        let group = self.group_label(name);
        self.effects.report(Report::HandOver { group });
        self.locks.count_hand_over(name);
    }

    /// Records that Redis has carried out a hand-over, and the number of subscribers to the lock's messages, if known.
    pub(super) fn on_handed_over(&mut self, name: &LockName, subscribers: Option<u64>) {
        // In a cluster a node counts only its own subscribers, and others may be subscribed at any node.
        let subscribers = subscribers.filter(|_| !self.settings.slots);
        self.locks.on_handed_over(name, subscribers);
        self.ops.set_hand_overs_refused(false);
    }

    /// Handles the case where Redis refused the new holder: the old one is released instead.
    fn on_hand_over_refused(&mut self, id: OpId, hand_over: &HandOver, may_have_run: bool) {
        let HandOver { from, to } = hand_over;
        self.clear_attempt(to, id);
        if !may_have_run {
            self.forget_successor(to);
        } else if to.kind != Kind::Fair || !self.locks.has_waiter(to.waiter) {
            // An earlier copy may have handed it over after all. A fair waiter finds that out by its next attempt, and keeps
            // its position.
            self.renumber(to.waiter);
            self.undo(&to.name, to.kind, to.number, to.lease);
        }
        self.ask_again_if_fair(to);
        if may_have_run {
            self.release_again(from.clone());
        } else {
            self.release(from.clone());
        }
    }

    /// Starts an attempt of a fair waiter that did not get the lock. For other kinds the queue does that.
    fn ask_again_if_fair(&mut self, to: &Attempt) {
        if to.kind == Kind::Fair {
            self.attempt(to.waiter);
        }
    }
}
