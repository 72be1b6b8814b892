//! Tests of problems, which begin and end with observations: detected in time, cleared in time, and never in healthy
//! locks.

mod gone;
mod readers;
mod tasks;
mod traffic;

use super::*;

const CERTAIN: Certainty = Certainty::Certain;
const SUSPECTED: Certainty = Certainty::Suspected;

/// An observation of the lock `a`.
#[derive(Debug, Clone)]
enum Step {
    /// The lock is read as held by that client's thread, with that time to live.
    Held(u8, Option<u64>),
    /// The lock is read as absent.
    Free,
    /// The queue is read, with or without a holder.
    Queued(Option<u8>, Vec<(i64, u64)>),
    /// A release message arrives.
    Released,
    /// This number of connections is subscribed to the lock's release.
    Listening(u64),
    /// The server becomes unreachable, or reachable again with that run id.
    Down,
    Up(&'static str),
    /// The server's clock is this number of milliseconds ahead of ours.
    Ahead(i64),
}

fn apply(model: &mut Model, ms: u64, step: &Step) {
    match step {
        Step::Held(by, ttl) => read(model, "a", ms, held(*by, 1, *ttl)),
        Step::Free => read(model, "a", ms, absent()),
        Step::Queued(by, places) => {
            let companions = queued(places);
            let reading = match by {
                None => Reading::Absent { companions },
                Some(by) => match held(*by, 1, renewed_ttl(ms)) {
                    Reading::Lock { hash, ttl, .. } => Reading::Lock { hash, ttl, companions },
                    other => other,
                },
            };
            read(model, "a", ms, reading);
        }
        Step::Released => release(model, "a", ms),
        Step::Listening(count) => {
            let counts = vec![(name("a"), (*count).into())];
            model.observe(MAIN, Observation::Subscribers { counts, at: time(ms) });
        }
        Step::Down => model.observe(MAIN, Observation::ServerDown),
        Step::Up(run) => {
            let run_id = Some((*run).to_owned());
            model.observe(
                MAIN,
                Observation::ServerUp {
                    since: at(ms),
                    at: SteadyMillis(ms),
                    run_id,
                    cluster: false,
                },
            );
        }
        Step::Ahead(ahead_ms) => {
            let at = SteadyMillis(ms);
            model.observe(MAIN, Observation::Clock { ahead_ms: *ahead_ms, at });
        }
    }
    model.tick(at(ms));
}

fn problems(view: &LockView) -> Vec<(ProblemKind, Certainty)> {
    view.problems.iter().map(|problem| (problem.problem, problem.certainty)).collect()
}

/// Returns the final view, or `None` once the lock has been dropped.
fn play(steps: &[(u64, Step)]) -> Option<Arc<LockView>> {
    let mut model = model();
    for (ms, step) in steps {
        apply(&mut model, *ms, step);
    }
    shown(&mut model, "a")
}

/// Returns readings every 5 s of a lock that a watchdog renews from 0 to 25 s.
fn renewed() -> Vec<(u64, Step)> {
    (0..=25_000).step_by(5_000).map(|ms| (ms, Step::Held(1, renewed_ttl(ms)))).collect()
}

fn after(then: impl IntoIterator<Item = (u64, Step)>) -> Vec<(u64, Step)> {
    renewed().into_iter().chain(then).collect()
}

/// Returns readings every second of a lock whose lease runs out after its last renewal at 20 s.
fn running_out() -> Vec<(u64, Step)> {
    after((26_000..50_000).step_by(1_000).map(|ms| (ms, Step::Held(1, Some(50_000 - ms)))))
}

fn gone_after(
    steps: Vec<(u64, Step)>,
    then: impl IntoIterator<Item = (u64, Step)>,
) -> Vec<(u64, Step)> {
    steps.into_iter().chain(then).collect()
}

#[test]
fn each_problem_is_found_and_cleared_in_time() {
    use ProblemKind::{Expired, Orphan, RenewalOverdue, Starving};
    let overdue = |ms| (ms, Step::Held(1, Some(50_000 - ms)));
    let dead = || vec![(1, 500)];
    let alive = || vec![(1, 900_000)];
    let queue = |ms, by, places| (ms, Step::Queued(by, places));
    let waits = |until: u64| {
        let steps = (0..=until).step_by(2_000);
        steps.map(|ms| queue(ms, Some(1), alive())).collect::<Vec<_>>()
    };
    let listened = |until: u64, freed: u64| {
        let mut steps = Vec::new();
        for ms in (0..=until).step_by(2_000) {
            steps.push((ms, Step::Held(1, renewed_ttl(ms))));
            steps.push((ms + 1, Step::Listening(1)));
            if freed > 0 && ms > 0 && ms % freed == 0 {
                steps.push((ms + 2, Step::Released));
            }
        }
        steps
    };
    for (what, steps, expected) in [
        ("a renewal on its way", after([overdue(36_000)]), vec![]),
        ("a renewal overdue", after([overdue(38_000)]), vec![(RenewalOverdue, CERTAIN)]),
        (
            "renewed after all",
            after([overdue(38_000), (39_000, Step::Held(1, Some(30_000)))]),
            vec![],
        ),
        (
            "expired under its holder",
            gone_after(running_out(), [(50_020, Step::Free)]),
            vec![(Expired, SUSPECTED)],
        ),
        (
            "expired and acquired at once by another",
            gone_after(running_out(), [(50_020, Step::Held(2, Some(29_990)))]),
            vec![(Expired, SUSPECTED)],
        ),
        (
            "expired and acquired at once by another, who soon releases it",
            gone_after(
                running_out(),
                [
                    (50_020, Step::Held(2, Some(29_990))),
                    (50_200, Step::Released),
                    (50_500, Step::Free),
                ],
            ),
            vec![(Expired, SUSPECTED)],
        ),
        (
            "reported for an hour",
            gone_after(running_out(), [(50_020, Step::Free), (3_640_000, Step::Free)]),
            vec![(Expired, SUSPECTED)],
        ),
        (
            "and no longer",
            gone_after(running_out(), [(50_020, Step::Free), (3_660_000, Step::Free)]),
            vec![],
        ),
        (
            "released just before",
            gone_after(running_out(), [(49_500, Step::Released), (49_600, Step::Free)]),
            vec![],
        ),
        (
            "released at its very end, reported after a reading",
            gone_after(
                running_out(),
                [(49_980, Step::Free), (49_985, Step::Released), (50_500, Step::Free)],
            ),
            vec![],
        ),
        ("gone early, without a message", after([overdue(30_000), (31_000, Step::Free)]), vec![]),
        ("not watched to the end", after([overdue(40_000), (50_020, Step::Free)]), vec![]),
        (
            "lost in a restart",
            gone_after(
                running_out(),
                [(49_100, Step::Down), (49_900, Step::Up("two")), (50_020, Step::Free)],
            ),
            vec![],
        ),
        (
            "not read to the end",
            gone_after(
                running_out(),
                [(49_100, Step::Down), (49_900, Step::Up("one")), (50_020, Step::Free)],
            ),
            vec![],
        ),
        (
            "a fixed lease that ends",
            (0..30_000)
                .step_by(1_000)
                .map(|ms| (ms, Step::Held(1, Some(30_000 - ms))))
                .chain([(30_020, Step::Free)])
                .collect(),
            vec![],
        ),
        ("a queue for a minute", waits(60_000), vec![]),
        ("a queue for longer", waits(62_000), vec![(Starving, CERTAIN)]),
        (
            "a queue that moves",
            (0..200_000_u64)
                .step_by(2_000)
                .map(|ms| {
                    let first = i64::try_from(ms / 20_000).unwrap();
                    queue(ms, Some(1), vec![(first, 900_000), (first + 1, 900_000)])
                })
                .collect(),
            vec![],
        ),
        ("served in the end", gone_after(waits(62_000), [queue(63_000, Some(1), vec![])]), vec![]),
        ("subscribers behind one holder", listened(72_000, 0), vec![(Starving, SUSPECTED)]),
        ("subscribers behind a lock that changes hands", listened(200_000, 20_000), vec![]),
        (
            "subscribers that have left",
            gone_after(
                listened(72_000, 0),
                [(73_000, Step::Listening(0)), (74_000, Step::Held(1, Some(26_000)))],
            ),
            vec![],
        ),
        (
            "a dead queue for less than a minute",
            vec![queue(1_000, None, dead()), queue(60_000, None, dead())],
            vec![],
        ),
        (
            "a dead queue",
            vec![queue(1_000, None, dead()), queue(61_002, None, dead())],
            vec![(Orphan, CERTAIN)],
        ),
        (
            "taken meanwhile",
            vec![
                queue(1_000, None, dead()),
                queue(30_000, Some(2), vec![]),
                queue(61_000, None, dead()),
                queue(90_000, None, dead()),
            ],
            vec![],
        ),
        (
            "removed by the next client",
            vec![queue(1_000, None, dead()), queue(62_000, None, dead()), (63_000, Step::Free)],
            vec![],
        ),
        (
            "alive by the server's clock, a minute behind ours",
            vec![
                (0, Step::Ahead(-60_000)),
                queue(70_000, None, vec![(1, 75_000)]),
                queue(132_000, None, vec![(1, 75_000)]),
            ],
            // The waiter is not woken.
            vec![(Starving, CERTAIN)],
        ),
        (
            "dead by the server's clock, a minute ahead",
            vec![
                (0, Step::Ahead(60_000)),
                queue(20_000, None, vec![(1, 75_000)]),
                queue(81_000, None, vec![(1, 75_000)]),
            ],
            vec![(Orphan, CERTAIN)],
        ),
    ] {
        let shown = play(&steps);
        let shown = shown.as_deref().map(problems).unwrap_or_default();
        assert_eq!(shown, expected, "{what}");
    }
}

#[test]
fn requested_readings_are_the_decisive_ones() {
    let mut model = model();
    let mut ms = 0;
    let mut found = Vec::new();
    // The lock is renewed until 60 s, and then its holder freezes. The test reads the lock whenever the model requests
    // it.
    while ms < 200_000 {
        ms += 20;
        for request in model.due(MAIN, at(ms), 10) {
            assert_eq!(request.name, name("a"));
            let renewed = ms.min(60_000) / 10_000 * 10_000;
            let then = match (renewed + 30_000).checked_sub(ms) {
                Some(left) if left > 0 => Step::Held(1, Some(left)),
                _ => Step::Free,
            };
            apply(&mut model, ms, &then);
        }
        if ms == 1_000 {
            apply(&mut model, ms, &Step::Held(1, Some(29_000)));
        }
        if let Some(view) = shown(&mut model, "a") {
            for problem in problems(&view) {
                if !found.iter().any(|(known, _)| *known == problem) {
                    found.push((problem, ms));
                }
            }
        }
    }
    let [(overdue, at_overdue), (expired, at_expired)] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (overdue.0, expired),
        (ProblemKind::RenewalOverdue, (ProblemKind::Expired, SUSPECTED))
    );
    assert!((76_500..=79_500).contains(&at_overdue), "{at_overdue}");
    assert!((90_000..=90_100).contains(&at_expired), "{at_expired}");
}

#[test]
fn a_watchdog_that_renews_late_each_time_is_one_problem_with_a_count() {
    let mut model = model();
    let overdue = |model: &mut Model| {
        let view = shown(model, "a").unwrap();
        view.problems.iter().find(|p| p.problem == ProblemKind::RenewalOverdue).cloned()
    };
    // A lease of 30 s is renewed only every 17 s.
    let cycle = |model: &mut Model, from: u64, every: u64| {
        for ms in [0, 5_000, 10_000, every - 100] {
            apply(model, from + ms, &Step::Held(1, Some(30_000 - ms)));
        }
    };
    // The lock is healthy before, since otherwise its renewals would not be known.
    for from in [0, 10_100, 20_200] {
        cycle(&mut model, from, 10_100);
    }
    let start = 30_300;
    for turn in 0..10 {
        let from = start + turn * 17_000;
        cycle(&mut model, from, 17_000);
        let problem = overdue(&mut model).expect("it is late");
        assert_eq!(u64::from(problem.times), turn + 1);
        let due = problem.since.0.abs_diff(start + 16_500);
        assert!(due < 10, "since the first one was due, and {due} ms off");
        // The renewal comes just in time.
        apply(&mut model, from + 16_999, &Step::Held(1, Some(30_000)));
        assert_eq!(overdue(&mut model).is_some(), turn > 0, "{turn}");
    }
    let is_stored = |entry: &ArchiveEntry| {
        matches!(entry, ArchiveEntry::Problem(_, ProblemKind::RenewalOverdue, ..))
    };
    let stored = archived(&mut model).iter().filter(|entry| is_stored(entry)).count();
    assert_eq!(stored, 2, "its beginnings");
    let found = overdue(&mut model).unwrap().evidence[0].text.clone();
    assert!(found.contains("missed a renewal 10 times, the latest with 13.1 s left"), "{found}");
    let view = shown(&mut model, "a").unwrap();
    let begun = view.events.views().filter(|event| event.event == "problem").count();
    assert_eq!(begun, 2, "the first one, and all others as one");
    let now = start + 170_000;
    for turn in 0..10 {
        cycle(&mut model, now + turn * 10_100, 10_100);
    }
    assert_eq!(overdue(&mut model), None, "in time for three leases");
}

#[test]
fn a_deadlock_is_reported_once_each_wait_was_seen_after_the_newest_hold() {
    let mut model = model();
    let reads = |model: &mut Model, ms: u64, lock: &str, by: u8, waits: Option<i64>| {
        let thread = |n: u8| HolderId::new(ClientId::from_random([9; 16]), i64::from(n));
        let holders = vec![Holder { id: thread(by), count: 1 }];
        let hash = LockHash { holders, ..Default::default() };
        let places: Vec<_> = waits.into_iter().map(|n| (n, 900_000)).collect();
        let reading =
            Reading::Lock { hash, ttl: Some(Duration::from_secs(60)), companions: queued(&places) };
        read(model, lock, ms, reading);
    };
    let deadlocked = |model: &mut Model, lock: &str| {
        let view = shown(model, lock).unwrap();
        view.problems.iter().any(|problem| problem.problem == ProblemKind::Deadlock)
    };
    reads(&mut model, 0, "a", 1, Some(2));
    reads(&mut model, 1_000, "b", 2, None);
    model.tick(at(1_500));
    assert!(!deadlocked(&mut model, "a"));
    reads(&mut model, 2_000, "b", 2, Some(1));
    model.tick(at(2_500));
    assert!(!deadlocked(&mut model, "b"), "2 was seen to wait before it was seen to hold");
    let due: Vec<_> = model.due(MAIN, at(2_600), 10).into_iter().map(|due| due.name).collect();
    assert!(due.contains(&name("a")), "so it is read again at once: {due:?}");
    reads(&mut model, 2_700, "a", 1, Some(2));
    model.tick(at(3_500));
    assert!(deadlocked(&mut model, "a") && deadlocked(&mut model, "b"));
    let hour = model.contention(time(70_000));
    let minutes = hour.groups.iter().flat_map(|group| &group.minutes);
    assert_eq!(minutes.map(|minute| minute.problems).sum::<u32>(), 2, "the last hour shows it");
    // Nothing changes while the server is unreachable.
    model.observe(MAIN, Observation::ServerDown);
    model.tick(at(4_500));
    assert!(deadlocked(&mut model, "a"));
    let up = Observation::ServerUp {
        since: at(5_000),
        at: SteadyMillis(5_000),
        run_id: None,
        cluster: false,
    };
    model.observe(MAIN, up);
    reads(&mut model, 6_000, "a", 1, None);
    reads(&mut model, 6_000, "b", 2, Some(1));
    model.tick(at(6_500));
    assert!(!deadlocked(&mut model, "a") && !deadlocked(&mut model, "b"));
}

#[test]
fn evidence_follows_a_deadlock_and_a_hash_that_change() {
    let thread = |n: i64| HolderId::new(ClientId::from_random([9; 16]), n);
    let contended = |by: i64, waits: i64| {
        let holders = vec![Holder { id: thread(by), count: 1 }];
        let hash = LockHash { holders, ..Default::default() };
        let companions = queued(&[(waits, 900_000)]);
        Reading::Lock { hash, ttl: Some(Duration::from_secs(60)), companions }
    };
    let mut model = model();
    for (second, other) in [(1, 2), (11, 3)] {
        for ms in [0, 1_000].map(|ms| second * 1_000 + ms) {
            read(&mut model, "b", ms, contended(other, 1));
            read(&mut model, "a", ms + 10, contended(1, other));
        }
        read_twice(&mut model, "b", second * 1_000 + 2_000, contended(other, 1));
        model.tick(at(second * 1_000 + 2_500));
        let view = shown(&mut model, "a").unwrap();
        let problem = &view.problems[0];
        let waiters: Vec<_> = problem.cycle.iter().map(|wait| wait.waiter.clone()).collect();
        assert_eq!(waiters, [thread(1), thread(other)].map(|id| id.to_string()));
        for (wait, evidence) in problem.cycle.iter().zip(&problem.evidence) {
            assert!(evidence.text.starts_with(&wait.waiter), "{}", evidence.text);
        }
    }
    let mut reading = held(1, 0, Some(30_000));
    read(&mut model, "c", 1_000, reading.clone());
    if let Reading::Lock { hash, .. } = &mut reading {
        hash.unexpected.push(b"colour".to_vec());
    }
    read(&mut model, "c", 2_000, reading.clone());
    read(&mut model, "c", 3_000, reading);
    let view = shown(&mut model, "c").unwrap();
    let problem = &view.problems[0];
    assert_eq!((problem.problem, problem.since), (ProblemKind::Malformed, SteadyMillis(1_001)));
    let evidence: Vec<_> = problem.evidence.iter().map(|it| (it.at, &*it.text)).collect();
    assert_eq!(evidence, [(SteadyMillis(2_001), "unexpected field `colour`")]);
}

#[test]
fn a_queue_that_was_only_counted_is_dead_when_all_its_deadlines_have_passed() {
    for (deadlines, passed, found) in [(2, 2, true), (2, 1, false), (0, 0, false)] {
        let mut model = model();
        for ms in [1_000, 62_000] {
            let queue = Some(Queue { len: 2, front: Vec::new(), deadlines, passed });
            let companions = Companions { queue, ..Companions::default() };
            read(&mut model, "a", ms, Reading::Absent { companions });
        }
        let problems = problems(&shown(&mut model, "a").unwrap());
        assert_eq!(!problems.is_empty(), found, "{deadlines} {passed}");
    }
}

#[test]
fn braces_that_separate_a_lock_from_its_channel_are_a_problem_only_in_a_cluster() {
    for cluster in [false, true] {
        let mut model = model();
        let up = Observation::ServerUp { since: at(0), at: SteadyMillis(0), run_id: None, cluster };
        model.observe(MAIN, up);
        read(&mut model, "a}b", 0, held(1, 1, Some(30_000)));
        assert_eq!(!shown(&mut model, "a}b").unwrap().problems.is_empty(), cluster);
    }
}

/// Returns how often that problem was counted since the last call.
fn counted(model: &mut Model, problem: ProblemKind) -> usize {
    let effects = model.take_effects().into_iter();
    effects
        .filter(|(_, effect)| matches!(effect, Effect::Detected(it, ..) if *it == problem))
        .count()
}

#[test]
fn a_problem_whose_certainty_changes_counts_once() {
    let mut model = model();
    let mut seen = Vec::new();
    for ms in (0..800_000).step_by(5_000) {
        if ms == 400_000 || ms == 410_000 {
            let on = ms == 410_000;
            model.observe(MAIN, Observation::PubSubActive { on, at: at(ms) });
        }
        apply(&mut model, ms, &Step::Held(1, renewed_ttl(ms)));
        seen.extend(problems(&shown(&mut model, "a").unwrap()));
    }
    seen.dedup();
    assert_eq!(seen, [CERTAIN, SUSPECTED, CERTAIN].map(|how| (ProblemKind::Stuck, how)));
    assert_eq!(counted(&mut model, ProblemKind::Stuck), 1);
}

/// Hours of healthy locks, observed by the slowest possible poll.
#[test]
fn hours_of_healthy_locks_raise_no_problem() {
    let mut model = model();
    let shifts = [0, 137, 4_999];
    for second in (0..4 * 3_600_u64).step_by(5) {
        let ms = second * 1_000;
        let mut see = |lock: &str, reading| read(&mut model, lock, ms, reading);
        for shift in shifts {
            // A watchdog renews this lock, and another thread acquires it every two minutes.
            let by = u8::try_from(ms / 120_000 % 200).unwrap();
            see(&format!("work:{shift}"), held(by, 1, renewed_ttl(ms + shift)));
        }
        // One thread acquires and releases the same lock all day.
        see("hot", held(1, 1, Some(30_000 - ms % 7)));
        // This is a throttle: a lease of a minute that is never released.
        see("throttle", held(2, 1, Some(60_000 - ms % 60_000)));
        // This is a long fixed lease.
        see("batch", held(3, 1, Some(4 * 3_600_000 - ms + 1)));
        release(&mut model, "work:0", ms / 120_000 * 120_000);
        model.tick(at(ms));
        for effect in model.take_effects() {
            assert!(!matches!(effect.1, Effect::Detected(..)), "at {second} s: {effect:?}");
        }
    }
}

#[test]
fn a_hash_with_several_fields_of_another_form_is_not_proved_a_lock_by_its_time_to_live() {
    let several = || {
        let fields = ["red", "blue"].map(|word| format!("{}:{word}", holder(1).client));
        let hash = LockHash::parse(fields.iter().map(|field| (field.as_bytes(), &b"2"[..])));
        assert_eq!((hash.foreign.len(), hash.unexpected.len()), (2, 0));
        let companions = Companions::default();
        Reading::Lock { hash, ttl: Some(Duration::from_secs(3_600)), companions }
    };
    let mut model = model();
    for ms in [1_000, 5_000, 20_000] {
        read(&mut model, "cart", ms, several());
    }
    let view = shown(&mut model, "cart").unwrap();
    assert!(!view.confirmed);
    assert_eq!(problems(&view), []);
}

#[test]
fn a_lock_without_release_messages_that_is_gone_may_have_been_released() {
    let silent = "released this fair or spin lock without a message";
    for (fair, heard, event) in
        [(true, true, silent), (false, false, silent), (false, true, "expired without")]
    {
        for taken in [false, true] {
            let mut model = model();
            if fair {
                let companions = queued(&[(7, 900_000)]);
                read(&mut model, "a", 0, Reading::Absent { companions });
            }
            if heard {
                read(&mut model, "a", 100, held(2, 1, Some(5_000)));
                release(&mut model, "a", 200);
                read(&mut model, "a", 210, absent());
            }
            read(&mut model, "a", 1_000, held(1, 1, Some(5_000)));
            let after = if taken { held(3, 1, Some(30_000)) } else { absent() };
            read(&mut model, "a", 9_000, after);
            let view = shown(&mut model, "a").unwrap();
            let texts: Vec<String> = view.events.views().map(|event| event.text).collect();
            assert!(texts.iter().any(|text| text.contains(event)), "{texts:?}");
            let ended = if event == silent { "vanished" } else { "ran_out" };
            assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some(ended));
        }
    }
}

#[test]
fn a_lock_is_read_shortly_before_its_lease_ends_and_shortly_after() {
    let mut model = model();
    read(&mut model, "a", 1_000, held(1, 1, Some(8_000)));
    let due = |model: &mut Model, ms: u64| model.due(MAIN, at(ms), 10).len();
    assert_eq!((due(&mut model, 8_300), due(&mut model, 8_700)), (0, 1));
    read(&mut model, "a", 8_700, held(1, 1, Some(300)));
    assert_eq!((due(&mut model, 8_900), due(&mut model, 9_200)), (0, 1));
    read(&mut model, "a", 9_100, absent());
    assert_eq!(
        shown(&mut model, "a").unwrap().history.past[0].ended.map(PastEnding::as_str),
        Some("ran_out")
    );
}

#[test]
fn an_end_while_the_server_could_not_be_read_is_not_taken_for_a_lease_that_ran_out() {
    for after in [absent(), held(2, 1, Some(30_000))] {
        let mut model = model();
        read(&mut model, "a", 1_000, held(1, 1, Some(5_000)));
        model.observe(MAIN, Observation::ServerDown);
        model.observe(MAIN, Observation::PubSubActive { on: false, at: at(1_500) });
        let run_id = Some("one".into());
        let up = Observation::ServerUp {
            since: at(8_000),
            at: SteadyMillis(8_000),
            run_id,
            cluster: false,
        };
        model.observe(MAIN, up);
        read(&mut model, "a", 9_000, after);
        let view = shown(&mut model, "a").unwrap();
        let texts: Vec<String> = view.events.views().map(|event| event.text).collect();
        let text = "released, or its lease expired, while release messages were not received";
        assert!(texts.iter().any(|event| event.contains(text)), "{texts:?}");
        assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("vanished"));
    }
}

#[test]
fn an_end_while_no_messages_are_received_is_not_taken_for_a_lease_that_ran_out() {
    for after in [absent(), held(2, 1, Some(30_000))] {
        let mut model = model();
        read(&mut model, "a", 100, held(3, 1, Some(5_000)));
        release(&mut model, "a", 200);
        read(&mut model, "a", 210, absent());
        read(&mut model, "a", 1_000, held(1, 1, Some(5_000)));
        model.observe(MAIN, Observation::PubSubActive { on: false, at: at(1_500) });
        read(&mut model, "a", 9_000, after);
        let view = shown(&mut model, "a").unwrap();
        let ended = view.history.past[0].ended.map(PastEnding::as_str);
        assert_eq!(ended, Some("vanished"), "{:?}", view.history.past);
    }
}

#[test]
fn stuck_locks_are_found_among_more_than_can_be_read_in_time() {
    const LOCKS: u64 = 1_500;
    // One lock in ten is acquired again as soon as it has been released.
    let is_reacquired = |i: u64| i.is_multiple_of(10);
    let locks: HashMap<LockName, u64> = (0..LOCKS).map(|i| (name(&format!("l{i}")), i)).collect();
    let ttl = |i: u64, ms: u64| 30_000 - (ms + i * 37) % if is_reacquired(i) { 70 } else { 10_000 };
    let rate = Some(25);
    let mut model = model_with(Settings { max_locks: 10_000, poll_rate: rate, ..settings() });
    for (name, i) in &locks {
        let (name, reading) = (name.clone(), held(1, 1, Some(ttl(*i, 100))));
        let found = Observation::Read { name, stamp: stamp(100), source: Source::Scan, reading };
        model.observe(MAIN, found);
    }
    let mut last_read = vec![100; locks.len()];
    let mut longest = 0;
    for ms in (120..700_000).step_by(20) {
        for ReadRequest { name, .. } in model.due(MAIN, at(ms), 10) {
            let i = locks[&name];
            let last = &mut last_read[usize::try_from(i).unwrap()];
            longest = longest.max(ms - std::mem::replace(last, ms));
            let reading = held(1, 1, Some(ttl(i, ms)));
            let read = Observation::Read { name, stamp: stamp(ms), source: Source::Poll, reading };
            model.observe(MAIN, read);
        }
    }
    model.publish(SteadyMillis(700_000));
    let id = |name: &LockName| model.scopes[0].id(name);
    let stuck = locks.iter().filter(|(name, _)| {
        let view = model.snapshot.get(&id(name)).unwrap();
        view.problems.iter().any(|problem| problem.problem == ProblemKind::Stuck)
    });
    let (wrong, found): (Vec<u64>, Vec<u64>) =
        stuck.map(|(_, i)| *i).partition(|i| is_reacquired(*i));
    assert_eq!(wrong, Vec::<u64>::new());
    assert!(found.len() > 200, "{} of {LOCKS}", found.len());
    let round_ms = LOCKS * 1_000 / 25;
    assert!(longest < round_ms * 3 / 2, "{longest} ms without a reading of a lock");
}
