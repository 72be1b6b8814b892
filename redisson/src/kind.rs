//! The kinds of lock.

use std::fmt;

/// A kind of lock, by the word that workers, metrics and pages use for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Plain reentrant lock (`RLock`). Fenced and red locks look the same in Redis.
    Lock,
    /// First come, first served among all clients (`RFairLock`).
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

    /// The family it belongs to.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Lock | Self::Fenced => Family::Plain,
            Self::Fair => Family::Fair,
            Self::Read | Self::Write => Family::ReadWrite,
            Self::Red => Family::Red,
        }
    }

    /// The word for it.
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

    /// Reads the word, in any case of letters.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| word.eq_ignore_ascii_case(kind.as_str().as_bytes()))
    }
}

/// Kinds that share one layout in Redis and exclude each other under one name. Those of different families cannot
/// tell what the other does: they do not mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One holder, no `mode`: plain and fenced.
    Plain,
    /// One holder, and a queue.
    Fair,
    /// Readers or a writer.
    ReadWrite,
    /// Plain, but on several servers.
    Red,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
