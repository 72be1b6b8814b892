//! When something is wrong with a lock, why we say so, and what to do.
//!
//! Problems are judged on readings only: while a server cannot be read nothing is raised and nothing cleared.

use std::time::Duration;

use redisson::{HolderId, Moment};

use super::observation::Stamp;
use super::view::{Certainty, Evidence, ProblemKind, ProblemView, WallMillis};

/// How far apart the two readings without a time to live must be that make a leak: a script of somebody else may
/// set it in a second step.
pub const LEAK_GAP: Duration = Duration::from_secs(5);
/// A lock that is held far beyond its habit is stuck no sooner than this.
const HABIT_FLOOR: Duration = Duration::from_secs(60);
/// How far beyond its habit is far.
const HABIT_FACTOR: u32 = 10;

/// What a lock looks like to its judge.
#[derive(Debug)]
pub struct Case<'a> {
    /// The reading just made.
    pub now: Stamp,
    /// Holders and counts; empty: it is free.
    pub holders: &'a [(HolderId, i64)],
    /// Whether it is surely a lock.
    pub confirmed: bool,
    /// The first of the readings without a time to live, where the newest has none.
    pub bare_since: Option<Stamp>,
    /// Whether it is renewed, and to which lease.
    pub renewed: Option<Duration>,
    /// Since when nothing has moved: no release, no other holder, no other count.
    pub still_since: (Moment, WallMillis),
    /// Since when release messages reach us without a gap.
    pub listening_since: Option<Moment>,
    /// What 99 of 100 holds did not exceed.
    pub habit: Option<Duration>,
    /// From what age on it is stuck; none: it is expected to be held for long.
    pub stuck_after: Option<Duration>,
}

/// A problem that a lock has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub problem: ProblemKind,
    /// How sure.
    pub certainty: Certainty,
    /// Since when.
    pub since: WallMillis,
}

/// Every problem the lock has, worst first.
#[must_use]
pub fn judge(case: &Case<'_>) -> Vec<Verdict> {
    if case.holders.is_empty() || !case.confirmed {
        return Vec::new();
    }
    leaked(case).into_iter().chain(stuck(case)).collect()
}

fn leaked(case: &Case<'_>) -> Option<Verdict> {
    let first = case.bare_since?;
    (case.now.sent.since(first.received) >= LEAK_GAP).then_some(Verdict {
        problem: ProblemKind::Leaked,
        certainty: Certainty::Sure,
        since: first.wall,
    })
}

/// From what age on a hold is stuck, and whether that is by the lock's habit.
fn limit(case: &Case<'_>) -> Option<(Duration, bool)> {
    let by_setting = case.stuck_after?;
    let by_habit = case.habit.map(|p99| (p99 * HABIT_FACTOR).max(HABIT_FLOOR));
    Some(match by_habit {
        Some(by_habit) if by_habit < by_setting => (by_habit, true),
        _ => (by_setting, false),
    })
}

fn stuck(case: &Case<'_>) -> Option<Verdict> {
    let (limit, _) = limit(case)?;
    case.renewed?;
    let (since, wall) = case.still_since;
    let age = case.now.received.since(since);
    if age <= limit {
        return None;
    }
    let observed = case.listening_since.map(|heard| case.now.received.since(since.max(heard)));
    Some(Verdict {
        problem: ProblemKind::Stuck,
        certainty: match observed {
            Some(observed) if observed > limit => Certainty::Sure,
            _ => Certainty::Suspected,
        },
        since: WallMillis(wall.0.saturating_add(millis(limit))),
    })
}

/// The problem as it is shown, with the evidence as it stands now.
#[must_use]
pub fn explain(case: &Case<'_>, verdict: Verdict) -> ProblemView {
    let read = |at: WallMillis, text: String| Evidence { at, source: "poll", text };
    let now = case.now.wall;
    let mut evidence = Vec::new();
    match verdict.problem {
        ProblemKind::Leaked => {
            evidence.push(read(verdict.since, "read without a time to live".to_owned()));
            evidence.push(read(now, "read again, still without one".to_owned()));
        }
        ProblemKind::Stuck => {
            if let Some((id, count)) = case.holders.first() {
                let times =
                    if *count == 1 { String::new() } else { format!(", {count} times over") };
                let text = format!("held by {id}{times}, not a change since");
                evidence.push(read(case.still_since.1, text));
            }
            if let Some(lease) = case.renewed {
                let text = format!("renewed, to a lease of about {:.1} s", lease.as_secs_f64());
                evidence.push(read(now, text));
            }
            evidence.push(match verdict.certainty {
                Certainty::Sure => Evidence {
                    at: now,
                    source: "channels",
                    text: "no release message in all that time".to_owned(),
                },
                Certainty::Suspected => Evidence {
                    at: now,
                    source: "channels",
                    text: "release messages were not heard all that time: it may have been freed and taken again"
                        .to_owned(),
                },
            });
            if let (Some((limit, true)), Some(p99)) = (limit(case), case.habit) {
                let text = format!(
                    "99 of 100 earlier holds lasted at most {:.1} s; beyond {} s is far from that",
                    p99.as_secs_f64(),
                    limit.as_secs()
                );
                evidence.push(read(now, text));
            }
        }
    }
    ProblemView {
        problem: verdict.problem,
        certainty: verdict.certainty,
        since: verdict.since,
        evidence,
        advice: advice(verdict.problem, case.holders),
    }
}

fn advice(problem: ProblemKind, holders: &[(HolderId, i64)]) -> String {
    let Some((holder, _)) = holders.first() else { return String::new() };
    let find = if holder.looks_like_agent() {
        format!(
            "Its number is one that agents draw: on the host whose lockscope-agent logs the id {} at its start, LOCKS on the agent's socket shows the worker's process.",
            holder.client
        )
    } else {
        format!(
            "Find the process whose Redisson client has the id {}, and look at its thread {}: `jcmd <pid> Thread.print` shows it as #{}.",
            holder.client, holder.thread, holder.thread
        )
    };
    match problem {
        ProblemKind::Leaked => format!(
            "It has no time to live, so it stays for ever unless its holder releases it. {find} If that process is gone, nobody will."
        ),
        ProblemKind::Stuck => format!(
            "Its process lives, since it renews the lock; the work under it does not end. {find}"
        ),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use redisson::ClientId;

    use super::*;

    fn stamp(secs: u64) -> Stamp {
        let at = Moment::from_micros(secs * 1_000_000);
        Stamp { sent: at, received: at, wall: WallMillis(secs * 1000) }
    }

    fn holders() -> [(HolderId, i64); 1] {
        [(HolderId::new(ClientId::from_random([1; 16]), 52), 1)]
    }

    fn renewed(holders: &[(HolderId, i64)], still: u64, now: u64) -> Case<'_> {
        Case {
            now: stamp(now),
            holders,
            confirmed: true,
            bare_since: None,
            renewed: Some(Duration::from_secs(30)),
            still_since: (stamp(still).sent, stamp(still).wall),
            listening_since: Some(stamp(0).sent),
            habit: None,
            stuck_after: Some(Duration::from_secs(300)),
        }
    }

    fn only(case: &Case<'_>) -> Option<(ProblemKind, Certainty)> {
        judge(case).first().map(|v| (v.problem, v.certainty))
    }

    #[test]
    fn stuck_needs_renewal_age_and_ears() {
        let holders = holders();
        let case = |now| renewed(&holders, 10, now);
        assert_eq!(only(&case(310)), None);
        assert_eq!(only(&case(311)), Some((ProblemKind::Stuck, Certainty::Sure)));
        assert_eq!(only(&Case { renewed: None, ..case(9_999) }), None);
        assert_eq!(only(&Case { stuck_after: None, ..case(9_999) }), None);
        assert_eq!(only(&Case { confirmed: false, ..case(9_999) }), None);
        let deaf = Case { listening_since: None, ..case(311) };
        assert_eq!(only(&deaf), Some((ProblemKind::Stuck, Certainty::Suspected)));
        let late = Case { listening_since: Some(stamp(100).sent), ..case(311) };
        assert_eq!(only(&late), Some((ProblemKind::Stuck, Certainty::Suspected)));
        let heard = Case { listening_since: Some(stamp(100).sent), ..case(401) };
        assert_eq!(only(&heard), Some((ProblemKind::Stuck, Certainty::Sure)));
    }

    #[test]
    fn far_beyond_its_habit_is_stuck_but_not_within_a_minute() {
        let holders = holders();
        let quick =
            |now| Case { habit: Some(Duration::from_millis(20)), ..renewed(&holders, 0, now) };
        assert_eq!(only(&quick(60)), None);
        assert_eq!(only(&quick(61)), Some((ProblemKind::Stuck, Certainty::Sure)));
        let slow = Case { habit: Some(Duration::from_secs(100)), ..renewed(&holders, 0, 299) };
        assert_eq!(only(&slow), None);
    }

    #[test]
    fn a_leak_needs_two_readings_apart() {
        let holders = holders();
        let case = |first, now| Case {
            renewed: None,
            bare_since: Some(stamp(first)),
            ..renewed(&holders, 0, now)
        };
        assert_eq!(only(&case(10, 14)), None);
        assert_eq!(only(&case(10, 15)), Some((ProblemKind::Leaked, Certainty::Sure)));
        assert_eq!(only(&Case { confirmed: false, ..case(10, 99) }), None);
        assert_eq!(only(&Case { holders: &[], ..case(10, 99) }), None);
    }

    #[test]
    fn it_says_why_and_what_to_do() {
        let holders = holders();
        let case = renewed(&holders, 10, 400);
        let problem = explain(&case, judge(&case)[0]);
        assert_eq!(problem.evidence.len(), 3);
        assert!(problem.advice.contains("thread 52") && problem.advice.contains("Thread.print"));
        assert_eq!(problem.since, WallMillis(310_000));
        let agents = [(HolderId { thread: 1_700_000_000 << 30, ..holders[0].0 }, 1)];
        let case = Case { holders: &agents, ..case };
        let problem = explain(&case, judge(&case)[0]);
        assert!(problem.advice.contains("LOCKS") && !problem.advice.contains("jcmd"));
    }
}
