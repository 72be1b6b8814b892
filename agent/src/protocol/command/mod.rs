//! The commands of workers, parsed and validated.

mod parse;

use std::time::Duration;

use redisson::{Kind, Lease, LockName};

pub use parse::parse;
pub(crate) use parse::{error, shown, upper};

/// The longest time that a LOCK waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Forever,
    /// Zero for NOWAIT.
    AtMost(Duration),
}

/// A session id as passed to HOLDS, EVENTS, CANCEL and IN, not validated yet.
pub type SessionName = Vec<u8>;

/// One command of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Lock(LockRequest),
    /// Releases one reentrant hold.
    Unlock(HoldRequest),
    /// MLOCK: acquires all locks or none. The requests differ only in the name; there is at least one, and no duplicate.
    LockAll(Vec<LockRequest>),
    /// MUNLOCK: releases one hold of each lock. There is at least one, and no duplicate.
    UnlockAll(Vec<HoldRequest>),
    /// Sets a fixed lease from now on, or returns the hold to the watchdog (no lease).
    Extend(HoldRequest, Option<Lease>),
    /// Lists the holds of this session.
    Holds,
    /// Lists the holds of a session that has a connection.
    HoldsOf {
        session: SessionName,
        secret: Vec<u8>,
    },
    /// Lists a page of all holds and waits of the agent.
    Locks(ListRequest),
    /// Shows the state of a lock in Redis.
    Show(LockName),
    /// Returns the session's id and secret, and changes the given settings.
    Session {
        /// The time for which its holds outlive a lost connection; zero disables grace.
        grace: Option<Duration>,
        /// Events are pushed on this connection.
        push: Option<bool>,
        /// Every renewal is reported as an event.
        deadlines: Option<bool>,
        /// Its grace ends with the process that opened the connection.
        process: Option<bool>,
    },
    /// Resumes a session whose connection was lost.
    Resume {
        session: SessionName,
        secret: Vec<u8>,
    },
    /// Returns the events of a session since the last call.
    Events {
        session: SessionName,
        secret: Vec<u8>,
        /// The longest time to wait for an event.
        wait: Duration,
    },
    /// Ends the wait of an owner as if it had timed out.
    Cancel {
        session: SessionName,
        secret: Vec<u8>,
        owner: i64,
    },
    /// For operators: releases a lock by force, optionally only from one holder.
    Force {
        name: LockName,
        /// The holder id in Redis.
        holder: Option<Vec<u8>>,
        /// The reply also reports the removed waiters.
        report: bool,
    },
    /// For operators: ends a session.
    Kick(SessionName),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRequest {
    pub name: LockName,
    pub kind: Kind,
    pub wait: Wait,
    /// A fixed lease; `None` for a hold that the watchdog renews.
    pub lease: Option<Lease>,
    pub owner: i64,
    /// The session that the worker expects this connection to have.
    pub session: Option<SessionName>,
    /// The W3C trace context.
    pub traceparent: Option<Vec<u8>>,
}

impl LockRequest {
    /// Returns a request for a plain lock that waits without a limit, for a hold that the watchdog renews.
    #[must_use]
    pub fn new(name: LockName) -> Self {
        Self {
            name,
            kind: Kind::Lock,
            wait: Wait::Forever,
            lease: None,
            owner: 0,
            session: None,
            traceparent: None,
        }
    }
}

/// The arguments of UNLOCK and EXTEND.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldRequest {
    pub name: LockName,
    pub kind: Option<Kind>,
    pub owner: i64,
    /// The session that the worker expects this connection to have.
    pub session: Option<SessionName>,
}

impl HoldRequest {
    /// Returns a request for a hold of any kind.
    #[must_use]
    pub fn new(name: LockName) -> Self {
        Self { name, kind: None, owner: 0, session: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRequest {
    /// A glob that names must match.
    pub pattern: Option<Vec<u8>>,
    /// The cursor that the previous page returned; 0 for the first page.
    pub cursor: u64,
    /// The maximum number of rows to return.
    pub count: usize,
}

impl Command {
    /// The label in metrics of every command that a connection answers itself.
    pub const OTHER: &str = "other";

    /// All labels of commands in metrics, the most frequent ones first.
    pub const WORDS: [&str; 15] = [
        "lock",
        "unlock",
        "mlock",
        "munlock",
        "extend",
        "holds",
        "locks",
        "show",
        "session",
        "resume",
        "events",
        "cancel",
        "force",
        "kick",
        Self::OTHER,
    ];

    /// Returns the command's label in metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Lock(_) => "lock",
            Self::Unlock(_) => "unlock",
            Self::LockAll(_) => "mlock",
            Self::UnlockAll(_) => "munlock",
            Self::Extend(..) => "extend",
            Self::Holds | Self::HoldsOf { .. } => "holds",
            Self::Locks(_) => "locks",
            Self::Show(_) => "show",
            Self::Session { .. } => "session",
            Self::Resume { .. } => "resume",
            Self::Events { .. } => "events",
            Self::Cancel { .. } => "cancel",
            Self::Force { .. } => "force",
            Self::Kick(_) => "kick",
        }
    }

    /// Returns the owner, whose commands run one after another.
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
