//! The task that wakes up for the next deadline.

use std::future::Future;
use std::time::Duration;

use tokio::task::AbortHandle;

pub(crate) struct Timer {
    at: Duration,
    task: AbortHandle,
}

impl Timer {
    /// Starts a task that wakes up at that instant of the boot clock.
    pub(crate) fn start(at: Duration, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { at, task: tokio::spawn(work).abort_handle() }
    }

    pub(crate) fn at(&self) -> Duration {
        self.at
    }

    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}
