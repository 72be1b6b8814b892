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

    /// What a hold's owner asks of all nodes, which is not to be asked any more.
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

    /// A ballot's time is over.
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
