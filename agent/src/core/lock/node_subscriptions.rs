//! The nodes whose release messages are received for a lock, and those that reported it free.

/// A set of nodes; the settings allow no more nodes than fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Set(u32);

impl Set {
    fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    fn contains(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// The subscriptions for one red lock, and the releases they reported.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::core) struct NodeSubscriptions {
    /// Nodes with an active subscription.
    listening: Set,
    /// Nodes on which the lock has been free at some time since the latest attempt was sent.
    free: Set,
}

impl NodeSubscriptions {
    /// Handles the case where an attempt is about to be sent: earlier messages do not matter to it.
    pub(in crate::core) fn begin(&mut self) {
        self.free = Set::default();
    }

    /// Records that the lock is, or was, free on that node.
    pub(in crate::core) fn add_free(&mut self, node: usize) {
        self.free.insert(node);
    }

    /// Returns whether the lock is known to be free there.
    pub(in crate::core) fn knows_free(&self, node: usize) -> bool {
        self.free.contains(node)
    }

    /// Returns the number of nodes on which it is free.
    pub(in crate::core) fn free(&self) -> usize {
        self.free.count()
    }

    /// Records that a node's subscription is confirmed, for the first time or again. Returns true if this one completes
    /// a majority: later releases will be received, and earlier ones may have been missed.
    pub(in crate::core) fn on_subscribed(&mut self, node: usize, majority: usize) -> bool {
        let before = self.listening.count();
        self.listening.insert(node);
        before < majority && self.listening.count() >= majority
    }

    /// Records that a node's messages are no longer received.
    pub(in crate::core) fn on_unsubscribed(&mut self, node: usize) {
        self.listening.remove(node);
    }

    /// Records that no messages are received any more.
    pub(in crate::core) fn mark_unsubscribed(&mut self) {
        self.listening = Set::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_nodes_are_counted_once_and_forgotten_at_the_next_attempt() {
        let mut node_subscriptions = NodeSubscriptions::default();
        node_subscriptions.add_free(2);
        node_subscriptions.add_free(2);
        node_subscriptions.add_free(0);
        assert!(node_subscriptions.knows_free(2) && !node_subscriptions.knows_free(1));
        assert_eq!(node_subscriptions.free(), 2);
        node_subscriptions.begin();
        assert_eq!(node_subscriptions.free(), 0);
    }

    #[test]
    fn a_majority_of_subscriptions_is_reported_once() {
        let mut node_subscriptions = NodeSubscriptions::default();
        assert!(!node_subscriptions.on_subscribed(0, 2));
        assert!(!node_subscriptions.on_subscribed(0, 2), "the same node again");
        assert!(node_subscriptions.on_subscribed(1, 2));
        assert!(!node_subscriptions.on_subscribed(2, 2), "the first two have remained subscribed");
        node_subscriptions.on_unsubscribed(0);
        assert!(!node_subscriptions.on_subscribed(0, 2));
        node_subscriptions.mark_unsubscribed();
        assert!(!node_subscriptions.on_subscribed(0, 2) && node_subscriptions.on_subscribed(2, 2));
    }
}
