//! A clock on the wall that a test can set, for processes of its own.

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
    /// One that is right.
    ///
    /// # Errors
    /// Returns an error if libfaketime is not installed.
    pub fn new() -> Result<Self> {
        // Where the library is depends on the system; its wrapper knows.
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

    /// The variables of a process that is to go by it.
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

    /// Sets it so many seconds before or after the right time.
    ///
    /// # Errors
    /// Returns an error if its file cannot be written.
    pub fn set(&self, ahead: i64) -> Result<()> {
        // Never seen half written.
        let next = self.folder.path().join("next");
        std::fs::write(&next, format!("{ahead:+}\n"))?;
        Ok(std::fs::rename(next, self.file())?)
    }

    /// Removes what the library has left in shared memory for a process of this pid, which was killed and could not do so.
    pub fn clear_up(pid: u32) {
        for kind in ["faketime_shm", "sem.faketime_sem"] {
            // One that ended by itself has left nothing.
            std::fs::remove_file(format!("/dev/shm/{kind}_{pid}")).unwrap_or_default();
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}
