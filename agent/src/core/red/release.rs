//! Releases of red locks, and undos of attempts: repeated on each node until that node confirms, or the lease is over.

use std::time::Duration;

use redisson::script::ReleaseOutcome;
use redisson::{Kind, Lease, LockName, Moment};

use super::quorum::{Answer, No, QuorumOp, QuorumRequest, QuorumState, Undoing};
use crate::core::Core;
use crate::core::ids::OpId;
use crate::core::ops::verb::{Ending, NodeOp, NodeVerb, Verb};
use crate::protocol::resp::Frame;
use crate::types::{End, Number};

impl Core {
    /// Releases a hold that has ended here on all nodes that may have it, but not before that instant. Complete when a
    /// majority no longer has it; the other nodes are still asked.
    pub(in crate::core) fn release_red(&mut self, at: Moment, ending: Ending) {
        let (name, number) = (ending.name.clone(), ending.number);
        let (valid_until, after) = (ending.valid_until, ending.relied_on_until());
        let give_up = at.since(self.now) + self.retry_window(ending.longest);
        self.begin_leaving(&name, Kind::Red);
        let nodes = ending.nodes.clone();
        let quorum = self.open_removal(QuorumRequest::Release(ending), &nodes, at);
        let verb = NodeVerb::Release { quorum, name, number, valid_until, after };
        self.release_on(&nodes, at, give_up, &verb);
    }

    /// Removes a number of an earlier run from all nodes, but not before that instant. Until they confirm that, for a short
    /// time, the name counts as held.
    pub(in crate::core) fn undo_earlier_red(
        &mut self,
        name: LockName,
        number: Number,
        after: Moment,
    ) {
        self.begin_leaving(&name, Kind::Red);
        let (nodes, at) = ((0..self.nodes().len()).collect::<Vec<_>>(), after.max(self.now));
        let undoing = Undoing { name: name.clone(), number, waiter: None };
        let quorum = self.open_removal(QuorumRequest::Undo(undoing), &nodes, at);
        let verb = NodeVerb::Release { quorum, name, number, valid_until: Moment::NEVER, after };
        // The journal does not contain its lease, which may be long.
        self.release_on(&nodes, at, Duration::MAX, &verb);
    }

    /// Registers the removal of a number, begun at that instant, from `nodes`. The others do not have it.
    fn open_removal(&mut self, request: QuorumRequest, nodes: &[usize], at: Moment) -> OpId {
        let mut quorum = QuorumOp::new(request, self.now, self.nodes().len());
        for (node, answer) in quorum.answers.iter_mut().enumerate() {
            if !nodes.contains(&node) {
                *answer = Answer::Yes(Moment::default());
            }
        }
        self.open(quorum, at + self.settings.response_timeout)
    }

    fn release_on(&mut self, nodes: &[usize], at: Moment, give_up: Duration, verb: &NodeVerb) {
        for node in nodes {
            let op = NodeOp { node: *node, verb: verb.clone() };
            self.send_at(at, Verb::Node(op), give_up);
        }
    }

    /// Removes a number that nobody holds, and that had this lease, from `nodes`. Until those in `sure`, which have it,
    /// confirm the removal, the name counts as held. Returns `None` if `sure` is empty.
    pub(super) fn undo_red(
        &mut self,
        undoing: Undoing,
        lease: Lease,
        nodes: &[usize],
        sure: &[usize],
    ) -> Option<OpId> {
        let (name, number) = (undoing.name.clone(), undoing.number);
        let quorum = if sure.is_empty() {
            // Nobody waits for their outcome.
            self.ops.draw_id()
        } else {
            self.begin_leaving(&name, Kind::Red);
            self.open_removal(QuorumRequest::Undo(undoing), sure, self.now)
        };
        self.undo_on(nodes, quorum, name, number, lease);
        (!sure.is_empty()).then_some(quorum)
    }

    fn undo_on(
        &mut self,
        nodes: &[usize],
        quorum: OpId,
        name: LockName,
        number: Number,
        lease: Lease,
    ) {
        let (valid_until, after) = (Moment::NEVER, Moment::default());
        let verb = NodeVerb::Release { quorum, name, number, valid_until, after };
        self.release_on(nodes, self.now, self.retry_window(lease), &verb);
    }

    /// Removes from one node a number that was set there after its hold had ended.
    pub(super) fn remove_from(&mut self, node: usize, name: &LockName, number: Number) {
        let id = self.ops.draw_id();
        self.undo_on(&[node], id, name.clone(), number, self.settings.lease);
    }

    /// Handles one node's answer to a release.
    pub(super) fn on_node_released(
        &mut self,
        node: usize,
        quorum: OpId,
        name: &LockName,
        released: ReleaseOutcome,
        gone_is_expected: bool,
    ) {
        let answer = match released {
            ReleaseOutcome::Released => Answer::Yes(Moment::default()),
            _ if gone_is_expected => Answer::Yes(Moment::default()),
            ReleaseOutcome::Missing | ReleaseOutcome::WrongType => {
                Answer::No(No::Gone(End::Missing))
            }
            ReleaseOutcome::Stolen => Answer::No(No::Gone(End::Stolen)),
        };
        self.record_answer(quorum, node, answer);
        self.poll_queue(name);
    }

    pub(super) fn on_release_decided(&mut self, quorum: QuorumOp) {
        let majority = self.majority();
        let errors = self.errors_of(&quorum);
        let (verdict, gone) = (quorum.verdict(majority), quorum.gone(majority));
        let QuorumRequest::Release(mut ending) = quorum.request else { return };
        if verdict == QuorumState::Won || gone.is_some() {
            self.confirm(&ending, gone.filter(|_| verdict != QuorumState::Won));
        } else if let Some(reply_to) = ending.reply_to.take() {
            let sentence = format!(
                "UNAVAILABLE `{}` is no longer yours, but {errors}: the agent keeps trying to release it",
                ending.name
            );
            self.answer(reply_to, Frame::Error(sentence));
        }
        let name = ending.name;
        // Waiters elsewhere get a moment, as after any true release that is for them.
        if self.locks.get(&name).is_some_and(|s| s.others == Some(true) && !s.queue.is_empty()) {
            self.stand_back(&name);
        }
        self.on_released(&name, ending.kind, ending.number);
    }

    pub(super) fn on_undo_decided(&mut self, quorum: QuorumOp) {
        let unconfirmed = quorum.awaited().next().is_some();
        let errors = self.errors_of(&quorum);
        let (request, word) = (quorum.request, quorum.final_reply);
        let QuorumRequest::Undo(Undoing { name, number, waiter }) = request else { return };
        // One of an attempt may be on servers that this operation does not cover.
        if waiter.is_none() && !unconfirmed {
            self.journal_gone(number);
        }
        if let Some(waiter) = waiter {
            self.locks.set_undoing(waiter, None);
        }
        match word {
            Some((reply_to, Frame::Null)) if unconfirmed => {
                let sentence = format!(
                    "UNAVAILABLE `{name}` could not be acquired, and {errors}: the agent keeps trying to release what it acquired"
                );
                self.answer(reply_to, Frame::Error(sentence));
            }
            Some((reply_to, reply)) => self.answer(reply_to, reply),
            None => {}
        }
        self.locks.end_leaving(&name, Kind::Red);
        if waiter.is_none() {
            self.wake(&name);
        }
        self.poll_queue(&name);
    }
}
