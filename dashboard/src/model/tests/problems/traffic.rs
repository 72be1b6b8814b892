//! Problems that only MONITOR shows.

use redisson::monitor;

use super::*;

#[test]
fn monitor_names_waiters_until_they_stop_retrying() {
    use monitor::Action::{Acquired, Refused};
    let mut model = model();
    let tries = |ms, by, model: &mut Model| traffic(model, ms, vec![event("a", by, Refused)]);
    read(&mut model, "a", 0, held(1, 1, Some(10_000)));
    let waiters = |model: &mut Model| -> Vec<i64> {
        let view = shown(model, "a").unwrap();
        assert_eq!(view.waiting, view.waiters.len() as u64);
        view.waiters.iter().map(|w| w.id.rsplit(':').next().unwrap().parse().unwrap()).collect()
    };
    tries(1_000, 7, &mut model);
    assert!(waiters(&mut model).is_empty(), "it may only have tried");
    tries(1_001, 7, &mut model);
    tries(2_000, 8, &mut model);
    tries(2_001, 8, &mut model);
    assert_eq!(waiters(&mut model), [7, 8]);
    traffic(&mut model, 3_000, vec![event("a", 8, Acquired { lease: None })]);
    assert_eq!(waiters(&mut model), [7]);
    read(&mut model, "a", 14_000, held(1, 1, Some(10_000)));
    assert_eq!(waiters(&mut model), [7], "it was refused with a TTL of 9 s, and has 5 s more");
    read(&mut model, "a", 15_500, held(1, 1, Some(10_000)));
    assert!(waiters(&mut model).is_empty());
    tries(16_000, 7, &mut model);
    tries(16_001, 7, &mut model);
    model.observe(MAIN, Observation::MonitorActive { on: false });
    assert!(waiters(&mut model).is_empty(), "without MONITOR waiters are unknown");
}

#[test]
fn monitor_shows_locks_renewals_and_releases_that_no_other_source_shows() {
    use monitor::Action::{Released, Renewed};
    let mut model = model();
    let lease = Some(Duration::from_secs(30));
    traffic(&mut model, 0, vec![event("new", 52, Renewed { lease })]);
    assert_eq!(model.due(MAIN, at(100), 10)[0].name, name("new"), "it is read at once");
    read(&mut model, "a", 0, held(1, 1, Some(29_000)));
    traffic(&mut model, 9_000, vec![event("a", 52, Renewed { lease })]);
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.renewed, view.lease_ms), (true, Some(30_000)));
    // A lock of one thread that is released and acquired again without a message is not one long hold.
    for ms in (10_000..700_000).step_by(5_000) {
        traffic(&mut model, ms - 1, vec![event("a", 52, Released)]);
        read(&mut model, "a", ms, held(1, 1, Some(30_000)));
    }
    let view = shown(&mut model, "a").unwrap();
    assert!(
        view.problems.is_empty()
            && view.history.past.iter().all(|past| past.ended == Some("released"))
    );
    // MONITOR and the message report the same release.
    let events = view.events.views().len();
    traffic(&mut model, 701_000, vec![event("a", 52, Released)]);
    release(&mut model, "a", 701_002);
    read(&mut model, "a", 701_003, absent());
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(
        (view.events.views().len().min(events), words(&view).last()),
        (events, Some(&"released"))
    );
    assert_eq!(view.events.views().filter(|event| event.at.0 >= 701_000).count(), 1);
}

#[test]
fn a_holder_that_returns_too_late_has_certainly_lost_its_lock() {
    use monitor::Action::{ReleaseFoundNothing, Released};
    let late = |steps: &[(u64, Step)], freed: bool| {
        let mut model = model();
        for (ms, then) in steps {
            apply(&mut model, *ms, then);
        }
        if freed {
            traffic(&mut model, 49_500, vec![event("a", 52, Released)]);
        }
        read(&mut model, "a", 50_020, absent());
        traffic(&mut model, 55_000, vec![event("a", 52, ReleaseFoundNothing)]);
        problems(&shown(&mut model, "a").unwrap())
    };
    assert_eq!(late(&running_out(), false), [(ProblemKind::Expired, CERTAIN)]);
    assert_eq!(late(&running_out(), true), [], "it had released it before, and did so once more");
    // A lease shorter than the work: never renewed, and unlocked too late.
    let fixed: Vec<_> =
        (20_000..50_000).step_by(5_000).map(|ms| (ms, Step::Held(1, Some(50_000 - ms)))).collect();
    assert_eq!(late(&fixed, false), [(ProblemKind::Expired, CERTAIN)]);
    // So little later that the clocks cannot show it.
    let mut model = model();
    fixed.iter().for_each(|(ms, then)| apply(&mut model, *ms, then));
    read(&mut model, "a", 50_020, absent());
    traffic(&mut model, 50_200, vec![event("a", 52, ReleaseFoundNothing)]);
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), []);
    // A client that never held it has lost nothing.
    assert_eq!(late(&[(1_000, Step::Held(2, Some(9_000)))], false), []);
}

#[test]
fn a_hold_that_is_handed_over_ends_and_another_begins() {
    let mut model = model();
    let mine = |n: i64| HolderId::new(ClientId::from_random([1; 16]), n);
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    let what = monitor::Action::HandedOver { to: mine(99), lease: Some(Duration::from_secs(30)) };
    traffic(&mut model, 5_000, vec![event("a", 52, what)]);
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(view.history.past[0].ended, Some("handed_over"));
    assert_eq!(
        (view.holders[0].id.to_string(), view.holders[0].since.at.0),
        (mine(99).to_string(), 5_000)
    );
}
