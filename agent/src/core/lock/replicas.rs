//! Grants that replicas must have (`--min-replicas`), and what becomes of those that too few confirm.
//!
//! A grant that only the master has is lost with it, and the replica that takes over lets somebody else in. So what grants
//! goes down a connection of its own, with a WAIT behind it, and is told once enough replicas have it. If too few have,
//! nobody is told that he holds the lock, and the lock is given back.

use redisson::script::{RenewOutcome, Value};
use redisson::{Kind, Moment};

use crate::core::lock::waiter::Left;
use crate::core::ops::{Asked, Attempt, Change, Op, OpId, Purpose};
use crate::core::{Core, spans};
use crate::core::{LogLine, Report};

/// What WAIT said of a script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confirmed {
    /// How many replicas have what it wrote.
    pub replicas: u32,
    /// Why that is not known, where WAIT was refused.
    pub refusal: Option<String>,
}

impl Core {
    /// Redis answered a script, and so many replicas have what it wrote: what scripts of [`crate::core::Lane::Grants`] want.
    pub fn on_confirmed(&mut self, now: Moment, id: OpId, reply: &Value, confirmed: Confirmed) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.confirmed = confirmed;
        }
        self.on_reply(now, id, reply);
    }

    /// Whether what a script grants is told only once replicas have it. Those of red locks have their majority instead.
    pub(in crate::core) fn awaits_replicas(&self, purpose: &Purpose) -> bool {
        let grants = matches!(
            purpose,
            Purpose::Acquire(_) | Purpose::HandOver { .. } | Purpose::Keep(_, Change::Reenter(_))
        );
        grants && self.settings.min_replicas > 0
    }

    /// Why what a script has granted is not to be told; none where enough replicas have it.
    pub(in crate::core) fn replica_shortfall(&mut self, op: &Op) -> Option<String> {
        let wanted = self.settings.min_replicas;
        if wanted == 0 {
            return None;
        }
        let Confirmed { replicas, refusal } = &op.confirmed;
        self.short_of_replicas = *replicas < wanted;
        self.effects.report(Report::Confirmation(if self.short_of_replicas {
            "too_few"
        } else {
            "confirmed"
        }));
        if !self.short_of_replicas {
            return None;
        }
        let why = match refusal {
            Some(refusal) => format!(
                "nobody knows how many replicas have it, and {wanted} must (--min-replicas): {refusal}"
            ),
            None => format!(
                "{replicas} of the {wanted} replicas that must have it (--min-replicas) confirmed it in time"
            ),
        };
        let (replicas, refusal) = (*replicas, refusal.clone());
        self.effects.log_bounded(self.now, || LogLine::TooFewReplicas {
            replicas,
            wanted,
            refusal,
        });
        Some(why)
    }

    /// The lock is ours under this attempt's number, and must not be: its waiter hears why, and Redis is rid of it. A token
    /// stays spent.
    pub(in crate::core) fn withdraw(&mut self, attempt: &Attempt, token: Option<u64>, why: &str) {
        let Attempt { name, kind, waiter, number, lease, .. } = attempt;
        if let Some(token) = token {
            self.fences.saw(name, token);
        }
        // Whatever the waiter leaves behind it leaves under another number.
        self.renumber(*waiter);
        self.undo(name, *kind, *number, *lease);
        self.leave(*waiter, Left::Failed(format!("UNAVAILABLE `{name}` is not given out: {why}")));
    }

    /// Redis answered a re-entry, a partial release or an extension of one of its holds.
    pub(in crate::core) fn on_confirmed_update(
        &mut self,
        op: &Op,
        asked: &Asked,
        change: Change,
        kept: RenewOutcome,
    ) {
        let reentered = matches!((change, kept), (Change::Reenter(_), RenewOutcome::Renewed));
        if reentered
            && self.holds.contains_key(&asked.number)
            && let Some(why) = self.replica_shortfall(op)
        {
            return self.reentry_withdrawn(asked, &why);
        }
        self.on_update_reply(op.sent, asked, change, kept);
    }

    /// Too few replicas have a re-entry. The hold is what it was before; Redis is told the count again until it has it.
    fn reentry_withdrawn(&mut self, asked: &Asked, why: &str) {
        let Asked { name, number, slot, span, .. } = asked;
        spans::outcome(span, "error");
        if let Some(hold) = self.holds.get_mut(number).filter(|hold| !hold.lapsing) {
            hold.renewing = true;
            self.arm(*number);
            self.renew(vec![*number]);
        }
        self.answer(*slot, Self::unavailable_for(name, &format!("it is not entered again: {why}")));
    }

    /// So few replicas are connected that an attempt was not even sent.
    pub(in crate::core) fn attempt_not_tried(&mut self, id: OpId, why: &str) {
        self.short_of_replicas = true;
        self.effects.report(Report::Confirmation("not_tried"));
        let Some(Op { purpose: Purpose::Acquire(attempt), may_have_run, .. }) = self.take_op(id)
        else {
            return;
        };
        self.clear_attempt(&attempt, id);
        if may_have_run {
            return self.withdraw(&attempt, None, why);
        }
        let sentence = format!("UNAVAILABLE `{}` is not given out: {why}", attempt.name);
        self.leave(attempt.waiter, Left::Failed(sentence));
        self.poll_queue(&attempt.name);
    }

    /// A fair waiter that has gone got a place by an attempt that was still under way: the script that gave up its place
    /// went by another connection, and may have come first.
    pub(in crate::core) fn place_for_nobody(&mut self, attempt: &Attempt) {
        if self.settings.min_replicas > 0 && attempt.kind == Kind::Fair {
            self.undo(&attempt.name, Kind::Fair, attempt.number, attempt.lease);
        }
    }
}
