//! When something is wrong with a lock.
//!
//! Problems are judged on readings only: while a server cannot be read nothing is raised and nothing cleared.

#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use redisson::{HolderId, Moment};

use super::deadlock::Cycle;
use super::observation::{Source, Stamp};
use super::view::{Certainty, ProblemKind};
use super::waiting::{Subscribers, Waiter};
use super::who::{Known, Who};
use crate::clock::SteadyMillis;

pub use words::{advice, explain};

/// How far apart the two readings without a time to live must be that make a leak: a script of somebody else may
/// set it in a second step.
pub const LEAK_GAP: Duration = Duration::from_secs(5);
/// A holder that is gone leaves no leak where its lease ends within this anyway.
const GONE_TTL: Duration = Duration::from_secs(60);
/// A lock that is held far beyond its habit is stuck no sooner than this.
const HABIT_FLOOR: Duration = Duration::from_secs(60);
/// How far beyond its habit is far.
const HABIT_FACTOR: u32 = 10;
/// How far apart the two readings of a lock must be that was not there, with others dead in its queue.
pub const ORPHAN_GAP: Duration = Duration::from_secs(60);
/// How long an expired hold is told of.
pub const EXPIRED_FOR: Duration = Duration::from_secs(3_600);

/// What the settings say of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// From what age on a renewed hold is stuck; none: it is expected to be long.
    pub stuck_after: Option<Duration>,
    /// From when on a waiter starves; none: others are expected to wait for long.
    pub starving_after: Option<Duration>,
}

/// A hold whose lease ran out although its holder meant to keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    pub at: (Moment, SteadyMillis),
    pub holder: HolderId,
    /// Sure where the holder was seen to come back too late.
    pub certainty: Certainty,
    /// Who says so.
    pub source: Source,
    /// What was seen, a sentence.
    pub seen: String,
}

/// A holder that is gone, as far as its client's connections or its agent tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    pub since: SteadyMillis,
    /// What was seen, a sentence.
    pub seen: String,
}

/// What a lock looks like to its judge.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    /// The reading just made.
    pub now: Stamp,
    /// Holders and counts; empty: it is free.
    pub holders: &'a [(HolderId, i64)],
    /// Whether it is surely a lock.
    pub confirmed: bool,
    /// Time to live; none: it has none, or it is free.
    pub ttl: Option<Duration>,
    /// The first of the readings without a time to live, where the newest has none.
    pub bare_since: Option<Stamp>,
    /// Whether it is renewed, and to which lease.
    pub renewed: Option<Duration>,
    /// Since when nothing has moved: no release, no other holder, no other count.
    pub still_since: (Moment, SteadyMillis),
    /// Since when release messages reach us without a gap.
    pub listening_since: Option<Moment>,
    /// Whether a lock of its kind may be released without a message.
    pub silent: bool,
    /// What 99 of 100 holds did not exceed.
    pub habit: Option<Duration>,
    /// What the settings say.
    pub rule: Rule,
    /// Those who wait by name, those longest first.
    pub waiters: &'a [Waiter],
    /// Connections that listen for its release.
    pub subscribers: Option<Subscribers>,
    /// The holder that is gone.
    pub gone: Option<&'a Gone>,
    /// The newest hold that ran out.
    pub expired: Option<&'a Expired>,
    /// The circle of waits that it is part of.
    pub cycle: Option<&'a Cycle>,
    /// What agents tell of its holders.
    pub told: &'a [Known],
    /// The first reading that found it absent with a queue whose head is dead, or with markers of readers.
    pub orphan_since: Option<Stamp>,
    /// How many readers left markers behind.
    pub left: usize,
    /// What does not belong there.
    pub odd: Option<&'a str>,
}

impl Case<'_> {
    fn who(&self, id: &HolderId) -> Option<&Who> {
        self.told.iter().find(|known| known.id == *id).map(|known| &known.who)
    }
}

/// A problem that a lock has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub problem: ProblemKind,
    pub certainty: Certainty,
    pub since: SteadyMillis,
}

impl Verdict {
    fn sure(problem: ProblemKind, since: SteadyMillis) -> Self {
        Self { problem, certainty: Certainty::Sure, since }
    }

    fn suspected(problem: ProblemKind, since: SteadyMillis) -> Self {
        Self { problem, certainty: Certainty::Suspected, since }
    }
}

/// Every problem the lock has, worst first.
#[must_use]
pub fn judge(case: &Case<'_>) -> Vec<Verdict> {
    if !case.confirmed {
        return Vec::new();
    }
    let mut verdicts = Vec::new();
    if !case.holders.is_empty() {
        verdicts.extend(deadlock(case));
        verdicts.extend(leaked(case));
        verdicts.extend(renewal_overdue(case));
        verdicts.extend(stuck(case));
        verdicts.extend(malformed(case));
    }
    verdicts.extend(expired(case));
    verdicts.extend(starving(case));
    verdicts.extend(orphan(case));
    verdicts.sort_unstable_by_key(|verdict| verdict.problem);
    verdicts
}

fn leaked(case: &Case<'_>) -> Option<Verdict> {
    let bare = case.bare_since.filter(|first| case.now.sent.since(first.received) >= LEAK_GAP);
    if let Some(first) = bare {
        return Some(Verdict::sure(ProblemKind::Leaked, first.steady));
    }
    let lasts = case.ttl.is_none_or(|ttl| ttl > GONE_TTL);
    let gone = case.gone.filter(|_| lasts)?;
    Some(Verdict::suspected(ProblemKind::Leaked, gone.since))
}

/// From what age on a hold is stuck, and whether that is by the lock's habit.
fn stuck_limit(case: &Case<'_>) -> Option<(Duration, bool)> {
    let by_setting = case.rule.stuck_after?;
    let by_habit = case.habit.map(|p99| (p99 * HABIT_FACTOR).max(HABIT_FLOOR));
    Some(match by_habit {
        Some(by_habit) if by_habit < by_setting => (by_habit, true),
        _ => (by_setting, false),
    })
}

fn stuck(case: &Case<'_>) -> Option<Verdict> {
    let (limit, _) = stuck_limit(case)?;
    case.renewed?;
    let (since, steady) = case.still_since;
    if case.now.received.since(since) <= limit {
        return None;
    }
    let heard = case.listening_since.filter(|_| !case.silent);
    let observed = heard.map(|heard| case.now.received.since(since.max(heard)));
    Some(Verdict {
        problem: ProblemKind::Stuck,
        certainty: match observed {
            Some(observed) if observed > limit => Certainty::Sure,
            _ => Certainty::Suspected,
        },
        since: after(steady, limit),
    })
}

/// Below which time to live a renewed lock's renewal is overdue: it comes each third of the lease, so that this is
/// half a third late.
#[must_use]
pub fn overdue_below(lease: Duration) -> Duration {
    lease * 9 / 20
}

fn renewal_overdue(case: &Case<'_>) -> Option<Verdict> {
    let (lease, ttl) = (case.renewed?, case.ttl?);
    let below = overdue_below(lease);
    let late = below.checked_sub(ttl).filter(|late| !late.is_zero())?;
    let since = SteadyMillis(case.now.steady.0.saturating_sub(millis(late)));
    Some(Verdict::sure(ProblemKind::RenewalOverdue, since))
}

fn expired(case: &Case<'_>) -> Option<Verdict> {
    let expired = case.expired?;
    let told = case.now.received.since(expired.at.0) <= EXPIRED_FOR;
    let (problem, since) = (ProblemKind::Expired, expired.at.1);
    told.then_some(Verdict { problem, certainty: expired.certainty, since })
}

/// The live waiter that waits longest.
fn longest(case: &Case<'_>) -> Option<Waiter> {
    case.waiters.iter().filter(|waiter| waiter.is_live()).min_by_key(|waiter| waiter.from).copied()
}

fn starving(case: &Case<'_>) -> Option<Verdict> {
    let limit = case.rule.starving_after?;
    if let Some(waiter) = longest(case)
        && case.now.received.since(waiter.from) > limit
    {
        return Some(Verdict::sure(ProblemKind::Starving, after(waiter.since.at, limit)));
    }
    // Behind a lock that changes hands subscribers come and go, and none of them need be kept waiting.
    let subscribers = case.subscribers.filter(|_| !case.holders.is_empty())?;
    let (from, steady) = subscribers.since.max(case.still_since);
    (case.now.received.since(from) > limit)
        .then(|| Verdict::suspected(ProblemKind::Starving, after(steady, limit)))
}

fn deadlock(case: &Case<'_>) -> Option<Verdict> {
    let cycle = case.cycle?;
    // It closed with the youngest of its waits or holds; what is known is when it was first seen whole.
    let since = case.now.steady;
    Some(if cycle.is_limited() {
        Verdict::suspected(ProblemKind::Deadlock, since)
    } else {
        Verdict::sure(ProblemKind::Deadlock, since)
    })
}

fn orphan(case: &Case<'_>) -> Option<Verdict> {
    let first = case.orphan_since.filter(|_| case.holders.is_empty())?;
    (case.now.sent.since(first.received) >= ORPHAN_GAP)
        .then(|| Verdict::sure(ProblemKind::Orphan, first.steady))
}

fn malformed(case: &Case<'_>) -> Option<Verdict> {
    case.odd.map(|_| Verdict::sure(ProblemKind::Malformed, case.now.steady))
}

fn after(at: SteadyMillis, limit: Duration) -> SteadyMillis {
    SteadyMillis(at.0.saturating_add(millis(limit)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
