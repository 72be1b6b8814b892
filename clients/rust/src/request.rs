//! The locks and options of a request, and its command.

use std::time::Duration;

use crate::resp::Command;

/// A kind of lock. All users of a name use it as the same kind at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// One holder: Redisson's `RLock`.
    #[default]
    Plain,
    /// One holder, first come, first served among all clients: `RFairLock`.
    Fair,
    /// The side of any number of readers: `RReadWriteLock`.
    Read,
    /// The side of one writer: `RReadWriteLock`.
    Write,
    /// One holder, with a token that grows with each grant: `RFencedLock`.
    Fenced,
    /// One holder, which has a majority of several independent servers: `RedissonRedLock`.
    Red,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Plain, Self::Fair, Self::Read, Self::Write, Self::Fenced, Self::Red];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Plain => "lock",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fenced => "fenced",
            Self::Red => "red",
        }
    }

    pub(crate) fn from_word(word: &[u8]) -> Self {
        Self::ALL.into_iter().find(|kind| kind.word().as_bytes() == word).unwrap_or_default()
    }
}

/// The locks and options of a request.
pub(crate) struct Request {
    pub(crate) names: Vec<Vec<u8>>,
    /// Acquires them as several, even if it is one.
    pub(crate) several: bool,
    pub(crate) kind: Kind,
    pub(crate) wait: Option<Duration>,
    pub(crate) lease: Option<Duration>,
}

impl Request {
    /// Returns the command, with the rest of the wait.
    pub(crate) fn command(&self, left: Option<Duration>, session: &str) -> Command {
        let mut command = if self.several {
            Command::new("MLOCK").number(self.names.len() as u128)
        } else {
            Command::new("LOCK")
        };
        for name in &self.names {
            command = command.word(name);
        }
        command = command.word("KIND").word(self.kind.word());
        if let Some(left) = left {
            command = command.word("WAIT").number(left.as_millis());
        }
        if let Some(lease) = self.lease {
            command = command.word("LEASE").number(lease.as_millis());
        }
        command.word("IN").word(session)
    }

    pub(crate) fn describe(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        names.join(", ")
    }
}
