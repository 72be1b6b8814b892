//! How long each node is sure to keep a hold, and when each is to be asked to keep it longer.

use redisson::Moment;

/// One node's part in a hold.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct NodeLease {
    /// Until when it surely keeps the hold; the clock's origin where it does not have it.
    pub(in crate::core) valid_until: Moment,
    /// When the latest script was sent by which it said so.
    pub(in crate::core) confirmed: Moment,
    /// When it said that the hold is gone from there and that nobody else has the lock.
    pub(in crate::core) missing: Option<Moment>,
    /// When to renew it there next.
    pub(in crate::core) renew_at: Moment,
    /// A renewal, or the setting anew, is on its way.
    pub(in crate::core) renewing: bool,
    /// Renewals there that failed in a row.
    pub(in crate::core) failures: u32,
    /// An operator released it there: it is not set anew.
    pub(in crate::core) forced: bool,
}

/// All nodes' parts.
#[derive(Debug)]
pub(in crate::core) struct NodeLeases(pub(in crate::core) Box<[NodeLease]>);

impl NodeLeases {
    /// No node has it yet; those that do not answer are asked at `renew_at`.
    pub(super) fn new(nodes: usize, renew_at: Moment) -> Self {
        let none = NodeLease {
            valid_until: Moment::default(),
            confirmed: Moment::default(),
            missing: None,
            renew_at,
            renewing: false,
            failures: 0,
            forced: false,
        };
        Self(vec![none; nodes].into())
    }

    /// Until when a majority surely keeps the hold: of `majority` nodes' instants the earliest, were they the latest ones.
    pub(in crate::core) fn valid_until(&self, majority: usize) -> Moment {
        let mut instants: Vec<_> =
            self.0.iter().map(|lease_on_node| lease_on_node.valid_until).collect();
        instants.sort_unstable_by(|a, b| b.cmp(a));
        instants.get(majority - 1).copied().unwrap_or_default()
    }

    /// A node keeps the hold until then, by a script sent at `sent`.
    pub(super) fn confirm(&mut self, node: usize, sent: Moment, until: Moment) {
        let lease_on_node = &mut self.0[node];
        lease_on_node.confirmed = lease_on_node.confirmed.max(sent);
        lease_on_node.valid_until = lease_on_node.valid_until.max(until);
        lease_on_node.missing = None;
        lease_on_node.failures = 0;
    }

    /// A node does not have the hold. If it can be set anew there, the others are asked whether they have it still.
    pub(super) fn gone(&mut self, node: usize, now: Moment, missing: bool) {
        self.0[node].valid_until = Moment::default();
        self.0[node].confirmed = Moment::default();
        self.0[node].missing = missing.then_some(now);
        for lease_on_node in
            self.0.iter_mut().filter(|lease_on_node| missing && lease_on_node.missing.is_none())
        {
            lease_on_node.renew_at = lease_on_node.renew_at.min(now);
        }
    }

    /// Whether a script sent then is too old to tell whether a node can have its part again.
    pub(super) fn is_stale(&self, sent: Moment) -> bool {
        self.0.iter().any(|lease_on_node| lease_on_node.missing.is_some_and(|since| since > sent))
    }

    /// Nodes that can have their part again: since they said that it is missing a majority has said that it is not.
    pub(super) fn to_restore(&self, majority: usize) -> Vec<usize> {
        let sure = |since| {
            self.0.iter().filter(|lease_on_node| lease_on_node.confirmed >= since).count()
                >= majority
        };
        let idle = |lease_on_node: &NodeLease| {
            !lease_on_node.renewing
                && !lease_on_node.forced
                && lease_on_node.missing.is_some_and(sure)
        };
        self.0
            .iter()
            .enumerate()
            .filter(|(_, lease_on_node)| idle(lease_on_node))
            .map(|(node, _)| node)
            .collect()
    }

    /// When the next node is to be asked; never while all are being asked.
    pub(super) fn renew_at(&self) -> Moment {
        let idle = self.0.iter().filter(|lease_on_node| !lease_on_node.renewing);
        idle.map(|lease_on_node| lease_on_node.renew_at).min().unwrap_or(Moment::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_part_is_given_again_once_a_majority_has_said_so_after_it_was_missed() {
        let at = Moment::from_micros;
        let mut node_leases = NodeLeases::new(3, Moment::NEVER);
        (0..3).for_each(|node| node_leases.confirm(node, at(1), at(100)));
        node_leases.gone(0, at(5), true);
        assert!(node_leases.to_restore(2).is_empty(), "what they said before is old");
        assert_eq!(node_leases.renew_at(), at(5), "they are asked");
        node_leases.confirm(1, at(4), at(100));
        node_leases.confirm(2, at(6), at(100));
        assert!(node_leases.is_stale(at(4)) && node_leases.to_restore(2).is_empty());
        node_leases.confirm(1, at(7), at(100));
        assert_eq!(node_leases.to_restore(2), [0]);
        node_leases.gone(1, at(8), true);
        assert!(node_leases.to_restore(2).is_empty(), "only one is left to say so");
    }

    proptest! {
        #[test]
        fn a_majority_is_valid_until_then_and_no_longer(instants in prop::collection::vec(0_u64..10, 3..10)) {
            let mut node_leases = NodeLeases::new(instants.len(), Moment::NEVER);
            for (lease_on_node, at) in node_leases.0.iter_mut().zip(&instants) {
                lease_on_node.valid_until = Moment::from_micros(*at);
            }
            let majority = instants.len() / 2 + 1;
            let valid = node_leases.valid_until(majority).as_micros();
            prop_assert!(instants.iter().filter(|at| **at >= valid).count() >= majority);
            prop_assert!(instants.iter().filter(|at| **at > valid).count() < majority);
        }
    }
}
