//! Each problem with each choice of sources: whether it is found, how surely, how soon, and how soon it is over.
//!
//! With `--nocapture` the test prints how soon.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::*;

/// A fault, and what is to come of it.
struct Case {
    what: &'static str,
    problem: ProblemKind,
    /// Plays until the fault.
    before: fn(&mut Play),
    /// The fault to inject; none: it happens by itself.
    fault: fn(&mut Play),
    /// The final certainty with these sources, and the milliseconds from the fault to the first detection; none: it
    /// cannot be seen.
    found: fn(Seeing) -> Option<(Certainty, RangeInclusive<u64>)>,
    /// For how long it is watched.
    watched: u64,
    /// The repair.
    remedy: fn(&mut Play),
    /// The most milliseconds from the repair to the end of the problem.
    over: u64,
    /// Another problem that may come with it.
    also: Option<ProblemKind>,
}

fn one() -> HolderId {
    holder(1)
}

fn two() -> HolderId {
    holder(2)
}

/// Found with any sources: passes and readings are enough.
fn always(soon: RangeInclusive<u64>) -> Option<(Certainty, RangeInclusive<u64>)> {
    Some((SURE, soon))
}

/// A watchdog renews `a` until 45 s, each 10 s from 0 on: then 30 s are left from 40 s on.
fn renewed_until_45_s(play: &mut Play) {
    play.take_and_renew("a", one());
    play.until(45_000);
    play.freezes(one());
}

/// `a` is taken for ten minutes, and known.
fn taken_for_long(play: &mut Play, by: HolderId) {
    assert!(play.take("a", by, 600_000));
    play.until(20_000);
}

fn crossed(play: &mut Play) {
    play.take_and_renew("a", one());
    play.take_and_renew("b", two());
    play.until(25_000);
}

const NOTHING: fn(&mut Play) = |_| {};

fn cases() -> Vec<Case> {
    use ProblemKind::{
        Deadlock, Expired, Leaked, Malformed, Orphan, RenewalOverdue, Starving, Stuck,
    };
    vec![
        Case {
            what: "deadlock, of fair locks",
            problem: Deadlock,
            before: crossed,
            fault: |play| {
                play.queues("a", two());
                play.queues("b", one());
            },
            found: |_| always(0..=8_000),
            watched: 20_000,
            remedy: |play| play.leaves_queue("b", one()),
            over: 4_000,
            also: None,
        },
        Case {
            what: "deadlock, of plain locks",
            problem: Deadlock,
            before: crossed,
            fault: |play| {
                play.waits_for("a", two());
                play.waits_for("b", one());
            },
            found: |seeing| seeing.monitor.then_some((SURE, 0..=3_000)),
            watched: 20_000,
            remedy: |play| assert!(play.release("a", one(), true)),
            over: 4_000,
            also: None,
        },
        Case {
            what: "leaked, without a time to live",
            problem: Leaked,
            before: |play| taken_for_long(play, one()),
            fault: |play| play.set_ends("a", None),
            found: |seeing| always(if seeing.keyspace { 5_000..=5_300 } else { 5_000..=15_300 }),
            watched: 30_000,
            remedy: |play| play.set_ends("a", Some(600_000)),
            over: 5_300,
            also: None,
        },
        Case {
            what: "leaked, its client gone",
            problem: Leaked,
            before: |play| taken_for_long(play, one()),
            fault: |play| play.dies(one()),
            found: |seeing| {
                (seeing.monitor && seeing.identity).then_some((SUSPECTED, 30_000..=60_300))
            },
            watched: 80_000,
            remedy: |play| play.set_ends("a", Some(900_000)),
            over: 10_300,
            also: None,
        },
        Case {
            what: "leaked, its agent gone",
            problem: Leaked,
            before: |play| taken_for_long(play, holder(AGENTS)),
            fault: |play| play.falls_silent(holder(AGENTS)),
            found: |seeing| seeing.identity.then_some((SUSPECTED, 30_000..=34_300)),
            watched: 60_000,
            remedy: |play| play.set_ends("a", Some(900_000)),
            over: 10_300,
            also: None,
        },
        Case {
            what: "leaked, its agent knows nothing of it",
            problem: Leaked,
            before: |play| {
                let of_agent = |thread| HolderId { thread, ..holder(AGENTS) };
                assert!(play.take("b", of_agent(53), 600_000));
                taken_for_long(play, of_agent(52));
            },
            fault: |play| play.denies(holder(AGENTS), true),
            found: |seeing| seeing.identity.then_some((SUSPECTED, 30_000..=34_300)),
            watched: 60_000,
            remedy: |play| play.denies(holder(AGENTS), false),
            over: 4_300,
            also: None,
        },
        Case {
            what: "renewal overdue",
            problem: RenewalOverdue,
            before: |play| {
                renewed_until_45_s(play);
                // 13.5 s are left: half of the lease less a twentieth.
                play.until(56_500);
            },
            fault: NOTHING,
            found: |_| always(0..=200),
            watched: 10_000,
            remedy: |play| play.set_ends("a", Some(LEASE)),
            over: 1_300,
            also: None,
        },
        Case {
            what: "expired, its holder frozen",
            problem: Expired,
            before: |play| {
                renewed_until_45_s(play);
                play.until(69_900);
            },
            fault: |play| play.pass(100),
            found: |_| Some((SUSPECTED, 0..=200)),
            watched: 60_000,
            remedy: |play| play.skips(3_600_000),
            over: 31_000,
            also: Some(RenewalOverdue),
        },
        Case {
            what: "expired, its holder back too late",
            problem: Expired,
            before: |play| {
                renewed_until_45_s(play);
                play.until(75_000);
            },
            fault: |play| assert!(!play.release("a", one(), true)),
            // Suspected since it ran out.
            found: |seeing| Some((if seeing.monitor { SURE } else { SUSPECTED }, 0..=200)),
            watched: 10_000,
            remedy: |play| play.skips(3_600_000),
            over: 31_000,
            also: Some(RenewalOverdue),
        },
        Case {
            what: "expired, a lease shorter than the work",
            problem: Expired,
            before: |play| {
                assert!(play.take("a", one(), 10_000));
                play.until(15_000);
            },
            fault: |play| assert!(!play.release("a", one(), true)),
            found: |seeing| seeing.monitor.then_some((SURE, 0..=200)),
            watched: 30_000,
            remedy: |play| play.skips(3_600_000),
            over: 31_000,
            also: None,
        },
        Case {
            what: "expired, deleted under its holder",
            problem: Expired,
            before: |play| {
                play.take_and_renew("a", one());
                play.until(45_000);
                play.deleted("a");
                play.until(49_900);
            },
            // Its next renewal finds nothing.
            fault: |play| play.pass(100),
            found: |seeing| seeing.monitor.then_some((SURE, 0..=200)),
            watched: 30_000,
            remedy: |play| play.skips(3_600_000),
            over: 31_000,
            also: None,
        },
        Case {
            what: "stuck",
            problem: Stuck,
            before: |play| {
                play.take_and_renew("a", one());
                play.until(300_000);
            },
            fault: NOTHING,
            found: |seeing| Some((if seeing.channels { SURE } else { SUSPECTED }, 0..=6_000)),
            watched: 20_000,
            remedy: |play| assert!(play.release("a", one(), true)),
            over: 5_300,
            also: None,
        },
        Case {
            what: "starving, in a fair queue",
            problem: Starving,
            before: |play| {
                play.take_and_renew("a", one());
                play.until(25_000);
                play.queues("a", two());
                play.pass(60_000);
            },
            fault: NOTHING,
            found: |_| always(0..=7_500),
            watched: 20_000,
            remedy: |play| play.leaves_queue("a", two()),
            over: 2_300,
            also: None,
        },
        Case {
            what: "starving, of a plain lock",
            problem: Starving,
            before: |play| {
                play.take_and_renew("a", one());
                play.until(25_000);
                play.waits_for("a", two());
                play.pass(60_000);
            },
            fault: NOTHING,
            found: |seeing| {
                let certainty = if seeing.monitor { SURE } else { SUSPECTED };
                (seeing.monitor || seeing.subscribers).then_some((certainty, 0..=4_000))
            },
            watched: 20_000,
            remedy: |play| assert!(play.release("a", one(), true)),
            over: 5_300,
            also: None,
        },
        Case {
            what: "malformed",
            problem: Malformed,
            before: |play| taken_for_long(play, one()),
            fault: |play| play.set_alien("a", true),
            found: |seeing| always(0..=if seeing.keyspace { 300 } else { 10_300 }),
            watched: 20_000,
            remedy: |play| play.set_alien("a", false),
            over: 10_300,
            also: None,
        },
        Case {
            what: "orphan, a dead queue",
            problem: Orphan,
            before: |play| {
                assert!(play.take("a", one(), 20_000));
                play.queues_until("a", two(), play.clock() + 25_000);
                play.until(25_000);
            },
            fault: NOTHING,
            found: |_| always(60_000..=95_000),
            watched: 120_000,
            remedy: |play| assert!(play.take("a", holder(3), 600_000)),
            over: 31_000,
            also: None,
        },
        Case {
            what: "orphan, markers of readers",
            problem: Orphan,
            before: |play| {
                play.readers("a", &[one(), two()], 600_000);
                play.until(20_000);
            },
            fault: |play| play.deleted("a"),
            found: |_| always(60_000..=101_000),
            watched: 120_000,
            remedy: |play| play.markers_end("a"),
            over: 31_000,
            also: None,
        },
    ]
}

#[test]
fn each_problem_is_found_by_whatever_can_see_it_and_ends() {
    let mut soon: BTreeMap<&str, Vec<(Certainty, u64)>> = BTreeMap::new();
    for case in cases() {
        for seeing in Seeing::every() {
            let what = format!("{} by {seeing:?}", case.what);
            let mut play = Play::new(seeing);
            (case.before)(&mut play);
            let begun = play.now;
            (case.fault)(&mut play);
            play.pass(case.watched);
            let of_it = |play: &Play| -> Vec<Turn> {
                play.turns().iter().filter(|turn| turn.problem == case.problem).copied().collect()
            };
            let turns = of_it(&play);
            let last = turns.last().and_then(|turn| turn.certainty);
            match (case.found)(seeing) {
                None => assert_eq!(turns, [], "{what}"),
                Some((certainty, delay)) => {
                    assert_eq!(last, Some(certainty), "{what}: {turns:?}");
                    let sure = turns.iter().find(|turn| turn.certainty == Some(certainty));
                    let after = sure.map(|turn| turn.ms.saturating_sub(begun)).unwrap_or_default();
                    assert!(delay.contains(&after), "{what}: after {after} ms: {turns:?}");
                    assert!(turns.iter().all(|turn| turn.certainty.is_some()), "{what}: {turns:?}");
                    soon.entry(case.what).or_default().push((certainty, after));
                }
            }
            let evidence = play.shown("a").map(|view| view.problems.clone()).unwrap_or_default();
            assert!(evidence.iter().all(|problem| !problem.evidence.is_empty()), "{what}");
            (case.remedy)(&mut play);
            play.pass(case.over);
            let turns = of_it(&play);
            let over = turns.last().is_none_or(|turn| turn.certainty.is_none());
            assert!(over, "{what}: it is not over: {turns:?}");
            let other =
                |turn: &&Turn| turn.problem != case.problem && Some(turn.problem) != case.also;
            assert_eq!(play.turns().iter().find(other), None, "{what}");
        }
    }
    for (what, found) in soon {
        for certainty in [SURE, SUSPECTED] {
            let ms: Vec<u64> =
                found.iter().filter(|(how, _)| *how == certainty).map(|(_, ms)| *ms).collect();
            let (Some(first), Some(last)) = (ms.iter().min(), ms.iter().max()) else { continue };
            println!("{what}: {} after {first} to {last} ms", certainty.as_str());
        }
    }
}

/// Of twenty-five holds of a second none prepares for one of eleven minutes.
#[test]
fn far_beyond_its_habit_is_found_where_its_habit_is_seen() {
    for seeing in Seeing::every().filter(|seeing| seeing.channels && seeing.monitor) {
        let mut play = Play::new(seeing);
        for _ in 0..25 {
            play.take_and_renew("a", one());
            play.pass(1_000);
            assert!(play.release("a", one(), true));
            play.pass(1_000);
        }
        play.take_and_renew("a", one());
        let begun = play.now;
        play.pass(58_000);
        assert_eq!(play.turns(), [], "{seeing:?}");
        play.pass(12_000);
        let [turn] = play.turns() else { panic!("{seeing:?}: {:?}", play.turns()) };
        assert_eq!((turn.problem, turn.certainty), (ProblemKind::Stuck, Some(SURE)), "{seeing:?}");
        assert!((60_000..=66_000).contains(&(turn.ms - begun)), "{seeing:?}: {turn:?}");
    }
}
