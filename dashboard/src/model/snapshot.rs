//! What readers get: an immutable picture of all locks, and what changed from one to the next.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use serde::Serialize;

use super::view::{LockId, LockView, State};
use crate::clock::SteadyMillis;

/// Pieces of a picture. Only those with changes are made anew.
const SHARDS: usize = 256;

/// All locks at one instant. Cheap to clone and to keep.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Grows by one with each picture.
    pub seq: u64,
    /// When it was made.
    pub at: SteadyMillis,
    /// Whether every database has been looked through once.
    pub complete: bool,
    /// Locks beyond the limit, counted in the latest pass but not kept.
    pub not_kept: u64,
    /// What happened to whole servers, newest first.
    pub notices: Arc<[Notice]>,
    shards: Vec<Arc<Vec<Arc<LockView>>>>,
    hasher: RandomState,
}

/// Something that concerns a server rather than one lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Notice {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    pub deployment: String,
    /// What, a sentence.
    pub text: String,
}

/// What changed from one picture to the next.
#[derive(Debug)]
pub struct Delta {
    /// The picture it leads to.
    pub seq: u64,
    /// When that was made.
    pub at: SteadyMillis,
    /// Locks that are new or changed.
    pub changed: Vec<Arc<LockView>>,
    /// Locks that are no longer remembered.
    pub removed: Vec<LockId>,
    /// What the picture before had of them, of `changed` first and then of `removed`, in their order; none where it had
    /// nothing. Whoever keeps locks in an order finds them by what they were.
    pub before: Vec<Option<Arc<LockView>>>,
    json: OnceLock<Arc<str>>,
}

#[derive(Serialize)]
struct DeltaJson<'a> {
    seq: u64,
    #[serde(serialize_with = "crate::clock::as_wall")]
    at: SteadyMillis,
    changed: Vec<&'a LockView>,
    removed: &'a [LockId],
}

impl Delta {
    pub(crate) fn new(
        seq: u64,
        at: SteadyMillis,
        changed: Vec<Arc<LockView>>,
        removed: Vec<LockId>,
        before: Vec<Option<Arc<LockView>>>,
    ) -> Self {
        Self { seq, at, changed, removed, before, json: OnceLock::new() }
    }

    /// As the API's stream tells it; made once, whoever listens.
    #[must_use]
    pub fn json(&self) -> Arc<str> {
        let json = self.json.get_or_init(|| {
            let changed = self.changed.iter().map(|lock| &**lock).collect();
            let json = DeltaJson { seq: self.seq, at: self.at, changed, removed: &self.removed };
            // Strings and numbers: this cannot fail.
            serde_json::to_string(&json).unwrap_or_default().into()
        });
        Arc::clone(json)
    }
}

impl Snapshot {
    /// A picture without locks.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            seq: 0,
            at: SteadyMillis(0),
            complete: false,
            not_kept: 0,
            notices: Arc::from([]),
            shards: vec![Arc::default(); SHARDS],
            hasher: RandomState::new(),
        }
    }

    fn shard(&self, id: &LockId) -> usize {
        let hash = self.hasher.hash_one(id);
        usize::try_from(hash % SHARDS as u64).unwrap_or(0)
    }

    #[must_use]
    pub fn get(&self, id: &LockId) -> Option<&Arc<LockView>> {
        let shard = &self.shards[self.shard(id)];
        shard.binary_search_by(|lock| lock.id.cmp(id)).ok().map(|i| &shard[i])
    }

    /// Every lock, in no useful order.
    pub fn locks(&self) -> impl Iterator<Item = &Arc<LockView>> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    /// How many locks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.is_empty())
    }

    /// Puts a lock in, in place of its older view, which it gives back.
    pub(crate) fn put(&mut self, lock: Arc<LockView>) -> Option<Arc<LockView>> {
        let shard = self.shard(&lock.id);
        let shard = Arc::make_mut(&mut self.shards[shard]);
        match shard.binary_search_by(|known| known.id.cmp(&lock.id)) {
            Ok(i) => Some(std::mem::replace(&mut shard[i], lock)),
            Err(i) => {
                shard.insert(i, lock);
                None
            }
        }
    }

    /// Takes a lock out.
    pub(crate) fn remove(&mut self, id: &LockId) -> Option<Arc<LockView>> {
        let shard = self.shard(id);
        let shard = Arc::make_mut(&mut self.shards[shard]);
        let found = shard.binary_search_by(|known| known.id.cmp(id));
        found.ok().map(|i| shard.remove(i))
    }
}

impl LockView {
    /// Whether somebody holds it, or did when its server could last be read.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Whether it belongs on the list that is shown when nothing else is asked for.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.confirmed && (self.is_held() || self.is_awaited() || !self.problems.is_empty())
    }

    /// Whether it has a problem that nobody has in hand.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        self.problems.iter().any(|problem| problem.acknowledged.is_none())
    }

    /// Whether somebody waits for it, as far as is known.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.queued || self.waiting > 0
    }

    /// When the longest of its holds began; none while it is free.
    #[must_use]
    pub fn held_since(&self) -> Option<super::view::Since> {
        self.holders.iter().map(|holder| holder.since).min_by_key(|since| since.at)
    }

    /// Whether its server cannot be read, or it has not been read yet.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.state == State::Unknown
    }
}
