//! Restoring the knowledge of an earlier run.

use super::*;

fn id(lock: &str) -> LockId {
    LockId { deployment: "main".into(), db: 0, name: name(lock) }
}

/// Held by client 1 and leaked since 5 s when the earlier run ended.
fn with(lock: &str) -> Model {
    let since = Since { at: SteadyMillis(2_000), exact: true };
    let problems = vec![(ProblemKind::Leaked, SteadyMillis(5_000))];
    let known = Remembered { holds: vec![(holder(1), since)], problems, ..Remembered::default() };
    let mut model = model();
    model.remember([(id(lock), known)].into());
    model
}

fn notes(model: &mut Model) -> Vec<ArchiveEntry> {
    let effects = model.take_effects().into_iter();
    effects
        .filter_map(|(_, effect)| match effect {
            Effect::Archive(note) => Some(*note),
            _ => None,
        })
        .collect()
}

fn pass(model: &mut Model, started: u64, ended: u64) {
    let steady = SteadyMillis(ended);
    model.observe(MAIN, Observation::ScanEnded { started: at(started), steady });
}

#[test]
fn a_problem_that_is_found_again_is_as_old_as_it_was() {
    let mut model = with("a");
    for ms in [100_000, 106_000, 106_100] {
        read(&mut model, "a", ms, held(1, 1, None));
    }
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.problems[0].since, view.problems.len()), (SteadyMillis(5_000), 1));
    read(&mut model, "a", 900_000, held(1, 1, None));
    let cleared = |note: &ArchiveEntry| matches!(note, ArchiveEntry::Cleared(..));
    assert!(!notes(&mut model).iter().any(cleared));
    // Once it is over, the next one is another.
    read(&mut model, "a", 910_000, held(1, 1, Some(30_000)));
    assert_eq!(notes(&mut model).iter().filter(|note| cleared(note)).count(), 1);
    for ms in [920_000, 926_000] {
        read(&mut model, "a", ms, held(1, 1, None));
    }
    assert_eq!(shown(&mut model, "a").unwrap().problems[0].since, SteadyMillis(920_001));
}

#[test]
fn a_problem_that_is_not_found_again_is_over() {
    let mut model = with("a");
    let over = ArchiveEntry::Cleared(id("a"), ProblemKind::Leaked, SteadyMillis(700_001));
    for ms in (50_000..700_000).step_by(10_000) {
        read(&mut model, "a", ms, held(1, 1, Some(900_000)));
        assert!(ms > 600_000 || !notes(&mut model).contains(&over));
    }
    read(&mut model, "a", 700_000, held(1, 1, Some(900_000)));
    let mut model = with("b");
    for ms in [50_000, 700_000, 800_000] {
        read(&mut model, "b", ms, held(1, 1, Some(900_000)));
    }
    let over = ArchiveEntry::Cleared(id("b"), ProblemKind::Leaked, SteadyMillis(700_001));
    assert_eq!(notes(&mut model).iter().filter(|note| **note == over).count(), 1);
}

#[test]
fn a_hold_that_ended_unseen_is_told_to_be_over() {
    let unseen = |ms| ArchiveEntry::Unseen(id("a"), holder(1), SteadyMillis(ms));
    // Somebody else has it, nobody has it, or it is not there at all.
    for (reading, ms) in [(held(2, 1, Some(30_000)), 9_001), (absent(), 9_001)] {
        let mut model = with("a");
        model.observe(MAIN, Observation::CompanionKey { name: name("a") });
        release(&mut model, "a", 8_000);
        read(&mut model, "a", 9_000, reading);
        assert!(notes(&mut model).contains(&unseen(ms)));
    }
    let mut model = with("a");
    pass(&mut model, 7_000, 9_500);
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Leaked, SteadyMillis(9_500));
    assert_eq!(notes(&mut model), [unseen(9_500), cleared]);
    read(&mut model, "a", 20_000, held(1, 1, Some(30_000)));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(view.holders[0].since.at, SteadyMillis(20_001), "it is another hold");
    // What is still there goes on.
    let mut model = with("a");
    read(&mut model, "a", 9_000, held(1, 1, Some(30_000)));
    pass(&mut model, 7_000, 9_500);
    assert!(!notes(&mut model).iter().any(|note| matches!(note, ArchiveEntry::Unseen(..))));
    assert_eq!(shown(&mut model, "a").unwrap().holders[0].since.at, SteadyMillis(2_000));
}

#[test]
fn a_lock_that_is_forgotten_leaves_no_problem_behind() {
    let mut model = model_with(Settings { max_locks: 1, ..settings() });
    for ms in [1_000, 62_000] {
        read(&mut model, "a", ms, Reading::Absent { companions: queued(&[(1, 500)]) });
    }
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), [ProblemKind::Orphan]);
    notes(&mut model);
    read(&mut model, "b", 63_000, held(1, 1, Some(30_000)));
    let cleared = ArchiveEntry::Cleared(id("a"), ProblemKind::Orphan, SteadyMillis(62_001));
    assert!(notes(&mut model).contains(&cleared));
}

fn problems(view: &LockView) -> Vec<ProblemKind> {
    view.problems.iter().map(|problem| problem.problem).collect()
}
