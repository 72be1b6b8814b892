//! One page of a list that is not of locks: of those who hold, of problems, of what is contended.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::Filter;
use super::page::BadCursor;
use crate::clock::SteadyMillis;
use crate::model::contention::{Contention, GroupTally};
use crate::model::types::Snapshot;
use crate::views::Order;

/// What lists are made from.
#[derive(Debug, Clone)]
pub struct Known {
    pub snapshot: Arc<Snapshot>,
    /// What was counted in the last hour.
    pub contention: Arc<Contention>,
}

/// A kind of list: what its rows are, and how they are ordered.
pub trait Listed: Sized + Clone + Serialize + Send + Sync + 'static {
    /// The word for it in addresses and in the API.
    const NAME: &'static str;
    /// What it can be sorted by; the first is the usual one.
    const SORTS: &'static [&'static str];

    /// Every row for the locks that a filter lets through.
    fn all(known: &Known, filter: &Filter, now: SteadyMillis) -> Vec<Self>;

    /// Which end comes first where nobody says: the most, the worst or the longest; names from the first on.
    #[must_use]
    fn usual_order(sort: &str) -> Order {
        if matches!(sort, "name" | "id") { Order::Ascending } else { Order::Descending }
    }

    /// Where a row stands when sorted by one of [`Self::SORTS`] in its usual order: the smaller, the earlier.
    fn rank(&self, sort: &str) -> (u64, u64);

    /// What tells it from all others, and settles the order of those of one rank.
    fn id(&self) -> String;

    /// The groups of locks that the list has something to tell of, where it has.
    fn groups(_known: &Known) -> Option<&[GroupTally]> {
        None
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// The filter as it was written, which the cursor is bound to.
    pub text: String,
    pub filter: Filter,
    /// Sorted by, one of [`Listed::SORTS`].
    pub sort: &'static str,
    /// Which end first.
    pub order: Order,
    /// The cursor, none on the first page.
    pub cursor: Option<String>,
    /// How many rows.
    pub limit: usize,
}

#[derive(Debug, Clone)]
pub struct ListRows<T> {
    /// The rows, in order.
    pub rows: Vec<T>,
    /// How many there are in all.
    pub total: usize,
    /// How many of them stand before the first row.
    pub skipped: usize,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// A row's place; it stays valid when the row is gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Place {
    rank: (u64, u64),
    id: String,
}

#[derive(Serialize, Deserialize)]
struct Cursor {
    /// Of which list.
    list: u64,
    at: Place,
}

impl ListQuery {
    fn list(&self, name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (name, &self.text, self.sort, self.order).hash(&mut hasher);
        hasher.finish()
    }

    /// The rows of this page as of a snapshot.
    ///
    /// # Errors
    /// When the cursor is none, or one of another list.
    pub fn rows<T: Listed>(
        &self,
        known: &Known,
        now: SteadyMillis,
    ) -> Result<ListRows<T>, BadCursor> {
        let list = self.list(T::NAME);
        let turned = self.order != T::usual_order(self.sort);
        let ordered = |a: &Place, b: &Place| if turned { b.cmp(a) } else { a.cmp(b) };
        let after = self.cursor.as_deref().map(|cursor| after(cursor, list)).transpose()?;
        let mut found: Vec<(Place, T)> = T::all(known, &self.filter, now)
            .into_iter()
            .map(|row| (Place { rank: row.rank(self.sort), id: row.id() }, row))
            .collect();
        let total = found.len();
        if let Some(after) = after {
            found.retain(|(place, _)| ordered(place, &after).is_gt());
        }
        let skipped = total - found.len();
        found.sort_unstable_by(|(a, _), (b, _)| ordered(a, b));
        let more = found.len() > self.limit;
        found.truncate(self.limit);
        let next = found.last().filter(|_| more).map(|(place, _)| {
            let cursor = Cursor { list, at: place.clone() };
            // Numbers and strings: this cannot fail.
            URL_SAFE_NO_PAD.encode(serde_json::to_vec(&cursor).unwrap_or_default())
        });
        Ok(ListRows { rows: found.into_iter().map(|(_, row)| row).collect(), total, skipped, next })
    }
}

fn after(cursor: &str, list: u64) -> Result<Place, BadCursor> {
    let json = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| BadCursor)?;
    let cursor: Cursor = serde_json::from_slice(&json).map_err(|_| BadCursor)?;
    if cursor.list == list { Ok(cursor.at) } else { Err(BadCursor) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::owners::OwnerRow;
    use crate::query::problems::ProblemRow;
    use crate::query::tests::{leaked, lock};

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    fn known() -> Known {
        let mut snapshot = Snapshot::empty();
        for n in 0..7 {
            let mut lock = lock(&format!("lock:{n}"));
            lock.holders[0].id = format!("client-{}", n % 5).into();
            lock.problems.push(leaked());
            snapshot.put(Arc::new(lock));
        }
        Known { snapshot: Arc::new(snapshot), contention: Arc::default() }
    }

    fn query(sort: &'static str, limit: usize) -> ListQuery {
        let (text, filter) = (String::new(), Filter::default());
        ListQuery { text, filter, sort, order: Order::Descending, cursor: None, limit }
    }

    fn all_pages<T: Listed>(sort: &'static str, limit: usize) -> Vec<String> {
        pages_in::<T>(sort, T::usual_order(sort), limit)
    }

    fn pages_in<T: Listed>(sort: &'static str, order: Order, limit: usize) -> Vec<String> {
        let (known, mut query, mut ids) = (known(), query(sort, limit), Vec::new());
        query.order = order;
        loop {
            let page = query.rows::<T>(&known, NOW).unwrap();
            assert_eq!(page.skipped, ids.len());
            ids.extend(page.rows.iter().map(Listed::id));
            query.cursor = page.next;
            if query.cursor.is_none() {
                assert_eq!(page.total, ids.len());
                return ids;
            }
        }
    }

    #[test]
    fn pages_together_are_the_whole_list() {
        for limit in 1..9 {
            for sort in OwnerRow::SORTS {
                assert_eq!(all_pages::<OwnerRow>(sort, limit), all_pages::<OwnerRow>(sort, 100));
            }
            for sort in ProblemRow::SORTS {
                assert_eq!(all_pages::<ProblemRow>(sort, limit).len(), 7);
            }
        }
    }

    #[test]
    fn the_other_order_is_the_same_list_from_its_end() {
        for sort in OwnerRow::SORTS {
            let other = match OwnerRow::usual_order(sort) {
                Order::Ascending => Order::Descending,
                Order::Descending => Order::Ascending,
            };
            let mut turned = pages_in::<OwnerRow>(sort, other, 2);
            turned.reverse();
            assert_eq!(turned, all_pages::<OwnerRow>(sort, 100), "{sort}");
        }
    }

    #[test]
    fn a_cursor_belongs_to_its_list() {
        let known = known();
        let next = query("holds", 2).rows::<OwnerRow>(&known, NOW).unwrap().next;
        let with = |sort, cursor| ListQuery { cursor, ..query(sort, 2) };
        assert!(with("holds", next.clone()).rows::<OwnerRow>(&known, NOW).is_ok());
        let turned = ListQuery { order: Order::Ascending, ..with("holds", next.clone()) };
        assert_eq!(turned.rows::<OwnerRow>(&known, NOW).unwrap_err(), BadCursor);
        for bad in [next, Some("x".into()), Some("e30".into())] {
            assert_eq!(
                with("age", bad.clone()).rows::<OwnerRow>(&known, NOW).unwrap_err(),
                BadCursor
            );
            assert_eq!(
                with("severity", bad).rows::<ProblemRow>(&known, NOW).unwrap_err(),
                BadCursor
            );
        }
    }
}
