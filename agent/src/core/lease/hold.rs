//! One grant: its holder and lock, how it is kept, and the end of its certain validity.

use std::sync::Arc;
use std::time::Duration;

use redisson::script::MissingMarkers;
use redisson::{Kind, Lease, LockName, Moment, millis};
use tracing::Span;

use crate::core::ids::{HoldIndex, OpId, Owner, ReplyTo};
pub(in crate::core) use crate::core::lease::lease_terms::LeaseMode;
use crate::core::lease::lease_terms::LeaseTerms;
use crate::core::lease::node_leases::NodeLeases;
use crate::core::ops::verb::{Change, HoldUpdate, RenewalForm};
use crate::core::session::event::Validity;
use crate::core::session::reply::Grant;
use crate::core::timer::Timers;
use crate::types::{Number, Peer, SessionId};

/// The time within which a renewal writes a new count to Redis. Only readers of the hash see the delay. Many changes
/// within this time cost one renewal.
const COUNT_TOLD_WITHIN: Duration = Duration::from_millis(100);

/// A hold whose worker is dead and which no one else may acquire yet. The watchdog renews it.
#[derive(Debug)]
pub(in crate::core) struct Delayed {
    pub(in crate::core) until: Moment,
    /// The dead worker's session.
    pub(in crate::core) session: SessionId,
    /// The dead worker's process.
    pub(in crate::core) peer: Peer,
    /// The dead worker's client name.
    pub(in crate::core) client: Option<String>,
}

/// A hold of a local owner. The fields that each renewal reads and writes come first: with many holds, a renewal mostly waits
/// for their memory.
#[derive(Debug)]
#[repr(C)]
pub(in crate::core) struct Hold {
    pub(in crate::core) number: Number,
    /// Its index in memory.
    pub(in crate::core) index: HoldIndex,
    pub(in crate::core) name: LockName,
    /// Its label in metrics, derived from its name.
    pub(in crate::core) group: Arc<str>,
    pub(in crate::core) owner: Owner,
    /// The last instant at which it is certainly held, as long as Redis keeps the key and its clock does not step. Only
    /// an explicit success moves it; with `--min-replicas`, only one that enough replicas confirmed.
    pub(in crate::core) valid_until: Moment,
    /// The instant of the next renewal, or of the next verification of a fixed lease.
    pub(in crate::core) renew_at: Moment,
    /// The instant for which the table's timers have this hold; [`Moment::NEVER`] if they do not.
    pub(in crate::core) armed: Moment,
    /// The instant of a message about its forced release, until Redis has been asked.
    pub(in crate::core) forced_claim: Option<Moment>,
    /// An EXTEND that waits until Redis has it.
    pub(in crate::core) extend: Option<Box<HoldUpdate>>,
    /// Its worker is dead: it is kept from others for a while.
    pub(in crate::core) delayed: Option<Box<Delayed>>,
    /// The hold count, as the owner knows it.
    pub(in crate::core) count: u32,
    /// Consecutive failed renewals.
    pub(in crate::core) failures: u32,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) mode: LeaseMode,
    /// A renewal or verification is in flight.
    pub(in crate::core) renewing: bool,
    /// Too few replicas confirmed its latest renewal.
    pub(in crate::core) unconfirmed: bool,
    /// Its owner has been warned.
    pub(in crate::core) jeopardy: bool,
    /// Its worker is stopped: nothing renews it until the worker continues.
    pub(in crate::core) lapsing: bool,
    /// It is part of an MLOCK that is not answered yet: its worker does not know about it.
    pub(in crate::core) untold: bool,
    /// Redis does not have it yet: the lock's early hand-over, or one that follows it, puts it there.
    pub(in crate::core) early: bool,

    /// The user of its process.
    pub(in crate::core) uid: u32,
    /// Its fencing token, if its kind has one.
    pub(in crate::core) token: Option<u64>,
    pub(in crate::core) granted: Moment,
    /// The lease that ends at `valid_until`.
    pub(in crate::core) lease: Lease,
    /// For each reentry of a fixed read hold, the lease before it and the end of its validity: as in Redisson, the end of
    /// a reader's entry ends that entry's lease too.
    pub(in crate::core) earlier_leases: Vec<(Lease, Moment)>,
    /// The longest lease that Redis was ever asked to give it: no later lease may be shorter.
    pub(in crate::core) longest: Lease,
    /// Of a write hold: the longest lease of its owner's read holds. It stays with the key when they have ended.
    pub(in crate::core) read_lease: Option<Lease>,
    /// The update that its owner has sent to Redis: reentry, partial release, another lease. An owner's commands run one
    /// after another, so there is at most one.
    pub(in crate::core) update: Option<OpId>,
    /// The trace that its LOCK was part of, for the log.
    pub(in crate::core) trace: Option<Box<str>>,
    /// Its own span, which ends with it.
    pub(in crate::core) span: Span,
    /// The parts of a red hold on its servers.
    pub(in crate::core) node_leases: Option<NodeLeases>,
}

/// The facts of a grant, from which a hold is created.
pub(in crate::core) struct NewHold {
    pub(in crate::core) number: Number,
    pub(in crate::core) name: LockName,
    pub(in crate::core) group: Arc<str>,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) owner: Owner,
    pub(in crate::core) uid: u32,
    pub(in crate::core) token: Option<u64>,
    pub(in crate::core) count: u32,
    pub(in crate::core) mode: LeaseMode,
    pub(in crate::core) granted: Moment,
    pub(in crate::core) valid_until: Moment,
    pub(in crate::core) renew_at: Moment,
    pub(in crate::core) lease: Lease,
    pub(in crate::core) lapsing: bool,
    pub(in crate::core) untold: bool,
    pub(in crate::core) trace: Option<Box<str>>,
    pub(in crate::core) span: Span,
    /// A hand-over in flight puts it into Redis.
    pub(in crate::core) early: bool,
}

impl Hold {
    /// Creates a hold. `watched` is the lease of renewed holds.
    pub(super) fn new(new: NewHold, watched: Lease) -> Self {
        Self {
            number: new.number,
            index: HoldIndex::default(),
            name: new.name,
            group: new.group,
            owner: new.owner,
            valid_until: new.valid_until,
            renew_at: new.renew_at,
            armed: Moment::NEVER,
            forced_claim: None,
            extend: None,
            delayed: None,
            count: new.count,
            failures: 0,
            kind: new.kind,
            mode: new.mode,
            renewing: false,
            unconfirmed: false,
            jeopardy: false,
            lapsing: new.lapsing,
            untold: new.untold,
            early: new.early,
            uid: new.uid,
            token: new.token,
            granted: new.granted,
            lease: new.lease,
            earlier_leases: Vec::new(),
            longest: new.lease.max(watched),
            read_lease: None,
            update: None,
            trace: new.trace,
            span: new.span,
            node_leases: None,
        }
    }

    /// Returns the leases of a fixed hold, with the ends of their validity: those before its reentries, and the present one.
    pub(in crate::core) fn fixed_leases(&self) -> Vec<(Lease, Moment)> {
        let present = (self.mode == LeaseMode::Fixed).then_some((self.lease, self.valid_until));
        self.earlier_leases.iter().copied().chain(present).collect()
    }

    /// Returns how it is kept.
    pub(in crate::core) fn lease_terms(&self) -> LeaseTerms {
        let Self { mode, lease, valid_until, .. } = *self;
        LeaseTerms { mode, lease, valid_until, earlier_leases: self.earlier_leases.clone() }
    }

    /// Returns the trace, as shown in log lines.
    pub(in crate::core) fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Returns the reply to LOCK about it.
    pub(in crate::core) fn grant(&self, waited_ms: u64) -> Grant {
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

    /// Returns the update that changes it for this command. Its count stays.
    pub(in crate::core) fn update_for(&self, reply_to: ReplyTo, change: Change) -> HoldUpdate {
        HoldUpdate {
            name: self.name.clone(),
            kind: self.kind,
            number: self.number,
            change,
            count: self.count,
            owner: self.owner,
            reply_to,
            missing: match change {
                Change::Reenter(_) => MissingMarkers::Restore,
                Change::Partial | Change::Extend(_) => MissingMarkers::Report,
            },
            span: Span::none(),
        }
    }

    /// Returns the form of the script that renews or verifies it.
    pub(in crate::core) fn renewal_form(&self) -> RenewalForm {
        let verify = self.mode == LeaseMode::Fixed || self.lapsing;
        let reads = (self.kind == Kind::Read).then_some(MissingMarkers::Report);
        RenewalForm { reads, verify, count: self.count }
    }

    /// Returns the rest of a fixed lease, for which Redis must keep the hold; `None` if its worker is stopped.
    pub(in crate::core) fn rest_of_fixed_lease(&self, now: Moment) -> Option<Lease> {
        let fixed = self.mode == LeaseMode::Fixed && !self.lapsing;
        fixed.then(|| Lease::new(self.valid_until.since(now))).flatten()
    }

    pub(in crate::core) fn valid_ms(&self, now: Moment) -> u64 {
        millis(self.valid_until.since(now))
    }

    pub(in crate::core) fn validity(&self, now: Moment) -> Validity {
        Validity { ms: self.valid_ms(now), until: self.valid_until }
    }

    /// Returns whether a renewal may begin: none is in flight, Redis has the hold, and its worker is not stopped.
    pub(super) fn may_be_renewed(&self) -> bool {
        !self.renewing && !self.lapsing && !self.early
    }

    /// Brings its renewal forward, so that Redis has its count soon.
    pub(super) fn schedule_count_update(&mut self, now: Moment) {
        self.renew_at = self.renew_at.min(now + COUNT_TOLD_WITHIN);
    }

    /// Makes it due for a renewal, on every node.
    pub(super) fn renew_from(&mut self, now: Moment) {
        self.renew_at = now;
        if let Some(parts) = &mut self.node_leases {
            parts.renew_all(now);
        }
    }

    /// Ends its jeopardy if it is valid for long enough. Returns whether it has just ended.
    pub(super) fn clear_jeopardy(&mut self, lease: Lease, now: Moment) -> bool {
        let safe = self.mode == LeaseMode::Fixed || lease.at_risk_at(self.valid_until) > now;
        safe && std::mem::take(&mut self.jeopardy)
    }

    /// Sets its next deadline in `timers`. `lease` is that of renewed holds.
    pub(super) fn arm(&mut self, timers: &mut Timers<HoldIndex>, lease: Lease, margin: Duration) {
        let deadline = self.deadline(lease, margin);
        timers.set(&mut self.armed, deadline, self.index);
    }

    fn deadline(&self, lease: Lease, margin: Duration) -> Moment {
        let renew = if self.may_be_renewed() { self.renew_at } else { Moment::NEVER };
        if self.mode == LeaseMode::Fixed {
            return self.valid_until.min(renew);
        }
        if let Some(delayed) = &self.delayed {
            // There is nobody to notify in time.
            return renew.min(self.valid_until).min(delayed.until);
        }
        let lost = lease.lost_at(self.valid_until, margin);
        let warn = if self.jeopardy { Moment::NEVER } else { lease.at_risk_at(self.valid_until) };
        lost.min(warn).min(renew)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::types::ConnectionId;

    /// Returns a hold with that number and default values.
    pub(in crate::core::lease) fn hold(number: Number) -> Hold {
        let lease = Lease::new(Lease::MIN).unwrap();
        let new = NewHold {
            number,
            name: LockName::new(&b"a"[..]).unwrap(),
            group: "a".into(),
            kind: Kind::Lock,
            owner: Owner { connection: ConnectionId(1), owner: 0 },
            uid: 0,
            token: None,
            count: 1,
            mode: LeaseMode::Renewed,
            granted: Moment::default(),
            valid_until: Moment::NEVER,
            renew_at: Moment::NEVER,
            lease,
            lapsing: false,
            untold: false,
            trace: None,
            span: Span::none(),
            early: false,
        };
        Hold::new(new, lease)
    }
}
