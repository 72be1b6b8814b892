//! Tests of restoring the state of an earlier run.

use super::*;

fn id(lock: &str) -> LockId {
    LockId { deployment: "main".into(), db: 0, name: name(lock) }
}

/// Returns a model with a lock from the end of an earlier run: client 1 held it, and it was leaked since 5 s.
fn with(lock: &str) -> Model {
    let since = Since { at: SteadyMillis(2_000), exact: true };
    let problems = vec![(ProblemKind::Leaked, SteadyMillis(5_000))];
    let restored = RestoredLock {
        holds: vec![(holder(1).into(), since)],
        problems,
        ..RestoredLock::default()
    };
    let mut model = model();
    model.restore([(id(lock), restored)].into(), SteadyMillis(0));
    model
}

fn pass(model: &mut Model, started: u64, ended: u64) {
    let (started, ended) = (at(started), time(ended));
    model.observe(MAIN, Observation::ScanEnded { started, ended, whole: true, skipped: 0 });
}

#[test]
fn a_problem_that_is_found_again_keeps_its_beginning() {
    let mut model = with("a");
    for ms in [100_000, 106_000, 106_100] {
        read(&mut model, "a", ms, held(1, 1, None));
    }
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.problems[0].since, view.problems.len()), (SteadyMillis(5_000), 1));
    read(&mut model, "a", 900_000, held(1, 1, None));
    let cleared = |entry: &ArchiveEntry| matches!(entry, ArchiveEntry::Cleared(..));
    assert!(!archived(&mut model).iter().any(cleared));
    // After the end of the problem, the next one is new.
    read(&mut model, "a", 910_000, held(1, 1, Some(30_000)));
    assert_eq!(archived(&mut model).iter().filter(|entry| cleared(entry)).count(), 1);
    for ms in [920_000, 926_000] {
        read(&mut model, "a", ms, held(1, 1, None));
    }
    assert_eq!(shown(&mut model, "a").unwrap().problems[0].since, SteadyMillis(920_001));
}

#[test]
fn the_state_of_an_earlier_run_needs_no_memory_once_all_locks_were_read() {
    let restored = |lock: &str| {
        let since = Since { at: SteadyMillis(2_000), exact: true };
        let holds = vec![(holder(1).into(), since)];
        (id(lock), RestoredLock { holds, ..RestoredLock::default() })
    };
    let mut model = model();
    model.restore(["a", "b"].map(restored).into(), SteadyMillis(0));
    read(&mut model, "a", 9_000, held(1, 1, Some(30_000)));
    assert!(model.restored.capacity() > 0);
    read(&mut model, "b", 9_000, held(1, 1, Some(30_000)));
    assert_eq!(model.restored.capacity(), 0);
    model.restore(["c", "d"].map(restored).into(), SteadyMillis(0));
    pass(&mut model, 10_000, 11_000);
    assert_eq!(model.restored.capacity(), 0);
}

#[test]
fn a_problem_that_is_not_found_again_ends() {
    let mut model = with("a");
    let over = ArchiveEntry::Cleared(id("a"), ProblemKind::Leaked, SteadyMillis(700_001));
    for ms in (50_000..700_000).step_by(10_000) {
        read(&mut model, "a", ms, held(1, 1, Some(900_000)));
        assert!(ms > 600_000 || !archived(&mut model).contains(&over));
    }
    read(&mut model, "a", 700_000, held(1, 1, Some(900_000)));
    let mut model = with("b");
    for ms in [50_000, 700_000, 800_000] {
        read(&mut model, "b", ms, held(1, 1, Some(900_000)));
    }
    let over = ArchiveEntry::Cleared(id("b"), ProblemKind::Leaked, SteadyMillis(700_001));
    assert_eq!(archived(&mut model).iter().filter(|entry| **entry == over).count(), 1);
}

#[test]
fn an_unobserved_end_of_a_hold_is_archived() {
    let unseen = |ms| ArchiveEntry::Unseen(id("a"), holder(1).into(), SteadyMillis(ms));
    // Another client holds the lock, the lock is free, or the key does not exist.
    for (reading, ms) in [(held(2, 1, Some(30_000)), 9_001), (absent(), 9_001)] {
        let mut model = with("a");
        model.observe(MAIN, Observation::CompanionKey { name: name("a") });
        release(&mut model, "a", 8_000);
        read(&mut model, "a", 9_000, reading);
        assert!(archived(&mut model).contains(&unseen(ms)));
    }
    let mut model = with("a");
    pass(&mut model, 7_000, 9_500);
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Leaked, SteadyMillis(9_500));
    assert_eq!(archived(&mut model), [unseen(9_500), cleared]);
    read(&mut model, "a", 20_000, held(1, 1, Some(30_000)));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(view.holders[0].since.at, SteadyMillis(20_001), "it is another hold");
    // An existing hold continues.
    let mut model = with("a");
    read(&mut model, "a", 9_000, held(1, 1, Some(30_000)));
    pass(&mut model, 7_000, 9_500);
    assert!(!archived(&mut model).iter().any(|entry| matches!(entry, ArchiveEntry::Unseen(..))));
    assert_eq!(shown(&mut model, "a").unwrap().holders[0].since.at, SteadyMillis(2_000));
}

#[test]
fn an_evicted_lock_leaves_no_open_problem() {
    let mut model = model_with(Settings { max_locks: 1, ..settings() });
    for ms in [1_000, 62_000] {
        read(&mut model, "a", ms, Reading::Absent { companions: queued(&[(1, 500)]) });
    }
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), [ProblemKind::Orphan]);
    archived(&mut model);
    read(&mut model, "b", 63_000, held(1, 1, Some(30_000)));
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Orphan, SteadyMillis(62_001));
    assert!(archived(&mut model).contains(&cleared));
}

fn problems(view: &LockView) -> Vec<ProblemKind> {
    view.problems.iter().map(|problem| problem.problem).collect()
}

#[test]
fn a_hold_that_began_after_the_restart_is_not_taken_for_the_earlier_one() {
    let mut model = with("a");
    // The same thread has released the lock and acquired it again.
    release(&mut model, "a", 8_000);
    read(&mut model, "a", 8_100, held(1, 1, Some(29_900)));
    let entries = archived(&mut model);
    let unseen = |entry: &ArchiveEntry| matches!(entry, ArchiveEntry::Unseen(..));
    assert!(!entries.iter().any(unseen), "its beginning ends the earlier one: {entries:?}");
    let view = shown(&mut model, "a").unwrap();
    assert!(view.holders[0].since.exact && view.holders[0].since.at > SteadyMillis(7_000));
}

#[test]
fn holds_and_problems_of_a_deployment_that_is_no_longer_watched_have_ended() {
    let mut model = model();
    let other = LockId { deployment: "old".into(), ..id("a") };
    let since = Since { at: SteadyMillis(2_000), exact: true };
    let problems = vec![(ProblemKind::Leaked, SteadyMillis(5_000))];
    let restored = RestoredLock {
        holds: vec![(holder(1).into(), since)],
        problems,
        ..RestoredLock::default()
    };
    let locks = [(other.clone(), restored.clone()), (id("a"), restored)];
    model.restore(locks.into(), SteadyMillis(7_000));
    let over = [
        ArchiveEntry::Unseen(other.clone(), holder(1).into(), SteadyMillis(7_000)),
        ArchiveEntry::Cleared(other, ProblemKind::Leaked, SteadyMillis(7_000)),
    ];
    assert_eq!(archived(&mut model), over);
}

#[test]
fn a_lock_that_was_stuck_is_stuck_again_once_its_renewals_are_seen() {
    let stuck = |since| {
        let holds = vec![(holder(1).into(), Since { at: SteadyMillis(1_000), exact: true })];
        let problems = vec![(ProblemKind::Stuck, SteadyMillis(since))];
        let restored = RestoredLock { holds, problems, ..RestoredLock::default() };
        let mut model = model();
        model.restore([(id("a"), restored)].into(), SteadyMillis(0));
        model.observe(MAIN, Observation::PubSubActive { on: true, at: at(499_000) });
        model
    };
    let play = |model: &mut Model, by: u8, until: u64| {
        for ms in (500_000..=until).step_by(5_000) {
            read(model, "a", ms, held(by, 1, renewed_ttl(ms)));
        }
        shown(model, "a").unwrap()
    };
    let mut model = stuck(400_000);
    assert_eq!(problems(&play(&mut model, 1, 515_000)), []);
    let view = play(&mut stuck(400_000), 1, 525_000);
    let problem = &view.problems[0];
    assert_eq!((problem.problem, problem.certainty), (ProblemKind::Stuck, Certainty::Suspected));
    assert_eq!(problem.since, SteadyMillis(400_000));
    assert_eq!(problem.evidence[0].at, SteadyMillis(100_000), "{:?}", problem.evidence);
    // The problem remains until the release.
    let mut model = stuck(400_000);
    assert_eq!(problems(&play(&mut model, 1, 1_500_000)), [ProblemKind::Stuck]);
    assert!(!archived(&mut model).iter().any(|entry| matches!(entry, ArchiveEntry::Cleared(..))));
    release(&mut model, "a", 1_501_000);
    read(&mut model, "a", 1_502_000, absent());
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Stuck, SteadyMillis(1_502_001));
    let entries = archived(&mut model);
    assert_eq!(entries.iter().filter(|entry| **entry == cleared).count(), 1, "{entries:?}");
    // While the server cannot be read, nothing can be found again.
    let mut model = stuck(400_000);
    play(&mut model, 1, 505_000);
    model.observe(MAIN, Observation::ServerDown);
    let (since, steady) = (at(2_000_000), SteadyMillis(2_000_000));
    let up = Observation::ServerUp { since, at: steady, run_id: None, cluster: false };
    model.observe(MAIN, up);
    for ms in (2_000_000..=2_030_000).step_by(5_000) {
        read(&mut model, "a", ms, held(1, 1, renewed_ttl(ms)));
    }
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(
        (problems(&view), view.problems[0].since),
        (vec![ProblemKind::Stuck], SteadyMillis(400_000))
    );
    assert!(!archived(&mut model).iter().any(|entry| matches!(entry, ArchiveEntry::Cleared(..))));
    // Another holder is stuck only after the limit.
    let mut model = stuck(400_000);
    assert_eq!(problems(&play(&mut model, 2, 700_000)), []);
    let over = ArchiveEntry::Cleared(id("a"), ProblemKind::Stuck, SteadyMillis(500_001));
    assert!(archived(&mut model).contains(&over));
    let view = play(&mut model, 2, 810_000);
    assert_eq!(view.problems[0].since, SteadyMillis(800_001));
}

#[test]
fn a_malformed_lock_of_an_earlier_run_is_read_first_and_still_malformed() {
    let since = Since { at: SteadyMillis(200), exact: true };
    let restored = |problems: &[ProblemKind]| RestoredLock {
        holds: vec![(holder(1).into(), since)],
        problems: problems.iter().map(|problem| (*problem, SteadyMillis(500))).collect(),
        ..RestoredLock::default()
    };
    let mut model = model();
    let locks = [(id("a"), restored(&[ProblemKind::Malformed])), (id("b"), restored(&[]))];
    model.restore(locks.into(), SteadyMillis(0));
    let due: Vec<_> = model.due(MAIN, at(1_000), 10).into_iter().map(|read| read.name).collect();
    assert_eq!(due, [name("a")]);
    let mut reading = held(1, 1, Some(30_000));
    let Reading::Lock { hash, .. } = &mut reading else { panic!("a lock") };
    hash.unexpected.push(b"colour".to_vec());
    read(&mut model, "a", 1_000, reading.clone());
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(
        (problems(&view), view.problems[0].since),
        (vec![ProblemKind::Malformed], SteadyMillis(500))
    );
    read(&mut model, "c", 1_000, reading);
    assert!(shown(&mut model, "c").is_none(), "nothing else shows that this one is a lock");
}

#[test]
fn locks_of_an_earlier_run_are_read_if_a_scan_had_no_room_for_all_or_missed_some() {
    let since = Since { at: SteadyMillis(200), exact: true };
    let held_before =
        || RestoredLock { holds: vec![(holder(1).into(), since)], ..RestoredLock::default() };
    for (whole, skipped) in [(true, 9), (false, 0)] {
        let mut model = model();
        let locks = ["gone", "found", "past"].map(|name| (id(name), held_before()));
        model.restore(locks.into(), SteadyMillis(0));
        model.restored.get_mut(&id("past")).unwrap().holds.clear();
        read(&mut model, "found", 1_000, held(1, 1, Some(30_000)));
        let (started, ended) = (at(900), time(1_500));
        model.observe(MAIN, Observation::ScanEnded { started, ended, whole, skipped });
        let due = model.due(MAIN, at(2_000), 10);
        let due: Vec<_> = due.into_iter().map(|read| read.name).collect();
        assert!(["gone", "past"].iter().all(|lock| due.contains(&name(lock))), "{due:?}");
        assert_eq!(ends(&mut model), []);
        read(&mut model, "gone", 2_000, absent());
        read(&mut model, "past", 2_000, absent());
        let unseen = ArchiveEntry::Unseen(id("gone"), holder(1).into(), SteadyMillis(2_001));
        assert_eq!(ends(&mut model), [unseen]);
        assert!(model.restored.is_empty());
        assert_eq!(shown(&mut model, "found").unwrap().holders[0].since.at, since.at);
    }
}

/// Returns the state of a lock from the end of an earlier run: its hold by client 1 expired at 5 s.
fn expired(returned_late: bool) -> RestoredLock {
    let since = Since { at: SteadyMillis(2_000), exact: true };
    let (to, ended) = (SteadyMillis(5_000), Ending::Expired);
    let past = vec![PastHold { id: holder(1).into(), since, to, ended }];
    let problems = vec![(ProblemKind::Expired, SteadyMillis(5_000))];
    RestoredLock { past, problems, returned_late, ..RestoredLock::default() }
}

fn ends(model: &mut Model) -> Vec<ArchiveEntry> {
    let mut entries = archived(model);
    entries.retain(|entry| matches!(entry, ArchiveEntry::Cleared(..) | ArchiveEntry::Unseen(..)));
    entries
}

#[test]
fn an_expired_hold_of_a_free_lock_is_reported_until_an_hour_after_it() {
    // The first scan ends before or after the first reading.
    for (passed, late) in [(100_500, false), (99_500, true)] {
        let mut model = model();
        model.restore([(id("a"), expired(late))].into(), SteadyMillis(90_000));
        if passed < 100_000 {
            pass(&mut model, 95_000, passed);
        }
        let due = model.due(MAIN, at(passed.min(100_000)), 10);
        assert_eq!(due.into_iter().map(|read| read.name).collect::<Vec<_>>(), [name("a")]);
        read(&mut model, "a", 100_000, absent());
        if passed > 100_000 {
            pass(&mut model, 95_000, passed);
        }
        for ms in (130_000..3_605_000).step_by(30_000) {
            read(&mut model, "a", ms, absent());
            model.tick(at(ms));
        }
        let view = shown(&mut model, "a").unwrap();
        let [problem] = &*view.problems else { panic!("{:?}", view.problems) };
        assert_eq!((problem.problem, problem.since), (ProblemKind::Expired, SteadyMillis(5_000)));
        assert_eq!(problem.certainty == Certainty::Certain, late);
        let evidence = &problem.evidence[0];
        assert_eq!(evidence.at, SteadyMillis(5_000));
        assert!(evidence.text.contains(&holder(1).to_string()), "{}", evidence.text);
        assert_eq!(ends(&mut model), []);
        read(&mut model, "a", 3_605_000, absent());
        model.tick(at(3_605_000));
        let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Expired, SteadyMillis(3_605_001));
        assert_eq!(ends(&mut model), [cleared]);
    }
}

#[test]
fn an_expired_hold_of_an_earlier_run_is_not_counted_again() {
    let mut model = model();
    model.restore([(id("a"), expired(false))].into(), SteadyMillis(90_000));
    read(&mut model, "a", 100_000, absent());
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), [ProblemKind::Expired]);
    let is_detection = |(_, effect): &(ScopeId, Effect)| matches!(effect, Effect::Detected(..));
    assert!(!model.take_effects().iter().any(is_detection));
}

#[test]
fn an_expired_hold_is_reported_no_matter_who_holds_the_lock_after_the_restart() {
    let mut model = model();
    // The holder is no longer in the history.
    let lock = RestoredLock { past: Vec::new(), ..expired(false) };
    model.restore([(id("a"), lock)].into(), SteadyMillis(90_000));
    for ms in (100_000..3_600_000).step_by(10_000) {
        read(&mut model, "a", ms, held(2, 1, Some(60_000)));
    }
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), [ProblemKind::Expired]);
    assert_eq!(ends(&mut model), []);
}

#[test]
fn an_expired_hold_of_more_than_an_hour_ago_is_cleared_by_the_first_reading() {
    let mut model = model();
    model.restore([(id("a"), expired(false))].into(), SteadyMillis(3_700_000));
    read(&mut model, "a", 3_700_000, absent());
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Expired, SteadyMillis(3_700_001));
    assert_eq!(ends(&mut model), std::slice::from_ref(&cleared));
    // The problem of a lock that is now ignored is over too.
    let mut model = model_with(Settings { ignore: vec![b"a".to_vec()], ..settings() });
    model.restore([(id("a"), expired(false))].into(), SteadyMillis(3_600_000));
    read(&mut model, "a", 3_600_000, absent());
    pass(&mut model, 3_600_000, 3_700_001);
    assert_eq!(ends(&mut model), [cleared]);
    assert!(shown(&mut model, "a").is_none());
}

#[test]
fn an_expiry_of_several_is_reported_until_an_hour_after_the_latest() {
    let (first, latest) = (SteadyMillis(5_000), SteadyMillis(4_800_000));
    let mut model = model();
    let lock = RestoredLock {
        expired_again: Some(latest),
        acknowledged: acknowledged(ProblemKind::Expired).acknowledged,
        ..expired(false)
    };
    model.restore([(id("a"), lock)].into(), SteadyMillis(5_400_000));
    for ms in (5_400_000..8_400_000).step_by(30_000) {
        read(&mut model, "a", ms, absent());
    }
    let view = shown(&mut model, "a").unwrap();
    let [problem] = &*view.problems else { panic!("{:?}", view.problems) };
    assert_eq!((problem.problem, problem.since), (ProblemKind::Expired, first));
    assert!(problem.acknowledged.is_some(), "{problem:?}");
    assert_eq!(ends(&mut model), []);
    read(&mut model, "a", 8_400_000, absent());
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Expired, SteadyMillis(8_400_001));
    assert_eq!(ends(&mut model), [cleared]);
}

#[test]
fn markers_of_readers_that_an_earlier_run_has_reported_are_found_again() {
    // The first scan ends before or after the first reading.
    for passed in [99_500, 100_500] {
        let mut model = model();
        let since = Since { at: SteadyMillis(2_000), exact: true };
        let (to, ended) = (SteadyMillis(5_000), Ending::Forced);
        let past = |n| PastHold { id: holder(n).into(), since, to, ended };
        let lock = RestoredLock {
            past: vec![past(1), past(2), past(1)],
            problems: vec![(ProblemKind::Orphan, SteadyMillis(70_000))],
            ..RestoredLock::default()
        };
        model.restore([(id("a"), lock)].into(), SteadyMillis(90_000));
        if passed < 100_000 {
            pass(&mut model, 95_000, passed);
        }
        read(&mut model, "a", 100_000, absent());
        if passed > 100_000 {
            pass(&mut model, 95_000, passed);
        }
        let due = model.due(MAIN, at(110_000), 10);
        let [next] = &due[..] else { panic!("{due:?}") };
        let mut readers: Vec<HolderId> = next.known.readers.iter().map(|(id, _)| *id).collect();
        readers.sort_unstable();
        assert_eq!(readers, [holder(1), holder(2)]);
        for ms in [110_000, 140_000, 180_000] {
            let markers = vec![(holder(1), Marker::Persistent), (holder(2), Marker::Missing)];
            let companions = Companions { markers, ..Companions::default() };
            read(&mut model, "a", ms, Reading::Absent { companions });
        }
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(problems(&view), [ProblemKind::Orphan]);
        assert_eq!(view.problems[0].since, SteadyMillis(70_000));
        let text = &view.problems[0].evidence[0].text;
        assert!(text.contains("markers of 1 of its readers"), "{text}");
        assert_eq!(ends(&mut model), []);
    }
}

/// Returns the state of a lock from the end of an earlier run: client 1 held it, and its problem was acknowledged.
fn acknowledged(problem: ProblemKind) -> RestoredLock {
    let word = Acknowledgement {
        by: "anna".into(),
        reason: "a long import".into(),
        at: SteadyMillis(6_000),
        until: SteadyMillis(100_000_000),
    };
    RestoredLock {
        holds: vec![(holder(1).into(), Since { at: SteadyMillis(1_000), exact: true })],
        problems: vec![(problem, SteadyMillis(5_000))],
        acknowledged: vec![(problem, word.into())],
        ..RestoredLock::default()
    }
}

#[test]
fn a_problem_that_is_found_again_late_is_still_acknowledged() {
    let hours = Rule { stuck_after: None, starving_after: Some(Duration::from_secs(3 * 3_600)) };
    let mut model = model_with(Settings { usual: hours.into(), ..settings() });
    let locks = [(id("a"), acknowledged(ProblemKind::Starving))];
    model.restore(locks.into(), SteadyMillis(0));
    for ms in (100_000..11_000_000).step_by(10_000) {
        if ms == 2_000_000 {
            model.observe(MAIN, Observation::ServerDown);
        } else if ms == 4_000_000 {
            let (since, at) = (at(ms), SteadyMillis(ms));
            let up = Observation::ServerUp { since, at, run_id: None, cluster: false };
            model.observe(MAIN, up);
        }
        if !(2_000_000..4_000_000).contains(&ms) {
            let Reading::Lock { hash, ttl, .. } = held(1, 1, Some(20_000_000 - ms)) else {
                panic!("a lock")
            };
            let companions = queued(&[(7, 90_000_000)]);
            read(&mut model, "a", ms, Reading::Lock { hash, ttl, companions });
        }
        model.tick(at(ms + 1_000));
        model.end_acknowledgements(SteadyMillis(ms + 1_000));
    }
    let view = shown(&mut model, "a").unwrap();
    let found = &view.problems[0];
    assert_eq!((found.problem, found.since), (ProblemKind::Starving, SteadyMillis(5_000)));
    assert!(found.acknowledged.is_some(), "{found:?}");
}

#[test]
fn an_acknowledgement_ends_with_the_problem_of_the_earlier_run() {
    let mut model = model();
    model.restore([(id("a"), acknowledged(ProblemKind::Stuck))].into(), SteadyMillis(0));
    for ms in (100_000..=410_000).step_by(5_000) {
        read(&mut model, "a", ms, held(2, 1, renewed_ttl(ms)));
        model.end_acknowledgements(SteadyMillis(ms + 1_000));
    }
    let view = shown(&mut model, "a").unwrap();
    let found = &view.problems[0];
    assert_eq!((found.problem, &found.acknowledged), (ProblemKind::Stuck, &None));
    let ended = |entry: &ArchiveEntry| matches!(entry, ArchiveEntry::Unacknowledged(..));
    assert_eq!(archived(&mut model).iter().filter(|entry| ended(entry)).count(), 1);
    // Another hold leaks: that is not the problem of the first one.
    let mut model = self::model();
    model.restore([(id("a"), acknowledged(ProblemKind::Leaked))].into(), SteadyMillis(0));
    read(&mut model, "a", 100_000, held(2, 1, Some(30_000)));
    for ms in (101_000..=121_000).step_by(5_000) {
        read(&mut model, "a", ms, held(2, 1, None));
    }
    let view = shown(&mut model, "a").unwrap();
    let found = &view.problems[0];
    assert_eq!((found.problem, &found.acknowledged), (ProblemKind::Leaked, &None));
    // The lock is dropped with its problem.
    let mut model = model_with(Settings { max_locks: 1, ..settings() });
    model.restore([(id("a"), acknowledged(ProblemKind::Orphan))].into(), SteadyMillis(0));
    for ms in [100_000, 161_000] {
        read(&mut model, "a", ms, Reading::Absent { companions: queued(&[(1, 500)]) });
    }
    assert!(shown(&mut model, "a").unwrap().problems[0].acknowledged.is_some());
    read(&mut model, "b", 170_000, held(1, 1, Some(30_000)));
    assert!(archived(&mut model).iter().any(ended));
}

#[test]
fn the_problem_of_a_hash_that_only_looks_like_a_lock_is_still_acknowledged() {
    // The holds of such a lock are not stored.
    let leaked = || RestoredLock { holds: Vec::new(), ..acknowledged(ProblemKind::Leaked) };
    let mut model = model();
    model.restore([(id("a"), leaked())].into(), SteadyMillis(0));
    for ms in [500_000, 510_000] {
        read(&mut model, "a", ms, held(1, 1, None));
    }
    let view = shown(&mut model, "a").unwrap();
    let found = &view.problems[0];
    assert!(!view.confirmed && found.certainty == Certainty::Suspected, "{view:?}");
    assert!(found.acknowledged.is_some(), "{found:?}");
    assert!(!archived(&mut model).iter().any(|entry| matches!(entry, ArchiveEntry::Cleared(..))));
}

#[test]
fn a_leak_after_a_release_is_not_the_acknowledged_one_of_an_earlier_run() {
    let leaked = RestoredLock { holds: Vec::new(), ..acknowledged(ProblemKind::Leaked) };
    let mut model = model();
    model.restore([(id("a"), leaked)].into(), SteadyMillis(0));
    release(&mut model, "a", 499_000);
    for ms in [500_000, 510_000] {
        read(&mut model, "a", ms, held(2, 1, None));
    }
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(problems(&view), [ProblemKind::Leaked]);
    assert!(view.problems[0].acknowledged.is_none(), "{view:?}");
}

#[test]
fn a_hold_of_an_earlier_run_ends_although_its_key_is_something_else() {
    let other = || Reading::Other("a string".to_owned());
    let unseen = ArchiveEntry::Unseen(id("a"), holder(1).into(), SteadyMillis(9_001));
    let mut model = with("a");
    read(&mut model, "a", 9_000, other());
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Leaked, SteadyMillis(9_001));
    assert_eq!(ends(&mut model), [unseen.clone(), cleared]);
    assert!(model.restored.is_empty() && shown(&mut model, "a").is_none());
    // A message is about the lock that was there before.
    let mut model = with("a");
    release(&mut model, "a", 8_000);
    read(&mut model, "a", 9_000, other());
    assert!(ends(&mut model).contains(&unseen));
    // An expiry is reported for an hour.
    let mut model = model_with(settings());
    let lock = RestoredLock {
        holds: vec![(holder(1).into(), Since { at: SteadyMillis(8_000), exact: true })],
        ..expired(false)
    };
    model.restore([(id("a"), lock)].into(), SteadyMillis(8_500));
    read(&mut model, "a", 9_000, other());
    assert_eq!(ends(&mut model), [unseen]);
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), [ProblemKind::Expired]);
    read(&mut model, "a", 3_700_000, other());
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Expired, SteadyMillis(3_700_001));
    assert_eq!(ends(&mut model), [cleared]);
}
