//! Tests of locks from their discovery to their eviction.

use redisson::monitor;

use super::*;
use crate::query::list::Rows;
use crate::query::locks::LockRow;
use crate::query::{Filter, Order, Query, Threads};

#[test]
fn acquisition_renewal_and_release_are_observed() {
    let mut model = model();
    read(&mut model, "a", 1_000, held(1, 1, renewed_ttl(1_000)));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.state, view.confirmed), (State::Held, true));
    assert_eq!(view.last_reading().1, Some(29_000));
    assert!(!view.holders[0].since.exact, "it was so when first read");
    for ms in (6_000..60_000).step_by(5_000) {
        read(&mut model, "a", ms, held(1, 1, renewed_ttl(ms)));
    }
    let view = shown(&mut model, "a").unwrap();
    assert!(view.renewed && (25_000..=30_000).contains(&view.lease_ms.unwrap()), "{view:?}");
    // Each renewal is recorded once, between the reading before it and the one that shows it.
    let renewals = view.renewals.as_ref().unwrap();
    assert_eq!(renewals.count(), 5);
    for (renewed, ms) in renewals.latest().zip((10_000_u64..).step_by(10_000)) {
        assert!(stamp(ms).steady().0.abs_diff(renewed.0) <= 1_000, "{renewals:?}");
    }
    release(&mut model, "a", 61_000);
    read(&mut model, "a", 61_002, absent());
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.state, view.expires_at), (State::Free, None));
    assert_eq!(words(&view), ["taken", "renewed", "released"]);
    read(&mut model, "a", 61_500, held(2, 1, Some(29_900)));
    let view = shown(&mut model, "a").unwrap();
    assert!(view.holders[0].since.exact, "it was known to be free half a second before");
    assert_eq!(view.renewals, None, "they were of another hold");
}

#[test]
fn a_lock_with_a_watchdog_is_read_less_often_but_before_the_second_renewal() {
    // The renewals of a watchdog, and acquisitions by one thread that no message shows.
    for (period, longest) in [(10_000, 7_500), (4_800, 5_000), (8_000, 5_000)] {
        let mut model = model();
        let (mut ms, mut reads) = (1_000, Vec::new());
        while ms < 120_000 {
            let ttl = period - ms % period + 30_000 - period;
            read(&mut model, "a", ms, held(1, 1, Some(ttl)));
            reads.push(ms);
            let due = model.scopes[0].locks.get(&name("a")).unwrap().record.next_read();
            ms = due.as_micros().div_ceil(1_000);
        }
        let late = reads.windows(2).map(|pair| pair[1] - pair[0]).skip(reads.len() / 2);
        let gaps: Vec<u64> = late.collect();
        let most = gaps.iter().max().unwrap();
        assert!(longest - 1_000 < *most && *most <= longest + 1, "{period}: {reads:?}");
    }
}

#[test]
fn an_acquisition_that_monitor_shows_is_an_event_of_that_instant() {
    let mut model = model();
    read(&mut model, "a", 1_000, absent());
    let acquired = monitor::Action::Acquired { lease: None };
    traffic(&mut model, 1_500, vec![event("a", 52, acquired)]);
    read(&mut model, "a", 1_800, held(1, 1, Some(29_700)));
    let view = shown(&mut model, "a").unwrap();
    let taken = view.events.views().next().unwrap();
    assert_eq!((taken.event, taken.source), ("taken", "monitor"));
    assert_eq!(taken.at, view.holders[0].since.at);
}

#[test]
fn the_longest_leases_are_listed_last_by_time_to_live() {
    let mut model = model();
    read(&mut model, "forever", 1_000, held(1, 1, Some(1 << 62)));
    read(&mut model, "short", 1_000, held(1, 1, Some(30_000)));
    shown(&mut model, "forever");
    let page = |filter: &str, order: Order, cursor: Option<&str>| {
        let filter = (filter, Filter::parse(filter).unwrap());
        let query = Query::<LockRow>::new(filter, ("ttl", order), cursor, 1).unwrap();
        query.pick(&model.snapshot, stamp(1_000).steady(), Threads::One)
    };
    let name = |rows: &Rows<LockRow>| rows.rows[0].id.name.to_string();
    for (order, names) in
        [(Order::Ascending, ["short", "forever"]), (Order::Descending, ["forever", "short"])]
    {
        let first = page("", order, None);
        let second = page("", order, first.next.as_deref());
        assert_eq!([name(&first), name(&second)], names);
        assert_eq!(name(&page("ttl:>1h", order, None)), "forever");
    }
}

#[test]
fn a_problem_that_comes_and_goes_is_remembered_once() {
    let mut model = model();
    for n in 0..3 {
        let from = n * 100_000;
        read(&mut model, "a", from, held(1, 1, None));
        read(&mut model, "a", from + 60_000, held(1, 1, None));
        assert_eq!(shown(&mut model, "a").unwrap().problems.len(), 1);
        read_twice(&mut model, "a", from + 70_000, absent());
        model.take_effects();
    }
    shown(&mut model, "a");
    let [cleared] = &*model.snapshot.cleared else { panic!("{:?}", model.snapshot.cleared) };
    assert_eq!((cleared.problem, cleared.times), (ProblemKind::Leaked, 3));
    assert_eq!(cleared.at, stamp(270_000).steady());
}

#[test]
fn leases_that_run_out_are_counted_without_monitor() {
    let mut model = model();
    for n in 0..3 {
        let from = n * 20_000;
        read(&mut model, "a", from, held(1, 1, Some(3_000)));
        read(&mut model, "a", from + 2_900, held(1, 1, Some(100)));
        read(&mut model, "a", from + 3_050, absent());
    }
    let view = shown(&mut model, "a").unwrap();
    let hour_later = |ms: u64| SteadyMillis(ms + 3_600_000);
    assert_eq!(view.ran_out_within_an_hour(SteadyMillis(60_000)).map(|(n, _)| n), Some(3));
    assert_eq!(view.ran_out_within_an_hour(hour_later(10_000)).map(|(n, _)| n), Some(2));
    assert_eq!(view.ran_out_within_an_hour(hour_later(90_000)), None);
    assert!(!view.is_sometimes_released() && view.problems.is_empty());
    read(&mut model, "a", 80_000, held(1, 1, Some(3_000)));
    release(&mut model, "a", 81_000);
    read(&mut model, "a", 81_100, absent());
    assert!(shown(&mut model, "a").unwrap().is_sometimes_released());
    let effects = model.take_effects();
    let ended = |wanted: Ending| {
        let is =
            |effect: &Effect| matches!(effect, Effect::HoldEnded(ending, _) if *ending == wanted);
        effects.iter().filter(|(_, effect)| is(effect)).count()
    };
    assert_eq!((ended(Ending::Expired), ended(Ending::Released)), (3, 1));
}

#[test]
fn a_hold_that_a_scan_did_not_find_began_after_it() {
    let mut model = model();
    let scan = |model: &mut Model, lock: &str, ms: u64| {
        let (name, source, reading) = (name(lock), Source::Scan, held(1, 1, Some(30_000)));
        model.observe(MAIN, Observation::Read { name, stamp: stamp(ms), source, reading });
    };
    scan(&mut model, "a", 100);
    model.observe(
        MAIN,
        Observation::ScanEnded { started: at(50), ended: time(60), whole: true, skipped: 0 },
    );
    scan(&mut model, "b", 900);
    scan(&mut model, "c", 5_000);
    let mut exact = |lock: &str| shown(&mut model, lock).unwrap().holders[0].since.exact;
    assert_eq!([exact("a"), exact("b"), exact("c")], [false, true, false]);
}

#[test]
fn a_possible_lock_is_suspected_to_be_leaked_until_it_is_confirmed() {
    let mut model = model();
    read(&mut model, "cart", 0, held(1, 3, None));
    read(&mut model, "cart", 4_000, held(1, 3, None));
    let view = shown(&mut model, "cart").unwrap();
    assert!(!view.confirmed && !view.is_listed() && view.problems.is_empty());
    read(&mut model, "cart", 60_000, held(1, 3, None));
    let view = shown(&mut model, "cart").unwrap();
    let [leaked] = &view.problems[..] else { panic!("{view:?}") };
    assert!(!view.confirmed && view.is_listed());
    assert_eq!((leaked.problem, leaked.certainty), (ProblemKind::Leaked, Certainty::Suspected));
    release(&mut model, "cart", 61_000);
    read(&mut model, "cart", 62_000, held(1, 3, None));
    let view = shown(&mut model, "cart").unwrap();
    assert!(view.confirmed && view.problems.iter().all(|p| p.certainty == Certainty::Certain));
    read(&mut model, "other", 0, held(1, 3, None));
    model.observe(MAIN, Observation::CompanionKey { name: name("other") });
    assert!(shown(&mut model, "other").unwrap().confirmed);
    read(&mut model, "gone", 0, held(1, 3, None));
    assert!(shown(&mut model, "gone").is_some());
    read(&mut model, "gone", 1, absent());
    assert!(shown(&mut model, "gone").is_none(), "an unconfirmed one is not retained");
}

#[test]
fn a_leak_is_found_and_cleared() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    read(&mut model, "a", 2_000, held(1, 1, None));
    assert!(shown(&mut model, "a").unwrap().problems.is_empty());
    read(&mut model, "a", 8_000, held(1, 1, None));
    let view = shown(&mut model, "a").unwrap();
    let problem = &view.problems[0];
    assert_eq!((problem.problem, problem.certainty), (ProblemKind::Leaked, Certainty::Certain));
    assert_eq!(problem.since, SteadyMillis(2_001));
    read(&mut model, "a", 9_000, held(1, 1, Some(30_000)));
    let view = shown(&mut model, "a").unwrap();
    assert!(view.problems.is_empty());
    assert_eq!(words(&view), ["taken", "problem", "cleared"]);
}

/// Renews one lock from 0 to `until`, and calls `what` at `when`.
fn renew(until: u64, when: u64, mut what: impl FnMut(&mut Model, u64)) -> Arc<LockView> {
    let mut model = model();
    for ms in (0..=until).step_by(5_000) {
        if ms == when {
            what(&mut model, ms);
        }
        read(&mut model, "a", ms, held(1, 1, renewed_ttl(ms)));
    }
    shown(&mut model, "a").unwrap()
}

#[test]
fn a_stuck_lock_is_renewed_for_long_without_any_change() {
    let stuck = |view: &LockView| view.problems.first().map(|p| (p.problem, p.certainty));
    assert_eq!(stuck(&renew(295_000, 0, |_, _| {})), None);
    let sure = Some((ProblemKind::Stuck, Certainty::Certain));
    assert_eq!(stuck(&renew(310_000, 0, |_, _| {})), sure);
    assert_eq!(stuck(&renew(310_000, 100_000, |m, ms| release(m, "a", ms - 1))), None);
    assert_eq!(stuck(&renew(310_000, 100_000, |m, ms| read(m, "a", ms - 2, absent()))), None);
    let recount = |m: &mut Model, ms: u64| read(m, "a", ms - 2, held(1, 2, Some(25_000)));
    assert_eq!(stuck(&renew(310_000, 100_000, recount)), None);
    let other = |m: &mut Model, ms: u64| read(m, "a", ms - 2, held(2, 1, Some(25_000)));
    assert_eq!(stuck(&renew(310_000, 100_000, other)), None);
    let unsubscribe =
        |m: &mut Model, ms| m.observe(MAIN, Observation::PubSubActive { on: false, at: at(ms) });
    let suspected = Some((ProblemKind::Stuck, Certainty::Suspected));
    assert_eq!(stuck(&renew(310_000, 0, unsubscribe)), suspected);
}

/// Reads the lock `a` with that holder and that many milliseconds left.
fn read_left(model: &mut Model, by: HolderId, ms: u64, left: u64) -> Arc<LockView> {
    let holders = vec![Holder { id: by, count: 1 }];
    let hash = LockHash { holders, ..LockHash::default() };
    let (ttl, companions) = (Some(Duration::from_millis(left)), Companions::default());
    read(model, "a", ms, Reading::Lock { hash, ttl, companions });
    shown(model, "a").unwrap()
}

/// Lets a holder renew the lock `a` every ten seconds until it is stuck, at 310 s.
fn renew_until_stuck(model: &mut Model, by: HolderId) {
    for ms in (0..=310_000).step_by(5_000) {
        read_left(model, by, ms, 30_000 - ms % 10_000);
    }
}

#[test]
fn a_stuck_lock_stays_stuck_when_it_is_renewed_early_or_a_clock_is_set() {
    // An agent's numbers identify a hold for good; a thread of Redisson may have acquired the lock again.
    let granted = HolderId::new(ClientId::from_random([1; 16]), 1_700_000_000 << 30);
    for (by, set_to, goes_on) in [
        (holder(1), &[30_000][..], true),
        (holder(1), &[30_000, 30_000, 30_000], false),
        (granted, &[30_000, 30_000, 30_000], true),
        (holder(1), &[24_000], true),
    ] {
        let mut model = model();
        renew_until_stuck(&mut model, by);
        let mut view = None;
        for (i, left) in (1..).zip(set_to) {
            read_left(&mut model, by, 310_000 + i * 3_000, 27_000);
            view = Some(read_left(&mut model, by, 310_010 + i * 3_000, *left));
        }
        let view = view.unwrap();
        let is_stuck = view.problems.iter().any(|it| it.problem == ProblemKind::Stuck);
        assert_eq!(is_stuck, goes_on, "{by} {set_to:?}");
        assert_eq!(words(&view).contains(&"cleared"), !goes_on, "{by} {set_to:?}");
    }
}

/// A fixed lease runs on where a watchdog would have renewed it; after a step of the clock of Redis the watchdog does.
#[test]
fn a_stuck_lock_is_stuck_until_a_longer_lease_has_outlasted_the_renewals() {
    let granted = HolderId::new(ClientId::from_random([1; 16]), 1_700_000_000 << 30);
    let stuck_until = |left: &dyn Fn(u64) -> u64| {
        let mut model = model();
        renew_until_stuck(&mut model, granted);
        let mut is_stuck = |ms: &u64| {
            let view = read_left(&mut model, granted, 310_000 + ms, left(*ms));
            view.problems.iter().any(|it| it.problem == ProblemKind::Stuck)
        };
        (1_000..60_000).step_by(3_000).find(|ms| !is_stuck(ms))
    };
    for set_back in [5_000, 12_000, 60_000] {
        let left = |ms| if ms < 10_000 { 30_000 + set_back - ms } else { 30_000 - ms % 10_000 };
        assert_eq!(stuck_until(&left), None, "{set_back}");
    }
    assert_eq!(stuck_until(&|ms| 3_600_000 - ms), Some(34_000));
}

#[test]
fn a_busy_lock_of_one_thread_is_not_a_problem_even_without_release_messages() {
    let mut model = model();
    for ms in (0..900_000).step_by(5_000) {
        read(&mut model, "a", ms, held(1, 1, Some(29_990)));
    }
    let view = shown(&mut model, "a").unwrap();
    assert!(view.problems.is_empty() && !view.renewed);
}

#[test]
fn settings_may_expect_long_holds() {
    let rule = LockRule {
        pattern: b"leader:*".to_vec(),
        rule: Rule { stuck_after: None, starving_after: None }.into(),
    };
    let mut model = model_with(Settings { rules: vec![rule], ..settings() });
    for ms in (0..=900_000).step_by(5_000) {
        read(&mut model, "leader:x", ms, held(1, 1, renewed_ttl(ms)));
        read(&mut model, "other", ms, held(1, 1, renewed_ttl(ms)));
    }
    assert!(shown(&mut model, "leader:x").unwrap().problems.is_empty());
    assert!(!shown(&mut model, "other").unwrap().problems.is_empty());
}

/// Shows the lock `a` deleted by hand, as MONITOR does: without the result, so the key may not have existed.
fn deleted(model: &mut Model, ms: u64) {
    let mut delete = event("a", 52, monitor::Action::Removed);
    (delete.holder, delete.certainty) = (None, monitor::Certainty::Likely);
    traffic(model, ms, vec![delete]);
}

#[test]
fn a_deletion_of_a_key_that_had_expired_or_is_still_there_ends_no_hold() {
    let mut model = model();
    read(&mut model, "a", 1, held(1, 1, Some(4_000)));
    deleted(&mut model, 4_500);
    read_twice(&mut model, "a", 4_510, absent());
    let ended = |model: &mut Model| {
        let view = shown(model, "a").unwrap();
        view.history.past[0].ended.map(PastEnding::as_str)
    };
    assert_eq!(ended(&mut model), Some("vanished"));
    read(&mut model, "a", 5_000, held(1, 1, Some(30_000)));
    deleted(&mut model, 5_100);
    read(&mut model, "a", 5_200, held(1, 1, Some(29_800)));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.holders.len(), view.history.past.len()), (1, 1));
}

#[test]
fn a_removal_by_hand_ends_the_hold_of_that_holder_only_and_confirms_nothing() {
    let mut model = model();
    read(&mut model, "a", 1, held(1, 1, None));
    assert!(!shown(&mut model, "a").unwrap().confirmed);
    deleted(&mut model, 100);
    assert!(!shown(&mut model, "a").unwrap().confirmed, "a key of any kind can be deleted");
    let mut other = event("a", 53, monitor::Action::Removed);
    other.certainty = monitor::Certainty::Likely;
    let mut model = self::model();
    read(&mut model, "a", 1, held(1, 1, Some(30_000)));
    traffic(&mut model, 100, vec![other]);
    read_twice(&mut model, "a", 110, absent());
    assert_eq!(
        shown(&mut model, "a").unwrap().history.past[0].ended.map(PastEnding::as_str),
        Some("vanished")
    );
    // A key of that name is no lock that anyone has seen.
    let mut model = self::model();
    deleted(&mut model, 100);
    assert!(shown(&mut model, "a").is_none());
}

#[test]
fn a_forced_release_that_finds_the_lock_free_does_not_hide_the_one_before() {
    let mut model = model();
    read(&mut model, "a", 1, held(1, 1, Some(30_000)));
    let force = |model: &mut Model, holders: Vec<HolderId>, ms: u64| {
        model.observe(MAIN, Observation::ForceRelease { name: name("a"), holders, at: at(ms) });
    };
    force(&mut model, vec![holder(1)], 4_900);
    force(&mut model, vec![holder(1)], 4_901);
    force(&mut model, Vec::new(), 4_901);
    read_twice(&mut model, "a", 5_000, absent());
    assert_eq!(
        shown(&mut model, "a").unwrap().history.past[0].ended.map(PastEnding::as_str),
        Some("forced")
    );
}

#[test]
fn no_event_says_that_a_holder_released_what_an_operator_released_by_force() {
    let forced = |model: &mut Model| {
        let holders = vec![holder(1)];
        model.observe(MAIN, Observation::ForceRelease { name: name("a"), holders, at: at(4_900) });
    };
    let ends: [fn(&mut Model); 8] = [
        |model| release(model, "a", 5_000),
        |model| read_twice(model, "a", 5_000, absent()),
        |model| read_twice(model, "a", 5_000, held(2, 1, Some(30_000))),
        // MONITOR shows a forced release that another program made.
        |model| {
            traffic(model, 5_000, vec![event("a", 52, monitor::Action::ForceReleased)]);
        },
        // The release message, and even a reading, may arrive before MONITOR's line.
        |model| {
            release(model, "a", 5_000);
            traffic(model, 5_010, vec![event("a", 52, monitor::Action::ForceReleased)]);
        },
        |model| {
            release(model, "a", 5_000);
            read(model, "a", 5_005, absent());
            traffic(model, 5_010, vec![event("a", 52, monitor::Action::ForceReleased)]);
        },
        // MONITOR shows a deletion by hand, which sends no message. The lock may have a new holder at once.
        |model| {
            deleted(model, 5_000);
            read_twice(model, "a", 5_010, absent());
        },
        |model| {
            deleted(model, 5_000);
            read_twice(model, "a", 5_010, held(2, 1, Some(30_000)));
        },
    ];
    for (i, end) in ends.iter().enumerate() {
        let mut model = model();
        read(&mut model, "a", 1, held(1, 1, Some(30_000)));
        if i < 3 {
            forced(&mut model);
        }
        end(&mut model);
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("forced"), "{i}");
        let ends: Vec<String> = view
            .events
            .newest_first()
            .filter(|(what, _)| what.ending().is_some())
            .map(|(_, event)| format!("{} {}", event.event, event.text))
            .collect();
        let lost = format!("released lost by {}: it was released by force", holder(1));
        assert_eq!(ends, [lost], "{i}");
    }
}

#[test]
fn the_hold_after_a_forced_release_is_not_forced_although_its_holder_is_the_same() {
    let ends: [fn(&mut Model); 2] = [
        |model| {
            let (name, holders) = (name("a"), vec![holder(1)]);
            model.observe(MAIN, Observation::ForceRelease { name, holders, at: at(4_900) });
            release(model, "a", 5_000);
        },
        |model| {
            deleted(model, 5_000);
            read_twice(model, "a", 5_010, held(2, 1, Some(30_000)));
            release(model, "a", 5_400);
        },
    ];
    for (i, end) in ends.iter().enumerate() {
        let mut model = model();
        read(&mut model, "a", 1, held(1, 1, Some(30_000)));
        end(&mut model);
        read(&mut model, "a", 5_410, held(1, 1, Some(30_000)));
        release(&mut model, "a", 7_000);
        let view = shown(&mut model, "a").unwrap();
        let of_holder = view.history.past.iter().filter(|past| *past.id == holder(1).to_string());
        let ended: Vec<_> = of_holder.map(|past| past.ended.map(PastEnding::as_str)).collect();
        assert_eq!(ended, [Some("released"), Some("forced")], "{i}");
    }
}

#[test]
fn locks_beyond_the_limit_are_counted() {
    let mut model = model_with(Settings { max_locks: 10, ..settings() });
    let mut scan = || {
        model.observe(MAIN, Observation::ScanBegan);
        for i in 0..25 {
            let (name, source) = (name(&format!("lock:{i}")), Source::Scan);
            let reading = held(1, 1, Some(30_000));
            model.observe(MAIN, Observation::Read { name, stamp: stamp(i), source, reading });
        }
    };
    scan();
    // That scan was aborted. Messages about locks without room are not counted.
    scan();
    (0..9).for_each(|_| release(&mut model, "lock:24", 30));
    model.observe(
        MAIN,
        Observation::ScanEnded { started: at(0), ended: time(1), whole: true, skipped: 0 },
    );
    let (snapshot, delta) = model.publish(SteadyMillis(0)).unwrap();
    assert_eq!((snapshot.len(), snapshot.not_kept, delta.changed.len()), (10, 15, 10));
    assert!(snapshot.complete);
    release(&mut model, "lock:0", 100);
    read(&mut model, "lock:0", 101, absent());
    read(&mut model, "lock:20", 102, held(1, 1, Some(30_000)));
    assert!(shown(&mut model, "lock:20").is_some(), "a free one gives way");
    assert!(shown(&mut model, "lock:0").is_none());
}

#[test]
fn possible_locks_beyond_their_limit_are_counted_and_confirmed_ones_take_their_room() {
    let mut model = model_with(Settings { max_locks: 12, ..settings() });
    let scan = |model: &mut Model, lock: &str, ms: u64, ttl: Option<u64>| {
        let (name, source, reading) = (name(lock), Source::Scan, held(1, 1, ttl));
        model.observe(MAIN, Observation::Read { name, stamp: stamp(ms), source, reading });
    };
    (0..25).for_each(|i| scan(&mut model, &format!("cart:{i:02}"), i, None));
    let ended =
        Observation::ScanEnded { started: at(0), ended: time(1), whole: true, skipped: 1_000 };
    model.observe(MAIN, ended);
    let (snapshot, _) = model.publish(SteadyMillis(0)).unwrap();
    assert_eq!((snapshot.len(), snapshot.not_kept, snapshot.possible_not_kept), (3, 0, 1_022));
    scan(&mut model, "late", 100, Some(30_000));
    assert!(!shown(&mut model, "late").unwrap().holders[0].since.exact, "it may have been skipped");
    read(&mut model, "asked", 101, held(1, 1, None));
    assert!(shown(&mut model, "asked").is_some(), "one that was pointed out");
    (0..11).for_each(|i| scan(&mut model, &format!("lock:{i}"), 200 + i, Some(30_000)));
    let (snapshot, _) = model.publish(SteadyMillis(0)).unwrap();
    assert_eq!((snapshot.len(), snapshot.not_kept), (12, 0));
    assert!(snapshot.locks().all(|lock| lock.confirmed));
    // A possible lock that is confirmed makes room for another one.
    let mut model = model_with(Settings { max_locks: 12, ..settings() });
    (0..3).for_each(|i| scan(&mut model, &format!("cart:{i}"), i, None));
    release(&mut model, "cart:0", 10);
    scan(&mut model, "cart:3", 11, None);
    assert!(shown(&mut model, "cart:3").is_some());
}

#[test]
fn ignored_names_are_not_retained() {
    let mut model = model_with(Settings { ignore: vec![b"cart:*".to_vec()], ..settings() });
    read(&mut model, "cart:1", 0, held(1, 1, Some(30_000)));
    release(&mut model, "cart:2", 0);
    assert!(shown(&mut model, "cart:1").is_none() && shown(&mut model, "cart:2").is_none());
}

#[test]
fn a_queue_does_not_prove_a_second_lock_with_a_name_in_braces() {
    let mut model = model();
    let waited = || Reading::Absent { companions: queued(&[(9, 99_000)]) };
    // Between two holders the key does not exist, and both names share the queue's key.
    read(&mut model, "printer", 0, held(1, 1, Some(30_000)));
    read(&mut model, "printer", 100, waited());
    read(&mut model, "{printer}", 110, waited());
    assert!(shown(&mut model, "printer").is_some());
    assert!(shown(&mut model, "{printer}").is_none(), "the same queue");
    // Without another known lock, a queue is reported under the name that was read. A hash is always reported.
    read(&mut model, "{alone}", 200, waited());
    assert!(shown(&mut model, "{alone}").is_some());
    read(&mut model, "{printer}", 300, held(2, 1, Some(30_000)));
    assert!(shown(&mut model, "{printer}").is_some(), "a lock of its own");
}

#[test]
fn free_locks_are_dropped_eventually() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    read_twice(&mut model, "a", 1_000, absent());
    model.tick(at(300_000));
    assert_eq!(shown(&mut model, "a").unwrap().state, State::Free);
    model.tick(at(700_000));
    let (_, delta) = model.publish(SteadyMillis(0)).unwrap();
    assert_eq!(delta.removed, [model.scopes[0].id(&name("a"))]);
    assert!(shown(&mut model, "a").is_none());
    for i in 0..MAX_FREE + 50 {
        release(&mut model, &format!("x:{i}"), 700_000 + i as u64);
    }
    assert!(model.scopes[0].locks.len() <= MAX_FREE.min(model.settings.max_locks));
}

#[test]
fn free_locks_with_problems_are_retained_however_many_others_become_free() {
    let mut model = model();
    let remains = || Reading::Absent { companions: queued(&[(1, 500)]) };
    for ms in [1_000, 62_000] {
        (0..150).for_each(|i| read(&mut model, &format!("a:{i}"), ms, remains()));
    }
    // A second reading will show that this one is an orphan, too.
    read(&mut model, "b", 62_500, remains());
    for i in 0..MAX_FREE + 50 {
        release(&mut model, &format!("x:{i}"), 63_000 + i as u64);
    }
    for i in 0..150 {
        let view = shown(&mut model, &format!("a:{i}")).unwrap();
        assert_eq!(view.problems[0].problem, ProblemKind::Orphan);
    }
    assert!(shown(&mut model, "b").is_some());
    assert!(model.scopes[0].locks.len() <= MAX_FREE.min(model.settings.max_locks));
}

#[test]
fn readings_without_changes_publish_no_view_except_for_open_pages() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    let (_, delta) = model.publish(SteadyMillis(0)).unwrap();
    let view = Arc::clone(&delta.changed[0]);
    read(&mut model, "a", 9_000, held(1, 1, Some(21_000)));
    assert!(model.publish(SteadyMillis(0)).is_none());
    assert_eq!(view.last_reading(), (SteadyMillis(9_001), Some(21_000)), "the view has aged");
    model.set_viewed(MAIN, [name("a")]);
    read(&mut model, "a", 10_000, held(1, 1, Some(20_000)));
    assert!(model.publish(SteadyMillis(0)).is_none());
    read(&mut model, "a", 11_000, held(1, 1, Some(19_000)));
    let (_, delta) = model.publish(SteadyMillis(0)).unwrap();
    assert_eq!(delta.changed[0].last_reading(), (SteadyMillis(11_001), Some(19_000)));
    model.set_viewed(MAIN, []);
    read(&mut model, "a", 11_500, held(1, 1, Some(30_000)));
    assert!(model.publish(SteadyMillis(0)).is_some(), "a renewal is new");
    read(&mut model, "a", 12_500, held(1, 1, Some(29_000)));
    assert!(model.publish(SteadyMillis(0)).is_none());
    let agents = vec![(holder(7).client, Presence::Present)];
    let report = AgentReport { agents, holders: Vec::new(), at: time(13_000) };
    model.observe(MAIN, Observation::AgentReport(report));
    read(&mut model, "a", 13_500, held(1, 1, Some(28_000)));
    assert!(model.publish(SteadyMillis(0)).is_some(), "its holder may be that agent's");
}

#[test]
fn a_release_that_is_reported_late_restarts_the_age() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    read(&mut model, "a", 5_000, held(1, 1, Some(29_500)));
    release(&mut model, "a", 4_500);
    let view = shown(&mut model, "a").unwrap();
    let since = view.holders[0].since;
    assert_eq!((since.at, since.exact), (SteadyMillis(4_500), true));
}

#[test]
fn a_lock_that_was_never_read_is_as_old_as_the_message_about_it() {
    let mut model = model();
    release(&mut model, "a", 5_000);
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.state, view.observed_at()), (State::Unknown, SteadyMillis(5_000)));
}
