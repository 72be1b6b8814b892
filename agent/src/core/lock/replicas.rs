//! Grants and leases that replicas must have (`--min-replicas`).
//!
//! A lease that only the master has is lost with it, and the replica that takes over grants the lock to somebody else. So
//! scripts that grant or extend a lease use connections of their own, with a WAIT behind them:
//!
//! - A grant is reported once enough replicas confirm it. With fewer it is withdrawn, and the lock is released.
//! - A renewal extends the validity of its hold once enough replicas confirm it. With fewer Redis keeps the lock, and the
//!   hold ends for its owner when its last confirmed lease does.

use redisson::script::Value;
use redisson::{Kind, Moment};

use crate::core::ids::OpId;
use crate::core::lock::waiter::Left;
use crate::core::ops::verb::Attempt;
use crate::core::ops::{Confirmed, Op};
use crate::core::{Core, LogLine, Report};

impl Core {
    /// Redis answered a script, and so many replicas have what it wrote: what scripts of [`crate::core::Lane::Grants`] want.
    pub fn on_confirmed(&mut self, now: Moment, id: OpId, reply: &Value, confirmed: Confirmed) {
        self.ops.on_confirmed(id, confirmed);
        self.on_reply(now, id, reply);
    }

    /// Returns whether enough replicas have what a script wrote.
    pub(in crate::core) fn is_replicated(&self, op: &Op) -> bool {
        op.confirmed.replicas >= self.settings.min_replicas
    }

    /// Returns the reason to withdraw a grant that too few replicas have.
    pub(in crate::core) fn replica_shortfall(&mut self, op: &Op) -> Option<String> {
        let wanted = self.settings.min_replicas;
        if wanted == 0 {
            return None;
        }
        let Confirmed { replicas, refusal } = &op.confirmed;
        let too_few = !self.is_replicated(op);
        self.ops.set_short_of_replicas(too_few);
        let outcome = if too_few { "too_few" } else { "confirmed" };
        self.effects.report(Report::Confirmation(outcome));
        if !too_few {
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
            self.locks.saw_token(name, token);
        }
        // Whatever the waiter leaves behind it leaves under another number.
        self.renumber(*waiter);
        self.undo(name, *kind, *number, *lease);
        self.leave(*waiter, Left::Failed(format!("UNAVAILABLE `{name}` is not given out: {why}")));
    }

    /// Removes a position that a fair waiter got after it had left, by an attempt still under way: the script that gave up
    /// its position took another connection, and may have come first.
    pub(in crate::core) fn undo_orphan_position(&mut self, attempt: &Attempt) {
        if self.settings.min_replicas > 0 && attempt.kind == Kind::Fair {
            self.undo(&attempt.name, Kind::Fair, attempt.number, attempt.lease);
        }
    }
}
