//! The number of locks that each user holds or waits for, and the policy's limit.

use std::collections::HashMap;

use crate::core::ids::{Owner, Slot};
use crate::core::side::Side;
use crate::core::{Core, Report};
use crate::policy::{Denial, Policy};
use crate::protocol::command::LockRequest;
use crate::protocol::resp::Frame;
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

    fn of(&self, uid: u32) -> usize {
        self.counts.get(&uid).copied().unwrap_or(0)
    }

    /// Returns the policy's denial of a LOCK, if it has one.
    fn denial(&self, peer: &Peer, request: &LockRequest) -> Option<Denial> {
        let policy = self.policy.as_ref()?;
        policy.check(peer, request, self.of(peer.uid)).err()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

impl Core {
    /// Sets the policy for new LOCKs; without one all are allowed. Existing holds stay.
    pub fn set_policy(&mut self, policy: Option<Policy>) {
        self.locks.set_policy(policy);
    }

    /// Returns the refusal of a LOCK that the policy denies. An owner that holds the lock may enter it again.
    pub(in crate::core) fn denied(&mut self, slot: Slot, request: &LockRequest) -> Option<Frame> {
        if !self.locks.quota().is_limited() {
            return None;
        }
        let owner = Owner { session: slot.session, owner: request.owner };
        let held = Side::BOTH.iter().any(|side| {
            let number = self.hold_of(owner, &request.name, *side);
            number.and_then(|n| self.leases.get(n)).is_some_and(|hold| hold.kind == request.kind)
        });
        let peer = &self.sessions.get(&slot.session)?.peer;
        if held {
            return None;
        }
        let denial = self.locks.quota().denial(peer, request)?;
        self.effects.report(Report::PolicyDenial(denial.reason));
        Some(Frame::Error(format!("DENIED `{}` {}", request.name, denial.text)))
    }
}
