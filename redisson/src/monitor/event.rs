//! Events derived from the traffic of a lock.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{HolderId, Kind, LockName};

/// An action on a lock, or an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The instant, in epoch microseconds of the server's clock.
    pub at_micros: u64,
    /// The database.
    pub db: u32,
    /// The sender of the command. `None` on a replica, where the sender is always its master.
    pub client: Option<Address>,
    /// The lock.
    pub lock: LockName,
    /// The kind, if the command reveals it. [`Kind::Lock`] if it may be plain, fenced or red.
    pub kind: Option<Kind>,
    /// The holder or waiter concerned, if the command reveals it.
    pub holder: Option<HolderId>,
    /// The action.
    pub action: Action,
    /// The certainty of the action.
    pub certainty: Certainty,
}

/// An action on a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The holder acquired the lock.
    Acquired {
        /// The lease, if known.
        lease: Option<Duration>,
    },
    /// The holder acquired the lock again.
    Reentered {
        /// The lease, if known.
        lease: Option<Duration>,
        /// The new hold count, if known.
        count: Option<u32>,
    },
    /// An agent set the hold count, up or down.
    Recounted {
        /// The new hold count.
        count: u32,
    },
    /// An attempt was refused: others hold the lock or are ahead in the queue.
    Refused,
    /// The holder renewed its lease.
    Renewed {
        /// The lease, if known.
        lease: Option<Duration>,
    },
    /// A renewal found that the holder no longer has the lock.
    RenewalFoundNothing,
    /// The holder lowered its hold count.
    PartlyReleased,
    /// The holder released the lock. Other readers may remain.
    Released,
    /// A release found that the holder does not have the lock.
    ReleaseFoundNothing,
    /// The holder handed the lock over to another holder of the same client.
    HandedOver {
        /// The new holder.
        to: HolderId,
        /// The lease, if known.
        lease: Option<Duration>,
    },
    /// The lock was released by force.
    ForceReleased,
    /// A client removed the key by hand, or the holder's field, if it existed. The key may be anything.
    Removed,
    /// The master deleted the key. On a replica, this is how an expired lease appears.
    Vanished,
    /// The waiter joined the end of a fair lock's queue.
    Queued {
        /// The deadline of its position, in epoch milliseconds of its client's clock.
        deadline_millis: u64,
    },
    /// The waiter left the queue.
    LeftQueue,
    /// Another client removed the waiter from the queue because its deadline had passed.
    DroppedFromQueue,
    /// A client subscribed to the lock's channel: it has a waiter.
    Subscribed,
    /// A client unsubscribed from the lock's channel: it has no waiters left.
    Unsubscribed,
    /// An attempt failed with an error, such as out of memory.
    Failed,
}

impl Action {
    /// Returns the name in logs, metrics and the API.
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
            Self::Removed => "removed",
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

/// The certainty of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// Derived from the form of an unknown script or of bare commands, which something else may resemble.
    Likely,
    /// The script is known, and its commands prove the outcome.
    Certain,
}

/// The address of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The server's Unix socket, which reveals nothing else.
    Unix,
}
