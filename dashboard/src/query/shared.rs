//! The lists of locks in use: each is sorted and counted once and then follows every change, for all who request it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::broadcast::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::Filter;
use super::blockers::BlockerRow;
use super::contention::ContentionRow;
use super::facets::{FacetIndex, Facets};
use super::incidents::IncidentRow;
use super::list::{Cursor, Listed, MAX_ROWS, Published, Query, Rows};
use super::locks::LockRow;
use super::order::Order;
use super::owners::OwnerRow;
use super::problems::ProblemRow;
use super::recent::Recent;
use super::sorted::{MOVING_MS, SortedLocks};
use crate::clock::SteadyMillis;
use crate::model::actor::Hub;
use crate::model::types::{Delta, Snapshot};

/// The time for which a list is kept after its last use.
const KEEP: Duration = Duration::from_secs(60);
/// The number of locks from which the list that people open first is kept sorted and counted while nobody looks at it.
const MANY_LOCKS: usize = 20_000;
/// The most lists that are kept.
const MAX_LISTS: usize = 128;
/// The most of them that follow every change; the pages of others are picked out of all locks.
const MAX_SORTED: usize = 16;
/// The most pages of a list that are kept.
const MAX_PAGES: usize = 64;

/// A list that pages and the API show.
pub trait Paged: Listed {
    /// Returns the counts that the list's page shows for a query, if it shows some.
    #[must_use]
    fn facets(_query: &Query<Self>, _hub: &Arc<Hub>, _shared: &SharedPages) -> Option<Arc<Facets>> {
        None
    }

    /// Returns the rows of a query as of the latest snapshot.
    #[must_use]
    fn page(query: &Query<Self>, hub: &Arc<Hub>, _shared: &SharedPages) -> Arc<Rows<Self>> {
        Arc::new(query.rows(&Published::latest(hub), SteadyMillis::now()))
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
    fn facets(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Option<Arc<Facets>> {
        Some(shared.list(hub, query).facets(hub))
    }

    fn page(query: &Query<Self>, hub: &Arc<Hub>, shared: &SharedPages) -> Arc<Rows<Self>> {
        if query.limit <= MAX_ROWS {
            shared.list(hub, query).rows(hub, query, SteadyMillis::now())
        } else {
            // A whole list is too large to keep.
            Arc::new(query.rows(&Published::latest(hub), SteadyMillis::now()))
        }
    }
}

/// The filter as written, the sort and the order of a list.
type ListKey = (String, &'static str, Order);

/// The lists of locks in use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SharedPages(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lists: Mutex<HashMap<ListKey, Arc<List>>>,
    sorted: Semaphore,
    /// One list is sorted at a time.
    sorting: Semaphore,
    /// By the filter as written.
    owners: Recent<String, Arc<[OwnerRow]>>,
}

impl Default for SharedPages {
    fn default() -> Self {
        let (lists, owners) = (Mutex::default(), Recent::default());
        let (sorted, sorting) = (Semaphore::new(MAX_SORTED), Semaphore::new(1));
        Self(Arc::new(Inner { lists, sorted, sorting, owners }))
    }
}

impl SharedPages {
    /// Keeps the list that people open first in use if there are many locks, forever.
    pub async fn keep_first(self, hub: Arc<Hub>) {
        let sort = LockRow::SORTS[0];
        let order = (sort, LockRow::default_order(sort));
        // Only a cursor can be wrong.
        let Ok(query) = Query::new(("", Filter::default()), order, None, MAX_ROWS) else { return };
        loop {
            if hub.snapshot().len() >= MANY_LOCKS {
                let (list, hub) = (self.list(&hub, &query), Arc::clone(&hub));
                // It panics if counting does: the next request shows that.
                drop(spawn_blocking(move || list.facets(&hub)).await);
            }
            sleep(KEEP / 2).await;
        }
    }

    /// Returns the list of a query, and keeps it for a while.
    fn list(&self, hub: &Arc<Hub>, query: &Query<LockRow>) -> Arc<List> {
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
        let list = Arc::new(List {
            query: query.clone(),
            used: Mutex::new(Instant::now()),
            state: Mutex::default(),
        });
        tokio::spawn(self.clone().follow(key.clone(), Arc::downgrade(&list), Arc::clone(hub)));
        lists.insert(key, Arc::clone(&list));
        list
    }

    /// Keeps a list for as long as it is in use, and up to date once there is room for one more.
    async fn follow(self, key: ListKey, list: Weak<List>, hub: Arc<Hub>) {
        let sorted = async {
            let _room = self.0.sorted.acquire().await.ok()?;
            pass_on(self.sort(&list, hub).await?, &list).await;
            Some(())
        };
        if list.upgrade().is_some_and(|list| list.query.filter.depends_on_clock()) {
            disuse(&list).await;
        } else {
            tokio::select! {
                _ = sorted => {}
                () = disuse(&list) => {}
            }
        }
        let mut lists = lock(&self.0.lists);
        if lists.get(&key).is_some_and(|kept| std::ptr::eq(Arc::as_ptr(kept), list.as_ptr())) {
            lists.remove(&key);
        }
    }

    /// Sorts a list. Returns the changes since.
    async fn sort(&self, list: &Weak<List>, hub: Arc<Hub>) -> Option<Receiver<Arc<Delta>>> {
        let _turn = self.0.sorting.acquire().await.ok()?;
        let (list, changes) = (list.upgrade()?, hub.changes());
        spawn_blocking(move || list.sort(&hub.snapshot())).await.ok()?;
        Some(changes)
    }
}

/// Waits until nobody has used a list for [`KEEP`], or another has taken its place.
async fn disuse(list: &Weak<List>) {
    let end = || Some(*lock(&list.upgrade()?.used) + KEEP);
    while let Some(end) = end().filter(|end| *end > Instant::now()) {
        sleep_until(end).await;
    }
}

/// Applies changes to a list until another has taken its place, or changes were missed.
async fn pass_on(mut changes: Receiver<Arc<Delta>>, list: &Weak<List>) {
    while let Ok(delta) = changes.recv().await {
        let Some(list) = list.upgrade() else { return };
        lock(&list.state).apply(&list.query, &delta);
    }
}

/// A list in use.
#[derive(Debug)]
struct List {
    /// A query for any of its pages.
    query: Query<LockRow>,
    used: Mutex<Instant>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// All rows; none before they are sorted, and if they depend on the clock.
    sorted: Option<SortedLocks>,
    facets: Option<FacetIndex>,
    /// By edge and limit.
    pages: HashMap<(Option<Cursor>, usize), Page>,
}

#[derive(Debug)]
struct Page {
    seq: u64,
    at: SteadyMillis,
    rows: Arc<Rows<LockRow>>,
}

impl State {
    fn apply(&mut self, query: &Query<LockRow>, delta: &Delta) {
        let now = SteadyMillis::now();
        if let Some(sorted) = &mut self.sorted {
            sorted.apply(query, delta, now);
        }
        if let Some(facets) = &mut self.facets {
            facets.apply(delta, now);
        }
    }
}

impl List {
    fn sort(&self, snapshot: &Snapshot) {
        let sorted = SortedLocks::new(&self.query, snapshot, SteadyMillis::now());
        lock(&self.state).sorted = Some(sorted);
    }

    /// Returns the number of locks by view and by property.
    fn facets(&self, hub: &Hub) -> Arc<Facets> {
        let (snapshot, now) = (hub.snapshot(), SteadyMillis::now());
        let mut state = lock(&self.state);
        let index = state.facets.get_or_insert_with(|| FacetIndex::new(&self.query.text));
        let deltas = index.seq().and_then(|seq| hub.since(seq));
        index.facets(&snapshot, deltas.as_deref(), now)
    }

    /// Returns the rows of a page. Equal queries share them, and they stay the same object while none of them changes.
    fn rows(&self, hub: &Hub, query: &Query<LockRow>, now: SteadyMillis) -> Arc<Rows<LockRow>> {
        let (snapshot, key) = (hub.snapshot(), (query.edge.clone(), query.limit));
        let mut state = lock(&self.state);
        let State { sorted, pages, .. } = &mut *state;
        let before = pages.get(&key);
        let is_current = |page: &&Page| {
            let valid_for = if query.filter.depends_on_clock() { MOVING_MS } else { u64::MAX };
            page.seq == snapshot.seq && now.0 < page.at.0.saturating_add(valid_for)
        };
        if let Some(page) = before.filter(is_current) {
            return Arc::clone(&page.rows);
        }
        let recent = sorted.as_mut().and_then(|list| Some((hub.since(list.seq())?, list)));
        let (seq, rows) = match recent {
            Some((deltas, list)) => {
                for delta in deltas {
                    list.apply(query, &delta, now);
                }
                (list.seq(), list.rows(query))
            }
            None => {
                let matching = snapshot.locks().filter(|lock| query.filter.matches(lock, now));
                (snapshot.seq, query.page_of(matching))
            }
        };
        let before = before.filter(|page| page.rows.is_same(&rows));
        let rows = before.map_or_else(|| Arc::new(rows), |page| Arc::clone(&page.rows));
        if pages.len() >= MAX_PAGES && !pages.contains_key(&key) {
            pages.clear();
        }
        pages.insert(key, Page { seq, at: now, rows: Arc::clone(&rows) });
        rows
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::owner_names::OwnerNames;
    use crate::model::types::Since;
    use crate::query::Filter;
    use crate::query::fixtures::lock as lock_view;

    /// Publishes a snapshot with one more lock, which is held since then.
    fn add(hub: &Hub, name: &str, since: SteadyMillis) {
        let mut view = lock_view(name);
        view.holders[0].since = Since { at: since, exact: true };
        let (view, mut snapshot) = (Arc::new(view), (*hub.snapshot()).clone());
        let before = snapshot.put(Arc::clone(&view));
        snapshot.seq += 1;
        let delta = Delta::new(snapshot.seq, since, vec![view], Vec::new(), vec![before]);
        hub.publish(Arc::new(snapshot), Arc::new(delta));
    }

    fn query(filter: &str) -> Query<LockRow> {
        let order = ("name", Order::Ascending);
        Query::new((filter, Filter::parse(filter).unwrap()), order, None, 2).unwrap()
    }

    /// Waits until the list is sorted as of a snapshot.
    async fn sorted(list: &List, seq: u64) {
        let is_sorted = || lock(&list.state).sorted.as_ref().is_some_and(|it| it.seq() == seq);
        let turn = Duration::from_millis(1);
        let until = async || {
            while !is_sorted() {
                sleep(turn).await;
            }
        };
        tokio::time::timeout(KEEP / 2, until()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_follows_changes_between_requests_until_it_has_not_been_used_for_a_while() {
        let (hub, shared) = (Arc::new(Hub::new(OwnerNames::default())), SharedPages::default());
        let start = SteadyMillis(2_000_000);
        add(&hub, "b", start);
        let all = query("");
        let rows = LockRow::page(&all, &hub, &shared);
        assert_eq!((rows.total, LockRow::facets(&all, &hub, &shared).unwrap().views[0]), (1, 1));
        let list = shared.list(&hub, &all);
        sorted(&list, 1).await;
        add(&hub, "a", start);
        sorted(&list, 2).await;
        assert_eq!(lock(&list.state).facets.as_ref().unwrap().seq(), Some(2));
        let rows = LockRow::page(&all, &hub, &shared);
        assert_eq!((rows.total, rows.rows[0].id.name.as_str()), (2, Some("a")));
        assert!(Arc::ptr_eq(&rows, &LockRow::page(&all, &hub, &shared)));
        let kept = Arc::downgrade(&list);
        drop(list);
        sleep(KEEP / 2).await;
        assert!(kept.upgrade().is_some());
        sleep(KEEP).await;
        assert!(kept.upgrade().is_none(), "nobody has used it for a while");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_of_many_locks_stay_sorted_and_counted_while_nobody_looks() {
        let (hub, shared) = (Arc::new(Hub::new(OwnerNames::default())), SharedPages::default());
        tokio::spawn(shared.clone().keep_first(Arc::clone(&hub)));
        let mut snapshot = (*hub.snapshot()).clone();
        for n in 0..MANY_LOCKS {
            snapshot.put(Arc::new(lock_view(&format!("lock:{n}"))));
        }
        snapshot.seq += 1;
        let at = SteadyMillis(2_000_000);
        let delta = Delta::new(snapshot.seq, at, Vec::new(), Vec::new(), Vec::new());
        sleep(KEEP * 3).await;
        assert!(lock(&shared.0.lists).is_empty(), "there are few locks");
        hub.publish(Arc::new(snapshot), Arc::new(delta));
        sleep(KEEP * 3).await;
        let key = (String::new(), "problems", Order::Descending);
        let list = Arc::clone(&lock(&shared.0.lists)[&key]);
        sorted(&list, 1).await;
        assert_eq!(lock(&list.state).facets.as_ref().unwrap().seq(), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_for_the_disuse_of_others_before_it_is_sorted() {
        let (hub, shared) = (Arc::new(Hub::new(OwnerNames::default())), SharedPages::default());
        add(&hub, "lock", SteadyMillis(2_000_000));
        for n in 0..MAX_SORTED {
            sorted(&shared.list(&hub, &query(&format!("lock {n}"))), 1).await;
        }
        let last = || LockRow::page(&query(""), &hub, &shared);
        assert_eq!(last().total, 1);
        sleep(KEEP / 2).await;
        let list = shared.list(&hub, &query(""));
        assert!(lock(&list.state).sorted.is_none(), "there is no room");
        sleep(KEEP / 2).await;
        assert_eq!(last().total, 1);
        sorted(&list, 1).await;
    }

    #[tokio::test]
    async fn the_list_that_was_not_used_for_longest_leaves_its_place() {
        let (hub, shared) = (Arc::new(Hub::new(OwnerNames::default())), SharedPages::default());
        let first = Arc::downgrade(&shared.list(&hub, &query("")));
        for n in 0..MAX_LISTS {
            assert!(first.upgrade().is_some());
            drop(shared.list(&hub, &query(&format!("lock:{n}"))));
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
            shared.list(&hub, &old).rows(&hub, &old, now).total
        };
        assert_eq!((later(500), later(500 + MOVING_MS - 1), later(500 + MOVING_MS)), (0, 0, 1));
    }
}
