//! A waiter: a LOCK that is not answered yet.

use std::time::Duration;

use redisson::{Kind, Lease, LockName, Moment};
use tracing::Span;

use crate::core::ids::{OpId, Owner, ReplyTo};
use crate::protocol::command::Wait;
use crate::types::Number;

/// The rank of a waiter by arrival: later ones have higher numbers.
pub(super) type Arrival = u64;

/// A LOCK that is not answered yet.
#[derive(Debug)]
pub(in crate::core) struct Waiter {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    /// The grant number that its attempts carry. No script that removes it has been sent.
    pub(in crate::core) number: Number,
    pub(in crate::core) owner: Owner,
    /// The user of its process.
    pub(in crate::core) uid: u32,
    pub(in crate::core) reply_to: ReplyTo,
    /// The requested lease; `None` for a renewed hold.
    pub(in crate::core) lease: Option<Lease>,
    pub(in crate::core) wait: Wait,
    pub(in crate::core) since: Moment,
    /// The trace that its LOCK is part of.
    pub(in crate::core) trace: Option<Box<str>>,
    /// The span of the wait.
    pub(in crate::core) span: Span,
    /// The hold of this agent that it first queued behind, if its span is to record that.
    pub(in crate::core) behind: Option<Number>,
    /// Redis, a local hold or an earlier waiter has shown that the lock is taken.
    pub(in crate::core) refused: bool,
    /// Its position in a fair lock's queue.
    pub(in crate::core) position: FairPosition,
    /// Its attempt in flight, or waiting to be sent again.
    pub(in crate::core) attempt: Option<OpId>,
    /// The quorum operation that removes what its latest attempt at a red lock has acquired.
    pub(in crate::core) undoing: Option<OpId>,
    /// Its rank in its name's queue; `None` if it is in no queue.
    pub(super) arrival: Option<Arrival>,
    /// The deadline that is set.
    pub(super) armed: Moment,
}

impl Waiter {
    pub(in crate::core) fn is_now_or_never(&self) -> bool {
        self.wait == Wait::AtMost(Duration::ZERO)
    }

    /// Returns whether its time is over, so that the next answer without the lock ends its wait.
    pub(in crate::core) fn is_over(&self, now: Moment) -> bool {
        matches!(self.wait, Wait::AtMost(wait) if self.since + wait <= now)
    }
}

/// A waiter's position in Redis's queue of a fair lock.
#[derive(Debug, Default)]
pub(in crate::core) struct FairPosition {
    /// The instant of the latest attempt that may have created or refreshed it; `None` while Redis has none.
    pub(in crate::core) refreshed: Option<Moment>,
    /// The fair waiter's own channel, to which it is subscribed.
    pub(super) listening: Option<Vec<u8>>,
    /// The instant of the latest message.
    pub(super) message_at: Option<Moment>,
    /// The deadline of the next attempt.
    pub(super) armed: Option<Moment>,
    /// The numbers of this agent that held the lock, or were ahead in the queue, when Redis last refused it.
    pub(super) behind: Vec<Number>,
}

/// The reason why a waiter leaves without the lock.
#[derive(Debug, Clone)]
pub(in crate::core) enum Left {
    /// The time is over.
    TimedOut,
    /// The wait was cancelled, or its session ended.
    Cancelled,
    /// The agent ends.
    Draining,
    /// The lock cannot be acquired, for this reason.
    Failed(String),
}
