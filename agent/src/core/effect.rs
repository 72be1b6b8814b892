//! Effects: everything the core wants done outside of itself.

use redisson::script::Call;
use service_kit::trace::TraceParent;

use crate::core::ops::OpId;
use crate::journal::Record;
use crate::protocol::resp::Outgoing;
use crate::types::SessionId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The one of all kinds but red.
    Main,
    /// One of the independent servers of red locks, by its place in [`RedSettings::nodes`].
    Red(usize),
}

/// Which connection a script goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// What workers wait for.
    Commands,
    /// Renewals, which no load may delay.
    Renewals,
    /// What grants, and that replicas must have: the outcome is for [`Core::on_confirmed`].
    Grants,
}

/// What the outside is to do.
#[derive(Debug)]
pub enum Effect {
    /// Send a script; bring the outcome by [`Core::on_reply`] or [`Core::on_failure`].
    Send {
        /// By which the outcome names it.
        op: OpId,
        /// To which Redis.
        node: Node,
        /// Down which connection.
        lane: Lane,
        /// The script and its arguments.
        call: Call,
        /// What it is a part of in traces.
        place: TraceParent,
    },
    /// Give a session something to write.
    Deliver(SessionId, Outgoing),
    /// Listen to this channel, on which releases of a lock are told; tell [`Core::on_subscribed`] once the
    /// subscription stands.
    Subscribe(Node, Vec<u8>),
    /// No longer listen to it.
    Unsubscribe(Node, Vec<u8>),
    /// Note this in the journal; tell [`Core::on_journalled`] or [`Core::on_journal_failed`]. Replies that rest on it
    /// wait for that.
    Journal(Record),
}
