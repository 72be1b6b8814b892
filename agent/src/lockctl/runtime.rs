//! The single-threaded async runtime.

use std::fs::File;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// More files than `lockctl` ever has open at once.
const MAX_FILES: usize = 32;

/// Creates the runtime.
///
/// # Errors
/// Fails if the system has no resources for it, including file descriptors, without which Tokio would panic.
pub(crate) fn create() -> io::Result<Runtime> {
    let probe: io::Result<Vec<File>> = (0..MAX_FILES).map(|_| File::open("/dev/null")).collect();
    drop(probe?);
    Builder::new_current_thread().enable_all().build()
}
