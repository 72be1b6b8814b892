use redisson::ClientId;

use super::*;
use crate::model::deadlock::Wait;
use crate::model::deadlock::tests::wait_for;
use crate::model::types::Since;

fn at(secs: u64) -> Moment {
    Moment::from_micros(secs * 1_000_000)
}

fn time(secs: u64) -> Time {
    Time::of_test(secs * 1_000, 0)
}

fn stamp(secs: u64) -> Stamp {
    Stamp { sent: at(secs), received: time(secs) }
}

fn id(thread: i64) -> HolderId {
    HolderId::new(ClientId::from_random([1; 16]), thread)
}

fn holders() -> [(HolderField, i64); 1] {
    [(id(52).into(), 1)]
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Returns a healthy lock that is renewed to 30 s and was read with 25 s left.
fn renewed(holders: &[(HolderField, i64)], still: u64, now: u64) -> Case<'_> {
    Case {
        now: stamp(now),
        holders,
        confirmed: true,
        ttl: Some(secs(25)),
        no_ttl_since: None,
        renewed: Some(secs(30)),
        off_pace: false,
        was_stuck: false,
        overdue: None,
        unchanged_since: time(still),
        listening_since: Some(at(0)),
        may_release_silently: false,
        typical: None,
        rule: Rule { stuck_after: Some(secs(300)), starving_after: Some(secs(60)) },
        waiters: &[],
        subscribers: None,
        gone: None,
        expired: None,
        tracked: &[],
        cycle: None,
        dead_head: None,
        orphan_since: None,
        dead_readers_since: None,
        orphaned_readers: 0,
        malformed: None,
    }
}

const CERTAIN: Certainty = Certainty::Certain;
const SUSPECTED: Certainty = Certainty::Suspected;

fn only(case: &Case<'_>) -> Option<(ProblemKind, Certainty)> {
    let verdicts = judge(case);
    assert!(verdicts.len() <= 1, "{verdicts:?}");
    verdicts.first().map(|v| (v.problem, v.certainty))
}

#[test]
fn stuck_needs_renewals_age_and_release_messages() {
    let holders = holders();
    let case = |now| renewed(&holders, 10, now);
    let stuck = |certainty| Some((ProblemKind::Stuck, certainty));
    let long = Rule { stuck_after: None, ..case(0).rule };
    let granted = [(id(1_700_000_000 << 30).into(), 1)];
    for (case, expected) in [
        (case(310), None),
        (case(311), stuck(CERTAIN)),
        (Case { renewed: None, ..case(9_999) }, None),
        (Case { renewed: None, was_stuck: true, ..case(311) }, stuck(CERTAIN)),
        (Case { renewed: None, was_stuck: true, ..case(310) }, None),
        (Case { renewed: None, was_stuck: true, off_pace: true, ..case(311) }, None),
        (Case { renewed: None, was_stuck: true, ttl: None, ..case(311) }, None),
        (Case { rule: long, ..case(9_999) }, None),
        (Case { confirmed: false, ..case(9_999) }, None),
        (Case { holders: &[], ..case(9_999) }, None),
        (Case { listening_since: None, ..case(311) }, stuck(SUSPECTED)),
        (Case { may_release_silently: true, ..case(311) }, stuck(SUSPECTED)),
        (Case { off_pace: true, ..case(311) }, stuck(SUSPECTED)),
        (Case { off_pace: true, holders: &granted, ..case(311) }, stuck(CERTAIN)),
        (Case { listening_since: Some(at(100)), ..case(311) }, stuck(SUSPECTED)),
        (Case { listening_since: Some(at(100)), ..case(401) }, stuck(CERTAIN)),
    ] {
        assert_eq!(only(&case), expected, "{case:?}");
    }
}

#[test]
fn a_hold_far_longer_than_typical_is_stuck_but_not_within_a_minute() {
    let holders = holders();
    let quick =
        |now| Case { typical: Some(Duration::from_millis(20)), ..renewed(&holders, 0, now) };
    assert_eq!(only(&quick(60)), None);
    assert_eq!(only(&quick(61)), Some((ProblemKind::Stuck, CERTAIN)));
    let slow = Case { typical: Some(secs(100)), ..renewed(&holders, 0, 299) };
    assert_eq!(only(&slow), None);
}

#[test]
fn a_leak_needs_two_readings_apart_or_a_holder_that_is_gone() {
    let holders = holders();
    let bare = |first, now| Case {
        renewed: None,
        ttl: None,
        no_ttl_since: Some(stamp(first)),
        ..renewed(&holders, 0, now)
    };
    let evidence = "no connection from 10.0.0.7".into();
    let gone = (id(52), Gone { since: SteadyMillis(5_000), evidence });
    let left = |ttl| Case {
        renewed: None,
        ttl: Some(secs(ttl)),
        gone: Some(&gone),
        ..renewed(&holders, 0, 20)
    };
    let leaked = |certainty| Some((ProblemKind::Leaked, certainty));
    for (case, expected) in [
        (bare(10, 14), None),
        (bare(10, 15), leaked(CERTAIN)),
        (Case { confirmed: false, ..bare(10, 14) }, None),
        (Case { confirmed: false, ..bare(10, 15) }, leaked(SUSPECTED)),
        (Case { confirmed: false, malformed: Some("count 0"), ..bare(10, 99) }, None),
        (Case { holders: &[], ..bare(10, 99) }, None),
        (left(60), None),
        (left(61), leaked(SUSPECTED)),
        (Case { gone: None, ..left(600) }, None),
        (Case { gone: Some(&gone), ..bare(10, 14) }, leaked(SUSPECTED)),
        (Case { gone: Some(&gone), ..bare(10, 15) }, leaked(CERTAIN)),
    ] {
        assert_eq!(only(&case), expected, "{case:?}");
    }
}

#[test]
fn a_renewal_is_overdue_below_half_of_the_lease_less_a_twentieth() {
    let since = |ms| overdue_since(stamp(100), secs(30), Duration::from_millis(ms));
    for (ms, expected) in
        [(13_500, None), (13_499, Some(99_999)), (11_500, Some(98_000)), (0, Some(86_500))]
    {
        assert_eq!(since(ms), expected.map(SteadyMillis), "{ms} ms left");
    }
    let holders = holders();
    let late = late(100, 11);
    let case = Case { overdue: Some(&late), ..renewed(&holders, 0, 100) };
    assert_eq!(only(&case), Some((ProblemKind::RenewalOverdue, CERTAIN)));
    assert_eq!(only(&Case { confirmed: false, ..case.clone() }), None);
}

/// Returns a renewal that is late at that second, with that many seconds of 30 left.
fn late(now: u64, left: u64) -> Overdue {
    let late = Some((SteadyMillis(now * 1_000), secs(left)));
    Overdue::update(None, late, secs(30), stamp(now)).unwrap()
}

#[test]
fn renewals_that_are_late_again_are_one_problem_until_they_have_come_in_time_for_three_leases() {
    let in_time = |known, now| Overdue::update(Some(known), None, secs(30), stamp(now));
    let again = |known, now| {
        let late = Some((SteadyMillis(now * 1_000), secs(9)));
        Overdue::update(Some(known), late, secs(30), stamp(now)).unwrap()
    };
    let once = late(100, 11);
    assert!(once.is_reported());
    assert_eq!(again(once.clone(), 101).times, 1, "the same renewal");
    let once = in_time(once, 102).unwrap();
    assert!(!once.is_reported(), "a single one is over once it has come");
    assert_eq!(in_time(once.clone(), 191), None, "and forgotten later");
    let twice = again(once, 190);
    assert_eq!((twice.times, twice.since, twice.ttl), (2, SteadyMillis(100_000), secs(9)));
    let twice = in_time(twice, 191).unwrap();
    assert!(twice.is_reported());
    assert!(in_time(twice.clone(), 280).unwrap().is_reported());
    assert_eq!(in_time(twice.clone(), 281), None);
    // With a short lease, the problem lasts for a minute.
    assert!(Overdue::update(Some(twice.clone()), None, secs(3), stamp(250)).is_some());
    assert_eq!(Overdue::update(Some(twice), None, secs(3), stamp(251)), None);
}

#[test]
fn an_expired_hold_is_reported_for_an_hour_no_matter_who_holds_the_lock_since() {
    let holders = holders();
    let expired = |certainty| Expired {
        at: time(100),
        began: time(50).steady(),
        holder: Some(id(7).into()),
        certainty,
        source: Source::Poll,
        evidence: "it expired".into(),
        times: 1,
    };
    for certainty in [CERTAIN, SUSPECTED] {
        let expired = expired(certainty);
        let case = |now| Case {
            expired: Some(&expired),
            rule: Rule { stuck_after: None, starving_after: None },
            ..renewed(&holders, 0, now)
        };
        let found = Some((ProblemKind::Expired, certainty));
        assert_eq!(only(&case(100)), found);
        assert_eq!(only(&Case { holders: &[], ..case(200) }), found);
        assert_eq!(only(&case(3_700)), found);
        assert_eq!(only(&case(3_701)), None);
    }
}

fn waiter(from: u64) -> Waiter {
    Waiter {
        id: id(9),
        since: Since { at: time(from).steady(), exact: true },
        from: at(from),
        seen: at(from),
        attempts: None,
        source: Source::Poll,
        until: None,
        overdue: false,
        gone: false,
        present: true,
    }
}

#[test]
fn a_long_wait_is_starvation() {
    let holders = holders();
    let one = [waiter(10)];
    let dead = [Waiter { overdue: true, ..waiter(10) }];
    let left = [Waiter { present: false, ..waiter(10) }];
    let listening = Subscribers { count: 2.into(), since: time(10) };
    let waits = |now| Case { waiters: &one, ..renewed(&holders, 0, now) };
    let counted =
        |still, now| Case { subscribers: Some(listening), ..renewed(&holders, still, now) };
    let starving = |certainty| Some((ProblemKind::Starving, certainty));
    let long = Rule { starving_after: None, ..waits(0).rule };
    for (case, expected) in [
        (waits(70), None),
        (waits(71), starving(CERTAIN)),
        (Case { holders: &[], ..waits(71) }, starving(CERTAIN)),
        (Case { rule: long, ..waits(71) }, None),
        (Case { waiters: &dead, ..waits(200) }, None),
        (Case { waiters: &left, ..waits(200) }, None),
        (counted(0, 70), None),
        (counted(0, 71), starving(SUSPECTED)),
        // Other waiters come and go behind a lock that changes hands, and none of them waits long.
        (counted(50, 71), None),
        (counted(50, 111), starving(SUSPECTED)),
        (Case { holders: &[], ..counted(0, 200) }, None),
    ] {
        assert_eq!(only(&case), expected, "{case:?}");
    }
}

#[test]
fn a_waiter_for_a_lock_that_changes_hands_needs_no_release() {
    let holders = holders();
    let one = [waiter(10)];
    let advice = |still| {
        let case = Case { waiters: &one, ..renewed(&holders, still, 100) };
        explain(&case, judge(&case)[0]).advice
    };
    assert!(advice(39).ends_with("or release the lock by force."), "{}", advice(39));
    assert!(advice(40).starts_with("The lock seems to change hands"), "{}", advice(40));
}

#[test]
fn a_cycle_is_a_deadlock_and_one_with_a_limited_wait_or_a_claim_is_suspected() {
    let holders = holders();
    let wait = |waiter, holder, (limited, claimed)| Wait {
        limited,
        claimed,
        ..wait_for(id(waiter), id(holder))
    };
    let none = (false, false);
    for (either, certainty) in
        [(none, CERTAIN), ((true, false), SUSPECTED), ((false, true), SUSPECTED)]
    {
        let cycle = Cycle {
            waits: vec![wait(52, 9, none), wait(9, 52, either)],
            views: std::sync::Arc::default(),
            unread: false,
        };
        let case = Case { cycle: Some(&cycle), ..renewed(&holders, 0, 20) };
        assert_eq!(only(&case), Some((ProblemKind::Deadlock, certainty)));
        let problem = explain(&case, judge(&case)[0]);
        assert_eq!(problem.evidence.len(), 2);
        assert!(problem.evidence[0].text.contains("waits for `held by 9`"), "{problem:?}");
        assert_eq!(only(&Case { holders: &[], ..case }), None);
    }
}

#[test]
fn leftovers_are_an_orphan_after_a_minute() {
    let holders = holders();
    let free = |now| Case {
        holders: &[],
        renewed: None,
        ttl: None,
        orphan_since: Some(stamp(10)),
        ..renewed(&holders, 0, now)
    };
    assert_eq!(only(&free(69)), None);
    assert_eq!(only(&free(70)), Some((ProblemKind::Orphan, CERTAIN)));
    assert_eq!(only(&Case { orphan_since: None, ..free(999) }), None);
    assert_eq!(only(&Case { holders: &holders, ..free(99) }), None, "it is held again");
    let orphan = |case: &Case<'_>| {
        let verdicts = judge(case);
        let it = verdicts.iter().find(|verdict| verdict.problem == ProblemKind::Orphan).unwrap();
        explain(case, *it).advice
    };
    assert!(orphan(&free(99)).starts_with("Its waiters are gone"));
    let dead = Waiter { gone: true, ..waiter(20) };
    let advice = orphan(&Case { waiters: &[dead], dead_head: Some(dead), ..free(99) });
    assert!(!advice.contains("delays the others") && advice.contains("lockctl"), "{advice}");
    let behind = [waiter(20)];
    let advice = orphan(&Case { waiters: &behind, ..free(99) });
    assert!(!advice.contains("waiters are gone") && advice.contains("those behind it"), "{advice}");
}

#[test]
fn a_lock_of_readers_that_are_gone_is_an_orphan_after_a_minute() {
    let holders = [(id(52).into(), 1), (id(53).into(), 1)];
    let dead = |now| Case {
        renewed: None,
        ttl: Some(secs(600)),
        dead_readers_since: Some(stamp(10)),
        ..renewed(&holders, 0, now)
    };
    assert_eq!(only(&dead(69)), None);
    assert_eq!(only(&dead(70)), Some((ProblemKind::Orphan, CERTAIN)));
    assert_eq!(only(&Case { dead_readers_since: None, ..dead(999) }), None);
    assert_eq!(only(&Case { renewed: Some(secs(30)), ..dead(99) }), None, "one of them lives");
    let forever = Case { ttl: None, no_ttl_since: Some(stamp(10)), ..dead(99) };
    assert_eq!(only(&forever), Some((ProblemKind::Leaked, CERTAIN)));
    let problem = explain(&dead(70), judge(&dead(70))[0]);
    assert!(problem.evidence[0].text.contains("all of its 2 readers are gone"), "{problem:?}");
    assert!(problem.advice.contains("writers are refused"), "{problem:?}");
}

#[test]
fn a_hash_with_unexpected_content_is_malformed() {
    let holders = holders();
    let case = Case { malformed: Some("count 0"), ..renewed(&holders, 0, 20) };
    assert_eq!(only(&case), Some((ProblemKind::Malformed, CERTAIN)));
    assert_eq!(only(&Case { confirmed: false, ..case.clone() }), None);
    let problem = explain(&case, judge(&case)[0]);
    assert_eq!(problem.evidence[0].text, "count 0");
    assert!(problem.advice.contains("No client library writes a hash like this"), "{problem:?}");
    let case = Case { malformed: Some(APART), ..case };
    let problem = explain(&case, judge(&case)[0]);
    assert!(problem.advice.contains("balance the braces"), "{problem:?}");
    assert!(!problem.advice.contains("A forced release deletes"), "{problem:?}");
}

#[test]
fn problems_are_sorted_worst_first() {
    let holders = holders();
    let one = [waiter(0)];
    let late = late(1_000, 5);
    let case = Case {
        ttl: Some(secs(5)),
        overdue: Some(&late),
        waiters: &one,
        malformed: Some("count 0"),
        ..renewed(&holders, 0, 1_000)
    };
    let kinds: Vec<ProblemKind> = judge(&case).iter().map(|v| v.problem).collect();
    use ProblemKind::{Malformed, RenewalOverdue, Starving, Stuck};
    assert_eq!(kinds, [RenewalOverdue, Stuck, Starving, Malformed]);
    for verdict in judge(&case) {
        let problem = explain(&case, verdict);
        assert!(!problem.evidence.is_empty() && !problem.advice.is_empty(), "{problem:?}");
        assert!(verdict.problem.certainties().contains(&verdict.certainty));
    }
}

#[test]
fn a_problem_has_evidence_and_a_next_step() {
    let holders = holders();
    let case = renewed(&holders, 10, 400);
    let problem = explain(&case, judge(&case)[0]);
    assert_eq!(problem.evidence.len(), 3);
    assert!(problem.advice.contains("thread 52") && problem.advice.contains("Thread.print"));
    assert_eq!(problem.since, SteadyMillis(310_000));
    let agents = [(HolderId { thread: 1_700_000_000 << 30, ..id(52) }.into(), 1)];
    let case = Case { holders: &agents, ..case };
    let problem = explain(&case, judge(&case)[0]);
    assert!(problem.advice.contains("LOCKS") && !problem.advice.contains("jcmd"));
    assert!(problem.advice.contains("after the grace of its session"), "{}", problem.advice);
}
