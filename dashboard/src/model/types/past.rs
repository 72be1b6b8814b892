//! Holds and waits that have ended, and the entries of the history on disk.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};

use super::holder_field::HolderField;
use super::id::LockId;
use super::problem::{Acknowledgement, Certainty, ProblemKind};
use super::since::Since;
use crate::clock::SteadyMillis;

/// The way in which a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The holder released the lock.
    Released,
    /// The lease expired.
    Expired,
    /// The hold was gone before its lease expired, without a release message.
    Vanished,
    /// The holder handed the lock over to another of the same client.
    HandedOver,
    /// An operator forced the release.
    Forced,
    /// The server restarted without the lock, or another server took over without it.
    Restarted,
    /// The key became something else.
    Replaced,
}

impl Ending {
    pub const ALL: [Self; 7] = [
        Self::Released,
        Self::Expired,
        Self::Vanished,
        Self::HandedOver,
        Self::Forced,
        Self::Restarted,
        Self::Replaced,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "ran_out",
            Self::Vanished => "vanished",
            Self::HandedOver => "handed_over",
            Self::Forced => "forced",
            Self::Restarted => "restarted",
            Self::Replaced => "replaced",
        }
    }

    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ending| ending.as_str() == word)
    }

    /// Returns whether the holder has lost the lock for certain. A hold that vanished may have been released: readers
    /// that leave others, fair locks without waiters and hand-overs send no message.
    #[must_use]
    pub fn is_loss(self) -> bool {
        !self.is_wanted() && self != Self::Vanished
    }

    /// Returns whether the holder meant the hold to end.
    #[must_use]
    pub fn is_wanted(self) -> bool {
        matches!(self, Self::Released | Self::HandedOver)
    }
}

/// The way in which a hold of the history ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastEnding {
    Seen(Ending),
    /// The hold was over when it was next looked for.
    Unseen,
}

impl PastEnding {
    /// Returns every word for an ending.
    pub fn words() -> impl Iterator<Item = &'static str> {
        Ending::ALL.into_iter().map(Self::Seen).chain([Self::Unseen]).map(Self::as_str)
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seen(ending) => ending.as_str(),
            Self::Unseen => "unseen",
        }
    }

    /// Parses a word of the history.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        Ending::parse(word).map_or(Self::Unseen, Self::Seen)
    }

    /// Returns whether the holder meant the hold to end.
    #[must_use]
    pub fn is_wanted(self) -> bool {
        matches!(self, Self::Seen(ending) if ending.is_wanted())
    }
}

impl Serialize for PastEnding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A hold that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastHold {
    pub id: HolderField,
    pub since: Since,
    /// The observed end of the hold.
    pub to: SteadyMillis,
    pub ended: Ending,
}

impl PastHold {
    /// Returns the minimum duration in milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.to.millis_since(self.since.at)
    }

    #[must_use]
    pub fn view(&self) -> PastHoldView {
        PastHoldView {
            id: self.id.text().into_owned(),
            since: self.since,
            to: Some(self.to),
            ended: Some(PastEnding::Seen(self.ended)),
        }
    }
}

/// A hold as pages and the API list it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PastHold)]
pub struct PastHoldView {
    pub id: String,
    pub since: Since,
    /// The observed end; none while the hold lasts.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: Option<SteadyMillis>,
    /// The way in which it ended; none while it lasts.
    #[schema(schema_with = endings)]
    pub ended: Option<PastEnding>,
}

fn endings() -> utoipa::openapi::Object {
    let words = PastEnding::words().map(Some).chain([None]);
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .enum_values(Some(words))
        .build()
}

/// A wait that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastWait {
    /// The id under which the waiter would have held the lock.
    pub id: HolderField,
    pub since: Since,
    pub to: SteadyMillis,
    /// True if the waiter acquired the lock. Otherwise it left, or no longer retried.
    pub granted: bool,
}

impl PastWait {
    /// Returns the minimum duration in milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.to.millis_since(self.since.at)
    }

    #[must_use]
    pub fn view(&self) -> PastWaitView {
        let Self { id, since, to, granted } = self;
        PastWaitView { id: id.text().into_owned(), since: *since, to: *to, granted: *granted }
    }
}

/// A wait as pages and the API show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PastWait)]
pub struct PastWaitView {
    /// The id that it would have held the lock under.
    pub id: String,
    pub since: Since,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: SteadyMillis,
    /// True if it obtained the lock; otherwise it left, or fell silent.
    pub granted: bool,
}

/// The ended holds and waits of one lock. Many locks have none, since they are always held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistoryView(Option<Arc<PastOfLock>>);

/// The content of a [`HistoryView`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PastOfLock {
    /// The latest holds that have ended, newest first.
    pub past: Vec<PastHoldView>,
    /// The latest instants at which its lease ran out, oldest first, at most 64.
    pub ran_out: Vec<SteadyMillis>,
    /// The longest hold that was seen to end.
    pub longest_hold: Option<PastHoldView>,
    /// The longest wait that was seen to end.
    pub longest_wait: Option<PastWaitView>,
}

impl From<PastOfLock> for HistoryView {
    fn from(past: PastOfLock) -> Self {
        Self(Some(Arc::new(past)))
    }
}

impl Deref for HistoryView {
    type Target = PastOfLock;

    fn deref(&self) -> &PastOfLock {
        static NOTHING: PastOfLock = PastOfLock {
            past: Vec::new(),
            ran_out: Vec::new(),
            longest_hold: None,
            longest_wait: None,
        };
        self.0.as_deref().unwrap_or(&NOTHING)
    }
}

/// An entry for the history on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveEntry {
    /// A hold began, or was found.
    Began(LockId, HolderField, Since),
    /// A hold ended.
    Ended(LockId, PastHold),
    /// A later report shows that the hold that ended at this instant was released by force.
    Forced(LockId, HolderField, SteadyMillis),
    /// A hold of an earlier run had ended by this instant, without being observed.
    Unseen(LockId, HolderField, SteadyMillis),
    /// A problem began, or became more certain.
    Problem(LockId, ProblemKind, Certainty, SteadyMillis),
    /// A problem ended.
    Cleared(LockId, ProblemKind, SteadyMillis),
    /// The name of a holder or client became known.
    Named { owner: String, name: String, at: SteadyMillis },
    /// An operator acted on a lock.
    Acted(LockId, Box<OperatorAction>),
    /// An operator acknowledged a problem.
    Acknowledged(LockId, ProblemKind, Arc<Acknowledgement>),
    /// The acknowledgement of a problem ended.
    Unacknowledged(LockId, ProblemKind, SteadyMillis),
}

/// The types of events in the history. The last five are an operator's actions.
pub const EVENT_WORDS: [&str; 9] = [
    "taken",
    "ended",
    "problem",
    "cleared",
    "acknowledged",
    "unacknowledged",
    "force_released",
    "place_removed",
    "release_rejected",
];

/// An event of the history as it is read, before any part of it is copied.
#[derive(Debug, Clone, Copy)]
pub struct EventFields<'a> {
    /// One of [`EVENT_WORDS`].
    pub event: &'a str,
    pub deployment: &'a str,
    pub db: u32,
    /// The lock's name.
    pub name: &'a [u8],
    /// The holder or the problem; `lock` for the whole lock.
    pub subject: &'a str,
    pub detail: Option<&'a str>,
}

/// An operator's action on this dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorAction {
    pub at: SteadyMillis,
    pub who: String,
    pub from: IpAddr,
    /// The word for the action in events: `force_released`, `place_removed`, `release_rejected`, `acknowledged`,
    /// `unacknowledged`.
    pub what: &'static str,
    /// The holder or the problem that it concerned, or `lock`.
    pub subject: String,
    pub reason: String,
    /// The state before the action.
    pub was: String,
    pub outcome: String,
}
