//! Signs of life for the service manager, from the very loop that renews: one that hangs is killed and restarted.

use std::time::Duration;

use redisson::Moment;
use sd_notify::NotifyState;

/// Reports to the service manager in time that the loop runs.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// The interval; none without a watchdog of the service manager.
    every: Option<Duration>,
    next: Moment,
}

impl Heartbeat {
    /// `within` is the time in which the service manager wants one: half of it passes between two.
    pub(super) fn new(within: Option<Duration>) -> Self {
        Self { every: within.map(|within| within / 2), next: Moment::default() }
    }

    /// Beats if it is time to. Gives when it is next.
    pub(super) fn beat(&mut self, now: Moment) -> Moment {
        let Some(every) = self.every else { return Moment::NEVER };
        if self.next <= now {
            self.next = now + every;
            if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
                tracing::debug!(%error, "the service manager has got no sign of life");
            }
        }
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_beats_twice_in_the_time_asked_for() {
        let at = |ms: u64| Moment::from_micros(ms * 1000);
        let mut heartbeat = Heartbeat::new(Some(Duration::from_millis(200)));
        assert_eq!(heartbeat.beat(at(50)), at(150));
        assert_eq!(heartbeat.beat(at(149)), at(150));
        assert_eq!(heartbeat.beat(at(150)), at(250));
        assert_eq!(Heartbeat::new(None).beat(at(50)), Moment::NEVER);
    }
}
