//! Decides whether MONITOR may be on, since it costs the server time for every command of every client.
//!
//! This module is pure: loads and instants are passed in.

use std::time::Duration;

use tokio::time::Instant;

/// The maximum number of bytes a second that clients may send, since the server escapes and copies each of them.
const MAX_INPUT: u64 = 4 * 1024 * 1024;
/// The maximum number of bytes a second that the server may send us.
const MAX_RECEIVED: u64 = 8 * 1024 * 1024;
/// The share of the limits up to which MONITOR may be opened, since it adds to the load.
const MARGIN: f64 = 0.8;
/// The factor by which a PING may become slower.
const MAX_PING_FACTOR: u32 = 3;
/// The additional time that a PING may take.
const GRACE: Duration = Duration::from_millis(1);
/// The duration up to which a PING is never slow, since a busy host alone can cause it.
const ALWAYS_FINE: Duration = Duration::from_millis(5);
/// The number of successive checks with slow PINGs that close MONITOR.
const SLOW_CHECKS: u32 = 3;
/// The factor beyond which a single check is enough.
const FAR_TOO_SLOW: u32 = 10;
/// The longest pause after slow PINGs, which depend on the host and the network too, not only on MONITOR.
const MAX_SLOW_PAUSE: Duration = Duration::from_secs(300);
/// The first pause; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const MAX_PAUSE: Duration = Duration::from_secs(3_600);
/// The time for which MONITOR must have been open for the next pause to be a first one.
const PROBATION: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Load {
    /// The commands a second that the server reports.
    pub(super) ops: u64,
    /// The bytes a second that clients send to the server.
    pub(super) input: u64,
    /// The median time of several PINGs.
    pub(super) ping: Duration,
}

#[derive(Debug)]
pub(super) struct Governor {
    max_ops: u64,
    initial_ping: Duration,
    /// The number of the latest successive checks with slow PINGs.
    slow_checks: u32,
    pause: Duration,
    closed_until: Option<Instant>,
    opened: Option<Instant>,
}

impl Governor {
    pub(super) fn new(max_ops: u64) -> Self {
        Self {
            max_ops,
            initial_ping: Duration::ZERO,
            slow_checks: 0,
            pause: FIRST_PAUSE,
            closed_until: None,
            opened: None,
        }
    }

    /// Returns the time left of the pause.
    pub(super) fn pause_left(&self, now: Instant) -> Duration {
        self.closed_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Checks whether the server is quiet enough to open MONITOR.
    ///
    /// # Errors
    /// The limit that is exceeded, in words.
    pub(super) fn may_open(&self, load: Load) -> Result<(), String> {
        self.within(load, MARGIN)
    }

    /// Records that MONITOR was opened, with the load just before.
    pub(super) fn opened(&mut self, load: Load, now: Instant) {
        self.initial_ping = load.ping;
        self.slow_checks = 0;
        self.opened = Some(now);
    }

    /// Checks whether MONITOR may stay open, and counts slow answers. `received` is the number of bytes a second that
    /// the server sends us.
    ///
    /// # Errors
    /// The limit that is exceeded, in words.
    pub(super) fn may_stay_open(&mut self, load: Load, received: u64) -> Result<(), String> {
        self.within(load, 1.0)?;
        if received > MAX_RECEIVED {
            return Err(format!("MONITOR alone sends {}", rate(received, MAX_RECEIVED)));
        }
        let most = (self.initial_ping * MAX_PING_FACTOR + GRACE).max(ALWAYS_FINE);
        self.slow_checks = match load.ping {
            ping if ping > most * FAR_TOO_SLOW => SLOW_CHECKS,
            ping if ping > most => self.slow_checks + 1,
            _ => 0,
        };
        if self.slow_checks >= SLOW_CHECKS {
            return Err(format!(
                "a PING takes {:.1} ms, and took {:.1} ms before",
                load.ping.as_secs_f64() * 1e3,
                self.initial_ping.as_secs_f64() * 1e3
            ));
        }
        Ok(())
    }

    fn within(&self, load: Load, share: f64) -> Result<(), String> {
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
        let above = |value: u64, limit: u64| value as f64 > limit as f64 * share;
        if above(load.ops, self.max_ops) {
            return Err(format!(
                "there are {} commands a second, and --monitor-max-ops is {}",
                load.ops, self.max_ops
            ));
        }
        if above(load.input, MAX_INPUT) {
            return Err(format!("clients send {}", rate(load.input, MAX_INPUT)));
        }
        Ok(())
    }

    /// Records that MONITOR was closed. Returns the pause.
    pub(super) fn closed(&mut self, now: Instant) -> Duration {
        let lasted = self.opened.take().map(|opened| now.saturating_duration_since(opened));
        if lasted.is_some_and(|lasted| lasted >= PROBATION) {
            self.pause = FIRST_PAUSE;
        }
        let slow = self.slow_checks >= SLOW_CHECKS;
        let pause = if slow { self.pause.min(MAX_SLOW_PAUSE) } else { self.pause };
        self.closed_until = Some(now + pause);
        self.pause = (pause * 2).min(MAX_PAUSE);
        pause
    }
}

fn rate(value: u64, limit: u64) -> String {
    let mebi = |bytes: u64| bytes / 1024 * 10 / 1024;
    let (value, limit) = (mebi(value), mebi(limit));
    format!(
        "{}.{} MiB a second, and {}.{} is the limit",
        value / 10,
        value % 10,
        limit / 10,
        limit % 10
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Load = Load { ops: 100, input: 10_000, ping: Duration::from_micros(100) };

    #[tokio::test]
    async fn each_limit_closes_it_and_is_named() {
        let mut governor = Governor::new(1_000);
        assert_eq!(governor.may_open(QUIET), Ok(()));
        governor.opened(QUIET, Instant::now());
        assert_eq!(governor.may_stay_open(QUIET, 1_000), Ok(()));
        // The load is exactly at the limits.
        let most = Load { ops: 1_000, input: MAX_INPUT, ping: ALWAYS_FINE };
        assert_eq!(governor.may_stay_open(most, MAX_RECEIVED), Ok(()));
        for (load, received, word) in [
            (Load { ops: 1_001, ..QUIET }, 0, "1001 commands"),
            (Load { input: MAX_INPUT + 200_000, ..QUIET }, 0, "4.1 MiB a second, and 4.0"),
            (QUIET, MAX_RECEIVED + 1, "MONITOR alone"),
        ] {
            let error = governor.may_stay_open(load, received).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[tokio::test]
    async fn only_pings_that_stay_slow_close_it_and_not_for_long() {
        let mut governor = Governor::new(1_000);
        let mut now = Instant::now();
        let slow = Load { ping: ALWAYS_FINE + Duration::from_micros(1), ..QUIET };
        for _ in 0..8 {
            governor.opened(QUIET, now);
            for load in [slow, slow, QUIET, slow, slow] {
                assert_eq!(governor.may_stay_open(load, 0), Ok(()));
            }
            let error = governor.may_stay_open(slow, 0).unwrap_err();
            assert!(error.contains("PING takes 5.0 ms, and took 0.1 ms"), "{error}");
            now += Duration::from_secs(30);
            assert!(governor.closed(now) <= MAX_SLOW_PAUSE);
        }
        assert_eq!(governor.pause_left(now), MAX_SLOW_PAUSE);
        governor.opened(QUIET, now);
        let far_too_slow = Load { ping: ALWAYS_FINE * 11, ..QUIET };
        assert!(governor.may_stay_open(far_too_slow, 0).is_err(), "at once");
        // A server that was slow before MONITOR may stay as slow.
        let distant = Load { ping: Duration::from_millis(10), ..QUIET };
        governor.opened(distant, now);
        for millis in [29, 31, 31, 29, 31, 31] {
            let load = Load { ping: Duration::from_millis(millis), ..QUIET };
            assert_eq!(governor.may_stay_open(load, 0), Ok(()));
        }
    }

    #[tokio::test]
    async fn opening_requires_less_load_than_staying_open() {
        let mut governor = Governor::new(1_000);
        let busy = Load { ops: 900, ..QUIET };
        assert!(governor.may_open(busy).is_err());
        assert_eq!(governor.may_stay_open(busy, 0), Ok(()));
        let input = |share: u64| Load { input: MAX_INPUT / 100 * share, ..QUIET };
        assert_eq!(governor.may_open(input(79)), Ok(()));
        assert!(governor.may_open(input(81)).unwrap_err().contains("clients send"));
        assert_eq!(governor.may_stay_open(input(99), MAX_RECEIVED), Ok(()));
        // Before MONITOR is open, there is no PING to compare with.
        assert_eq!(governor.may_open(Load { ping: Duration::from_secs(1), ..QUIET }), Ok(()));
    }

    #[tokio::test]
    async fn each_pause_doubles_until_it_has_stayed_open_for_long() {
        let mut governor = Governor::new(1_000);
        let mut now = Instant::now();
        assert_eq!(governor.pause_left(now), Duration::ZERO);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            governor.opened(QUIET, now);
            now += Duration::from_secs(30);
            assert_eq!(governor.closed(now), Duration::from_secs(60 * minutes));
            assert_eq!(governor.pause_left(now), Duration::from_secs(60 * minutes));
            now += governor.pause_left(now);
        }
        governor.opened(QUIET, now);
        now += PROBATION.saturating_sub(Duration::from_secs(1));
        assert_eq!(governor.closed(now), MAX_PAUSE, "not open for long enough");
        // The time while MONITOR is closed does not count.
        assert_eq!(governor.closed(now + 2 * PROBATION), MAX_PAUSE);
        governor.opened(QUIET, now);
        assert_eq!(governor.closed(now + PROBATION), FIRST_PAUSE);
        assert_eq!(governor.pause_left(now + PROBATION + FIRST_PAUSE), Duration::ZERO);
    }
}
