//! How `lockctl` ends: the exit statuses, most of them those of `sysexits.h`.

use std::process::ExitCode;

/// An exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    /// All went well.
    pub(crate) const OK: Self = Self(0);
    /// The command line cannot be used (`EX_USAGE`).
    pub(crate) const USAGE: u8 = 64;
    /// The agent refuses the lock: wrong kind, no lock, a deadlock (`EX_DATAERR`).
    pub(crate) const REFUSED: Self = Self(65);
    /// No agent, or no Redis behind it (`EX_UNAVAILABLE`).
    pub(crate) const NO_AGENT: u8 = 69;
    /// `lockctl` itself cannot go on (`EX_OSERR`).
    pub(crate) const OS: Self = Self(71);
    /// The lock was not to be had in time (`EX_TEMPFAIL`).
    pub(crate) const TIMEOUT: u8 = 75;
    /// The lock was lost while the command ran.
    pub(crate) const LOST: u8 = 76;
    /// The agent's policy does not allow it (`EX_NOPERM`).
    pub(crate) const DENIED: Self = Self(77);
    /// The command is there but cannot be run, as a shell has it.
    pub(crate) const CANNOT_RUN: Self = Self(126);
    /// There is no such command, as a shell has it.
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// The status of what a signal has ended, as a shell has it.
    pub(crate) fn signal(number: i32) -> Self {
        Self(u8::try_from(128 + number).unwrap_or(u8::MAX))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}
