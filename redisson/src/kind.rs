//! The kinds of lock.

use std::fmt;

/// A kind of lock, with its name in the protocol, metrics and pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Plain reentrant lock (`RLock`). Fenced and red locks have the same layout in Redis.
    Lock,
    /// First come, first served across all clients (`RFairLock`).
    Fair,
    /// The shared side of a read-write lock.
    Read,
    /// The exclusive side of a read-write lock.
    Write,
    /// Plain, with a fencing token (`RFencedLock`).
    Fenced,
    /// Plain, held on a majority of independent servers (`RedissonRedLock`).
    Red,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Lock, Self::Fair, Self::Read, Self::Write, Self::Fenced, Self::Red];

    /// Returns the family of this kind.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Lock | Self::Fenced => Family::Plain,
            Self::Fair => Family::Fair,
            Self::Read | Self::Write => Family::ReadWrite,
            Self::Red => Family::Red,
        }
    }

    /// Returns its name, in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fenced => "fenced",
            Self::Red => "red",
        }
    }

    /// Parses a name, ignoring case.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| word.eq_ignore_ascii_case(kind.as_str().as_bytes()))
    }
}

/// Kinds that share a layout in Redis and exclude each other under one name. Different families must not share a name:
/// they do not see each other's holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One holder and no `mode` field: plain and fenced.
    Plain,
    /// One holder and a queue.
    Fair,
    /// Many readers or one writer.
    ReadWrite,
    /// Plain, on several servers.
    Red,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
