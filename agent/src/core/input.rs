//! Everything that the rest of the agent sends to the core.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::report::{AwaitedLock, ListPage, ListRow, PublishDiff, PublishedPage, SessionRow};
use crate::policy::Policy;
use crate::protocol::command::{Command, ListRequest};
use crate::protocol::resp::Outgoing;
use crate::types::{ConnectionId, Peer, Secret};

/// The maximum number of commands of one connection that may be unanswered; it stops reading at this bound.
pub const PIPELINE: usize = 1024;
/// The replies and pushes in a connection's outbox, beyond one for each hold, from which on further pushes are dropped and
/// counted. The loss of a hold is never dropped.
pub const PUSHES: usize = 256;

/// A message to the core. Those of one connection arrive in order.
#[derive(Debug)]
pub enum Input {
    /// A worker connected.
    Opened {
        connection: ConnectionId,
        peer: Peer,
        /// Random bytes.
        secret: Secret,
        /// The queue for its replies and pushes, with room for all: commands and holds bound their number.
        outbox: mpsc::Sender<Outgoing>,
    },
    /// A client set its name (CLIENT SETNAME).
    ClientName(ConnectionId, Vec<u8>),
    /// A worker sent a command. At most [`PIPELINE`] commands of a connection are unanswered at a time.
    Command(ConnectionId, Command),
    /// A connection has answered a command itself: the reply only needs its place among the others. It counts as an
    /// unanswered command until then.
    Answered(ConnectionId, Outgoing),
    /// A connection switched to RESP3, or back to RESP2.
    Resp3(ConnectionId, bool),
    /// A worker sent QUIT: its holds are released when the connection closes, even within a grace period.
    Quit(ConnectionId),
    /// A worker wants its grace to end with its process, which is watched until this sender is dropped; `None`: no longer.
    Watched(ConnectionId, Option<oneshot::Sender<Infallible>>),
    /// The watched process of a connection has died.
    Died(ConnectionId),
    /// A connection closed: its waits end, and its holds are released unless the session has grace.
    Closed(ConnectionId),
    /// The policy was loaded again.
    PolicyReloaded(Policy),
    /// Requests a page of the agent's holds and waits.
    ListLocks(ListRequest, oneshot::Sender<ListPage<ListRow>>),
    /// Requests the sessions whose connections have numbers above this one, up to a count.
    ListSessions(u64, usize, oneshot::Sender<ListPage<SessionRow>>),
    /// Requests the pids of workers that hold or wait for a lock.
    ListBusy(oneshot::Sender<BTreeSet<i32>>),
    /// Reports the pids, out of the latest [`Input::ListBusy`], whose processes are stopped.
    Stopped(BTreeSet<i32>),
    /// Compares a page of the holder registry with the actual holds and waits.
    DiffPublished(PublishedPage, oneshot::Sender<PublishDiff>),
    /// Requests the red locks, or those of all other kinds, that have waiters of at least this age.
    ListAwaited { red: bool, min_age: Duration, answer: oneshot::Sender<Vec<AwaitedLock>> },
}

impl Input {
    /// Returns the connection that sent it, if one did.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Opened { connection, .. }
            | Self::ClientName(connection, _)
            | Self::Command(connection, _)
            | Self::Answered(connection, _)
            | Self::Resp3(connection, _)
            | Self::Quit(connection)
            | Self::Watched(connection, _)
            | Self::Died(connection)
            | Self::Closed(connection) => Some(*connection),
            Self::PolicyReloaded(_)
            | Self::ListLocks(..)
            | Self::ListSessions(..)
            | Self::ListBusy(_)
            | Self::Stopped(_)
            | Self::DiffPublished(..)
            | Self::ListAwaited { .. } => None,
        }
    }
}
