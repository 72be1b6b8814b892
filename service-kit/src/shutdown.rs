//! Orderly shutdown: signals, cancellation of tasks, and a report of tasks that are late.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of one stage of a program, which end together. Clones are the same stage.
///
/// A program that needs some tasks after the signal (an agent that drains needs its connections to Redis) creates a
/// second `Shutdown` for them, and cancels it once they are no longer needed.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tracker: TaskTracker,
    running: Arc<Mutex<Running>>,
}

#[derive(Debug, Default)]
struct Running {
    next_id: u64,
    names: BTreeMap<u64, String>,
}

impl Shutdown {
    /// Creates a stage without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the token that [`cancel`](Self::cancel) or a signal cancels.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Returns a token that is cancelled with this stage, and can be cancelled separately.
    #[must_use]
    pub fn child_token(&self) -> CancellationToken {
        self.token.child_token()
    }

    /// Cancels every task of this stage.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Returns `true` once the shutdown has begun.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until the shutdown begins.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Spawns `task` on the current runtime as part of this stage. The task itself must watch the
    /// token. [`finish`](Self::finish) reports it by `name` when it is late.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, as `tokio::spawn` does.
    pub fn spawn<T>(
        &self,
        name: impl Into<String>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T>
    where
        T: Send + 'static,
    {
        let guard = RunningGuard::new(Arc::clone(&self.running), name.into());
        self.tracker.spawn(async move {
            let _guard = guard;
            task.await
        })
    }

    /// Makes the first SIGTERM or SIGINT cancel this stage. A second one ends the process at once,
    /// with the status a shell expects of that signal (128 + its number).
    ///
    /// # Errors
    ///
    /// Signal handlers that cannot be installed.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O enabled.
    pub fn listen_for_signals(&self) -> io::Result<()> {
        let mut signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        let token = self.token.clone();
        // Not tracked: it waits for the second signal while the other tasks end.
        tokio::spawn(async move {
            let first = signals.next().await;
            tracing::info!(signal = first.name, "shutting down; a second signal exits immediately");
            token.cancel();
            let second = signals.next().await;
            tracing::warn!(signal = second.name, "second signal: exiting immediately");
            std::process::exit(second.exit_status);
        });
        Ok(())
    }

    /// Cancels this stage and waits for its tasks, for `grace` at most. Logs and returns the names of
    /// the tasks that are still running then.
    pub async fn finish(&self, grace: Duration) -> Vec<String> {
        self.token.cancel();
        self.tracker.close();
        if tokio::time::timeout(grace, self.tracker.wait()).await.is_ok() {
            return Vec::new();
        }
        let late: Vec<String> = self.running.lock().names.values().cloned().collect();
        tracing::warn!(still_running = ?late, grace_ms = grace.as_millis(), "not all tasks ended in time");
        late
    }
}

/// Keeps a task's name in the list until the task ends, by a panic too.
struct RunningGuard {
    running: Arc<Mutex<Running>>,
    id: u64,
}

impl RunningGuard {
    fn new(running: Arc<Mutex<Running>>, name: String) -> Self {
        let id = {
            let mut running = running.lock();
            running.next_id += 1;
            let id = running.next_id;
            running.names.insert(id, name);
            id
        };
        Self { running, id }
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.running.lock().names.remove(&self.id);
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

struct Received {
    name: &'static str,
    exit_status: i32,
}

impl Signals {
    async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.terminate.recv() => Received { name: "SIGTERM", exit_status: 128 + 15 },
            _ = self.interrupt.recv() => Received { name: "SIGINT", exit_status: 128 + 2 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finish_waits_for_tasks_that_watch_the_token() {
        let shutdown = Shutdown::new();
        let token = shutdown.token();
        let task = shutdown.spawn("well behaved", async move { token.cancelled().await });
        assert!(shutdown.finish(Duration::from_secs(10)).await.is_empty());
        task.await.unwrap();
    }

    #[tokio::test]
    async fn finish_names_late_tasks() {
        let shutdown = Shutdown::new();
        let late = shutdown.spawn("deaf task", std::future::pending::<()>());
        let done = shutdown.spawn("quick task", async {});
        done.await.unwrap();
        assert_eq!(shutdown.finish(Duration::from_millis(1)).await, ["deaf task"]);
        late.abort();
    }

    #[tokio::test]
    async fn a_child_token_ends_with_its_stage_but_does_not_end_it() {
        let shutdown = Shutdown::new();
        shutdown.child_token().cancel();
        assert!(!shutdown.is_cancelled());
        let child = shutdown.child_token();
        shutdown.cancel();
        assert!(child.is_cancelled());
    }

    #[tokio::test]
    async fn a_task_that_panics_is_no_longer_listed() {
        let shutdown = Shutdown::new();
        let task = shutdown.spawn("panics", async { panic!("on purpose") });
        assert!(task.await.is_err());
        assert!(shutdown.running.lock().names.is_empty());
    }
}
