//! A wall clock that a test can set for its child processes.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// The time of day for processes started with [`WallClock::environment`], set through libfaketime. Monotonic clocks are
/// not affected.
#[derive(Debug)]
pub struct WallClock {
    folder: TempDir,
    library: String,
}

impl WallClock {
    /// Creates a clock that shows the right time.
    ///
    /// # Errors
    /// Returns an error if libfaketime is not installed.
    pub fn new() -> Result<Self> {
        // The library's location depends on the system; its wrapper knows it.
        let wrapper = ["-m", "-f", "+0", "sh", "-c", "echo \"$LD_PRELOAD\""];
        let told = Command::new("faketime").args(wrapper).output();
        let told = told.context("no faketime; `make deps` installs it")?;
        ensure!(told.status.success(), "faketime: {}", told.status);
        let library = String::from_utf8(told.stdout)?.trim().to_owned();
        let folder = tempfile::Builder::new().prefix("lockscope-clock-").tempdir()?;
        let clock = Self { folder, library };
        clock.set(0)?;
        Ok(clock)
    }

    /// Returns the variables of a process that uses this clock.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ]
    }

    /// Sets the clock that many seconds before or after the right time.
    ///
    /// # Errors
    /// Returns an error if its file cannot be written.
    pub fn set(&self, ahead: i64) -> Result<()> {
        // The rename prevents reads of a half-written file.
        let next = self.folder.path().join("next");
        std::fs::write(&next, format!("{ahead:+}\n"))?;
        Ok(std::fs::rename(next, self.file())?)
    }

    /// Removes what the library left in shared memory for a killed process with this pid.
    pub fn clear_up(pid: u32) {
        for kind in ["faketime_shm", "sem.faketime_sem"] {
            // A process that ended by itself has left nothing.
            std::fs::remove_file(format!("/dev/shm/{kind}_{pid}")).unwrap_or_default();
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}
