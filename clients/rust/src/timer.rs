//! The task that wakes up for the next deadline.

use std::time::Duration;

use tokio::task::AbortHandle;

/// The task that wakes up for the next deadline.
pub(crate) struct Timer {
    pub(crate) at: Duration,
    pub(crate) task: AbortHandle,
}

impl Timer {
    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}
