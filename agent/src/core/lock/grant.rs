//! Grants: the choice of the waiter that gets an acquired lock, and the start of its hold.

use std::sync::Arc;

use redisson::{Kind, Moment};

use crate::core::ids::WaiterId;
use crate::core::lease::hold::{LeaseMode, NewHold};
use crate::core::lock::waiter::Waiter;
use crate::core::ops::verb::Attempt;
use crate::core::session::reply::{Grant, Reply};
use crate::core::{Core, Report};
use crate::types::{End, Number};

/// The facts of a grant that do not come from its waiter.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Terms {
    pub(in crate::core) number: Number,
    pub(in crate::core) token: Option<u64>,
    pub(in crate::core) valid_until: Moment,
    pub(in crate::core) renew_at: Moment,
    /// A hand-over in flight puts the hold into Redis.
    pub(in crate::core) early: bool,
}

impl Core {
    /// Handles a lock that Redis granted to this attempt's number: the attempt's waiter gets it, or the next one, or it
    /// is released.
    pub(in crate::core) fn on_lock_obtained(
        &mut self,
        attempt: &Attempt,
        sent: Moment,
        token: Option<u64>,
    ) {
        let Attempt { name, kind, waiter, number, lease, under } = attempt;
        if let Some(token) = token {
            self.locks.saw_token(name, token);
        }
        if let Some(successor) = self.pick_successor(attempt, sent) {
            return self.grant(successor, *number, sent, token);
        }
        self.renumber(*waiter);
        self.undo(name, *kind, *number, *lease);
        // Nothing else makes a waiter outside the local queue try again.
        if *kind == Kind::Fair || under.is_some() {
            self.attempt(*waiter);
        }
    }

    /// Returns the waiter that gets an acquired lock: the one of the attempt, or the next one, or `None`.
    pub(in crate::core) fn pick_successor(
        &self,
        attempt: &Attempt,
        sent: Moment,
    ) -> Option<WaiterId> {
        let Attempt { name, kind, waiter, lease, under, .. } = attempt;
        // The reply came too late: a grant that is about to end is never reported.
        if self.now >= lease.lost_at(lease.valid_until(sent), self.settings.lost_margin) {
            return None;
        }
        if self.locks.has_waiter(*waiter) {
            return Some(*waiter);
        }
        // Its waiter has left. No worker has seen the number, so the next waiter may get it. But the next waiter of a
        // fair lock may belong to another client, and a read hold under a write hold belongs to the write hold's owner. And
        // the next agent removes a number that the journal has without an owner: such a grant must be recorded first.
        let next = self.locks.get(name)?.queue.front()?;
        let same = self.locks.waiter(next).is_some_and(|waiter| {
            let recorded = self.sessions.has_grace(waiter.owner.connection);
            waiter.kind == *kind
                && waiter.lease.unwrap_or(self.settings.lease) == *lease
                && (recorded || !self.journal.has(attempt.number))
        });
        (same && under.is_none() && *kind != Kind::Fair).then_some(next)
    }

    /// Grants the lock to a waiter, under `number`.
    pub(in crate::core) fn grant(
        &mut self,
        waiting: WaiterId,
        number: Number,
        sent: Moment,
        token: Option<u64>,
    ) {
        let Some(waiter) = self.locks.waiter(waiting) else { return };
        let valid_until = waiter.lease.unwrap_or(self.settings.lease).valid_until(sent);
        let renew_at = self.settings.lease.renew_at(sent, self.numbers.jitter());
        self.begin_hold(waiting, Terms { number, token, valid_until, renew_at, early: false });
    }

    /// Begins the hold of a waiter.
    pub(in crate::core) fn begin_hold(&mut self, waiting: WaiterId, terms: Terms) {
        let Terms { number, token, valid_until, renew_at, early } = terms;
        let Some(waiter) = self.remove_waiter(waiting) else { return };
        if waiter.kind != Kind::Read
            && let Some(gone) = self.locks.get(&waiter.name).and_then(|state| state.hold)
        {
            // A fair waiter competes in Redis even while there is a local hold. Redis has granted the lock to it, so
            // that hold is gone.
            self.lose(gone, End::Missing);
        }
        let waited = self.now.since(waiter.since);
        let group = self.group_label(&waiter.name);
        let (outcome, kind) = ("acquired", waiter.kind);
        let report = Report::Acquisition { group: Arc::clone(&group), kind, outcome };
        self.report_with_reply(waiter.reply_to, report);
        let report = Report::Waited { group: Arc::clone(&group), outcome, wait: waited };
        self.report_with_reply(waiter.reply_to, report);
        let waited_ms = self.waited_ms(&waiter);
        let span = self.hold_span(&waiter, &group, number, token);
        let Waiter { name, kind, owner, uid, reply_to, lease, trace, .. } = *waiter;
        let mode = if lease.is_some() { LeaseMode::Fixed } else { LeaseMode::Renewed };
        let lease = lease.unwrap_or(self.settings.lease);
        let hold = NewHold {
            number,
            name,
            group,
            kind,
            owner,
            uid,
            token,
            count: 1,
            mode,
            granted: self.now,
            valid_until,
            renew_at,
            lease,
            lapsing: self.lapses(owner.connection),
            untold: reply_to.member.is_some(),
            trace,
            span,
            early,
        };
        let grant = Grant { waited_ms, ..self.insert_hold(hold) };
        self.journal_hold(number);
        self.answer_with(reply_to, Reply::Grant(grant));
    }

    /// Adds a hold to every table, and counts its start. Returns the facts for the reply to its LOCK, except the wait.
    pub(in crate::core) fn insert_hold(&mut self, hold: NewHold) -> Grant {
        let NewHold { number, kind, owner, uid, granted, .. } = hold;
        let (name, group) = (hold.name.clone(), Arc::clone(&hold.group));
        let grant = self.leases.insert(hold).grant(0);
        self.effects.report(Report::HoldBegan { group, kind, number, granted });
        self.track(&name);
        self.locks.add_hold(&name, kind, number, uid);
        self.sessions.add_hold(owner, name, kind, number);
        grant
    }
}
