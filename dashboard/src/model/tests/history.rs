//! Tests of the entries for the history on disk.

use redisson::monitor;

use super::*;

fn began(by: u8) -> impl Fn(&&ArchiveEntry) -> bool {
    move |entry| matches!(entry, ArchiveEntry::Began(_, id, _) if *id == holder(by).into())
}

fn ended(by: u8) -> impl Fn(&&ArchiveEntry) -> bool {
    move |entry| matches!(entry, ArchiveEntry::Ended(_, past) if past.id == holder(by).into())
}

#[test]
fn a_hold_that_was_released_before_its_reading_arrived_has_an_end() {
    let mut model = model();
    release(&mut model, "a", 10_000);
    // The reading was requested before the message and received after it.
    let late = Stamp { sent: at(9_990), received: time(10_005) };
    let reading = held(1, 1, Some(29_000));
    let (name, source) = (name("a"), Source::Poll);
    model.observe(MAIN, Observation::Read { name, stamp: late, source, reading });
    read(&mut model, "a", 10_100, absent());
    let entries = archived(&mut model);
    assert_eq!(entries.iter().filter(began(1)).count(), 0, "{entries:?}");
    let over: Vec<_> = entries.iter().filter(ended(1)).collect();
    let [ArchiveEntry::Ended(_, past)] = over.as_slice() else { panic!("{entries:?}") };
    assert_eq!((past.to, past.ended), (SteadyMillis(10_000), Ending::Released));
    assert!(past.since.at <= past.to, "{past:?}");
    assert_eq!(shown(&mut model, "a").unwrap().state, State::Free);
}

#[test]
fn a_hold_that_seemed_released_is_corrected_when_monitor_shows_that_it_was_ended_by_force() {
    let mut model = model();
    model.observe(MAIN, Observation::MonitorActive { on: true });
    read(&mut model, "a", 1, held(1, 1, Some(30_000)));
    release(&mut model, "a", 5_000);
    read(&mut model, "a", 5_005, absent());
    let forced = event("a", 52, monitor::Action::ForceReleased);
    traffic(&mut model, 5_010, vec![forced.clone()]);
    let corrected =
        ArchiveEntry::Forced(model.scopes[0].id(&name("a")), holder(1).into(), SteadyMillis(5_000));
    let entries = archived(&mut model);
    assert_eq!(entries.iter().filter(ended(1)).count(), 1, "{entries:?}");
    assert_eq!(entries.last(), Some(&corrected), "{entries:?}");
    let tally = &model.contention(time(5_020)).groups[0].tally;
    assert_eq!((tally.holds.count(), tally.holds_lost), (1, 1));
    // The next forced release finds nothing to correct, since its message belongs to an earlier release.
    release(&mut model, "a", 6_000);
    traffic(&mut model, 6_010, vec![forced]);
    assert_eq!(model.contention(time(6_020)).groups[0].tally.holds_lost, 1);
    let view = shown(&mut model, "a").unwrap();
    let longest = view.history.longest_hold.as_ref().unwrap();
    assert_eq!(
        (view.history.past.len(), longest.ended.map(PastEnding::as_str)),
        (1, Some("forced"))
    );
}

#[test]
fn a_hold_of_a_lock_that_is_proved_later_has_a_beginning() {
    let mut model = model();
    for ms in [1_000, 6_000, 11_000] {
        read(&mut model, "a", ms, held(1, 1, None));
    }
    assert_eq!(archived(&mut model).iter().filter(began(1)).count(), 0, "it may be no lock");
    model.observe(MAIN, Observation::CompanionKey { name: name("a") });
    for ms in [16_000, 21_000] {
        read(&mut model, "a", ms, held(1, 1, None));
    }
    let entries = archived(&mut model);
    let began: Vec<_> = entries.iter().filter(began(1)).collect();
    let [ArchiveEntry::Began(_, _, since)] = began.as_slice() else { panic!("{entries:?}") };
    assert_eq!(since.at, SteadyMillis(1_001));
    let certain = ArchiveEntry::Problem(
        model.scopes[0].id(&name("a")),
        ProblemKind::Leaked,
        Certainty::Certain,
        SteadyMillis(1_001),
    );
    assert!(entries.contains(&certain), "{entries:?}");
}

#[test]
fn everything_about_a_holder_of_an_unknown_client_names_its_field() {
    let reading = |field: &str, ttl| {
        let hash = LockHash::parse([(field.as_bytes(), &b"1"[..])]);
        Reading::Lock { hash, ttl, companions: Companions::default() }
    };
    let by = |field| reading(field, None);
    let mut model = model();
    read(&mut model, "a", 1_000, reading("worker-1", Some(Duration::from_secs(60))));
    read(&mut model, "a", 10_000, by("worker-1"));
    read(&mut model, "a", 20_000, by("worker-1"));
    let view = shown(&mut model, "a").unwrap();
    let [problem] = view.problems.as_slice() else { panic!("{:?}", view.problems) };
    assert!(problem.advice.contains("`worker-1`"), "{}", problem.advice);
    read_twice(&mut model, "a", 30_000, by("worker-2"));
    read_twice(&mut model, "a", 40_000, absent());
    let view = shown(&mut model, "a").unwrap();
    let texts: Vec<String> = view.events.views().map(|event| event.text).collect();
    for (field, count) in [("worker-1", 2), ("worker-2", 2)] {
        assert_eq!(texts.iter().filter(|text| text.contains(field)).count(), count, "{texts:?}");
    }
    let past = |hold: &PastHoldView| hold.id.clone();
    assert_eq!(view.history.past.iter().map(past).collect::<Vec<_>>(), ["worker-2", "worker-1"]);
    let longest = model.contention(time(41_000)).groups[0].tally.longest_hold.clone().unwrap();
    assert_eq!(longest.id.to_string(), "worker-1");
    let entries = archived(&mut model).into_iter().filter_map(|entry| match entry {
        ArchiveEntry::Began(_, holder, _) => Some(format!("began {holder}")),
        ArchiveEntry::Ended(_, past) => Some(format!("ended {}", past.id)),
        _ => None,
    });
    let expected = ["began worker-1", "ended worker-1", "began worker-2", "ended worker-2"];
    assert_eq!(entries.collect::<Vec<_>>(), expected);
    // A hold of an earlier run is found again by its field.
    let restored = || RestoredLock {
        holds: vec![(
            HolderField::parse("worker-1".to_owned()),
            Since { at: SteadyMillis(500), exact: true },
        )],
        ..RestoredLock::default()
    };
    let mut model = super::model();
    model.restore([(model.scopes[0].id(&name("a")), restored())].into(), SteadyMillis(600));
    read(&mut model, "a", 1_000, by("worker-1"));
    assert_eq!(shown(&mut model, "a").unwrap().holders[0].since.at, SteadyMillis(500));
}
