//! The two clocks of the programs.
//!
//! Leases are measured on a clock that goes on while the host sleeps, since Redis' clock does too;
//! `std::time::Instant` stands still meanwhile and would find every lease fresh on waking up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the host was booted, time in suspend included. Never goes back.
#[must_use]
pub fn boot_micros() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * 1_000_000 + nanos / 1_000
}

/// Milliseconds since 1970 in UTC, for what people and other hosts read. It may jump: never
/// measure a duration with it. A clock set before 1970 reads as 0.
#[must_use]
pub fn wall_millis() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one wall clock")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// When the host was booted, in milliseconds since 1970, as the wall clock has it now. What is kept as an instant of
/// [`boot_micros`] and shown by adding this is right again once somebody has set the clock.
#[must_use]
pub fn boot_epoch_millis() -> u64 {
    wall_millis().saturating_sub(boot_micros() / 1_000)
}

/// What the thread that asks has had of a processor so far. Only differences mean something, and only on one thread.
#[must_use]
pub fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_clock_never_goes_back() {
        let mut last = boot_micros();
        assert!(last > 0);
        for _ in 0..10_000 {
            let now = boot_micros();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn only_what_this_thread_does_counts() {
        fn work() -> u64 {
            (0..5_000_000_u64).fold(0, |sum, i| std::hint::black_box(sum ^ i))
        }
        let began = thread_cpu();
        let other = std::thread::spawn(work).join().unwrap();
        let waited = thread_cpu().saturating_sub(began);
        assert_eq!(work(), other);
        let worked = thread_cpu().saturating_sub(began).saturating_sub(waited);
        assert!(worked > waited, "{waited:?} while another worked, then {worked:?}");
    }

    #[test]
    fn wall_clock_reads_in_this_century() {
        let year_2020 = 1_577_836_800_000;
        let year_2100 = 4_102_444_800_000;
        assert!((year_2020..year_2100).contains(&wall_millis()));
    }
}
