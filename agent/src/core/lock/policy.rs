//! The policy: the LOCKs that it denies.

use crate::core::ids::ReplyTo;
use crate::core::{Core, Report};
use crate::policy::Policy;
use crate::protocol::command::LockRequest;
use crate::protocol::resp::Frame;
use crate::types::Number;

impl Core {
    /// Sets the policy for new LOCKs; without one all are allowed. Existing holds stay.
    pub fn set_policy(&mut self, policy: Option<Policy>) {
        self.locks.set_policy(policy);
    }

    /// Returns the refusal of a LOCK that the policy denies. An owner that holds the lock may enter it again.
    pub(in crate::core) fn policy_refusal(
        &mut self,
        reply_to: ReplyTo,
        request: &LockRequest,
        held: Option<Number>,
        before: usize,
    ) -> Option<Frame> {
        if !self.locks.quota().has_policy() {
            return None;
        }
        let held = held.and_then(|number| self.leases.get(number));
        if held.is_some_and(|hold| hold.kind == request.kind) {
            return None;
        }
        let peer = &self.sessions.get(&reply_to.connection)?.peer;
        let denial = self.locks.quota().denial(peer, request, before)?;
        self.effects.report(Report::PolicyDenial(denial.reason));
        Some(Frame::Error(format!("DENIED `{}` {}", request.name, denial.text)))
    }
}
