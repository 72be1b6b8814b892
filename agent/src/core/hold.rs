//! One grant: who holds which lock, how it is kept, until when it is surely valid.

use std::sync::Arc;

use redisson::{Kind, Lease, LockName, Moment};
use tracing::Span;

use super::OpId;
use super::delay::KeptBack;
use super::red::votes::Votes;
use super::reply::Grant;
use super::session::Owner;
use crate::types::Number;

/// How a hold is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// The watchdog renews it.
    Watched,
    /// Nothing renews it; it ends when its lease does.
    Fixed,
}

/// A hold of a local owner.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) number: Number,
    pub(super) name: LockName,
    /// Its label in metrics, as its name has it.
    pub(super) group: Arc<str>,
    pub(super) kind: Kind,
    pub(super) owner: Owner,
    /// Whose process it is.
    pub(super) uid: u32,
    /// Its fencing token, where its kind has one.
    pub(super) token: Option<u64>,
    /// Reentrancy count, as the owner knows it.
    pub(super) count: u32,
    pub(super) care: Care,
    pub(super) granted: Moment,
    /// The last instant at which it is sure to be held, as long as Redis keeps the key and its clock does not step.
    /// Only an explicit success moves it.
    pub(super) valid_until: Moment,
    /// When to renew it next.
    pub(super) renew_at: Moment,
    /// The longest lease that Redis was ever asked to give it: none shortens another.
    pub(super) longest: Lease,
    /// What its owner asks of Redis about it: re-entry, partial release, another lease. An owner's commands run one
    /// after another, so there is at most one.
    pub(super) asking: Option<OpId>,
    /// A renewal is on its way.
    pub(super) renewing: bool,
    /// Renewals that failed in a row.
    pub(super) failures: u32,
    /// Its owner has been warned.
    pub(super) jeopardy: bool,
    /// Its worker is stopped: nothing renews it until that goes on.
    pub(super) lapsing: bool,
    /// Its worker is dead: it is kept from others for a while.
    pub(super) kept_back: Option<Box<KeptBack>>,
    /// The trace its LOCK was part of, for the log.
    pub(super) trace: Option<Box<str>>,
    /// Its own span, which ends with it.
    pub(super) span: Span,
    /// How a red one stands on each of its servers.
    pub(super) votes: Option<Votes>,
    /// Where its deadline stands among the timers.
    pub(super) armed: Moment,
}

/// Milliseconds, as replies give them.
pub(super) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Hold {
    /// The trace, as log lines give it.
    pub(super) fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    /// What LOCK answers about it.
    pub(super) fn grant(&self, waited_ms: u64) -> Grant {
        Grant {
            number: self.number,
            name: self.name.clone(),
            kind: self.kind,
            token: self.token,
            count: self.count,
            valid_until: self.valid_until,
            waited_ms,
        }
    }

    pub(super) fn valid_ms(&self, now: Moment) -> u64 {
        millis(self.valid_until.since(now))
    }

    /// When something is next to be done about it. `lease` is that of watched holds.
    pub(super) fn deadline(&self, lease: Lease, margin: std::time::Duration) -> Moment {
        if self.care == Care::Fixed {
            return self.valid_until;
        }
        let renew = if self.renewing || self.lapsing { Moment::NEVER } else { self.renew_at };
        if let Some(kept_back) = &self.kept_back {
            // There is nobody to be told in time.
            return renew.min(self.valid_until).min(kept_back.until);
        }
        let lost = lease.lost_at(self.valid_until, margin);
        let warn = if self.jeopardy { Moment::NEVER } else { lease.jeopardy_at(self.valid_until) };
        lost.min(warn).min(renew)
    }
}
