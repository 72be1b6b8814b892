//! The waits among locks, as trees: the root of each is a blocking lock, with all waiters behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redisson::HolderId;
use serde::Serialize;
use utoipa::ToSchema;

use super::Filter;
use super::list::{Listed, Position, Published, RowId, descending};
use crate::clock::SteadyMillis;
use crate::model::types::{ClientView, HolderView, LockId, LockView, Since};
use crate::schema::schema_of;

/// The maximum number of locks of one tree.
const MAX_STEPS: usize = 200;

/// A lock whose holder waits for nothing that is known, with the tree of waits behind it.
#[derive(Debug, Clone)]
pub struct BlockerRow {
    /// The tree in depth-first order; its first step is the root.
    pub steps: Vec<Step>,
    /// The minimum number of waiters in the whole tree.
    pub blocks: u64,
    /// True if the tree has more locks than are listed.
    pub cut: bool,
}

/// A lock in a tree of waits.
#[derive(Debug, Clone)]
pub struct Step {
    pub depth: usize,
    pub lock: Arc<LockView>,
    /// The index of the holder that waits for the lock of the step above.
    waiter: Option<usize>,
}

impl Step {
    /// Returns the holder that waits for the lock of the step above.
    #[must_use]
    pub fn waiter(&self) -> Option<&HolderView> {
        self.lock.holders.get(self.waiter?)
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Blocker)]
struct BlockerJson<'a> {
    lock: &'a LockId,
    /// The ids of its holders.
    holders: Vec<&'a str>,
    /// The minimum number of waiters in the whole tree.
    blocks: u64,
    /// The beginning of the longest known wait for the lock itself.
    longest_wait: Option<Since>,
    /// The locks of the tree in depth-first order, the root first.
    tree: Vec<StepJson<'a>>,
    /// True if the tree has more than 200 locks.
    cut: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = BlockerStep)]
struct StepJson<'a> {
    /// 0 for the root; 1 for a lock held by a waiter of the root, and so on.
    depth: usize,
    lock: &'a LockId,
    /// The minimum number of its waiters.
    waiting: u64,
}

schema_of!(BlockerRow => BlockerJson<'_>);

impl BlockerRow {
    /// Returns the lock at the root.
    #[must_use]
    pub fn root(&self) -> &Arc<LockView> {
        &self.steps[0].lock
    }

    /// Returns the beginning of the longest known wait for the root.
    #[must_use]
    pub fn longest_wait(&self) -> Option<Since> {
        self.root().longest_wait()
    }
}

impl Serialize for BlockerRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let root = self.root();
        BlockerJson {
            lock: &root.id,
            holders: root.holders.iter().map(|holder| &*holder.id).collect(),
            blocks: self.blocks,
            longest_wait: self.longest_wait(),
            tree: self
                .steps
                .iter()
                .map(|Step { depth, lock, .. }| StepJson {
                    depth: *depth,
                    lock: &lock.id,
                    waiting: lock.waiting,
                })
                .collect(),
            cut: self.cut,
        }
        .serialize(serializer)
    }
}

/// The common part of a holder and a waiter that are the same: the thread of a Redisson client, or a task of an agent's
/// worker.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Task<'a>(&'a str, &'a str, &'a str);

fn task<'a>(deployment: &'a str, id: &'a str, client: Option<&'a ClientView>) -> Option<Task<'a>> {
    let (uuid, rest) = id.split_once(':')?;
    match client.and_then(|client| client.task.as_deref()) {
        Some(task) => Some(Task(deployment, uuid, task)),
        // Each grant and each wait of an agent has a different number.
        None if HolderId::parse(id.as_bytes())?.looks_like_agent() => None,
        None => Some(Task(deployment, uuid, rest.split(':').next().unwrap_or(rest))),
    }
}

/// The waits among all locks.
#[derive(Default)]
struct Waits<'a> {
    /// The awaited locks that a task holds, each with the index of its hold.
    held: HashMap<Task<'a>, Vec<(&'a Arc<LockView>, usize)>>,
    waiting: HashSet<Task<'a>>,
}

impl<'a> Waits<'a> {
    fn new(awaited: &[&'a Arc<LockView>]) -> Self {
        let mut waits = Self::default();
        for &lock in awaited {
            let deployment = &*lock.id.deployment;
            for (i, holder) in lock.holders.iter().enumerate() {
                if let Some(task) = task(deployment, &holder.id, holder.client.as_deref()) {
                    waits.held.entry(task).or_default().push((lock, i));
                }
            }
            for waiter in &lock.waiters {
                waits.waiting.extend(task(deployment, &waiter.id, waiter.client.as_deref()));
            }
        }
        waits
    }

    /// Returns whether a holder of the lock waits for another lock.
    fn is_blocked(&self, lock: &LockView) -> bool {
        let mut tasks = lock
            .holders
            .iter()
            .filter_map(|holder| task(&lock.id.deployment, &holder.id, holder.client.as_deref()));
        tasks.any(|task| self.waiting.contains(&task))
    }

    /// Returns the tree of waits below a lock. Locks that have been visited before are left out.
    fn tree(&self, root: &'a Arc<LockView>, visited: &mut HashSet<&'a LockId>) -> BlockerRow {
        let mut row = BlockerRow { steps: Vec::new(), blocks: 0, cut: false };
        let mut pending = vec![(0, root, None)];
        while let Some((depth, lock, waiter)) = pending.pop() {
            if !visited.insert(&lock.id) {
                continue;
            }
            row.blocks += lock.waiting;
            // The locks beyond the limit are visited, too: they belong to this tree, and none of them is a root.
            row.cut = row.steps.len() >= MAX_STEPS;
            if !row.cut {
                row.steps.push(Step { depth, lock: Arc::clone(lock), waiter });
            }
            let mut below: Vec<(&Arc<LockView>, usize)> = lock
                .waiters
                .iter()
                .filter_map(|w| task(&lock.id.deployment, &w.id, w.client.as_deref()))
                .filter_map(|task| self.held.get(&task))
                .flatten()
                .copied()
                .collect();
            // The last lock is visited first.
            below.sort_by(|(a, _), (b, _)| (a.waiting, &b.id).cmp(&(b.waiting, &a.id)));
            pending.extend(below.into_iter().map(|(lock, holder)| (depth + 1, lock, Some(holder))));
        }
        row
    }
}

impl Listed for BlockerRow {
    type Schema = Self;
    const NAME: &'static str = "blockers";
    const SORTS: &'static [&'static str] = &["blocks", "age"];

    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self> {
        let awaited: Vec<&Arc<LockView>> = published
            .snapshot
            .notable()
            .filter(|lock| lock.waiting > 0 && lock.is_held() && !lock.is_unknown())
            .collect();
        let waits = Waits::new(&awaited);
        let mut visited = HashSet::new();
        let mut rows: Vec<Self> = Vec::new();
        let (blocked, roots): (Vec<_>, Vec<_>) =
            awaited.into_iter().partition(|lock| waits.is_blocked(lock));
        for root in roots {
            rows.push(waits.tree(root, &mut visited));
        }
        // The remaining locks wait in circles, in which any lock may be the root.
        let mut circles = blocked;
        circles.sort_by(|a, b| a.id.cmp(&b.id));
        for lock in circles {
            if !visited.contains(&lock.id) {
                rows.push(waits.tree(lock, &mut visited));
            }
        }
        rows.retain(|row| filter.matches(row.root(), now));
        rows
    }

    fn id(&self) -> RowId<'_> {
        RowId::of_lock(&self.root().id)
    }

    fn position(&self, sort: &str) -> Position<'_> {
        let held = self.root().held_since().map_or(u64::MAX, |since| since.at.0);
        let rank = match sort {
            "age" => (held, descending(self.blocks)),
            _ => (descending(self.blocks), held),
        };
        Position { rank, text: b"", id: Listed::id(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::WaiterView;
    use crate::query::fixtures::{lock, published};

    const CLIENT: &str = "285475da-9152-4c83-822a-67ee2f116a79";

    /// Returns a lock held by a thread, with waiters of these threads.
    fn held(name: &str, by: u32, waiters: &[u32]) -> LockView {
        let mut lock = lock(name);
        lock.holders[0].id = format!("{CLIENT}:{by}").into();
        lock.waiting = waiters.len() as u64;
        lock.waiters = waiters
            .iter()
            .map(|thread| WaiterView {
                id: format!("{CLIENT}:{thread}").into(),
                since: Since { at: SteadyMillis(u64::from(*thread)), exact: true },
                attempts: None,
                client: None,
            })
            .collect();
        lock
    }

    /// Returns the trees as text: depth, name, and the total number of waiters.
    fn trees(locks: impl IntoIterator<Item = LockView>) -> Vec<(u64, Vec<(usize, String)>)> {
        let mut rows =
            BlockerRow::all(&published(locks), &Filter::default(), SteadyMillis(2_000_000));
        rows.sort_by(|a, b| a.position("blocks").cmp(&b.position("blocks")));
        let name = |step: &Step| (step.depth, step.lock.id.name.to_string());
        rows.iter().map(|row| (row.blocks, row.steps.iter().map(name).collect())).collect()
    }

    fn tree(steps: &[(usize, &str)]) -> Vec<(usize, String)> {
        steps.iter().map(|(depth, name)| (*depth, (*name).to_owned())).collect()
    }

    #[test]
    fn the_root_blocks_everybody_behind_it() {
        let found = trees([
            held("cart", 2, &[5, 6]),
            held("invoice", 1, &[2, 3]),
            held("page", 5, &[7]),
            held("other", 9, &[8]),
            held("free of waiters", 3, &[]),
        ]);
        let first = (5, tree(&[(0, "invoice"), (1, "cart"), (2, "page")]));
        assert_eq!(found, [first, (1, tree(&[(0, "other")]))]);
    }

    #[test]
    fn a_circle_is_one_tree_that_ends() {
        let found = trees([held("a", 1, &[2]), held("b", 2, &[1]), held("c", 3, &[3])]);
        assert_eq!(found, [(2, tree(&[(0, "a"), (1, "b")])), (1, tree(&[(0, "c")]))]);
    }

    #[test]
    fn a_large_tree_is_cut_and_remains_one() {
        let count = u32::try_from(MAX_STEPS).unwrap() + 50;
        let found = trees((1..count).map(|n| held(&format!("lock {n:03}"), n, &[n + 1])));
        let sizes: Vec<_> = found.iter().map(|(blocks, steps)| (*blocks, steps.len())).collect();
        assert_eq!(sizes, [(u64::from(count - 1), MAX_STEPS)]);
    }
}
