//! The final form of replies whose turn has come.

use redisson::{LockName, millis};

use crate::core::ids::Owner;
use crate::core::session::reply::{Grant, Reply};
use crate::core::{Core, Report};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{ConnectionId, End, Number};

impl Core {
    /// Returns the final form of a reply at the time it is sent. (A hold that was released meanwhile is reported as it was;
    /// the reply to the release follows.)
    pub(in crate::core) fn settle(&self, connection: ConnectionId, reply: Reply) -> Outgoing {
        let valid_until = |number, then| self.leases.get(number).map_or(then, |h| h.valid_until);
        Outgoing::Reply(match reply {
            Reply::Ready(reply) => return reply,
            Reply::Grant(grant) => {
                let valid_until = valid_until(grant.number, grant.valid_until);
                self.lock_reply(&Grant { valid_until, ..grant })
            }
            Reply::StillHeld { count, .. } => Frame::count(count.into()),
            Reply::Valid { number, valid_until: then, .. } => {
                Frame::count(millis(valid_until(number, then).since(self.now)))
            }
            Reply::Holds => self.holds_frame(connection),
            Reply::Graced { reply, .. } => reply,
            Reply::Resumed => self.resumed_frame(connection),
            Reply::MultiLock(parts) => {
                let parts =
                    parts.into_iter().filter_map(|part| match self.settle(connection, part) {
                        Outgoing::Reply(frame) => Some(frame),
                        // No command for a single lock has such a reply.
                        Outgoing::Switch(..)
                        | Outgoing::Push(_)
                        | Outgoing::Loss(_)
                        | Outgoing::Close => None,
                    });
                Frame::Array(parts.collect())
            }
        })
    }

    /// Replaces the unsent replies about a lost hold with `-LOST`.
    pub(in crate::core) fn void_replies(
        &mut self,
        owner: Owner,
        lost: Number,
        name: &LockName,
        end: End,
    ) {
        let Some(session) = self.sessions.get_mut(&owner.connection) else { return };
        let mut untold = Vec::new();
        for pending in &mut session.pending {
            let speaks_of_it = match &pending.reply {
                Some(Reply::MultiLock(parts)) => {
                    let speaks_of_it = parts.iter().any(|part| part.hold() == Some(lost));
                    let granted = parts.iter().filter_map(|part| match part {
                        Reply::Grant(grant) if grant.number != lost => Some(grant.number),
                        _ => None,
                    });
                    untold.extend(granted.filter(|_| speaks_of_it));
                    speaks_of_it
                }
                Some(reply) => reply.hold() == Some(lost),
                None => false,
            };
            if speaks_of_it {
                pending.reply = Some(Reply::Ready(Outgoing::Reply(Self::lost(name, end))));
            }
        }
        // All or none: holds that were granted together with it end too.
        for number in untold {
            self.give_back_untold(number);
        }
    }

    /// Turns a session's replies that wait for records after `done` into refusals, and takes back what they report. The reply
    /// to RESUME becomes one with the old secret.
    pub(in crate::core) fn take_back(&mut self, connection: ConnectionId, done: u64, why: &str) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let (mut untold, mut extended, mut graced) = (Vec::new(), Vec::new(), Vec::new());
        let refusal = format!("UNAVAILABLE the journal cannot be written: {why}");
        for pending in session.pending.iter_mut().filter(|p| p.after > done) {
            let Some(reply) = &mut pending.reply else { continue };
            let granted = reply.granted();
            match reply {
                Reply::Resumed => {
                    // A restarted agent would not know the new secret.
                    session.secret = session.secret_before.take().unwrap_or(session.secret);
                    continue;
                }
                Reply::Graced { before, .. } => graced.push(*before),
                Reply::Valid { number, before, .. } => extended.push((*number, before.clone())),
                _ if granted.is_empty() => continue,
                _ => untold.extend(granted),
            }
            *reply = Reply::Ready(Outgoing::Reply(Frame::Error(refusal.clone())));
            pending.reports.iter_mut().for_each(Report::turn_into_failure);
        }
        for number in untold {
            self.give_back_untold(number);
        }
        // The latest change is taken back first.
        for (number, before) in extended.into_iter().rev() {
            self.leases.keep_as_before(number, before, self.now);
        }
        for before in graced.into_iter().rev() {
            match before {
                None => self.end_grace(connection),
                Some(time) if self.sessions.has_grace(connection) => {
                    self.sessions.give_grace(connection, time);
                }
                Some(_) => {}
            }
        }
    }
}
