//! What readings of a lock's time to live tell about its lease, and whether somebody renews it.
//!
//! A reading at `m` with `ttl` left says that the lock would end at `m + ttl`. Whoever sets the lease again moves
//! that end by exactly the time since it was last set, however the readings fall between. Redisson's watchdog does
//! so each third of the lease; a lock that is freed and taken again moves its end with every reading.

use std::time::Duration;

use redisson::Moment;

/// How far an end may seem to move by rounding (Redis counts milliseconds) and by slow replies.
const NOISE: Duration = Duration::from_millis(100);
/// How much of a third of the lease must lie between two renewals: watchdogs are not punctual.
const PATIENCE: (u32, u32) = (8, 10);
/// How much of the lease may have passed when it is set again. One that had all but run out was taken anew, as a throttle
/// is.
const LATEST: (u32, u32) = (9, 10);

/// What the readings so far say about one hold.
#[derive(Debug, Clone, Default)]
pub struct LeaseWatch {
    last: Option<Reading>,
    lease: Option<Range>,
    /// How many rises in a row were a watchdog's.
    regular: u32,
    rose: bool,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Moment,
    ttl: Duration,
}

impl Reading {
    fn end(self) -> Moment {
        self.at + self.ttl
    }
}

/// Between what a lease lies: a time to live that was seen, and that plus the time it may have run before.
#[derive(Debug, Clone, Copy)]
struct Range {
    least: Duration,
    most: Duration,
}

impl Range {
    /// Whether both can be the same lease, with a twentieth allowed for.
    fn agrees(self, other: Self) -> bool {
        let up = |most: Duration| most + most / 20;
        self.least <= up(other.most) && other.least <= up(self.most)
    }

    fn narrowed(self, other: Self) -> Self {
        let least = self.least.max(other.least);
        Self { least, most: self.most.min(other.most).max(least) }
    }
}

/// What one reading changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It ran on, or was read for the first time.
    Ran,
    /// It was set again to less than was left.
    Fell,
    /// It was set again, by a renewal or by being taken anew.
    Rose,
}

impl LeaseWatch {
    /// The start of another hold. Its lease is taken to be the one before until a reading contradicts; `age` is
    /// how long the hold may have lasted at this reading, where that is known.
    pub fn restart(&mut self, at: Moment, ttl: Option<Duration>, age: Option<Duration>) {
        self.last = ttl.map(|ttl| Reading { at, ttl });
        self.regular = 0;
        self.rose = false;
        let Some(ttl) = ttl else {
            self.lease = None;
            return;
        };
        let seen = Range { least: ttl, most: age.map_or(Duration::MAX / 2, |age| ttl + age) };
        self.lease = match self.lease {
            Some(lease) if lease.agrees(seen) => Some(lease.narrowed(seen)),
            _ => age.map(|_| seen),
        };
    }

    /// A further reading of the same hold. `slack` is how long the reply took.
    pub fn read(&mut self, at: Moment, slack: Duration, ttl: Option<Duration>) -> Step {
        let Some(ttl) = ttl else {
            *self = Self::default();
            return Step::Ran;
        };
        let now = Reading { at, ttl };
        let Some(before) = self.last.replace(now) else { return Step::Ran };
        let noise = NOISE + slack;
        if before.end() > now.end() + noise {
            self.regular = 0;
            self.lease = None;
            return Step::Fell;
        }
        let moved = now.end().since(before.end());
        if moved <= noise {
            return Step::Ran;
        }
        let gap = at.since(before.at);
        let seen = Range { least: ttl, most: ttl + gap };
        let same_lease = self.lease.is_none_or(|lease| lease.agrees(seen));
        let lease = self.lease.filter(|_| same_lease).map_or(seen, |lease| lease.narrowed(seen));
        self.lease = Some(lease);
        let pace = lease.least / 3 * PATIENCE.0 / PATIENCE.1;
        let ran_out = moved > lease.least * LATEST.0 / LATEST.1;
        if moved + noise < pace || !same_lease || ran_out {
            self.regular = 0;
        } else if gap < pace {
            self.regular += 1;
        } // Readings as far apart as renewals would rise either way: they speak neither for nor against.
        self.rose = true;
        Step::Rose
    }

    /// A renewal was seen as such, to that lease where it told.
    pub fn renewal(&mut self, lease: Option<Duration>) {
        if let Some(lease) = lease {
            self.lease = Some(Range { least: lease, most: lease });
        }
        self.regular = self.regular.max(2);
        self.rose = true;
    }

    /// The lease, as the highest time to live seen since it was set while we looked.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease.map(|lease| lease.least)
    }

    /// Whether somebody renews the hold: set again twice in a row, to the same lease, at a watchdog's pace.
    #[must_use]
    pub fn renewed(&self) -> bool {
        self.regular >= 2
    }

    /// Whether the lease was set again at all since the hold began.
    #[must_use]
    pub fn rose(&self) -> bool {
        self.rose
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: u64 = 30_000;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    /// Reads at the given instants a lock whose lease was set at the given others.
    fn watch(reads: &[u64], sets: impl Fn(u64) -> u64) -> LeaseWatch {
        let mut watch = LeaseWatch::default();
        for (i, &ms) in reads.iter().enumerate() {
            let ttl = Some(Duration::from_millis(sets(ms) + LEASE - ms));
            if i == 0 {
                watch.restart(at(ms), ttl, None);
            } else {
                watch.read(at(ms), Duration::ZERO, ttl);
            }
        }
        watch
    }

    fn every(step: u64, n: u64) -> Vec<u64> {
        (0..n).map(|i| 1_000 + i * step).collect()
    }

    #[test]
    fn a_watchdog_is_recognised() {
        let watch = watch(&every(5_000, 6), |ms| ms / 10_000 * 10_000);
        assert!(watch.renewed());
        let lease = watch.lease().unwrap().as_millis();
        assert!((25_000..=30_000).contains(&lease), "{lease}");
    }

    #[test]
    fn a_lock_taken_again_and_again_is_not_renewed() {
        assert!(!watch(&every(5_000, 20), |ms| ms - ms % 70).renewed());
    }

    #[test]
    fn a_fixed_lease_is_not_renewed() {
        let watch = watch(&every(5_000, 5), |_| 0);
        assert!(!watch.renewed() && !watch.rose());
        assert_eq!(watch.lease(), None, "it was first seen some time after it was set");
    }

    #[test]
    fn one_renewal_is_not_enough() {
        assert!(!watch(&every(5_000, 3), |ms| ms / 10_000 * 10_000).renewed());
    }

    #[test]
    fn a_fresh_hold_tells_its_lease_at_once_and_keeps_it_over_holds() {
        let (ms, age) = (Duration::from_millis, Some(Duration::from_millis(500)));
        let mut watch = LeaseWatch::default();
        watch.restart(at(0), Some(ms(29_950)), age);
        assert_eq!(watch.lease(), Some(ms(29_950)));
        watch.restart(at(90_000), Some(ms(12_000)), None);
        assert_eq!(watch.lease(), Some(ms(29_950)), "it may have been held for a while");
        watch.restart(at(95_000), Some(ms(29_600)), age);
        assert_eq!(watch.lease(), Some(ms(29_950)));
        watch.restart(at(99_000), Some(ms(10_000)), age);
        assert_eq!(watch.lease(), Some(ms(10_000)));
    }

    #[test]
    fn fixed_leases_end_to_end_are_not_renewed() {
        assert!(!watch(&every(4_900, 40), |ms| ms / LEASE * LEASE).renewed());
    }

    #[test]
    fn readings_too_far_apart_tell_nothing() {
        assert!(!watch(&every(15_000, 20), |ms| ms - ms % 70).renewed());
    }

    #[test]
    fn a_time_to_live_cut_short_restarts() {
        let mut watch = watch(&every(5_000, 6), |ms| ms / 10_000 * 10_000);
        assert_eq!(
            watch.read(at(27_000), Duration::ZERO, Some(Duration::from_secs(3))),
            Step::Fell
        );
        assert!(!watch.renewed());
    }

    proptest! {
        #[test]
        fn any_phase_and_any_lease_of_a_watchdog_is_recognised(
            lease in 1_500_u64..200_000, phase in 0_u64..100_000, late in 0_u64..200,
        ) {
            let third = lease / 3;
            let mut watch = LeaseWatch::default();
            for i in 0..20 {
                let ms = 1_000_000 + phase + i * (lease / 6) + if i % 3 == 0 { late } else { 0 };
                let ttl = Some(Duration::from_millis(ms / third * third + lease - ms));
                if i == 0 {
                    watch.restart(at(ms), ttl, None);
                } else {
                    watch.read(at(ms), Duration::ZERO, ttl);
                }
            }
            prop_assert!(watch.renewed());
            let learnt = u64::try_from(watch.lease().unwrap().as_millis()).unwrap();
            prop_assert!(learnt <= lease && learnt >= lease - third);
        }
    }
}
