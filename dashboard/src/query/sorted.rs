//! A list of locks that is kept in order while locks change, instead of sorting all of them for each page.

use std::sync::Arc;

use super::list::{Listed as _, Position, Query, Rows};
use super::locks::LockRow;
use crate::clock::SteadyMillis;
use crate::model::types::{Delta, Snapshot};

/// The time for which a page is valid if its filter depends on the clock, milliseconds.
pub(super) const MOVING_MS: u64 = 1_000;
/// The most rows of a chunk.
const CHUNK: usize = 1_024;

/// All locks that a filter matches, sorted, in chunks: a change moves the rows of one or two of them.
#[derive(Debug)]
pub struct SortedLocks {
    /// The snapshot that the rows are of.
    seq: u64,
    /// None of them is empty.
    chunks: Vec<Vec<LockRow>>,
}

/// The index of a row: its chunk, and its index in that.
type Place = (usize, usize);

impl SortedLocks {
    #[must_use]
    pub fn new(query: &Query<LockRow>, snapshot: &Snapshot, now: SteadyMillis) -> Self {
        let matching = snapshot.locks().filter(|lock| query.filter.matches(lock, now));
        let sorted = query.sorted(matching);
        let chunks = sorted.chunks(CHUNK / 2).map(|chunk| chunk.iter().copied().cloned().collect());
        Self { seq: snapshot.seq, chunks: chunks.collect() }
    }

    /// Returns the snapshot that the list is of.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Applies a change, if it is the next. The query must be the same each time except for its page.
    pub fn apply(&mut self, query: &Query<LockRow>, delta: &Delta, now: SteadyMillis) {
        if delta.seq != self.seq + 1 {
            return;
        }
        self.seq = delta.seq;
        let (changed, removed) = delta.before.split_at(delta.changed.len().min(delta.before.len()));
        for (lock, before) in delta.changed.iter().zip(changed) {
            let before = before.as_ref().map(|before| before.position(query.sort));
            let old = before.and_then(|before| self.find(query, &before).ok());
            let new = query.filter.matches(lock, now).then(|| lock.position(query.sort));
            match (old, new) {
                (Some((chunk, i)), Some(new)) if before == Some(new) => {
                    self.chunks[chunk][i] = Arc::clone(lock);
                }
                (old, new) => {
                    if let Some(old) = old {
                        self.remove(old);
                    }
                    if let Some(new) = new {
                        self.put(query, &new, lock);
                    }
                }
            }
        }
        for before in removed.iter().flatten() {
            if let Ok(old) = self.find(query, &before.position(query.sort)) {
                self.remove(old);
            }
        }
    }

    /// Returns the place of a row, or else the place at which it belongs.
    fn find(&self, query: &Query<LockRow>, wanted: &Position<'_>) -> Result<Place, Place> {
        let compare = |row: &LockRow| query.compare(&row.position(query.sort), wanted);
        let ends_before =
            |chunk: &Vec<LockRow>| chunk.last().is_some_and(|row| compare(row).is_lt());
        let last = self.chunks.len().saturating_sub(1);
        let chunk = self.chunks.partition_point(ends_before).min(last);
        let rows = self.chunks.get(chunk).map(Vec::as_slice).unwrap_or_default();
        rows.binary_search_by(compare).map(|i| (chunk, i)).map_err(|i| (chunk, i))
    }

    fn put(&mut self, query: &Query<LockRow>, position: &Position<'_>, lock: &LockRow) {
        match self.find(query, position) {
            Ok((chunk, i)) => self.chunks[chunk][i] = Arc::clone(lock),
            Err((chunk, _)) if chunk == self.chunks.len() => {
                self.chunks.push(vec![Arc::clone(lock)]);
            }
            Err((chunk, i)) => {
                let rows = &mut self.chunks[chunk];
                rows.insert(i, Arc::clone(lock));
                if rows.len() > CHUNK {
                    let rest = rows.split_off(CHUNK / 2);
                    self.chunks.insert(chunk + 1, rest);
                }
            }
        }
    }

    fn remove(&mut self, (chunk, i): Place) {
        self.chunks[chunk].remove(i);
        if self.chunks[chunk].is_empty() {
            self.chunks.remove(chunk);
        }
    }

    /// Returns the rows of a page.
    #[must_use]
    pub fn rows(&self, query: &Query<LockRow>) -> Rows<LockRow> {
        let is_before = |row: &LockRow| !query.is_behind_edge(&row.position(query.sort));
        let whole = |chunk: &Vec<LockRow>| chunk.last().is_some_and(is_before);
        let count = |chunks: &[Vec<LockRow>]| chunks.iter().map(Vec::len).sum::<usize>();
        let (before, rest) = self.chunks.split_at(self.chunks.partition_point(whole));
        let first = rest.first().map_or(0, |chunk| chunk.partition_point(is_before));
        let skipped = query.first_row(count(before) + first);
        let rows = self.chunks.iter().flatten().skip(skipped).take(query.limit).cloned().collect();
        query.page(rows, skipped, count(&self.chunks))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thin_vec::{ThinVec, thin_vec};

    use super::*;
    use crate::model::types::LockView;
    use crate::model::types::Since;
    use crate::query::fixtures::{leaked, lock};
    use crate::query::{Filter, Listed, Order, Published};

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    /// A change of one lock.
    #[derive(Debug, Clone)]
    struct Step {
        lock: u8,
        /// None: it is evicted.
        view: Option<(u64, u64, bool, u8)>,
    }

    fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
        let view = prop::option::weighted(0.8, (0_u64..4, 0_u64..4, any::<bool>(), 0_u8..3));
        let step = (0_u8..12, view).prop_map(|(lock, view)| Step { lock, view });
        prop::collection::vec(prop::collection::vec(step, 0..8), 1..12)
    }

    fn view_of(step: &Step) -> Option<LockView> {
        step.view.map(|(since, ttl, troubled, holder)| {
            let mut view = lock(&format!("lock:{}", step.lock));
            view.expires_at = Some(SteadyMillis(ttl));
            view.problems = if troubled { thin_vec![leaked()] } else { ThinVec::new() };
            match holder {
                // A free lock without waiters: most lists do not contain it.
                0 => view.holders.clear(),
                _ => {
                    view.holders[0].id = format!("holder:{holder}").into();
                    view.holders[0].since = Since { at: SteadyMillis(since), exact: true };
                }
            }
            view
        })
    }

    /// Applies the steps to the snapshot and returns the delta that the model would publish.
    fn apply(snapshot: &mut Snapshot, steps: &[Step]) -> Delta {
        let (mut changed, mut removed, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        let (mut before, mut gone) = (Vec::new(), Vec::new());
        for step in steps {
            // Each lock changes once from one snapshot to the next.
            if seen.contains(&step.lock) {
                continue;
            }
            seen.push(step.lock);
            match view_of(step) {
                Some(view) => {
                    let view = Arc::new(view);
                    before.push(snapshot.put(Arc::clone(&view)));
                    changed.push(view);
                }
                None => {
                    let id = lock(&format!("lock:{}", step.lock)).id;
                    gone.push(snapshot.remove(&id));
                    removed.push(id);
                }
            }
        }
        snapshot.seq += 1;
        before.append(&mut gone);
        Delta::new(snapshot.seq, NOW, changed, removed, before)
    }

    fn query(
        filter: &str,
        sort: &'static str,
        order: Order,
        cursor: Option<&str>,
    ) -> Query<LockRow> {
        Query::new((filter, Filter::parse(filter).unwrap()), (sort, order), cursor, 3).unwrap()
    }

    proptest! {
        #[test]
        fn an_updated_list_equals_a_rebuilt_one(
            rounds in steps(), sort in prop::sample::select(LockRow::SORTS), ascending: bool,
            filter in prop::sample::select(vec!["", "lock:1", "problem:any", "state:free", "ttl:>1ms"]),
            missed in 0_usize..20,
        ) {
            let order = if ascending { Order::Ascending } else { Order::Descending };
            let first = query(filter, sort, order, None);
            let mut snapshot = Snapshot::empty();
            let mut list = SortedLocks::new(&first, &snapshot, NOW);
            let mut deltas = Vec::new();
            for (i, steps) in rounds.iter().enumerate() {
                deltas.push(apply(&mut snapshot, steps));
                // Sometimes several snapshots are caught up with at once.
                if i % 3 == missed % 3 && i + 1 < rounds.len() {
                    continue;
                }
                for delta in deltas.drain(..) {
                    list.apply(&first, &delta, NOW);
                }
                prop_assert_eq!(list.seq(), snapshot.seq);
                let published =
                    Published { snapshot: Arc::new(snapshot.clone()), contention: Arc::default() };
                let mut page = first.clone();
                loop {
                    let (updated, rebuilt) = (list.rows(&page), page.rows(&published, NOW));
                    prop_assert_eq!(&updated, &rebuilt);
                    if let Some(prev) = &rebuilt.prev {
                        let back = query(filter, sort, order, Some(prev));
                        prop_assert_eq!(list.rows(&back), back.rows(&published, NOW));
                    }
                    let Some(next) = rebuilt.next else { break };
                    page = query(filter, sort, order, Some(&next));
                }
            }
        }
    }

    #[test]
    fn a_change_behind_a_gap_is_not_applied() {
        let (all, snapshot) = (query("", "name", Order::Ascending, None), Snapshot::empty());
        let mut list = SortedLocks::new(&all, &snapshot, NOW);
        let new = |seq| Delta::new(seq, NOW, vec![Arc::new(lock("a"))], Vec::new(), vec![None]);
        list.apply(&all, &new(2), NOW);
        assert_eq!((list.seq(), list.rows(&all).total), (0, 0));
        list.apply(&all, &new(1), NOW);
        assert_eq!((list.seq(), list.rows(&all).total), (1, 1));
    }
}
