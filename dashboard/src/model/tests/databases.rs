//! Tests of release messages of servers with several databases, which do not name the database of the lock.

use super::*;

const OTHER: ScopeId = ScopeId(1);

/// Returns a model of two databases of one server.
fn two_databases() -> Model {
    let scopes = [(Arc::from("main"), 0), (Arc::from("main"), 1)];
    let mut model = Model::new(settings(), Grouping::new(Vec::new(), 10), &scopes, at(0));
    for scope in [MAIN, OTHER] {
        let (since, at, run_id) = (at(0), SteadyMillis(0), Some("one".into()));
        model.observe(scope, Observation::ServerUp { since, at, run_id, cluster: false });
        model.observe(scope, Observation::PubSubActive { on: true, at: since });
    }
    model
}

fn read_in(model: &mut Model, scope: ScopeId, lock: &str, ms: u64, reading: Reading) {
    let (name, stamp, source) = (name(lock), stamp(ms), Source::Poll);
    model.observe(scope, Observation::Read { name, stamp, source, reading });
}

fn shown_in(model: &mut Model, scope: ScopeId, lock: &str) -> Option<Arc<LockView>> {
    model.publish(SteadyMillis(0));
    let id = model.scopes[scope.0].id(&name(lock));
    model.snapshot.get(&id).cloned()
}

/// Reads a lock that a watchdog renews for a minute.
fn hold_for_a_minute(model: &mut Model, scope: ScopeId, by: u8) {
    for ms in (1_000..=60_000).step_by(5_000) {
        read_in(model, scope, "job", ms, held(by, 1, renewed_ttl(ms)));
    }
}

#[test]
fn a_lock_goes_on_when_that_of_the_same_name_in_another_database_is_released() {
    let mut model = two_databases();
    hold_for_a_minute(&mut model, MAIN, 1);
    hold_for_a_minute(&mut model, OTHER, 2);
    let before = shown_in(&mut model, OTHER, "job").unwrap();
    release(&mut model, "job", 64_000);
    read_in(&mut model, MAIN, "job", 64_010, absent());
    read_in(&mut model, OTHER, "job", 64_010, held(2, 1, renewed_ttl(64_010)));
    let (here, other) = (shown(&mut model, "job"), shown_in(&mut model, OTHER, "job").unwrap());
    let here = here.unwrap();
    assert_eq!((here.state, words(&here).last()), (State::Free, Some(&"released")));
    assert_eq!((other.state, other.renewed), (State::Held, true));
    assert_eq!(other.holders[0].since, before.holders[0].since);
    assert_eq!(words(&other), words(&before));
}

#[test]
fn a_release_is_of_the_database_in_which_the_lock_is_held() {
    let mut model = two_databases();
    read_in(&mut model, OTHER, "job", 1_000, held(1, 1, Some(30_000)));
    release(&mut model, "job", 2_000);
    read_in(&mut model, OTHER, "job", 2_010, absent());
    assert_eq!(shown(&mut model, "job"), None);
    let view = shown_in(&mut model, OTHER, "job").unwrap();
    assert_eq!(words(&view).last(), Some(&"released"));
    let past = &view.history.past;
    assert_eq!(past.iter().map(|hold| hold.to).collect::<Vec<_>>(), [Some(SteadyMillis(2_000))]);
}

#[test]
fn a_lock_goes_on_while_that_of_the_same_name_is_held_too_briefly_elsewhere_to_be_read() {
    for known in [true, false] {
        let mut model = two_databases();
        if known {
            read_in(&mut model, OTHER, "job", 500, held(2, 1, Some(30_000)));
            read_in(&mut model, OTHER, "job", 900, absent());
        }
        read_in(&mut model, MAIN, "job", 900, absent());
        // A watchdog renews it every ten seconds, the first time at 11 s.
        let ttl = |ms: u64| Some(30_000 - (ms - 1_000) % 10_000);
        read_in(&mut model, MAIN, "job", 1_000, held(1, 1, ttl(1_000)));
        let began = shown(&mut model, "job").unwrap().holders[0].since;
        for ms in (1_070..60_000).step_by(70) {
            release(&mut model, "job", ms);
            read_in(&mut model, MAIN, "job", ms + 10, held(1, 1, ttl(ms + 10)));
            // This message was overtaken by the reading.
            release(&mut model, "job", ms + 5);
        }
        let view = shown(&mut model, "job").unwrap();
        assert_eq!(view.holders[0].since, began);
        assert_eq!(words(&view), ["taken", "renewed"]);
        assert!(view.renewed && view.history.past.is_empty());
    }
}

#[test]
fn an_early_first_renewal_is_no_release_when_the_lock_of_the_same_name_elsewhere_is_released() {
    // The holder renews the lock three seconds after it has acquired it, or releases it at 9 s and acquires it again.
    for (set_again, expected) in [(4_000, &["taken"][..]), (9_005, &["taken", "released", "taken"])]
    {
        let mut model = two_databases();
        read_in(&mut model, OTHER, "job", 500, held(2, 1, Some(30_000)));
        read_in(&mut model, MAIN, "job", 900, absent());
        read_in(&mut model, MAIN, "job", 1_000, held(1, 1, Some(30_000)));
        release(&mut model, "job", 9_000);
        let ttl = Some(30_000 + set_again - 9_010);
        read_in(&mut model, MAIN, "job", 9_010, held(1, 1, ttl));
        assert_eq!(words(&shown(&mut model, "job").unwrap()), expected);
    }
}

#[test]
fn a_name_that_no_database_is_known_to_have_is_read_in_all_of_them() {
    let mut model = two_databases();
    release(&mut model, "job", 2_000);
    assert_eq!(model.lock_count, 0);
    for scope in [MAIN, OTHER] {
        let due = model.due(scope, at(2_100), 10);
        assert_eq!(due.into_iter().map(|read| read.name).collect::<Vec<_>>(), [name("job")]);
    }
}

#[test]
fn a_reading_decides_where_keys_are_in_databases_that_are_not_watched() {
    let mut model = model();
    model.observe(MAIN, Observation::Databases(vec![0, 3]));
    hold_for_a_minute(&mut model, MAIN, 1);
    let before = shown(&mut model, "job").unwrap();
    release(&mut model, "job", 64_000);
    release(&mut model, "job", 64_300);
    read(&mut model, "job", 64_310, held(1, 1, renewed_ttl(64_310)));
    let view = shown(&mut model, "job").unwrap();
    assert_eq!((words(&view), view.renewed), (words(&before), true), "another's");
    assert_eq!(view.holders[0].since, before.holders[0].since);

    // The same thread has released the lock three times and holds it again. The last two releases are combined into one
    // event.
    for ms in [65_000, 65_100, 65_200] {
        release(&mut model, "job", ms);
    }
    read(&mut model, "job", 65_300, held(1, 1, Some(29_950)));
    let view = shown(&mut model, "job").unwrap();
    let released = words(&view).iter().filter(|word| **word == "released").count();
    assert_eq!((released, view.holders[0].since.exact, view.renewed), (2, true, false));

    // Without keys in other databases, a message is about this lock.
    model.observe(MAIN, Observation::Databases(vec![0]));
    release(&mut model, "job", 66_000);
    assert_eq!(words(&shown(&mut model, "job").unwrap()).last(), Some(&"released"));
}

#[test]
fn a_message_that_is_older_than_the_reading_may_be_about_another_lock_too() {
    let mut model = model();
    model.observe(MAIN, Observation::Databases(vec![0, 3]));
    hold_for_a_minute(&mut model, MAIN, 1);
    read(&mut model, "job", 64_000, held(1, 1, renewed_ttl(64_000)));
    let before = shown(&mut model, "job").unwrap();
    release(&mut model, "job", 63_990);
    let view = shown(&mut model, "job").unwrap();
    assert_eq!((words(&view), view.renewed), (words(&before), true));
    assert_eq!(view.holders[0].since, before.holders[0].since);
}

#[test]
fn a_reading_decides_whose_release_it_is_if_two_locks_share_a_channel() {
    let mut model = model();
    let names = || vec![name("job"), name("{job}")];
    for ms in (1_000..=60_000).step_by(5_000) {
        read_in(&mut model, MAIN, "{job}", ms, held(1, 1, renewed_ttl(ms)));
    }
    let before = shown(&mut model, "{job}").unwrap();
    read_in(&mut model, MAIN, "job", 61_000, held(2, 1, Some(5_000)));
    let at = time(62_000);
    model.observe(MAIN, Observation::Released { names: names(), at });
    read_in(&mut model, MAIN, "job", 62_010, absent());
    read_in(&mut model, MAIN, "{job}", 62_010, held(1, 1, renewed_ttl(62_010)));
    let (released, other) = (shown(&mut model, "job"), shown(&mut model, "{job}").unwrap());
    assert_eq!(words(&released.unwrap()).last(), Some(&"released"));
    assert_eq!((other.state, other.renewed), (State::Held, true));
    assert_eq!(other.holders[0].since, before.holders[0].since);
    assert_eq!(words(&other), words(&before));
}

#[test]
fn many_changes_in_one_database_do_not_delay_those_of_another() {
    let mut model = two_databases();
    model.settings.max_locks = 4_000;
    for n in 0..3_000 {
        read_in(&mut model, MAIN, &format!("job:{n}"), 1_000, held(1, 1, Some(30_000)));
    }
    read_in(&mut model, OTHER, "job", 1_000, held(1, 1, Some(30_000)));
    assert!(shown_in(&mut model, OTHER, "job").is_some());
    assert_eq!(model.snapshot.locks().count(), 2_000);
    model.publish(SteadyMillis(0));
    assert_eq!(model.snapshot.locks().count(), 3_001);
}

/// Returns the reading of a lock that a thread holds while others wait.
fn contended(by: i64, waits: &[i64]) -> Reading {
    let id = HolderId::new(ClientId::from_random([9; 16]), by);
    let hash = LockHash { holders: vec![Holder { id, count: 1 }], ..LockHash::default() };
    let places: Vec<_> = waits.iter().map(|thread| (*thread, 900_000)).collect();
    Reading::Lock { hash, ttl: Some(Duration::from_secs(60)), companions: queued(&places) }
}

#[test]
fn a_deadlock_lasts_while_one_of_its_locks_cannot_be_read() {
    let mut model = two_databases();
    let deadlocked = |model: &mut Model, scope, lock: &str| {
        let view = shown_in(model, scope, lock).unwrap();
        let found = view.problems.iter().find(|found| found.problem == ProblemKind::Deadlock);
        found.map(|found| found.certainty)
    };
    for ms in [1_000, 2_000] {
        read_in(&mut model, MAIN, "a", ms, contended(1, &[2]));
        read_in(&mut model, OTHER, "b", ms, contended(2, &[1]));
    }
    model.tick(at(2_500));
    for (scope, lock) in [(MAIN, "a"), (OTHER, "b")] {
        assert_eq!(deadlocked(&mut model, scope, lock), Some(Certainty::Certain));
    }
    model.observe(OTHER, Observation::ServerDown);
    for ms in [3_000, 4_000] {
        read_in(&mut model, MAIN, "a", ms, contended(1, &[2]));
        model.tick(at(ms + 500));
        let found = deadlocked(&mut model, MAIN, "a");
        assert_eq!(found, Some(Certainty::Suspected), "nothing shows whether it continues");
    }
    // Once the waiter has left, there is no deadlock, whatever the other server says.
    for ms in [5_000, 15_000] {
        read_in(&mut model, MAIN, "a", ms, contended(1, &[]));
        model.tick(at(ms + 500));
    }
    assert_eq!(deadlocked(&mut model, MAIN, "a"), None);
}
