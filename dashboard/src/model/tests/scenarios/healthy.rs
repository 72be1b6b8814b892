//! Healthy locks, which must raise no problem with any choice of sources.

use super::*;

/// Plays it with each choice of sources, and nothing must be found.
fn quiet(what: &str, play: impl Fn(&mut Play)) {
    quiet_with(what, &settings(), play);
}

fn quiet_with(what: &str, settings: &Settings, script: impl Fn(&mut Play)) {
    for seeing in Seeing::every() {
        let mut play = Play::with(seeing, settings.clone());
        script(&mut play);
        assert_eq!(play.turns(), [], "{what} by {seeing:?}");
        let detected = |(_, effect): &(ScopeId, Effect)| matches!(effect, Effect::Detected(..));
        assert!(!play.model.take_effects().iter().any(detected), "{what} by {seeing:?}");
    }
}

#[test]
fn a_fixed_lease_that_ends_is_none() {
    quiet("one after the other", |play| {
        for n in 1..=5 {
            assert!(play.take("a", holder(n), 30_000));
            play.pass(33_000);
        }
    });
    quiet("end to end by one thread", |play| {
        for _ in 0..8 {
            assert!(play.take("a", holder(1), 30_000));
            play.pass(30_000);
        }
    });
    quiet("ended early by its holder", |play| {
        for _ in 0..8 {
            assert!(play.take("a", holder(1), 30_000));
            play.pass(27_300);
            assert!(play.release("a", holder(1), true));
            play.pass(2_000);
        }
    });
}

#[test]
fn a_lock_that_is_always_held_long_is_none() {
    let rule = Rule { stuck_after: None, starving_after: None };
    let rules = vec![LockRule { pattern: b"a".to_vec(), rule }];
    quiet_with("expected to be long", &Settings { rules, ..settings() }, |play| {
        play.take_and_renew("a", holder(1));
        play.pass(5_000);
        play.waits_for("a", holder(2));
        play.pass(900_000);
    });
    quiet("as long as ever", |play| {
        for n in 1..=4 {
            play.take_and_renew("a", holder(n));
            play.pass(280_000);
            assert!(play.release("a", holder(n), true));
            play.pass(1_000);
        }
    });
}

#[test]
fn a_hot_lock_a_throttle_and_a_spin_lock_are_none() {
    quiet("a hot lock, retaken by one thread", |play| {
        for _ in 0..400 {
            play.take_and_renew("a", holder(1));
            play.pass(800);
            assert!(play.release("a", holder(1), true));
            play.pass(100);
        }
    });
    quiet("a throttle", |play| {
        for n in 0..6 {
            assert!(play.take("a", holder(n % 3), 60_000));
            play.pass(60_700);
        }
    });
    quiet("released without a message", |play| {
        for n in 0..30 {
            play.take_and_renew("a", holder(n % 3));
            play.pass(9_700);
            assert!(play.release("a", holder(n % 3), false));
            play.pass(500);
        }
    });
}

#[test]
fn a_reading_that_raced_a_release_is_none() {
    quiet("held just before, told after", |play| {
        for n in 0..20_u8 {
            let by = holder(10 + n);
            play.take_and_renew("a", by);
            play.pass(21_000 + u64::from(n) * 100);
            // A pass read it; the answer comes when it has been released, and even taken by another.
            let (before, ms) = (play.reading("a"), play.now);
            play.pass(100);
            assert!(play.release("a", by, true));
            play.pass(100);
            if n % 2 == 0 {
                assert!(play.take("a", holder(2), 2_000));
            }
            play.tell_reading("a", ms, Source::Scan, before);
            play.pass(3_000);
        }
    });
    quiet("absent just before, told after it was taken", |play| {
        for n in 0..20 {
            let (before, ms) = (play.reading("a"), play.now);
            play.take_and_renew("a", holder(n));
            play.pass(100);
            play.tell_reading("a", ms, Source::Scan, before);
            play.pass(21_000);
            assert!(play.release("a", holder(n), true));
            play.pass(100);
        }
    });
}

#[test]
fn a_queue_that_moves_is_none() {
    quiet("a fair queue of five", |play| {
        play.take_and_renew("a", holder(0));
        for n in 1..5 {
            play.queues("a", holder(n));
        }
        for turn in 0..40_u8 {
            play.pass(11_000);
            assert!(play.release("a", holder(turn % 5), turn % 2 == 0));
            play.next_in_queue("a");
            play.queues("a", holder(turn % 5));
        }
    });
    quiet("those who wait for a plain lock have it in turn", |play| {
        play.take_and_renew("a", holder(0));
        for turn in 0..40_u8 {
            let (holds, next) = (holder(turn % 2), holder((turn + 1) % 2));
            play.pass(2_000);
            play.waits_for("a", next);
            play.pass(18_000);
            assert!(play.release("a", holds, true));
        }
    });
    quiet("places of the dead are cleared by those who come", |play| {
        play.take_and_renew("a", holder(0));
        for n in 1..12_u8 {
            play.queues_until("a", holder(n), play.clock() + 8_000);
            play.pass(12_000);
            play.leaves_queue("a", holder(n));
            play.pass(5_000);
        }
    });
}

#[test]
fn a_failover_is_none() {
    quiet("all keys survive", |play| {
        play.take_and_renew("a", holder(1));
        play.take_and_renew("b", holder(2));
        assert!(play.take("c", holder(3), 600_000));
        play.pass(25_000);
        play.queues("b", holder(4));
        play.pass(20_000);
        play.goes_down();
        play.pass(3_000);
        play.comes_back("two");
        play.pass(20_000);
        play.leaves_queue("b", holder(4));
        play.pass(60_000);
    });
    // Whoever renews after that learns that the lock is lost: then it is one, and no false one.
    quiet("nothing survives, and nobody comes back", |play| {
        play.take_and_renew("a", holder(1));
        assert!(play.take("c", holder(3), 600_000));
        play.pass(45_000);
        play.goes_down();
        play.forgets_all();
        for n in [1, 3] {
            play.freezes(holder(n));
        }
        play.pass(3_000);
        play.comes_back("two");
        play.pass(120_000);
    });
    quiet("out of reach beyond the end of a lease", |play| {
        play.take_and_renew("a", holder(1));
        play.pass(45_000);
        play.freezes(holder(1));
        play.goes_down();
        play.pass(40_000);
        play.comes_back("one");
        play.pass(60_000);
    });
}

#[test]
fn a_clock_that_differs_by_a_minute_is_none() {
    for ahead_ms in [-60_000, 60_000] {
        quiet(&format!("the server's clock {ahead_ms} ms ahead"), |play| {
            play.ahead_ms = ahead_ms;
            play.pass(20_000);
            play.take_and_renew("a", holder(1));
            play.take_and_renew("b", holder(2));
            // A place that lasts for less than the clocks differ, by the clock of those in the queue.
            for n in 10..16 {
                play.queues_until("a", holder(n), play.clock() + 45_000);
                play.pass(30_000);
                play.leaves_queue("a", holder(n));
                play.pass(2_000);
            }
            assert!(play.take("c", holder(4), 20_000));
            play.pass(60_000);
        });
    }
    // The dashboard's own clock is set while it runs.
    quiet("set by a minute on the way", |play| {
        play.take_and_renew("a", holder(1));
        play.queues("a", holder(2));
        play.pass(25_000);
        play.ahead_ms = 60_000;
        play.pass(20_000);
        play.leaves_queue("a", holder(2));
        play.pass(60_000);
    });
}

#[test]
fn a_watchdog_that_is_somewhat_late_is_none() {
    quiet("three seconds late each time", |play| {
        play.take_and_renew("a", holder(1));
        for _ in 0..12 {
            play.freezes(holder(1));
            play.pass(13_000);
            play.set_ends("a", Some(LEASE));
        }
    });
}
