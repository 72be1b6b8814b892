//! A bound on log lines: when a hundred thousand locks are lost at once, writing of each would stall the core.

use std::time::Duration;

use redisson::Moment;

/// Lines about single holds in one second; further ones are only counted.
const LINES: u32 = 50;
const WINDOW: Duration = Duration::from_secs(1);

/// Counts lines in windows of a second.
#[derive(Debug, Default)]
pub(in crate::core) struct LogLimit {
    window: Moment,
    lines: u32,
    withheld: u64,
}

impl LogLimit {
    /// Whether a line may be written now. Says how many were not, at the first one that may again.
    pub(in crate::core) fn admits(&mut self, now: Moment) -> bool {
        if now.since(self.window) >= WINDOW {
            if self.withheld > 0 {
                tracing::warn!(
                    withheld = self.withheld,
                    "more holds were in jeopardy or lost than are told here"
                );
            }
            *self = Self { window: now, lines: 0, withheld: 0 };
        }
        self.lines += 1;
        let admitted = self.lines <= LINES;
        self.withheld += u64::from(!admitted);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_a_second() {
        let mut limit = LogLimit::default();
        let now = Moment::from_micros(5_000_000);
        assert_eq!((0..80).filter(|_| limit.admits(now)).count(), 50);
        assert_eq!(limit.withheld, 30);
        assert!(limit.admits(now + WINDOW));
    }
}
