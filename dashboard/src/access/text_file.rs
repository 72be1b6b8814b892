//! Files with an entry in each line, which are read again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use service_kit::settings::changeable_by_all;
use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

/// The interval between two checks of a file.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The properties that distinguish one version of a file from another: inode, size, change time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileVersion(u64, u64, i64, i64);

impl FileVersion {
    /// Returns the current version, or `None` if the file cannot be examined.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self(file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
    }
}

/// Calls `check` at intervals and, with true, at each signal, until `stop` is cancelled.
pub(super) async fn follow<F: Send + 'static>(
    mut file: F,
    mut hangups: Signal,
    stop: CancellationToken,
    check: fn(&mut F, bool),
) {
    let follow = async {
        let mut clock = tokio::time::interval(CHECK_INTERVAL);
        loop {
            let asked = tokio::select! {
                _ = clock.tick() => false,
                Some(()) = hangups.recv() => true,
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

/// Reads and parses a file.
///
/// # Errors
/// A sentence for each mistake, with the path. It is also one if every user of the host may change the file.
pub(super) fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
) -> Result<T, Vec<String>> {
    if let Some(mistake) = changeable_by_all(path) {
        return Err(vec![mistake]);
    }
    let file = path.display();
    let text = fs::read_to_string(path).map_err(|error| vec![format!("{file}: {error}")])?;
    parse(&text)
        .map_err(|mistakes| mistakes.iter().map(|mistake| format!("{file}, {mistake}")).collect())
}

/// Returns the lines with their numbers, without empty ones and those that begin with `#`.
pub(super) fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tokio::runtime::Builder;
    use tokio::signal::unix::{SignalKind, signal};
    use tokio::sync::mpsc::{Sender, channel};

    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_for_long_stops_no_other_task() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let pipe = path.clone();
        let (begins, mut begun) = channel(1);
        let (runs, running) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let hangups = signal(SignalKind::hangup()).unwrap();
                let check = |(begins, pipe): &mut (Sender<()>, PathBuf), _| {
                    begins.try_send(()).unwrap();
                    drop(fs::read(pipe));
                };
                tokio::spawn(follow((begins, pipe), hangups, CancellationToken::new(), check));
                begun.recv().await.unwrap();
                runs.send(()).unwrap();
            });
        });
        // Nothing has been written to the pipe.
        running.recv_timeout(Duration::from_secs(30)).unwrap();
        fs::write(&path, "").unwrap();
    }

    #[test]
    fn a_file_that_all_users_may_change_is_not_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = |text: &str| Ok(text.to_owned());
        assert_eq!(read(file.path(), text), Ok(String::new()));
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o602);
        fs::set_permissions(file.path(), all).unwrap();
        let mistakes = read(file.path(), text).unwrap_err().join("; ");
        assert!(mistakes.contains("can be changed by every user (mode 0602)"), "{mistakes}");
    }
}
