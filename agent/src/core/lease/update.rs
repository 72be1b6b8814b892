//! What the keep script is asked for by a worker: re-entry, partial release, another lease.

use redisson::script::RenewOutcome;
use redisson::{Kind, Lease, Moment};
use std::sync::Arc;
use tracing::Span;

use crate::core::Report;
use crate::core::lease::hold::LeaseMode;
use crate::core::ops::{Asked, Change, Purpose};
use crate::core::session::reply::Reply;
use crate::core::session::{Owner, Slot};
use crate::core::{Core, spans};
use crate::protocol::command::HoldRequest;
use crate::types::End;

impl Core {
    pub(in crate::core) fn extend(
        &mut self,
        slot: Slot,
        request: &HoldRequest,
        lease: Option<Lease>,
    ) {
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
            span: Span::none(),
        };
        self.keep(asked, Change::Extend(lease));
    }

    /// Asks Redis for a change of a hold.
    pub(in crate::core) fn keep(&mut self, asked: Asked, change: Change) {
        let number = asked.number;
        let lease = change.lease();
        let id = match asked.kind {
            Kind::Red => self.keep_red(&asked, change),
            _ => self.send(Purpose::Keep(asked, change), self.settings.response_timeout),
        };
        if let Some(hold) = self.holds.get_mut(&number) {
            hold.asking = Some(id);
            hold.longest = hold.longest.max(lease.unwrap_or(hold.longest));
        }
    }

    /// Redis answered a re-entry, a partial release or an extension that was sent at `sent`.
    pub(in crate::core) fn on_update_reply(
        &mut self,
        sent: Moment,
        asked: &Asked,
        change: Change,
        kept: RenewOutcome,
    ) {
        let Asked { name, number, count, owner, slot, span, .. } = asked;
        if let Some(end) = lost_end(kept) {
            self.lose(*number, end);
        }
        let watched = self.settings.lease;
        let jitter = self.jitter();
        let Some(hold) = self.holds.get_mut(number) else {
            // It was lost, by this answer or meanwhile.
            let end = self.sessions.get(&owner.session).and_then(|s| s.loss(owner.owner, name));
            spans::outcome(span, "error");
            return self.answer(*slot, Self::lost(name, end.unwrap_or(End::Missing)));
        };
        let reply = match change {
            Change::Reenter(lease) => {
                hold.count = *count;
                hold.mode = if lease.is_some() { LeaseMode::Fixed } else { LeaseMode::Renewed };
                hold.valid_until = hold.valid_until.max(lease.unwrap_or(watched).valid_until(sent));
                hold.renew_at = watched.renew_at(sent, jitter);
                let (grant, kind) = (hold.grant(0), hold.kind);
                let group = self.group_label(name);
                self.effects.report(Report::Acquisition {
                    group: Arc::clone(&group),
                    kind,
                    outcome: "reentered",
                });
                spans::outcome(span, "reentered");
                span.record("lock.holds", *count);
                Reply::Grant(grant)
            }
            Change::Partial => Reply::Left { number: *number, count: *count },
            Change::Extend(lease) => {
                hold.mode = if lease.is_some() { LeaseMode::Fixed } else { LeaseMode::Renewed };
                hold.valid_until = lease.unwrap_or(watched).valid_until(sent);
                hold.renew_at = watched.renew_at(sent, jitter);
                Reply::Valid { number: *number, valid_until: hold.valid_until }
            }
        };
        self.clear_jeopardy(*number);
        self.arm(*number);
        self.journal_hold(*number);
        self.answer_with(*slot, reply);
    }
}

/// What a hold that was not kept has come to.
pub(in crate::core) fn lost_end(kept: RenewOutcome) -> Option<End> {
    match kept {
        RenewOutcome::Renewed => None,
        RenewOutcome::Missing | RenewOutcome::WrongType => Some(End::Missing),
        RenewOutcome::Stolen => Some(End::Stolen),
    }
}
