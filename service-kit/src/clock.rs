//! The programs' clocks: time since boot for durations, wall time for people, CPU time for costs.
//!
//! Leases are measured on `CLOCK_BOOTTIME`, which continues while the host is suspended, as the clock of Redis does.
//! `std::time::Instant` stops during suspend: after a resume every lease would look fresh.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Returns the microseconds since the host booted, including suspend (`CLOCK_BOOTTIME`). Never goes back.
#[must_use]
pub fn boot_micros() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * 1_000_000 + nanos / 1_000
}

/// Returns the milliseconds since 1970-01-01 UTC (`CLOCK_REALTIME`), for people and other hosts. It may jump, so it must
/// not measure durations. A clock set before 1970 reads as 0.
#[must_use]
pub fn wall_millis() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the one wall clock")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the instant at which the host booted, in milliseconds since 1970-01-01 UTC by the current wall clock. An
/// instant stored by [`boot_micros`] and displayed relative to this stays correct when the wall clock is set.
#[must_use]
pub fn boot_epoch_millis() -> u64 {
    wall_millis().saturating_sub(boot_micros() / 1_000)
}

/// Returns the CPU time that the calling thread has used (`CLOCK_THREAD_CPUTIME_ID`). Only differences on one thread are
/// meaningful.
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
    fn thread_cpu_counts_the_calling_thread_only() {
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
