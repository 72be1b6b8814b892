//! The task that wakes up for the next deadline.

use std::future::Future;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::clock::boot;

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

    /// Returns whether it wakes up by that instant. It never does if its runtime has ended, and is late after a suspend of
    /// the host.
    pub(crate) fn wakes_up_by(&self, at: Duration) -> bool {
        (boot()..=at).contains(&self.at) && !self.task.is_finished()
    }

    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}
