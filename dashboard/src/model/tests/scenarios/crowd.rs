//! Tests of healthy crowds for an hour, which must raise no problem with any choice of sources.

use super::healthy::raises_nothing;
use super::*;

const HOUR: u64 = 3_600_000;
/// The number of readers of one lock.
const READERS: u8 = 6;

/// A sequence of numbers that is the same in each run.
struct Random(u64);

impl Random {
    /// Returns a number from `from` to `to`.
    fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from + self.0 % (to - from + 1)
    }

    fn holder(&mut self, from: u8, to: u8) -> HolderId {
        holder(u8::try_from(self.between(from.into(), to.into())).unwrap())
    }
}

/// Repeats a step for an hour. The step returns the time to the next one.
fn for_an_hour(scenario: &mut Scenario, mut step: impl FnMut(&mut Scenario, &mut Random) -> u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    while scenario.now < HOUR {
        let wait = step(scenario, &mut random);
        scenario.advance(wait);
    }
}

#[test]
fn fixed_leases_that_expire_and_begin_again() {
    raises_nothing("fixed leases", |scenario| {
        for_an_hour(scenario, |scenario, random| {
            // The same thread acquires the lock again right after, or another thread does so later.
            let by = random.holder(1, 2);
            if scenario.take("fixed", by, 3_000) { 3_000 + random.between(0, 60) } else { 500 }
        });
    });
}

#[test]
fn releases_just_after_the_end_of_the_lease() {
    raises_nothing("late releases", |scenario| {
        for_an_hour(scenario, |scenario, random| {
            let by = random.holder(1, 3);
            assert!(scenario.take("late", by, 5_000));
            scenario.advance(5_000 + random.between(0, 200));
            scenario.release("late", by, true);
            random.between(1_000, 8_000)
        });
    });
}

#[test]
fn hand_overs_among_many() {
    raises_nothing("hand-overs", |scenario| {
        let mut by = holder(1);
        scenario.take_and_renew("hot", by);
        for_an_hour(scenario, |scenario, random| {
            assert!(scenario.release("hot", by, random.between(0, 3) > 0));
            by = random.holder(1, 9);
            scenario.take_and_renew("hot", by);
            random.between(100, 9_000)
        });
    });
}

#[test]
fn readers_that_come_and_go() {
    raises_nothing("readers", |scenario| {
        let mut inside: Vec<HolderId> = Vec::new();
        for_an_hour(scenario, |scenario, random| {
            let reader = random.holder(1, READERS);
            match inside.iter().position(|known| *known == reader) {
                Some(i) => {
                    inside.swap_remove(i);
                    scenario.leave_as_reader("shared", reader);
                }
                None => {
                    inside.push(reader);
                    scenario.join_as_reader("shared", reader, 600_000);
                }
            }
            random.between(200, 8_000)
        });
    });
}

#[test]
fn renewals_that_are_late_now_and_then() {
    raises_nothing("late renewals", |scenario| {
        let mut by = holder(1);
        scenario.take_and_renew("jitter", by);
        let (mut since, mut turn) = (0, 1);
        for_an_hour(scenario, |scenario, random| {
            // Each hold lasts some minutes, so that none is stuck. Without release messages, two successive holds of
            // one thread look like one.
            if scenario.now - since > 200_000 {
                assert!(scenario.release("jitter", by, true));
                scenario.advance(500);
                turn = turn % 4 + 1;
                by = holder(turn);
                scenario.take_and_renew("jitter", by);
                since = scenario.now;
            }
            scenario.freeze(by);
            scenario.advance(random.between(9_000, 13_000));
            scenario.set_ttl("jitter", Some(LEASE));
            0
        });
    });
}

#[test]
fn a_fair_queue_that_moves() {
    raises_nothing("a fair queue", |scenario| {
        scenario.take_and_renew("fair", holder(0));
        for n in 1..4 {
            scenario.enqueue("fair", holder(n));
        }
        let mut turn = 0;
        for_an_hour(scenario, |scenario, random| {
            scenario.advance(random.between(300, 12_000));
            assert!(scenario.release("fair", holder(turn % 4), random.between(0, 1) == 0));
            scenario.grant_next("fair");
            scenario.enqueue("fair", holder(turn % 4));
            turn = (turn + 1) % 4;
            0
        });
    });
}
