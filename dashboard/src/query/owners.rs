//! The clients that hold locks or wait for them, each separately, by service or by host.

use std::collections::{BTreeMap, HashMap, hash_map};
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::list::{Listed, Position, Published, RowId, descending};
use super::pass::Pass;
use super::{Filter, Threads};
use crate::clock::SteadyMillis;
use crate::model::types::{
    Certainty, ClientView, Entry, HolderView, LockView, PastHoldView, Section, Since, Snapshot,
    WaiterView, client_of,
};

/// A client, or all clients of a service or host, with its holds and waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Owner)]
pub struct OwnerRow {
    pub deployment: Arc<str>,
    /// `instance`, `service` or `host`: the kind of `id`.
    pub by: &'static str,
    /// The client's uuid, or the whole holder id if that contains none; the name of the service or host, empty if it is
    /// not known.
    pub id: String,
    /// The number of its holds. Each reader of a lock counts.
    pub holds: usize,
    /// The number of its holds of locks with unacknowledged problems.
    pub with_problems: usize,
    /// True if one of those problems is certain.
    #[serde(skip)]
    #[schema(ignore)]
    pub certain: bool,
    /// The number of locks that it waits for, as far as waiters are known by name.
    pub waits: usize,
    /// The beginning of its oldest hold; null if it only waits.
    pub oldest: Option<Since>,
    /// The number of its known processes: Redisson instances, and workers of agents.
    pub processes: usize,
    /// The number of those that are gone.
    pub gone: usize,
    /// The process of an instance, if one of its holds or waits shows it; a verified one takes precedence.
    pub client: Option<ClientView>,
    /// The reason why one of its processes is only claimed, as a clause.
    #[serde(skip)]
    #[schema(ignore)]
    pub claimed: Option<&'static str>,
}

/// Returns whether a lock has an unacknowledged problem that is certain.
fn has_certain(lock: &LockView) -> bool {
    let mut open = lock.problems.iter().filter(|problem| problem.acknowledged.is_none());
    open.any(|problem| problem.certainty == Certainty::Certain)
}

/// A client with one of its processes, as far as the process is known: its service, host and pid.
type Process<'a> = (&'a str, &'a str, Option<(Option<&'a str>, Option<&'a str>, Option<u32>)>);

impl OwnerRow {
    #[must_use]
    pub fn new(deployment: &Arc<str>, id: &str) -> Self {
        Self {
            deployment: Arc::clone(deployment),
            by: Self::GROUPINGS[0],
            id: id.to_owned(),
            holds: 0,
            with_problems: 0,
            certain: false,
            waits: 0,
            oldest: None,
            processes: 0,
            gone: 0,
            client: None,
            claimed: None,
        }
    }

    /// Adds the hold at that index of the lock's holders.
    pub fn add(&mut self, lock: &LockView, holder: usize) {
        let holder = &lock.holders[holder];
        self.holds += 1;
        self.with_problems += usize::from(lock.has_open_problem());
        self.certain |= has_certain(lock);
        self.started(Some(holder.since));
        self.identified(holder.client.as_deref());
    }

    fn started(&mut self, since: Option<Since>) {
        let begins = |since: &Since| (since.at, !since.exact);
        let earliest = self.oldest.into_iter().chain(since).min_by_key(begins);
        self.oldest = earliest;
    }

    fn identified(&mut self, client: Option<&ClientView>) {
        let is_verified =
            |client: Option<&ClientView>| client.is_some_and(|it| it.verified == Some(true));
        if self.client.is_none() || (is_verified(client) && !is_verified(self.client.as_ref())) {
            self.client = client.cloned();
        }
    }

    /// Returns the name of a process's group.
    fn group(&self, by: &str) -> &str {
        let client = self.client.as_ref();
        match by {
            "service" => client.and_then(ClientView::service).unwrap_or_default(),
            "host" => client.and_then(ClientView::host).unwrap_or_default(),
            _ => &self.id,
        }
    }

    /// Returns a row for each process that holds locks or waits for them.
    #[must_use]
    pub fn processes(
        snapshot: &Snapshot,
        filter: &Filter,
        now: SteadyMillis,
        threads: Threads,
    ) -> Vec<Self> {
        let found = threads.share(snapshot, |section| Processes::of(section, filter, now));
        let first = found.into_iter().reduce(Processes::joined);
        first.map(Processes::into_rows).unwrap_or_default()
    }

    /// Returns a row for each group of processes.
    #[must_use]
    pub fn joined(processes: &[Self], by: &'static str) -> Vec<Self> {
        let mut rows: BTreeMap<(&str, &str), Self> = BTreeMap::new();
        for process in processes {
            let id = process.group(by);
            let row = rows.entry((&process.deployment, id));
            let new = || Self { by, ..Self::new(&process.deployment, id) };
            row.or_insert_with(new).join(process);
        }
        rows.into_values().collect()
    }

    /// Adds the holds and waits of another row.
    fn add_all(&mut self, other: &Self) {
        self.holds += other.holds;
        self.with_problems += other.with_problems;
        self.certain |= other.certain;
        self.waits += other.waits;
        self.started(other.oldest);
    }

    /// Adds a process.
    fn join(&mut self, process: &Self) {
        self.add_all(process);
        let Some(client) = &process.client else { return };
        self.processes += 1;
        self.gone += usize::from(client.alive == Some(false));
        self.claimed = self.claimed.or(client.unverified_because);
        if self.by == Self::GROUPINGS[0] {
            self.identified(Some(client));
        }
    }
}

impl Listed for OwnerRow {
    type Schema = Self;
    const NAME: &'static str = "owners";
    const SORTS: &'static [&'static str] = &["holds", "problems", "age", "waits", "id"];
    const GROUPINGS: &'static [&'static str] = &["instance", "service", "host"];

    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self> {
        Self::processes(&published.snapshot, filter, now, Threads::One)
    }

    fn grouped(processes: Vec<Self>, by: &'static str) -> Vec<Self> {
        Self::joined(&processes, by)
    }

    fn id(&self) -> RowId<'_> {
        RowId { name: self.id.as_bytes(), deployment: &self.deployment, db: 0, problem: "" }
    }

    fn position(&self, sort: &str) -> Position<'_> {
        let most = |n: usize| descending(n as u64);
        let oldest = self.oldest.map_or(u64::MAX, |oldest| oldest.at.0);
        let rank = match sort {
            "problems" => (most(self.with_problems), most(self.holds)),
            "age" => (oldest, 0),
            "waits" => (most(self.waits), most(self.holds)),
            "id" => (0, 0),
            _ => (most(self.holds), oldest),
        };
        Position { rank, text: b"", id: Listed::id(self) }
    }
}

/// The locks of a class and their owners.
#[derive(Debug)]
struct Class<'s> {
    /// Any lock of the class; it stands for all in what the class has in common.
    lock: &'s LockView,
    has_waiters: bool,
    has_problems: bool,
    /// True if the beginnings of the holds are exact.
    exact: bool,
    /// The rows of their owners, one for each holder.
    rows: Vec<usize>,
    /// The number of locks that were added.
    locks: usize,
    /// The beginning of the oldest hold, if the locks have one holder each.
    oldest: Option<SteadyMillis>,
}

impl<'s> Class<'s> {
    fn new(lock: &'s Arc<LockView>) -> Self {
        let has_waiters = !lock.waiters.is_empty();
        let has_problems = lock.has_open_problem();
        let exact = lock.holders.first().is_some_and(|holder| holder.since.exact);
        Self { lock, has_waiters, has_problems, exact, rows: Vec::new(), locks: 0, oldest: None }
    }

    fn add(&mut self, since: Option<SteadyMillis>) {
        self.locks += 1;
        self.oldest = self.oldest.into_iter().chain(since).min();
    }

    /// Adds one hold of each lock to those of an owner.
    fn add_to(&self, owner: &mut OwnerRow) {
        owner.holds += self.locks;
        owner.with_problems += if self.has_problems { self.locks } else { 0 };
        owner.certain |= self.locks > 0 && has_certain(self.lock);
        owner.started(self.oldest.map(|at| Since { at, exact: self.exact }));
    }
}

/// The locks of one client.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnerLocks {
    pub owner: OwnerRow,
    /// The locks that it has held for the longest time, oldest first.
    pub locks: Vec<Arc<LockView>>,
    /// The number of locks that it holds.
    pub total: usize,
    /// The locks that it waits for, each with the index of its wait.
    pub waits: Vec<(Arc<LockView>, usize)>,
    /// Its latest past holds.
    pub past: Vec<(Arc<LockView>, PastHoldView)>,
}

impl OwnerLocks {
    /// Returns the locks of a client, or of one of its threads. At most `most` locks are listed.
    #[must_use]
    pub fn new(snapshot: &Snapshot, deployment: &Arc<str>, id: &str, most: usize) -> Self {
        let (mut owner, mut held) = (OwnerRow::new(deployment, id), Vec::new());
        let (mut waits, mut past) = (Vec::new(), Vec::new());
        let is_mine = |holder: &str| client_of(holder) == id || holder == id;
        let all = Filter::default();
        let mut pass = Pass::of_terms(&all, SteadyMillis(0)).by_owner();
        for part in snapshot.parts() {
            pass.part(part, Class::new, |class, _, entry| {
                let lock = class.lock;
                if lock.id.deployment != *deployment {
                    return;
                }
                if !lock.history.past.is_empty() {
                    let mine = entry.lock.history.past.iter().filter(|hold| is_mine(&hold.id));
                    past.extend(mine.map(|hold| (Arc::clone(entry.lock), hold.clone())));
                }
                let is_of_client = |holder: &HolderView| client_of(&holder.id) == client_of(id);
                match lock.holders.as_slice() {
                    [] => {}
                    [holder] if client_of(&holder.id) == id => {
                        if class.locks == 0 {
                            owner.identified(holder.client.as_deref());
                        }
                        class.add(entry.since());
                        held.push((entry.since(), held.len(), entry.lock));
                    }
                    holders if holders.iter().any(is_of_client) => {
                        let holders = entry.lock.holders.iter().enumerate();
                        let mut mine = holders.filter(|(_, holder)| is_mine(&holder.id)).peekable();
                        if mine.peek().is_some() {
                            held.push((entry.since(), held.len(), entry.lock));
                        }
                        mine.for_each(|(i, _)| owner.add(entry.lock, i));
                    }
                    _ => {}
                }
                if !lock.waiters.is_empty() {
                    let waiters = entry.lock.waiters.iter().enumerate();
                    let mine = waiters.filter(|(_, waiter)| is_mine(&waiter.id));
                    waits.extend(mine.map(|(i, _)| (Arc::clone(entry.lock), i)));
                }
            });
        }
        pass.into_values().for_each(|class| class.add_to(&mut owner));
        owner.waits = waits.len();
        let total = held.len();
        let by_age = |(since, found, _): &(Option<SteadyMillis>, usize, _)| (*since, *found);
        if total > most {
            held.select_nth_unstable_by_key(most, by_age);
            held.truncate(most);
        }
        held.sort_unstable_by_key(by_age);
        let locks = held.into_iter().map(|(_, _, lock)| Arc::clone(lock)).collect();
        Self { owner, locks, total, waits, past }
    }
}

/// The rows of processes.
#[derive(Debug, Default)]
struct Processes<'a> {
    places: HashMap<Process<'a>, usize>,
    rows: Vec<OwnerRow>,
}

impl<'a> Processes<'a> {
    /// Returns the processes that hold matching locks of a section, or wait for them.
    fn of(section: Section<'a>, filter: &Filter, now: SteadyMillis) -> Self {
        let mut processes = Self::default();
        let mut pass = Pass::new(filter, now).by_owner();
        for part in section.parts() {
            pass.part(part, Class::new, |class, _, entry| {
                if class.has_waiters {
                    // Other locks of the class may have other waiters.
                    return processes.add(entry.lock);
                }
                if class.locks == 0 {
                    class.rows = processes.rows_of(class.lock);
                }
                if class.rows.len() == 1 {
                    class.add(entry.since());
                } else {
                    class.locks += 1;
                    processes.started(&class.rows, entry);
                }
            });
        }
        for class in pass.into_values() {
            for row in &class.rows {
                class.add_to(&mut processes.rows[*row]);
            }
        }
        processes
    }

    /// Returns the rows of the holders of a lock, one for each holder.
    fn rows_of(&mut self, lock: &'a LockView) -> Vec<usize> {
        let mut rows = Vec::with_capacity(lock.holders.len());
        for HolderView { id, client, .. } in &lock.holders {
            let row = self.row(&lock.id.deployment, id, client.as_deref());
            self.rows[row].identified(client.as_deref());
            rows.push(row);
        }
        rows
    }

    /// Records the beginnings of a lock's holds in the rows of its holders. Most holds are younger than the oldest
    /// known one, which is visible from the entry alone.
    fn started(&mut self, rows: &[usize], entry: Entry<'_>) {
        let first = entry.since();
        let is_older = |row: &usize| {
            let known = self.rows[*row].oldest;
            known.is_none_or(|known| first.is_some_and(|first| first <= known.at))
        };
        if rows.iter().any(is_older) {
            for (row, holder) in rows.iter().zip(&entry.lock.holders) {
                self.rows[*row].started(Some(holder.since));
            }
        }
    }

    /// Adds the processes of another section.
    fn joined(mut self, other: Self) -> Self {
        let Self { places, rows } = other;
        let mut rows: Vec<Option<OwnerRow>> = rows.into_iter().map(Some).collect();
        for (process, place) in places {
            let Some(row) = rows[place].take() else { continue };
            match self.places.entry(process) {
                hash_map::Entry::Occupied(known) => {
                    let known = &mut self.rows[*known.get()];
                    known.add_all(&row);
                    known.identified(row.client.as_ref());
                }
                hash_map::Entry::Vacant(new) => {
                    new.insert(self.rows.len());
                    self.rows.push(row);
                }
            }
        }
        self
    }

    /// Returns the index of a process's row.
    fn row(
        &mut self,
        deployment: &'a Arc<str>,
        id: &'a str,
        client: Option<&'a ClientView>,
    ) -> usize {
        let id = client_of(id);
        let process = client.map(|client| (client.service(), client.host(), client.pid));
        *self.places.entry((&**deployment, id, process)).or_insert_with(|| {
            self.rows.push(OwnerRow::new(deployment, id));
            self.rows.len() - 1
        })
    }

    /// Adds the holds and waits of a lock.
    fn add(&mut self, lock: &'a LockView) {
        let deployment = &lock.id.deployment;
        for (i, HolderView { id, client, .. }) in lock.holders.iter().enumerate() {
            let row = self.row(deployment, id, client.as_deref());
            self.rows[row].add(lock, i);
        }
        for WaiterView { id, client, .. } in &lock.waiters {
            let client = client.as_deref();
            let row = self.row(deployment, id, client);
            self.rows[row].waits += 1;
            self.rows[row].identified(client);
        }
    }

    /// Returns the rows in the order of the processes.
    fn into_rows(self) -> Vec<OwnerRow> {
        let mut places: Vec<(Process<'_>, usize)> = self.places.into_iter().collect();
        places.sort_unstable();
        let mut rows: Vec<Option<OwnerRow>> = self.rows.into_iter().map(Some).collect();
        places.into_iter().filter_map(|(_, place)| rows[place].take()).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::query::fixtures::{acknowledged, leaked, lock, published};

    /// Returns the result of [`OwnerRow::all`] by looking at each lock.
    pub(in crate::query) fn all_by_looking(
        snapshot: &Snapshot,
        filter: &Filter,
        now: SteadyMillis,
    ) -> Vec<OwnerRow> {
        let mut processes = Processes::default();
        let matching = snapshot.locks().filter(|lock| filter.matches(lock, now));
        matching.for_each(|lock| processes.add(lock));
        processes.into_rows()
    }

    /// Returns the result of [`OwnerLocks::new`] by looking at each lock.
    pub(in crate::query) fn owner_by_looking(
        snapshot: &Snapshot,
        deployment: &Arc<str>,
        id: &str,
        most: usize,
    ) -> OwnerLocks {
        let is_mine = |holder: &str| client_of(holder) == id || holder == id;
        let mut owner = OwnerRow::new(deployment, id);
        let (mut locks, mut waits, mut past) = (Vec::new(), Vec::new(), Vec::new());
        for lock in snapshot.locks().filter(|lock| lock.id.deployment == *deployment) {
            let mut holds = false;
            for (i, holder) in lock.holders.iter().enumerate() {
                if is_mine(&holder.id) {
                    owner.add(lock, i);
                    holds = true;
                }
            }
            locks.extend(holds.then(|| Arc::clone(lock)));
            for (i, waiter) in lock.waiters.iter().enumerate() {
                if is_mine(&waiter.id) {
                    owner.waits += 1;
                    waits.push((Arc::clone(lock), i));
                }
            }
            let held = lock.history.past.iter().filter(|hold| is_mine(&hold.id));
            past.extend(held.map(|hold| (Arc::clone(lock), hold.clone())));
        }
        locks.sort_by_key(|lock: &Arc<LockView>| lock.held_since().map(|since| since.at));
        let total = locks.len();
        locks.truncate(most);
        OwnerLocks { owner, locks, total, waits, past }
    }

    #[test]
    fn holds_and_waits_of_a_client_are_added_up() {
        let mut snapshot = Snapshot::empty();
        let mut awaited = lock("awaited");
        let mine = client_of(&awaited.holders[0].id).to_owned();
        let theirs = "aaaaaaaa-9152-4c83-822a-67ee2f116a79";
        awaited.waiters.push(WaiterView {
            id: format!("{theirs}:7").into(),
            since: Since { at: SteadyMillis(1), exact: true },
            attempts: None,
            client: None,
        });
        let mut old = lock("old");
        old.holders[0].since = Since { at: SteadyMillis(5), exact: false };
        snapshot.put(Arc::new(awaited));
        snapshot.put(Arc::new(old));
        let published = Published { snapshot: Arc::new(snapshot), contention: Arc::default() };
        let rows = OwnerRow::all(&published, &Filter::default(), SteadyMillis(2_000_000));
        let rows = OwnerRow::grouped(rows, "instance");
        let of = |id: &str| rows.iter().find(|row| row.id == id).unwrap();
        assert_eq!((of(&mine).holds, of(&mine).waits), (2, 0));
        assert_eq!(of(&mine).oldest, Some(Since { at: SteadyMillis(5), exact: false }));
        assert_eq!((of(theirs).holds, of(theirs).waits, of(theirs).oldest), (0, 1, None));
        assert!(of(&mine).position("holds") < of(theirs).position("holds"));
        assert!(of(theirs).position("waits") < of(&mine).position("waits"));
    }

    #[test]
    fn problems_that_are_acknowledged_do_not_count() {
        let with = |name: &str, problem| {
            let mut view = lock(name);
            view.problems.push(problem);
            view
        };
        let known = || with("a", acknowledged());
        let counted = |locks: Vec<LockView>| {
            let published = published(locks);
            let rows = OwnerRow::all(&published, &Filter::default(), SteadyMillis(2_000_000));
            let deployment = &rows[0].deployment;
            let one = OwnerLocks::new(&published.snapshot, deployment, &rows[0].id, 9).owner;
            [&rows[0], &one].map(|row| (row.holds, row.with_problems, row.certain))
        };
        assert_eq!(counted(vec![known()]), [(1, 0, false); 2]);
        assert_eq!(counted(vec![known(), with("b", leaked())]), [(2, 1, true); 2]);
    }

    #[test]
    fn groups_add_up_to_all_holds_and_waits() {
        let of = |name: &str, host: &str, pid: u32, alive: Option<bool>| ClientView {
            name: Some(name.to_owned()),
            host: Some(host.into()),
            pid: Some(pid),
            alive,
            ..ClientView::default()
        };
        let agent = "285475da-9152-4c83-822a-67ee2f116a79";
        let held = |lock_name: &str, id: String, client: Option<ClientView>| {
            let mut view = lock(lock_name);
            view.holders[0].id = id.into();
            view.holders[0].client = client.map(Box::new);
            view
        };
        let mut awaited =
            held("a", format!("{agent}:1"), Some(of("payments-0", "web-7", 11, Some(true))));
        awaited.waiters.push(WaiterView {
            id: format!("{agent}:7").into(),
            since: Since { at: SteadyMillis(1), exact: true },
            attempts: None,
            client: Some(Box::new(of("etl", "web-7", 12, None))),
        });
        let other = "aaaaaaaa-9152-4c83-822a-67ee2f116a79:1".to_owned();
        let locks = [
            awaited,
            held("b", format!("{agent}:2"), Some(of("payments-0", "web-7", 11, Some(true)))),
            held("c", other, Some(of("payments-1", "web-8", 13, Some(false)))),
            held("d", "bbbbbbbb-9152-4c83-822a-67ee2f116a79:1".to_owned(), None),
        ];
        let rows = OwnerRow::all(&published(locks), &Filter::default(), SteadyMillis(2_000_000));
        let by = |by: &'static str| -> Vec<_> {
            let rows = OwnerRow::grouped(rows.clone(), by).into_iter();
            rows.map(|row| (row.id, row.processes, row.gone, row.holds, row.waits)).collect()
        };
        let expected = |rows: &[(&str, usize, usize, usize, usize)]| -> Vec<_> {
            let rows =
                rows.iter().map(|(id, ps, gone, h, w)| ((*id).to_owned(), *ps, *gone, *h, *w));
            rows.collect()
        };
        assert_eq!(
            by("service"),
            expected(&[("", 0, 0, 1, 0), ("etl", 1, 0, 0, 1), ("payments", 2, 1, 3, 0)])
        );
        assert_eq!(
            by("host"),
            expected(&[("", 0, 0, 1, 0), ("web-7", 2, 0, 2, 1), ("web-8", 1, 1, 1, 0)])
        );
        let instances = by("instance");
        assert_eq!((instances.len(), instances[0].1), (3, 2));
    }

    #[test]
    fn a_holder_without_a_uuid_is_its_own_client() {
        assert_eq!(client_of("odd"), "odd");
        assert_eq!(client_of("a:b"), "a:b");
        let uuid = "285475da-9152-4c83-822a-67ee2f116a79";
        assert_eq!(client_of(&format!("{uuid}:52:write")), uuid);
    }
}
