//! The contest for a lock in Redis: the front waiter's attempts, its sleep, and the messages that end it.

use std::sync::Arc;

use redisson::{Family, Kind, LockName, Moment};

use crate::core::lock::state::Listening;
use crate::core::lock::table::{Label, Step};
use crate::core::{Core, Effect, Node, Report};

impl Core {
    /// Adds a name to the table unless it is in use.
    pub(in crate::core) fn track(&mut self, name: &LockName) {
        if !self.locks.contains(name) {
            let group = self.group_label(name);
            self.locks.insert(name.clone(), group);
        }
    }

    /// Returns the label under which metrics count a lock. Reports the group if it is a new one.
    pub(in crate::core) fn group_label(&mut self, name: &LockName) -> Arc<str> {
        let Label { group, groups } = self.locks.label(name);
        if let Some(groups) = groups {
            self.effects.report(Report::GroupSeen { group: Arc::clone(&group), groups });
        }
        group
    }

    /// Lets the front waiter try, if nothing prevents it; forgets the name when nobody needs it any more. Must be
    /// called whenever anything about the name has changed.
    pub(in crate::core) fn poll_queue(&mut self, name: &LockName) {
        if let Some(Listening { family, channel }) = self.locks.stop_listening(name) {
            for node in self.nodes_of(family) {
                self.effects.push(Effect::Unsubscribe(node, channel.clone()));
            }
        }
        match self.locks.next_step(name, self.now) {
            Step::Nothing => {}
            Step::Attempt(front) => {
                if let Some(op) = self.attempt(front) {
                    self.locks.begin_contest(name, op);
                }
            }
            Step::Join(readers) => {
                for reader in readers {
                    self.attempt(reader);
                }
            }
        }
    }

    /// Returns the family of kinds in which the name is in use here; `None` while nobody holds or waits for it.
    pub(in crate::core) fn family(&self, name: &LockName) -> Option<Family> {
        let state = self.locks.get(name)?;
        let held = state.holds().next().and_then(|number| self.leases.get(number));
        let held = held.map(|hold| hold.kind);
        let wanted = || self.locks.waiter(state.queue.front()?).map(|waiter| waiter.kind);
        held.or_else(wanted).map(Kind::family)
    }

    /// Ends the front waiter's sleep: it tries again.
    pub(in crate::core) fn wake(&mut self, name: &LockName) {
        if self.locks.wake(name) {
            self.poll_queue(name);
        }
    }

    /// Subscribes to the release messages of a lock that others hold.
    pub(in crate::core) fn subscribe(&mut self, name: &LockName) {
        let family = self.family(name).unwrap_or(Family::Plain);
        if let Some(channel) = self.locks.listen(name, family) {
            for node in self.nodes_of(family) {
                self.effects.push(Effect::Subscribe(node, channel.clone()));
            }
        }
    }

    /// Returns the servers that store a family's locks.
    fn nodes_of(&self, family: Family) -> Vec<Node> {
        match family {
            Family::Red => (0..self.nodes().len()).map(Node::Red).collect(),
            Family::Plain | Family::Fair | Family::ReadWrite => vec![Node::Main],
        }
    }

    /// Handles an active subscription to a lock's messages, new or restored: earlier messages were missed, so the front
    /// waiter tries again.
    pub fn on_subscribed(&mut self, now: Moment, node: Node, name: &LockName) {
        self.advance_clock(now);
        if self.locks.on_subscribed(node, name, self.majority()) {
            self.wake(name);
        }
        self.run_ready();
    }

    /// Handles a lost connection for messages: every name sleeps without it until it is back.
    pub fn on_unsubscribed(&mut self, node: Node) {
        if let Node::Red(node) = node {
            self.locks.on_unsubscribed(node);
        }
    }

    /// Handles a message about a release of the lock.
    pub fn on_message(&mut self, now: Moment, node: Node, name: &LockName) {
        self.advance_clock(now);
        let (majority, node_timeout) = (self.majority(), self.node_timeout());
        if self.locks.on_message(node, name, self.now, majority, node_timeout) {
            self.wake(name);
        }
        self.run_ready();
    }
}
