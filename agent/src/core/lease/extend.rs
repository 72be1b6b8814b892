//! EXTEND.

use redisson::Lease;

use crate::core::Core;
use crate::core::ids::ReplyTo;
use crate::core::ops::verb::Change;
use crate::protocol::command::HoldRequest;

impl Core {
    pub(in crate::core) fn extend(
        &mut self,
        reply_to: ReplyTo,
        request: &HoldRequest,
        lease: Option<Lease>,
    ) {
        let number = match self.hold_for(reply_to, request) {
            Ok(number) => number,
            Err(reply) => return self.answer(reply_to, reply),
        };
        let Some(hold) = self.leases.get(number) else { return };
        let update = hold.update_for(reply_to, Change::Extend(lease));
        if hold.early {
            if let Some(hand_over) = self.locks.get(&hold.name).and_then(|state| state.early) {
                self.ops.answer_by(hand_over, self.now + self.settings.response_timeout);
            }
            return self.leases.set_waiting_extend(number, update);
        }
        self.update_hold(update);
    }
}
