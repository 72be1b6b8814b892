//! Problems of locks.
//!
//! Problems are judged on readings only: while a server cannot be read, no problem begins or ends.

mod explain;
mod overdue;
#[cfg(test)]
mod tests;

use std::time::Duration;

use redisson::{HolderId, Moment};

use super::deadlock::Cycle;
use super::waiting::{Subscribers, Waiter};
use crate::clock::{SteadyMillis, Time, millis};
use crate::model::types::{
    Certainty, HolderField, HolderIdentity, ProblemKind, Rule, Source, Stamp, TrackedHolder,
};

pub use explain::{explain, times, update};
pub use overdue::Overdue;

/// The minimum time between two readings without a time to live that prove a leak: another program's script may set it
/// in a second step.
pub const LEAK_GAP: Duration = Duration::from_secs(5);
/// The time to live up to which a lock whose holder is gone is not a leak, since it expires soon anyway.
const GONE_TTL: Duration = Duration::from_secs(60);
/// The minimum age at which a hold far longer than typical is stuck.
const TYPICAL_FLOOR: Duration = Duration::from_secs(60);
/// The multiple of the typical hold from which a hold is stuck.
const TYPICAL_FACTOR: u32 = 10;
/// The minimum time between two readings that make remains of a lock an orphan: a dead queue entry or a marker without
/// the lock, or a lock with readers that are gone.
pub const ORPHAN_GAP: Duration = Duration::from_secs(60);
/// The time for which an expired hold is reported.
pub const EXPIRED_FOR: Duration = Duration::from_secs(3_600);

/// The description of a lock that clients of a cluster cannot use: its name is the fault, not its hash.
pub const APART: &str = "braces in its name put its channel and queue into another slot";

/// A hold whose lease expired although its holder meant to renew it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    pub at: Time,
    /// The beginning of the hold.
    pub began: SteadyMillis,
    /// The holder, or `None` if only an earlier run of this program knew it.
    pub holder: Option<HolderField>,
    /// Certain if the holder was seen to return too late.
    pub certainty: Certainty,
    pub source: Source,
    /// A sentence about the observation.
    pub evidence: String,
    /// The number of holds that expired, each while an earlier one was reported.
    pub times: u32,
}

impl Expired {
    /// Returns whether it is still reported at that instant.
    #[must_use]
    pub fn is_reported(&self, now: SteadyMillis) -> bool {
        // An earlier run may have seen the expiry before the host's boot, for which there is no moment.
        now.millis_since(self.at.steady()) <= millis(EXPIRED_FOR)
    }
}

/// What shows that a holder is gone: its client's connections or its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    pub since: SteadyMillis,
    /// A sentence about the observation.
    pub evidence: String,
}

/// The facts about a lock that its problems are judged by.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    /// The reading just made.
    pub now: Stamp,
    /// The holders with their hold counts; empty if the lock is free.
    pub holders: &'a [(HolderField, i64)],
    /// True if it is proven to be a lock.
    pub confirmed: bool,
    /// The time to live, or `None` if there is none or the lock is free.
    pub ttl: Option<Duration>,
    /// The first of the successive readings without a time to live, if the newest has none.
    pub no_ttl_since: Option<Stamp>,
    /// The lease to which the lock is renewed, or `None` if it is not renewed.
    pub renewed: Option<Duration>,
    /// True if the lease was set again sooner or later than a watchdog does, for example by a release and another
    /// acquisition.
    pub off_pace: bool,
    /// True if the reading before found it stuck, with a lease of the same length.
    pub was_stuck: bool,
    /// Its late renewals.
    pub overdue: Option<&'a Overdue>,
    /// The last change of holders or counts, or the last release.
    pub unchanged_since: Time,
    /// The instant since which release messages arrive without a gap.
    pub listening_since: Option<Moment>,
    /// True if a lock of its kind may be released without a message.
    pub may_release_silently: bool,
    /// The duration that 99 of 100 holds did not exceed.
    pub typical: Option<Duration>,
    pub rule: Rule,
    /// Waiters known by name, the longest wait first.
    pub waiters: &'a [Waiter],
    /// Connections that listen for its release.
    pub subscribers: Option<Subscribers>,
    /// The first holder that is gone.
    pub gone: Option<&'a (HolderId, Gone)>,
    /// The newest hold that expired.
    pub expired: Option<&'a Expired>,
    /// The deadlock that it is part of.
    pub cycle: Option<&'a Cycle>,
    /// Identities of its holders, from agents.
    pub tracked: &'a [TrackedHolder],
    /// The first waiter of its queue, if nobody will claim its turn.
    pub dead_head: Option<Waiter>,
    /// The first reading in which the lock was absent, but had a dead first queue entry or markers of readers.
    pub orphan_since: Option<Stamp>,
    /// The first of the successive readings in which it was held by readers without markers only.
    pub dead_readers_since: Option<Stamp>,
    /// The number of readers whose markers outlived the lock.
    pub orphaned_readers: usize,
    /// A description of any unexpected content of the hash.
    pub malformed: Option<&'a str>,
}

impl Case<'_> {
    /// Returns whether it may have been released without a message and acquired again.
    fn may_be_another_hold(&self) -> bool {
        self.may_release_silently || self.is_set_like_another_hold()
    }

    /// Returns whether its lease was set as if by another acquisition.
    fn is_set_like_another_hold(&self) -> bool {
        // An agent sometimes renews early, and never reuses a holder's id.
        self.off_pace && !self.holders.iter().all(|(holder, _)| holder.looks_like_agent())
    }

    fn identity(&self, id: &HolderId) -> Option<&HolderIdentity> {
        self.tracked.iter().find(|known| known.id == *id).map(|known| &known.identity)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub problem: ProblemKind,
    pub certainty: Certainty,
    pub since: SteadyMillis,
}

impl Verdict {
    fn certain(problem: ProblemKind, since: SteadyMillis) -> Self {
        Self { problem, certainty: Certainty::Certain, since }
    }

    fn suspected(problem: ProblemKind, since: SteadyMillis) -> Self {
        Self { problem, certainty: Certainty::Suspected, since }
    }
}

/// Returns every problem of the lock, worst first.
#[must_use]
pub fn judge(case: &Case<'_>) -> Vec<Verdict> {
    if !case.confirmed {
        return leaked_by_form(case).into_iter().collect();
    }
    let mut verdicts = Vec::new();
    if !case.holders.is_empty() {
        verdicts.extend(deadlock(case));
        verdicts.extend(leaked(case));
        verdicts.extend(renewal_overdue(case));
        verdicts.extend(stuck(case));
        verdicts.extend(malformed(case));
        verdicts.extend(dead_readers(case));
    }
    verdicts.extend(expired(case));
    verdicts.extend(starving(case));
    verdicts.extend(orphan(case));
    verdicts.sort_unstable_by_key(|verdict| verdict.problem);
    verdicts
}

fn leaked(case: &Case<'_>) -> Option<Verdict> {
    let bare =
        case.no_ttl_since.filter(|first| case.now.sent.since(first.received.moment()) >= LEAK_GAP);
    if let Some(first) = bare {
        return Some(Verdict::certain(ProblemKind::Leaked, first.steady()));
    }
    let lasts = case.ttl.is_none_or(|ttl| ttl > GONE_TTL);
    let (_, gone) = case.gone.filter(|_| lasts)?;
    Some(Verdict::suspected(ProblemKind::Leaked, gone.since))
}

/// Judges a hash that only its shape shows to be a lock. Redisson gives every lock a lease, so a hash without one is
/// either leaked or no lock.
fn leaked_by_form(case: &Case<'_>) -> Option<Verdict> {
    let sound = case.malformed.is_none() && !case.holders.is_empty();
    let first = case.no_ttl_since.filter(|_| sound)?;
    (case.now.sent.since(first.received.moment()) >= LEAK_GAP)
        .then(|| Verdict::suspected(ProblemKind::Leaked, first.steady()))
}

/// Returns the age from which a hold is stuck, and whether it follows from `typical`, the duration that 99 of 100 holds
/// did not exceed.
#[must_use]
pub fn stuck_limit(rule: &Rule, typical: Option<Duration>) -> Option<(Duration, bool)> {
    let by_setting = rule.stuck_after?;
    let by_typical = typical.map(|p99| (p99 * TYPICAL_FACTOR).max(TYPICAL_FLOOR));
    Some(match by_typical {
        Some(by_typical) if by_typical < by_setting => (by_typical, true),
        _ => (by_setting, false),
    })
}

fn stuck(case: &Case<'_>) -> Option<Verdict> {
    let (limit, _) = stuck_limit(&case.rule, case.typical)?;
    // A renewal at an unusual time, or a clock that was set, is no sign of a release.
    let goes_on = case.was_stuck && case.ttl.is_some() && !case.is_set_like_another_hold();
    if case.renewed.is_none() && !goes_on {
        return None;
    }
    if case.now.received.since(case.unchanged_since) <= limit {
        return None;
    }
    let listening = case.listening_since.filter(|_| !case.may_be_another_hold());
    let observed = listening
        .map(|listening| case.now.received.since(listening.max(case.unchanged_since.moment())));
    Some(Verdict {
        problem: ProblemKind::Stuck,
        certainty: match observed {
            Some(observed) if observed > limit => Certainty::Certain,
            _ => Certainty::Suspected,
        },
        since: after(case.unchanged_since.steady(), limit),
    })
}

/// Returns the time to live below which a renewal is overdue. Renewals come every third of the lease, so such a renewal
/// is half a third late.
#[must_use]
pub fn overdue_below(lease: Duration) -> Duration {
    lease * 9 / 20
}

/// Returns the instant since which a renewal is overdue, if one is.
#[must_use]
pub fn overdue_since(now: Stamp, lease: Duration, ttl: Duration) -> Option<SteadyMillis> {
    let late = overdue_below(lease).checked_sub(ttl).filter(|late| !late.is_zero())?;
    Some(now.steady().minus(millis(late)))
}

fn renewal_overdue(case: &Case<'_>) -> Option<Verdict> {
    let overdue = case.overdue.filter(|overdue| overdue.is_reported())?;
    Some(Verdict::certain(ProblemKind::RenewalOverdue, overdue.since))
}

fn expired(case: &Case<'_>) -> Option<Verdict> {
    let expired = case.expired.filter(|expired| expired.is_reported(case.now.steady()))?;
    let (problem, since) = (ProblemKind::Expired, expired.at.steady());
    Some(Verdict { problem, certainty: expired.certainty, since })
}

/// Returns the live waiter with the longest wait.
fn longest(case: &Case<'_>) -> Option<Waiter> {
    case.waiters.iter().filter(|waiter| waiter.is_live()).min_by_key(|waiter| waiter.from).copied()
}

fn starving(case: &Case<'_>) -> Option<Verdict> {
    let limit = case.rule.starving_after?;
    if let Some(waiter) = longest(case)
        && case.now.received.since(waiter.from) > limit
    {
        return Some(Verdict::certain(ProblemKind::Starving, after(waiter.since.at, limit)));
    }
    // While a lock changes hands, subscribers come and go, and none of them needs to wait for long.
    let subscribers = case.subscribers.filter(|_| !case.holders.is_empty())?;
    let since = subscribers.since.max(case.unchanged_since);
    (case.now.received.since(since) > limit)
        .then(|| Verdict::suspected(ProblemKind::Starving, after(since.steady(), limit)))
}

fn deadlock(case: &Case<'_>) -> Option<Verdict> {
    let cycle = case.cycle?;
    // The cycle closed with its youngest wait or hold, but only the first observation of the whole cycle is known.
    let since = case.now.steady();
    Some(match cycle.is_certain() {
        true => Verdict::certain(ProblemKind::Deadlock, since),
        false => Verdict::suspected(ProblemKind::Deadlock, since),
    })
}

fn orphan(case: &Case<'_>) -> Option<Verdict> {
    left_behind(case, case.orphan_since.filter(|_| case.holders.is_empty())?)
}

/// Judges a lock of which only readers without markers are left: it blocks writers until its time to live ends. One without a
/// time to live is leaked. A reader that renews the lock lives, although someone has deleted its marker.
fn dead_readers(case: &Case<'_>) -> Option<Verdict> {
    let is_dying = case.ttl.is_some() && case.renewed.is_none();
    left_behind(case, case.dead_readers_since.filter(|_| is_dying)?)
}

/// Judges what the first reading showed to be left behind, once a reading long enough after it has confirmed that.
fn left_behind(case: &Case<'_>, first: Stamp) -> Option<Verdict> {
    (case.now.sent.since(first.received.moment()) >= ORPHAN_GAP)
        .then(|| Verdict::certain(ProblemKind::Orphan, first.steady()))
}

fn malformed(case: &Case<'_>) -> Option<Verdict> {
    case.malformed.map(|_| Verdict::certain(ProblemKind::Malformed, case.now.steady()))
}

fn after(at: SteadyMillis, limit: Duration) -> SteadyMillis {
    at.plus(millis(limit))
}
