//! Changes of red holds, node by node.

use std::sync::Arc;

use redisson::{Lease, Moment};

use super::LeaseTable;
use super::hold::LeaseMode;
use super::node_leases::NodeLeases;
use crate::core::ops::verb::{Change, Renewal, RenewalForm};
use crate::types::{End, Number};

/// The validity of a red hold, derived from its nodes' parts.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::core) enum Reassessed {
    Valid,
    /// No majority has it any more.
    Gone {
        /// The hold was released by force on a node.
        forced: bool,
    },
}

/// A node's answer to a renewal, or to the verification of a fixed lease.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct NodeAnswer {
    pub(in crate::core) node: usize,
    pub(in crate::core) form: RenewalForm,
    pub(in crate::core) sent: Moment,
    /// The reason why the hold is missing there; `None` if it is there.
    pub(in crate::core) end: Option<End>,
}

/// The hold that a node's answer to a renewal concerns.
pub(in crate::core) struct NodeRenewed {
    pub(in crate::core) group: Arc<str>,
    /// The end of the hold's validity before that.
    pub(in crate::core) valid_until: Moment,
}

impl LeaseTable {
    fn parts(&mut self, number: Number) -> Option<&mut NodeLeases> {
        self.holds.get_mut(number)?.node_leases.as_mut()
    }

    pub(in crate::core) fn set_parts(&mut self, number: Number, parts: NodeLeases) {
        if let Some(hold) = self.holds.get_mut(number) {
            hold.node_leases = Some(parts);
        }
    }

    /// Counts the renewal of one part as begun, if it is due.
    pub(in crate::core) fn begin_node_renewal(
        &mut self,
        number: Number,
        node: usize,
        now: Moment,
    ) -> Option<Renewal> {
        let hold = self.holds.get_mut(number).filter(|hold| !hold.lapsing)?;
        let part = &mut hold.node_leases.as_mut()?.0[node];
        if part.renewing || part.renew_at > now {
            return None;
        }
        part.renewing = true;
        Some(Renewal { name: hold.name.clone(), kind: hold.kind, number, index: hold.index })
    }

    /// Applies a node's answer to a renewal.
    pub(in crate::core) fn on_node_renewed(
        &mut self,
        renewal: &Renewal,
        answer: NodeAnswer,
        now: Moment,
        jitter: u64,
    ) -> Option<NodeRenewed> {
        let NodeAnswer { node, form, sent, end } = answer;
        let lease = self.lease;
        let hold = self.holds.get_mut(renewal.number)?;
        let parts = hold.node_leases.as_mut()?;
        let part = &mut parts.0[node];
        part.renewing = false;
        part.renew_at = lease.renew_at(sent, jitter).max(now);
        if let Some(end) = end {
            let forced = part.forced_claim.is_some();
            part.forced |= forced;
            parts.gone(node, now, !forced && end == End::Missing);
        } else {
            part.forced_claim = part.forced_claim.filter(|at| *at > sent);
            if part.forced_claim.is_some() {
                part.renew_at = now;
            }
            let renewed = hold.mode == LeaseMode::Renewed && !form.verify;
            let until = if renewed { lease.valid_until(sent) } else { part.valid_until };
            parts.confirm(node, sent, until);
            // It may have overtaken a change of the count, have extended no lease, or be too old to restore another part.
            let verified = form.verify && hold.mode == LeaseMode::Renewed;
            if hold.count != form.count || verified || parts.is_stale(sent) {
                parts.0[node].renew_at = now;
            }
        }
        Some(NodeRenewed { group: Arc::clone(&hold.group), valid_until: hold.valid_until })
    }

    /// Takes the nodes on which a hold can be restored, and counts their renewals as begun. Also returns the lease to restore
    /// it with: what is left of a fixed one.
    pub(in crate::core) fn begin_restore(
        &mut self,
        number: Number,
        majority: usize,
        now: Moment,
    ) -> Option<(Vec<usize>, Lease)> {
        let (watched, margin) = (self.lease, self.margin);
        let hold = self.holds.get_mut(number)?;
        if hold.lapsing || now >= watched.lost_at(hold.valid_until, margin) {
            return None;
        }
        let lease = match hold.mode {
            LeaseMode::Renewed => watched,
            LeaseMode::Fixed => Lease::for_validity(hold.valid_until.since(now))?,
        };
        let parts = hold.node_leases.as_mut()?;
        let nodes = parts.to_restore(majority);
        for node in &nodes {
            parts.0[*node].renewing = true;
            parts.ask(*node);
        }
        Some((nodes, lease))
    }

    /// Applies a node's answer to a restoration: the node keeps its part until then, or refuses it. Returns whether it has its
    /// part.
    pub(in crate::core) fn on_node_restored(
        &mut self,
        number: Number,
        node: usize,
        sent: Moment,
        until: Option<Moment>,
        now: Moment,
        jitter: u64,
    ) -> Option<bool> {
        let lease = self.lease;
        let hold = self.holds.get_mut(number)?;
        let count = hold.count;
        let parts = hold.node_leases.as_mut()?;
        let part = &mut parts.0[node];
        part.renewing = false;
        part.missing = None;
        part.renew_at = lease.renew_at(sent, jitter).max(now);
        if let Some(until) = until {
            parts.confirm(node, sent, until);
            if count > 1 {
                parts.0[node].renew_at = now;
            }
        }
        Some(until.is_some())
    }

    /// Counts a failed renewal or restoration on a node. Returns the number of consecutive failures, and whether the
    /// hold is safe without that node.
    pub(in crate::core) fn on_node_renewal_failed(
        &mut self,
        number: Number,
        node: usize,
        now: Moment,
    ) -> Option<(u32, bool)> {
        let lease = self.lease.duration();
        let hold = self.holds.get_mut(number)?;
        // The other nodes were renewed on time.
        let safe = hold.valid_until >= hold.granted.max(now) + lease / 2;
        let part = &mut hold.node_leases.as_mut()?.0[node];
        part.renewing = false;
        part.failures = part.failures.saturating_add(1);
        Some((part.failures, safe))
    }

    /// Sets the next renewal of a hold on one node.
    pub(in crate::core) fn schedule_node_renewal(
        &mut self,
        number: Number,
        node: usize,
        at: Moment,
    ) {
        if let Some(parts) = self.parts(number) {
            parts.0[node].renew_at = at;
        }
    }

    /// Adds a node's late grant. Returns whether the hold still exists.
    pub(in crate::core) fn on_late_grant(
        &mut self,
        number: Number,
        node: usize,
        until: Moment,
    ) -> bool {
        let Some(parts) = self.parts(number) else { return false };
        parts.0[node].valid_until = parts.0[node].valid_until.max(until);
        true
    }

    /// Applies the nodes' answers to a change of a hold.
    pub(in crate::core) fn on_nodes_updated(
        &mut self,
        number: Number,
        change: Change,
        agreed: impl Iterator<Item = (usize, Moment)>,
        sent: Moment,
        now: Moment,
        jitter: u64,
    ) {
        let lease = self.lease;
        if let Some(parts) = self.parts(number) {
            parts.on_update(change, agreed, sent, now, lease, jitter);
        }
    }

    /// Records the claim of a forced release of a hold on one node, which is asked at once.
    pub(in crate::core) fn claim_node_forced(&mut self, number: Number, node: usize, now: Moment) {
        if let Some(parts) = self.parts(number) {
            parts.0[node].forced_claim = Some(now);
            parts.0[node].renew_at = now;
        }
    }

    /// Records the forced release of a hold on one node. Returns whether the hold is a red one.
    pub(in crate::core) fn on_node_forced(&mut self, number: Number, node: usize) -> bool {
        let Some(parts) = self.parts(number) else { return false };
        parts.0[node].forced = true;
        parts.0[node].valid_until = Moment::default();
        true
    }

    /// Makes the parts on one node due for a renewal. Returns their holds.
    pub(in crate::core) fn verify_node(&mut self, node: usize, now: Moment) -> Vec<Number> {
        let mut due = Vec::new();
        for hold in self.holds.values_mut().filter(|hold| !hold.lapsing) {
            let part = hold.node_leases.as_mut().map(|parts| &mut parts.0[node]);
            if let Some(part) = part.filter(|part| !part.renewing) {
                part.renew_at = now;
                due.push(hold.number);
            }
        }
        due
    }

    /// Derives the validity and the next renewal of a red hold from its parts.
    pub(in crate::core) fn reassess(
        &mut self,
        number: Number,
        majority: usize,
    ) -> Option<Reassessed> {
        self.change(number, |hold| {
            let parts = hold.node_leases.as_ref()?;
            hold.valid_until = parts.valid_until(majority);
            hold.renew_at = parts.next_renewal();
            hold.renewing = parts.0.iter().all(|part| part.renewing);
            let gone = hold.valid_until == Moment::default();
            let forced = parts.0.iter().any(|part| part.forced);
            Some(if gone { Reassessed::Gone { forced } } else { Reassessed::Valid })
        })?
    }
}
