//! What workers can ask for, typed and within bounds.

mod parse;

use std::time::Duration;

use redisson::{Kind, Lease, LockName};

use crate::protocol::resp::Outgoing;

pub use parse::parse;
pub(crate) use parse::{error, shown};

/// How long a LOCK waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// As long as it takes.
    Forever,
    /// At most that long; zero for NOWAIT.
    AtMost(Duration),
}

/// A session as EVENTS, CANCEL and IN name it: text that SESSION told.
pub type SessionName = Vec<u8>;

/// One command of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Take a lock.
    Lock(LockRequest),
    /// Give up one hold of it.
    Unlock(HoldRequest),
    /// Take all of them or none: one request for each, alike but for the name. Never empty, no name twice.
    LockAll(Vec<LockRequest>),
    /// Give up one hold of each of them. Never empty, no name twice.
    UnlockAll(Vec<HoldRequest>),
    /// Fix a hold's lease from now, or give it back to the watchdog (no lease).
    Extend(HoldRequest, Option<Lease>),
    /// This session's holds.
    Holds,
    /// Holds and waits of the whole agent, a page at a time.
    Locks(ListRequest),
    /// What Redis says of one lock.
    Show(LockName),
    /// The session's id and secret; sets what is given.
    Session {
        /// How long its holds outlive a broken connection; zero: not at all.
        grace: Option<Duration>,
        /// Whether events come unasked on this connection.
        push: Option<bool>,
        /// Whether each renewal is told.
        deadlines: Option<bool>,
    },
    /// Take over a session whose connection has gone.
    Resume { session: SessionName, secret: Vec<u8> },
    /// The events of a session since the last call.
    Events {
        /// Which session, and the secret that shows the right to it.
        session: SessionName,
        secret: Vec<u8>,
        /// How long to wait for the first one.
        wait: Duration,
    },
    /// End an owner's wait as if its time were over.
    Cancel {
        session: SessionName,
        secret: Vec<u8>,
        /// Which owner of it.
        owner: i64,
    },
    /// For operators: release a lock whoever holds it, or only if this one does.
    Force {
        name: LockName,
        /// The holder as Redis shows it.
        holder: Option<Vec<u8>>,
    },
    /// For operators: end a session.
    Kick(SessionName),
    /// Answered by the connection itself; it only waits for its turn among the replies.
    Answered(Outgoing),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRequest {
    pub name: LockName,
    /// As which kind.
    pub kind: Kind,
    /// How long to wait for it.
    pub wait: Wait,
    /// A fixed lease; none for the watchdog's care.
    pub lease: Option<Lease>,
    /// Whose it will be within the session.
    pub owner: i64,
    /// The session the worker believes to be in.
    pub session: Option<SessionName>,
    /// The trace it is part of (W3C `traceparent`).
    pub traceparent: Option<Vec<u8>>,
}

/// UNLOCK's and EXTEND's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldRequest {
    pub name: LockName,
    /// As which kind, where the worker says so.
    pub kind: Option<Kind>,
    pub owner: i64,
    /// The session the worker believes to be in.
    pub session: Option<SessionName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRequest {
    /// Only names that match this glob.
    pub pattern: Option<Vec<u8>>,
    /// Where the last page ended; 0 to begin.
    pub cursor: u64,
    /// How many rows at most.
    pub count: usize,
}

impl Command {
    pub const WORDS: [&str; 15] = [
        "lock", "unlock", "mlock", "munlock", "extend", "holds", "locks", "show", "session",
        "resume", "events", "cancel", "force", "kick", "other",
    ];

    /// The word it is counted by in metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Lock(_) => "lock",
            Self::Unlock(_) => "unlock",
            Self::LockAll(_) => "mlock",
            Self::UnlockAll(_) => "munlock",
            Self::Extend(..) => "extend",
            Self::Holds => "holds",
            Self::Locks(_) => "locks",
            Self::Show(_) => "show",
            Self::Session { .. } => "session",
            Self::Resume { .. } => "resume",
            Self::Events { .. } => "events",
            Self::Cancel { .. } => "cancel",
            Self::Force { .. } => "force",
            Self::Kick(_) => "kick",
            Self::Answered(_) => "other",
        }
    }

    /// The owner whose earlier commands must end before this one begins.
    #[must_use]
    pub fn owner(&self) -> i64 {
        match self {
            Self::Lock(lock) => lock.owner,
            Self::Unlock(hold) | Self::Extend(hold, _) => hold.owner,
            Self::LockAll(locks) => locks.first().map_or(0, |lock| lock.owner),
            Self::UnlockAll(holds) => holds.first().map_or(0, |hold| hold.owner),
            _ => 0,
        }
    }
}
