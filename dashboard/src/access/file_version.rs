//! Versions of files that are read again when they change.

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
