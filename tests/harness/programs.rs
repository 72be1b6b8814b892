//! The paths of Lockscope's programs, built once per test process so that they are never older than the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Error, Result, ensure};

use crate::{process, project};

/// The variable that names a folder with the programs, so that nothing is built: for `make`, and for tests of the packages.
const FOLDER: &str = "LOCKSCOPE_TEST_PROGRAMS";

/// Returns the path of one of the workspace's programs, by its name.
///
/// # Errors
/// Returns an error if it cannot be built, or there is none with that name.
pub fn path(name: &str) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let path = once(&BUILT, build)?.join(name);
    ensure!(path.is_file(), "there is no {}", path.display());
    Ok(path)
}

/// Makes something once per test process: what is built from source is never older than it.
///
/// # Errors
/// Returns the error of `make`, at each call.
pub fn once<T: Clone>(
    made: &OnceLock<Result<T, String>>,
    make: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let made = made.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.clone().map_err(Error::msg)
}

/// Copies one of the workspace's programs to `place`.
///
/// Another process writes the copy: a file that is open for writing cannot be run, and a child that another test starts at that
/// moment would have the open file, too.
///
/// # Errors
/// Returns an error if the program cannot be built or copied.
pub fn copy(name: &str, place: &Path) -> Result<()> {
    let status =
        Command::new("cp").arg(path(name)?).arg(place).status().context("cannot run cp")?;
    ensure!(status.success(), "{} cannot be copied: {status}", place.display());
    Ok(())
}

/// Returns the path of the demo program, which also serves as worker. Cargo builds it together with the tests.
///
/// # Errors
/// Returns an error if it does not exist.
pub fn demo() -> Result<PathBuf> {
    let path = beside_us()?.join("demo");
    ensure!(path.is_file(), "there is no {}", path.display());
    Ok(path)
}

/// Returns `target/<profile>`: tests run from `deps` within it, the demo from the folder itself.
fn beside_us() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let folder = exe.parent().context("an executable lies in a folder")?;
    let folder = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    Ok(folder.context("no target folder")?.to_owned())
}

fn build() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Ok(folder.into());
    }
    let folder = beside_us()?;
    let profile = folder.file_name().and_then(|name| name.to_str()).context("no profile")?;
    let target = folder.parent().context("no target folder")?;
    let mut build = cargo();
    build.current_dir(project::path("")).args(["build", "--quiet", "--workspace", "--bins"]);
    build.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
    build.arg("--target-dir").arg(target);
    process::succeed(&mut build, "the programs cannot be built")?;
    Ok(folder)
}

/// Returns a command of the cargo that runs us or, if none does, of the workspace's.
#[must_use]
pub fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // With cargo's variables about the current package, build scripts would run again at each change between callers.
    let of_a_package = |name: &str| {
        ["CARGO_MANIFEST", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_a_package) {
            command.env_remove(name);
        }
    }
    command
}
