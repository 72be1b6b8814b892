//! Immutable snapshots of all locks, and the deltas between them.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use serde::Serialize;

use super::classes::Classes;
use super::id::LockId;
use super::lock_view::LockView;
use super::part::Part;
use super::problem::ProblemKind;
use super::sums::Sums;
use crate::clock::SteadyMillis;

/// A snapshot has as many shards as a shard has parts. Once parts have become large, both numbers are multiplied by
/// four. Only shards and parts with changes are copied: with a million locks, a change to one copies about 60 others,
/// those in its part.
const FEWEST: usize = 2;
const MOST: usize = 128;
/// The mean number of locks in a part above which the number of parts grows.
const LARGE: usize = 64;

/// All locks at one instant. Cheap to clone and to keep.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Incremented with each snapshot.
    pub seq: u64,
    pub at: SteadyMillis,
    /// True if every database has been scanned once.
    pub complete: bool,
    /// The databases that have been scanned once, each with its deployment.
    pub scanned: Vec<(Arc<str>, u32)>,
    /// Locks beyond the limit, counted by the latest scan but not retained.
    pub not_kept: u64,
    /// Possible locks beyond their limit, counted by the latest scan but not retained.
    pub possible_not_kept: u64,
    /// Notices about servers, newest first.
    pub notices: Arc<[Notice]>,
    /// The problems that have ended, latest first.
    pub cleared: Arc<[ClearedProblem]>,
    shards: Vec<Arc<Shard>>,
    len: usize,
    counts: Counts,
    hasher: RandomState,
    classes: Classes,
    /// The number of clients that hold active locks, and that of their hosts.
    clients: usize,
    hosts: usize,
}

type Shard = Vec<Arc<Part>>;

/// Some parts of a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Section<'s>(&'s [Arc<Shard>]);

impl<'s> Section<'s> {
    /// Returns each part.
    pub fn parts(self) -> impl Iterator<Item = &'s Part> + Clone {
        self.0.iter().flat_map(|shard| shard.iter()).map(|part| &**part)
    }
}

/// A walk through all locks, which continues in later snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub struct Walk {
    /// The number of parts that it has passed, counted as if there were the most parts.
    parts: usize,
}

impl Walk {
    /// Returns the number of times that the walk has passed all locks.
    #[must_use]
    pub fn turns(self) -> usize {
        self.parts / (MOST * MOST)
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
    /// The number of the snapshot that it leads to.
    pub seq: u64,
    pub at: SteadyMillis,
    /// The new and changed locks, without spare capacity, since the latest deltas are retained for streams that resume.
    pub changed: Box<[Arc<LockView>]>,
    /// Locks that are no longer retained.
    pub removed: Vec<LockId>,
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
        changed: Box<[Arc<LockView>]>,
        removed: Vec<LockId>,
    ) -> Self {
        Self { seq, at, changed, removed, json: OnceLock::new() }
    }

    /// Returns the JSON for the API's streams, which is rendered once for all of them.
    #[must_use]
    pub fn json(&self) -> Arc<str> {
        let json = self.json.get_or_init(|| {
            let changed = self.changed.iter().map(|lock| &**lock).collect();
            let json = DeltaJson { seq: self.seq, at: self.at, changed, removed: &self.removed };
            // Serializing strings and numbers cannot fail.
            serde_json::to_string(&json).unwrap_or_default().into()
        });
        Arc::clone(json)
    }
}

impl Snapshot {
    /// Returns a snapshot without locks.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            seq: 0,
            at: SteadyMillis(0),
            complete: false,
            scanned: Vec::new(),
            not_kept: 0,
            possible_not_kept: 0,
            notices: Arc::from([]),
            cleared: Arc::from([]),
            shards: empty_shards(FEWEST),
            len: 0,
            counts: Counts::default(),
            hasher: RandomState::new(),
            classes: Classes::default(),
            clients: 0,
            hosts: 0,
        }
    }

    /// Returns the shard of a lock, and the part of that shard.
    fn place(&self, id: &LockId) -> (usize, usize) {
        let hash = self.hasher.hash_one(id);
        self.place_at(usize::try_from(hash % (MOST * MOST) as u64).unwrap_or(0))
    }

    /// Returns the place of a part by its index, counted as if there were the most parts.
    fn place_at(&self, index: usize) -> (usize, usize) {
        let (side, part) = (self.shards.len(), index / self.step());
        (part / side, part % side)
    }

    /// Returns the number of parts that one current part would have, if there were the most parts.
    fn step(&self) -> usize {
        (MOST / self.shards.len()).pow(2)
    }

    #[must_use]
    pub fn get(&self, id: &LockId) -> Option<&Arc<LockView>> {
        let (shard, part) = self.place(id);
        self.shards[shard][part].get(id)
    }

    /// Returns every part.
    pub fn parts(&self) -> impl Iterator<Item = &Part> + Clone {
        Section(&self.shards).parts()
    }

    /// Returns all parts in about this number of sections, in order. `number` is at least one.
    pub fn sections(&self, number: usize) -> impl Iterator<Item = Section<'_>> {
        self.shards.chunks(self.shards.len().div_ceil(number)).map(Section)
    }

    /// Returns every lock, in no useful order.
    pub fn locks(&self) -> impl Iterator<Item = &Arc<LockView>> + Clone {
        self.parts().flat_map(Part::locks)
    }

    /// Returns every lock with a problem or a waiter, in no useful order.
    pub fn notable(&self) -> impl Iterator<Item = &Arc<LockView>> {
        self.parts().flat_map(Part::notable)
    }

    /// Returns the next locks of a walk, in small parts. Ends after about `most` locks, or after all of them.
    pub fn visit<'s, 'w>(
        &'s self,
        walk: &'w mut Walk,
        most: usize,
    ) -> impl Iterator<Item = &'s [Arc<LockView>]> + use<'s, 'w> {
        let (mut parts, mut visited) = (0, 0);
        std::iter::from_fn(move || {
            while parts < MOST * MOST && visited < most {
                let (shard, part) = self.place_at(walk.parts % (MOST * MOST));
                let part = self.shards[shard][part].locks();
                // The walk may have begun with more or smaller parts.
                let step = self.step() - walk.parts % self.step();
                walk.parts += step;
                parts += step;
                visited += part.len();
                if !part.is_empty() {
                    return Some(part);
                }
            }
            None
        })
    }

    /// Returns the sums over all active locks.
    #[must_use]
    pub fn sums(&self) -> Sums {
        let Self { clients, hosts, .. } = *self;
        Sums { clients, hosts, ..Sums::of(self.parts()) }
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

    /// Adds or replaces a lock.
    pub(crate) fn put(&mut self, lock: Arc<LockView>) {
        self.classify();
        self.counts.of(&lock).for_each(|count| *count += 1);
        let (shard, part) = self.place(&lock.id);
        let part = Arc::make_mut(&mut Arc::make_mut(&mut self.shards[shard])[part]);
        match part.put(lock, &mut self.classes) {
            Some(before) => self.counts.of(&before).for_each(|count| *count -= 1),
            None => {
                self.len += 1;
                self.divide();
            }
        }
        (self.clients, self.hosts) = self.classes.clients_and_hosts();
    }

    /// Increases the number of parts if each has many locks.
    fn divide(&mut self) {
        let side = self.shards.len();
        if side >= MOST || self.len <= LARGE * side * side {
            return;
        }
        self.arrange(4 * side);
    }

    /// Classifies all locks again in a clone that is about to be changed.
    fn classify(&mut self) {
        if self.classes.is_clone() {
            self.arrange(self.shards.len());
        }
    }

    /// Creates this number of shards, with as many parts in each.
    fn arrange(&mut self, side: usize) {
        self.classes = Classes::default();
        for shard in std::mem::replace(&mut self.shards, empty_shards(side)) {
            for lock in shard.iter().flat_map(|part| part.locks()) {
                let (shard, part) = self.place(&lock.id);
                let part = Arc::make_mut(&mut Arc::make_mut(&mut self.shards[shard])[part]);
                part.put(Arc::clone(lock), &mut self.classes);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: &LockId) {
        self.classify();
        let (shard, part) = self.place(id);
        let part = Arc::make_mut(&mut Arc::make_mut(&mut self.shards[shard])[part]);
        if let Some(before) = part.remove(id, &mut self.classes) {
            self.counts.of(&before).for_each(|count| *count -= 1);
            self.len -= 1;
        }
        (self.clients, self.hosts) = self.classes.clients_and_hosts();
    }
}

/// Returns shards without locks, and as many empty parts in each.
fn empty_shards(side: usize) -> Vec<Arc<Shard>> {
    let empty: Shard = std::iter::repeat_n(Arc::default(), side).collect();
    std::iter::repeat_n(Arc::new(empty), side).collect()
}
