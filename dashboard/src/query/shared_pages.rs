//! The pages of lists that several readers share. They are made once for each snapshot.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::blockers::BlockerRow;
use super::contention::ContentionRow;
use super::facets::Facets;
use super::incidents::IncidentRow;
use super::list::{Cursor, Listed, MAX_ROWS, Published, Query, Rows};
use super::locks::LockRow;
use super::order::Order;
use super::owners::OwnerRow;
use super::problems::ProblemRow;
use super::recent_results::Recent;
use super::threads::Threads;
use crate::clock::SteadyMillis;
use crate::model::actor::Hub;
use crate::model::types::Snapshot;

/// The time for which a list is stored after its last use.
const KEEP: Duration = Duration::from_secs(60);
/// The maximum number of lists that are stored.
const MAX_LISTS: usize = 128;
/// The maximum number of pages of a list that are stored.
const MAX_PAGES: usize = 64;
/// The time for which a page of locks is valid if its filter depends on the clock, milliseconds.
const MOVING_MS: u64 = 1_000;

/// A page of a list, and the list's counts for its query, if it has any.
#[derive(Debug)]
pub struct Counted<T> {
    pub rows: Arc<Rows<T>>,
    pub facets: Option<Arc<Facets>>,
}

/// A list that pages and the API show.
pub trait Paged: Listed {
    /// Returns the rows of a query as of the latest snapshot.
    #[must_use]
    fn page(
        query: &Query<Self>,
        hub: &Arc<Hub>,
        _shared: &SharedPages,
        _threads: Threads,
    ) -> Arc<Rows<Self>> {
        Arc::new(query.rows(&Published::latest(hub), SteadyMillis::now()))
    }

    /// Returns the rows with the list's counts.
    #[must_use]
    fn counted(
        query: &Query<Self>,
        hub: &Arc<Hub>,
        shared: &SharedPages,
        threads: Threads,
    ) -> Counted<Self> {
        Counted { rows: Self::page(query, hub, shared, threads), facets: None }
    }
}

impl Paged for OwnerRow {
    fn page(
        query: &Query<Self>,
        hub: &Arc<Hub>,
        shared: &SharedPages,
        threads: Threads,
    ) -> Arc<Rows<Self>> {
        let owners = shared.0.owners.get(&query.text, || {
            Self::processes(&hub.snapshot(), &query.filter, SteadyMillis::now(), threads).into()
        });
        Arc::new(query.page_of(Self::joined(&owners, query.by).iter()))
    }
}
impl Paged for BlockerRow {}
impl Paged for IncidentRow {}
impl Paged for ProblemRow {}
impl Paged for ContentionRow {}

impl Paged for LockRow {
    fn page(
        query: &Query<Self>,
        hub: &Arc<Hub>,
        shared: &SharedPages,
        threads: Threads,
    ) -> Arc<Rows<Self>> {
        let (snapshot, now) = (hub.snapshot(), SteadyMillis::now());
        if query.limit <= MAX_ROWS {
            shared.list(query).rows(&snapshot, query, now, threads)
        } else {
            // A whole list is too large to be stored.
            Arc::new(query.pick(&snapshot, now, threads))
        }
    }

    fn counted(
        query: &Query<Self>,
        hub: &Arc<Hub>,
        shared: &SharedPages,
        threads: Threads,
    ) -> Counted<Self> {
        shared.list(query).counted(&hub.snapshot(), query, SteadyMillis::now(), threads)
    }
}

/// The filter as written, the sort and the order of a list.
type ListKey = (String, &'static str, Order);

/// The lists of locks in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedPages(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    lists: Mutex<HashMap<ListKey, Arc<List>>>,
    /// The owners by the filter as written.
    owners: Recent<String, Arc<[OwnerRow]>>,
}

impl SharedPages {
    /// Returns the list of a query, and stores it for a while.
    fn list(&self, query: &Query<LockRow>) -> Arc<List> {
        let key = (query.text.clone(), query.sort, query.order);
        let mut lists = self.0.lists.lock();
        if let Some(list) = lists.get(&key) {
            *list.used.lock() = Instant::now();
            return Arc::clone(list);
        }
        if lists.len() >= MAX_LISTS {
            let oldest = lists.iter().min_by_key(|(_, list)| *list.used.lock());
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                lists.remove(&key);
            }
        }
        let list = Arc::new(List::new());
        tokio::spawn(self.clone().keep(key.clone(), Arc::downgrade(&list)));
        lists.insert(key, Arc::clone(&list));
        list
    }

    /// Stores a list as long as it is in use.
    async fn keep(self, key: ListKey, list: Weak<List>) {
        let end = || Some(*list.upgrade()?.used.lock() + KEEP);
        while let Some(end) = end().filter(|end| *end > Instant::now()) {
            sleep_until(end).await;
        }
        let mut lists = self.0.lists.lock();
        if lists.get(&key).is_some_and(|kept| std::ptr::eq(Arc::as_ptr(kept), list.as_ptr())) {
            lists.remove(&key);
        }
    }
}

/// A list in use.
#[derive(Debug)]
struct List {
    used: Mutex<Instant>,
    facets: Mutex<Option<CachedResult<Facets>>>,
    /// Each page has a separate mutex, so that a page whose counts are stored waits for no other.
    pages: Mutex<HashMap<PageKey, Arc<Mutex<Page>>>>,
}

/// The edge and the limit of a page.
type PageKey = (Option<Cursor>, usize);

/// A result that was made from a snapshot.
#[derive(Debug)]
struct CachedResult<T> {
    seq: u64,
    at: SteadyMillis,
    it: Arc<T>,
}

impl<T> CachedResult<T> {
    fn new(it: Arc<T>, snapshot: &Snapshot, at: SteadyMillis) -> Self {
        Self { seq: snapshot.seq, at, it }
    }

    /// Returns the result if it is still correct.
    fn current(
        &self,
        snapshot: &Snapshot,
        query: &Query<LockRow>,
        now: SteadyMillis,
    ) -> Option<Arc<T>> {
        let valid_for = if query.filter.depends_on_clock() { MOVING_MS } else { u64::MAX };
        let is_current = self.seq == snapshot.seq && now < self.at.plus(valid_for);
        is_current.then(|| Arc::clone(&self.it))
    }
}

impl List {
    fn new() -> Self {
        let used = Mutex::new(Instant::now());
        Self { used, facets: Mutex::default(), pages: Mutex::default() }
    }

    /// Returns a page with the counts of the list, made in one pass unless the counts are stored.
    fn counted(
        &self,
        snapshot: &Snapshot,
        query: &Query<LockRow>,
        at: SteadyMillis,
        threads: Threads,
    ) -> Counted<LockRow> {
        let slot = self.slot(query);
        let (mut page, mut counts) = (slot.lock(), self.facets.lock());
        let kept = counts.as_ref().and_then(|made| made.current(snapshot, query, at));
        if let Some(facets) = kept {
            drop(counts);
            let rows = current_rows(&mut page, snapshot, query, at, threads);
            return Counted { rows, facets: Some(facets) };
        }
        let (rows, facets) = query.pick_and_count(snapshot, at, threads);
        let facets = Arc::new(facets);
        *counts = Some(CachedResult::new(Arc::clone(&facets), snapshot, at));
        Counted { rows: keep(&mut page, rows, snapshot, at), facets: Some(facets) }
    }

    /// Returns the rows of a page.
    fn rows(
        &self,
        snapshot: &Snapshot,
        query: &Query<LockRow>,
        at: SteadyMillis,
        threads: Threads,
    ) -> Arc<Rows<LockRow>> {
        current_rows(&mut self.slot(query).lock(), snapshot, query, at, threads)
    }

    /// Returns the slot in which the page of a query is stored.
    fn slot(&self, query: &Query<LockRow>) -> Arc<Mutex<Page>> {
        let (key, mut pages) = ((query.edge.clone(), query.limit), self.pages.lock());
        if pages.len() >= MAX_PAGES && !pages.contains_key(&key) {
            pages.clear();
        }
        Arc::clone(pages.entry(key).or_default())
    }
}

/// The rows of a page, or `None` before its first request.
type Page = Option<CachedResult<Rows<LockRow>>>;

/// Returns the rows of a page. They are made again if the stored ones are from an earlier snapshot.
fn current_rows(
    page: &mut Page,
    snapshot: &Snapshot,
    query: &Query<LockRow>,
    at: SteadyMillis,
    threads: Threads,
) -> Arc<Rows<LockRow>> {
    let kept = page.as_ref().and_then(|made| made.current(snapshot, query, at));
    kept.unwrap_or_else(|| keep(page, query.pick(snapshot, at, threads), snapshot, at))
}

/// Stores the rows of a page. They remain the same object while none of them changes.
fn keep(
    page: &mut Page,
    rows: Rows<LockRow>,
    snapshot: &Snapshot,
    at: SteadyMillis,
) -> Arc<Rows<LockRow>> {
    let before = page.take().filter(|made| made.it.is_same(&rows));
    let rows = before.map_or_else(|| Arc::new(rows), |made| made.it);
    *page = Some(CachedResult::new(Arc::clone(&rows), snapshot, at));
    rows
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::model::owner_names::OwnerNames;
    use crate::model::types::{Delta, Since};
    use crate::query::Filter;
    use crate::query::fixtures::lock as lock_view;

    /// Publishes a snapshot with one more lock, which is held since that instant.
    fn add(hub: &Hub, name: &str, since: SteadyMillis) {
        let mut view = lock_view(name);
        view.holders[0].since = Since { at: since, exact: true };
        let (view, mut snapshot) = (Arc::new(view), (*hub.snapshot()).clone());
        snapshot.put(Arc::clone(&view));
        snapshot.seq += 1;
        let delta = Delta::new(snapshot.seq, since, Box::new([view]), Vec::new());
        hub.publish(Arc::new(snapshot), Arc::new(delta));
    }

    fn query(filter: &str) -> Query<LockRow> {
        let order = ("name", Order::Ascending);
        Query::new((filter, Filter::parse(filter).unwrap()), order, None, 2).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_shares_its_pages_until_it_has_not_been_used_for_a_while() {
        let (hub, shared) = (Arc::new(Hub::new(OwnerNames::default())), SharedPages::default());
        let start = SteadyMillis(2_000_000);
        add(&hub, "b", start);
        let all = query("");
        let counted = || LockRow::counted(&all, &hub, &shared, Threads::One).facets.unwrap();
        let rows = LockRow::page(&all, &hub, &shared, Threads::One);
        assert_eq!((rows.total, counted().views[0]), (1, 1));
        assert!(Arc::ptr_eq(&counted(), &counted()));
        add(&hub, "a", start);
        let rows = LockRow::page(&all, &hub, &shared, Threads::One);
        assert_eq!((rows.total, rows.rows[0].id.name.as_str()), (2, Some("a")));
        assert_eq!(counted().views[0], 2);
        assert!(Arc::ptr_eq(&rows, &LockRow::page(&all, &hub, &shared, Threads::One)));
        let list = Arc::downgrade(&shared.list(&all));
        sleep(KEEP / 2).await;
        assert!(list.upgrade().is_some());
        sleep(KEEP).await;
        assert!(list.upgrade().is_none(), "nobody has used it for a while");
    }

    #[tokio::test]
    async fn the_list_that_was_not_used_for_longest_leaves_its_place() {
        let shared = SharedPages::default();
        let first = Arc::downgrade(&shared.list(&query("")));
        for n in 0..MAX_LISTS {
            assert!(first.upgrade().is_some());
            drop(shared.list(&query(&format!("lock:{n}"))));
        }
        assert_eq!((shared.0.lists.lock().len(), first.upgrade().is_none()), (MAX_LISTS, true));
    }

    #[tokio::test]
    async fn a_page_whose_filter_depends_on_the_clock_is_made_again_after_a_second() {
        let (hub, shared) = (Arc::new(Hub::new(OwnerNames::default())), SharedPages::default());
        let start = SteadyMillis(2_000_000);
        add(&hub, "young", start);
        let old = query("age:>1s");
        let later = |ms: u64| {
            let now = SteadyMillis(start.0 + ms);
            shared.list(&old).rows(&hub.snapshot(), &old, now, Threads::One).total
        };
        assert_eq!((later(500), later(500 + MOVING_MS - 1), later(500 + MOVING_MS)), (0, 0, 1));
    }
}
