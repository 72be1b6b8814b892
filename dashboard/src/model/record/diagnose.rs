//! Detects, explains and clears the problems of a lock.

use std::sync::Arc;
use std::time::Duration;

use thin_vec::ThinVec;

use super::ambiguous_release::LATE;
use super::{Effect, Record, ScopeContext};
use crate::clock::{SteadyMillis, Time, millis};
use crate::model::problem::{
    Case, Expired, ORPHAN_GAP, Overdue, Verdict, explain, judge, overdue_since, stuck_limit, times,
    update,
};
use crate::model::types::{
    ArchiveEntry, Certainty, HolderField, LockEvent, ProblemKind, Source, Stamp,
};
use crate::model::waiting::Waiter;

/// The additional time after its limit within which a problem of an earlier run must be found again, since a renewal or
/// a holder's absence has to be seen twice.
const RESTORED_GRACE: Duration = Duration::from_secs(300);

impl Record {
    /// Updates the lock's problems after a reading.
    pub(super) fn judge(
        &mut self,
        now: Stamp,
        source: Source,
        context: ScopeContext,
        effects: &mut Vec<Effect>,
    ) {
        self.update_overdue(now);
        let holders: Vec<_> =
            self.holds.iter().map(|hold| (self.field_of(hold.id), hold.count)).collect();
        let cold = self.cold.as_deref();
        let waiters: Vec<Waiter> =
            cold.map(|cold| cold.waiting.waiters().copied().collect()).unwrap_or_default();
        let case = self.case(now, context, &holders, &waiters);
        let verdicts = judge(&case);
        let earlier = cold.map_or(&[][..], |cold| &cold.restored_problems);
        let mut begun = Vec::new();
        let mut raised = Vec::new();
        let mut changed = false;
        let mut problems = ThinVec::with_capacity(verdicts.len());
        for verdict in &verdicts {
            match self.problems.iter().find(|old| old.problem == verdict.problem) {
                Some(old)
                    if old.certainty == verdict.certainty
                        && old.times >= times(&case, verdict.problem) =>
                {
                    let updated = update(&case, old, *verdict);
                    changed |= updated.evidence != old.evidence;
                    problems.push(updated);
                }
                Some(old) => {
                    if times(&case, verdict.problem) > old.times {
                        effects.push(self.detected(verdict));
                    }
                    // The history has the latest of several expiries; each late renewal would fill it.
                    if verdict.problem == ProblemKind::Expired {
                        raised.push(*verdict);
                    } else if old.certainty != verdict.certainty {
                        raised.push(Verdict { since: old.since, ..*verdict });
                    }
                    problems.push(explain(&case, Verdict { since: old.since, ..*verdict }));
                    changed = true;
                }
                None => {
                    let known = earlier.iter().find(|(known, _)| *known == verdict.problem);
                    // An earlier run has counted the expired hold that it observed.
                    let is_counted = known.is_some()
                        && verdict.problem == ProblemKind::Expired
                        && times(&case, verdict.problem) <= 1;
                    if !is_counted {
                        effects.push(self.detected(verdict));
                    }
                    let since = known.map_or(verdict.since, |(_, since)| verdict.since.min(*since));
                    problems.push(explain(&case, Verdict { since, ..*verdict }));
                    begun.push(*verdict);
                }
            }
        }
        let over: Vec<ProblemKind> = self
            .problems
            .iter()
            .map(|old| old.problem)
            .filter(|old| !verdicts.iter().any(|new| new.problem == *old))
            .collect();
        self.dirty |= changed;
        self.problems = problems;
        for Verdict { problem, certainty, since } in begun.iter().chain(&raised) {
            let entry = ArchiveEntry::Problem(self.id.clone(), *problem, *certainty, *since);
            effects.push(Effect::Archive(Box::new(entry)));
        }
        self.clear(&over, now.steady(), effects);
        self.clear_restored(now, context, effects);
        self.end_outdated_acknowledgements(now.steady(), effects);
        self.mark_acknowledged();
        for verdict in begun {
            self.event(now.steady(), source, LockEvent::Problem(verdict.problem), effects);
        }
        for problem in over {
            self.event(now.steady(), source, LockEvent::Cleared(problem), effects);
        }
    }

    /// Returns the facts for judging the problems. Holders and waiters are passed in, since a case only refers to them.
    fn case<'a>(
        &'a self,
        now: Stamp,
        context: ScopeContext,
        holders: &'a [(HolderField, i64)],
        waiters: &'a [Waiter],
    ) -> Case<'a> {
        let cold = self.cold.as_deref();
        Case {
            now,
            holders,
            confirmed: self.confirmed,
            ttl: self.ttl,
            no_ttl_since: self.no_ttl_since.as_deref().copied(),
            renewed: self.lease.lease().filter(|_| self.lease.renewed()),
            off_pace: self.lease.is_off_pace(),
            was_stuck: !self.lease.is_replaced()
                && self.problems.iter().any(|it| it.problem == ProblemKind::Stuck),
            overdue: cold.and_then(|cold| cold.overdue.as_ref()),
            unchanged_since: self.unchanged_since,
            listening_since: context.listening_since,
            may_release_silently: self.may_release_silently() || context.cluster,
            typical: self.hold_history.as_ref().and_then(|history| history.p99()),
            rule: *self.rule,
            waiters,
            subscribers: cold.and_then(|cold| cold.waiting.subscribers),
            gone: cold.and_then(|cold| cold.gone.as_ref()),
            expired: cold.and_then(|cold| cold.expired.as_ref()),
            cycle: cold.and_then(|cold| cold.cycle.as_deref()),
            tracked: cold.map_or(&[], |cold| &cold.tracked),
            dead_head: cold.and_then(|cold| cold.waiting.dead_head()),
            orphan_since: cold.and_then(|cold| cold.orphan_since),
            dead_readers_since: cold.and_then(|cold| cold.dead_readers_since),
            orphaned_readers: cold.map_or(0, |cold| cold.orphaned_readers.len()),
            malformed: cold.and_then(|cold| cold.malformed.as_deref()),
        }
    }

    /// Updates the late renewals of the current hold.
    fn update_overdue(&mut self, now: Stamp) {
        let lease = self.lease.lease().filter(|_| self.lease.renewed() && self.is_held());
        let known = self.cold.as_mut().and_then(|cold| cold.overdue.take());
        let Some(lease) = lease else { return };
        let known = known.filter(|overdue| !overdue.is_before(self.unchanged_since.moment()));
        let late = self.ttl.and_then(|ttl| Some((overdue_since(now, lease, ttl)?, ttl)));
        let overdue = Overdue::update(known, late, lease, now);
        if overdue.is_some() {
            self.cold().overdue = overdue;
        }
    }

    /// Records that a hold has expired, or what else is known of its expiry.
    pub(super) fn expire(&mut self, mut expired: Expired) {
        let cold = self.cold();
        let now = expired.at.steady();
        if let Some(known) = cold.expired.as_ref().filter(|known| known.is_reported(now)) {
            let is_same = known.holder == expired.holder && known.at.steady() >= expired.began;
            expired.times = known.times.saturating_add(u32::from(!is_same));
        }
        let at = expired.at;
        if let Some(known) = cold.expired.replace(expired).filter(|known| known.at != at) {
            cold.expired_before = Some(Box::new(known));
        }
    }

    /// Withdraws an expiry that the release of the same hold explains: the reading that seemed to show the expiry arrived
    /// before the message. A release after the beginning of another hold is that one's.
    pub(super) fn withdraw_expiry(&mut self, released: Time) {
        let is_held = self.is_held();
        let Some(cold) = self.cold.as_mut().filter(|cold| !is_held && cold.taken.is_none()) else {
            return;
        };
        let is_explained = |expired: &mut Expired| {
            expired.certainty == Certainty::Suspected
                && expired.source != Source::Keyspace
                && released.since(expired.at) <= LATE
        };
        if cold.expired.take_if(is_explained).is_some() {
            cold.expired = cold.expired_before.take().map(|before| *before);
        }
    }

    /// Ends problems of an earlier run that were not found again in time.
    fn clear_restored(&mut self, now: Stamp, context: ScopeContext, effects: &mut Vec<Effect>) {
        let limits = [self.rule.stuck_after, self.rule.starving_after];
        let slowest = limits.into_iter().flatten().fold(ORPHAN_GAP, Duration::max);
        // Nothing can be found while the server cannot be read.
        let began = context.readable_since.map_or(self.known_since, |it| it.max(self.known_since));
        let time_is_up = now.received.since(began) > slowest + RESTORED_GRACE;
        let Some(cold) = self.cold.as_mut().filter(|cold| !cold.restored_problems.is_empty())
        else {
            return;
        };
        let problems = &self.problems;
        cold.restored_problems
            .retain(|(earlier, _)| problems.iter().all(|found| found.problem != *earlier));
        // An expired hold needs no second reading.
        let is_over = |problem| time_is_up || problem == ProblemKind::Expired;
        let over = cold.restored_problems.extract_if(.., |(problem, _)| is_over(*problem));
        let over: Vec<ProblemKind> = over.map(|(problem, _)| problem).collect();
        self.clear(&over, now.steady(), effects);
    }

    /// Returns the instant since which an earlier run has seen these holds unchanged, if it found them stuck.
    pub(super) fn restored_unchanged_since(&self, now: Stamp) -> Option<Time> {
        let restored = &self.cold.as_ref()?.restored_problems;
        let (_, stuck) = restored.iter().find(|(problem, _)| *problem == ProblemKind::Stuck)?;
        let typical = self.hold_history.as_ref().and_then(|history| history.p99());
        let (limit, _) = stuck_limit(&self.rule, typical)?;
        let held = self.holds.iter().map(|hold| hold.since.at).max()?;
        Some(now.received.back_to(stuck.minus(millis(limit)).max(held)))
    }

    /// Ends the problems that an earlier run found in the last hold, since another hold has begun.
    pub(super) fn end_restored_of_hold(&mut self, at: SteadyMillis, effects: &mut Vec<Effect>) {
        use ProblemKind::{Deadlock, Leaked, RenewalOverdue, Stuck};
        let Some(cold) = &mut self.cold else { return };
        let is_over = |it| matches!(it, Deadlock | Leaked | RenewalOverdue | Stuck);
        let over = cold.restored_problems.extract_if(.., |(it, _)| is_over(*it));
        let over: Vec<ProblemKind> = over.map(|(problem, _)| problem).collect();
        self.clear(&over, at, effects);
    }

    /// Ends all problems as of the newest reading, since the lock is about to be dropped.
    pub fn clear_all(&mut self, effects: &mut Vec<Effect>) {
        let last = self.observed_at();
        let earlier = self.cold.as_mut().map(|cold| std::mem::take(&mut cold.restored_problems));
        let earlier = earlier.into_iter().flatten().map(|(problem, _)| problem);
        let found = std::mem::take(&mut self.problems).into_iter().map(|found| found.problem);
        let over: Vec<ProblemKind> = earlier.chain(found).collect();
        self.clear(&over, last, effects);
    }

    /// Ends problems with their acknowledgements.
    fn clear(&mut self, over: &[ProblemKind], at: SteadyMillis, effects: &mut Vec<Effect>) {
        self.clear_acknowledgements(over, at, effects);
        for problem in over {
            let entry = ArchiveEntry::Cleared(self.id.clone(), *problem, at);
            effects.push(Effect::Archive(Box::new(entry)));
        }
    }

    /// Returns whether the lock may be released without a message: a fair lock without waiters, or one reader of
    /// several. In a cluster every lock may be, by sharded channels to which this program does not subscribe.
    fn may_release_silently(&self) -> bool {
        self.fair || (self.mode.is_some() && self.holds.len() > 1)
    }

    fn detected(&self, verdict: &Verdict) -> Effect {
        Effect::Detected(verdict.problem, verdict.certainty, Arc::clone(&self.group))
    }
}
