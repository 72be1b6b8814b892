//! Observations, which sources report to the model.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redisson::shape::LockHash;
use redisson::{HolderId, LockName, Moment, monitor};

use super::id::ScopeId;
use super::identity::{AgentReport, AgentWaiters};
use super::past::OperatorAction;
use super::problem::{Acknowledgement, ProblemKind};
use super::source::Source;
use crate::clock::{SteadyMillis, Time};

/// The time of a reading. Redis answered for an instant between `sent` and `received`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The instant before the command was sent.
    pub sent: Moment,
    /// The instant after the reply arrived.
    pub received: Time,
}

impl Stamp {
    /// Returns the instant of `received` on the dashboard's own clock.
    #[must_use]
    pub fn steady(&self) -> SteadyMillis {
        self.received.steady()
    }

    /// Returns the duration of the reply.
    #[must_use]
    pub fn slack(&self) -> Duration {
        self.received.since(self.sent)
    }

    /// Returns the key that orders readings: the one that was requested later applies. It is the newer one for certain,
    /// or the two overlapped and either may be shown. The order in which replies arrive decides nothing.
    #[must_use]
    pub fn rank(&self) -> (Moment, Moment) {
        (self.sent, self.received.moment())
    }
}

/// The content of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// The key does not exist. Its companions may still exist.
    Absent { companions: Companions },
    /// A hash of a lock's shape.
    Lock {
        hash: LockHash,
        /// The time to live, or `None` if the key does not expire.
        ttl: Option<Duration>,
        companions: Companions,
    },
    /// Something other than a lock, described in a sentence.
    Other(String),
}

/// The keys that belong to a lock, as far as they were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Companions {
    /// A fair lock's queue and deadlines, or `None` if neither key exists.
    pub queue: Option<Queue>,
    /// A fenced lock's token.
    pub token: Token,
    /// The markers of readers, as far as they were requested.
    pub markers: Vec<(HolderId, Marker)>,
}

impl Companions {
    /// Returns whether none of the companions could be read, so that the last reading remains valid.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.token == Token::Unavailable
    }
}

/// A fair lock's queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    pub len: u64,
    /// The first entries, in order. Empty if they were not read.
    pub front: Vec<QueueEntry>,
    /// The number of deadlines.
    pub deadlines: u64,
    /// The number of deadlines that had passed by the server's clock.
    pub passed: u64,
}

impl Queue {
    /// Returns whether all entries of the queue were read.
    #[must_use]
    pub fn is_fully_read(&self) -> bool {
        self.len == u64::try_from(self.front.len()).unwrap_or(u64::MAX)
    }
}

/// An entry of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEntry {
    pub id: HolderId,
    /// The entry's deadline in milliseconds since 1970, by its own client's clock, or `None` if there is none or it was
    /// not read.
    pub deadline: Option<u64>,
}

/// A fenced lock's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Token {
    #[default]
    NotRead,
    /// No companion of the lock could be read: its slot is moving, and the companions may be on another node than the
    /// lock.
    Unavailable,
    Absent,
    /// The token of the last grant.
    Value(i64),
}

/// A separate key for each reader, which the reader's client renews. It shows that the reader is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// There is no marker: the reader is gone, and only its field is left.
    Missing,
    /// The marker expires after this time.
    Expires(Duration),
    /// The marker has no time to live.
    Persistent,
}

/// Lock traffic shown by MONITOR, in its order.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// Operations on locks, and attempts.
    pub events: Vec<monitor::Event>,
    /// The instant of reading; the events happened shortly before.
    pub at: Time,
    /// The number of events before these that could not be delivered.
    pub missed: u64,
}

/// The connections of a server's clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Connections {
    /// The hosts of the connections.
    pub addresses: HashSet<IpAddr>,
    /// The names that clients have set on their connections, and the ages of these connections.
    pub names: HashMap<SocketAddr, (Arc<str>, Duration)>,
}

impl Connections {
    /// Adds the connections of another node.
    pub fn extend(&mut self, other: &Self) {
        self.addresses.extend(&other.addresses);
        self.names.extend(other.names.iter().map(|(address, named)| (*address, named.clone())));
    }
}

/// The slots that each node of a cluster serves.
#[derive(Debug, Clone)]
pub struct SlotAssignment {
    /// The slots of all watched nodes, with the scopes of the nodes that serve them.
    pub slots: Vec<(RangeInclusive<u16>, ScopeId)>,
    /// Nodes that no longer serve any slot.
    pub drained: Vec<ScopeId>,
    pub at: Time,
}

/// The number of subscribers of a lock's channels. A client may be subscribed to both kinds of channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SubscriberCount {
    pub plain: u64,
    /// Those of the sharded channel, which only a cluster has.
    pub sharded: u64,
}

impl SubscriberCount {
    /// Returns the number of subscribers of both channels.
    #[must_use]
    pub fn sum(self) -> u64 {
        self.plain.saturating_add(self.sharded)
    }

    /// Returns the least number of subscribers that are none of `agents` agents, each of which subscribes at most once to
    /// each channel.
    #[must_use]
    pub fn without(self, agents: u64) -> u64 {
        self.plain.saturating_sub(agents).saturating_add(self.sharded.saturating_sub(agents))
    }
}

impl From<u64> for SubscriberCount {
    fn from(plain: u64) -> Self {
        Self { plain, sharded: 0 }
    }
}

/// One observation of a source.
#[derive(Debug, Clone)]
pub enum Observation {
    /// A key was read.
    Read { name: LockName, stamp: Stamp, source: Source, reading: Reading },
    /// A release message arrived at the server.
    Released {
        /// The locks that share the channel, likeliest first.
        names: Vec<LockName>,
        at: Time,
    },
    /// The server sent a notification that the lock's key was changed.
    KeyChanged {
        name: LockName,
        /// True if the key expired.
        expired: bool,
        at: Time,
    },
    /// A scan found a companion key of the lock, or a connection that listens for its release.
    CompanionKey { name: LockName },
    /// The server's clock was read.
    Clock {
        /// The milliseconds by which the server's clock is ahead of ours, negative if it is behind.
        ahead_ms: i64,
        at: SteadyMillis,
    },
    /// The databases of the server that have keys.
    Databases(Vec<u32>),
    /// Connections that listen for releases of these locks were counted.
    Subscribers { counts: Vec<(LockName, SubscriberCount)>, at: Time },
    /// All connected clients were listed.
    Connected { connections: Connections, at: Time },
    /// The holder registry was read.
    AgentReport(AgentReport),
    /// The locks that workers of an agent wait for.
    AgentWaiters(AgentWaiters),
    /// MONITOR showed traffic of locks.
    Traffic(Traffic),
    /// An operator is about to end these holds of the lock by force.
    ForceRelease {
        name: LockName,
        /// Empty if the release concerns a queue entry, or has failed.
        holders: Vec<HolderId>,
        /// The beginning of the release.
        at: Moment,
    },
    /// An operator acted on the lock through this dashboard.
    OperatorActed {
        name: LockName,
        /// The word for the action in events.
        word: &'static str,
        /// A sentence with the operator, the action and the reason.
        text: String,
        at: SteadyMillis,
    },
    /// An operator acknowledged a problem, or withdrew the acknowledgement.
    Acknowledged {
        name: LockName,
        problem: ProblemKind,
        /// The acknowledgement, or `None` if it was withdrawn.
        acknowledgement: Option<Arc<Acknowledgement>>,
        /// The action, for the history on disk.
        action: Box<OperatorAction>,
    },
    /// MONITOR shows all traffic from now on, or no longer.
    MonitorActive { on: bool },
    /// Release messages arrive from now on, or no longer.
    PubSubActive { on: bool, at: Moment },
    /// The address of the server that is about to be reported as up. It differs from the last one after a failover.
    ServerAddress {
        address: String,
        /// True if it is a replica, which is read instead of its master.
        replica: bool,
        /// The id of its replication history. A master and its replicas have the same id; a master that has restarted, or
        /// a replica that was promoted, has another one.
        replid: Option<String>,
    },
    /// The server can be read.
    ServerUp {
        /// The instant since which the server can be read.
        since: Moment,
        /// The instant of the report.
        at: SteadyMillis,
        /// The server's run id, if it reports one.
        run_id: Option<String>,
        /// True if it is a node of a cluster.
        cluster: bool,
    },
    /// The server cannot be read.
    ServerDown,
    /// Slots of a cluster are served by these nodes.
    SlotsAssigned(SlotAssignment),
    /// A scan began.
    ScanBegan,
    /// A scan was completed.
    ScanEnded {
        started: Moment,
        ended: Time,
        /// True if it covered all keys.
        whole: bool,
        /// The number of possible locks that it did not read, because there were too many.
        skipped: u64,
    },
}
