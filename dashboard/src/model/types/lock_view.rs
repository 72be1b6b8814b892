//! Locks as pages and the API show them: plain values, built once and then shared.
//!
//! The API's JSON is these types as serde writes them, so every field is part of its contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redisson::{ClientId, HolderId, Kind};
use serde::Serialize;
use serde::ser::Serializer;
use thin_vec::ThinVec;
use utoipa::ToSchema;

use super::client_view::ClientView;
use super::events::EventLog;
use super::id::LockId;
use super::past::{HistoryView, PastEnding};
use super::problem::ProblemView;
use super::renewals::Renewals;
use super::since::Since;
use super::source::SourceSet;
use crate::clock::SteadyMillis;
use crate::schema::{schema_of, words};
use crate::text::visible;

/// The state of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = LockState)]
pub enum State {
    Held,
    /// Nobody holds it; it is retained for a while.
    Free,
    /// Its server cannot be read, or it has not been read yet.
    Unknown,
}

impl State {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Free => "free",
            Self::Unknown => "unknown",
        }
    }
}

/// One holder. There are as many as locks, so anything that follows from the id is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderView {
    /// The field of the hash, escaped where necessary: the client's uuid, the thread's number, and any suffix.
    pub id: Box<str>,
    /// The side of a read-write lock; [`Kind::Lock`] for all other kinds.
    pub mode: Kind,
    pub count: i64,
    /// The milliseconds to live of a reader's marker when last read, or `None` if the marker does not expire or was not
    /// read.
    pub marker_ttl_ms: Option<u64>,
    /// True if it is a reader whose marker is gone: only its field is left of it.
    pub zombie: bool,
    pub since: Since,
    /// The process behind it, if known.
    pub client: Option<Box<ClientView>>,
}

impl HolderView {
    /// Returns the client's uuid, or an empty text if the id has none.
    #[must_use]
    pub fn uuid(&self) -> &str {
        let uuid = self.id.split(':').next().unwrap_or_default();
        if ClientId::parse(uuid.as_bytes()).is_some() { uuid } else { "" }
    }

    /// Returns the id with every character visible, since an unknown client may write any.
    #[must_use]
    pub fn shown_id(&self) -> String {
        visible(self.id.as_bytes())
    }

    /// Returns whether its client library is not known: its id has another form than Redisson's.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        HolderId::parse(self.id.as_bytes()).is_none()
    }

    /// Returns the thread's number, as text since it has 64 bits.
    #[must_use]
    pub fn thread(&self) -> &str {
        self.id.split(':').nth(1).unwrap_or_default()
    }
}

/// Returns the client's uuid in a holder id, or the whole id if it contains none.
#[must_use]
pub fn client_of(id: &str) -> &str {
    match memchr::memchr(b':', id.as_bytes()) {
        // This is a uuid in the usual form.
        Some(colon @ 36) => id.split_at(colon).0,
        _ => id,
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Holder)]
struct HolderJson<'a> {
    /// The field of the lock's hash.
    id: &'a str,
    uuid: &'a str,
    /// A signed number of 64 bits.
    thread: &'a str,
    #[schema(schema_with = modes)]
    mode: &'static str,
    /// The hold count.
    count: i64,
    /// The TTL of a reader's marker when last read, in milliseconds; null if the marker does not expire or was not
    /// read.
    marker_ttl_ms: Option<u64>,
    /// True for a reader whose marker is gone: only its field is left.
    zombie: bool,
    since: Since,
    /// The process behind it, as its agent reports it or MONITOR has shown it.
    client: Option<&'a ClientView>,
}

fn modes() -> utoipa::openapi::Object {
    words(["lock", "read", "write"])
}

impl Serialize for HolderView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = HolderJson {
            id: &self.id,
            uuid: self.uuid(),
            thread: self.thread(),
            mode: self.mode.as_str(),
            count: self.count,
            marker_ttl_ms: self.marker_ttl_ms,
            zombie: self.zombie,
            since: self.since,
            client: self.client.as_deref(),
        };
        json.serialize(serializer)
    }
}

schema_of!(HolderView => HolderJson<'_>);

/// A waiter known by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Waiter)]
pub struct WaiterView {
    /// The id that it would hold the lock under.
    pub id: Box<str>,
    pub since: Since,
    /// The number of attempts seen so far; none if attempts cannot be seen.
    pub attempts: Option<u32>,
    /// The process behind it, if known.
    pub client: Option<Box<ClientView>>,
}

/// An entry of a fair lock's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = QueueEntry)]
pub struct QueueEntryView {
    pub id: String,
    /// The entry's deadline by its own client's clock; none if it has none.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub deadline: Option<SteadyMillis>,
    /// True if the deadline is still to come, and its client is not gone.
    pub alive: bool,
    /// True if its client is gone: nobody will claim its turn, however long the deadline.
    pub gone: bool,
}

/// A red lock's holders on the servers of its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Red)]
pub struct RedView {
    /// The group of deployments.
    pub group: Arc<str>,
    /// The deployments on which one thread holds it: the thread that has most of them.
    pub held: Vec<Arc<str>>,
    /// The deployments that have had it and cannot be read now. They do not count as holding it.
    pub unread: Vec<Arc<str>>,
    /// The number of deployments in the group.
    pub of: usize,
}

impl RedView {
    /// Returns whether that thread has a quorum, and with it the lock.
    #[must_use]
    pub fn is_majority(&self) -> bool {
        self.held.len() > self.of / 2
    }
}

/// The instant of a view's last reading. It moves on with each reading that shows the same state, without a new view.
/// This is so for most readings of held locks.
#[derive(Debug)]
pub struct Observed(AtomicU64);

impl Observed {
    #[must_use]
    pub fn new(at: SteadyMillis) -> Self {
        Self(AtomicU64::new(at.0))
    }

    fn at(&self) -> SteadyMillis {
        SteadyMillis(self.0.load(Ordering::Relaxed))
    }

    /// Records a later reading that showed the same state.
    pub fn again(&self, at: SteadyMillis) {
        self.0.fetch_max(at.0, Ordering::Relaxed);
    }
}

impl Clone for Observed {
    fn clone(&self) -> Self {
        Self::new(self.at())
    }
}

impl PartialEq for Observed {
    fn eq(&self, other: &Self) -> bool {
        self.at() == other.at()
    }
}

impl Eq for Observed {}

/// One lock, as `/api/v1/lock` and the pages show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockView {
    pub id: LockId,
    pub state: State,
    /// True if it is proven to be a lock rather than a hash of the same shape.
    pub confirmed: bool,
    /// [`Kind::Lock`] is also used for a lock whose kind cannot be distinguished from plain, fenced and red.
    pub kind: Kind,
    pub holders: Vec<HolderView>,
    /// The end of the time to live, or `None` if the lock does not expire.
    pub expires_at: Option<SteadyMillis>,
    /// The instant of the last reading that showed this.
    pub observed: Observed,
    /// The lease, inferred from the highest times to live seen.
    pub lease_ms: Option<u64>,
    /// True if its holder renews it.
    pub renewed: bool,
    /// The renewals of the current hold, or `None` if it is not renewed.
    pub renewals: Option<Arc<Renewals>>,
    /// Problems, worst first.
    pub problems: ThinVec<ProblemView>,
    /// The latest events; shared between the versions of a view.
    pub events: EventLog,
    /// The holds and waits that have ended, shared in the same way.
    pub history: HistoryView,
    /// The holders on the servers of its group, if several of them have the lock.
    pub red: Option<Box<RedView>>,
    pub sources: SourceSet,
    /// True if its queue has entries (fair locks only).
    pub queued: bool,
    /// The waiters known by name, the longest wait first.
    pub waiters: ThinVec<WaiterView>,
    /// The minimum number of waiters: by name, by queue entry, or by connections that listen for its release.
    pub waiting: u64,
    /// True if `waiting` counts all of them.
    pub waiters_exact: bool,
    /// The first entries of its queue, in order.
    pub queue: ThinVec<QueueEntryView>,
    /// The fencing token granted last.
    pub token: Option<i64>,
    /// The lock group, as in metrics.
    pub group: Arc<str>,
    /// True if the settings expect long holds.
    pub expected_long: bool,
}

impl LockView {
    /// Returns the instant of the last reading that showed this.
    #[must_use]
    pub fn observed_at(&self) -> SteadyMillis {
        self.observed.at()
    }

    /// Returns that instant with the milliseconds to live at it, or `None` without a time to live.
    #[must_use]
    pub fn last_reading(&self) -> (SteadyMillis, Option<u64>) {
        let at = self.observed_at();
        (at, self.expires_at.map(|end| end.millis_since(at)))
    }

    /// Returns whether the lock is held, or was when its server could last be read.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Returns whether it has times to live of readers' markers.
    #[must_use]
    pub fn has_marker_times(&self) -> bool {
        self.holders.iter().any(|holder| holder.marker_ttl_ms.is_some())
    }

    /// Returns whether the default list of locks includes it.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        let confirmed = self.confirmed && (self.is_held() || self.is_awaited());
        confirmed || !self.problems.is_empty()
    }

    /// Returns whether it has a problem that nobody has acknowledged.
    #[must_use]
    pub fn has_open_problem(&self) -> bool {
        self.problems.iter().any(|problem| problem.acknowledged.is_none())
    }

    /// Returns whether anyone is known to wait for it.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.queued || self.waiting > 0
    }

    /// Returns how often the lease ran out within an hour of that instant, and when it last did, or `None` if it did
    /// not.
    #[must_use]
    pub fn ran_out_within_an_hour(&self, now: SteadyMillis) -> Option<(usize, SteadyMillis)> {
        let mut recent =
            self.history.ran_out.iter().filter(|at| now.millis_since(**at) <= 3_600_000);
        Some((recent.clone().count(), *recent.next_back()?))
    }

    /// Returns whether one of its latest holds was released.
    #[must_use]
    pub fn is_sometimes_released(&self) -> bool {
        self.history.past.iter().any(|hold| hold.ended.is_some_and(PastEnding::is_wanted))
    }

    /// Returns the beginning of the longest hold, or `None` while the lock is free.
    #[must_use]
    pub fn held_since(&self) -> Option<Since> {
        self.holders.iter().map(|holder| holder.since).min_by_key(|since| since.at)
    }

    /// Returns the beginning of the longest wait, or `None` if no waiter is known by name.
    #[must_use]
    pub fn longest_wait(&self) -> Option<Since> {
        self.waiters.iter().map(|waiter| waiter.since).min_by_key(|since| since.at)
    }

    /// Returns whether its server cannot be read, or it has not been read yet.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.state == State::Unknown
    }
}
