//! Red holds: reentry, other leases, renewals node by node, and restoring a hold on a node that has lost it.

use std::sync::Arc;
use std::time::Duration;

use redisson::Moment;
use redisson::script::{AcquireOutcome, RenewOutcome};

use super::quorum::{QuorumOp, QuorumRequest, QuorumState};
use crate::core::ids::OpId;
use crate::core::lease::hold::Hold;
use crate::core::lease::red::{NodeAnswer, NodeRenewed, Reassessed};
use crate::core::lease::watchdog::Batches;
use crate::core::ops::update::lost_end;
use crate::core::ops::verb::{Change, HoldUpdate, NodeOp, NodeVerb, Renewal, RenewalForm, Verb};
use crate::core::session::event::Event;
use crate::core::{Core, LogLine, Report};
use crate::types::{End, Number};

impl Core {
    /// Asks all nodes to change a hold.
    pub(in crate::core) fn update_red(&mut self, update: &HoldUpdate) -> OpId {
        let nodes = self.nodes().len();
        let timeout = self.settings.response_timeout;
        let quorum = QuorumOp::new(QuorumRequest::Update(update.clone()), self.now, nodes);
        let id = self.open(quorum, self.now + timeout);
        for node in 0..nodes {
            let verb = NodeVerb::Update { quorum: id, update: update.clone() };
            self.send(Verb::Node(NodeOp { node, verb }), timeout);
        }
        id
    }

    pub(super) fn on_update_decided(&mut self, quorum: &QuorumOp, update: &HoldUpdate) {
        let majority = self.majority();
        let verdict = quorum.verdict(majority);
        if verdict == QuorumState::Won {
            self.recount(quorum, update.number, update.change);
            self.on_update_reply(quorum.sent, update, None);
            return self.reassess(update.number, None);
        }
        match quorum.gone(majority) {
            Some(end) => self.on_update_reply(quorum.sent, update, Some(end)),
            // A hold's count on some nodes may differ from ours now: the next renewal corrects it.
            None => {
                let errors = self.errors_of(quorum);
                self.on_update_failed(update);
                self.answer(update.reply_to, Self::unavailable_for(&update.name, &errors));
            }
        }
    }

    /// Applies the nodes' answers to a change of a hold.
    fn recount(&mut self, quorum: &QuorumOp, number: Number, change: Change) {
        let jitter = self.numbers.jitter();
        let (sent, now) = (quorum.sent, self.now);
        self.leases.on_nodes_updated(number, change, quorum.yes(), sent, now, jitter);
    }

    /// Renews red holds: on each node those that are due there.
    pub(in crate::core) fn renew_red(&mut self, numbers: &[Number]) {
        let now = self.now;
        for node in 0..self.nodes().len() {
            let mut batches = Batches::new(false);
            let mut full = Vec::new();
            for number in numbers {
                let form = self.leases.get(*number).map(Hold::renewal_form);
                let due = self.leases.begin_node_renewal(*number, node, now);
                if let Some((form, renewal)) = form.zip(due) {
                    full.extend(batches.add(form, &renewal.name.clone(), renewal));
                }
            }
            for (form, holds) in full.into_iter().chain(batches.rest()) {
                self.send_node_renewals(node, form, holds);
            }
        }
        for number in numbers {
            self.reassess(*number, None);
        }
    }

    pub(super) fn send_node_renewals(
        &mut self,
        node: usize,
        form: RenewalForm,
        holds: Vec<Renewal>,
    ) {
        let verb = NodeVerb::Renew(form, holds);
        self.send(Verb::Node(NodeOp { node, verb }), Duration::ZERO);
    }

    /// Handles one node's answer to a batch of renewals.
    pub(super) fn on_node_renewed(
        &mut self,
        node: usize,
        sent: Moment,
        form: RenewalForm,
        holds: &[Renewal],
        outcomes: &[RenewOutcome],
    ) {
        let now = self.now;
        self.effects.report(Report::RenewalRoundTrip(now.since(sent)));
        for (renewal, outcome) in holds.iter().zip(outcomes) {
            let (number, jitter) = (renewal.number, self.numbers.jitter());
            let end = lost_end(*outcome);
            // A renewal of a hold that has ended meanwhile has no effect.
            let answer = NodeAnswer { node, form, sent, end };
            let Some(NodeRenewed { group, valid_until: before }) =
                self.leases.on_node_renewed(renewal, answer, now, jitter)
            else {
                continue;
            };
            let word = match end {
                Some(_) => "gone",
                None if form.verify => "verified",
                None => "renewed",
            };
            self.effects.report(Report::Renewals { group, outcome: word, count: 1 });
            if end.is_none() && !form.verify {
                self.effects.report(Report::RenewalMargins(vec![before.since(now)]));
            }
            self.reassess(number, end);
            if end.is_none() {
                self.notify_renewed(number, before);
            }
            self.restore_on_nodes(renewal);
        }
    }

    /// Notifies a hold's owner that it is valid for longer, if it is.
    fn notify_renewed(&mut self, number: Number, before: Moment) {
        let Some(hold) = self.leases.get(number).filter(|hold| hold.valid_until > before) else {
            return;
        };
        let valid = hold.validity(self.now);
        self.tell(number, &Event::Valid(valid));
    }

    /// Restores a hold on nodes that have lost it: the only renewal that may create a field. It waits until a majority
    /// has confirmed, after the loss was known, that it still has the hold: so nobody else can have held the lock
    /// meanwhile.
    fn restore_on_nodes(&mut self, renewal: &Renewal) {
        let majority = self.majority();
        let restore = self.leases.begin_restore(renewal.number, majority, self.now);
        let Some((nodes, lease)) = restore else { return };
        for node in nodes {
            let verb = NodeVerb::Restore(renewal.clone(), lease);
            self.send(Verb::Node(NodeOp { node, verb }), Duration::ZERO);
        }
        self.reassess(renewal.number, None);
    }

    /// Handles a node's answer to a restoration, which keeps the hold there until `until`.
    pub(super) fn on_node_restored(
        &mut self,
        node: usize,
        until: Moment,
        sent: Moment,
        renewal: &Renewal,
        acquired: &AcquireOutcome,
    ) {
        let (now, jitter) = (self.now, self.numbers.jitter());
        let (number, granted) =
            (renewal.number, matches!(acquired, AcquireOutcome::Granted { .. }));
        if !self.leases.contains(number) {
            if granted {
                self.remove_from(node, &renewal.name, number);
            }
            return;
        }
        let until = granted.then_some(until);
        let restored = self.leases.on_node_restored(number, node, sent, until, now, jitter);
        let Some(restored) = restored else { return };
        if restored {
            let red = self.settings.red.as_ref();
            self.effects.log(
                self.now,
                LogLine::NodeRestored {
                    lock: renewal.name.clone(),
                    node: red.map(|red| red.nodes[node].clone()),
                },
            );
        }
        self.reassess(number, None);
    }

    /// Handles a renewal that a node did not answer: the node is asked again, soon only if the hold depends on it.
    pub(super) fn on_node_renewal_failed(
        &mut self,
        node: usize,
        holds: &[Renewal],
        pause: Duration,
    ) {
        let (now, lease) = (self.now, self.settings.lease);
        for renewal in holds {
            let number = renewal.number;
            let jitter = self.numbers.percent(50);
            let Some(hold) = self.leases.get(number) else {
                self.poll_queue(&renewal.name);
                continue;
            };
            let group = Arc::clone(&hold.group);
            self.effects.report(Report::Renewals { group, outcome: "error", count: 1 });
            let failed = self.leases.on_node_renewal_failed(number, node, now);
            let Some((failures, safe)) = failed else { continue };
            let pause = match failures {
                1 => pause,
                _ if safe => lease.duration() / 15 * (100 + jitter) / 100,
                _ => self.pause(failures),
            };
            self.leases.schedule_node_renewal(number, node, now + pause);
            self.reassess(number, None);
        }
    }

    /// Reassesses a red hold from its parts: its validity, its next renewal, its loss. `end` is what a node has just
    /// reported.
    pub(in crate::core) fn reassess(&mut self, number: Number, end: Option<End>) {
        match self.leases.reassess(number, self.majority()) {
            None => {}
            Some(Reassessed::Gone { forced: true }) => self.lose(number, End::Forced),
            Some(Reassessed::Gone { forced: false }) => {
                self.lose(number, end.unwrap_or(End::Missing));
            }
            Some(Reassessed::Valid) => self.clear_jeopardy(number),
        }
    }

    /// Verifies every red hold on one node, which was replaced or restarted.
    pub(in crate::core) fn verify_node(&mut self, node: usize) {
        self.red.on_node_alive(node);
        let due = self.leases.verify_node(node, self.now);
        self.renew_red(&due);
    }

    /// Handles a forced release of one of this agent's holds on one node: the hold is lost when too many nodes have
    /// released it.
    pub(in crate::core) fn forced_on(&mut self, node: usize, number: Number) {
        if self.leases.on_node_forced(number, node) {
            self.reassess(number, Some(End::Forced));
        }
    }
}
