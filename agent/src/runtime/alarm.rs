//! The timer of the core's task.

use std::pin::Pin;
use std::time::Duration;

use redisson::Moment;
use tokio::time::{Instant, Sleep};

/// The longest time for which the timer is set. It rings early rather than never if the instant is later.
const LONGEST: Duration = Duration::from_secs(3600);

/// A timer that rings once at an instant.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// The instant for which it is set; [`Moment::NEVER`] if it has rung.
    at: Moment,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), at: Moment::NEVER }
    }

    /// Sets the instant at which it rings, unless it is set already.
    pub(super) fn set(&mut self, at: Moment, now: Moment) {
        if at != self.at {
            self.at = at;
            self.sleep.as_mut().reset(Instant::now() + at.since(now).min(LONGEST));
        }
    }

    /// Waits until it rings. May be cancelled and called again.
    pub(super) async fn ring(&mut self) {
        if self.at == Moment::NEVER {
            return std::future::pending().await;
        }
        self.sleep.as_mut().await;
        self.at = Moment::NEVER;
    }
}
