//! Files that are read again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

/// The properties that distinguish one version of a file from another: inode, size, change time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileVersion(u64, u64, i64, i64);

impl FileVersion {
    /// Returns the current version, or `None` if the file cannot be examined.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self(file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
    }
}

/// Calls `check` at intervals and, with true, at each signal, until `stop` is cancelled.
pub async fn follow<F: Send + 'static>(
    mut file: F,
    interval: Duration,
    mut signals: Option<Signal>,
    stop: CancellationToken,
    check: fn(&mut F, bool),
) {
    let follow = async {
        let mut clock = tokio::time::interval(interval);
        loop {
            let asked = tokio::select! {
                _ = clock.tick() => false,
                Some(()) = async { signals.as_mut()?.recv().await } => true,
            };
            // The file may be on a mount that hangs.
            let checked = tokio::task::spawn_blocking(move || {
                check(&mut file, asked);
                file
            });
            let Ok(same) = checked.await else { return };
            file = same;
        }
    };
    stop.run_until_cancelled(follow).await;
}
