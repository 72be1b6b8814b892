//! Red locks: plain locks on several independent servers, held by whoever has a majority of them.
//!
//! What a plain lock asks of its one server is put to all nodes at once here: a [`ballot::Ballot`], decided by a majority
//! of answers, or when a majority cannot come about any more, or when its time is over. Each node's script is an op of its
//! own ([`Ask`]), so that what goes on with one node delays nothing that the others have settled.
//!
//! - [`take`]: LOCK's attempts. One that did not get a majority takes back what it got, everywhere, before anything is
//!   told of it, and tries again after a random pause where several were at it.
//! - [`give`]: releases and undoings, repeated on each node until that node confirms.
//! - [`keep`]: re-entry and leases; renewals, a batch for each node; setting a hold anew on a node that has lost it, as
//!   long as a majority is sure of it.
//! - [`votes`]: how long each node is sure to keep a hold. The hold's validity is that of the majority.
//! - [`ears`]: which nodes told that a lock may be had.
//! - [`show`]: SHOW, which tells what each node has.
//! - [`force`]: FORCE, which releases on each node what was seen there.

mod acquire;
mod force;
pub(super) mod node_leases;
pub(super) mod node_subscriptions;
pub(super) mod quorum;
mod release;
mod show;
mod update;

use std::collections::HashMap;
use std::time::Duration;

use redisson::script::{self, BadReply, Call, LockDetails, Value};
use redisson::{Kind, LockName, Moment};
use service_kit::trace::TraceParent;

use super::ops::force::seen_now;
use super::ops::{Asked, Attempt, Change, Failure, Op, OpId, Purpose, Renewal};
use super::timer::Timer;
use super::{Core, Lane};
use crate::types::Number;
use quorum::{Answer, No, QuorumOp, QuorumRequest};

/// For how long a node that did not answer in time is left alone, unless it answers before.
const SILENCE: Duration = Duration::from_secs(1);

/// The independent servers of red locks.
#[derive(Debug, Clone)]
pub struct RedSettings {
    /// What to call each in errors and logs: its address, without secrets. An odd number, at least three.
    pub nodes: Vec<String>,
    /// How long an attempt waits for a node.
    pub node_timeout: Duration,
}

/// One script for one node.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) node: usize,
    pub(super) what: What,
}

/// What it is for.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// To have a waiter's number stand there.
    Take { quorum: OpId, attempt: Attempt },
    /// To change the count or lease of a hold there.
    Keep { quorum: OpId, asked: Asked, change: Change },
    /// To have a number gone from there. What finds nothing before `valid_until`, when it may be a repetition, did it.
    Release { quorum: OpId, name: LockName, number: Number, valid_until: Moment },
    /// To renew holds there.
    Renew(Vec<Renewal>),
    /// To tell what stands there.
    Show { quorum: OpId, name: LockName },
    /// To release for an operator what was seen there.
    Force { quorum: OpId, name: LockName, shown: Box<LockDetails> },
    /// To set a hold anew there, where it is gone and nobody else has the lock.
    Restore(Renewal),
}

impl Ask {
    /// Down which connection it goes. What may create a field keeps its order with what removes it.
    pub(super) fn lane(&self) -> Lane {
        if matches!(self.what, What::Renew(_)) { Lane::Renewals } else { Lane::Commands }
    }

    /// The number whose field it may write or remove.
    pub(super) fn concerns(&self, sought: Number) -> bool {
        match &self.what {
            What::Take { attempt, .. } => attempt.number == sought,
            What::Keep { asked, .. } => asked.number == sought,
            What::Release { number, .. } => *number == sought,
            What::Restore(hold) => hold.number == sought,
            What::Renew(_) | What::Show { .. } | What::Force { .. } => false,
        }
    }
}

/// What the core knows of the nodes.
#[derive(Debug, Default)]
pub(super) struct Red {
    /// Nodes that let an attempt's time pass, and when each is asked again all the same.
    silent: HashMap<usize, Moment>,
    pub(super) quorum_ops: HashMap<OpId, QuorumOp>,
}

impl Core {
    pub(super) fn nodes(&self) -> &[String] {
        self.settings.red.as_ref().map_or(&[], |red| &red.nodes)
    }

    fn node_timeout(&self) -> Duration {
        self.settings.red.as_ref().map_or(Duration::ZERO, |red| red.node_timeout)
    }

    /// How many nodes make a majority.
    pub(super) fn majority(&self) -> usize {
        self.nodes().len() / 2 + 1
    }

    /// Whether an attempt asks this node. One that keeps silent is tried once in a while only, so that what it still owes
    /// an answer to does not pile up.
    fn is_asked(&mut self, node: usize) -> bool {
        let now = self.now;
        match self.red.silent.get_mut(&node) {
            None => true,
            Some(until) if *until <= now => {
                *until = now + SILENCE;
                true
            }
            Some(_) => false,
        }
    }

    fn fell_silent(&mut self, node: usize) {
        let until = self.now + SILENCE;
        self.red.silent.entry(node).or_insert(until);
    }

    /// The script for one node.
    pub(super) fn red_call(&self, ask: &Ask) -> Call {
        let lease = self.settings.lease;
        let field = |number| self.field(Kind::Red, number);
        match &ask.what {
            What::Take { attempt: Attempt { name, number, lease, .. }, .. } => {
                script::acquire(name, &field(*number), *lease)
            }
            What::Restore(Renewal { name, number, .. }) => {
                script::acquire(name, &field(*number), lease)
            }
            What::Keep { asked: Asked { name, number, count, .. }, change, .. } => {
                script::renew([(name, field(*number), *count)], change.lease().unwrap_or(lease))
            }
            What::Renew(holds) => {
                let holds = holds.iter().map(|hold| (&hold.name, field(hold.number), hold.count));
                script::renew(holds, lease)
            }
            What::Release { name, number, .. } => {
                script::release(name, &field(*number), self.settings.publish)
            }
            What::Show { name, .. } => script::show(name),
            What::Force { name, shown, .. } => seen_now(name, shown, self.settings.publish),
        }
    }

    /// What one node's script is a part of, in a trace.
    pub(super) fn place_of_ask(&self, ask: &Ask) -> TraceParent {
        let of_hold = |number| {
            let hold = self.holds.get(&number);
            hold.map_or_else(TraceParent::default, |hold| TraceParent::of(&hold.span))
        };
        match &ask.what {
            What::Take { attempt, .. } => {
                let waiter = self.waiters.get(&attempt.waiter);
                waiter.map_or_else(TraceParent::default, |waiter| TraceParent::of(&waiter.span))
            }
            What::Keep { asked, change: Change::Reenter(_), .. } => TraceParent::of(&asked.span),
            What::Keep { asked, .. } => of_hold(asked.number),
            What::Restore(hold) => of_hold(hold.number),
            What::Renew(_) | What::Release { .. } | What::Show { .. } | What::Force { .. } => {
                TraceParent::default()
            }
        }
    }

    /// A node answered.
    pub(super) fn node_answered(
        &mut self,
        op: &Op,
        ask: &Ask,
        reply: &Value,
    ) -> Result<(), BadReply> {
        let node = ask.node;
        self.red.silent.remove(&node);
        match &ask.what {
            What::Take { quorum, attempt } => {
                let acquired = script::parse_acquire(reply)?;
                self.node_took(node, op.sent, *quorum, attempt, acquired);
            }
            What::Keep { quorum, change, .. } => {
                let kept = script::parse_renew(reply, 1)?[0];
                let lease = change.lease().unwrap_or(self.settings.lease);
                let answer = match crate::core::lease::update::lost_end(kept) {
                    None => Answer::Yes(lease.valid_until(op.sent)),
                    Some(end) => Answer::No(No::Gone(end)),
                };
                self.record_answer(*quorum, node, answer);
            }
            What::Release { quorum, name, valid_until, .. } => {
                let released = script::parse_release(reply)?;
                let repeated = op.may_have_run && self.now < *valid_until;
                self.node_released(node, *quorum, name, released, repeated);
            }
            What::Renew(holds) => {
                let kept = script::parse_renew(reply, holds.len())?;
                self.node_renewed(node, op.sent, holds, &kept);
            }
            What::Show { quorum, .. } => {
                let shown = script::parse_show(reply)?;
                self.record_answer(*quorum, node, Answer::Shown(Box::new(shown)));
            }
            What::Force { quorum, .. } => {
                let forced = script::parse_force_release(reply)?;
                self.node_forced(node, *quorum, forced);
            }
            What::Restore(hold) => {
                let acquired = script::parse_acquire(reply)?;
                self.node_restored(node, op.sent, hold, &acquired);
            }
        }
        Ok(())
    }

    /// A node's script brought no reply of its own.
    pub(super) fn node_failed(&mut self, id: OpId, ask: &Ask, failure: &Failure, pause: Duration) {
        let node = ask.node;
        let text = failure.text();
        let refused = matches!(failure, Failure::Refused(_));
        match &ask.what {
            What::Take { quorum, .. } => {
                let may_have_run = matches!(failure, Failure::Lost(_));
                if may_have_run {
                    self.fell_silent(node);
                }
                self.take_op(id);
                self.record_answer(
                    *quorum,
                    node,
                    Answer::Failed { said: text.to_owned(), may_have_run },
                );
            }
            What::Show { quorum, .. } => {
                self.take_op(id);
                self.record_answer(
                    *quorum,
                    node,
                    Answer::Failed { said: text.to_owned(), may_have_run: false },
                );
            }
            What::Keep { quorum, .. } | What::Force { quorum, .. } if refused => {
                self.take_op(id);
                self.record_answer(
                    *quorum,
                    node,
                    Answer::Failed { said: text.to_owned(), may_have_run: false },
                );
            }
            What::Keep { quorum, .. }
            | What::Release { quorum, .. }
            | What::Force { quorum, .. } => {
                let open = self.red.quorum_ops.get_mut(quorum);
                if let Some(quorum) = open {
                    quorum.troubles[node] = Some(text.to_owned());
                } else if matches!(ask.what, What::Keep { .. } | What::Force { .. }) {
                    // Whoever asked has been answered.
                    self.take_op(id);
                    return;
                }
                self.retry(id, pause);
            }
            What::Renew(holds) => {
                self.take_op(id);
                self.node_renewal_failed(node, holds, pause);
            }
            What::Restore(hold) => {
                self.take_op(id);
                self.node_renewal_failed(node, std::slice::from_ref(hold), pause);
            }
        }
    }

    /// The lease that a node's script was about has run out by itself.
    pub(super) fn node_given_up(&mut self, ask: &Ask) {
        if let What::Release { quorum, .. } = &ask.what {
            self.record_answer(*quorum, ask.node, Answer::Yes(Moment::default()));
        }
    }

    /// Whether what a node said while the agent slept is of no use any more, so that it is asked again.
    pub(super) fn asks_again(&self, ask: &Ask) -> bool {
        match &ask.what {
            What::Take { quorum, .. } | What::Keep { quorum, .. } => {
                self.red.quorum_ops.contains_key(quorum)
            }
            _ => false,
        }
    }

    /// Whether anybody waits for what becomes of an op. Nobody does for what single nodes have yet to confirm when the
    /// majority has.
    pub(super) fn is_waited_for(&self, op: &Op) -> bool {
        match &op.purpose {
            Purpose::Red(Ask { what: What::Release { quorum, .. }, .. }) => {
                self.red.quorum_ops.contains_key(quorum)
            }
            _ => true,
        }
    }

    /// What a hold's owner asks of all nodes, which is not to be asked any more.
    pub(super) fn take_keep_ballot(&mut self, id: OpId) -> Option<Asked> {
        let quorum = self.red.quorum_ops.get_mut(&id)?;
        let QuorumRequest::Keep(asked, _) = &quorum.request else { return None };
        let asked = asked.clone();
        self.timers.set(&mut quorum.armed, Moment::NEVER, Timer::Quorum(id));
        self.red.quorum_ops.remove(&id);
        Some(asked)
    }

    /// Takes a node's answer in, if somebody still waits for it.
    fn record_answer(&mut self, id: OpId, node: usize, answer: Answer) {
        if let Some(quorum) = self.red.quorum_ops.get_mut(&id) {
            quorum.answers[node] = answer;
            self.settle_quorum(id, false);
        }
    }

    /// A ballot's time is over.
    pub(super) fn ballot_due(&mut self, id: OpId) {
        let Some(quorum) = self.red.quorum_ops.get_mut(&id) else { return };
        quorum.armed = Moment::NEVER;
        if matches!(quorum.request, QuorumRequest::Take(_)) {
            for node in quorum.awaited().collect::<Vec<_>>() {
                self.fell_silent(node);
            }
        }
        self.settle_quorum(id, true);
    }

    /// What the nodes that did not answer, or refuse, have to say for themselves.
    fn troubles(&self, quorum: &QuorumOp) -> String {
        let said = self.nodes().iter().zip(&quorum.answers).zip(&quorum.troubles);
        let said = said.filter_map(|((node, answer), trouble)| match (answer, trouble) {
            (Answer::Failed { said, .. }, _) => Some(format!("{node}: {said}")),
            (Answer::Awaited, Some(trouble)) => Some(format!("{node}: {trouble}")),
            (Answer::Awaited, None) => Some(format!("{node}: no answer in time")),
            _ => None,
        });
        let said: Vec<_> = said.collect();
        format!(
            "{} of {} servers do not serve it, a majority is needed: {}",
            said.len(),
            self.nodes().len(),
            said.join("; ")
        )
    }
}
