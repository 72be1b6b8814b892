//! The table of quorum operations in flight, and the nodes that are silent.

use std::time::Duration;

use redisson::Moment;

use super::quorum::{Answer, QuorumOp, QuorumRequest};
use crate::collections::HashMap;
use crate::core::ids::{OpId, ReplyTo};
use crate::core::ops::verb::HoldUpdate;
use crate::core::timer::{HELD_UP, Timers};
use crate::protocol::resp::Frame;

/// The time for which a node that did not answer is left alone, unless it answers earlier.
const SILENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(in crate::core) struct QuorumTable {
    ops: HashMap<OpId, QuorumOp>,
    timers: Timers<OpId>,
    /// Nodes that let an attempt's time pass, and the instant at which each is asked again even so.
    silent: HashMap<usize, Moment>,
}

impl QuorumTable {
    pub(in crate::core) fn get(&self, id: OpId) -> Option<&QuorumOp> {
        self.ops.get(&id)
    }

    pub(in crate::core) fn contains(&self, id: OpId) -> bool {
        self.ops.contains_key(&id)
    }

    #[cfg(test)]
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(in crate::core) fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    pub(in crate::core) fn pop_due(&mut self, now: Moment) -> Option<OpId> {
        self.timers.pop_due(now)
    }

    /// Adds a quorum operation, to be decided at that instant at the latest.
    pub(super) fn insert(&mut self, id: OpId, op: QuorumOp, deadline: Moment) {
        let op = self.ops.entry(id).or_insert(op);
        self.timers.set(&mut op.armed, deadline, id);
    }

    pub(super) fn remove(&mut self, id: OpId) -> Option<QuorumOp> {
        let mut op = self.ops.remove(&id)?;
        self.timers.set(&mut op.armed, Moment::NEVER, id);
        Some(op)
    }

    /// Takes the pending update of a hold: no further node is asked.
    pub(in crate::core) fn take_update(&mut self, id: OpId) -> Option<HoldUpdate> {
        let QuorumRequest::Update(_) = self.get(id)?.request else { return None };
        match self.remove(id)?.request {
            QuorumRequest::Update(update) => Some(update),
            _ => None,
        }
    }

    /// Records a node's answer. Returns whether the operation is still in flight.
    pub(super) fn on_answer(&mut self, id: OpId, node: usize, answer: Answer) -> bool {
        let op = self.ops.get_mut(&id);
        op.map(|op| op.answers[node] = answer).is_some()
    }

    /// Records the error of a node that is asked again. Returns whether the operation is still in flight.
    pub(super) fn on_error(&mut self, id: OpId, node: usize, text: &str) -> bool {
        let op = self.ops.get_mut(&id);
        op.map(|op| op.errors[node] = Some(text.to_owned())).is_some()
    }

    /// Sets the reply that is due once the operation is decided.
    pub(super) fn set_final_reply(&mut self, id: OpId, word: (ReplyTo, Frame)) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.final_reply = Some(word);
        }
    }

    /// Handles an operation's deadline. Returns whether it is over. Nodes that let an attempt's time pass count as silent.
    ///
    /// If the agent was held up, answers may have arrived unread: an attempt gets `node_timeout` once more.
    pub(super) fn on_due(&mut self, id: OpId, now: Moment, node_timeout: Duration) -> bool {
        let Some(op) = self.ops.get_mut(&id) else { return false };
        let due = std::mem::replace(&mut op.armed, Moment::NEVER);
        if !matches!(op.request, QuorumRequest::Acquire(_)) {
            return true;
        }
        if now.since(due) >= HELD_UP && due == op.sent + node_timeout {
            self.timers.set(&mut op.armed, now + node_timeout, id);
            return false;
        }
        for node in op.awaited().collect::<Vec<_>>() {
            self.on_node_silent(node, now);
        }
        true
    }

    /// Records that a node let an attempt's time pass.
    pub(super) fn on_node_silent(&mut self, node: usize, now: Moment) {
        self.silent.entry(node).or_insert(now + SILENCE);
    }

    /// Admits a node to an attempt. Returns whether the attempt asks it. A silent node is tried only once in a while, so that
    /// scripts that it has not answered do not pile up.
    pub(super) fn admit(&mut self, node: usize, now: Moment) -> bool {
        match self.silent.get_mut(&node) {
            None => true,
            Some(until) if *until <= now => {
                *until = now + SILENCE;
                true
            }
            Some(_) => false,
        }
    }

    /// Records that a node answers again.
    pub(super) fn on_node_alive(&mut self, node: usize) {
        self.silent.remove(&node);
    }
}
