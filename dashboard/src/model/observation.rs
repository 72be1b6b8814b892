//! What sources tell the model.

use std::time::Duration;

use redisson::shape::LockHash;
use redisson::{LockName, Moment, monitor};

use super::view::WallMillis;

/// Which database of which deployment: an index into the model's scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub usize);

/// A source, by the word that pages, the API and metrics use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Passes over all keys.
    Scan,
    /// Redisson's release messages.
    Channels,
    /// Known locks read again.
    Poll,
    /// What MONITOR shows of all commands.
    Monitor,
}

impl Source {
    /// Every one, in the order pages show them.
    pub const ALL: [Self; 4] = [Self::Scan, Self::Channels, Self::Poll, Self::Monitor];

    /// The word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Channels => "channels",
            Self::Poll => "poll",
            Self::Monitor => "monitor",
        }
    }
}

/// When something was read: Redis answered for an instant between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Before the command was sent.
    pub sent: Moment,
    /// After its reply had come.
    pub received: Moment,
    /// The wall clock at the latter.
    pub wall: WallMillis,
}

impl Stamp {
    /// How long the reply took.
    #[must_use]
    pub fn slack(&self) -> Duration {
        self.received.since(self.sent)
    }

    /// What decides which of two readings counts: the one asked for later. It is surely the newer one, or the two
    /// overlapped and either may be shown; but the order in which replies come in decides nothing.
    #[must_use]
    pub fn rank(&self) -> (Moment, Moment) {
        (self.sent, self.received)
    }
}

/// What a key was read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// There is no such key. A fair lock's queue may still be there.
    Absent {
        /// Whether it is.
        queued: bool,
    },
    /// A hash of a lock's form.
    Lock {
        /// Its fields.
        hash: LockHash,
        /// Time to live; none: it has none.
        ttl: Option<Duration>,
        /// Whether there is a fair lock's queue beside it.
        queued: bool,
    },
    /// Something else; a sentence says what.
    Other(String),
}

/// Lock traffic that MONITOR showed, in its order.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// What was done to locks, or tried.
    pub events: Vec<monitor::Event>,
    /// When it was read; it happened shortly before.
    pub at: Moment,
    /// The same by the wall clock.
    pub wall: WallMillis,
    /// How many events before these could not be handed over.
    pub missed: u64,
}

/// One thing that a source saw.
#[derive(Debug, Clone)]
pub enum Observation {
    /// A key was read.
    Read {
        /// Which.
        name: LockName,
        /// When.
        stamp: Stamp,
        /// By which source.
        source: Source,
        /// As what.
        reading: Reading,
    },
    /// A release message came for one of these locks, likeliest first.
    Released {
        /// The locks that share the channel.
        names: Vec<LockName>,
        /// When it came.
        at: Moment,
        /// The same by the wall clock.
        wall: WallMillis,
    },
    /// A companion key of the lock was seen by a pass.
    Companion {
        /// The lock.
        name: LockName,
    },
    /// MONITOR showed something.
    Traffic(Traffic),
    /// From now on MONITOR shows all traffic, or no longer does.
    Tapping {
        /// Which.
        on: bool,
        /// Since when.
        at: Moment,
    },
    /// From now on release messages reach us, or no longer do.
    Listening {
        /// Which.
        on: bool,
        /// Since when.
        at: Moment,
    },
    /// The server can be read.
    Up {
        /// When.
        wall: WallMillis,
        /// The id of the server's run, where it tells.
        run_id: Option<String>,
        /// When, by the boot clock.
        at: Moment,
    },
    /// The server cannot be read.
    Down,
    /// A pass over all keys was completed.
    PassEnded {
        /// When it had begun.
        started: Moment,
    },
}
