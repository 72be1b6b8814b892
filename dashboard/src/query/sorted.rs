//! A list of locks that is kept in order while locks change, instead of sorting all of them for each page.

use std::sync::Arc;

use super::list::{Listed as _, Query, Rows};
use super::locks::LockRow;
use crate::clock::SteadyMillis;
use crate::model::types::{Delta, Snapshot};

/// The time for which a list is valid if its filter depends on the clock, milliseconds.
pub(super) const MOVING_MS: u64 = 1_000;
/// The most changes that are applied one by one, in addition to a quarter of the list's length. Each change moves the rows
/// behind it, so beyond that sorting again is cheaper.
const FEW: usize = 64;

/// All locks that a filter matches, sorted.
#[derive(Debug, Default)]
pub struct SortedLocks {
    /// The snapshot that the rows are of; none before the first.
    seq: Option<u64>,
    /// The instant at which all locks were last matched, milliseconds.
    at: u64,
    rows: Vec<LockRow>,
}

impl SortedLocks {
    /// Returns the snapshot that the list is of.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// Updates the list to the newest snapshot. `deltas`: every change since [`Self::seq`], if they are still known. The
    /// query must be the same each time except for its page.
    pub fn update(
        &mut self,
        query: &Query<LockRow>,
        snapshot: &Snapshot,
        deltas: Option<&[Arc<Delta>]>,
        now: SteadyMillis,
    ) {
        let outdated =
            query.filter.depends_on_clock() && now.0 >= self.at.saturating_add(MOVING_MS);
        let few = |deltas: &&[Arc<Delta>]| {
            let changes: usize = deltas.iter().map(|delta| delta.before.len()).sum();
            changes <= FEW + self.rows.len() / 4
        };
        match deltas.filter(few) {
            Some(deltas) if !outdated => {
                for delta in deltas {
                    self.apply(query, delta, now);
                    self.seq = Some(delta.seq);
                }
            }
            _ => self.rebuild(query, snapshot, now),
        }
    }

    fn rebuild(&mut self, query: &Query<LockRow>, snapshot: &Snapshot, now: SteadyMillis) {
        let matching = snapshot.locks().filter(|lock| query.filter.matches(lock, now));
        self.rows = query.sorted(matching).into_iter().cloned().collect();
        self.seq = Some(snapshot.seq);
        self.at = now.0;
    }

    fn apply(&mut self, query: &Query<LockRow>, delta: &Delta, now: SteadyMillis) {
        let (changed, removed) = delta.before.split_at(delta.changed.len().min(delta.before.len()));
        for (lock, before) in delta.changed.iter().zip(changed) {
            let old = before.as_ref().and_then(|before| self.find(query, before).ok());
            let new = query.filter.matches(lock, now).then(|| self.find(query, lock));
            match (old, new) {
                (Some(old), Some(Ok(new))) if old == new => self.rows[old] = Arc::clone(lock),
                (Some(old), Some(Err(new))) => {
                    // Only the rows between the two places move.
                    self.rows[old] = Arc::clone(lock);
                    match new > old {
                        true => self.rows[old..new].rotate_left(1),
                        false => self.rows[new..=old].rotate_right(1),
                    }
                }
                (None, Some(Err(new))) => self.rows.insert(new, Arc::clone(lock)),
                (None, Some(Ok(known))) => self.rows[known] = Arc::clone(lock),
                (Some(old), _) => drop(self.rows.remove(old)),
                (None, None) => {}
            }
        }
        for before in removed.iter().flatten() {
            if let Ok(old) = self.find(query, before) {
                self.rows.remove(old);
            }
        }
    }

    /// Returns the index of a lock, or else the index at which it belongs.
    fn find(&self, query: &Query<LockRow>, lock: &LockRow) -> Result<usize, usize> {
        let wanted = lock.position(query.sort);
        self.rows.binary_search_by(|row| query.compare(&row.position(query.sort), &wanted))
    }

    /// Returns the rows of a page.
    #[must_use]
    pub fn rows(&self, query: &Query<LockRow>) -> Rows<LockRow> {
        let is_before = |row: &LockRow| !query.is_behind_edge(&row.position(query.sort));
        let before = if query.edge.is_some() { self.rows.partition_point(is_before) } else { 0 };
        let skipped = query.first_row(before);
        let rows = self.rows.iter().skip(skipped).take(query.limit).cloned().collect();
        query.page(rows, skipped, self.rows.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            view.ttl_ms = Some(ttl);
            view.problems = if troubled { vec![leaked()] } else { Vec::new() };
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
            let (mut snapshot, mut list) = (Snapshot::empty(), SortedLocks::default());
            list.update(&first, &snapshot, None, NOW);
            let mut deltas = Vec::new();
            for (i, steps) in rounds.iter().enumerate() {
                deltas.push(Arc::new(apply(&mut snapshot, steps)));
                // Sometimes several snapshots are caught up with at once.
                if i % 3 == missed % 3 && i + 1 < rounds.len() {
                    continue;
                }
                list.update(&first, &snapshot, Some(&deltas), NOW);
                deltas.clear();
                prop_assert_eq!(list.seq(), Some(snapshot.seq));
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
    fn a_list_is_rebuilt_after_missed_deltas_and_when_its_filter_depends_on_the_clock() {
        let mut snapshot = Snapshot::empty();
        let [all, old] =
            ["", "age:>1s"].map(|filter| query(filter, "name", Order::Ascending, None));
        let (mut of_all, mut of_old) = (SortedLocks::default(), SortedLocks::default());
        let young = |name: &str| {
            let mut view = lock(name);
            view.holders[0].since = Since { at: NOW, exact: true };
            Arc::new(view)
        };
        snapshot.put(young("a"));
        snapshot.seq = 1;
        of_all.update(&all, &snapshot, None, NOW);
        of_old.update(&old, &snapshot, None, NOW);
        assert_eq!((of_all.rows(&all).total, of_old.rows(&old).total), (1, 0));
        snapshot.put(young("b"));
        snapshot.seq = 9;
        of_all.update(&all, &snapshot, None, NOW);
        assert_eq!((of_all.rows(&all).total, of_all.seq()), (2, Some(9)));
        // Only the clock has moved.
        let later = |ms: u64| SteadyMillis(NOW.0 + ms);
        of_old.update(&old, &snapshot, Some(&[]), later(MOVING_MS - 1));
        assert_eq!(of_old.rows(&old).total, 0);
        of_old.update(&old, &snapshot, Some(&[]), later(MOVING_MS));
        assert_eq!(of_old.rows(&old).total, 2);
    }
}
