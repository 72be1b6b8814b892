//! LOCK's attempts at a red lock.

use std::time::Duration;

use redisson::script::AcquireOutcome;
use redisson::{HolderId, Moment};

use super::quorum::{Answer, No, QuorumOp, QuorumRequest, Undoing};
use crate::collections::HashMap;
use crate::core::ids::OpId;
use crate::core::lease::node_leases::NodeLeases;
use crate::core::lock::waiter::{Left, Waiter};
use crate::core::ops::printable;
use crate::core::ops::verb::{Attempt, NodeOp, NodeVerb, Verb};
use crate::core::report::refusals::{wrong_kind, wrong_type};
use crate::core::{Core, Report};
use crate::protocol::resp::Frame;
use crate::types::Number;

impl Core {
    /// Lets a waiter try on all nodes at once.
    pub(in crate::core) fn attempt_red(&mut self, attempt: &Attempt) -> OpId {
        self.locks.begin_node_attempts(&attempt.name);
        let nodes = self.nodes().len();
        let asked: Vec<_> = (0..nodes).filter(|node| self.red.admit(*node, self.now)).collect();
        let mut quorum = QuorumOp::new(QuorumRequest::Acquire(attempt.clone()), self.now, nodes);
        for (node, answer) in quorum.answers.iter_mut().enumerate() {
            if !asked.contains(&node) {
                *answer = Answer::unchanged("it has just left a question unanswered");
            }
        }
        // The caller needs the id of the quorum operation before its outcome.
        let deadline = if quorum.awaited().next().is_some() {
            self.now + self.node_timeout()
        } else {
            self.now
        };
        let id = self.open(quorum, deadline);
        for node in asked {
            let verb = NodeVerb::Acquire { quorum: id, attempt: attempt.clone() };
            self.send(Verb::Node(NodeOp { node, verb }), Duration::MAX);
        }
        id
    }

    /// Handles one node's answer to an attempt.
    pub(super) fn on_node_acquired(
        &mut self,
        node: usize,
        sent: Moment,
        quorum: OpId,
        attempt: &Attempt,
        acquired: AcquireOutcome,
    ) {
        let (name, server) = (&attempt.name, self.nodes()[node].clone());
        let answer = match acquired {
            AcquireOutcome::Granted { .. } => Answer::Yes(attempt.lease.valid_until(sent)),
            AcquireOutcome::Held { pttl_ms, holders } => Answer::No(No::Held { pttl_ms, holders }),
            AcquireOutcome::WrongKind(kind) => {
                Answer::No(No::Unfit(wrong_kind(name, &printable(&kind), Some(&server))))
            }
            AcquireOutcome::WrongType(kind) => {
                Answer::No(No::Unfit(wrong_type(name, &printable(&kind), Some(&server))))
            }
        };
        let word = match &answer {
            Answer::Yes(_) => "granted",
            Answer::No(No::Held { .. }) => "refused",
            _ => "unfit",
        };
        self.effects.report(Report::NodeVote { node: server, outcome: word });
        if self.red.contains(quorum) {
            return self.record_answer(quorum, node, answer);
        }
        // The others had decided without this node. If that was for a hold that still exists, its validity gains a
        // vote. If not, an undo is already in flight behind the attempt.
        if let Answer::Yes(until) = answer {
            let until = until.min(attempt.lease.valid_until(sent));
            if self.leases.on_late_grant(attempt.number, node, until) {
                self.reassess(attempt.number, None);
            }
        }
    }

    /// Handles a majority of grants.
    pub(super) fn on_won(&mut self, quorum: QuorumOp, attempt: &Attempt) {
        let Attempt { name, number, .. } = attempt;
        let (now, watched) = (self.now, self.settings.lease);
        self.locks.on_answered(name);
        let Some(successor) = self.pick_successor(attempt, quorum.sent) else {
            return self.undo_attempt(quorum, attempt);
        };
        self.grant(successor, *number, quorum.sent, None);
        let jitter = self.numbers.jitter();
        let again = now + watched.duration() / 15;
        let mut node_leases = NodeLeases::new(self.nodes().len(), again);
        quorum.may_have_done().for_each(|node| node_leases.ask(node));
        for (node, until) in quorum.yes() {
            node_leases.confirm(node, quorum.sent, until);
            // A fixed lease is not renewed, but verified as often.
            node_leases.schedule_renewal(node, watched.renew_at(quorum.sent, jitter));
        }
        self.leases.set_parts(*number, node_leases);
        self.reassess(*number, None);
        if let Some((reply_to, reply)) = quorum.final_reply {
            self.answer(reply_to, reply);
        }
    }

    /// Removes everything that an attempt has acquired, or may have acquired.
    fn undo_attempt(&mut self, quorum: QuorumOp, attempt: &Attempt) {
        let Attempt { name, waiter, number, lease, .. } = attempt;
        self.renumber(*waiter);
        let nodes: Vec<_> = quorum.may_have_done().collect();
        let sure: Vec<_> = quorum.yes().map(|(node, _)| node).collect();
        let undoing = Undoing { name: name.clone(), number: *number, waiter: Some(*waiter) };
        let undo = self.undo_red(undoing, *lease, &nodes, &sure);
        self.locks.set_undoing(*waiter, undo);
        match (quorum.final_reply, undo) {
            (Some(word), Some(undo)) => self.red.set_final_reply(undo, word),
            (Some((reply_to, reply)), None) => self.answer(reply_to, reply),
            (None, _) => {}
        }
    }

    /// Handles the lack of a majority: the acquired parts are removed, and the waiter tries again later, or leaves.
    pub(super) fn on_not_won(&mut self, quorum: QuorumOp, attempt: &Attempt) {
        let (name, asked, majority) = (&attempt.name, attempt.waiter, self.majority());
        let view = View::of(&quorum, majority);
        let errors = self.errors_of(&quorum);
        let free: Vec<_> = quorum.yes().map(|(node, _)| node).collect();
        self.undo_attempt(quorum, attempt);
        self.remove_node_ghosts(attempt, &view.holders);
        if let Some(sentence) = view.unfit {
            return self.leave(asked, Left::Failed(sentence));
        }
        let served = view.answered >= majority;
        self.locks.set_last_error(name, (!served).then_some(errors));
        if served {
            self.locks.on_refused(asked);
        }
        let Some(waiter) = self.locks.waiter(asked) else { return };
        if waiter.is_over(self.now) {
            return self.leave(asked, Left::TimedOut);
        }
        if !self.locks.is_front(name, asked) {
            return;
        }
        let pause = if served && view.held {
            self.locks.on_held_by_others(name);
            self.retry_interval(view.pttl_ms)
        } else {
            // Nodes are unreachable, or several clients have split them: a random pause keeps these from all trying
            // again at once.
            let failures = self.locks.add_failure(name);
            let pause = self.split_pause(served, failures);
            if !served || !view.contended {
                let until = self.now + pause;
                self.locks.stand_back(name, until);
                return self.locks.sleep(name, until);
            }
            pause
        };
        self.subscribe(name);
        // Releases that were reported before the answers arrived count too.
        if self.locks.add_free_nodes(name, &free, majority) {
            return;
        }
        self.locks.sleep(name, self.now + pause);
    }

    /// Returns a random time until the next attempt, longer the more attempts failed in a row.
    fn split_pause(&mut self, split: bool, failures: u32) -> Duration {
        let once = self.node_timeout() * (100 + self.numbers.percent(200)) / 100;
        if split {
            (once * (1 << (failures - 1).min(4))).min(self.settings.poll_max)
        } else {
            once.max(self.pause(failures))
        }
    }

    /// Removes from single nodes what late copies of old scripts have left there. Then the waiter tries again.
    fn remove_node_ghosts(&mut self, attempt: &Attempt, holders: &[(usize, Vec<HolderId>)]) {
        let mut ghosts: HashMap<Number, Vec<usize>> = HashMap::default();
        for (node, holders) in holders {
            for ghost in holders.iter().filter(|holder| self.is_ghost(holder)) {
                ghosts.entry(ghost.thread).or_default().push(*node);
            }
        }
        let mut ghosts: Vec<_> = ghosts.into_iter().collect();
        ghosts.sort_unstable();
        for (number, nodes) in ghosts {
            self.effects.report(Report::OutcomeKnown("undone_late"));
            let undoing = Undoing { name: attempt.name.clone(), number, waiter: None };
            self.undo_red(undoing, self.settings.lease, &nodes, &nodes);
        }
    }

    /// Sends the reply to a waiter that has left once its attempts are removed from the nodes.
    pub(in crate::core) fn tell_once_undone(&mut self, waiter: &Waiter, reply: Frame) {
        let mut open = [waiter.attempt, waiter.undoing].into_iter().flatten();
        match open.find(|id| self.red.contains(*id)) {
            Some(quorum) => self.red.set_final_reply(quorum, (waiter.reply_to, reply)),
            None => self.answer(waiter.reply_to, reply),
        }
    }
}

/// The state of the nodes, as seen by a quorum operation without a majority.
struct View {
    /// The number of nodes that granted the lock or reported its holder.
    answered: usize,
    /// One holder has a majority of the nodes, so that its release is awaited. In Redisson the holder is a thread: for
    /// each server it has a separate client with a separate id.
    held: bool,
    /// A Redisson client has a node: it keeps the node while it waits for the others, so its releases are awaited too.
    contended: bool,
    /// The time until a majority may be free, by the holders' leases; `None` if unknown.
    pttl_ms: Option<u64>,
    unfit: Option<String>,
    holders: Vec<(usize, Vec<HolderId>)>,
}

impl View {
    fn of(quorum: &QuorumOp, majority: usize) -> Self {
        let mut view = Self {
            answered: 0,
            held: false,
            contended: false,
            pttl_ms: None,
            unfit: None,
            holders: Vec::new(),
        };
        let mut waits = Vec::new();
        let mut counts: HashMap<Number, usize> = HashMap::default();
        for (node, answer) in quorum.answers.iter().enumerate() {
            match answer {
                Answer::Yes(_) => waits.push(Some(0)),
                Answer::No(No::Held { pttl_ms, holders }) => {
                    waits.push(*pttl_ms);
                    for holder in holders {
                        *counts.entry(holder.thread).or_default() += 1;
                    }
                    view.holders.push((node, holders.clone()));
                }
                Answer::No(No::Unfit(sentence)) => {
                    view.unfit.get_or_insert_with(|| sentence.clone());
                }
                _ => {}
            }
        }
        view.answered = waits.len();
        view.held = counts.values().any(|nodes| *nodes >= majority);
        let mut holders = view.holders.iter().flat_map(|(_, holders)| holders);
        view.contended = holders.any(|holder| !holder.looks_like_agent());
        waits.sort_unstable_by_key(|wait| wait.unwrap_or(u64::MAX));
        view.pttl_ms = waits.get(majority - 1).copied().flatten();
        view
    }
}
