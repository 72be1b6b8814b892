//! One server's share of a quorum operation: the plain verb, sent to one node.

use std::time::Duration;

use redisson::script::{self, BadReply, Call, Value};
use redisson::{Kind, Moment};
use service_kit::trace::TraceParent;

use super::quorum::{Answer, No};
use crate::core::ids::OpId;
use crate::core::ops::operation::Operation;
use crate::core::ops::release::release_call;
use crate::core::ops::renew::renewal_call;
use crate::core::ops::update::lost_end;
use crate::core::ops::verb::{NodeOp, NodeVerb, Renewal};
use crate::core::ops::{Failure, NO_ANSWER, Op, halves};
use crate::core::{Core, Lane, Node, Report};
use crate::journal::Record;
use crate::types::Number;

/// The multiple of the usual pause before a release whose outcome is decided is repeated.
const DECIDED_PAUSES: u32 = 5;

impl Operation for NodeOp {
    fn call(&self, core: &Core) -> Call {
        match &self.verb {
            NodeVerb::Acquire { attempt, .. } => attempt.call(core),
            NodeVerb::Update { update, .. } => update.call(core),
            NodeVerb::Release { name, number, .. } => release_call(core, name, Kind::Red, *number),
            NodeVerb::Renew(form, holds) => renewal_call(core, *form, holds),
            NodeVerb::Restore(Renewal { name, number, .. }, lease) => {
                script::acquire(name, &core.numbers.field(Kind::Red, *number), *lease)
            }
            NodeVerb::Show { name, .. } => script::show(name),
            NodeVerb::Force { name, seen, .. } => seen.call(name, &[], core.publish_of(Kind::Red)),
        }
    }

    fn on_reply(&self, core: &mut Core, _: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let node = self.node;
        core.red.on_node_alive(node);
        match &self.verb {
            NodeVerb::Acquire { quorum, attempt } => {
                let acquired = script::parse_acquire(reply)?;
                core.on_node_acquired(node, op.sent, *quorum, attempt, acquired);
            }
            NodeVerb::Update { quorum, update } => {
                let outcome = script::parse_renew(reply, 1)?[0];
                let lease = update.change.lease().unwrap_or(core.settings.lease);
                let answer = match lost_end(outcome) {
                    None => Answer::Yes(lease.valid_until(op.sent)),
                    Some(end) => Answer::No(No::Gone(end)),
                };
                core.record_answer(*quorum, node, answer);
            }
            NodeVerb::Release { quorum, name, valid_until, .. } => {
                let released = script::parse_release(reply)?;
                core.note_message(name, reply);
                // An earlier copy of it may have removed the hold; while it was valid nothing else can have. Later its lease is
                // over.
                let expected =
                    op.may_have_run && core.now < *valid_until || op.sent >= *valid_until;
                core.on_node_released(node, *quorum, name, released, expected);
            }
            NodeVerb::Renew(form, holds) => {
                let outcomes = script::parse_renew(reply, holds.len())?;
                core.on_node_renewed(node, op.sent, *form, holds, &outcomes);
            }
            NodeVerb::Show { quorum, .. } => {
                let shown = script::parse_show(reply)?;
                core.record_answer(*quorum, node, Answer::Shown(Box::new(shown)));
            }
            NodeVerb::Force { quorum, name, .. } => {
                let forced = script::parse_force_release(reply)?;
                core.note_message(name, reply);
                core.on_node_forced(node, *quorum, op.may_have_run, forced);
            }
            NodeVerb::Restore(hold, lease) => {
                let acquired = script::parse_acquire(reply)?;
                core.on_node_restored(node, lease.valid_until(op.sent), op.sent, hold, &acquired);
            }
        }
        Ok(())
    }

    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        let node = self.node;
        let text = failure.text();
        let refused = matches!(failure, Failure::Refused(_));
        match &self.verb {
            NodeVerb::Acquire { quorum, .. } => {
                if matches!(failure, Failure::Lost(_)) {
                    core.red.on_node_silent(node, core.now);
                }
                if !refused {
                    let server = core.nodes()[node].clone();
                    core.effects.report(Report::NodeVote { node: server, outcome: "silent" });
                }
                let may_have_run = core.take_op(id).is_some_and(|op| op.may_have_run);
                let answer = Answer::Failed { reason: text.to_owned(), may_have_run };
                core.record_answer(*quorum, node, answer);
            }
            NodeVerb::Show { quorum, .. } => core.end_node_op(id, *quorum, node, text),
            NodeVerb::Force { quorum, .. }
                if refused && core.ops.get(id).is_some_and(|op| op.may_have_run) =>
            {
                core.take_op(id);
                let answer = Answer::Failed { reason: text.to_owned(), may_have_run: true };
                core.record_answer(*quorum, node, answer);
            }
            NodeVerb::Update { quorum, .. } | NodeVerb::Force { quorum, .. } => {
                if refused {
                    core.end_node_op(id, *quorum, node, text);
                } else if core.red.on_error(*quorum, node, text) {
                    core.retry(id, pause);
                } else {
                    // The caller already has its answer.
                    core.take_op(id);
                }
            }
            NodeVerb::Release { quorum, .. } => {
                // One whose outcome is decided is repeated rarely: many may be pending for a server that is down.
                let awaited = core.red.on_error(*quorum, node, text);
                core.retry(id, if awaited { pause } else { pause * DECIDED_PAUSES });
            }
            NodeVerb::Renew(form, holds) => {
                core.take_op(id);
                let Some(halves) = halves(holds, failure) else {
                    return core.on_node_renewal_failed(node, holds, pause);
                };
                for holds in halves {
                    core.send_node_renewals(node, *form, holds);
                }
            }
            NodeVerb::Restore(hold, _) => {
                core.take_op(id);
                core.on_node_renewal_failed(node, std::slice::from_ref(hold), pause);
            }
        }
    }

    fn on_unknown(&self, core: &mut Core) {
        if let NodeVerb::Force { quorum, .. } = &self.verb {
            let answer = Answer::Failed { reason: NO_ANSWER.to_owned(), may_have_run: true };
            core.record_answer(*quorum, self.node, answer);
        }
    }

    /// The lease is over, so the number is gone from the node.
    fn on_give_up(&mut self, core: &mut Core, _: OpId) {
        if let NodeVerb::Release { quorum, .. } = &self.verb {
            core.record_answer(*quorum, self.node, Answer::Yes(Moment::default()));
        }
    }

    /// A script that may create a field keeps its order with one that removes it.
    fn route(&self, _: &Core) -> (Node, Lane) {
        let renews = matches!(self.verb, NodeVerb::Renew(..));
        (Node::Red(self.node), if renews { Lane::Renewals } else { Lane::Commands })
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        match &self.verb {
            NodeVerb::Acquire { attempt, .. } => attempt.each_number(visit),
            NodeVerb::Update { update, .. } => update.each_number(visit),
            NodeVerb::Release { number, .. } => visit(*number),
            NodeVerb::Restore(hold, _) => visit(hold.number),
            NodeVerb::Renew(..) | NodeVerb::Show { .. } | NodeVerb::Force { .. } => {}
        }
    }

    fn is_stale_after_sleep(&self, core: &Core) -> bool {
        match &self.verb {
            NodeVerb::Acquire { quorum, .. } | NodeVerb::Update { quorum, .. } => {
                core.red.contains(*quorum)
            }
            _ => false,
        }
    }

    /// Once the majority has confirmed, nobody waits for single nodes.
    fn may_be_abandoned(&self, core: &Core) -> bool {
        match &self.verb {
            NodeVerb::Release { quorum, .. } => !core.red.contains(*quorum),
            _ => false,
        }
    }

    fn records(&self) -> Vec<Record> {
        match &self.verb {
            NodeVerb::Release { name, number, after, .. } => {
                vec![Record::orphan(*number, name, Kind::Red, *after)]
            }
            _ => Vec::new(),
        }
    }

    fn trace_parent(&self, core: &Core) -> TraceParent {
        match &self.verb {
            NodeVerb::Acquire { attempt, .. } => attempt.trace_parent(core),
            NodeVerb::Update { update, .. } => update.trace_parent(core),
            NodeVerb::Restore(hold, _) => core.hold_parent(hold.number),
            NodeVerb::Renew(..)
            | NodeVerb::Release { .. }
            | NodeVerb::Show { .. }
            | NodeVerb::Force { .. } => TraceParent::default(),
        }
    }
}

impl Core {
    /// Ends the share of a node that has no answer, for this reason, and has changed nothing.
    fn end_node_op(&mut self, id: OpId, quorum: OpId, node: usize, reason: &str) {
        self.take_op(id);
        self.record_answer(quorum, node, Answer::unchanged(reason));
    }
}
