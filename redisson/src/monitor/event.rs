//! What was seen of a lock.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{HolderId, Kind, LockName};

/// One thing that was done to a lock, or tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, in microseconds of the epoch by the server's clock.
    pub at_micros: u64,
    /// In which database.
    pub db: u32,
    /// Who sent the command. On a replica's stream that is the connection to its master, which tells nothing: none.
    pub client: Option<Address>,
    /// The lock.
    pub lock: LockName,
    /// Its kind, where the command tells. [`Kind::Lock`] where plain, fenced and red locks cannot be told apart.
    pub kind: Option<Kind>,
    /// Whose hold, attempt or place in the queue it is about, where the command tells.
    pub holder: Option<HolderId>,
    /// What.
    pub action: Action,
    /// How sure that is.
    pub certainty: Certainty,
}

/// What was done to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The holder has it from now on, and had not before.
    Acquired {
        /// For how long unless renewed; none where that is not told.
        lease: Option<Duration>,
    },
    /// The holder, which had it, has it once more.
    Reentered {
        /// For how long unless renewed; none where that is not told.
        lease: Option<Duration>,
        /// How often it has it now, where that is told.
        count: Option<u32>,
    },
    /// The holder set its count, upwards or downwards. Our own agents do so.
    Recounted {
        /// How often it has it now.
        count: u32,
    },
    /// Somebody tried to take it, and others have it or are before it in the queue.
    Refused,
    /// The holder's lease begins anew.
    Renewed {
        /// For how long; none where that is not told.
        lease: Option<Duration>,
    },
    /// The holder wanted to renew it, and had it no more.
    RenewalFoundNothing,
    /// The holder gave up one of several holds.
    PartlyReleased,
    /// The holder has it no more. Other readers may.
    Released,
    /// The holder wanted to release it, and had it no more, or never had.
    ReleaseFoundNothing,
    /// The holder passed it to another of the same client.
    HandedOver {
        /// Who has it now.
        to: HolderId,
        /// For how long unless renewed; none where that is not told.
        lease: Option<Duration>,
    },
    /// The lock was ended whoever had it.
    ForceReleased,
    /// The key is gone by an order of the master's, which on a replica is how the end of a lease shows.
    Vanished,
    /// The holder took a place at the end of a fair lock's queue.
    Queued {
        /// Until when it keeps its place, in epoch milliseconds by its own clock.
        deadline_millis: u64,
    },
    /// The holder gave up its place in the queue.
    LeftQueue,
    /// Somebody removed the holder's place in the queue, since its deadline had passed.
    DroppedFromQueue,
    /// A client began to listen to the lock's channel: somebody there waits for it.
    Subscribed,
    /// A client stopped listening to the lock's channel: nobody there waits for it any longer.
    Unsubscribed,
    /// An attempt on the lock ended in an error, such as that the server is out of memory.
    Failed,
}

impl Action {
    /// The word for it in logs, metrics and the API.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Acquired { .. } => "acquired",
            Self::Reentered { .. } => "reentered",
            Self::Recounted { .. } => "recounted",
            Self::Refused => "refused",
            Self::Renewed { .. } => "renewed",
            Self::RenewalFoundNothing => "renewal_found_nothing",
            Self::PartlyReleased => "partly_released",
            Self::Released => "released",
            Self::ReleaseFoundNothing => "release_found_nothing",
            Self::HandedOver { .. } => "handed_over",
            Self::ForceReleased => "force_released",
            Self::Vanished => "vanished",
            Self::Queued { .. } => "queued",
            Self::LeftQueue => "left_queue",
            Self::DroppedFromQueue => "dropped_from_queue",
            Self::Subscribed => "subscribed",
            Self::Unsubscribed => "unsubscribed",
            Self::Failed => "failed",
        }
    }
}

/// How sure an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// By the form of a script that is not known, or of bare commands: something else may look like it.
    Likely,
    /// The script is known, and it went all the way to this end.
    Certain,
}

/// Where a client is connected from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Address {
    /// By TCP.
    Tcp(SocketAddr),
    /// By the server's Unix socket: on its own host, more is not told.
    Unix,
}
