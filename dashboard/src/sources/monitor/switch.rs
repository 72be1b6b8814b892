//! Requests to watch a server with MONITOR for a while.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The length of a requested watch.
pub const WATCH: Duration = Duration::from_secs(60);

/// Turns MONITOR on for [`WATCH`], starting now.
#[derive(Debug)]
pub struct Switch {
    pub(super) until: watch::Sender<Option<Instant>>,
    allowed: bool,
}

impl Switch {
    /// Requests a watch. Returns false if the settings have switched MONITOR off.
    pub fn watch(&self) -> bool {
        if self.allowed {
            self.until.send_replace(Some(Instant::now() + WATCH));
        }
        self.allowed
    }

    /// Returns whether the settings allow MONITOR.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    pub(super) fn new(allowed: bool) -> Self {
        Self { until: watch::Sender::new(None), allowed }
    }
}
