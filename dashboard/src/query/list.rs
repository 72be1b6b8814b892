//! One page of a sorted list, and the cursor of the next.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use super::{Filter, Order};
use crate::clock::SteadyMillis;
use crate::model::actor::Hub;
use crate::model::contention::Contention;
use crate::model::types::{LockId, Snapshot};

/// The most rows of a page.
pub const MAX_ROWS: usize = 100;

/// The published state that lists are made from.
#[derive(Debug, Clone)]
pub struct Published {
    pub snapshot: Arc<Snapshot>,
    /// The counts of the last hour.
    pub contention: Arc<Contention>,
}

impl Published {
    #[must_use]
    pub fn latest(hub: &Hub) -> Self {
        Self { snapshot: hub.snapshot(), contention: hub.contention() }
    }
}

/// A kind of row, with the list that shows it.
pub trait Listed: Clone + Serialize + Send + Sync + 'static {
    /// The list's word in addresses and in the API.
    const NAME: &'static str;
    /// The words to sort by; the first is the default.
    const SORTS: &'static [&'static str];
    /// True if the list reports groups of locks in addition to its rows.
    const GROUPS: bool = false;
    /// True if the list's page also shows problems that have ended.
    const CLEARED: bool = false;
    /// The type whose schema describes a row's JSON.
    type Schema: ToSchema;

    /// Returns every row for the locks that the filter matches.
    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self>;

    /// Returns the order that applies when the address names none: the most, the worst or the longest first; names
    /// ascending.
    #[must_use]
    fn default_order(sort: &str) -> Order {
        if matches!(sort, "name" | "id") { Order::Ascending } else { Order::Descending }
    }

    fn id(&self) -> RowId<'_>;

    /// Returns the row's place in a list sorted by one of [`Self::SORTS`]. In the default order smaller places come
    /// first.
    fn position(&self, sort: &str) -> Position<'_>;
}

/// The identity of a row within its list. It settles the order of rows of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId<'a> {
    /// The lock's name or the client's id.
    pub name: &'a [u8],
    pub deployment: &'a str,
    pub db: u32,
    /// The problem's word; empty in lists without problems.
    pub problem: &'a str,
}

impl<'a> RowId<'a> {
    #[must_use]
    pub fn of_lock(id: &'a LockId) -> Self {
        Self { name: id.name.as_bytes(), deployment: &id.deployment, db: id.db, problem: "" }
    }
}

/// The first part of a [`Position`].
pub type Rank = (u64, u64);

/// A place in a sorted list. It stays valid when its row is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position<'a> {
    pub rank: Rank,
    /// Text that is sorted by after the rank.
    pub text: &'a [u8],
    pub id: RowId<'a>,
}

/// A request for one page of a list.
#[derive(Debug, Clone)]
pub struct Query<T> {
    /// The filter as written. Cursors are bound to it.
    pub text: String,
    pub filter: Filter,
    /// One of [`Listed::SORTS`].
    pub sort: &'static str,
    pub order: Order,
    /// The last row of the page before.
    pub(super) after: Option<Cursor>,
    /// The most rows of the page.
    pub limit: usize,
    row: PhantomData<fn() -> T>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rows<T> {
    pub rows: Vec<T>,
    /// The number of matching rows on all pages.
    pub total: usize,
    /// The number of matching rows before this page.
    pub skipped: usize,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), total: 0, skipped: 0, next: None }
    }
}

/// A malformed cursor, or one of another list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the cursor does not belong to this filter, sort and order; begin without one")]
pub struct BadCursor;

/// A [`Position`] as addresses hold it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Cursor {
    /// A hash of the list's name, filter, sort and order.
    list: u64,
    rank: (u64, u64),
    #[serde(with = "base64_bytes")]
    text: Vec<u8>,
    #[serde(with = "base64_bytes")]
    name: Vec<u8>,
    deployment: String,
    db: u32,
    problem: String,
}

/// Bytes as a string in base64: shorter in JSON than an array of numbers.
mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde::de::{Deserialize, Deserializer, Error};

    pub(super) fn serialize<S: serde::Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&URL_SAFE_NO_PAD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        URL_SAFE_NO_PAD.decode(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Cursor {
    fn position(&self) -> Position<'_> {
        let Self { rank, text, name, deployment, db, problem, .. } = self;
        Position { rank: *rank, text, id: RowId { name, deployment, db: *db, problem } }
    }
}

impl<T: Listed> Query<T> {
    /// Returns a query for the page that begins at the cursor, or for the first page.
    ///
    /// # Errors
    /// [`BadCursor`] if the cursor is malformed or belongs to another list.
    pub fn new(
        (text, filter): (&str, Filter),
        (sort, order): (&'static str, Order),
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Self, BadCursor> {
        let (text, row) = (text.to_owned(), PhantomData);
        let mut query = Self { text, filter, sort, order, after: None, limit, row };
        if let Some(cursor) = cursor {
            let json = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| BadCursor)?;
            let cursor: Cursor = serde_json::from_slice(&json).map_err(|_| BadCursor)?;
            if cursor.list != query.list() {
                return Err(BadCursor);
            }
            query.after = Some(cursor);
        }
        Ok(query)
    }

    fn list(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (T::NAME, &self.text, self.sort, self.order).hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn cursor(&self, last: &T) -> String {
        let Position { rank, text, id } = last.position(self.sort);
        let cursor = Cursor {
            list: self.list(),
            rank,
            text: text.to_vec(),
            name: id.name.to_vec(),
            deployment: id.deployment.to_owned(),
            db: id.db,
            problem: id.problem.to_owned(),
        };
        // Numbers and strings: this cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&cursor).unwrap_or_default())
    }

    /// Compares two places in the order of the query.
    pub(super) fn compare(&self, a: &Position<'_>, b: &Position<'_>) -> Ordering {
        if self.order == T::default_order(self.sort) { a.cmp(b) } else { b.cmp(a) }
    }

    /// Compares two rows in the order of the query: mostly by their ranks alone.
    fn compare_rows(&self, (a_rank, a): &(Rank, &T), (b_rank, b): &(Rank, &T)) -> Ordering {
        if a_rank == b_rank {
            return self.compare(&a.position(self.sort), &b.position(self.sort));
        }
        let order = a_rank.cmp(b_rank);
        if self.order == T::default_order(self.sort) { order } else { order.reverse() }
    }

    /// Returns the rows in the order of the query.
    pub(super) fn sorted<'a>(&self, rows: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
        let mut rows: Vec<(Rank, &T)> =
            rows.map(|row| (row.position(self.sort).rank, row)).collect();
        rows.sort_unstable_by(|a, b| self.compare_rows(a, b));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Returns true unless the place belongs to a page before this one.
    pub(super) fn is_behind_cursor(&self, place: &Position<'_>) -> bool {
        let after = self.after.as_ref().map(Cursor::position);
        after.is_none_or(|after| self.compare(place, &after) == Ordering::Greater)
    }

    /// Returns the rows of this page.
    #[must_use]
    pub fn rows(&self, published: &Published, now: SteadyMillis) -> Rows<T> {
        let all = T::all(published, &self.filter, now);
        let behind = |row: &&T| self.is_behind_cursor(&row.position(self.sort));
        let found = self.sorted(all.iter().filter(behind));
        let skipped = all.len() - found.len();
        let more = found.len() > self.limit;
        let rows: Vec<T> = found.into_iter().take(self.limit).cloned().collect();
        let next = rows.last().filter(|_| more).map(|last| self.cursor(last));
        Rows { rows, total: all.len(), skipped, next }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::query::fixtures::{leaked, lock};
    use crate::query::locks::LockRow;
    use crate::query::owners::OwnerRow;
    use crate::query::problems::ProblemRow;

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    pub(in crate::query) fn published(locks: Vec<crate::model::types::LockView>) -> Published {
        let mut snapshot = Snapshot::empty();
        for lock in locks {
            snapshot.put(Arc::new(lock));
        }
        Published { snapshot: Arc::new(snapshot), contention: Arc::default() }
    }

    fn seven() -> Published {
        let locks = (0..7).map(|n| {
            let mut lock = lock(&format!("lock:{n}"));
            lock.holders[0].id = format!("client-{}", n % 5).into();
            lock.problems.push(leaked());
            lock
        });
        published(locks.collect())
    }

    pub(in crate::query) fn query<T: Listed>(
        sort: &'static str,
        order: Order,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Query<T>, BadCursor> {
        Query::new(("", Filter::default()), (sort, order), cursor, limit)
    }

    fn all_pages<T: Listed>(sort: &'static str, order: Order, limit: usize) -> Vec<String> {
        let (published, mut cursor, mut ids) = (seven(), None, Vec::new());
        loop {
            let query = query::<T>(sort, order, cursor.as_deref(), limit).unwrap();
            let page = query.rows(&published, NOW);
            assert_eq!(page.skipped, ids.len());
            ids.extend(page.rows.iter().map(|row| format!("{:?}", row.position(sort).id)));
            cursor = page.next;
            if cursor.is_none() {
                assert_eq!(page.total, ids.len());
                return ids;
            }
        }
    }

    fn pages_together_are_the_whole_list<T: Listed>(rows: usize) {
        for sort in T::SORTS {
            for order in [Order::Ascending, Order::Descending] {
                let whole = all_pages::<T>(sort, order, 100);
                assert_eq!(whole.len(), rows, "{sort}");
                for limit in 1..9 {
                    assert_eq!(all_pages::<T>(sort, order, limit), whole, "{sort}");
                }
                let mut reversed = all_pages::<T>(sort, order.reversed(), 2);
                reversed.reverse();
                assert_eq!(reversed, whole, "{sort}");
            }
        }
    }

    #[test]
    fn pages_together_are_the_whole_list_in_either_order() {
        pages_together_are_the_whole_list::<LockRow>(7);
        pages_together_are_the_whole_list::<ProblemRow>(7);
        pages_together_are_the_whole_list::<OwnerRow>(5);
    }

    #[test]
    fn a_cursor_belongs_to_its_list() {
        let (published, order) = (seven(), Order::Descending);
        let first = query::<OwnerRow>("holds", order, None, 2).unwrap();
        let next = first.rows(&published, NOW).next.unwrap();
        assert!(query::<OwnerRow>("holds", order, Some(&next), 2).is_ok());
        assert!(query::<OwnerRow>("holds", order.reversed(), Some(&next), 2).is_err());
        let filtered = Query::<OwnerRow>::new(
            ("x", Filter::parse("x").unwrap()),
            ("holds", order),
            Some(&next),
            2,
        );
        assert!(filtered.is_err());
        for bad in [&*next, "", "x", "e30", "////", "bm90IGpzb24"] {
            assert!(query::<OwnerRow>("age", order, Some(bad), 2).is_err(), "{bad}");
            assert!(query::<ProblemRow>("severity", order, Some(bad), 2).is_err(), "{bad}");
            assert!(query::<LockRow>("age", order, Some(bad), 2).is_err(), "{bad}");
        }
    }
}
