//! One page of a sorted list, and the cursor of the next page.

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

/// The maximum number of rows of a page.
pub const MAX_ROWS: usize = 100;

/// The published state from which lists are made.
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
    /// The words by which the list can be sorted, with the default first.
    const SORTS: &'static [&'static str];
    /// The words by which rows can be grouped, with the default first. A list without groups has one empty word.
    const GROUPINGS: &'static [&'static str] = &[""];
    /// True if the API can report the list's counts by view and by property.
    const FACETS: bool = false;
    /// True if the list reports groups of locks in addition to its rows.
    const GROUPS: bool = false;
    /// True if the list's page also shows problems that have ended.
    const CLEARED: bool = false;
    /// The type whose schema describes a row's JSON.
    type Schema: ToSchema;

    /// Returns every row for the locks that the filter matches, before they are grouped.
    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self>;

    /// Joins rows by one of [`Self::GROUPINGS`].
    #[must_use]
    fn grouped(rows: Vec<Self>, _by: &'static str) -> Vec<Self> {
        rows
    }

    /// Returns the order if the address names none: the most, the worst or the longest first, and names ascending.
    #[must_use]
    fn default_order(sort: &str) -> Order {
        if matches!(sort, "name" | "id") { Order::Ascending } else { Order::Descending }
    }

    fn id(&self) -> RowId<'_>;

    /// Returns the row's position in a list sorted by one of [`Self::SORTS`]. In the default order, smaller positions
    /// come first.
    fn position(&self, sort: &str) -> Position<'_>;
}

/// The identity of a row within its list, which determines the order of rows with the same rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId<'a> {
    /// The lock's name or the client's id.
    pub name: &'a [u8],
    pub deployment: &'a str,
    pub db: u32,
    /// The word for the problem, or an empty text in lists without problems.
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

/// Returns a part of a rank by which larger numbers come first.
pub(super) fn descending(number: u64) -> u64 {
    u64::MAX - number
}

/// A position in a sorted list. It remains valid when its row is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position<'a> {
    pub rank: Rank,
    /// The text by which rows with the same rank are sorted.
    pub text: &'a [u8],
    pub id: RowId<'a>,
}

/// A request for one page of a list.
#[derive(Debug, Clone)]
pub struct Query<T> {
    /// The filter as written, to which cursors are bound.
    pub text: String,
    pub filter: Filter,
    /// One of [`Listed::GROUPINGS`].
    pub by: &'static str,
    /// One of [`Listed::SORTS`].
    pub sort: &'static str,
    pub order: Order,
    /// The last row of the previous page, or the first row of the next page.
    pub(super) edge: Option<Cursor>,
    /// The maximum number of rows of the page.
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
    /// The cursor of the previous page, if there is one.
    pub prev: Option<String>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), total: 0, skipped: 0, next: None, prev: None }
    }
}

/// The error of a malformed cursor, or of a cursor of another list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the cursor does not belong to this filter, sort and order; begin without one")]
pub struct BadCursor;

/// A [`Position`] as written in addresses.
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
    /// True for the rows before the position.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    back: bool,
}

/// Serializes bytes as a base64 string, which is shorter in JSON than an array of numbers.
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
        filter: (&str, Filter),
        arranged: (&'static str, Order),
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Self, BadCursor> {
        Self::grouped(filter, T::GROUPINGS[0], arranged, cursor, limit)
    }

    /// Returns a query for rows in groups.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn grouped(
        (text, filter): (&str, Filter),
        by: &'static str,
        (sort, order): (&'static str, Order),
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Self, BadCursor> {
        let (text, row) = (text.to_owned(), PhantomData);
        let mut query = Self { text, filter, by, sort, order, edge: None, limit, row };
        if let Some(cursor) = cursor {
            let json = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| BadCursor)?;
            let cursor: Cursor = serde_json::from_slice(&json).map_err(|_| BadCursor)?;
            if cursor.list != query.list() {
                return Err(BadCursor);
            }
            query.edge = Some(cursor);
        }
        Ok(query)
    }

    /// Returns the position that the page comes after or before, and true if it comes before it.
    pub(super) fn edge(&self) -> Option<(Position<'_>, bool)> {
        self.edge.as_ref().map(|edge| (edge.position(), edge.back))
    }

    fn list(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (T::NAME, &self.text, self.by, self.sort, self.order).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the cursor of the rows after a row, or before it if `back` is true.
    fn cursor(&self, row: &T, back: bool) -> String {
        let Position { rank, text, id } = row.position(self.sort);
        let cursor = Cursor {
            list: self.list(),
            rank,
            text: text.to_vec(),
            name: id.name.to_vec(),
            deployment: id.deployment.to_owned(),
            db: id.db,
            problem: id.problem.to_owned(),
            back,
        };
        // Serializing numbers and strings cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&cursor).unwrap_or_default())
    }

    /// Compares two positions in the order of the query.
    pub(super) fn compare(&self, a: &Position<'_>, b: &Position<'_>) -> Ordering {
        if self.order == T::default_order(self.sort) { a.cmp(b) } else { b.cmp(a) }
    }

    /// Compares two rows in the order of the query, mostly only by their ranks.
    fn compare_rows(&self, (a_rank, a): &(Rank, &T), (b_rank, b): &(Rank, &T)) -> Ordering {
        if a_rank == b_rank {
            return self.compare(&a.position(self.sort), &b.position(self.sort));
        }
        let order = a_rank.cmp(b_rank);
        if self.order == T::default_order(self.sort) { order } else { order.reverse() }
    }

    /// Returns whether a row comes after the cursor. A backward cursor's own row counts as after it.
    pub(super) fn is_behind_edge(&self, place: &Position<'_>) -> bool {
        let Some(edge) = &self.edge else { return true };
        match self.compare(place, &edge.position()) {
            Ordering::Greater => true,
            Ordering::Equal => edge.back,
            Ordering::Less => false,
        }
    }

    /// Returns the number of rows before the page, if `before_edge` rows are before its edge.
    pub(super) fn first_row(&self, before_edge: usize) -> usize {
        match &self.edge {
            Some(edge) if edge.back => before_edge.saturating_sub(self.limit),
            Some(_) => before_edge,
            None => 0,
        }
    }

    /// Assembles a page. `skipped` is the number of rows before it.
    pub(super) fn page(&self, rows: Vec<T>, skipped: usize, total: usize) -> Rows<T> {
        let more = total > skipped + rows.len();
        let next = rows.last().filter(|_| more).map(|last| self.cursor(last, false));
        let prev = rows.first().filter(|_| skipped > 0).map(|first| self.cursor(first, true));
        Rows { rows, total, skipped, next, prev }
    }

    /// Returns the rows of this page.
    #[must_use]
    pub fn rows(&self, published: &Published, now: SteadyMillis) -> Rows<T> {
        let rows = T::grouped(T::all(published, &self.filter, now), self.by);
        self.page_of(rows.iter())
    }

    /// Returns the rows of this page from all rows, in any order, without sorting all of them.
    pub(super) fn page_of<'a>(&self, rows: impl Iterator<Item = &'a T> + Clone) -> Rows<T>
    where
        T: 'a,
    {
        let goes_back = self.edge.as_ref().is_some_and(|edge| edge.back);
        let (mut total, mut before) = (0, 0);
        let candidates = rows.clone().filter(|row| {
            let behind = self.edge.is_none() || self.is_behind_edge(&row.position(self.sort));
            total += 1;
            before += usize::from(!behind);
            behind != goes_back
        });
        let mut found = self.nearest(candidates, goes_back);
        if goes_back && before < self.limit {
            // The first page is full even if rows before its cursor are gone.
            found = self.nearest(rows, false);
        }
        let rows = found.into_iter().cloned().collect();
        self.page(rows, self.first_row(before), total)
    }

    /// Returns the first rows in the order of the query, or the last ones, up to the size of a page.
    fn nearest<'a>(&self, rows: impl Iterator<Item = &'a T>, last: bool) -> Vec<&'a T> {
        let compare = |a: &(Rank, &T), b: &(Rank, &T)| match last {
            false => self.compare_rows(a, b),
            true => self.compare_rows(b, a),
        };
        let mut nearest: Vec<(Rank, &T)> = Vec::new();
        for row in rows {
            nearest.push((row.position(self.sort).rank, row));
            if nearest.len() == 2 * self.limit {
                nearest.select_nth_unstable_by(self.limit, compare);
                nearest.truncate(self.limit);
            }
        }
        nearest.sort_unstable_by(compare);
        nearest.truncate(self.limit);
        if last {
            nearest.reverse();
        }
        nearest.into_iter().map(|(_, row)| row).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::query::fixtures::{leaked, lock, published};
    use crate::query::locks::LockRow;
    use crate::query::owners::OwnerRow;
    use crate::query::problems::ProblemRow;

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    fn seven() -> Published {
        let locks = (0..7).map(|n| {
            let mut lock = lock(&format!("lock:{n}"));
            lock.holders[0].id = format!("client-{}", n % 5).into();
            lock.problems.push(leaked());
            lock
        });
        published(locks)
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
            // The page before this one is the page that led to it.
            let before = ids.len().saturating_sub(limit);
            assert_eq!(page.prev.is_some(), !ids.is_empty());
            if let Some(prev) = &page.prev {
                let back = self::query::<T>(sort, order, Some(prev), limit).unwrap();
                let back = back.rows(&published, NOW);
                let names = back.rows.iter().map(|row| format!("{:?}", row.position(sort).id));
                assert_eq!(names.collect::<Vec<_>>(), ids[before..], "{sort}");
                assert_eq!((back.skipped, back.next.is_some()), (before, true));
            }
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
    fn the_first_page_is_full_although_rows_before_its_cursor_have_gone() {
        let names = |numbers: std::ops::Range<u32>| {
            let locks = numbers.map(|n| lock(&format!("lock:{n}")));
            published(locks)
        };
        let query = |cursor| query::<LockRow>("name", Order::Ascending, cursor, 3).unwrap();
        let first = query(None).rows(&names(0..7), NOW);
        let second = query(first.next.as_deref()).rows(&names(0..7), NOW);
        let back = query(second.prev.as_deref()).rows(&names(2..7), NOW);
        let shown: Vec<_> = back.rows.iter().map(|row| row.id.name.to_string()).collect();
        assert_eq!(
            (shown, back.skipped),
            (vec!["lock:2".into(), "lock:3".into(), "lock:4".into()], 0)
        );
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
