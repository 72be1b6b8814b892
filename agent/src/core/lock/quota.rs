//! The number of locks that each user holds or waits for, and the policy's limit.

use std::collections::HashMap;

use crate::core::Core;
use crate::core::Report;
use crate::core::session::{Owner, Slot};
use crate::core::side::Side;
use crate::policy::Policy;
use crate::protocol::command::LockRequest;
use crate::protocol::resp::Frame;

/// Holds and waits of each user that has any.
#[derive(Debug, Default)]
pub(in crate::core) struct Quota(HashMap<u32, usize>);

impl Quota {
    pub(in crate::core) fn add(&mut self, uid: u32) {
        *self.0.entry(uid).or_default() += 1;
    }

    pub(in crate::core) fn remove(&mut self, uid: u32) {
        if let Some(count) = self.0.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.0.remove(&uid);
            }
        }
    }

    pub(in crate::core) fn of(&self, uid: u32) -> usize {
        self.0.get(&uid).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Core {
    /// Sets the policy for new LOCKs; without one all are allowed. Existing holds stay.
    pub fn set_policy(&mut self, policy: Option<Policy>) {
        self.policy = policy;
    }

    /// Returns the refusal of a LOCK that the policy denies. An owner that holds the lock may enter it again.
    pub(in crate::core) fn denied(&mut self, slot: Slot, request: &LockRequest) -> Option<Frame> {
        let policy = self.policy.as_ref()?;
        let owner = Owner { session: slot.session, owner: request.owner };
        let held = Side::BOTH.iter().any(|side| {
            let number = self.hold_of(owner, &request.name, *side);
            number.and_then(|n| self.leases.get(n)).is_some_and(|hold| hold.kind == request.kind)
        });
        let peer = &self.sessions.get(&slot.session)?.peer;
        if held {
            return None;
        }
        let denial = policy.check(peer, request, self.quota.of(peer.uid)).err()?;
        self.effects.report(Report::PolicyDenial(denial.reason));
        Some(Frame::Error(format!("DENIED `{}` {}", request.name, denial.text)))
    }
}
