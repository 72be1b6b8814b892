//! Tests of the sources themselves: the imports between modules, and the words of comments.

mod floor_plan;
mod graph;
mod imports;
mod voice;

use std::path::{Path, PathBuf};

/// Returns the folder of the whole project.
fn project() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// Returns all Rust files below a folder of the project.
fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}
