//! Replies that wait for their turn, and their content once it has come.

use std::time::Duration;

use redisson::{Kind, LockName, Moment};

use crate::core::lease::lease_terms::LeaseTerms;
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::Number;

/// A command's reply. One that states a validity may have to wait for the reply to an earlier command of another owner;
/// its content is determined when it is sent.
#[derive(Debug)]
pub(in crate::core) enum Reply {
    Ready(Outgoing),
    Grant(Grant),
    /// The reply to UNLOCK if the owner still holds the lock: the hold count.
    StillHeld {
        number: Number,
        count: u32,
    },
    /// The reply to EXTEND: the validity of that hold, and its value when the command ended.
    Valid {
        number: Number,
        valid_until: Moment,
        /// How the hold was kept before.
        before: LeaseTerms,
    },
    /// The session's holds.
    Holds,
    /// The reply to SESSION GRACE.
    Graced {
        reply: Frame,
        /// The grace that the session had before, if any.
        before: Option<Duration>,
    },
    /// The reply to RESUME: the current state of the session.
    Resumed,
    /// The reply to MLOCK or MUNLOCK, with one part for each member.
    MultiLock(Vec<Self>),
}

impl Reply {
    /// Returns the hold that it reports.
    pub(super) fn hold(&self) -> Option<Number> {
        match self {
            Self::Grant(Grant { number, .. })
            | Self::StillHeld { number, .. }
            | Self::Valid { number, .. } => Some(*number),
            Self::Ready(_)
            | Self::Holds
            | Self::MultiLock(_)
            | Self::Graced { .. }
            | Self::Resumed => None,
        }
    }

    /// Returns whether a session with grace receives it only once the journal has recorded it.
    pub(in crate::core) fn rests_on_journal(&self) -> bool {
        !matches!(self, Self::Ready(_) | Self::Holds)
    }

    /// Returns the grants that it reports.
    pub(in crate::core) fn granted(&self) -> Vec<Number> {
        match self {
            Self::Grant(grant) => vec![grant.number],
            Self::MultiLock(parts) => parts.iter().flat_map(Self::granted).collect(),
            _ => Vec::new(),
        }
    }
}

/// The facts of a successful LOCK.
#[derive(Debug, Clone)]
pub(in crate::core) struct Grant {
    pub(in crate::core) number: Number,
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) token: Option<u64>,
    pub(in crate::core) count: u32,
    pub(in crate::core) valid_until: Moment,
    pub(in crate::core) waited_ms: u64,
}
