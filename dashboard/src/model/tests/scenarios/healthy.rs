//! Tests of healthy locks, which must raise no problem with any choice of sources.

use super::*;

/// Runs a script with each choice of sources, and asserts that no problem is found.
pub(super) fn raises_nothing(what: &str, scenario: impl Fn(&mut Scenario)) {
    raises_nothing_with(what, &settings(), scenario);
}

fn raises_nothing_with(what: &str, settings: &Settings, script: impl Fn(&mut Scenario)) {
    for sources in EnabledSources::every() {
        let mut scenario = Scenario::with(sources, settings.clone());
        script(&mut scenario);
        assert_eq!(scenario.changes(), [], "{what} by {sources:?}");
        let detected = |(_, effect): &(ScopeId, Effect)| matches!(effect, Effect::Detected(..));
        assert!(!scenario.model.take_effects().iter().any(detected), "{what} by {sources:?}");
    }
}

#[test]
fn an_expiring_fixed_lease_raises_no_problem() {
    raises_nothing("one after the other", |scenario| {
        for n in 1..=5 {
            assert!(scenario.take("a", holder(n), 30_000));
            scenario.advance(33_000);
        }
    });
    raises_nothing("end to end by one thread", |scenario| {
        for _ in 0..8 {
            assert!(scenario.take("a", holder(1), 30_000));
            scenario.advance(30_000);
        }
    });
    raises_nothing("ended early by its holder", |scenario| {
        for _ in 0..8 {
            assert!(scenario.take("a", holder(1), 30_000));
            scenario.advance(27_300);
            assert!(scenario.release("a", holder(1), true));
            scenario.advance(2_000);
        }
    });
}

#[test]
fn a_lock_with_long_holds_raises_no_problem() {
    let rule = Rule { stuck_after: None, starving_after: None };
    let rules = vec![LockRule { pattern: b"a".to_vec(), rule: rule.into() }];
    raises_nothing_with("expected to be long", &Settings { rules, ..settings() }, |scenario| {
        scenario.take_and_renew("a", holder(1));
        scenario.advance(5_000);
        scenario.wait_for("a", holder(2));
        scenario.advance(900_000);
    });
    raises_nothing("as long as before", |scenario| {
        for n in 1..=4 {
            scenario.take_and_renew("a", holder(n));
            scenario.advance(280_000);
            assert!(scenario.release("a", holder(n), true));
            scenario.advance(1_000);
        }
    });
}

#[test]
fn a_hot_lock_a_throttle_and_a_spin_lock_raise_no_problem() {
    raises_nothing("a hot lock, retaken by one thread", |scenario| {
        for _ in 0..400 {
            scenario.take_and_renew("a", holder(1));
            scenario.advance(800);
            assert!(scenario.release("a", holder(1), true));
            scenario.advance(100);
        }
    });
    raises_nothing("a throttle", |scenario| {
        for n in 0..6 {
            assert!(scenario.take("a", holder(n % 3), 60_000));
            scenario.advance(60_700);
        }
    });
    raises_nothing("released without a message", |scenario| {
        for n in 0..30 {
            scenario.take_and_renew("a", holder(n % 3));
            scenario.advance(9_700);
            assert!(scenario.release("a", holder(n % 3), false));
            scenario.advance(500);
        }
    });
}

#[test]
fn a_reading_that_raced_a_release_raises_no_problem() {
    raises_nothing("held just before, reported after", |scenario| {
        for n in 0..20_u8 {
            let by = holder(10 + n);
            scenario.take_and_renew("a", by);
            scenario.advance(21_000 + u64::from(n) * 100);
            // A scan read the lock, and the reply arrives after the release, or even after the next acquisition.
            let (before, ms) = (scenario.reading("a"), scenario.now);
            scenario.advance(100);
            assert!(scenario.release("a", by, true));
            scenario.advance(100);
            if n % 2 == 0 {
                assert!(scenario.take("a", holder(2), 2_000));
            }
            scenario.report_reading("a", ms, Source::Scan, before);
            scenario.advance(3_000);
        }
    });
    raises_nothing("absent just before, reported after it was taken", |scenario| {
        for n in 0..20 {
            let (before, ms) = (scenario.reading("a"), scenario.now);
            scenario.take_and_renew("a", holder(n));
            scenario.advance(100);
            scenario.report_reading("a", ms, Source::Scan, before);
            scenario.advance(21_000);
            assert!(scenario.release("a", holder(n), true));
            scenario.advance(100);
        }
    });
}

#[test]
fn a_moving_queue_raises_no_problem() {
    raises_nothing("a fair queue of five", |scenario| {
        scenario.take_and_renew("a", holder(0));
        for n in 1..5 {
            scenario.enqueue("a", holder(n));
        }
        for turn in 0..40_u8 {
            scenario.advance(11_000);
            assert!(scenario.release("a", holder(turn % 5), turn % 2 == 0));
            scenario.grant_next("a");
            scenario.enqueue("a", holder(turn % 5));
        }
    });
    raises_nothing("waiters of a plain lock acquire it in turn", |scenario| {
        scenario.take_and_renew("a", holder(0));
        for turn in 0..40_u8 {
            let (holds, next) = (holder(turn % 2), holder((turn + 1) % 2));
            scenario.advance(2_000);
            scenario.wait_for("a", next);
            scenario.advance(18_000);
            assert!(scenario.release("a", holds, true));
        }
    });
    raises_nothing("entries of dead waiters are removed by the next ones", |scenario| {
        scenario.take_and_renew("a", holder(0));
        for n in 1..12_u8 {
            scenario.enqueue_until("a", holder(n), scenario.clock() + 8_000);
            scenario.advance(12_000);
            scenario.leave_queue("a", holder(n));
            scenario.advance(5_000);
        }
    });
}

#[test]
fn a_failover_raises_no_problem() {
    raises_nothing("all keys survive", |scenario| {
        scenario.take_and_renew("a", holder(1));
        scenario.take_and_renew("b", holder(2));
        assert!(scenario.take("c", holder(3), 600_000));
        scenario.advance(25_000);
        scenario.enqueue("b", holder(4));
        scenario.advance(20_000);
        scenario.stop_server();
        scenario.advance(3_000);
        scenario.start_server("two");
        scenario.advance(20_000);
        scenario.leave_queue("b", holder(4));
        scenario.advance(60_000);
    });
    // A renewal after that would show that the lock is lost, which would be a real problem.
    raises_nothing("nothing survives, and no client returns", |scenario| {
        scenario.take_and_renew("a", holder(1));
        assert!(scenario.take("c", holder(3), 600_000));
        scenario.advance(45_000);
        scenario.stop_server();
        scenario.clear_server();
        for n in [1, 3] {
            scenario.freeze(holder(n));
        }
        scenario.advance(3_000);
        scenario.start_server("two");
        scenario.advance(120_000);
    });
    raises_nothing("unreachable beyond the end of a lease", |scenario| {
        scenario.take_and_renew("a", holder(1));
        scenario.advance(45_000);
        scenario.freeze(holder(1));
        scenario.stop_server();
        scenario.advance(40_000);
        scenario.start_server("one");
        scenario.advance(60_000);
    });
}

#[test]
fn a_clock_off_by_a_minute_raises_no_problem() {
    for ahead_ms in [-60_000, 60_000] {
        raises_nothing(&format!("the server's clock {ahead_ms} ms ahead"), |scenario| {
            scenario.ahead_ms = ahead_ms;
            scenario.advance(20_000);
            scenario.take_and_renew("a", holder(1));
            scenario.take_and_renew("b", holder(2));
            // The deadlines of these entries are shorter than the difference between the clocks.
            for n in 10..16 {
                scenario.enqueue_until("a", holder(n), scenario.clock() + 45_000);
                scenario.advance(30_000);
                scenario.leave_queue("a", holder(n));
                scenario.advance(2_000);
            }
            assert!(scenario.take("c", holder(4), 20_000));
            scenario.advance(60_000);
        });
    }
    // The dashboard's own clock is set while the dashboard runs.
    raises_nothing("set by a minute meanwhile", |scenario| {
        scenario.take_and_renew("a", holder(1));
        scenario.enqueue("a", holder(2));
        scenario.advance(25_000);
        scenario.ahead_ms = 60_000;
        scenario.advance(20_000);
        scenario.leave_queue("a", holder(2));
        scenario.advance(60_000);
    });
}

#[test]
fn a_slightly_late_watchdog_raises_no_problem() {
    raises_nothing("three seconds late each time", |scenario| {
        scenario.take_and_renew("a", holder(1));
        for _ in 0..12 {
            scenario.freeze(holder(1));
            scenario.advance(13_000);
            scenario.set_ttl("a", Some(LEASE));
        }
    });
}
