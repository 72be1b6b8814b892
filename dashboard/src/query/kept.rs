//! A list that is kept in order while locks change, so that nobody goes through ten thousand of them for the sake of ten.

use std::sync::Arc;

use super::page::{Place, Query, Rows};
use crate::clock::SteadyMillis;
use crate::model::types::{Delta, LockView, Snapshot};

/// How long a list is good whose filter depends on the clock, milliseconds.
const MOVING_MS: u64 = 1_000;
/// Where more has changed than this and a quarter of the list, it is made anew: each change moves what stands behind it.
const FEW: usize = 64;

/// All locks that a filter matches, in an order.
#[derive(Debug, Default)]
pub struct Kept {
    /// Which picture they are of; none before the first.
    seq: Option<u64>,
    /// When all were last matched, epoch milliseconds.
    at: u64,
    rows: Vec<Arc<LockView>>,
}

impl Kept {
    /// Of which picture the list is; none before it was first made.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// Brings it to the newest picture. `news`: every change since [`Self::seq`], where they are still known. The query is to
    /// be the same each time but for its page.
    pub fn follow(
        &mut self,
        query: &Query,
        snapshot: &Snapshot,
        news: Option<&[Arc<Delta>]>,
        now: SteadyMillis,
    ) {
        let moved = query.filter.moves() && now.0 >= self.at.saturating_add(MOVING_MS);
        let few = |news: &&[Arc<Delta>]| {
            let changes: usize = news.iter().map(|delta| delta.before.len()).sum();
            changes <= FEW + self.rows.len() / 4
        };
        match news.filter(few) {
            Some(news) if !moved => {
                for delta in news {
                    self.change(query, delta, now);
                    self.seq = Some(delta.seq);
                }
            }
            _ => self.make(query, snapshot, now),
        }
    }

    fn make(&mut self, query: &Query, snapshot: &Snapshot, now: SteadyMillis) {
        let mut found: Vec<(Place<'_>, &Arc<LockView>)> = snapshot
            .locks()
            .filter(|lock| query.filter.matches(lock, now))
            .map(|lock| (query.place(lock), lock))
            .collect();
        found.sort_unstable_by(|(a, _), (b, _)| query.compare(a, b));
        self.rows = found.into_iter().map(|(_, lock)| Arc::clone(lock)).collect();
        self.seq = Some(snapshot.seq);
        self.at = now.0;
    }

    fn change(&mut self, query: &Query, delta: &Delta, now: SteadyMillis) {
        let (changed, removed) = delta.before.split_at(delta.changed.len().min(delta.before.len()));
        for (lock, before) in delta.changed.iter().zip(changed) {
            let old = before.as_ref().and_then(|before| self.find(query, before).ok());
            let new = query.filter.matches(lock, now).then(|| self.find(query, lock));
            match (old, new) {
                (Some(old), Some(Ok(new))) if old == new => self.rows[old] = Arc::clone(lock),
                (Some(old), Some(Err(new))) => {
                    // Only what stands between the two places moves.
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

    /// Where a lock stands, or would.
    fn find(&self, query: &Query, lock: &LockView) -> Result<usize, usize> {
        let wanted = query.place(lock);
        self.rows.binary_search_by(|row| query.compare(&query.place(row), &wanted))
    }

    /// The rows of a page.
    #[must_use]
    pub fn rows(&self, query: &Query) -> Rows {
        let total = self.rows.len();
        let skipped = query.after.as_ref().map_or(0, |after| {
            self.rows.partition_point(|row| !query.is_behind(&query.place(row), after))
        });
        let rows: Vec<Arc<LockView>> =
            self.rows.iter().skip(skipped).take(query.limit).cloned().collect();
        let more = total - skipped > rows.len();
        let next = rows.last().filter(|_| more).map(|last| query.cursor(last));
        Rows { rows, total, skipped, next }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::types::Since;
    use crate::query::Filter;
    use crate::query::tests::{leaked, lock};
    use crate::views::{Order, Sort};

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    /// What happens to one lock.
    #[derive(Debug, Clone)]
    struct Step {
        lock: u8,
        /// None: it is forgotten.
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
                // Free, and waited for by nobody: most lists do not have it.
                0 => view.holders.clear(),
                _ => {
                    view.holders[0].id = format!("holder:{holder}").into();
                    view.holders[0].since = Since { at: SteadyMillis(since), exact: true };
                }
            }
            view
        })
    }

    /// Does it to the picture, and tells of it as the model does.
    fn apply(snapshot: &mut Snapshot, steps: &[Step]) -> Delta {
        let (mut changed, mut removed, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        let (mut before, mut gone) = (Vec::new(), Vec::new());
        for step in steps {
            // Each changes once from one picture to the next.
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

    proptest! {
        #[test]
        fn what_is_kept_is_what_would_be_made_anew(
            rounds in steps(), sort in prop::sample::select(Sort::ALL.to_vec()), ascending: bool,
            filter in prop::sample::select(vec!["", "lock:1", "problem:any", "state:free", "ttl:>1ms"]),
            missed in 0_usize..20,
        ) {
            let order = if ascending { Order::Ascending } else { Order::Descending };
            let parsed = Filter::parse(filter).unwrap();
            let query = Query {
                text: filter.into(), filter: parsed, sort, order, after: None, limit: 3,
            };
            let (mut snapshot, mut kept) = (Snapshot::empty(), Kept::default());
            kept.follow(&query, &snapshot, None, NOW);
            let mut news = Vec::new();
            for (i, steps) in rounds.iter().enumerate() {
                news.push(Arc::new(apply(&mut snapshot, steps)));
                // Sometimes several pictures are caught up with at once.
                if i % 3 == missed % 3 && i + 1 < rounds.len() {
                    continue;
                }
                kept.follow(&query, &snapshot, Some(&news), NOW);
                news.clear();
                prop_assert_eq!(kept.seq(), Some(snapshot.seq));
                let mut page = query.clone();
                loop {
                    let (mine, anew) = (kept.rows(&page), page.rows(&snapshot, NOW));
                    prop_assert_eq!(&mine, &anew);
                    let Some(next) = anew.next else { break };
                    page = query.clone().after(&next).unwrap();
                }
            }
        }
    }

    #[test]
    fn what_was_missed_or_depends_on_the_clock_is_made_anew() {
        let mut snapshot = Snapshot::empty();
        let query = |filter: &str| Query {
            text: filter.into(),
            filter: Filter::parse(filter).unwrap(),
            sort: Sort::Name,
            order: Order::Ascending,
            after: None,
            limit: 10,
        };
        let (all, old) = (query(""), query("age:>1s"));
        let (mut of_all, mut of_old) = (Kept::default(), Kept::default());
        let young = |name: &str| {
            let mut view = lock(name);
            view.holders[0].since = Since { at: NOW, exact: true };
            Arc::new(view)
        };
        snapshot.put(young("a"));
        snapshot.seq = 1;
        of_all.follow(&all, &snapshot, None, NOW);
        of_old.follow(&old, &snapshot, None, NOW);
        assert_eq!((of_all.rows(&all).total, of_old.rows(&old).total), (1, 0));
        snapshot.put(young("b"));
        snapshot.seq = 9;
        of_all.follow(&all, &snapshot, None, NOW);
        assert_eq!((of_all.rows(&all).total, of_all.seq()), (2, Some(9)));
        // Nothing has changed but the time.
        let later = |ms: u64| SteadyMillis(NOW.0 + ms);
        of_old.follow(&old, &snapshot, Some(&[]), later(MOVING_MS - 1));
        assert_eq!(of_old.rows(&old).total, 0);
        of_old.follow(&old, &snapshot, Some(&[]), later(MOVING_MS));
        assert_eq!(of_old.rows(&old).total, 2);
    }
}
