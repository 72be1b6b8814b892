//! What pages and API show of the model: plain values, made from it once and then shared.
//!
//! The JSON of the API is these types as serde writes them, so a field here is a promise.

use std::sync::Arc;

use crate::clock::SteadyMillis;
use serde::Serialize;
use serde::ser::{SerializeSeq as _, SerializeStruct as _, Serializer};

use super::contention::PastWaitView;
use super::history::History;
use super::observation::Source;
use super::past::PastHoldView;
use super::red::RedView;
use super::renewals::Renewals;

/// Which lock: the same name may stand in several databases of several deployments.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId {
    /// The deployment, by its configured name.
    pub deployment: Arc<str>,
    /// The database's number.
    pub db: u32,
    /// The name, which is the key.
    pub name: redisson::LockName,
}

/// Whether a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Somebody holds it.
    Held,
    /// Nobody does; it is remembered for a while.
    Free,
    /// Its server cannot be read, or it has not been read yet.
    Unknown,
}

/// An instant, and whether it is known or only the latest it can have been (shown with `≥` before the age).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Since {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    /// False: it was so already when we first looked.
    pub exact: bool,
}

/// The process behind a holder. What its agent tells of it is what somebody wrote into Redis.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ClientView {
    /// The address it was seen to come from last.
    pub addr: Option<String>,
    /// What it calls itself.
    pub name: Option<String>,
    /// The host it is on.
    pub host: Option<Arc<str>>,
    /// Its process id there.
    pub pid: Option<u32>,
    /// Its user id there.
    pub uid: Option<u32>,
    /// The name of its process there.
    pub comm: Option<String>,
    /// Its session with its agent.
    pub session: Option<String>,
    /// Since when it has held the lock, by its agent's clock.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub since: Option<SteadyMillis>,
    /// Whether it lives; none where that is not known.
    pub alive: Option<bool>,
}

/// One holder. There are as many as locks: what follows from its id is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderView {
    /// The field of the hash, escaped where it must be: the client's uuid and the thread's number, and what follows them.
    pub id: Box<str>,
    /// `read`, `write` or `lock`.
    pub mode: &'static str,
    pub count: i64,
    /// Milliseconds to live of a reader's marker when last read; none where it has none, or none was looked for.
    pub marker_ttl_ms: Option<u64>,
    /// Whether it is a reader whose marker is gone: only its field is left of it.
    pub zombie: bool,
    pub since: Since,
    /// The process behind it, where it is known.
    pub client: Option<Box<ClientView>>,
}

impl HolderView {
    /// The client's uuid.
    #[must_use]
    pub fn uuid(&self) -> &str {
        self.id.split(':').next().unwrap_or_default()
    }

    /// The thread's number, as text since it has 64 bits.
    #[must_use]
    pub fn thread(&self) -> &str {
        self.id.split(':').nth(1).unwrap_or_default()
    }
}

impl Serialize for HolderView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut holder = serializer.serialize_struct("HolderView", 9)?;
        holder.serialize_field("id", &self.id)?;
        holder.serialize_field("uuid", self.uuid())?;
        holder.serialize_field("thread", self.thread())?;
        holder.serialize_field("mode", self.mode)?;
        holder.serialize_field("count", &self.count)?;
        holder.serialize_field("marker_ttl_ms", &self.marker_ttl_ms)?;
        holder.serialize_field("zombie", &self.zombie)?;
        holder.serialize_field("since", &self.since)?;
        holder.serialize_field("client", &self.client)?;
        holder.end()
    }
}

/// Which sources something rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sources([bool; Source::ALL.len()]);

impl Sources {
    /// Adds one. True when it was not among them.
    pub fn add(&mut self, source: Source) -> bool {
        !std::mem::replace(&mut self.0[source as usize], true)
    }

    /// Their words, in the order pages show them.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Source::ALL.into_iter().filter(move |source| self.0[*source as usize]).map(Source::as_str)
    }
}

impl FromIterator<Source> for Sources {
    fn from_iter<T: IntoIterator<Item = Source>>(sources: T) -> Self {
        let mut all = Self::default();
        for source in sources {
            all.add(source);
        }
        all
    }
}

impl Serialize for Sources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut words = serializer.serialize_seq(None)?;
        self.words().try_for_each(|word| words.serialize_element(word))?;
        words.end()
    }
}

/// Somebody who waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaiterView {
    /// The holder it wants to be.
    pub id: Box<str>,
    pub since: Since,
    /// How often it was seen to try; none where attempts cannot be seen.
    pub attempts: Option<u32>,
    /// The process behind it, where it is known.
    pub client: Option<Box<ClientView>>,
}

/// A place in a fair lock's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlaceView {
    pub id: String,
    /// Until when it is kept, by its own client's clock; none where it has no deadline.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub deadline: Option<SteadyMillis>,
    /// Whether that is still to come.
    pub alive: bool,
}

/// How sure a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    Sure,
    Suspected,
}

/// What can be wrong with a lock, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// Owners wait for one another in a circle.
    Deadlock,
    /// It will not end by itself, or not soon, and its holder may be gone.
    Leaked,
    /// It is usually renewed, and is not now.
    RenewalOverdue,
    /// A hold ended by its lease although it had been renewed.
    Expired,
    /// Renewed and held for too long.
    Stuck,
    /// Somebody waits for too long.
    Starving,
    /// Its hash has something in it that does not belong there.
    Malformed,
    /// What belongs to it was left behind.
    Orphan,
}

impl ProblemKind {
    /// Every kind, worst first.
    pub const ALL: [Self; 8] = [
        Self::Deadlock,
        Self::Leaked,
        Self::RenewalOverdue,
        Self::Expired,
        Self::Stuck,
        Self::Starving,
        Self::Malformed,
        Self::Orphan,
    ];

    /// The word for it in pages, the API and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deadlock => "deadlock",
            Self::Leaked => "leaked",
            Self::RenewalOverdue => "renewal_overdue",
            Self::Expired => "expired",
            Self::Stuck => "stuck",
            Self::Starving => "starving",
            Self::Malformed => "malformed",
            Self::Orphan => "orphan",
        }
    }

    /// How sure it can be.
    #[must_use]
    pub fn certainties(self) -> &'static [Certainty] {
        match self {
            Self::Deadlock | Self::Leaked | Self::Expired | Self::Stuck | Self::Starving => {
                &[Certainty::Sure, Certainty::Suspected]
            }
            Self::RenewalOverdue | Self::Malformed | Self::Orphan => &[Certainty::Sure],
        }
    }
}

impl Certainty {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sure => "sure",
            Self::Suspected => "suspected",
        }
    }
}

impl State {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Free => "free",
            Self::Unknown => "unknown",
        }
    }
}

/// One observation that speaks for a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    /// Which source saw it.
    pub source: &'static str,
    /// What it saw, a sentence.
    pub text: String,
}

/// One wait of a circle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitView {
    pub waiter: String,
    /// For which lock.
    pub lock: LockId,
    /// Who holds that: the next one's waiter.
    pub holder: String,
}

/// A problem of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProblemView {
    pub problem: ProblemKind,
    pub certainty: Certainty,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub since: SteadyMillis,
    /// Why we say so.
    pub evidence: Vec<Evidence>,
    /// What to do next, a sentence.
    pub advice: String,
    /// The circle, where it is a deadlock.
    pub cycle: Arc<[WaitView]>,
    /// Who has it in hand; none: nobody said so.
    pub acknowledged: Option<Arc<Acknowledgement>>,
}

/// Somebody's word that a problem is known and in hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Acknowledgement {
    pub by: String,
    /// Why it may wait.
    pub reason: String,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    /// Until when, unless the problem is over before.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub until: SteadyMillis,
}

/// Something that happened to a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventView {
    /// When it was seen.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    /// `taken`, `released`, `vanished`, `reentered`, `renewed`, `problem`, `cleared`.
    pub event: &'static str,
    /// Which source saw it.
    pub source: &'static str,
    /// What, a sentence.
    pub text: String,
}

/// One lock, as `/api/v1/lock` and the pages show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockView {
    pub id: LockId,
    pub state: State,
    /// Whether it is surely a lock, not just a hash of that shape.
    pub confirmed: bool,
    /// Kind, by redisson's word.
    pub kind: &'static str,
    /// Who holds it.
    pub holders: Vec<HolderView>,
    /// Milliseconds to live when last read; none: no time to live.
    pub ttl_ms: Option<u64>,
    /// When that was read.
    pub observed_at: SteadyMillis,
    /// The lease as learnt from the highest times to live seen.
    pub lease_ms: Option<u64>,
    /// Whether its holder renews it.
    pub renewed: bool,
    /// How often that was seen in the hold that lasts, and when lately; none where it is not renewed.
    pub renewals: Option<Arc<Renewals>>,
    /// What is wrong with it, worst first.
    pub problems: Vec<ProblemView>,
    /// The latest events; shared between the versions of a view.
    pub events: History,
    /// Its latest holds that are over, newest first; shared likewise.
    pub past: Arc<[PastHoldView]>,
    /// The longest of all that were seen.
    pub longest_hold: Option<Box<PastHoldView>>,
    /// The longest wait that was seen to end.
    pub longest_wait: Option<Box<PastWaitView>>,
    /// How it stands on the servers of its group, where it is known on several of them.
    pub red: Option<Box<RedView>>,
    /// Which sources this rests on.
    pub sources: Sources,
    /// Whether somebody stands in its queue (fair locks only).
    pub queued: bool,
    /// Who waits, as far as they are known by name, those longest first.
    pub waiters: Vec<WaiterView>,
    /// How many wait at least: by name, by place in the queue, or by connections that listen for its release.
    pub waiting: u64,
    /// Whether these are all that wait.
    pub waiters_exact: bool,
    /// The first in its queue, the next one first.
    pub queue: Vec<PlaceView>,
    /// The fencing token granted last.
    pub token: Option<i64>,
    /// What metrics call it.
    pub group: Arc<str>,
    /// Whether the settings expect it to be held for long.
    pub expected_long: bool,
}
