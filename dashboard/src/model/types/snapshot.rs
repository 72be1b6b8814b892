//! Immutable snapshots of all locks, and the deltas between them.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use serde::Serialize;

use super::id::LockId;
use super::lock_view::LockView;
use super::problem::ProblemKind;
use super::sums::Sums;
use crate::clock::SteadyMillis;

/// The shards of a snapshot, and the parts of a shard. Only shards and parts with changes are copied: at a million locks, a
/// changed one takes about 60 others of its part with it.
const SHARDS: usize = 256;
const PARTS: usize = 64;

/// All locks at one instant. Cheap to clone and to keep.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Grows by one with each snapshot.
    pub seq: u64,
    pub at: SteadyMillis,
    /// True if every database has been scanned once.
    pub complete: bool,
    /// Locks beyond the limit, counted by the latest scan but not retained.
    pub not_kept: u64,
    /// Possible locks beyond their limit, counted by the latest scan but not retained.
    pub possible_not_kept: u64,
    /// Notices about servers, newest first.
    pub notices: Arc<[Notice]>,
    /// Problems that have ended, the latest first.
    pub cleared: Arc<[ClearedProblem]>,
    shards: Vec<Arc<Shard>>,
    len: usize,
    counts: Counts,
    hasher: RandomState,
}

type Shard = Vec<Arc<Part>>;

/// A walk through all locks, which goes on in later snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub struct Walk {
    parts: usize,
}

impl Walk {
    /// Returns the number of times that the walk has passed all locks.
    #[must_use]
    pub fn turns(self) -> usize {
        self.parts / (SHARDS * PARTS)
    }
}

/// Some of the locks, sorted by id.
#[derive(Debug, Default)]
struct Part {
    locks: Vec<Arc<LockView>>,
    /// Those with a problem or a waiter.
    notable: Vec<Arc<LockView>>,
    /// The sums over its locks, once they were needed.
    sums: OnceLock<Sums>,
}

/// A clone is about to change, so it has no sums.
impl Clone for Part {
    fn clone(&self) -> Self {
        let (locks, notable) = (self.locks.clone(), self.notable.clone());
        Self { locks, notable, sums: OnceLock::new() }
    }
}

/// Numbers of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, utoipa::ToSchema)]
pub struct Counts {
    /// Confirmed locks that are held.
    pub held: usize,
    /// Locks with at least one unacknowledged problem.
    pub with_problems: usize,
    /// Locks with problems that are all acknowledged.
    pub acknowledged: usize,
    /// Possible locks that are held.
    pub unconfirmed: usize,
    /// Locks whose server cannot be read.
    pub unknown: usize,
    /// Locks beyond the limit, counted but not retained.
    pub not_kept: u64,
}

impl Counts {
    /// Returns the counts that a lock belongs to.
    fn of(&mut self, lock: &LockView) -> impl Iterator<Item = &mut usize> {
        let (is_listed, is_open) = (lock.is_listed(), lock.has_open_problem());
        [
            (&mut self.held, is_listed && lock.is_held()),
            (&mut self.with_problems, is_open),
            (&mut self.acknowledged, !is_open && !lock.problems.is_empty()),
            (&mut self.unconfirmed, !is_listed && lock.is_held()),
            (&mut self.unknown, lock.is_unknown()),
        ]
        .into_iter()
        .filter_map(|(count, belongs)| belongs.then_some(count))
    }
}

/// A problem that has ended, perhaps several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearedProblem {
    pub lock: LockId,
    pub problem: ProblemKind,
    /// The latest end.
    pub at: SteadyMillis,
    /// The number of times that it has ended since the first one that is remembered.
    pub times: u32,
}

/// A notice that concerns a server rather than one lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Notice {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    pub deployment: String,
    /// A sentence.
    pub text: String,
}

/// The changes from one snapshot to the next.
#[derive(Debug)]
pub struct Delta {
    /// The snapshot it leads to.
    pub seq: u64,
    pub at: SteadyMillis,
    /// New and changed locks.
    pub changed: Vec<Arc<LockView>>,
    /// Locks that are no longer retained.
    pub removed: Vec<LockId>,
    /// The previous views, of `changed` first and then of `removed`, in their order; none for new locks. Sorted lists find
    /// their entries by them.
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

    /// Returns the JSON for the API's streams, which is rendered once for all of them.
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
    /// Returns a snapshot without locks.
    #[must_use]
    pub fn empty() -> Self {
        let empty: Arc<Shard> = Arc::new(std::iter::repeat_n(Arc::default(), PARTS).collect());
        Self {
            seq: 0,
            at: SteadyMillis(0),
            complete: false,
            not_kept: 0,
            possible_not_kept: 0,
            notices: Arc::from([]),
            cleared: Arc::from([]),
            shards: std::iter::repeat_n(empty, SHARDS).collect(),
            len: 0,
            counts: Counts::default(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the shard of a lock, and the part of that shard.
    fn place(&self, id: &LockId) -> (usize, usize) {
        let hash = self.hasher.hash_one(id);
        let place = usize::try_from(hash % (SHARDS * PARTS) as u64).unwrap_or(0);
        (place / PARTS, place % PARTS)
    }

    #[must_use]
    pub fn get(&self, id: &LockId) -> Option<&Arc<LockView>> {
        let (shard, part) = self.place(id);
        let locks = &self.shards[shard][part].locks;
        find(locks, id).ok().map(|i| &locks[i])
    }

    fn parts(&self) -> impl Iterator<Item = &Part> + Clone {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|part| &**part)
    }

    /// Returns every lock, in no useful order.
    pub fn locks(&self) -> impl Iterator<Item = &Arc<LockView>> + Clone {
        self.parts().flat_map(|part| part.locks.iter())
    }

    /// Returns every lock with a problem or a waiter, in no useful order.
    pub fn notable(&self) -> impl Iterator<Item = &Arc<LockView>> {
        self.parts().flat_map(|part| part.notable.iter())
    }

    /// Returns the next locks of a walk, in small parts. Ends after about `most` locks, or after all of them.
    pub fn visit<'s, 'w>(
        &'s self,
        walk: &'w mut Walk,
        most: usize,
    ) -> impl Iterator<Item = &'s [Arc<LockView>]> + use<'s, 'w> {
        let (mut parts, mut visited) = (0, 0);
        std::iter::from_fn(move || {
            while parts < SHARDS * PARTS && visited < most {
                parts += 1;
                let at = walk.parts % (SHARDS * PARTS);
                let part = &self.shards[at / PARTS][at % PARTS].locks;
                walk.parts += 1;
                visited += part.len();
                if !part.is_empty() {
                    return Some(part.as_slice());
                }
            }
            None
        })
    }

    /// Returns the sums over all active locks. Only the parts with changes since the last call are gone through.
    #[must_use]
    pub fn sums(&self) -> Sums {
        let parts = self.parts().filter(|part| !part.locks.is_empty());
        Sums::total(parts.map(|part| part.sums.get_or_init(|| Sums::of(&part.locks))))
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { not_kept: self.not_kept, ..self.counts }
    }

    /// Returns the number of locks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts a lock. Returns the view that it replaces.
    pub(crate) fn put(&mut self, lock: Arc<LockView>) -> Option<Arc<LockView>> {
        self.counts.of(&lock).for_each(|count| *count += 1);
        let id = lock.id.clone();
        self.replace(&id, Some(lock))
    }

    pub(crate) fn remove(&mut self, id: &LockId) -> Option<Arc<LockView>> {
        self.replace(id, None)
    }

    fn replace(&mut self, id: &LockId, lock: Option<Arc<LockView>>) -> Option<Arc<LockView>> {
        let (shard, part) = self.place(id);
        let part = Arc::make_mut(&mut Arc::make_mut(&mut self.shards[shard])[part]);
        part.sums = OnceLock::new();
        let is_notable = |lock: &Arc<LockView>| !lock.problems.is_empty() || lock.is_awaited();
        replace(&mut part.notable, id, lock.clone().filter(is_notable));
        self.len -= part.locks.len();
        let before = replace(&mut part.locks, id, lock);
        self.len += part.locks.len();
        let before = before?;
        self.counts.of(&before).for_each(|count| *count -= 1);
        Some(before)
    }
}

fn find(locks: &[Arc<LockView>], id: &LockId) -> Result<usize, usize> {
    locks.binary_search_by(|known| known.id.cmp(id))
}

/// Replaces the lock of that id, if there is one, and returns it.
fn replace(
    locks: &mut Vec<Arc<LockView>>,
    id: &LockId,
    lock: Option<Arc<LockView>>,
) -> Option<Arc<LockView>> {
    match (find(locks, id), lock) {
        (Ok(i), Some(lock)) => Some(std::mem::replace(&mut locks[i], lock)),
        (Ok(i), None) => Some(locks.remove(i)),
        (Err(i), Some(lock)) => {
            locks.insert(i, lock);
            None
        }
        (Err(_), None) => None,
    }
}
