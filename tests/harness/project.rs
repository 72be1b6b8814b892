//! The files of the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Returns the path of a file or folder, by its path from the top folder.
#[must_use]
pub fn path(file: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

/// Returns the text of a file.
///
/// # Errors
/// Returns an error if it cannot be read.
pub fn text(file: &str) -> Result<String> {
    std::fs::read_to_string(path(file)).with_context(|| format!("cannot read {file}"))
}
