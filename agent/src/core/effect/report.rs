//! Facts for metrics.

use std::sync::Arc;
use std::time::Duration;

use redisson::{Kind, Moment};

use crate::types::{End, Number};

/// A fact that metrics count. Locks are named by the label of their group.
#[derive(Debug, Clone)]
pub enum Report {
    /// A lock of this group came into use; this is the number of groups seen so far.
    GroupSeen {
        group: Arc<str>,
        groups: usize,
    },
    /// A LOCK ended.
    Acquisition {
        group: Arc<str>,
        kind: Kind,
        outcome: &'static str,
    },
    /// The time from a LOCK to its answer.
    Waited {
        group: Arc<str>,
        outcome: &'static str,
        wait: Duration,
    },
    WaitBegan {
        group: Arc<str>,
        kind: Kind,
        number: Number,
        since: Moment,
    },
    WaitEnded {
        group: Arc<str>,
        kind: Kind,
        number: Number,
        since: Moment,
    },
    /// A hold was granted, or adopted from an earlier run of the agent, which granted it.
    HoldBegan {
        group: Arc<str>,
        kind: Kind,
        number: Number,
        granted: Moment,
    },
    HoldEnded {
        group: Arc<str>,
        kind: Kind,
        number: Number,
        granted: Moment,
        end: End,
        held: Duration,
    },
    /// A hold was lost while its owner relied on it.
    Lost {
        group: Arc<str>,
        end: End,
    },
    /// A fixed lease ran out before its owner released the hold.
    LeaseOverrun {
        group: Arc<str>,
    },
    /// A lock passed from one local holder to the next.
    HandOver {
        group: Arc<str>,
    },
    Renewals {
        group: Arc<str>,
        outcome: &'static str,
        count: u64,
    },
    RenewalRoundTrip(Duration),
    /// The delay of each renewal that has begun.
    RenewalLateness(Vec<Duration>),
    /// The validity that was left of each hold when a renewal succeeded.
    RenewalMargins(Vec<Duration>),
    /// The outcome of a script whose reply was lost became known.
    OutcomeKnown(&'static str),
    /// A true release that lets other hosts acquire the lock.
    Yielded,
    Command {
        word: &'static str,
        failed: bool,
        took: Duration,
    },
    SessionOpened,
    /// The end of a RESUME, or of a session that no RESUME reached in time.
    Resume(&'static str),
    /// A session left so many events unread that one was dropped.
    EventDropped,
    PolicyDenial(&'static str),
    JournalError,
    /// The agent or its host slept.
    Slept,
    /// The answer of one server of red locks to an attempt.
    NodeVote {
        node: String,
        outcome: &'static str,
    },
    /// The outcome of a grant that replicas had to confirm.
    Confirmation(&'static str),
}

impl Report {
    /// Changes the report of a command's success to that of a failure.
    pub(in crate::core) fn turn_into_failure(&mut self) {
        match self {
            Self::Acquisition { outcome, .. } => *outcome = "error",
            Self::Waited { outcome, .. } => *outcome = "other",
            Self::Command { failed, .. } => *failed = true,
            _ => {}
        }
    }
}

/// The sizes of the core's tables that metrics show as gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Holds in jeopardy.
    pub jeopardy_holds: usize,
    /// Holds of dead workers that the lock delay keeps unavailable.
    pub delayed_holds: usize,
    /// Release channels subscribed to.
    pub subscriptions: usize,
    /// Connected sessions.
    pub sessions: usize,
    /// Sessions without a connection, within their grace.
    pub away_sessions: usize,
    /// Sessions that hold or wait and whose process is stopped.
    pub frozen_sessions: usize,
}
