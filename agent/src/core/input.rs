//! Everything that the rest of the agent sends to the core.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::report::{AwaitedLock, ListPage, ListRow, PublishDiff, PublishedPage, SessionRow};
use crate::policy::Policy;
use crate::protocol::command::{Command, ListRequest};
use crate::protocol::resp::Outgoing;
use crate::types::{Peer, SessionId};

/// The most commands of one session that may be unanswered; its connection stops reading at this bound.
pub const PIPELINE: usize = 1024;
/// The most pushes that may wait in a session's outbox; further ones are dropped and counted.
pub const PUSHES: usize = 256;

/// A message to the core. Those of one connection arrive in order.
#[derive(Debug)]
pub enum Input {
    /// A worker connected.
    Opened {
        session: SessionId,
        peer: Peer,
        /// 16 random bytes that authorize RESUME, EVENTS and CANCEL.
        secret: [u8; 16],
        /// The queue for its replies, with room for [`PIPELINE`] replies and [`PUSHES`] pushes.
        outbox: mpsc::Sender<Outgoing>,
    },
    /// A client set its name (CLIENT SETNAME).
    ClientName(SessionId, Vec<u8>),
    /// A worker sent a command. At most [`PIPELINE`] commands of a session are unanswered at a time.
    Command(SessionId, Command),
    /// A connection switched to RESP3, or back to RESP2.
    Resp3(SessionId, bool),
    /// A worker sent QUIT: its holds are released when the connection closes, even within a grace period.
    Quit(SessionId),
    /// A connection closed: its waits end, and its holds are released unless the session has grace.
    Closed(SessionId),
    /// The policy was loaded again.
    PolicyReloaded(Policy),
    /// Requests a page of the agent's holds and waits.
    ListLocks(ListRequest, oneshot::Sender<ListPage<ListRow>>),
    /// Requests the sessions above a number, up to a count.
    ListSessions(u64, usize, oneshot::Sender<ListPage<SessionRow>>),
    /// Requests the pids of workers that hold or wait for a lock.
    ListBusy(oneshot::Sender<BTreeSet<i32>>),
    /// Reports the pids, out of the latest [`Input::ListBusy`], whose processes are stopped.
    Stopped(BTreeSet<i32>),
    /// Compares a page of the holder registry with the actual holds and waits.
    DiffPublished(PublishedPage, oneshot::Sender<PublishDiff>),
    /// Requests the locks that have waiters of at least this age.
    ListAwaited(Duration, oneshot::Sender<Vec<AwaitedLock>>),
}

impl Input {
    /// Returns the session that sent it, if one did.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Opened { session, .. }
            | Self::ClientName(session, _)
            | Self::Command(session, _)
            | Self::Resp3(session, _)
            | Self::Quit(session)
            | Self::Closed(session) => Some(*session),
            Self::PolicyReloaded(_)
            | Self::ListLocks(..)
            | Self::ListSessions(..)
            | Self::ListBusy(_)
            | Self::Stopped(_)
            | Self::DiffPublished(..)
            | Self::ListAwaited(..) => None,
        }
    }
}
