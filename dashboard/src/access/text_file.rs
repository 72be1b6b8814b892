//! Files with an entry in each line, which are read again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// The interval between two checks of a file.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The properties that distinguish one version of a file from another: inode, size, change time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileVersion(u64, u64, i64, i64);

impl FileVersion {
    /// Returns the current version, or `None` if the file cannot be examined.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self(file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
    }
}

/// Reads and parses a file.
///
/// # Errors
/// A sentence for each mistake, with the path.
pub(super) fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
) -> Result<T, Vec<String>> {
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
