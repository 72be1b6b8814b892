//! The number of locks that each user holds or waits for, and the policy's limit.

use std::collections::HashMap;

use crate::policy::{Denial, Policy};
use crate::protocol::command::LockRequest;
use crate::types::Peer;

/// The policy, and the holds and waits of each user that has any.
#[derive(Debug, Default)]
pub(in crate::core) struct Quota {
    policy: Option<Policy>,
    counts: HashMap<u32, usize>,
}

impl Quota {
    pub(super) fn set_policy(&mut self, policy: Option<Policy>) {
        self.policy = policy;
    }

    pub(super) fn is_limited(&self) -> bool {
        self.policy.is_some()
    }

    pub(super) fn add(&mut self, uid: u32) {
        *self.counts.entry(uid).or_default() += 1;
    }

    pub(super) fn remove(&mut self, uid: u32) {
        if let Some(count) = self.counts.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&uid);
            }
        }
    }

    pub(super) fn of(&self, uid: u32) -> usize {
        self.counts.get(&uid).copied().unwrap_or(0)
    }

    /// Returns the policy's denial of a LOCK, if it has one.
    pub(super) fn denial(&self, peer: &Peer, request: &LockRequest) -> Option<Denial> {
        let policy = self.policy.as_ref()?;
        policy.check(peer, request, self.of(peer.uid)).err()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}
