//! What the keep script is asked for by a worker: re-entry, partial release, another lease.

use redisson::script::Kept;
use redisson::{Lease, Moment};

use super::Core;
use super::event::End;
use super::hold::Care;
use super::op::{Asked, Change, Purpose};
use super::session::{Owner, Slot};
use crate::command::HoldRequest;
use crate::resp::Frame;

impl Core {
    pub(super) fn extend(&mut self, slot: Slot, request: &HoldRequest, lease: Option<Lease>) {
        let owner = Owner { session: slot.session, owner: request.owner };
        let number = match self.hold_for(slot, owner, request) {
            Ok(number) => number,
            Err(reply) => return self.answer(slot, reply),
        };
        let Some(hold) = self.holds.get(&number) else { return };
        let asked = Asked {
            name: hold.name.clone(),
            kind: hold.kind,
            number,
            count: hold.count,
            owner,
            slot,
        };
        self.send(Purpose::Keep(asked, Change::Extend(lease)), self.settings.response_timeout);
    }

    /// Redis answered a re-entry, a partial release or an extension that was sent at `sent`.
    pub(super) fn kept(&mut self, sent: Moment, asked: &Asked, change: Change, kept: Kept) {
        let Asked { name, number, count, owner, slot, .. } = asked;
        if let Some(end) = lost_end(kept) {
            self.lose(*number, end);
        }
        let now = self.now;
        let watched = self.settings.lease;
        let jitter = self.jitter();
        let Some(hold) = self.holds.get_mut(number) else {
            // It was lost, by this answer or meanwhile.
            let end = self.sessions.get(&owner.session).and_then(|s| s.loss(owner.owner, name));
            return self.answer(*slot, Self::lost(name, end.unwrap_or(End::Missing)));
        };
        let reply = match change {
            Change::Reenter(lease) => {
                hold.count = *count;
                hold.care = if lease.is_some() { Care::Fixed } else { Care::Watched };
                hold.valid_until = hold.valid_until.max(lease.unwrap_or(watched).valid_until(sent));
                hold.renew_at = watched.renew_at(sent, jitter);
                let hold = &self.holds[number];
                let reply = Self::lock_reply(self.client, hold, now, 0);
                let group = self.group(name);
                self.figures.acquisition(&group, self.holds[number].kind, "reentered");
                reply
            }
            Change::Partial => Frame::Int(i64::from(*count)),
            Change::Extend(lease) => {
                hold.care = if lease.is_some() { Care::Fixed } else { Care::Watched };
                hold.valid_until = lease.unwrap_or(watched).valid_until(sent);
                hold.renew_at = watched.renew_at(sent, jitter);
                Frame::count(hold.valid_ms(now))
            }
        };
        self.calm(*number);
        self.arm(*number);
        self.answer(*slot, reply);
    }
}

/// What a hold that was not kept has come to.
pub(super) fn lost_end(kept: Kept) -> Option<End> {
    match kept {
        Kept::Kept => None,
        Kept::Missing | Kept::WrongType => Some(End::Missing),
        Kept::Stolen => Some(End::Stolen),
    }
}
