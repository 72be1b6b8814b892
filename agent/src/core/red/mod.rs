//! Red locks: plain locks on several independent servers, held by whoever has a majority of them.
//!
//! A request that other kinds send to one server goes to all nodes at once: a [`quorum::QuorumOp`], decided by a majority
//! of answers, or once no majority is possible, or at its timeout. Each node's script is an op of its own
//! ([`NodeOp`]), so that a slow node delays nothing that the others have decided.
//!
//! - [`acquire`]: attempts. One without a majority first removes what it got, everywhere, and then retries after a random
//!   pause if several clients competed.
//! - [`release`]: releases and undoings, retried on each node until that node confirms.
//! - [`update`]: re-entry and leases; renewals, a batch for each node; restoring a hold on a node that has lost it, as long
//!   as a majority is sure of it. How long each node keeps a hold is in [`super::lease::node_leases`].
//! - [`node_subscriptions`]: the nodes that reported a lock free.
//! - [`show`], [`force`]: SHOW and FORCE, node by node.

mod acquire;
mod force;
mod node_op;

pub(super) mod node_subscriptions;
pub(super) mod quorum;
mod release;
mod show;
mod update;

use std::collections::HashMap;
use std::time::Duration;

use redisson::Moment;

use super::Core;
use super::ops::OpId;
use super::ops::update::HoldUpdate;
use super::timer::Timer;
pub(super) use node_op::NodeOp;
use quorum::{Answer, QuorumOp, QuorumRequest};

/// The time for which a node that did not answer is left alone, unless it answers before.
const SILENCE: Duration = Duration::from_secs(1);

/// The independent servers of red locks.
#[derive(Debug, Clone)]
pub struct RedSettings {
    /// The name of each in errors and logs: its address, without secrets. An odd number, at least three.
    pub nodes: Vec<String>,
    /// The time that an attempt waits for a node.
    pub node_timeout: Duration,
}

/// The quorum operations under way, and the nodes that are silent.
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

    /// Returns the number of nodes that make a majority.
    pub(super) fn majority(&self) -> usize {
        self.nodes().len() / 2 + 1
    }

    /// Returns whether an attempt asks this node. A silent one is tried once in a while only, so that what it still owes
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

    /// Takes the pending update of a red hold: no node is asked any more.
    pub(super) fn take_update_quorum(&mut self, id: OpId) -> Option<HoldUpdate> {
        let quorum = self.red.quorum_ops.get_mut(&id)?;
        let QuorumRequest::Update(asked) = &quorum.request else { return None };
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

    /// A quorum operation's time is over.
    pub(super) fn ballot_due(&mut self, id: OpId) {
        let Some(quorum) = self.red.quorum_ops.get_mut(&id) else { return };
        quorum.armed = Moment::NEVER;
        if matches!(quorum.request, QuorumRequest::Acquire(_)) {
            for node in quorum.awaited().collect::<Vec<_>>() {
                self.fell_silent(node);
            }
        }
        self.settle_quorum(id, true);
    }

    /// Returns the errors of the nodes that refused or did not answer.
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
