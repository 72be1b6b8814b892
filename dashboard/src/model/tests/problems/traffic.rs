//! Tests of problems that only MONITOR shows.

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
fn a_wait_has_an_exact_beginning_only_if_monitor_would_have_shown_an_earlier_attempt() {
    let mut model = model();
    let is_exact = |model: &mut Model, ms, by| {
        read(model, "a", ms - 1_000, held(1, 1, Some(10_000)));
        (0..2_u64).for_each(|i| {
            traffic(model, ms + i, vec![event("a", by, monitor::Action::Refused)]);
        });
        let view = shown(model, "a").unwrap();
        let waiter = view.waiters.iter().find(|waiter| waiter.id.ends_with(&format!(":{by}")));
        waiter.unwrap().since.exact
    };
    model.tick(at(1_000));
    model.observe(MAIN, Observation::MonitorActive { on: true });
    // The waiter may have slept since before, for at most the time to live.
    assert!(!is_exact(&mut model, 3_000, 7));
    assert!(is_exact(&mut model, 30_000, 8));
    let events = Vec::new();
    model.observe(MAIN, Observation::Traffic(Traffic { events, at: time(31_000), missed: 1 }));
    assert!(!is_exact(&mut model, 33_000, 9));
    model.observe(MAIN, Observation::MonitorActive { on: false });
    model.tick(at(60_000));
    model.observe(MAIN, Observation::MonitorActive { on: true });
    assert!(!is_exact(&mut model, 63_000, 10));
    assert!(is_exact(&mut model, 90_000, 11));
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
    // Holds of one thread that releases and acquires the lock again without a message are not one long hold.
    for ms in (10_000..700_000).step_by(5_000) {
        traffic(&mut model, ms - 1, vec![event("a", 52, Released)]);
        read(&mut model, "a", ms, held(1, 1, Some(30_000)));
    }
    let view = shown(&mut model, "a").unwrap();
    assert!(
        view.problems.is_empty()
            && view
                .history
                .past
                .iter()
                .all(|past| past.ended == Some(PastEnding::Seen(Ending::Released)))
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
    // The lease is shorter than the work: the lock is never renewed, and is released too late.
    let fixed: Vec<_> =
        (20_000..50_000).step_by(5_000).map(|ms| (ms, Step::Held(1, Some(50_000 - ms)))).collect();
    assert_eq!(late(&fixed, false), [(ProblemKind::Expired, CERTAIN)]);
    // The delay is so short that the clocks cannot show it.
    let mut model = model();
    fixed.iter().for_each(|(ms, then)| apply(&mut model, *ms, then));
    read(&mut model, "a", 50_020, absent());
    traffic(&mut model, 50_200, vec![event("a", 52, ReleaseFoundNothing)]);
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), []);
    // A client that never held it has lost nothing.
    assert_eq!(late(&[(1_000, Step::Held(2, Some(9_000)))], false), []);
}

#[test]
fn each_hold_that_expires_within_an_hour_counts_once() {
    let mut model = model();
    for (turn, by) in [(1, 1), (2, 2), (3, 2)] {
        let began = u64::from(turn) * 100_000;
        for (ms, step) in running_out() {
            let Step::Held(_, ttl) = step else { panic!("{step:?}") };
            apply(&mut model, began + ms, &Step::Held(by, ttl));
        }
        read(&mut model, "a", began + 50_020, absent());
        let one = |model: &mut Model| {
            let view = shown(model, "a").unwrap();
            let [problem] = &*view.problems else { panic!("{:?}", view.problems) };
            assert_eq!((problem.problem, problem.times), (ProblemKind::Expired, turn));
            assert_eq!(problem.since, SteadyMillis(150_021));
            problem.clone()
        };
        assert_eq!(one(&mut model).certainty, SUSPECTED);
        let mut late = event("a", 52, monitor::Action::ReleaseFoundNothing);
        late.holder = Some(holder(by));
        traffic(&mut model, began + 55_000, vec![late]);
        let problem = one(&mut model);
        assert_eq!(problem.certainty, CERTAIN);
        let latest = &problem.evidence.last().unwrap().text;
        assert!(latest.starts_with(&holder(by).to_string()), "{latest}");
        assert_eq!(problem.evidence[0].text.contains("the first of"), turn > 1, "{problem:?}");
        assert_eq!(counted(&mut model, ProblemKind::Expired), 1, "hold {turn}");
    }
}

fn acknowledge(model: &mut Model, problem: ProblemKind, ms: u64) {
    let word = Acknowledgement {
        by: "anna".into(),
        reason: "known".into(),
        at: SteadyMillis(ms),
        until: SteadyMillis(100_000_000),
    };
    let action = OperatorAction {
        at: SteadyMillis(ms),
        who: "anna".into(),
        from: [127, 0, 0, 1].into(),
        what: "acknowledged",
        subject: problem.as_str().into(),
        reason: "known".into(),
        was: "open".into(),
        outcome: "acknowledged".into(),
    };
    let (acknowledgement, action) = (Some(word.into()), Box::new(action));
    let name = name("a");
    model.observe(MAIN, Observation::Acknowledged { name, problem, acknowledgement, action });
}

/// Returns the certainty of the only problem of `a`, and whether it is acknowledged.
fn found(model: &mut Model) -> (Certainty, bool) {
    let view = shown(model, "a").unwrap();
    let [problem] = &*view.problems else { panic!("{:?}", view.problems) };
    (problem.certainty, problem.acknowledged.is_some())
}

#[test]
fn an_acknowledgement_of_a_suspected_problem_ends_when_it_becomes_certain() {
    let mut model = model();
    running_out().iter().for_each(|(ms, then)| apply(&mut model, *ms, then));
    read(&mut model, "a", 50_020, absent());
    acknowledge(&mut model, ProblemKind::Expired, 51_000);
    assert_eq!(found(&mut model), (SUSPECTED, true));
    let late = || vec![event("a", 52, monitor::Action::ReleaseFoundNothing)];
    traffic(&mut model, 55_000, late());
    assert_eq!(found(&mut model), (CERTAIN, false));
    let ended = |entry: &ArchiveEntry| {
        matches!(entry, ArchiveEntry::Unacknowledged(_, ProblemKind::Expired, _))
    };
    assert_eq!(archived(&mut model).iter().filter(|entry| ended(entry)).count(), 1);
    acknowledge(&mut model, ProblemKind::Expired, 56_000);
    traffic(&mut model, 57_000, late());
    assert_eq!(found(&mut model), (CERTAIN, true));
}

#[test]
fn an_acknowledgement_of_starving_goes_on_when_monitor_shows_the_waiter() {
    let mut model = model();
    let step = |model: &mut Model, ms: u64| {
        apply(model, ms, &Step::Held(1, renewed_ttl(ms)));
        apply(model, ms + 1, &Step::Listening(1));
    };
    (0..=72_000).step_by(2_000).for_each(|ms| step(&mut model, ms));
    acknowledge(&mut model, ProblemKind::Starving, 72_500);
    assert_eq!(found(&mut model), (SUSPECTED, true));
    for ms in (74_000..=140_000).step_by(2_000) {
        traffic(&mut model, ms - 1, vec![event("a", 7, monitor::Action::Refused)]);
        step(&mut model, ms);
    }
    assert_eq!(found(&mut model), (CERTAIN, true));
    model.observe(MAIN, Observation::MonitorActive { on: false });
    step(&mut model, 142_000);
    assert_eq!(found(&mut model), (SUSPECTED, true));
}

#[test]
fn each_expiry_is_stored_in_the_history() {
    let mut model = model();
    for began in [100_000, 200_000] {
        for (ms, step) in running_out() {
            apply(&mut model, began + ms, &step);
        }
        read(&mut model, "a", began + 50_020, absent());
        let stored = archived(&mut model).into_iter().filter_map(|entry| match entry {
            ArchiveEntry::Problem(_, ProblemKind::Expired, _, at) => Some(at),
            _ => None,
        });
        assert_eq!(stored.collect::<Vec<_>>(), [SteadyMillis(began + 50_021)]);
    }
}

#[test]
fn a_holder_that_returns_to_a_deleted_lock_is_no_expiry_or_the_evidence_says_so() {
    use monitor::Action::{Removed, RenewalFoundNothing};
    let returns = |seen: bool| {
        let mut model = model();
        renewed().iter().for_each(|(ms, then)| apply(&mut model, *ms, then));
        if seen {
            let mut delete = event("a", 52, Removed);
            (delete.holder, delete.certainty) = (None, monitor::Certainty::Likely);
            traffic(&mut model, 27_000, vec![delete]);
        }
        read_twice(&mut model, "a", 27_010, absent());
        traffic(&mut model, 35_000, vec![event("a", 52, RenewalFoundNothing)]);
        shown(&mut model, "a").unwrap()
    };
    let view = returns(true);
    assert_eq!(
        (problems(&view), view.history.past[0].ended.map(PastEnding::as_str)),
        (vec![], Some("forced"))
    );
    let view = returns(false);
    assert_eq!(problems(&view), [(ProblemKind::Expired, CERTAIN)]);
    let evidence = &view.problems[0].evidence.last().unwrap().text;
    assert!(evidence.contains("before its lease expired: it was deleted"), "{evidence}");
    assert!(!view.problems[0].advice.contains("expiry"), "{}", view.problems[0].advice);
    // Someone has written something else to the key.
    let mut model = model();
    renewed().iter().for_each(|(ms, then)| apply(&mut model, *ms, then));
    read_twice(&mut model, "a", 27_010, Reading::Other("a string".to_owned()));
    traffic(&mut model, 35_000, vec![event("a", 52, RenewalFoundNothing)]);
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(problems(&view), [(ProblemKind::Expired, CERTAIN)]);
    let evidence = &view.problems[0].evidence.last().unwrap().text;
    assert!(evidence.ends_with("its key was overwritten, and is now a string"), "{evidence}");
}

#[test]
fn a_hold_that_is_handed_over_ends_and_another_begins() {
    let mut model = model();
    let mine = |n: i64| HolderId::new(ClientId::from_random([1; 16]), n);
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    let what = monitor::Action::HandedOver { to: mine(99), lease: Some(Duration::from_secs(30)) };
    traffic(&mut model, 5_000, vec![event("a", 52, what)]);
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("handed_over"));
    assert_eq!(
        (view.holders[0].id.to_string(), view.holders[0].since.at.0),
        (mine(99).to_string(), 5_000)
    );
    let texts: Vec<String> = view.events.views().map(|event| event.text).collect();
    assert_eq!(texts[1], format!("handed over by {}", holder(1)), "{texts:?}");
}

#[test]
fn a_client_that_unsubscribes_no_longer_waits() {
    use monitor::Action::{Acquired, Refused, Unsubscribed};
    let mut model = model();
    let thread = |n: u8| HolderId::new(ClientId::from_random([n; 16]), 52);
    let send = |model: &mut Model, ms, lock, by: u8, what, port: u16| {
        let mut event = event(lock, 52, what);
        event.holder = (what != Unsubscribed).then(|| thread(by));
        let ip = [10, 0, 0, by.min(3)];
        event.client = Some(monitor::Address::Tcp((ip, port).into()));
        traffic(model, ms, vec![event]);
    };
    let waits = |model: &mut Model, ms: u64, lock, by| {
        (0..2_u64).for_each(|i| send(model, ms + i, lock, by, Refused, 1_000));
    };
    let deadlocked = |model: &mut Model, ms| {
        model.tick(at(ms));
        problems(&shown(model, "a").unwrap())
    };
    let take = |model: &mut Model, lock, by| {
        send(model, 0, lock, by, Acquired { lease: None }, 1_000);
        read(model, lock, 0, held(by, 1, Some(30_000)));
    };
    take(&mut model, "a", 1);
    take(&mut model, "b", 2);
    // The thread waits for a second, gives up, and continues to hold its lock.
    waits(&mut model, 1_000, "b", 1);
    send(&mut model, 2_000, "b", 1, Unsubscribed, 2_000);
    waits(&mut model, 2_500, "a", 2);
    assert_eq!(deadlocked(&mut model, 3_000), []);
    let view = shown(&mut model, "b").unwrap();
    let wait = view.history.longest_wait.clone().unwrap();
    assert_eq!((view.waiting, wait.to.0 - wait.since.at.0, wait.granted), (0, 1_000, false));
    // With two clients at one address, it is unknown which of them unsubscribed.
    waits(&mut model, 4_000, "b", 1);
    waits(&mut model, 4_000, "a", 3);
    waits(&mut model, 4_000, "a", 4);
    send(&mut model, 5_000, "a", 4, Unsubscribed, 2_000);
    assert_eq!(shown(&mut model, "a").unwrap().waiting, 3);
    // The same is true if one of them holds the lock and only the other waits.
    send(&mut model, 5_500, "a", 3, Acquired { lease: None }, 1_000);
    send(&mut model, 5_501, "a", 3, Unsubscribed, 2_000);
    assert_eq!(shown(&mut model, "a").unwrap().waiting, 2);
    assert_eq!(deadlocked(&mut model, 6_100), [(ProblemKind::Deadlock, CERTAIN)]);
}

#[test]
fn a_wait_that_may_be_over_is_no_part_of_a_deadlock_until_it_is_seen_again() {
    use monitor::Action::Refused;
    let mut model = model();
    let waits = |model: &mut Model, ms: u64, lock, by| {
        let mut event = event(lock, 52, Refused);
        event.holder = Some(holder(by));
        (0..2_u64).for_each(|i| traffic(model, ms + i, vec![event.clone()]));
    };
    let count = |model: &mut Model, ms, counts: [u64; 2]| {
        let counts = vec![(name("a"), counts[0].into()), (name("b"), counts[1].into())];
        model.observe(MAIN, Observation::Subscribers { counts, at: time(ms) });
    };
    let deadlocked = |model: &mut Model, ms| {
        model.tick(at(ms));
        problems(&shown(model, "a").unwrap())
    };
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    read(&mut model, "b", 0, held(2, 1, Some(30_000)));
    // One waiter gives up just before the other begins to wait.
    waits(&mut model, 1_000, "b", 1);
    count(&mut model, 1_500, [0, 1]);
    waits(&mut model, 2_000, "a", 2);
    assert_eq!(deadlocked(&mut model, 2_100), []);
    count(&mut model, 2_500, [1, 0]);
    assert_eq!(deadlocked(&mut model, 2_600), []);
    count(&mut model, 4_500, [1, 0]);
    assert_eq!(deadlocked(&mut model, 9_000), []);
    // Both threads wait.
    waits(&mut model, 10_000, "b", 1);
    assert_eq!(deadlocked(&mut model, 10_100), []);
    count(&mut model, 10_500, [1, 1]);
    assert_eq!(deadlocked(&mut model, 10_600), [(ProblemKind::Deadlock, CERTAIN)]);
}

#[test]
fn attempts_now_and_then_are_no_wait_while_nobody_listens() {
    use monitor::Action::Refused;
    let mut model = model();
    let tries = |model: &mut Model, ms| traffic(model, ms, vec![event("a", 7, Refused)]);
    let count = |model: &mut Model, ms, count| {
        let counts = vec![(name("a"), SubscriberCount::from(count))];
        model.observe(MAIN, Observation::Subscribers { counts, at: time(ms) });
    };
    let waiting = |model: &mut Model| shown(model, "a").unwrap().waiters.len();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    // A candidate for leadership behaves like this.
    for ms in (1_000..120_000).step_by(5_000) {
        tries(&mut model, ms);
        read(&mut model, "a", ms + 1, held(1, 1, Some(30_000)));
        assert_eq!(waiting(&mut model), 0, "at {ms}");
    }
    // A spin lock behaves like this.
    for ms in (200_000..203_000).step_by(100) {
        tries(&mut model, ms);
        count(&mut model, ms, 0);
        assert_eq!(waiting(&mut model), usize::from(ms > 200_000), "at {ms}");
    }
    count(&mut model, 204_000, 0);
    assert_eq!(waiting(&mut model), 1);
    count(&mut model, 205_000, 0);
    assert_eq!(waiting(&mut model), 0);
    // A waiter that listens for the release behaves like this.
    tries(&mut model, 300_000);
    tries(&mut model, 300_020);
    for ms in (300_500..320_000).step_by(1_000) {
        count(&mut model, ms, 1);
        assert_eq!(waiting(&mut model), 1, "at {ms}");
    }
}

#[test]
fn a_writer_that_goes_on_reading_ends_only_its_write_side() {
    for monitored in [true, false] {
        let mut model = model();
        let both = |write: bool| HolderId { write, ..holder(1) };
        let side = |ids: &[HolderId], mode: &str| {
            let holders = ids.iter().map(|id| Holder { id: *id, count: 1 }).collect();
            let hash = LockHash { holders, mode: Some(mode.into()), ..LockHash::default() };
            let ttl = Some(Duration::from_secs(30));
            Reading::Lock { hash, ttl, companions: Companions::default() }
        };
        read(&mut model, "a", 0, side(&[both(true)], "write"));
        read(&mut model, "a", 1_000, side(&[both(true), both(false)], "write"));
        if monitored {
            let mut released = event("a", 52, monitor::Action::Released);
            (released.holder, released.kind) = (Some(both(true)), Some(redisson::Kind::Write));
            traffic(&mut model, 3_000, vec![released]);
        }
        read(&mut model, "a", 3_010, side(&[both(false)], "read"));
        let view = shown(&mut model, "a").unwrap();
        let past: Vec<_> = view
            .history
            .past
            .iter()
            .map(|past| (&*past.id, past.to, past.ended.map(PastEnding::as_str)))
            .collect();
        let end = SteadyMillis(if monitored { 3_000 } else { 3_011 });
        assert_eq!(past, [(&*both(true).to_string(), Some(end), Some("released"))]);
        assert_eq!((view.holders.len(), view.holders[0].since.at), (1, SteadyMillis(1_001)));
        assert_eq!(words(&view), ["taken", "taken", "released"]);
    }
}

#[test]
fn a_lease_that_is_set_once_by_a_generic_script_is_no_renewal() {
    let mut model = model();
    let lease = Some(Duration::from_secs(12));
    let mut set = event("a", 52, monitor::Action::Renewed { lease });
    set.certainty = monitor::Certainty::Likely;
    read(&mut model, "a", 0, held(1, 1, Some(6_000)));
    traffic(&mut model, 10, vec![set]);
    for ms in (1_000..12_000).step_by(1_000) {
        read(&mut model, "a", ms, held(1, 1, Some(12_010 - ms)));
        let view = shown(&mut model, "a").unwrap();
        assert_eq!((view.renewed, problems(&view)), (false, vec![]), "at {ms}");
    }
    read(&mut model, "a", 12_030, absent());
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), []);
}

#[test]
fn a_thread_that_was_refused_since_has_not_returned_too_late() {
    use monitor::Action::{Refused, ReleaseFoundNothing};
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(2_000)));
    read(&mut model, "a", 1_990, held(1, 1, Some(10)));
    read(&mut model, "a", 2_020, held(2, 1, Some(30_000)));
    // The client tries again, and releases the lock that it did not acquire.
    traffic(&mut model, 5_000, vec![event("a", 52, Refused)]);
    traffic(&mut model, 5_001, vec![event("a", 52, ReleaseFoundNothing)]);
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), []);
}

#[test]
fn a_bare_command_does_not_prove_that_a_hash_is_a_lock() {
    let mut model = model();
    let counter = |ms, model: &mut Model| {
        read(model, "cart", ms, held(1, 3, None));
        let view = shown(model, "cart").unwrap();
        (view.confirmed, problems(&view))
    };
    counter(0, &mut model);
    let by = holder(1);
    let line = format!(r#"1795236807.764742 [0 10.0.0.1:5000] "HINCRBY" "cart" "{by}" "1""#);
    let mut events = Vec::new();
    let mut decoder = monitor::Decoder::new(monitor::ServerRole::Master);
    decoder.feed_line(line.as_bytes(), &mut events);
    decoder.flush(&mut events);
    assert_eq!(events.len(), 1, "{events:?}");
    traffic(&mut model, 1_000, events);
    assert!(model.due(MAIN, at(1_100), 10).is_empty(), "it is not read sooner");
    counter(6_000, &mut model);
    assert_eq!(counter(12_000, &mut model), (false, vec![(ProblemKind::Leaked, SUSPECTED)]));
    traffic(&mut model, 13_000, vec![event("cart", 7, monitor::Action::Refused)]);
    assert_eq!(counter(14_000, &mut model), (true, vec![(ProblemKind::Leaked, CERTAIN)]));
}

#[test]
fn a_deadlock_lasts_while_monitor_pauses_until_a_hold_or_the_listening_ends() {
    use monitor::Action::{LeftQueue, Refused};
    let send = |model: &mut Model, ms, lock, by: u8, what| {
        let event = monitor::Event { holder: Some(holder(by)), ..event(lock, 52, what) };
        traffic(model, ms, vec![event]);
    };
    let goes_on = |model: &mut Model, ms, holder_of_b: u8, counts: [u64; 2]| {
        read(model, "a", ms, held(1, 1, Some(30_000)));
        read(model, "b", ms, held(holder_of_b, 1, Some(30_000)));
        let counts = vec![(name("a"), counts[0].into()), (name("b"), counts[1].into())];
        model.observe(MAIN, Observation::Subscribers { counts, at: time(ms + 10) });
        model.tick(at(ms + 20));
        let found = ["a", "b"].map(|lock| problems(&shown(model, lock).unwrap()));
        assert_eq!(found[0], found[1]);
        found[0].clone()
    };
    let wait = |model: &mut Model, ms: u64| {
        for (lock, by) in [("a", 2), ("b", 1)] {
            (0..2_u64).for_each(|i| send(model, ms + i, lock, by, Refused));
        }
    };
    let deadlock = vec![(ProblemKind::Deadlock, CERTAIN)];
    let paused = || {
        let mut model = model();
        model.observe(MAIN, Observation::MonitorActive { on: true });
        goes_on(&mut model, 0, 2, [0, 0]);
        wait(&mut model, 1_000);
        assert_eq!(goes_on(&mut model, 1_500, 2, [1, 1]), deadlock);
        model.observe(MAIN, Observation::MonitorActive { on: false });
        for ms in [2_000, 10_000] {
            assert_eq!(goes_on(&mut model, ms, 2, [2, 1]), deadlock, "at {ms}");
        }
        model
    };
    assert_eq!(goes_on(&mut paused(), 11_000, 2, [2, 0]), [], "nobody listens for one of them");
    let mut model = paused();
    release(&mut model, "b", 10_500);
    assert_eq!(goes_on(&mut model, 11_000, 3, [2, 1]), [], "another thread holds it");
    let mut model = paused();
    model.observe(MAIN, Observation::MonitorActive { on: true });
    assert_eq!(goes_on(&mut model, 11_000, 2, [2, 1]), deadlock, "no attempt was due");
    wait(&mut model, 12_000);
    assert_eq!(goes_on(&mut model, 12_500, 2, [2, 1]), deadlock);
    send(&mut model, 13_000, "a", 2, LeftQueue);
    assert_eq!(goes_on(&mut model, 13_500, 2, [1, 1]), [], "its waiter has stopped");
}

#[test]
fn the_release_of_the_next_hold_does_not_withdraw_an_expiry() {
    let expired = Observation::KeyChanged { name: name("a"), expired: true, at: time(50_005) };
    let acquired = |model: &mut Model| {
        read(model, "a", 50_020, absent());
        let mut acquired = event("a", 52, monitor::Action::Acquired { lease: None });
        acquired.holder = Some(holder(2));
        traffic(model, 50_050, vec![acquired]);
    };
    let sources: [&dyn Fn(&mut Model); 2] =
        [&|model| model.observe(MAIN, expired.clone()), &acquired];
    for shows in sources {
        let mut model = model();
        running_out().iter().for_each(|(ms, then)| apply(&mut model, *ms, then));
        shows(&mut model);
        // No reading has shown it.
        release(&mut model, "a", 50_150);
        read(&mut model, "a", 50_160, absent());
        assert_eq!(problems(&shown(&mut model, "a").unwrap()), [(ProblemKind::Expired, SUSPECTED)]);
    }
}

#[test]
fn a_withdrawn_expiry_leaves_an_earlier_one() {
    let mut model = model();
    running_out().iter().for_each(|(ms, then)| apply(&mut model, *ms, then));
    read(&mut model, "a", 50_020, absent());
    traffic(&mut model, 55_000, vec![event("a", 52, monitor::Action::ReleaseFoundNothing)]);
    for (ms, step) in running_out() {
        apply(&mut model, 100_000 + ms, &step);
    }
    // This hold was released at its very end.
    read(&mut model, "a", 149_980, absent());
    release(&mut model, "a", 149_985);
    read(&mut model, "a", 150_500, absent());
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), [(ProblemKind::Expired, CERTAIN)]);
}
