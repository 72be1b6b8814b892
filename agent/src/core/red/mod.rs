//! Red locks: plain locks on several independent servers, held by the owner that has a majority of them.
//!
//! A request that other kinds send to one server goes to all nodes at once: a [`quorum::QuorumOp`], decided by a majority
//! of answers, or once no majority is possible, or at its timeout. Each node's script is a separate op
//! ([`node_op`]), so that a slow node delays nothing that the others have decided.
//!
//! - [`acquire`]: attempts. One without a majority first removes what it got, everywhere, and then retries after a random
//!   pause if several clients competed.
//! - [`release`]: releases and undos, retried on each node until that node confirms.
//! - [`update`]: reentry and leases; renewals, one batch per node; restoring a hold on a node that has lost it, as long
//!   as a majority certainly has it. The validity on each node is in [`super::lease::node_leases`].
//! - [`table`]: the quorum operations in flight.
//! - [`show`], [`force`]: SHOW and FORCE, node by node.

mod acquire;
mod force;
mod node_op;
pub(super) mod quorum;
mod release;
mod show;
mod table;
mod update;

use std::time::Duration;

use redisson::{Family, LockName, Moment};

use super::Core;
use crate::core::ids::OpId;
use crate::protocol::resp::Frame;
use quorum::{Answer, QuorumOp, QuorumRequest, QuorumState};
pub(super) use table::QuorumTable;

impl Core {
    pub(super) fn nodes(&self) -> &[String] {
        self.settings.red.as_ref().map_or(&[], |red| &red.nodes)
    }

    pub(super) fn node_timeout(&self) -> Duration {
        self.settings.red.as_ref().map_or(Duration::ZERO, |red| red.node_timeout)
    }

    /// Returns the number of nodes that make a majority.
    pub(super) fn majority(&self) -> usize {
        self.nodes().len() / 2 + 1
    }

    /// Returns whether only the servers of red locks can have a lock of that name: it is red here, or no script may use it in
    /// the cluster.
    pub(in crate::core) fn is_red_only(&self, name: &LockName) -> bool {
        let unfit = || self.settings.red.is_some() && self.slot_refusal(name).is_some();
        self.family(name) == Some(Family::Red) || unfit()
    }

    /// Returns the refusal of an operator's command about a name that no server of red locks has and that no script may use
    /// in the cluster.
    fn absent(&self, name: &LockName) -> Option<Frame> {
        self.slot_refusal(name).filter(|_| self.family(name) != Some(Family::Red))
    }

    /// Records a node's answer, if it is still awaited.
    fn record_answer(&mut self, id: OpId, node: usize, answer: Answer) {
        let majority = self.majority();
        if self.red.on_answer(id, node, answer)
            && self.red.get(id).is_some_and(|quorum| quorum.is_decided(majority))
        {
            self.conclude(id);
        }
    }

    /// Handles the timeout of a quorum operation.
    pub(super) fn on_quorum_due(&mut self, id: OpId) {
        if self.red.on_due(id, self.now, self.node_timeout()) {
            self.conclude(id);
        }
    }

    /// Registers a quorum operation, to be decided at that instant at the latest.
    fn open(&mut self, quorum: QuorumOp, deadline: Moment) -> OpId {
        let id = self.ops.draw_id();
        self.red.insert(id, quorum, deadline);
        id
    }

    /// Ends a quorum operation with the answers so far.
    fn conclude(&mut self, id: OpId) {
        let Some(quorum) = self.red.remove(id) else { return };
        match &quorum.request {
            QuorumRequest::Acquire(attempt) => {
                let attempt = attempt.clone();
                self.clear_attempt(&attempt, id);
                if quorum.verdict(self.majority()) == QuorumState::Won {
                    self.on_won(quorum, &attempt);
                } else {
                    self.on_not_won(quorum, &attempt);
                }
                self.poll_queue(&attempt.name);
            }
            QuorumRequest::Update(update) => self.on_update_decided(&quorum, update),
            QuorumRequest::Release(_) => self.on_release_decided(quorum),
            QuorumRequest::Undo(_) => self.on_undo_decided(quorum),
            QuorumRequest::Show(show) => self.on_show_decided(&quorum, show),
            QuorumRequest::Look(look) => self.on_look_decided(&quorum, look),
            QuorumRequest::Force { look, seen } => self.on_force_decided(&quorum, look, seen),
        }
    }

    /// Returns the errors of the nodes that refused or did not answer.
    fn errors_of(&self, quorum: &QuorumOp) -> String {
        let nodes = self.nodes().iter().zip(&quorum.answers).zip(&quorum.errors);
        let errors = nodes.filter_map(|((node, answer), error)| match (answer, error) {
            (Answer::Failed { reason, .. }, _) => Some(format!("{node}: {reason}")),
            (Answer::Awaited, Some(error)) => Some(format!("{node}: {error}")),
            (Answer::Awaited, None) => Some(format!("{node}: no reply in time")),
            (Answer::Yes(_) | Answer::No(_) | Answer::Shown(_), _) => None,
        });
        let errors: Vec<_> = errors.collect();
        format!(
            "{} of {} servers do not serve it, a majority is needed: {}",
            errors.len(),
            self.nodes().len(),
            errors.join("; ")
        )
    }
}
