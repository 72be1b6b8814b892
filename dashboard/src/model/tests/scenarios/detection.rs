//! Tests of the detection of each problem with each choice of sources: its certainty, its delay, and the delay of its
//! end.
//!
//! With `--nocapture` the test prints the delays.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::*;

/// A fault and its expected detection.
struct Case {
    what: &'static str,
    problem: ProblemKind,
    /// The actions before the fault.
    before: fn(&mut Scenario),
    /// The fault to inject, or [`NOTHING`] if it happens by itself.
    fault: fn(&mut Scenario),
    /// The final certainty with these sources, and the milliseconds from the fault to the first detection, or `None` if
    /// it cannot be seen.
    expected: fn(EnabledSources) -> Option<(Certainty, RangeInclusive<u64>)>,
    /// The observation time after the fault, in milliseconds.
    observed_for: u64,
    /// The repair.
    repair: fn(&mut Scenario),
    /// The maximum number of milliseconds from the repair to the end of the problem.
    clears_within: u64,
    /// Another problem that the fault may cause.
    side_effect: Option<ProblemKind>,
}

fn one() -> HolderId {
    holder(1)
}

fn two() -> HolderId {
    holder(2)
}

/// Returns the expectation that any sources detect the fault: scans and readings are enough.
fn always(delay: RangeInclusive<u64>) -> Option<(Certainty, RangeInclusive<u64>)> {
    Some((CERTAIN, delay))
}

/// Renews `a` every 10 s until 45 s. At 40 s, 30 s were left.
fn renewed_until_45_s(scenario: &mut Scenario) {
    scenario.take_and_renew("a", one());
    scenario.advance_to(45_000);
    scenario.freeze(one());
}

/// Acquires `a` for ten minutes and lets the model observe it.
fn taken_for_long(scenario: &mut Scenario, by: HolderId) {
    assert!(scenario.take("a", by, 600_000));
    scenario.advance_to(20_000);
}

fn crossed(scenario: &mut Scenario) {
    scenario.take_and_renew("a", one());
    scenario.take_and_renew("b", two());
    scenario.advance_to(25_000);
}

const NOTHING: fn(&mut Scenario) = |_| {};

fn cases() -> Vec<Case> {
    use ProblemKind::{
        Deadlock, Expired, Leaked, Malformed, Orphan, RenewalOverdue, Starving, Stuck,
    };
    vec![
        Case {
            what: "deadlock, of fair locks",
            problem: Deadlock,
            before: crossed,
            fault: |scenario| {
                scenario.enqueue("a", two());
                scenario.enqueue("b", one());
            },
            expected: |_| always(0..=8_000),
            observed_for: 20_000,
            repair: |scenario| scenario.leave_queue("b", one()),
            clears_within: 4_000,
            side_effect: None,
        },
        Case {
            what: "deadlock, of plain locks",
            problem: Deadlock,
            before: crossed,
            fault: |scenario| {
                scenario.wait_for("a", two());
                scenario.wait_for("b", one());
            },
            expected: |sources| sources.monitor.then_some((CERTAIN, 0..=3_000)),
            observed_for: 20_000,
            repair: |scenario| assert!(scenario.release("a", one(), true)),
            clears_within: 4_000,
            side_effect: None,
        },
        Case {
            what: "leaked, without a TTL",
            problem: Leaked,
            before: |scenario| taken_for_long(scenario, one()),
            fault: |scenario| scenario.set_ttl("a", None),
            expected: |sources| {
                always(if sources.keyspace { 5_000..=5_300 } else { 5_000..=15_300 })
            },
            observed_for: 30_000,
            repair: |scenario| scenario.set_ttl("a", Some(600_000)),
            clears_within: 5_300,
            side_effect: None,
        },
        Case {
            what: "leaked before the start, only its shape is known",
            problem: Leaked,
            before: |scenario| scenario.plant("a", one()),
            fault: NOTHING,
            expected: |_| Some((SUSPECTED, 6_000..=8_000)),
            observed_for: 90_000,
            repair: |scenario| scenario.set_ttl("a", Some(600_000)),
            clears_within: 60_300,
            side_effect: None,
        },
        Case {
            what: "leaked before the start, waited for",
            problem: Leaked,
            before: |scenario| {
                scenario.plant("a", one());
                scenario.advance_to(30_000);
            },
            fault: |scenario| scenario.wait_for("a", two()),
            expected: |sources| {
                let proved = sources.subscribers || sources.monitor;
                Some(if proved { (CERTAIN, 0..=65_000) } else { (SUSPECTED, 0..=0) })
            },
            observed_for: 70_000,
            repair: |scenario| scenario.set_ttl("a", Some(600_000)),
            clears_within: 60_300,
            side_effect: Some(Starving),
        },
        Case {
            what: "leaked, its client gone",
            problem: Leaked,
            before: |scenario| taken_for_long(scenario, one()),
            fault: |scenario| scenario.kill_client(one()),
            expected: |sources| {
                (sources.monitor && sources.identity).then_some((SUSPECTED, 30_000..=60_300))
            },
            observed_for: 80_000,
            repair: |scenario| scenario.set_ttl("a", Some(900_000)),
            clears_within: 10_300,
            side_effect: None,
        },
        Case {
            what: "leaked, its agent gone",
            problem: Leaked,
            before: |scenario| taken_for_long(scenario, holder(AGENTS)),
            fault: |scenario| scenario.silence_agent(holder(AGENTS)),
            expected: |sources| sources.identity.then_some((SUSPECTED, 30_000..=34_300)),
            observed_for: 60_000,
            repair: |scenario| scenario.set_ttl("a", Some(900_000)),
            clears_within: 10_300,
            side_effect: None,
        },
        Case {
            what: "leaked, its agent does not report it",
            problem: Leaked,
            before: |scenario| {
                let of_agent = |thread| HolderId { thread, ..holder(AGENTS) };
                assert!(scenario.take("b", of_agent(53), 600_000));
                taken_for_long(scenario, of_agent(52));
            },
            fault: |scenario| scenario.deny_holder(holder(AGENTS), true),
            expected: |sources| sources.identity.then_some((SUSPECTED, 30_000..=34_300)),
            observed_for: 60_000,
            repair: |scenario| scenario.deny_holder(holder(AGENTS), false),
            clears_within: 4_300,
            side_effect: None,
        },
        Case {
            what: "renewal overdue",
            problem: RenewalOverdue,
            before: |scenario| {
                renewed_until_45_s(scenario);
                // At this point 13.5 s are left: half of the lease less a twentieth.
                scenario.advance_to(56_500);
            },
            fault: NOTHING,
            // The lease is known from the time to live just after a renewal, up to half a second too short.
            expected: |_| always(0..=300),
            observed_for: 10_000,
            repair: |scenario| scenario.set_ttl("a", Some(LEASE)),
            clears_within: 1_300,
            side_effect: None,
        },
        Case {
            what: "expired, its holder frozen",
            problem: Expired,
            before: |scenario| {
                renewed_until_45_s(scenario);
                scenario.advance_to(69_900);
            },
            fault: |scenario| scenario.advance(100),
            expected: |_| Some((SUSPECTED, 0..=200)),
            observed_for: 60_000,
            repair: |scenario| scenario.skip(3_600_000),
            clears_within: 31_000,
            side_effect: Some(RenewalOverdue),
        },
        Case {
            what: "expired, its holder back too late",
            problem: Expired,
            before: |scenario| {
                renewed_until_45_s(scenario);
                scenario.advance_to(75_000);
            },
            fault: |scenario| assert!(!scenario.release("a", one(), true)),
            // The problem is suspected since the lease expired.
            expected: |sources| Some((if sources.monitor { CERTAIN } else { SUSPECTED }, 0..=200)),
            observed_for: 10_000,
            repair: |scenario| scenario.skip(3_600_000),
            clears_within: 31_000,
            side_effect: Some(RenewalOverdue),
        },
        Case {
            what: "expired, a lease shorter than the work",
            problem: Expired,
            before: |scenario| {
                assert!(scenario.take("a", one(), 10_000));
                scenario.advance_to(15_000);
            },
            fault: |scenario| assert!(!scenario.release("a", one(), true)),
            expected: |sources| sources.monitor.then_some((CERTAIN, 0..=200)),
            observed_for: 30_000,
            repair: |scenario| scenario.skip(3_600_000),
            clears_within: 31_000,
            side_effect: None,
        },
        Case {
            what: "expired, deleted under its holder",
            problem: Expired,
            before: |scenario| {
                scenario.take_and_renew("a", one());
                scenario.advance_to(45_000);
                scenario.delete("a");
                scenario.advance_to(49_900);
            },
            // The holder's next renewal finds nothing.
            fault: |scenario| scenario.advance(100),
            expected: |sources| sources.monitor.then_some((CERTAIN, 0..=200)),
            observed_for: 30_000,
            repair: |scenario| scenario.skip(3_600_000),
            clears_within: 31_000,
            side_effect: None,
        },
        Case {
            what: "stuck",
            problem: Stuck,
            before: |scenario| {
                scenario.take_and_renew("a", one());
                scenario.advance_to(300_000);
            },
            fault: NOTHING,
            expected: |sources| {
                Some((if sources.channels { CERTAIN } else { SUSPECTED }, 0..=8_000))
            },
            observed_for: 20_000,
            repair: |scenario| assert!(scenario.release("a", one(), true)),
            clears_within: 8_000,
            side_effect: None,
        },
        Case {
            what: "starving, in a fair queue",
            problem: Starving,
            before: |scenario| {
                scenario.take_and_renew("a", one());
                scenario.advance_to(25_000);
                scenario.enqueue("a", two());
                scenario.advance(60_000);
            },
            fault: NOTHING,
            expected: |_| always(0..=7_500),
            observed_for: 20_000,
            repair: |scenario| scenario.leave_queue("a", two()),
            clears_within: 2_300,
            side_effect: None,
        },
        Case {
            what: "starving, of a plain lock",
            problem: Starving,
            before: |scenario| {
                scenario.take_and_renew("a", one());
                scenario.advance_to(25_000);
                scenario.wait_for("a", two());
                scenario.advance(60_000);
            },
            fault: NOTHING,
            expected: |sources| {
                let certainty = if sources.monitor { CERTAIN } else { SUSPECTED };
                (sources.monitor || sources.subscribers).then_some((certainty, 0..=4_000))
            },
            observed_for: 20_000,
            repair: |scenario| assert!(scenario.release("a", one(), true)),
            clears_within: 8_000,
            side_effect: None,
        },
        Case {
            what: "malformed",
            problem: Malformed,
            before: |scenario| taken_for_long(scenario, one()),
            fault: |scenario| scenario.set_unexpected_field("a", true),
            expected: |sources| always(0..=if sources.keyspace { 300 } else { 10_300 }),
            observed_for: 20_000,
            repair: |scenario| scenario.set_unexpected_field("a", false),
            clears_within: 10_300,
            side_effect: None,
        },
        Case {
            what: "orphan, a dead queue",
            problem: Orphan,
            before: |scenario| {
                assert!(scenario.take("a", one(), 20_000));
                scenario.enqueue_until("a", two(), scenario.clock() + 25_000);
                scenario.advance_to(25_000);
            },
            fault: NOTHING,
            expected: |_| always(60_000..=95_000),
            observed_for: 120_000,
            repair: |scenario| assert!(scenario.take("a", holder(3), 600_000)),
            clears_within: 31_000,
            side_effect: None,
        },
        Case {
            what: "orphan, markers of readers",
            problem: Orphan,
            before: |scenario| {
                scenario.take_as_readers("a", &[one(), two()], 600_000);
                scenario.advance_to(20_000);
            },
            fault: |scenario| scenario.delete("a"),
            expected: |_| always(60_000..=101_000),
            observed_for: 120_000,
            repair: |scenario| scenario.delete_markers("a"),
            clears_within: 31_000,
            side_effect: None,
        },
    ]
}

#[test]
fn each_problem_is_detected_by_every_sufficient_source_and_ends() {
    let mut delays: BTreeMap<&str, Vec<(Certainty, u64)>> = BTreeMap::new();
    for case in cases() {
        for sources in EnabledSources::every() {
            let what = format!("{} by {sources:?}", case.what);
            let mut scenario = Scenario::new(sources);
            (case.before)(&mut scenario);
            let begun = scenario.now;
            (case.fault)(&mut scenario);
            scenario.advance(case.observed_for);
            let of_it = |scenario: &Scenario| -> Vec<ProblemChange> {
                scenario
                    .changes()
                    .iter()
                    .filter(|change| change.problem == case.problem)
                    .copied()
                    .collect()
            };
            let changes = of_it(&scenario);
            let last = changes.last().and_then(|change| change.certainty);
            match (case.expected)(sources) {
                None => assert_eq!(changes, [], "{what}"),
                Some((certainty, delay)) => {
                    assert_eq!(last, Some(certainty), "{what}: {changes:?}");
                    let found = changes.iter().find(|change| change.certainty == Some(certainty));
                    let after =
                        found.map(|change| change.ms.saturating_sub(begun)).unwrap_or_default();
                    assert!(delay.contains(&after), "{what}: after {after} ms: {changes:?}");
                    assert!(
                        changes.iter().all(|change| change.certainty.is_some()),
                        "{what}: {changes:?}"
                    );
                    delays.entry(case.what).or_default().push((certainty, after));
                }
            }
            let evidence =
                scenario.shown("a").map(|view| view.problems.clone()).unwrap_or_default();
            assert!(evidence.iter().all(|problem| !problem.evidence.is_empty()), "{what}");
            (case.repair)(&mut scenario);
            scenario.advance(case.clears_within);
            let changes = of_it(&scenario);
            let ended = changes.last().is_none_or(|change| change.certainty.is_none());
            assert!(ended, "{what}: it has not ended: {changes:?}");
            let other = |change: &&ProblemChange| {
                change.problem != case.problem && Some(change.problem) != case.side_effect
            };
            assert_eq!(scenario.changes().iter().find(other), None, "{what}");
        }
    }
    for (what, found) in delays {
        for certainty in [CERTAIN, SUSPECTED] {
            let ms: Vec<u64> =
                found.iter().filter(|(how, _)| *how == certainty).map(|(_, ms)| *ms).collect();
            let (Some(first), Some(last)) = (ms.iter().min(), ms.iter().max()) else { continue };
            println!("{what}: {} after {first} to {last} ms", certainty.as_str());
        }
    }
}

/// Twenty-five holds of a second are followed by one of more than a minute.
#[test]
fn a_hold_far_beyond_its_typical_duration_is_stuck() {
    for sources in EnabledSources::every().filter(|sources| sources.channels && sources.monitor) {
        let mut scenario = Scenario::new(sources);
        for _ in 0..25 {
            scenario.take_and_renew("a", one());
            scenario.advance(1_000);
            assert!(scenario.release("a", one(), true));
            scenario.advance(1_000);
        }
        scenario.take_and_renew("a", one());
        let begun = scenario.now;
        scenario.advance(58_000);
        assert_eq!(scenario.changes(), [], "{sources:?}");
        scenario.advance(12_000);
        let [change] = scenario.changes() else { panic!("{sources:?}: {:?}", scenario.changes()) };
        assert_eq!(
            (change.problem, change.certainty),
            (ProblemKind::Stuck, Some(CERTAIN)),
            "{sources:?}"
        );
        assert!((60_000..=68_000).contains(&(change.ms - begun)), "{sources:?}: {change:?}");
    }
}
