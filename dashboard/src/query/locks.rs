//! The list of locks, with one row for each.

use std::sync::Arc;

use super::list::{Listed, Position, Published, Rank, RowId, Rows};
use super::{Filter, Order};
use crate::clock::SteadyMillis;
use crate::model::types::{Certainty, LockView, ProblemKind};

/// A lock as lists show it.
pub type LockRow = Arc<LockView>;

/// Returns a smaller number for a worse lock.
pub(super) fn severity(lock: &LockView) -> u64 {
    // Certain problems come before suspected ones.
    let of = |problem: ProblemKind, certainty: Certainty| match certainty {
        Certainty::Certain => problem as u64,
        Certainty::Suspected => ProblemKind::ALL.len() as u64 + problem as u64,
    };
    // Acknowledged problems do not move a lock to the top.
    let open = lock.problems.iter().filter(|p| p.acknowledged.is_none());
    open.map(|p| of(p.problem, p.certainty)).min().unwrap_or(u64::MAX)
}

/// Returns the rank of a lock.
pub(super) fn rank(
    sort: &str,
    severity: impl FnOnce() -> u64,
    since: impl FnOnce() -> Option<SteadyMillis>,
    expires_at: Option<SteadyMillis>,
) -> Rank {
    let or_last = |at: Option<SteadyMillis>| at.map_or(u64::MAX, |at| at.0);
    match sort {
        "problems" => (severity(), or_last(since())),
        "age" => (or_last(since()), 0),
        "ttl" => (or_last(expires_at), 0),
        _ => (0, 0),
    }
}

impl Listed for LockRow {
    type Schema = LockView;
    const NAME: &'static str = "locks";
    const SORTS: &'static [&'static str] = &["problems", "name", "holder", "age", "ttl"];
    const FACETS: bool = true;

    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self> {
        published.snapshot.locks().filter(|lock| filter.matches(lock, now)).cloned().collect()
    }

    fn default_order(sort: &str) -> Order {
        match sort {
            "problems" | "age" => Order::Descending,
            _ => Order::Ascending,
        }
    }

    fn id(&self) -> RowId<'_> {
        RowId::of_lock(&self.id)
    }

    fn position(&self, sort: &str) -> Position<'_> {
        let since = || self.held_since().map(|since| since.at);
        let rank = rank(sort, || severity(self), since, self.expires_at);
        let text = match self.holders.first() {
            Some(holder) if sort == "holder" => holder.id.as_bytes(),
            _ => b"",
        };
        Position { rank, text, id: Listed::id(self) }
    }
}

impl Rows<LockRow> {
    /// Returns true if both contain the very same views.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.total, self.skipped, self.rows.len())
            == (other.total, other.skipped, other.rows.len())
            && self.rows.iter().zip(&other.rows).all(|(mine, theirs)| Arc::ptr_eq(mine, theirs))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thin_vec::thin_vec;

    use super::*;
    use crate::model::types::Since;
    use crate::query::fixtures::{acknowledged, leaked, lock, published};
    use crate::query::list::tests::query;

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    fn aged(name: &str, at: u64) -> LockView {
        let mut lock = lock(name);
        lock.holders[0].since = Since { at: SteadyMillis(at), exact: true };
        lock
    }

    fn names(rows: &Rows<LockRow>) -> Vec<String> {
        rows.rows.iter().map(|lock| lock.id.name.to_string()).collect()
    }

    fn page(
        published: &Published,
        (sort, order): (&'static str, Order),
        cursor: Option<&str>,
        limit: usize,
    ) -> Rows<LockRow> {
        query(sort, order, cursor, limit).unwrap().rows(published, NOW)
    }

    #[test]
    fn problems_come_first_then_the_longest_held() {
        let bad = LockView { problems: thin_vec![leaked()], ..aged("bad", 900) };
        let with_problem = published([aged("young", 500), aged("old", 100), bad]);
        let by = |sort: &'static str| (sort, LockRow::default_order(sort));
        assert_eq!(names(&page(&with_problem, by("problems"), None, 10)), ["bad", "old", "young"]);
        let known = LockView { problems: thin_vec![acknowledged()], ..aged("acknowledged", 900) };
        let acknowledged = published([aged("young", 500), known]);
        let rows = page(&acknowledged, by("problems"), None, 10);
        assert_eq!(names(&rows), ["young", "acknowledged"]);
        assert_eq!(names(&page(&with_problem, by("age"), None, 10)), ["old", "young", "bad"]);
        let rows = page(&with_problem, ("name", Order::Descending), None, 2);
        assert_eq!((names(&rows), rows.total), (vec!["young".into(), "old".into()], 3));
    }

    proptest! {
        #[test]
        fn pages_together_are_the_whole_list(
            ages in prop::collection::vec((0_u64..5, 0_u64..5), 0..40),
            sort in prop::sample::select(LockRow::SORTS), ascending: bool, limit in 1_usize..10,
        ) {
            let order = if ascending { Order::Ascending } else { Order::Descending };
            let locks: Vec<LockView> = ages.iter().enumerate().map(|(i, (since, ttl))| LockView {
                expires_at: Some(SteadyMillis(*ttl)), ..aged(&format!("lock:{i}"), *since)
            }).collect();
            let published = published(locks);
            let whole = page(&published, (sort, order), None, 100);
            let (mut paged, mut cursor) = (Vec::new(), None);
            loop {
                let rows = page(&published, (sort, order), cursor.as_deref(), limit);
                prop_assert_eq!(rows.skipped, paged.len());
                prop_assert_eq!(rows.total, whole.total);
                paged.extend(names(&rows));
                cursor = rows.next;
                if cursor.is_none() { break }
            }
            prop_assert_eq!(paged, names(&whole));
            prop_assert!(whole.next.is_none());
        }
    }
}
