//! Whether MONITOR may be on: it takes the server's time for every command that anybody sends.
//!
//! Pure: loads and instants go in.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes a second that clients send, at most: the server escapes and copies each of them.
const MAX_INPUT: u64 = 4 * 1024 * 1024;
/// Bytes a second that the server may send us.
const MAX_TAPPED: u64 = 8 * 1024 * 1024;
/// How much quieter than the limits it must be to begin: what is opened adds to the load.
const MARGIN: f64 = 0.8;
/// A PING may take so many times what it took before, and some more.
const SLOWER: u32 = 3;
const GRACE: Duration = Duration::from_millis(1);
/// How long it stays closed the first time, and at most: each time twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);
/// After so long without trouble the next pause is a first one.
const PROVEN: Duration = Duration::from_secs(600);

/// How busy a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Load {
    /// Commands a second, by the server's account.
    pub(super) ops: u64,
    /// Bytes a second that clients send it.
    pub(super) input: u64,
    /// What a PING takes, the median of several.
    pub(super) ping: Duration,
}

/// Judges by the load.
#[derive(Debug)]
pub(super) struct Governor {
    max_ops: u64,
    usual_ping: Duration,
    pause: Duration,
    closed_until: Option<Instant>,
    opened: Option<Instant>,
}

impl Governor {
    /// At most so many commands a second.
    pub(super) fn new(max_ops: u64) -> Self {
        Self {
            max_ops,
            usual_ping: Duration::ZERO,
            pause: FIRST_PAUSE,
            closed_until: None,
            opened: None,
        }
    }

    /// How long it must stay closed yet.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.closed_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Whether the server is quiet enough to begin.
    ///
    /// # Errors
    /// A clause that says what is too much.
    pub(super) fn may_open(&self, load: Load) -> Result<(), String> {
        self.within(load, MARGIN)
    }

    /// It is open from now on; the load was this just before.
    pub(super) fn opened(&mut self, load: Load, now: Instant) {
        self.usual_ping = load.ping;
        self.opened = Some(now);
    }

    /// Whether it may stay open. `tapped`: bytes a second that the server sends us.
    ///
    /// # Errors
    /// A clause that says what is too much.
    pub(super) fn may_stay(&self, load: Load, tapped: u64) -> Result<(), String> {
        self.within(load, 1.0)?;
        if tapped > MAX_TAPPED {
            return Err(format!("MONITOR alone sends {}", rate(tapped, MAX_TAPPED)));
        }
        let most = self.usual_ping * SLOWER + GRACE;
        if load.ping > most {
            return Err(format!(
                "a PING takes {:.1} ms, and took {:.1} ms before",
                load.ping.as_secs_f64() * 1e3,
                self.usual_ping.as_secs_f64() * 1e3
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

    /// It is closed, since it was in the way or could not be kept. Returns for how long.
    pub(super) fn closed(&mut self, now: Instant) -> Duration {
        let lasted = self.opened.take().map(|opened| now.saturating_duration_since(opened));
        if lasted.is_some_and(|lasted| lasted >= PROVEN) {
            self.pause = FIRST_PAUSE;
        }
        let pause = self.pause;
        self.closed_until = Some(now + pause);
        self.pause = (pause * 2).min(LONGEST_PAUSE);
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
    async fn each_limit_closes_it_and_says_which() {
        let mut governor = Governor::new(1_000);
        assert_eq!(governor.may_open(QUIET), Ok(()));
        governor.opened(QUIET, Instant::now());
        assert_eq!(governor.may_stay(QUIET, 1_000), Ok(()));
        // What is just as much as it may be.
        let most = Load { ops: 1_000, input: MAX_INPUT, ping: Duration::from_micros(1_300) };
        assert_eq!(governor.may_stay(most, MAX_TAPPED), Ok(()));
        for (load, tapped, word) in [
            (Load { ops: 1_001, ..QUIET }, 0, "1001 commands"),
            (Load { input: MAX_INPUT + 200_000, ..QUIET }, 0, "4.1 MiB a second, and 4.0"),
            (QUIET, MAX_TAPPED + 1, "MONITOR alone"),
            (Load { ping: Duration::from_micros(1_301), ..QUIET }, 0, "PING takes 1.3 ms"),
        ] {
            let error = governor.may_stay(load, tapped).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[tokio::test]
    async fn to_begin_it_must_be_quieter_than_to_go_on() {
        let governor = Governor::new(1_000);
        let busy = Load { ops: 900, ..QUIET };
        assert!(governor.may_open(busy).is_err());
        assert_eq!(governor.may_stay(busy, 0), Ok(()));
        let input = |share: u64| Load { input: MAX_INPUT / 100 * share, ..QUIET };
        assert_eq!(governor.may_open(input(79)), Ok(()));
        assert!(governor.may_open(input(81)).unwrap_err().contains("clients send"));
        assert_eq!(governor.may_stay(input(99), MAX_TAPPED), Ok(()));
        // Until it is open there is nothing that its PING would be slower than.
        assert_eq!(governor.may_open(Load { ping: Duration::from_secs(1), ..QUIET }), Ok(()));
    }

    #[tokio::test]
    async fn it_stays_closed_twice_as_long_each_time_until_it_has_proved_itself() {
        let mut governor = Governor::new(1_000);
        let mut now = Instant::now();
        assert_eq!(governor.wait(now), Duration::ZERO);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            governor.opened(QUIET, now);
            now += Duration::from_secs(30);
            assert_eq!(governor.closed(now), Duration::from_secs(60 * minutes));
            assert_eq!(governor.wait(now), Duration::from_secs(60 * minutes));
            now += governor.wait(now);
        }
        governor.opened(QUIET, now);
        now += PROVEN.saturating_sub(Duration::from_secs(1));
        assert_eq!(governor.closed(now), LONGEST_PAUSE, "not proved yet");
        // What was never open has proved nothing.
        assert_eq!(governor.closed(now + 2 * PROVEN), LONGEST_PAUSE);
        governor.opened(QUIET, now);
        assert_eq!(governor.closed(now + PROVEN), FIRST_PAUSE);
        assert_eq!(governor.wait(now + PROVEN + FIRST_PAUSE), Duration::ZERO);
    }
}
