//! What a verb runs on: one thread.

use std::fs::File;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// As many files as `lockctl` ever has open at once, and some more.
const FILES: usize = 32;

/// A runtime of one thread.
///
/// # Errors
/// What the system refuses; that the process may open too few files, too. Tokio panics where it can open none.
pub(crate) fn one_thread() -> io::Result<Runtime> {
    let room: io::Result<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null")).collect();
    drop(room?);
    Builder::new_current_thread().enable_all().build()
}
