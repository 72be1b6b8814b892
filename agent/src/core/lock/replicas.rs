//! Grants and leases that need replicas (`--min-replicas`).
//!
//! If only the master has a lease and the master is lost, the replica that takes over grants the lock to another
//! client. So scripts that grant or extend a lease use separate connections, and a WAIT follows them:
//!
//! - A grant is reported once enough replicas confirm it. If fewer do, it is withdrawn and the lock is released.
//! - A renewal extends the validity of its hold once enough replicas confirm it. If fewer do, Redis keeps the lock, and the
//!   hold ends for its owner with its last confirmed lease.

use redisson::script::Value;
use redisson::{LockName, Moment};

use crate::core::ids::OpId;
use crate::core::lock::waiter::Left;
use crate::core::ops::verb::Attempt;
use crate::core::ops::{Confirmed, Op};
use crate::core::{Core, LogLine, Report};

impl Core {
    /// Handles the reply to a script that replicas must confirm, with the number of replicas that have what it wrote.
    pub fn on_confirmed(&mut self, now: Moment, id: OpId, reply: &Value, confirmed: Confirmed) {
        self.ops.on_confirmed(id, confirmed);
        self.on_reply(now, id, reply);
    }

    /// Returns whether enough replicas have the script's writes.
    pub(in crate::core) fn is_replicated(&self, op: &Op) -> bool {
        op.confirmed.replicas >= self.settings.min_replicas
    }

    /// Returns the reason to withdraw a grant or an update of this lock; `None` if enough replicas have it. Counts the
    /// outcome.
    pub(in crate::core) fn replica_shortfall(
        &mut self,
        name: &LockName,
        op: &Op,
    ) -> Option<String> {
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
                "the number of replicas that have it is unknown, and {wanted} must have it (--min-replicas): {refusal}"
            ),
            None => format!(
                "{replicas} of the {wanted} replicas that must have it (--min-replicas) confirmed it in time"
            ),
        };
        let (replicas, refusal) = (*replicas, refusal.clone());
        self.effects.log(
            self.now,
            LogLine::TooFewReplicas { lock: name.clone(), replicas, wanted, refusal },
        );
        Some(why)
    }

    /// Withdraws a grant: releases in Redis what the attempt acquired, and reports the reason to its waiter. The
    /// fencing token is not reused.
    pub(in crate::core) fn withdraw(&mut self, attempt: &Attempt, token: Option<u64>, why: &str) {
        let Attempt { name, kind, waiter, number, lease, .. } = attempt;
        if let Some(token) = token {
            self.locks.saw_token(name, token);
        }
        // The waiter gets another number, so that its own clean-up does not concern the number that is undone here.
        self.renumber(*waiter);
        self.undo(name, *kind, *number, *lease);
        self.leave(*waiter, Left::Failed(format!("UNAVAILABLE `{name}` is not granted: {why}")));
    }
}
