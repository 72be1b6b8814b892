//! EXTEND.

use redisson::Lease;
use tracing::Span;

use crate::core::Core;
use crate::core::ids::{Owner, ReplyTo};
use crate::core::ops::verb::{Change, HoldUpdate};
use crate::protocol::command::HoldRequest;

impl Core {
    pub(in crate::core) fn extend(
        &mut self,
        reply_to: ReplyTo,
        request: &HoldRequest,
        lease: Option<Lease>,
    ) {
        let owner = Owner { connection: reply_to.connection, owner: request.owner };
        let number = match self.hold_for(reply_to, owner, request) {
            Ok(number) => number,
            Err(reply) => return self.answer(reply_to, reply),
        };
        let Some(hold) = self.leases.get(number) else { return };
        let update = HoldUpdate {
            name: hold.name.clone(),
            kind: hold.kind,
            number,
            count: hold.count,
            owner,
            reply_to,
            span: Span::none(),
            change: Change::Extend(lease),
        };
        if let Some(early) = &hold.early {
            self.ops.answer_by(early.hand_over, self.now + self.settings.response_timeout);
            return self.leases.set_waiting_extend(number, update);
        }
        self.update_hold(update);
    }
}
