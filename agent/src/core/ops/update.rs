//! Update: reentry, partial release, or another lease of one hold.

use std::sync::Arc;
use std::time::Duration;

use redisson::script::{self, BadReply, Call, MissingMarkers, RenewOutcome, Value};
use redisson::{Kind, LockName, Moment};
use service_kit::trace::TraceParent;

use super::operation::Operation;
use super::{Failure, Op};
use crate::core::ids::{OpId, ReplyTo};
use crate::core::lease::hold::Hold;
use crate::core::ops::verb::{Change, HoldUpdate, Verb};
use crate::core::session::reply::Reply;
use crate::core::{Core, Lane, Node};
use crate::types::{End, Number};

impl Operation for HoldUpdate {
    /// No lease is shortened: the agent itself ends a shorter one in time.
    fn call(&self, core: &Core) -> Call {
        let wanted = match self.change {
            Change::Reenter(lease) | Change::Extend(lease) => {
                Some(lease.unwrap_or(core.settings.lease))
            }
            Change::Partial => None,
        };
        let hold = [(&self.name, core.numbers.field(self.kind, self.number))];
        match self.kind {
            Kind::Read => script::renew_read(hold, self.count, wanted, self.missing),
            Kind::Lock | Kind::Fair | Kind::Write | Kind::Fenced | Kind::Red => {
                script::renew(hold, self.count, wanted)
            }
        }
    }

    fn on_reply(&self, core: &mut Core, _: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let outcome = script::parse_renew(reply, 1)?[0];
        if outcome == RenewOutcome::MarkersMissing {
            core.update_hold(Self { missing: MissingMarkers::Restore, ..self.clone() });
        } else {
            core.on_confirmed_update(op, self, outcome);
        }
        Ok(())
    }

    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        let refused = matches!(failure, Failure::Refused(_) | Failure::TooFewReplicas(_));
        if !refused || matches!(self.change, Change::Partial) {
            return core.retry(id, pause);
        }
        core.take_op(id);
        core.on_update_failed(self);
        core.answer(self.reply_to, Core::unavailable_for(&self.name, failure.text()));
    }

    fn on_silence(&self, core: &mut Core) {
        core.on_update_failed(self);
    }

    fn route(&self, core: &Core) -> (Node, Lane) {
        match self.change {
            Change::Reenter(_) | Change::Extend(_) => (Node::Main, core.grants_lane()),
            Change::Partial => (Node::Main, Lane::Commands),
        }
    }

    /// The count in Redis may differ from ours afterwards; the next renewal corrects it.
    fn command(&self) -> Option<(ReplyTo, &LockName)> {
        Some((self.reply_to, &self.name))
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        visit(self.number);
    }

    fn is_stale_after_sleep(&self, _: &Core) -> bool {
        true
    }

    fn trace_parent(&self, core: &Core) -> TraceParent {
        match self.change {
            Change::Reenter(_) => TraceParent::of(&self.span),
            Change::Partial | Change::Extend(_) => core.hold_parent(self.number),
        }
    }
}

impl Core {
    /// Sends an update of a hold.
    pub(in crate::core) fn update_hold(&mut self, update: HoldUpdate) {
        let number = update.number;
        let lease = update.change.lease();
        let id = match update.kind {
            Kind::Red => self.update_red(&update),
            Kind::Lock | Kind::Fair | Kind::Read | Kind::Write | Kind::Fenced => {
                // It is repeated until its command is answered.
                self.send(Verb::Update(update), Duration::MAX)
            }
        };
        self.leases.begin_update(number, id, lease);
    }

    /// Counts a reentry that has failed. Other updates are not counted.
    pub(in crate::core) fn on_update_failed(&mut self, update: &HoldUpdate) {
        let HoldUpdate { name, kind, span, change, .. } = update;
        if let Change::Reenter(_) = change {
            self.on_not_acquired(name, *kind, span, "error");
        }
    }

    /// Applies the reply to an update, unless too few replicas have it.
    fn on_confirmed_update(&mut self, op: &Op, update: &HoldUpdate, outcome: RenewOutcome) {
        let extended =
            !matches!(update.change, Change::Partial) && matches!(outcome, RenewOutcome::Renewed);
        if extended
            && self.leases.contains(update.number)
            && let Some(why) = self.replica_shortfall(&update.name, op)
        {
            return self.update_withdrawn(update, &why);
        }
        self.on_update_reply(op.sent, update, lost_end(outcome));
    }

    /// Refuses an update that too few replicas have. The hold stays unchanged; a renewal restores its count in Redis.
    fn update_withdrawn(&mut self, update: &HoldUpdate, why: &str) {
        let HoldUpdate { name, number, reply_to, .. } = update;
        self.on_update_failed(update);
        if let Some(index) = self.leases.begin_renewal(*number) {
            self.renew(vec![index]);
        }
        let refused = match update.change {
            Change::Extend(_) => "its lease is not changed",
            Change::Reenter(_) | Change::Partial => "it is not entered again",
        };
        self.answer(*reply_to, Self::unavailable_for(name, &format!("{refused}: {why}")));
    }

    /// Applies the reply to an update that was sent at `sent`, according to which the hold may be lost.
    pub(in crate::core) fn on_update_reply(
        &mut self,
        sent: Moment,
        update: &HoldUpdate,
        lost: Option<End>,
    ) {
        let HoldUpdate { name, number, count, owner, reply_to, span, .. } = update;
        if let Some(end) = lost {
            self.lose(*number, end);
        }
        let jitter = self.numbers.jitter();
        let before = self.leases.get(*number).map(Hold::lease_terms);
        let updated = self.leases.on_updated(*number, update.change, *count, sent, jitter);
        let Some((before, hold)) = before.zip(updated) else {
            // It was lost, according to this answer or meanwhile.
            let end = self.loss_of(*owner, name);
            self.on_update_failed(update);
            return self.answer(*reply_to, Self::lost(name, end.unwrap_or(End::Missing)));
        };
        let reply = match update.change {
            Change::Reenter(_) => {
                let (grant, group) = (hold.grant(0), Arc::clone(&hold.group));
                self.on_reentered(*reply_to, grant, group, span)
            }
            Change::Partial => Reply::StillHeld { number: *number, count: *count },
            Change::Extend(_) => {
                Reply::Valid { number: *number, valid_until: hold.valid_until, before }
            }
        };
        self.clear_jeopardy(*number);
        self.journal_hold(*number);
        self.answer_with(*reply_to, reply);
    }
}

/// Returns the end of a hold that was not renewed.
pub(in crate::core) fn lost_end(outcome: RenewOutcome) -> Option<End> {
    match outcome {
        RenewOutcome::Renewed | RenewOutcome::MarkersMissing => None,
        RenewOutcome::Missing | RenewOutcome::WrongType => Some(End::Missing),
        RenewOutcome::Stolen => Some(End::Stolen),
    }
}
