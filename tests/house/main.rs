//! Tests of the sources themselves: the imports between modules, and the words of comments, messages and documents.

mod graph;
mod imports;
mod layers;
mod voice;

use std::path::{Path, PathBuf};

/// Returns the folder of the whole project.
fn project() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// Returns all Rust files below a folder of the project.
fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    files(folder, "rs")
}

/// Returns all files below a folder whose names end with an extension.
fn files(folder: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
    Ok(found)
}
