//! The pages of lists that several readers share: they are made once for each snapshot.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

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
use super::recent::Recent;
use crate::clock::SteadyMillis;
use crate::model::actor::Hub;
use crate::model::types::Snapshot;

/// The time for which a list is kept after its last use.
const KEEP: Duration = Duration::from_secs(60);
/// The most lists that are kept.
const MAX_LISTS: usize = 128;
/// The most pages of a list that are kept.
const MAX_PAGES: usize = 64;
/// The least number of locks for which a thread is started to make counts.
const WORTH_A_THREAD: usize = 50_000;
/// The time for which a page of locks is valid if its filter depends on the clock, milliseconds.
const MOVING_MS: u64 = 1_000;

/// A page of a list, and the counts that the list shows for its query, if it shows some.
#[derive(Debug)]
pub struct Counted<T> {
    pub rows: Arc<Rows<T>>,
    pub facets: Option<Arc<Facets>>,
}

/// A list that pages and the API show.
pub trait Paged: Listed {
    /// Returns the rows of a query as of the latest snapshot.
    #[must_use]
    fn page(query: &Query<Self>, hub: &Arc<Hub>, _shared: &SharedPages) -> Arc<Rows<Self>> {
        Arc::new(query.rows(&Published::latest(hub), SteadyMillis::now()))
    }

    /// Returns the same with the list's counts.
    #[must_use]
    fn counted(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Counted<Self> {
        Counted { rows: Self::page(query, hub, shared), facets: None }
    }

    /// Returns the same. Of many locks, another thread makes the counts while this one makes the rows.
    #[must_use]
    fn counted_soon(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Counted<Self> {
        Self::counted(query, hub, shared)
    }
}

impl Paged for OwnerRow {
    fn page(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Arc<Rows<Self>> {
        let owners = shared.0.owners.get(&query.text, || {
            Self::all(&Published::latest(hub), &query.filter, SteadyMillis::now()).into()
        });
        Arc::new(query.page_of(Self::joined(&owners, query.by).iter()))
    }
}
impl Paged for BlockerRow {}
impl Paged for IncidentRow {}
impl Paged for ProblemRow {}
impl Paged for ContentionRow {}

impl Paged for LockRow {
    fn page(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Arc<Rows<Self>> {
        let (snapshot, now) = (hub.snapshot(), SteadyMillis::now());
        if query.limit <= MAX_ROWS {
            shared.list(query).rows(&snapshot, query, now)
        } else {
            // A whole list is too large to keep.
            Arc::new(query.pick(&snapshot, now))
        }
    }

    fn counted(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Counted<Self> {
        let (list, snapshot, now) = (shared.list(query), hub.snapshot(), SteadyMillis::now());
        let rows = list.rows(&snapshot, query, now);
        Counted { rows, facets: Some(list.facets(&snapshot, query, now)) }
    }

    fn counted_soon(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Counted<Self> {
        let (list, snapshot, now) = (shared.list(query), hub.snapshot(), SteadyMillis::now());
        let facets = || list.facets(&snapshot, query, now);
        if snapshot.len() < WORTH_A_THREAD || list.has_facets(&snapshot, query, now) {
            return Self::counted(query, hub, shared);
        }
        std::thread::scope(|scope| {
            // Without a thread, this one makes them too.
            let other = std::thread::Builder::new().spawn_scoped(scope, facets).ok();
            let rows = list.rows(&snapshot, query, now);
            let facets = match other {
                Some(other) => other.join().unwrap_or_else(|panic| resume_unwind(panic)),
                None => facets(),
            };
            Counted { rows, facets: Some(facets) }
        })
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
    /// By the filter as written.
    owners: Recent<String, Arc<[OwnerRow]>>,
}

impl SharedPages {
    /// Returns the list of a query, and keeps it for a while.
    fn list(&self, query: &Query<LockRow>) -> Arc<List> {
        let key = (query.text.clone(), query.sort, query.order);
        let mut lists = lock(&self.0.lists);
        if let Some(list) = lists.get(&key) {
            *lock(&list.used) = Instant::now();
            return Arc::clone(list);
        }
        if lists.len() >= MAX_LISTS {
            let oldest = lists.iter().min_by_key(|(_, list)| *lock(&list.used));
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                lists.remove(&key);
            }
        }
        let list = Arc::new(List::new());
        tokio::spawn(self.clone().keep(key.clone(), Arc::downgrade(&list)));
        lists.insert(key, Arc::clone(&list));
        list
    }

    /// Keeps a list for as long as it is in use.
    async fn keep(self, key: ListKey, list: Weak<List>) {
        let end = || Some(*lock(&list.upgrade()?.used) + KEEP);
        while let Some(end) = end().filter(|end| *end > Instant::now()) {
            sleep_until(end).await;
        }
        let mut lists = lock(&self.0.lists);
        if lists.get(&key).is_some_and(|kept| std::ptr::eq(Arc::as_ptr(kept), list.as_ptr())) {
            lists.remove(&key);
        }
    }
}

/// A list in use.
#[derive(Debug)]
struct List {
    used: Mutex<Instant>,
    facets: Mutex<Option<Made<Facets>>>,
    /// Each has a mutex of its own, so that no page waits for another.
    pages: Mutex<HashMap<PageKey, Arc<Slot>>>,
}

/// The edge and the limit of a page.
type PageKey = (Option<Cursor>, usize);

/// The place of a page; none before its first request.
type Slot = Mutex<Option<Made<Rows<LockRow>>>>;

/// What was made of a snapshot.
#[derive(Debug)]
struct Made<T> {
    seq: u64,
    at: SteadyMillis,
    it: Arc<T>,
}

impl<T> Made<T> {
    /// Returns it if it is still right.
    fn current(&self, seq: u64, query: &Query<LockRow>, now: SteadyMillis) -> Option<Arc<T>> {
        let valid_for = if query.filter.depends_on_clock() { MOVING_MS } else { u64::MAX };
        let is_current = self.seq == seq && now.0 < self.at.0.saturating_add(valid_for);
        is_current.then(|| Arc::clone(&self.it))
    }
}

impl List {
    fn new() -> Self {
        let used = Mutex::new(Instant::now());
        Self { used, facets: Mutex::default(), pages: Mutex::default() }
    }

    /// Returns true if its counts are made, or are being made.
    fn has_facets(&self, snapshot: &Snapshot, query: &Query<LockRow>, at: SteadyMillis) -> bool {
        self.facets.try_lock().map_or(true, |made| {
            made.as_ref().is_some_and(|made| made.current(snapshot.seq, query, at).is_some())
        })
    }

    /// Returns the number of locks by view and by property.
    fn facets(&self, snapshot: &Snapshot, query: &Query<LockRow>, at: SteadyMillis) -> Arc<Facets> {
        let mut made = lock(&self.facets);
        let current = made.as_ref().and_then(|made| made.current(snapshot.seq, query, at));
        current.unwrap_or_else(|| {
            let it = Arc::new(Facets::new(&query.text, snapshot, at));
            *made = Some(Made { seq: snapshot.seq, at, it: Arc::clone(&it) });
            it
        })
    }

    /// Returns the rows of a page. Equal queries share them, and they stay the same object while none of them changes.
    fn rows(
        &self,
        snapshot: &Snapshot,
        query: &Query<LockRow>,
        at: SteadyMillis,
    ) -> Arc<Rows<LockRow>> {
        let page = self.slot(query);
        let mut made = lock(&page);
        if let Some(rows) = made.as_ref().and_then(|made| made.current(snapshot.seq, query, at)) {
            return rows;
        }
        let rows = query.pick(snapshot, at);
        let before = made.take().filter(|made| made.it.is_same(&rows));
        let it = before.map_or_else(|| Arc::new(rows), |made| made.it);
        *made = Some(Made { seq: snapshot.seq, at, it: Arc::clone(&it) });
        it
    }

    /// Returns the place in which the page of a query is kept.
    fn slot(&self, query: &Query<LockRow>) -> Arc<Slot> {
        let (key, mut pages) = ((query.edge.clone(), query.limit), lock(&self.pages));
        if pages.len() >= MAX_PAGES && !pages.contains_key(&key) {
            pages.clear();
        }
        Arc::clone(pages.entry(key).or_default())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::model::owner_names::OwnerNames;
    use crate::model::types::{Delta, Since};
    use crate::query::Filter;
    use crate::query::fixtures::lock as lock_view;

    /// Publishes a snapshot with one more lock, which is held since then.
    fn add(hub: &Hub, name: &str, since: SteadyMillis) {
        let mut view = lock_view(name);
        view.holders[0].since = Since { at: since, exact: true };
        let (view, mut snapshot) = (Arc::new(view), (*hub.snapshot()).clone());
        snapshot.put(Arc::clone(&view));
        snapshot.seq += 1;
        let delta = Delta::new(snapshot.seq, since, vec![view], Vec::new());
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
        let counted = || LockRow::counted(&all, &hub, &shared).facets.unwrap();
        let rows = LockRow::page(&all, &hub, &shared);
        assert_eq!((rows.total, counted().views[0]), (1, 1));
        assert!(Arc::ptr_eq(&counted(), &counted()));
        add(&hub, "a", start);
        let rows = LockRow::page(&all, &hub, &shared);
        assert_eq!((rows.total, rows.rows[0].id.name.as_str()), (2, Some("a")));
        assert_eq!(counted().views[0], 2);
        assert!(Arc::ptr_eq(&rows, &LockRow::page(&all, &hub, &shared)));
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
        assert_eq!((lock(&shared.0.lists).len(), first.upgrade().is_none()), (MAX_LISTS, true));
    }

    #[tokio::test]
    async fn a_page_whose_filter_depends_on_the_clock_is_made_again_after_a_second() {
        let (hub, shared) = (Arc::new(Hub::new(OwnerNames::default())), SharedPages::default());
        let start = SteadyMillis(2_000_000);
        add(&hub, "young", start);
        let old = query("age:>1s");
        let later = |ms: u64| {
            let now = SteadyMillis(start.0 + ms);
            shared.list(&old).rows(&hub.snapshot(), &old, now).total
        };
        assert_eq!((later(500), later(500 + MOVING_MS - 1), later(500 + MOVING_MS)), (0, 0, 1));
    }
}
