//! Leases: how long a hold is surely valid, when to renew it, when to warn, when to call it lost.
//!
//! All arithmetic is on instants passed in. A hold's validity counts from the instant *before* the script that
//! set its lease was sent: Redis cannot have started the lease earlier than that.

use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant on the host's boot clock, in microseconds. It goes on while the host is suspended, as Redis does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Moment(u64);

impl Moment {
    /// An instant so far away that it never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant that many microseconds after the clock's origin.
    #[must_use]
    pub fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's origin.
    #[must_use]
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this instant; zero when it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Saturates: beyond the clock's end is [`Moment::NEVER`].
impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(micros(after)))
    }
}

/// Saturates at the clock's origin.
impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(micros(before)))
    }
}

/// How long Redis keeps a hold from the moment a script says so, in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(Duration);

impl Lease {
    /// The shortest lease we set: below it, margins and round trips leave nothing.
    pub const MIN: Duration = Duration::from_millis(100);
    /// The longest, a year: Redis adds it to epoch milliseconds, and nobody means more.
    pub const MAX: Duration = Duration::from_secs(365 * 24 * 3600);

    /// A lease of `duration`, cut to whole milliseconds; none outside [`Self::MIN`] to [`Self::MAX`].
    #[must_use]
    pub fn new(duration: Duration) -> Option<Self> {
        (Self::MIN..=Self::MAX)
            .contains(&duration)
            .then(|| Self(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(0))))
    }

    /// Its length.
    #[must_use]
    pub fn duration(self) -> Duration {
        self.0
    }

    /// Its length in milliseconds, as Redis takes it.
    #[must_use]
    pub fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// Until when a hold is surely valid whose lease was set by a script sent at `sent`, as long as Redis keeps
    /// the key and its clock does not step: the lease less one per cent of drift and 2 ms of rounding.
    #[must_use]
    pub fn valid_until(self, sent: Moment) -> Moment {
        sent + self.0.saturating_sub(self.0 / 100 + Duration::from_millis(2))
    }

    /// When to renew a hold whose lease was set at `sent`: after a third, less up to 4 per cent of jitter so
    /// that holds taken together do not stay together. `jitter` is any number; its low bits decide. Instants fall
    /// on a grid of a three-hundredth of the lease, so that those due about the same time go in one script.
    #[must_use]
    pub fn renew_at(self, sent: Moment, jitter: u64) -> Moment {
        let third = self.0 / 3;
        let share = u32::try_from(jitter % 41).unwrap_or(0);
        let at = sent + third * (1000 - share) / 1000;
        let grid = micros(self.0 / 300).max(1);
        Moment(at.0 - at.0 % grid)
    }

    /// From when on a watched hold that is valid until `valid_until` is in jeopardy: less than a third is left.
    #[must_use]
    pub fn at_risk_at(self, valid_until: Moment) -> Moment {
        valid_until - self.0 / 3
    }

    /// From when on such a hold is called lost: `margin` before its validity ends, at most a tenth of the lease.
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

    proptest! {
        #[test]
        fn the_instants_of_a_lease_stand_in_order(
            ms in 100_u64..10_000_000, sent in 0_u64..u64::MAX / 2, margin in 0_u64..100_000, jitter: u64,
        ) {
            let lease = Lease::new(Duration::from_millis(ms)).unwrap();
            let sent = Moment::from_micros(sent);
            let valid_until = lease.valid_until(sent);
            let renew = lease.renew_at(sent, jitter);
            let jeopardy = lease.at_risk_at(valid_until);
            let lost = lease.lost_at(valid_until, Duration::from_millis(margin));
            prop_assert!(sent < renew && renew < jeopardy && jeopardy < lost && lost <= valid_until);
            prop_assert!(valid_until < sent + lease.duration(), "we give up before Redis does");
            prop_assert!(valid_until.since(lost) <= lease.duration() / 10);
        }
    }
}
