//! The sessions with grace, which count against their user even while they have no connection.

use std::collections::BTreeMap;

use crate::collections::HashMap;
use crate::types::{ConnectionId, Limit, Peer};

#[derive(Debug, Default)]
pub(super) struct Graced {
    users: BTreeMap<ConnectionId, u32>,
    counts: HashMap<u32, usize>,
}

impl Graced {
    pub(super) fn insert(&mut self, connection: ConnectionId, uid: u32) {
        if self.users.insert(connection, uid).is_none() {
            *self.counts.entry(uid).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) {
        let Some(uid) = self.users.remove(&connection) else { return };
        if let Some(count) = self.counts.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&uid);
            }
        }
    }

    pub(super) fn contains(&self, connection: ConnectionId) -> bool {
        self.users.contains_key(&connection)
    }

    /// Returns the connections in order.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.users.keys().copied()
    }

    /// Returns a sentence about the limit that prevents a user from having another one, if reached.
    pub(super) fn exhausted(&self, peer: &Peer, max: usize) -> Option<String> {
        let what = ["session has GRACE", "sessions have GRACE"];
        let own = self.counts.get(&peer.uid).copied().unwrap_or_default();
        Limit { setting: "--max-sessions", max, what }.reached(peer, self.users.len(), own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_use_up_all_sessions_with_grace() {
        let mut graced = Graced::default();
        let user = |uid| Peer { uid, ..Peer::default() };
        let (one, other, root) = (user(4_000_000_001), user(4_000_000_002), user(0));
        for number in 0..12 {
            assert_eq!(graced.exhausted(&one, 16), None);
            graced.insert(ConnectionId(number), one.uid);
            graced.insert(ConnectionId(number), one.uid);
        }
        let reached = graced.exhausted(&one, 16).expect("one user may have 12 of 16");
        assert!(
            reached.starts_with("12 sessions have GRACE already for user 4000000001"),
            "{reached}"
        );
        for number in 12..15 {
            assert_eq!(graced.exhausted(&other, 16), None);
            graced.insert(ConnectionId(number), other.uid);
        }
        let reached = graced.exhausted(&other, 16).expect("the last one is reserved");
        assert!(reached.contains("--max-sessions is 16, with 1 reserved"), "{reached}");
        assert_eq!(graced.exhausted(&root, 16), None);
        for number in 0..15 {
            graced.remove(ConnectionId(number));
        }
        assert!(graced.users.is_empty() && graced.counts.is_empty());
    }
}
