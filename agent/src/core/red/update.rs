//! Red holds: re-entry, other leases, renewals node by node, and setting a hold anew where a node has lost it.

use redisson::script::{AcquireOutcome, RenewOutcome};
use redisson::{Kind, Moment};
use std::sync::Arc;

use super::quorum::{QuorumOp, QuorumRequest, Verdict};
use super::{Ask, What};
use crate::core::lease::hold::LeaseMode;
use crate::core::lease::update::lost_end;
use crate::core::ops::{Asked, Change, OpId, Purpose, Renewal};
use crate::core::session::event::Event;
use crate::core::{Core, spans};
use crate::core::{LogLine, Report};
use crate::types::End;
use crate::types::Number;

impl Core {
    /// Asks all nodes for a change of a hold.
    pub(in crate::core) fn keep_red(&mut self, asked: &Asked, change: Change) -> OpId {
        let nodes = self.nodes().len();
        let timeout = self.settings.response_timeout;
        let quorum = QuorumOp::new(QuorumRequest::Keep(asked.clone(), change), self.now, nodes);
        let id = self.open(quorum, self.now + timeout);
        for node in 0..nodes {
            let what = What::Keep { quorum: id, asked: asked.clone(), change };
            self.send(Purpose::Red(Ask { node, what }), timeout);
        }
        id
    }

    pub(super) fn keep_decided(&mut self, quorum: &QuorumOp) {
        let majority = self.majority();
        let verdict = quorum.verdict(majority);
        let QuorumRequest::Keep(asked, change) = &quorum.request else { return };
        if verdict == Verdict::Won {
            self.recount(quorum, asked.number, *change);
            self.on_update_reply(quorum.sent, asked, *change, RenewOutcome::Renewed);
            return self.reassess(asked.number, None);
        }
        match quorum.gone(majority) {
            Some(End::Stolen) => {
                self.on_update_reply(quorum.sent, asked, *change, RenewOutcome::Stolen)
            }
            Some(_) => self.on_update_reply(quorum.sent, asked, *change, RenewOutcome::Missing),
            // A hold's count on some nodes may differ from ours now: the next renewal puts it right.
            None => {
                let troubles = self.troubles(quorum);
                spans::outcome(&asked.span, "error");
                self.answer(asked.slot, Self::unavailable_for(&asked.name, &troubles));
            }
        }
    }

    /// What the nodes answered to a change of a hold.
    fn recount(&mut self, quorum: &QuorumOp, number: Number, change: Change) {
        let (now, jitter, watched) = (self.now, self.jitter(), self.settings.lease);
        let node_leases = self.holds.get_mut(&number).and_then(|hold| hold.node_leases.as_mut());
        let Some(node_leases) = node_leases else { return };
        for lease_on_node in &mut node_leases.0 {
            match change {
                // No node keeps it for its owner any longer than that, whatever Redis does.
                Change::Extend(lease) => {
                    let until = lease.unwrap_or(watched).valid_until(quorum.sent);
                    lease_on_node.valid_until = lease_on_node.valid_until.min(until);
                    lease_on_node.renew_at = now;
                }
                Change::Reenter(_) | Change::Partial => {
                    lease_on_node.renew_at = lease_on_node.renew_at.min(now);
                }
            }
        }
        for (node, until) in quorum.yes() {
            let lease_on_node = &mut node_leases.0[node];
            lease_on_node.failures = 0;
            lease_on_node.renew_at = watched.renew_at(quorum.sent, jitter);
            if !matches!(change, Change::Partial) {
                lease_on_node.valid_until = lease_on_node.valid_until.max(until);
            }
        }
    }

    /// Renews red holds: on each node those that are due there.
    pub(in crate::core) fn renew_red(&mut self, numbers: &[Number]) {
        let now = self.now;
        for node in 0..self.nodes().len() {
            let mut batch = Vec::new();
            for number in numbers {
                let Some(hold) = self.holds.get_mut(number) else { continue };
                if hold.lapsing {
                    continue;
                }
                let (name, kind, count) = (&hold.name, hold.kind, hold.count);
                let lease_on_node =
                    hold.node_leases.as_mut().map(|node_leases| &mut node_leases.0[node]);
                let Some(lease_on_node) = lease_on_node.filter(|lease_on_node| {
                    !lease_on_node.renewing && lease_on_node.renew_at <= now
                }) else {
                    continue;
                };
                lease_on_node.renewing = true;
                batch.push(Renewal { name: name.clone(), kind, number: *number, count });
            }
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(redisson::script::MAX_BATCH));
                let what = What::Renew(std::mem::replace(&mut batch, rest));
                self.send(Purpose::Red(Ask { node, what }), std::time::Duration::ZERO);
            }
        }
        for number in numbers {
            self.reassess(*number, None);
        }
    }

    /// One node answered a batch of renewals.
    pub(super) fn node_renewed(
        &mut self,
        node: usize,
        sent: Moment,
        holds: &[Renewal],
        kept: &[RenewOutcome],
    ) {
        let (now, lease) = (self.now, self.settings.lease);
        self.effects.report(Report::RenewalRoundTrip(now.since(sent)));
        for (renewal, kept) in holds.iter().zip(kept) {
            let (number, jitter) = (renewal.number, self.jitter());
            // A hold that ended meanwhile is no business of a renewal any more.
            let Some(hold) = self.holds.get_mut(&number) else { continue };
            let before = hold.valid_until;
            let same_count = hold.count == renewal.count;
            let watched = hold.mode == LeaseMode::Renewed;
            let Some(node_leases) = &mut hold.node_leases else { continue };
            node_leases.0[node].renewing = false;
            node_leases.0[node].failures = 0;
            node_leases.0[node].renew_at = lease.renew_at(sent, jitter).max(now);
            let end = lost_end(*kept);
            if let Some(end) = end {
                node_leases.gone(node, now, watched && end == End::Missing);
                self.effects.report(Report::Renewals {
                    group: Arc::clone(&hold.group),
                    outcome: "gone",
                    count: 1,
                });
            } else {
                if watched {
                    node_leases.confirm(node, sent, lease.valid_until(sent));
                    // It may have overtaken a change of the count, or be older than what it is to tell.
                    if !same_count || node_leases.is_stale(sent) {
                        node_leases.0[node].renew_at = now;
                    }
                }
                self.effects.report(Report::Renewals {
                    group: Arc::clone(&hold.group),
                    outcome: "renewed",
                    count: 1,
                });
                self.effects.report(Report::RenewalMargin(before.since(now)));
            }
            self.reassess(number, end);
            if end.is_none() {
                self.tell_renewed(number, before);
            }
            self.set_anew(renewal);
        }
    }

    /// Tells a hold's owner that it is valid for longer, if it is.
    fn tell_renewed(&mut self, number: Number, before: Moment) {
        let Some(hold) = self.holds.get(&number).filter(|hold| hold.valid_until > before) else {
            return;
        };
        let (owner, name, valid) = (hold.owner, hold.name.clone(), hold.valid_ms(self.now));
        self.notify(owner, &name, Kind::Red, &Event::Valid(valid));
    }

    /// Sets a hold anew on nodes that have lost it: the only renewal that may create. It waits until a majority has
    /// said, after that was known, that it has the hold still: so nobody else can have had the lock meanwhile.
    fn set_anew(&mut self, renewal: &Renewal) {
        let (now, lease, margin) = (self.now, self.settings.lease, self.settings.lost_margin);
        let majority = self.majority();
        let Some(hold) = self.holds.get_mut(&renewal.number) else { return };
        let idle = hold.mode != LeaseMode::Renewed || hold.lapsing;
        if idle || now >= lease.lost_at(hold.valid_until, margin) {
            return;
        }
        let Some(node_leases) = &mut hold.node_leases else { return };
        let nodes = node_leases.to_restore(majority);
        for node in nodes {
            let lease_on_node =
                self.holds.get_mut(&renewal.number).and_then(|hold| hold.node_leases.as_mut());
            let Some(lease_on_node) = lease_on_node.map(|node_leases| &mut node_leases.0[node])
            else {
                return;
            };
            lease_on_node.renewing = true;
            let what = What::Restore(renewal.clone());
            self.send(Purpose::Red(Ask { node, what }), std::time::Duration::ZERO);
        }
        self.reassess(renewal.number, None);
    }

    /// A node answered whether a hold stands there again.
    pub(super) fn node_restored(
        &mut self,
        node: usize,
        sent: Moment,
        renewal: &Renewal,
        acquired: &AcquireOutcome,
    ) {
        let (now, lease, jitter) = (self.now, self.settings.lease, self.jitter());
        let granted = matches!(acquired, AcquireOutcome::Granted { .. });
        let Some(hold) = self.holds.get_mut(&renewal.number) else {
            if granted {
                self.remove_from(node, &renewal.name, renewal.number);
            }
            return;
        };
        let (count, watched) = (hold.count, hold.mode == LeaseMode::Renewed);
        let Some(node_leases) = &mut hold.node_leases else { return };
        node_leases.0[node].renewing = false;
        node_leases.0[node].missing = None;
        node_leases.0[node].renew_at = lease.renew_at(sent, jitter).max(now);
        if granted && watched {
            node_leases.confirm(node, sent, lease.valid_until(sent));
            if count > 1 {
                node_leases.0[node].renew_at = now;
            }
            let red = self.settings.red.as_ref();
            self.effects.log(LogLine::NodeRestored {
                lock: renewal.name.clone(),
                node: red.map(|red| red.nodes[node].clone()),
            });
        }
        self.reassess(renewal.number, None);
    }

    /// A node did not answer a renewal: it is asked again, in a hurry only where the hold depends on it.
    pub(super) fn node_renewal_failed(
        &mut self,
        node: usize,
        holds: &[Renewal],
        pause: std::time::Duration,
    ) {
        let (now, lease) = (self.now, self.settings.lease);
        for renewal in holds {
            let jitter = u32::try_from(self.jitter() % 50).unwrap_or(0);
            let Some(hold) = self.holds.get_mut(&renewal.number) else {
                self.poll_queue(&renewal.name);
                continue;
            };
            self.effects.report(Report::Renewals {
                group: Arc::clone(&hold.group),
                outcome: "error",
                count: 1,
            });
            // Safe without it: the other nodes were renewed as they should be.
            let safe = hold.valid_until >= hold.granted.max(now) + lease.duration() / 2;
            let Some(lease_on_node) =
                hold.node_leases.as_mut().map(|node_leases| &mut node_leases.0[node])
            else {
                continue;
            };
            lease_on_node.renewing = false;
            lease_on_node.failures = lease_on_node.failures.saturating_add(1);
            let failures = lease_on_node.failures;
            let pause = match failures {
                1 => pause,
                _ if safe => lease.duration() / 15 * (100 + jitter) / 100,
                _ => self.pause(failures),
            };
            if let Some(node_leases) =
                self.holds.get_mut(&renewal.number).and_then(|h| h.node_leases.as_mut())
            {
                node_leases.0[node].renew_at = now + pause;
            }
            self.reassess(renewal.number, None);
        }
    }

    /// Weighs a hold's votes anew: how long it is valid, when a node is to be asked next, whether it is lost. `end` is
    /// what a node has just said of it.
    pub(in crate::core) fn reassess(&mut self, number: Number, end: Option<End>) {
        let majority = self.majority();
        let Some(hold) = self.holds.get_mut(&number) else { return };
        let Some(node_leases) = &hold.node_leases else { return };
        hold.valid_until = node_leases.valid_until(majority);
        hold.renew_at = node_leases.renew_at();
        hold.renewing = node_leases.0.iter().all(|lease_on_node| lease_on_node.renewing);
        if hold.valid_until == Moment::default() {
            let forced = node_leases.0.iter().any(|lease_on_node| lease_on_node.forced);
            let end = if forced { End::Forced } else { end.unwrap_or(End::Missing) };
            return self.lose(number, end);
        }
        self.clear_jeopardy(number);
        self.arm(number);
    }

    /// Verifies every red hold on one node, which is another one now, or has restarted.
    pub(in crate::core) fn verify_node(&mut self, node: usize) {
        self.red.silent.remove(&node);
        let now = self.now;
        let mut due = Vec::new();
        for hold in self.holds.values_mut().filter(|hold| !hold.lapsing) {
            let lease_on_node =
                hold.node_leases.as_mut().map(|node_leases| &mut node_leases.0[node]);
            if let Some(lease_on_node) =
                lease_on_node.filter(|lease_on_node| !lease_on_node.renewing)
            {
                lease_on_node.renew_at = now;
                due.push(hold.number);
            }
        }
        self.renew_red(&due);
    }

    /// An operator released a hold of ours on one node: it is lost when that was done on too many of them.
    pub(in crate::core) fn forced_on(&mut self, node: usize, number: Number) {
        let hold = self.holds.get_mut(&number);
        if let Some(node_leases) = hold.and_then(|hold| hold.node_leases.as_mut()) {
            let lease_on_node = &mut node_leases.0[node];
            lease_on_node.forced = true;
            lease_on_node.valid_until = Moment::default();
            self.reassess(number, Some(End::Forced));
        }
    }
}
