//! Pages of locks, shared by all readers of the same page, and the sorted lists behind those that are open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::blockers::BlockerRow;
use super::contention::ContentionRow;
use super::facets::{FacetIndex, Facets};
use super::incidents::IncidentRow;
use super::list::{Cursor, Listed, MAX_ROWS, Published, Query, Rows};
use super::locks::LockRow;
use super::order::Order;
use super::owners::OwnerRow;
use super::problems::ProblemRow;
use super::sorted::{MOVING_MS, SortedLocks};
use crate::clock::SteadyMillis;
use crate::model::actor::Hub;

/// The most pages kept.
const MAX_PAGES: usize = 512;
/// The most filters whose counts are kept.
const MAX_FACETS: usize = 16;

/// A list that pages and the API show.
pub trait Paged: Listed {
    /// Returns the counts that the list's page shows for a query, if it shows some.
    #[must_use]
    fn facets(_query: &Query<Self>, _hub: &Hub, _shared: &SharedPages) -> Option<Arc<Facets>> {
        None
    }

    /// Returns the rows of a query as of the latest snapshot.
    #[must_use]
    fn page(query: &Query<Self>, hub: &Hub, _shared: &SharedPages) -> Arc<Rows<Self>> {
        Arc::new(query.rows(&Published::latest(hub), SteadyMillis::now()))
    }
}

impl Paged for OwnerRow {}
impl Paged for BlockerRow {}
impl Paged for IncidentRow {}
impl Paged for ProblemRow {}
impl Paged for ContentionRow {}

impl Paged for LockRow {
    fn facets(query: &Query<Self>, hub: &Hub, shared: &SharedPages) -> Option<Arc<Facets>> {
        Some(shared.facets(hub, query))
    }

    fn page(query: &Query<Self>, hub: &Hub, shared: &SharedPages) -> Arc<Rows<Self>> {
        if query.limit <= MAX_ROWS {
            shared.rows(hub, query)
        } else {
            // A whole list is too large to keep.
            Arc::new(query.rows(&Published::latest(hub), SteadyMillis::now()))
        }
    }
}

/// A handle that keeps a list sorted for as long as it exists.
pub type SortedList = Arc<Mutex<SortedLocks>>;

/// The filter as written, the sort and the order of a list.
type ListKey = (String, &'static str, Order);

/// The latest pages and the sorted lists.
#[derive(Debug, Default)]
pub struct SharedPages {
    facets: Mutex<HashMap<String, Arc<Mutex<FacetIndex>>>>,
    pages: Mutex<HashMap<PageKey, Page>>,
    lists: Mutex<HashMap<ListKey, Weak<Mutex<SortedLocks>>>>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PageKey {
    list: ListKey,
    edge: Option<Cursor>,
    limit: usize,
}

#[derive(Debug)]
struct Page {
    seq: u64,
    at: SteadyMillis,
    rows: Arc<Rows<LockRow>>,
}

fn list_key(query: &Query<LockRow>) -> ListKey {
    (query.text.clone(), query.sort, query.order)
}

impl SharedPages {
    /// Keeps the list of a query sorted for as long as the returned handle exists.
    #[must_use]
    pub fn keep_sorted(&self, query: &Query<LockRow>) -> SortedList {
        let key = list_key(query);
        let mut lists = lock(&self.lists);
        if let Some(list) = lists.get(&key).and_then(Weak::upgrade) {
            return list;
        }
        lists.retain(|_, list| list.strong_count() > 0);
        let list = SortedList::default();
        lists.insert(key, Arc::downgrade(&list));
        list
    }

    /// Returns the number of locks by view and by property, for the filter of a query.
    #[must_use]
    pub fn facets(&self, hub: &Hub, query: &Query<LockRow>) -> Arc<Facets> {
        let (snapshot, now) = (hub.snapshot(), SteadyMillis::now());
        let index = {
            let mut facets = lock(&self.facets);
            if facets.len() >= MAX_FACETS && !facets.contains_key(&query.text) {
                // Those of pages that are open are soon there again.
                facets.clear();
            }
            let index = facets.entry(query.text.clone());
            Arc::clone(index.or_insert_with(|| Arc::new(Mutex::new(FacetIndex::new(&query.text)))))
        };
        let mut index = lock(&index);
        let deltas = index.seq().and_then(|seq| hub.since(seq));
        index.facets(&snapshot, deltas.as_deref(), now)
    }

    /// Returns the rows of a query. Equal queries share them, and they stay the same object while none of them changes.
    #[must_use]
    pub fn rows(&self, hub: &Hub, query: &Query<LockRow>) -> Arc<Rows<LockRow>> {
        let (published, now) = (Published::latest(hub), SteadyMillis::now());
        let snapshot = &published.snapshot;
        let key = PageKey { list: list_key(query), edge: query.edge.clone(), limit: query.limit };
        let depends_on_clock = query.filter.depends_on_clock();
        let is_current = |page: &&Page| {
            let outdated = depends_on_clock && now.0 >= page.at.0.saturating_add(MOVING_MS);
            page.seq == snapshot.seq && !outdated
        };
        if let Some(page) = lock(&self.pages).get(&key).filter(is_current) {
            return Arc::clone(&page.rows);
        }
        let list = lock(&self.lists).get(&key.list).and_then(Weak::upgrade);
        let (seq, rows) = match list {
            Some(list) => {
                let mut list = lock(&list);
                let deltas = list.seq().and_then(|seq| hub.since(seq));
                list.update(query, snapshot, deltas.as_deref(), now);
                (list.seq().unwrap_or(snapshot.seq), list.rows(query))
            }
            None => (snapshot.seq, query.rows(&published, now)),
        };
        let mut pages = lock(&self.pages);
        let before = pages.get(&key).filter(|page| page.rows.is_same(&rows));
        let rows = before.map_or_else(|| Arc::new(rows), |page| Arc::clone(&page.rows));
        if pages.len() >= MAX_PAGES && before.is_none() {
            pages.clear();
        }
        pages.insert(key, Page { seq, at: now, rows: Arc::clone(&rows) });
        rows
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
