//! The parts of a red hold: each node's validity and next renewal.

use redisson::{Lease, Moment};

use crate::core::ops::verb::Change;

/// One node's part of a hold.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct NodeLease {
    /// The node was asked to acquire the hold, so that it may have it, now or later.
    pub(in crate::core) asked: bool,
    /// The instant until which the node certainly keeps the hold; the clock's origin if it does not have it.
    pub(in crate::core) valid_until: Moment,
    /// The instant at which the latest script that the node confirmed was sent.
    pub(in crate::core) confirmed: Moment,
    /// The instant at which the node reported that the hold is missing and that nobody else holds the lock.
    pub(in crate::core) missing: Option<Moment>,
    /// The instant of the next renewal there.
    pub(in crate::core) renew_at: Moment,
    /// A renewal or restoration is in flight.
    pub(in crate::core) renewing: bool,
    /// Failed renewals and restorations there since the node last had the hold.
    pub(in crate::core) failures: u32,
    /// The instant of a message about a forced release there, until the node has been asked.
    pub(in crate::core) forced_claim: Option<Moment>,
    /// The hold was released there by force: it is not restored.
    pub(in crate::core) forced: bool,
}

/// The parts of all nodes.
#[derive(Debug)]
pub(in crate::core) struct NodeLeases(pub(in crate::core) Box<[NodeLease]>);

impl NodeLeases {
    /// Creates the parts while no node has the hold yet; nodes that do not answer are asked at `renew_at`.
    pub(in crate::core) fn new(nodes: usize, renew_at: Moment) -> Self {
        let none = NodeLease {
            asked: false,
            valid_until: Moment::default(),
            confirmed: Moment::default(),
            missing: None,
            renew_at,
            renewing: false,
            failures: 0,
            forced_claim: None,
            forced: false,
        };
        Self(vec![none; nodes].into())
    }

    /// Returns the instant until which a majority certainly keeps the hold: the `majority`-th latest of the nodes'
    /// instants.
    pub(in crate::core) fn valid_until(&self, majority: usize) -> Moment {
        let mut instants: Vec<_> = self.0.iter().map(|lease| lease.valid_until).collect();
        instants.sort_unstable_by(|a, b| b.cmp(a));
        instants.get(majority - 1).copied().unwrap_or_default()
    }

    /// Records that a node was asked to acquire the hold.
    pub(in crate::core) fn ask(&mut self, node: usize) {
        self.0[node].asked = true;
    }

    /// Returns the nodes that may have the hold, or may yet get it.
    pub(in crate::core) fn asked(&self) -> Vec<usize> {
        let asked = self.0.iter().enumerate().filter(|(_, lease)| lease.asked);
        asked.map(|(node, _)| node).collect()
    }

    /// Records that a node keeps the hold until that instant, by a script sent at `sent`.
    pub(in crate::core) fn confirm(&mut self, node: usize, sent: Moment, until: Moment) {
        let lease = &mut self.0[node];
        lease.confirmed = lease.confirmed.max(sent);
        lease.valid_until = lease.valid_until.max(until);
        lease.missing = None;
        lease.failures = 0;
    }

    /// Records that a node does not have the hold. If it can be restored there, the others are asked whether they still
    /// have it.
    pub(in crate::core) fn gone(&mut self, node: usize, now: Moment, missing: bool) {
        self.0[node].valid_until = Moment::default();
        self.0[node].confirmed = Moment::default();
        self.0[node].missing = missing.then_some(now);
        for lease in self.0.iter_mut().filter(|lease| missing && lease.missing.is_none()) {
            lease.renew_at = lease.renew_at.min(now);
        }
    }

    /// Returns whether a node reported the hold missing after `sent`, so that an answer to a script sent then proves nothing
    /// about it.
    pub(in crate::core) fn is_stale(&self, sent: Moment) -> bool {
        self.0.iter().any(|lease| lease.missing.is_some_and(|since| since > sent))
    }

    /// Returns the nodes to restore: a majority confirmed the hold after the node reported it missing.
    pub(in crate::core) fn to_restore(&self, majority: usize) -> Vec<usize> {
        let sure =
            |since| self.0.iter().filter(|lease| lease.confirmed >= since).count() >= majority;
        let idle =
            |lease: &NodeLease| !lease.renewing && !lease.forced && lease.missing.is_some_and(sure);
        self.0.iter().enumerate().filter(|(_, lease)| idle(lease)).map(|(node, _)| node).collect()
    }

    /// Sets the next renewal on one node.
    pub(in crate::core) fn schedule_renewal(&mut self, node: usize, at: Moment) {
        self.0[node].renew_at = at;
    }

    /// Makes all nodes due for a renewal.
    pub(super) fn renew_all(&mut self, now: Moment) {
        self.0.iter_mut().for_each(|part| part.renew_at = now);
    }

    /// Applies the nodes' answers to a change of the hold: those that agreed have it until their instants.
    pub(super) fn on_update(
        &mut self,
        change: Change,
        agreed: impl Iterator<Item = (usize, Moment)>,
        sent: Moment,
        now: Moment,
        watched: Lease,
        jitter: u64,
    ) {
        for part in &mut self.0 {
            match change {
                // The owner relies on no node for longer than that, regardless of Redis.
                Change::Extend(lease) => {
                    let until = lease.unwrap_or(watched).valid_until(sent);
                    part.valid_until = part.valid_until.min(until);
                    part.renew_at = now;
                }
                Change::Reenter(_) | Change::Partial => part.renew_at = part.renew_at.min(now),
            }
        }
        for (node, until) in agreed {
            let part = &mut self.0[node];
            part.failures = 0;
            if !matches!(change, Change::Partial) {
                part.renew_at = watched.renew_at(sent, jitter);
                part.valid_until = part.valid_until.max(until);
            }
        }
    }

    /// Returns the instant of the next renewal on any node; never while all renewals are in flight.
    pub(in crate::core) fn next_renewal(&self) -> Moment {
        let idle = self.0.iter().filter(|lease| !lease.renewing);
        idle.map(|lease| lease.renew_at).min().unwrap_or(Moment::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_missing_hold_is_restored_on_a_server_after_a_majority_confirms_it() {
        let at = Moment::from_micros;
        let mut node_leases = NodeLeases::new(3, Moment::NEVER);
        (0..3).for_each(|node| node_leases.confirm(node, at(1), at(100)));
        node_leases.gone(0, at(5), true);
        assert!(
            node_leases.to_restore(2).is_empty(),
            "the other servers confirmed before the loss"
        );
        assert_eq!(node_leases.next_renewal(), at(5), "the other servers are renewed at once");
        node_leases.confirm(1, at(4), at(100));
        node_leases.confirm(2, at(6), at(100));
        assert!(node_leases.is_stale(at(4)) && node_leases.to_restore(2).is_empty());
        node_leases.confirm(1, at(7), at(100));
        assert_eq!(node_leases.to_restore(2), [0]);
        node_leases.gone(1, at(8), true);
        assert!(node_leases.to_restore(2).is_empty(), "only one server confirms the hold");
    }

    proptest! {
        #[test]
        fn validity_ends_when_the_majority_of_the_leases_ends(instants in prop::collection::vec(0_u64..10, 3..10)) {
            let mut node_leases = NodeLeases::new(instants.len(), Moment::NEVER);
            for (lease, at) in node_leases.0.iter_mut().zip(&instants) {
                lease.valid_until = Moment::from_micros(*at);
            }
            let majority = instants.len() / 2 + 1;
            let valid = node_leases.valid_until(majority).as_micros();
            prop_assert!(instants.iter().filter(|at| **at >= valid).count() >= majority);
            prop_assert!(instants.iter().filter(|at| **at > valid).count() < majority);
        }
    }
}
