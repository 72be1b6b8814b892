//! Errors of this library.

use std::fmt;
use std::time::Duration;

/// The result of this library's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this library.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The lock could not be acquired in time.
    Timeout {
        /// The lock's name, or the names separated by commas.
        name: String,
        /// The limit of the wait.
        wait: Duration,
    },
    /// A hold of this owner was lost.
    Lost(Lost),
    /// The agent cannot be reached, or it cannot reach Redis. Retrying later may succeed.
    Unavailable(String),
    /// The agent is shutting down and grants no more locks. Its successor will.
    Draining(String),
    /// The agent rejected the command.
    Rejected {
        /// The first word of the reply, such as `WRONGKIND`, `DENIED` or `DEADLOCK`.
        code: String,
        /// The whole reply.
        message: String,
    },
    /// [`Agent::close`](crate::Agent::close) was called.
    Closed,
}

impl Error {
    /// Returns whether the agent or Redis cannot be used at present: [`Unavailable`](Self::Unavailable),
    /// [`Draining`](Self::Draining) or [`Closed`](Self::Closed).
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Draining(_) | Self::Closed)
    }

    pub(crate) fn from_reply(message: String) -> Self {
        match code(&message) {
            "UNAVAILABLE" => Self::Unavailable(message),
            "DRAINING" => Self::Draining(message),
            code => Self::Rejected { code: code.to_owned(), message },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { name, wait } => write!(f, "could not acquire {name} within {wait:?}"),
            Self::Lost(lost) => lost.fmt(f),
            Self::Unavailable(message)
            | Self::Draining(message)
            | Self::Rejected { message, .. } => f.write_str(message),
            Self::Closed => f.write_str("this Agent is closed"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// The end of a hold that its owner did not release. Write nothing more under it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The lock's name.
    pub name: String,
    /// The reason: the agent's word, such as `missing` or `forced`, or a sentence.
    pub reason: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lost {}: {}", self.name, self.reason)
    }
}

impl std::error::Error for Lost {}

/// Returns the first word of an error reply.
pub(crate) fn code(message: &str) -> &str {
    message.split(' ').next().unwrap_or_default()
}

/// The outcome of a command that did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection ended before the reply. The command may have had its effect.
    Disconnected,
    /// The agent's error reply.
    Reply(String),
}

impl Failure {
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::Disconnected => "",
            Self::Reply(message) => code(message),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Disconnected => Self::Unavailable("connection to the agent lost".to_owned()),
            Failure::Reply(message) => Self::from_reply(message),
        }
    }
}
