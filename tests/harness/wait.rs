//! Waiting for a condition.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// The time limit for conditions that should hold at once, on a slow and busy machine. It is generous: only failures
/// wait that long.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Polls `look` until it succeeds and returns its value, for at most [`PATIENCE`].
///
/// # Panics
/// Panics at the deadline, with the last error.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> anyhow::Result<T>) -> T {
    within(PATIENCE, what, look).await
}

/// Polls as [`eventually`] does, with its own deadline.
///
/// # Panics
/// Panics at the deadline, with the last error.
pub async fn within<T>(
    deadline: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> anyhow::Result<T>,
) -> T {
    let end = Instant::now() + deadline;
    let mut said = anyhow::anyhow!("it never answered");
    loop {
        match timeout_at(end, look()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(error)) if Instant::now() < end => said = error,
            Ok(Err(error)) => panic!("waited {deadline:?} for {what}: {error:#}"),
            Err(_) => panic!("waited {deadline:?} for {what}: {said:#}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
}
