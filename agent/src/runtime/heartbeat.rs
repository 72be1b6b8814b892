//! Heartbeats for the service manager, from the very loop that renews locks: a loop that hangs is killed and restarted.

use std::time::Duration;

use redisson::Moment;
use sd_notify::NotifyState;

use crate::systemd;

/// Reports to the service manager in time that the loop runs.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// The interval; `None` if the service manager has no watchdog.
    every: Option<Duration>,
    next: Moment,
}

impl Heartbeat {
    /// Creates heartbeats at half of `within`, the time in which the service manager expects one.
    pub(super) fn new(within: Option<Duration>) -> Self {
        Self { every: within.map(|within| within / 2), next: Moment::default() }
    }

    /// Sends a heartbeat if it is due. Returns the instant of the next one.
    pub(super) fn beat(&mut self, now: Moment) -> Moment {
        let Some(every) = self.every else { return Moment::NEVER };
        if self.next <= now {
            self.next = now + every;
            // One that is not taken at once is followed by another in time.
            systemd::notify(&NotifyState::Watchdog);
        }
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heartbeat_beats_twice_in_the_requested_interval() {
        let at = |ms: u64| Moment::from_micros(ms * 1000);
        let mut heartbeat = Heartbeat::new(Some(Duration::from_millis(200)));
        assert_eq!(heartbeat.beat(at(50)), at(150));
        assert_eq!(heartbeat.beat(at(149)), at(150));
        assert_eq!(heartbeat.beat(at(150)), at(250));
        assert_eq!(Heartbeat::new(None).beat(at(50)), Moment::NEVER);
    }
}
