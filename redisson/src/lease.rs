//! Lease arithmetic: the instants until which a hold is valid, at which to renew it, to warn about it and to declare it
//! lost.
//!
//! Callers pass in all instants. A hold is valid from the instant *before* the script that set its lease was sent: Redis
//! cannot have started the lease earlier.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant on the host's boot clock, in microseconds. The clock keeps running while the host is suspended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment {
    /// One more than the microseconds, so that an `Option<Moment>` is no larger.
    micros_plus_one: NonZeroU64,
}

impl Moment {
    /// The far future: an instant that never comes.
    pub const NEVER: Self = Self { micros_plus_one: NonZeroU64::MAX };

    /// Creates an instant from microseconds since the clock's origin.
    #[must_use]
    pub fn from_micros(micros: u64) -> Self {
        Self { micros_plus_one: NonZeroU64::MIN.saturating_add(micros) }
    }

    /// Returns the microseconds since the clock's origin.
    #[must_use]
    pub fn as_micros(self) -> u64 {
        self.micros_plus_one.get() - 1
    }

    /// Returns the nanoseconds since the clock's origin.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        self.as_micros().saturating_mul(1_000)
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.as_micros().saturating_sub(earlier.as_micros()))
    }
}

impl Default for Moment {
    /// Returns the clock's origin.
    fn default() -> Self {
        Self::from_micros(0)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moment").field(&self.as_micros()).finish()
    }
}

/// Returns a duration in whole milliseconds.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Saturates at [`Moment::NEVER`].
impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, after: Duration) -> Self {
        Self { micros_plus_one: self.micros_plus_one.saturating_add(micros(after)) }
    }
}

/// Saturates at the clock's origin.
impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, before: Duration) -> Self {
        Self::from_micros(self.as_micros().saturating_sub(micros(before)))
    }
}

/// The duration for which Redis keeps a hold after a script sets it, in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(Duration);

impl Lease {
    /// The shortest lease: below it, margins and round trips consume everything.
    pub const MIN: Duration = Duration::from_millis(100);
    /// The longest lease, a year: enough for any use, and safe to add to epoch milliseconds.
    pub const MAX: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Creates a lease of `duration`, truncated to whole milliseconds; `None` outside [`Self::MIN`] to [`Self::MAX`].
    #[must_use]
    pub fn new(duration: Duration) -> Option<Self> {
        (Self::MIN..=Self::MAX)
            .contains(&duration)
            .then(|| Self(Duration::from_millis(millis(duration))))
    }

    /// Returns the shortest lease that keeps a hold valid for `validity` ([`Self::valid_until`]), limited to [`Self::MAX`];
    /// `None` if it would be shorter than [`Self::MIN`].
    #[must_use]
    pub fn for_validity(validity: Duration) -> Option<Self> {
        let exact = validity.saturating_add(Duration::from_millis(2)).min(Self::MAX) * 100 / 99;
        Self::new((exact + Duration::from_millis(1)).min(Self::MAX))
    }

    /// Returns the length of the lease.
    #[must_use]
    pub fn duration(self) -> Duration {
        self.0
    }

    /// Returns the length in milliseconds, as Redis takes it.
    #[must_use]
    pub fn millis(self) -> u64 {
        millis(self.0)
    }

    /// Returns the instant until which a hold is valid if a script sent at `sent` set its lease, provided that Redis keeps
    /// the key and its clock does not step: the lease minus 1% for drift and 2 ms for rounding.
    #[must_use]
    pub fn valid_until(self, sent: Moment) -> Moment {
        sent + self.0.saturating_sub(self.safety_margin())
    }

    /// Returns the time by which [`Self::valid_until`] is before the end of the lease.
    #[must_use]
    pub fn safety_margin(self) -> Duration {
        self.0 / 100 + Duration::from_millis(2)
    }

    /// Returns the instant to renew a hold whose lease was set at `sent`: after a third of the lease, minus up to 4% of
    /// jitter, so that holds acquired together spread out. `jitter` is any number; its low bits decide. Instants are
    /// rounded down to a grid of 1/300 of the lease, so that renewals due at about the same time share a script.
    #[must_use]
    pub fn renew_at(self, sent: Moment, jitter: u64) -> Moment {
        let third = self.0 / 3;
        let share = u32::try_from(jitter % 41).unwrap_or(0);
        let at = sent + third * (1000 - share) / 1000;
        let grid = micros(self.0 / 300).max(1);
        Moment::from_micros(at.as_micros() - at.as_micros() % grid)
    }

    /// Returns the instant from which a renewed hold is at risk: less than a third of the lease remains before
    /// `valid_until`.
    #[must_use]
    pub fn at_risk_at(self, valid_until: Moment) -> Moment {
        valid_until - self.0 / 3
    }

    /// Returns the instant at which such a hold is declared lost: `margin` before `valid_until`, limited to a tenth of the
    /// lease.
    #[must_use]
    pub fn lost_at(self, valid_until: Moment, margin: Duration) -> Moment {
        valid_until - margin.min(self.0 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds() {
        assert!(Lease::new(Duration::from_millis(99)).is_none());
        assert!(Lease::new(Duration::from_millis(100)).is_some());
        assert!(Lease::new(Lease::MAX + Duration::from_nanos(1)).is_none());
        assert_eq!(Lease::new(Duration::from_micros(100_900)).unwrap().millis(), 100);
    }

    #[test]
    fn moments_saturate_at_both_ends() {
        let (origin, second) = (Moment::default(), Duration::from_secs(1));
        assert_eq!((origin.as_micros(), origin - second), (0, origin));
        assert_eq!((origin + second).as_micros(), 1_000_000);
        assert_eq!(Moment::from_micros(u64::MAX), Moment::NEVER);
        assert_eq!(Moment::NEVER + second, Moment::NEVER);
        assert_eq!(size_of::<Option<Moment>>(), size_of::<u64>());
    }

    proptest! {
        #[test]
        fn a_lease_for_a_validity_covers_it_and_little_more(ms in 0_u64..400 * 24 * 3_600_000, micros in 0_u64..1000) {
            let validity = Duration::from_millis(ms) + Duration::from_micros(micros);
            let Some(lease) = Lease::for_validity(validity) else {
                prop_assert!(validity < Lease::MIN);
                return Ok(());
            };
            let valid = lease.valid_until(Moment::default()).since(Moment::default());
            prop_assert!(valid >= validity || lease.duration() == Lease::MAX);
            prop_assert!(valid <= validity + Duration::from_millis(1));
        }

        #[test]
        fn the_instants_of_a_lease_are_in_order(
            ms in 100_u64..10_000_000, sent in 0_u64..u64::MAX / 2, margin in 0_u64..100_000, jitter: u64,
        ) {
            let lease = Lease::new(Duration::from_millis(ms)).unwrap();
            let sent = Moment::from_micros(sent);
            let valid_until = lease.valid_until(sent);
            let renew = lease.renew_at(sent, jitter);
            let jeopardy = lease.at_risk_at(valid_until);
            let lost = lease.lost_at(valid_until, Duration::from_millis(margin));
            prop_assert!(sent < renew && renew < jeopardy && jeopardy < lost && lost <= valid_until);
            prop_assert!(valid_until < sent + lease.duration(), "a hold becomes invalid before Redis expires it");
            prop_assert!(valid_until.since(lost) <= lease.duration() / 10);
        }
    }
}
