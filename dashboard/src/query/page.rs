//! One page of the locks that match, in order, and the way to the next.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redisson::LockName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Filter;
use crate::clock::SteadyMillis;
use crate::model::types::{Certainty, LockId, LockView, ProblemKind, Snapshot};
use crate::views::{Order, Sort};

/// The most rows of a page.
pub const MAX_ROWS: usize = 100;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Query {
    /// The filter as it was written, which the cursor is bound to.
    pub text: String,
    pub filter: Filter,
    pub sort: Sort,
    /// Which end first.
    pub order: Order,
    /// Behind which row to begin.
    pub after: Option<Position>,
    /// How many rows.
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// The rows, in order.
    pub rows: Vec<Arc<LockView>>,
    /// How many match in all.
    pub total: usize,
    /// How many of them stand before the first row.
    pub skipped: usize,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

impl Rows {
    /// Whether they are the very same views as those.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.total, self.skipped, self.rows.len())
            == (other.total, other.skipped, other.rows.len())
            && self.rows.iter().zip(&other.rows).all(|(mine, theirs)| Arc::ptr_eq(mine, theirs))
    }
}

/// A cursor that is none, or belongs to another list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the cursor does not belong to this filter, sort and order; begin without one")]
pub struct BadCursor;

/// A place in a sorted list. It stays valid when the row it was made from is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    rank: (u64, u64),
    text: Vec<u8>,
    id: LockId,
}

#[derive(Serialize, Deserialize)]
struct Cursor {
    /// Of which list.
    list: u64,
    rank: (u64, u64),
    text: String,
    deployment: String,
    db: u32,
    name: String,
}

/// By numbers first, the smaller one being shown first in the usual order.
fn rank(sort: Sort, lock: &LockView) -> (u64, u64) {
    let since = lock.held_since().map_or(u64::MAX, |since| since.at.0);
    match sort {
        Sort::Problems => (severity(lock), since),
        Sort::Age => (since, 0),
        Sort::Ttl => {
            (lock.ttl_ms.map_or(u64::MAX, |ttl| lock.observed_at.0.saturating_add(ttl)), 0)
        }
        Sort::Name | Sort::Holder => (0, 0),
    }
}

fn severity(lock: &LockView) -> u64 {
    // What is sure comes before what is suspected, and then the worst.
    let of = |problem: ProblemKind, certainty: Certainty| match certainty {
        Certainty::Sure => problem as u64,
        Certainty::Suspected => ProblemKind::ALL.len() as u64 + problem as u64,
    };
    // What somebody has in hand does not stand at the top.
    let open = lock.problems.iter().filter(|p| p.acknowledged.is_none());
    open.map(|p| of(p.problem, p.certainty)).min().unwrap_or(u64::MAX)
}

fn text(sort: Sort, lock: &LockView) -> &[u8] {
    match sort {
        Sort::Holder => lock.holders.first().map_or(b"", |holder| holder.id.as_bytes()),
        Sort::Problems | Sort::Name | Sort::Age | Sort::Ttl => b"",
    }
}

fn by_name(a: &LockId, b: &LockId) -> Ordering {
    (&a.name, &a.deployment, a.db).cmp(&(&b.name, &b.deployment, b.db))
}

/// A lock's place, borrowed.
pub(super) struct Place<'a> {
    rank: (u64, u64),
    text: &'a [u8],
    id: &'a LockId,
}

impl Place<'_> {
    fn cmp(&self, other: &Place<'_>) -> Ordering {
        self.rank
            .cmp(&other.rank)
            .then_with(|| self.text.cmp(other.text))
            .then_with(|| by_name(self.id, other.id))
    }
}

impl Position {
    fn place(&self) -> Place<'_> {
        Place { rank: self.rank, text: &self.text, id: &self.id }
    }
}

impl Query {
    /// Whether larger keys come first. Ages run against the instants that they are ranked by.
    fn reversed(&self) -> bool {
        match self.sort {
            Sort::Problems | Sort::Age => self.order == Order::Ascending,
            Sort::Name | Sort::Holder | Sort::Ttl => self.order == Order::Descending,
        }
    }

    fn list(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.text, self.sort, self.order).hash(&mut hasher);
        hasher.finish()
    }

    /// Continues where a page before ended.
    ///
    /// # Errors
    /// When the text is no cursor, or one of another list.
    pub fn after(self, cursor: &str) -> Result<Self, BadCursor> {
        let json = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| BadCursor)?;
        let cursor: Cursor = serde_json::from_slice(&json).map_err(|_| BadCursor)?;
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| BadCursor);
        if cursor.list != self.list() {
            return Err(BadCursor);
        }
        let id = LockId {
            deployment: cursor.deployment.into(),
            db: cursor.db,
            name: LockName::new(bytes(&cursor.name)?).map_err(|_| BadCursor)?,
        };
        let after = Position { rank: cursor.rank, text: bytes(&cursor.text)?, id };
        Ok(Self { after: Some(after), ..self })
    }

    pub(super) fn cursor(&self, last: &LockView) -> String {
        let cursor = Cursor {
            list: self.list(),
            rank: rank(self.sort, last),
            text: URL_SAFE_NO_PAD.encode(text(self.sort, last)),
            deployment: last.id.deployment.to_string(),
            db: last.id.db,
            name: URL_SAFE_NO_PAD.encode(last.id.name.as_bytes()),
        };
        // Numbers and strings: this cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&cursor).unwrap_or_default())
    }

    /// Where a lock stands.
    pub(super) fn place<'a>(&self, lock: &'a LockView) -> Place<'a> {
        Place { rank: rank(self.sort, lock), text: text(self.sort, lock), id: &lock.id }
    }

    /// Which of two places comes first.
    pub(super) fn compare(&self, a: &Place<'_>, b: &Place<'_>) -> Ordering {
        if self.reversed() { b.cmp(a) } else { a.cmp(b) }
    }

    /// Whether a place is behind the row at which a page before ended.
    pub(super) fn is_behind(&self, place: &Place<'_>, after: &Position) -> bool {
        self.compare(place, &after.place()) == Ordering::Greater
    }

    /// The rows of this page as of a snapshot.
    #[must_use]
    pub fn rows(&self, snapshot: &Snapshot, now: SteadyMillis) -> Rows {
        let mut total = 0;
        let mut found: Vec<Place<'_>> = Vec::new();
        for lock in snapshot.locks().filter(|lock| self.filter.matches(lock, now)) {
            total += 1;
            let place = self.place(lock);
            if self.after.as_ref().is_none_or(|after| self.is_behind(&place, after)) {
                found.push(place);
            }
        }
        let skipped = total - found.len();
        let limit = self.limit;
        let more = found.len() > limit;
        if more {
            found.select_nth_unstable_by(limit, |a, b| self.compare(a, b));
            found.truncate(limit);
        }
        found.sort_unstable_by(|a, b| self.compare(a, b));
        let rows: Vec<Arc<LockView>> =
            found.iter().filter_map(|place| snapshot.get(place.id)).cloned().collect();
        let next = rows.last().filter(|_| more).map(|last| self.cursor(last));
        Rows { rows, total, skipped, next }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::types::Since;
    use crate::query::tests::{acknowledged, leaked, lock};

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    fn snapshot(locks: Vec<LockView>) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        for lock in locks {
            snapshot.put(Arc::new(lock));
        }
        snapshot
    }

    fn query(sort: Sort, order: Order, limit: usize) -> Query {
        let filter = Filter::default();
        Query { text: String::new(), filter, sort, order, after: None, limit }
    }

    fn aged(name: &str, at: u64) -> LockView {
        let mut lock = lock(name);
        lock.holders[0].since = Since { at: SteadyMillis(at), exact: true };
        lock
    }

    fn names(rows: &Rows) -> Vec<String> {
        rows.rows.iter().map(|lock| lock.id.name.to_string()).collect()
    }

    #[test]
    fn problems_come_first_then_the_longest_held() {
        let bad = LockView { problems: vec![leaked()], ..aged("bad", 900) };
        let snapshot = snapshot(vec![aged("young", 500), aged("old", 100), bad]);
        let usual = query(Sort::Problems, Order::usual(Sort::Problems), 10);
        assert_eq!(names(&usual.rows(&snapshot, NOW)), ["bad", "old", "young"]);
        let in_hand = LockView { problems: vec![acknowledged()], ..aged("in hand", 900) };
        let known = self::snapshot(vec![aged("young", 500), in_hand]);
        assert_eq!(names(&usual.rows(&known, NOW)), ["young", "in hand"]);
        let by_age = query(Sort::Age, Order::usual(Sort::Age), 10);
        assert_eq!(names(&by_age.rows(&snapshot, NOW)), ["old", "young", "bad"]);
        let by_name = query(Sort::Name, Order::Descending, 2);
        let rows = by_name.rows(&snapshot, NOW);
        assert_eq!((names(&rows), rows.total), (vec!["young".into(), "old".into()], 3));
    }

    #[test]
    fn a_cursor_belongs_to_its_list() {
        let snapshot = snapshot((0..9).map(|i| lock(&format!("l{i}"))).collect());
        let first = query(Sort::Name, Order::Ascending, 3);
        let next = first.rows(&snapshot, NOW).next.unwrap();
        assert!(first.clone().after(&next).is_ok());
        assert_eq!(query(Sort::Age, Order::Ascending, 3).after(&next).unwrap_err(), BadCursor);
        let other = Query { text: "x".into(), ..first.clone() };
        assert_eq!(other.after(&next).unwrap_err(), BadCursor);
        for junk in ["", "x", "e30", "////", "bm90IGpzb24"] {
            assert_eq!(first.clone().after(junk).unwrap_err(), BadCursor);
        }
    }

    fn any_sort() -> impl Strategy<Value = Sort> {
        prop::sample::select(Sort::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn pages_together_are_the_whole_list(
            ages in prop::collection::vec((0_u64..5, 0_u64..5), 0..40),
            sort in any_sort(), ascending: bool, limit in 1_usize..10,
        ) {
            let order = if ascending { Order::Ascending } else { Order::Descending };
            let locks: Vec<LockView> = ages.iter().enumerate().map(|(i, (since, ttl))| LockView {
                ttl_ms: Some(*ttl), ..aged(&format!("lock:{i}"), *since)
            }).collect();
            let snapshot = snapshot(locks);
            let whole = query(sort, order, 100).rows(&snapshot, NOW);
            let mut paged = Vec::new();
            let mut next = query(sort, order, limit);
            loop {
                let rows = next.rows(&snapshot, NOW);
                prop_assert_eq!(rows.skipped, paged.len());
                prop_assert_eq!(rows.total, whole.total);
                paged.extend(names(&rows));
                let Some(cursor) = rows.next else { break };
                next = query(sort, order, limit).after(&cursor).unwrap();
            }
            prop_assert_eq!(paged, names(&whole));
            prop_assert!(whole.next.is_none());
        }
    }
}
