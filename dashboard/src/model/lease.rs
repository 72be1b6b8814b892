//! Inference of a lock's lease and its renewals from readings of its time to live.
//!
//! A reading at `m` with `ttl` left shows that the lock would expire at `m + ttl`. A renewal moves that end by exactly the
//! time since the last one, no matter when the readings fall. Redisson's watchdog renews every third of the lease; a lock
//! that is released and acquired again moves its end with every reading.

use std::time::Duration;

use redisson::Moment;

/// The apparent movement of an end that rounding (Redis counts milliseconds) and slow replies may cause.
const NOISE: Duration = Duration::from_millis(100);
/// The share of a third of the lease that must lie between two renewals: watchdogs are not punctual.
const PUNCTUALITY: (u32, u32) = (8, 10);
/// The share of a third of the lease before which no watchdog renews: it waits that long after a renewal, and can only
/// be late.
const EARLIEST: (u32, u32) = (19, 20);
/// The share of a third of the lease after which a renewal is unusually late for a watchdog.
const UNUSUAL: (u32, u32) = (23, 20);
/// The share of the lease that may have passed at a renewal. Later than that, the lock had almost expired and was
/// acquired again, like a throttle.
const LATEST: (u32, u32) = (9, 10);

/// The time between two renewals of most watchdogs, and some more. Redisson's default is 10 s.
const USUAL_PAUSE: Duration = Duration::from_secs(30);

/// The findings about one hold so far.
#[derive(Debug, Clone, Default)]
pub struct LeaseWatch {
    last: Option<Reading>,
    lease: Option<Range>,
    /// The number of consecutive rises that match a watchdog.
    regular: u16,
    /// The duration of the last reply in whole milliseconds. The lock may expire earlier by this time.
    slack_ms: u16,
    rose: bool,
    /// The number of rises that were too early for a watchdog, or unusually late like the one before.
    off_pace: u8,
    /// True if the last rise was unusually late for a watchdog.
    late: bool,
    /// True if the lease was set to more than a watchdog sets, and not renewed since.
    replaced: bool,
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

/// The bounds of a lease: a time to live that was seen, and the same plus the time for which it may have run before.
#[derive(Debug, Clone, Copy)]
struct Range {
    least: Duration,
    most: Duration,
}

impl Range {
    /// Returns whether both can be the same lease, to within a twentieth.
    fn agrees(self, other: Self) -> bool {
        let up = |most: Duration| most + most / 20;
        self.least <= up(other.most) && other.least <= up(self.most)
    }

    /// Returns whether no watchdog renews so soon that the end moves by this much only.
    fn is_early(self, moved: Duration, noise: Duration) -> bool {
        moved + noise < self.least / 3 * EARLIEST.0 / EARLIEST.1
    }

    /// Returns whether a renewal that moves the end by this much is unusually late for a watchdog.
    fn is_late(self, moved: Duration, noise: Duration) -> bool {
        moved > self.most / 3 * UNUSUAL.0 / UNUSUAL.1 + noise
    }

    fn narrowed(self, other: Self) -> Self {
        let least = self.least.max(other.least);
        Self { least, most: self.most.min(other.most).max(least) }
    }
}

/// Rounds down, which [`NOISE`] covers.
fn whole_millis(slack: Duration) -> u16 {
    u16::try_from(slack.as_millis()).unwrap_or(u16::MAX)
}

/// The result of one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The time to live continued to run, or was read for the first time.
    Ran,
    /// The time to live was set to less than was left.
    Fell,
    /// The time to live was set again, by a renewal or by another acquisition.
    Rose,
}

impl LeaseWatch {
    /// Starts another hold. Its lease is assumed to be unchanged until a reading contradicts that. `age` is the time
    /// for which the hold may have lasted at this reading, if known.
    pub fn restart(
        &mut self,
        at: Moment,
        slack: Duration,
        ttl: Option<Duration>,
        age: Option<Duration>,
    ) {
        self.last = ttl.map(|ttl| Reading { at, ttl });
        self.slack_ms = whole_millis(slack);
        self.regular = 0;
        self.rose = false;
        self.off_pace = 0;
        self.late = false;
        self.replaced = false;
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

    /// Applies another reading of the same hold. `slack` is the duration of the reply.
    pub fn read(&mut self, at: Moment, slack: Duration, ttl: Option<Duration>) -> Step {
        let Some(ttl) = ttl else {
            *self = Self::default();
            return Step::Ran;
        };
        let now = Reading { at, ttl };
        let noise = self.noise(slack);
        self.slack_ms = whole_millis(slack);
        let was_replaced = self.is_replaced();
        let Some(before) = self.last.replace(now) else { return Step::Ran };
        if before.end() > now.end() + noise {
            self.regular = 0;
            self.replaced = was_replaced;
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
        let pace = lease.least / 3 * PUNCTUALITY.0 / PUNCTUALITY.1;
        let ran_out = moved > lease.least * LATEST.0 / LATEST.1;
        // Readings as far apart as renewals would rise either way, by one renewal or by several, so they prove nothing.
        let near = gap < pace;
        let early = lease.is_early(moved, noise);
        let late = near && lease.is_late(moved, noise);
        // A pause of its process makes one renewal late.
        let late_again = std::mem::replace(&mut self.late, late) && late;
        if same_lease && (early || late_again) {
            self.off_pace = self.off_pace.saturating_add(1);
        }
        self.replaced |= !same_lease;
        if moved + noise < pace || !same_lease || (near && ran_out) {
            self.regular = 0;
        } else if near {
            self.regular = self.regular.saturating_add(1);
            self.replaced = false;
        }
        self.rose = true;
        Step::Rose
    }

    /// Applies a renewal seen by MONITOR, with its lease if known.
    pub fn renewal(&mut self, lease: Option<Duration>) {
        if let Some(lease) = lease {
            self.lease = Some(Range { least: lease, most: lease });
        }
        self.regular = self.regular.max(2);
        self.rose = true;
    }

    /// Returns whether another reading of the same holders can be one of the same hold: its lease has not been set again, or by
    /// a punctual watchdog.
    #[must_use]
    pub fn goes_on(&self, at: Moment, slack: Duration, ttl: Option<Duration>) -> bool {
        let (Some(before), Some(ttl)) = (self.last, ttl) else {
            return self.last.is_none() && ttl.is_none();
        };
        let now = Reading { at, ttl };
        let noise = self.noise(slack);
        if before.end() > now.end() + noise {
            return false;
        }
        let moved = now.end().since(before.end());
        let seen = Range { least: ttl, most: ttl + at.since(before.at) };
        let lease = self.lease.unwrap_or(seen);
        let punctual =
            lease.agrees(seen) && !lease.is_early(moved, noise) && !lease.is_late(moved, noise);
        moved <= noise || punctual
    }

    /// Returns the least that the lease can be, if another reading of the same holders can show the same lease, whether it
    /// was set again or not.
    #[must_use]
    pub fn least(&self, at: Moment, ttl: Option<Duration>) -> Option<Duration> {
        let (before, ttl) = (self.last?, ttl?);
        let unknown = Range { least: before.ttl, most: Duration::MAX / 2 };
        let lease = self.lease.unwrap_or(unknown);
        let seen = Range { least: ttl, most: ttl + at.since(before.at) };
        lease.agrees(seen).then_some(lease.least)
    }

    /// Returns the apparent movement of an end that this reading and the last one may cause.
    fn noise(&self, slack: Duration) -> Duration {
        NOISE + slack + Duration::from_millis(self.slack_ms.into())
    }

    /// Returns the lease: the highest time to live seen since it was set.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease.map(|lease| lease.least)
    }

    /// Returns whether the hold is renewed: it was set again twice in a row, to the same lease, at a watchdog's pace.
    #[must_use]
    pub fn renewed(&self) -> bool {
        self.regular >= 2
    }

    /// Returns whether the lease was set to another length, as by an EXTEND, and has run since then for longer than a
    /// watchdog lets it run. If the clock of Redis was set back, the next renewal shortens the lease before that.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        let Some((lease, left)) = self.lease().zip(self.last.map(|last| last.ttl)) else {
            return self.replaced;
        };
        let until_renewal = (lease / 3).min(USUAL_PAUSE);
        self.replaced && lease.saturating_sub(left) > until_renewal + NOISE
    }

    /// Returns whether the hold is renewed, and no rise contradicts that.
    #[must_use]
    pub fn is_punctual(&self) -> bool {
        self.renewed() && !self.is_off_pace()
    }

    /// Returns whether the lease was set again sooner or later than a watchdog does, and more than once. The first
    /// renewal may come early if one timer serves all locks of a client.
    #[must_use]
    pub fn is_off_pace(&self) -> bool {
        self.off_pace > 1
    }

    /// Returns whether the lease was set again at a watchdog's pace the last time.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.regular > 0
    }

    /// Returns whether the lease has been set again since the hold began.
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

    /// Reads a lock at the given instants; `sets` maps each to the last renewal before it.
    fn watch(reads: &[u64], sets: impl Fn(u64) -> u64) -> LeaseWatch {
        let mut watch = LeaseWatch::default();
        for (i, &ms) in reads.iter().enumerate() {
            let ttl = Some(Duration::from_millis(sets(ms) + LEASE - ms));
            if i == 0 {
                watch.restart(at(ms), Duration::ZERO, ttl, None);
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
    fn a_watchdog_is_recognized() {
        let watch = watch(&every(5_000, 6), |ms| ms / 10_000 * 10_000);
        assert!(watch.renewed());
        let lease = watch.lease().unwrap().as_millis();
        assert!((25_000..=30_000).contains(&lease), "{lease}");
    }

    #[test]
    fn a_lock_acquired_again_and_again_is_not_renewed() {
        assert!(!watch(&every(5_000, 20), |ms| ms - ms % 70).renewed());
    }

    #[test]
    fn a_fixed_lease_is_not_renewed() {
        let watch = watch(&every(5_000, 5), |_| 0);
        assert!(!watch.renewed() && !watch.rose());
        assert_eq!(watch.lease(), None, "it was first seen some time after it was set");
    }

    #[test]
    fn a_watchdog_is_never_off_pace_but_for_its_first_renewal() {
        let first = |ms: u64| if ms < 4_000 { 0 } else { 4_000 + (ms - 4_000) / 10_000 * 10_000 };
        assert!(!watch(&every(5_000, 60), first).is_off_pace());
    }

    #[test]
    fn a_watchdog_that_pauses_now_and_then_is_not_off_pace() {
        // Every fifth renewal is 3 s late.
        let last = |ms: u64| {
            let (round, left) = (ms / 53_000, ms % 53_000);
            round * 53_000
                + if left >= 43_000 { 43_000 } else { left.min(39_999) / 10_000 * 10_000 }
        };
        let watch = watch(&every(5_000, 120), last);
        assert!(watch.renewed() && !watch.is_off_pace());
    }

    #[test]
    fn a_lock_taken_again_at_about_the_pace_of_a_watchdog_is_off_pace() {
        // The lock behaves like a spin lock that one thread holds for that long, or up to 2 s longer.
        for shortest in [8_000, 12_500, 16_000] {
            let sets: Vec<u64> = (0..40_u64)
                .scan(0, |at, i| {
                    *at += shortest + i * 7_919 % 2_000;
                    Some(*at)
                })
                .collect();
            let last =
                |ms: u64| sets.iter().copied().take_while(|set| *set <= ms).last().unwrap_or(0);
            let watch = watch(&every(5_000, 60), last);
            assert!(watch.renewed() && watch.is_off_pace(), "{shortest}");
        }
    }

    #[test]
    fn one_renewal_is_not_enough() {
        assert!(!watch(&every(5_000, 3), |ms| ms / 10_000 * 10_000).renewed());
    }

    #[test]
    fn a_fresh_hold_shows_its_lease_at_once_and_the_next_hold_inherits_it() {
        let (ms, age) = (Duration::from_millis, Some(Duration::from_millis(500)));
        let mut watch = LeaseWatch::default();
        watch.restart(at(0), Duration::ZERO, Some(ms(29_950)), age);
        assert_eq!(watch.lease(), Some(ms(29_950)));
        watch.restart(at(90_000), Duration::ZERO, Some(ms(12_000)), None);
        assert_eq!(watch.lease(), Some(ms(29_950)), "it may have been held for a while");
        watch.restart(at(95_000), Duration::ZERO, Some(ms(29_600)), age);
        assert_eq!(watch.lease(), Some(ms(29_950)));
        watch.restart(at(99_000), Duration::ZERO, Some(ms(10_000)), age);
        assert_eq!(watch.lease(), Some(ms(10_000)));
    }

    #[test]
    fn fixed_leases_end_to_end_are_not_renewed() {
        assert!(!watch(&every(4_900, 40), |ms| ms / LEASE * LEASE).renewed());
    }

    #[test]
    fn readings_too_far_apart_prove_nothing() {
        assert!(!watch(&every(15_000, 20), |ms| ms - ms % 70).renewed());
    }

    #[test]
    fn a_slow_reply_does_not_restart_the_inference() {
        let mut watch = watch(&every(5_000, 6), |ms| ms / 10_000 * 10_000);
        // The lock was read at 27 s with 23 s left, and the reply arrived two seconds later.
        watch.read(at(29_000), Duration::from_secs(2), Some(Duration::from_secs(23)));
        watch.read(at(29_500), Duration::ZERO, Some(Duration::from_millis(20_500)));
        assert!(watch.renewed());
    }

    #[test]
    fn a_shortened_time_to_live_restarts_the_inference() {
        let mut watch = watch(&every(5_000, 6), |ms| ms / 10_000 * 10_000);
        assert_eq!(
            watch.read(at(27_000), Duration::ZERO, Some(Duration::from_secs(3))),
            Step::Fell
        );
        assert!(!watch.renewed());
    }

    proptest! {
        #[test]
        fn any_phase_and_any_lease_of_a_watchdog_is_recognized(
            lease in 1_500_u64..200_000, phase in 0_u64..100_000, late in 0_u64..200,
        ) {
            let third = lease / 3;
            let mut watch = LeaseWatch::default();
            for i in 0..20 {
                let ms = 1_000_000 + phase + i * (lease / 6) + if i % 3 == 0 { late } else { 0 };
                let ttl = Some(Duration::from_millis(ms / third * third + lease - ms));
                if i == 0 {
                    watch.restart(at(ms), Duration::ZERO, ttl, None);
                } else {
                    watch.read(at(ms), Duration::ZERO, ttl);
                }
            }
            prop_assert!(watch.renewed() && !watch.is_off_pace());
            let inferred = u64::try_from(watch.lease().unwrap().as_millis()).unwrap();
            prop_assert!(inferred <= lease && inferred >= lease - third);
        }
    }
}
