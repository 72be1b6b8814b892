//! The exit statuses of `lockctl`, mostly those of `sysexits.h`.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const OK: Self = Self(0);
    /// Invalid command line (`EX_USAGE`).
    pub(crate) const USAGE: u8 = 64;
    /// The agent rejects the lock: wrong kind, not a lock, a deadlock (`EX_DATAERR`).
    pub(crate) const REFUSED: Self = Self(65);
    /// No agent, or Redis is unreachable (`EX_UNAVAILABLE`).
    pub(crate) const NO_AGENT: u8 = 69;
    /// An error of the operating system (`EX_OSERR`).
    pub(crate) const OS: Self = Self(71);
    /// The lock could not be acquired in time (`EX_TEMPFAIL`).
    pub(crate) const TIMEOUT: u8 = 75;
    /// The lock was lost while the command ran.
    pub(crate) const LOST: u8 = 76;
    /// The agent's policy denies the lock, or the socket's permissions the user (`EX_NOPERM`).
    pub(crate) const DENIED: Self = Self(77);
    /// The command exists but cannot be run, as in a shell.
    pub(crate) const CANNOT_RUN: Self = Self(126);
    /// The command does not exist, as in a shell.
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// Returns the status of a command that a signal ended, as in a shell.
    pub(crate) fn signal(number: i32) -> Self {
        Self(u8::try_from(128 + number).unwrap_or(u8::MAX))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}
