//! The permissions of files with secrets and rules.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The permissions of all users who are neither the owner nor in the group of the file.
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_READ: u32 = 0o004;

/// Returns what is wrong with a file that every user of this host may change.
#[must_use]
pub fn changeable_by_all(path: &Path) -> Option<String> {
    let mode = mode(path).filter(|mode| mode & OTHERS_WRITE != 0)?;
    let path = path.display();
    Some(format!("{path} can be changed by every user (mode {mode:04o}): run `chmod o-w {path}`"))
}

/// Returns what is wrong with a secret that every user of this host may read.
pub(super) fn readable_by_all(path: &Path) -> Option<String> {
    let mode = mode(path).filter(|mode| mode & OTHERS_READ != 0)?;
    let path = path.display();
    Some(format!(
        "{path} can be read by every user (mode {mode:04o}): run `chmod o= {path}`, or mount it with a mode such as 0440"
    ))
}

/// Returns the permissions of a regular file. Reading the file reports one that is missing.
fn mode(path: &Path) -> Option<u32> {
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(file.permissions().mode() & 0o7777)
}
