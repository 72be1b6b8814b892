//! The policy: the LOCKs and SHOWs that it denies.

use redisson::LockName;

use crate::core::ids::ReplyTo;
use crate::core::{Core, Report};
use crate::policy::{Denial, Policy};
use crate::protocol::command::LockRequest;
use crate::protocol::resp::Frame;
use crate::types::Number;

impl Core {
    /// Sets the policy for new commands; without one all are allowed. Existing holds stay.
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
        Some(self.denied(&request.name, &denial))
    }

    /// Returns the refusal of a SHOW that the policy denies. Root and the agent's own user may look at every lock.
    pub(in crate::core) fn look_refusal(
        &mut self,
        reply_to: ReplyTo,
        name: &LockName,
    ) -> Option<Frame> {
        self.sees_only(reply_to.connection)?;
        let peer = &self.sessions.get(&reply_to.connection)?.peer;
        let denial = self.locks.quota().look_denial(peer, name)?;
        Some(self.denied(name, &denial))
    }

    fn denied(&mut self, name: &LockName, denial: &Denial) -> Frame {
        self.effects.report(Report::PolicyDenial(denial.reason));
        Frame::Error(format!("DENIED `{name}` {}", denial.text))
    }
}
