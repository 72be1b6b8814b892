//! What sources tell the model.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redisson::shape::LockHash;
use redisson::{HolderId, LockName, Moment, monitor};

use super::past::Act;
use super::view::{Acknowledgement, ProblemKind};
use super::who::Told;
use crate::clock::SteadyMillis;

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
    /// Connections that listen for a lock's release, counted.
    Subscribers,
    /// What the server tells of changed keys, where it does.
    Keyspace,
    /// Who holders are and whether they live, by the server's list of clients and by what agents tell in Redis.
    Identity,
    /// Somebody who did something on this dashboard.
    Operator,
}

impl Source {
    /// Every one, in the order pages show them.
    pub const ALL: [Self; 8] = [
        Self::Scan,
        Self::Channels,
        Self::Keyspace,
        Self::Subscribers,
        Self::Poll,
        Self::Monitor,
        Self::Identity,
        Self::Operator,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Channels => "channels",
            Self::Poll => "poll",
            Self::Monitor => "monitor",
            Self::Subscribers => "subscribers",
            Self::Keyspace => "keyspace",
            Self::Identity => "identity",
            Self::Operator => "operator",
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
    pub steady: SteadyMillis,
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
    /// There is no such key. What belongs to one may still be there.
    Absent { beside: Beside },
    /// A hash of a lock's form.
    Lock {
        hash: LockHash,
        /// Time to live; none: it has none.
        ttl: Option<Duration>,
        /// What stands beside it.
        beside: Beside,
    },
    /// Something else; a sentence says what.
    Other(String),
}

/// Keys that belong to a lock, as far as they were looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beside {
    /// A fair lock's queue and deadlines; none: neither is there.
    pub queue: Option<Queue>,
    /// A fenced lock's token.
    pub token: Token,
    /// The markers of readers, of those that were asked about.
    pub markers: Vec<(HolderId, Marker)>,
}

impl Beside {
    /// Whether nothing of it could be read: it is as it was.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.token == Token::Away
    }
}

/// A fair lock's queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    /// How many stand in it.
    pub len: u64,
    /// The first of them, the next one first; empty where they were not looked at.
    pub front: Vec<Queued>,
    /// How many deadlines there are, and how many of them had passed by the server's clock.
    pub deadlines: u64,
    pub passed: u64,
}

impl Queue {
    /// Whether all who stand in it are known by name.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.len == u64::try_from(self.front.len()).unwrap_or(u64::MAX)
    }
}

/// A place in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    pub id: HolderId,
    /// Until when it keeps the place, in epoch milliseconds by its own clock; none: it has none, or it was not
    /// looked at.
    pub deadline: Option<u64>,
}

/// A fenced lock's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Token {
    /// Not looked at.
    #[default]
    NotRead,
    /// It could not be looked at, nor could anything else beside the lock: their slot is moving, and they may be at another
    /// node than the lock.
    Away,
    /// There is none.
    Nothing,
    /// The one granted last.
    Is(i64),
}

/// What shows that a reader lives: a key of its own beside the lock, which its client renews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// There is none: the reader is gone, and only its field is left.
    Missing,
    /// With so long to live.
    Left(Duration),
    /// Without a time to live.
    Endless,
}

/// Lock traffic that MONITOR showed, in its order.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// What was done to locks, or tried.
    pub events: Vec<monitor::Event>,
    /// When it was read; it happened shortly before.
    pub at: Moment,
    pub steady: SteadyMillis,
    /// How many events before these could not be handed over.
    pub missed: u64,
}

/// Who serves what in a cluster.
#[derive(Debug, Clone)]
pub struct Served {
    /// Slots with the scopes of the nodes that have them, all that are looked at.
    pub by: Vec<(RangeInclusive<u16>, ScopeId)>,
    /// Nodes that have nothing any more.
    pub over: Vec<ScopeId>,
    pub at: Moment,
    pub steady: SteadyMillis,
}

/// One thing that a source saw.
#[derive(Debug, Clone)]
pub enum Observation {
    /// A key was read.
    Read {
        name: LockName,
        stamp: Stamp,
        /// By which source.
        source: Source,
        reading: Reading,
    },
    /// A release message came for one of these locks, likeliest first.
    Released {
        /// The locks that share the channel.
        names: Vec<LockName>,
        /// When it came.
        at: Moment,
        steady: SteadyMillis,
    },
    /// The server told that the lock's key was changed.
    Changed {
        name: LockName,
        /// Whether its time to live had run out.
        expired: bool,
        /// When that was heard.
        at: Moment,
        steady: SteadyMillis,
    },
    /// A companion key of the lock was seen by a pass.
    Companion { name: LockName },
    /// The server's clock was read.
    Clock {
        /// How many milliseconds it is ahead of ours; behind where negative.
        ahead_ms: i64,
    },
    /// Connections that listen for releases of these locks were counted.
    Subscribers {
        /// How many each.
        counts: Vec<(LockName, u64)>,
        at: Moment,
        steady: SteadyMillis,
    },
    /// All addresses that anybody is connected from.
    Connected { addresses: HashSet<IpAddr>, at: Moment, steady: SteadyMillis },
    /// Agents told of themselves and of their holders, or did not.
    Told(Told),
    /// MONITOR showed something.
    Traffic(Traffic),
    /// Somebody is about to end these holds of the lock by force.
    Forcing {
        name: LockName,
        /// Whose holds; none where a place in its queue is meant, or nothing came of it.
        holders: Vec<HolderId>,
        at: Moment,
    },
    /// Somebody did something about the lock on this dashboard.
    Acted {
        name: LockName,
        /// What, as events call it.
        word: &'static str,
        /// Who did what and why, a sentence.
        text: String,
        steady: SteadyMillis,
    },
    /// Somebody has a problem of the lock in hand, or no longer has.
    Acknowledged {
        name: LockName,
        problem: ProblemKind,
        /// Who, why and until when; none: no longer.
        word: Option<Arc<Acknowledgement>>,
        /// What was done, for the history.
        act: Box<Act>,
    },
    /// From now on MONITOR shows all traffic, or no longer does.
    Tapping { on: bool, at: Moment },
    /// From now on release messages reach us, or no longer do.
    Listening { on: bool, at: Moment },
    /// Where the server is that is about to be told as up. It is another one than before when the sentinels have made it
    /// the master.
    At {
        address: String,
        /// Whether it is read in place of its master.
        replica: bool,
    },
    /// The server can be read.
    Up {
        steady: SteadyMillis,
        /// The id of the server's run, where it tells.
        run_id: Option<String>,
        /// When, by the boot clock.
        at: Moment,
        /// Whether it is part of a cluster.
        cluster: bool,
    },
    /// The server cannot be read.
    Down,
    /// Slots of a cluster are served by these nodes.
    Served(Served),
    /// A pass over all keys was completed.
    PassEnded {
        /// When it had begun.
        started: Moment,
        /// The end of the pass.
        steady: SteadyMillis,
    },
}
