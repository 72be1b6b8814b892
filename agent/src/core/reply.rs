//! Replies that wait for their turn, and what they say once it has come.

use redisson::{Kind, LockName, Moment};

use super::event::End;
use super::hold::millis;
use super::session::Owner;
use super::{Core, Number};
use crate::resp::{Frame, Outgoing};
use crate::session::SessionId;

/// A command's reply. One that speaks of validity may have to wait for the reply to an earlier command of another
/// owner; what it says is settled when it is told.
#[derive(Debug)]
pub(super) enum Reply {
    Ready(Outgoing),
    /// LOCK's success.
    Grant(Grant),
    /// UNLOCK's, where the owner holds it still: how often.
    Left {
        number: Number,
        count: u32,
    },
    /// EXTEND's: the validity of that hold, and what it was when the command ended.
    Valid {
        number: Number,
        valid_until: Moment,
    },
    /// The session's holds.
    Holds,
}

/// What LOCK's success says.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) number: Number,
    pub(super) name: LockName,
    pub(super) kind: Kind,
    pub(super) token: Option<u64>,
    pub(super) count: u32,
    pub(super) valid_until: Moment,
    pub(super) waited_ms: u64,
}

impl Core {
    /// What a reply says now that it is told. (A hold that its owner has given back meanwhile is told as it was;
    /// what has become of it is told next.)
    pub(super) fn settle(&self, id: SessionId, reply: Reply) -> Outgoing {
        let valid_until = |number, then| self.holds.get(&number).map_or(then, |h| h.valid_until);
        Outgoing::Reply(match reply {
            Reply::Ready(reply) => return reply,
            Reply::Grant(grant) => {
                let valid_until = valid_until(grant.number, grant.valid_until);
                self.lock_reply(&Grant { valid_until, ..grant })
            }
            Reply::Left { count, .. } => Frame::count(count.into()),
            Reply::Valid { number, valid_until: then } => {
                Frame::count(millis(valid_until(number, then).since(self.now)))
            }
            Reply::Holds => self.holds_frame(id),
        })
    }

    /// A hold is lost: what has not been told of it yet is not told any more.
    pub(super) fn void_replies(&mut self, owner: Owner, lost: Number, name: &LockName, end: End) {
        let Some(session) = self.sessions.get_mut(&owner.session) else { return };
        for pending in &mut session.pending {
            let told = match &pending.reply {
                Some(
                    Reply::Grant(Grant { number, .. })
                    | Reply::Left { number, .. }
                    | Reply::Valid { number, .. },
                ) => *number,
                _ => continue,
            };
            if told == lost {
                pending.reply = Some(Reply::Ready(Outgoing::Reply(Self::lost(name, end))));
            }
        }
    }
}
