//! Incidents. The same problem of the same owner, or the same deadlock, is one row for any number of locks, and for any
//! number of servers of a red lock.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use redisson::LockName;
use serde::Serialize;
use utoipa::ToSchema;

use super::Filter;
use super::list::{Listed, Position, Published, RowId, descending};
use super::problems::severity;
use crate::clock::SteadyMillis;
use crate::model::types::{
    Certainty, HolderView, LockId, LockView, ProblemKind, ProblemView, client_of,
};
use crate::schema::schema_of;

/// The maximum number of locks that an incident names in JSON.
const MAX_NAMES: usize = 100;

/// A problem that several locks may share.
#[derive(Debug, Clone)]
pub struct IncidentRow {
    /// The deployments with the key of the incident on each. There are several only if it has red locks.
    places: BTreeSet<IncidentId>,
    pub problem: ProblemKind,
    pub certainty: Certainty,
    /// The beginning of its first problem.
    pub since: SteadyMillis,
    /// The locks, oldest problem first.
    pub locks: Vec<Arc<LockView>>,
    /// The number of its locks, including those that the filter of a list leaves out.
    pub whole: usize,
    /// True if every one of its problems is acknowledged.
    pub acknowledged: bool,
    /// The minimum number of waiters of all its locks. Those of a red lock wait on all of its servers and count once.
    pub waiting: u64,
}

/// A deployment, and the key of an incident that distinguishes it from others of the same problem there.
type IncidentId = (Arc<str>, String);

#[derive(Serialize, ToSchema)]
#[schema(as = Incident)]
struct IncidentJson<'a> {
    /// It distinguishes the incident from others of its deployment and problem.
    key: &'a str,
    problem: ProblemKind,
    certainty: Certainty,
    #[serde(serialize_with = "crate::clock::as_wall")]
    since: SteadyMillis,
    /// The first of its deployments.
    deployment: &'a str,
    /// The deployments of its locks: several if it has red locks.
    deployments: Vec<&'a str>,
    /// The client that holds the locks, or null if they have none, or several.
    owner: Option<&'a str>,
    /// The owner's service and host, if they are known.
    owner_name: Option<String>,
    /// True if the owner's agent signed them, false if they are only claimed; null if that is not checked.
    owner_verified: Option<bool>,
    /// The number of its locks, of which a red lock counts on each of its servers.
    count: usize,
    /// The first 100 of its locks.
    locks: Vec<&'a LockId>,
    /// The minimum number of waiters of all its locks. Those of a red lock count once.
    waiting: u64,
    /// True if every one of its problems is acknowledged.
    acknowledged: bool,
    /// The evidence of its first lock, a sentence.
    evidence: Option<&'a str>,
    /// The next step, a sentence.
    advice: &'a str,
}

schema_of!(IncidentRow => IncidentJson<'_>);

impl IncidentRow {
    /// Returns the problem of its first lock.
    #[must_use]
    pub fn first(&self) -> (&Arc<LockView>, &ProblemView) {
        let lock = &self.locks[0];
        let problem = lock.problems.iter().find(|problem| problem.problem == self.problem);
        (lock, problem.unwrap_or(&lock.problems[0]))
    }

    /// Returns the common beginning of all names up to a separator, or `None` for a single lock.
    #[must_use]
    pub fn prefix(&self) -> Option<String> {
        let mut names = self.locks.iter().map(|lock| lock.id.name.as_bytes());
        let first = names.next()?;
        let common = names.fold(first, |common, name| {
            let same = common.iter().zip(name).take_while(|(a, b)| a == b).count();
            &common[..same]
        });
        if self.locks.len() < 2 {
            return None;
        }
        let separator = common.iter().rposition(|byte| b":/.-_".contains(byte))?;
        Some(String::from_utf8_lossy(&common[..=separator]).into_owned())
    }

    /// Returns whether the locks may be released together. In a deadlock, the release of one of them is enough. An
    /// expired hold is over, and its lock may have a new holder without this problem.
    #[must_use]
    pub fn may_be_released(&self) -> bool {
        !matches!(self.problem, ProblemKind::Deadlock | ProblemKind::Expired)
    }

    /// Returns the holders of its first lock that have the problem.
    #[must_use]
    pub fn first_holders(&self) -> &[HolderView] {
        holders(&self.locks[0], self.problem)
    }

    /// Returns the id of the client that holds all of its locks.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        let mut owners = self.locks.iter().map(|lock| match holders(lock, self.problem) {
            [first, rest @ ..] => {
                let client = client_of(&first.id);
                rest.iter().all(|other| client_of(&other.id) == client).then_some(client)
            }
            [] => None,
        });
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }

    /// Returns the number of holders, by processes if these are known, and otherwise by threads and grants. Returns
    /// zero if the holders do not have the problem.
    #[must_use]
    pub fn holders(&self) -> usize {
        let mut all = BTreeSet::new();
        for lock in &self.locks {
            let holders = holders(lock, self.problem).iter();
            all.extend(holders.map(|holder| {
                process(holder).unwrap_or_else(|| match &lock.red {
                    // A client of Redisson has a different uuid on each server, but the same thread.
                    Some(red) => format!("red {} {}", red.group, holder.thread()),
                    None => holder.id.to_string(),
                })
            }));
        }
        all.len()
    }

    /// Returns the first of its deployments, and the key that distinguishes the incident from others with the same
    /// problem there.
    #[must_use]
    pub fn place(&self) -> (&str, &str) {
        // Each incident is created with a place.
        self.places.first().map_or(("", ""), |(deployment, key)| (deployment, key))
    }

    /// Returns the deployments of its locks.
    pub fn deployments(&self) -> impl Iterator<Item = &str> {
        let all = self.places.iter().map(|(deployment, _)| &**deployment);
        all.collect::<BTreeSet<_>>().into_iter()
    }

    /// Returns whether it is the incident with that problem and key on that deployment.
    #[must_use]
    pub fn is_named(&self, deployment: &str, problem: ProblemKind, key: &str) -> bool {
        let mut places = self.places.iter();
        self.problem == problem && places.any(|place| &*place.0 == deployment && place.1 == key)
    }

    /// Returns whether it is the same incident as an earlier one, which may have had other servers of its red locks.
    #[must_use]
    pub fn continues(&self, earlier: &Self) -> bool {
        self.problem == earlier.problem && !self.places.is_disjoint(&earlier.places)
    }

    /// Returns whether all of its locks are one red lock on several servers.
    #[must_use]
    pub fn is_one_red_lock(&self) -> bool {
        let mut parts = self.locks.iter().map(|lock| red_part(lock, self.problem));
        let first = parts.next().flatten();
        self.locks.len() > 1 && first.is_some() && parts.all(|part| part == first)
    }

    /// Returns the current incident with that key, with all of its locks, if there is one.
    #[must_use]
    pub fn find(
        published: &Published,
        deployment: &str,
        problem: ProblemKind,
        key: &str,
        now: SteadyMillis,
    ) -> Option<Self> {
        let all = Self::all(published, &Filter::default(), now);
        all.into_iter().find(|incident| incident.is_named(deployment, problem, key))
    }

    /// Creates the incident of one problem of one lock.
    #[must_use]
    pub fn new(lock: &Arc<LockView>, problem: &ProblemView) -> Self {
        Self {
            places: BTreeSet::from([(Arc::clone(&lock.id.deployment), key(lock, problem))]),
            problem: problem.problem,
            certainty: problem.certainty,
            since: problem.since,
            locks: vec![Arc::clone(lock)],
            whole: 1,
            acknowledged: problem.acknowledged.is_some(),
            waiting: 0,
        }
    }

    /// Adds another part of the same incident.
    fn add(&mut self, other: Self) {
        self.places.extend(other.places);
        self.since = self.since.min(other.since);
        if other.certainty == Certainty::Certain {
            self.certainty = Certainty::Certain;
        }
        self.acknowledged &= other.acknowledged;
        self.locks.extend(other.locks);
        self.whole += other.whole;
    }

    /// Returns the part of the incident that a filter matches, if there is one.
    fn matching(self, filter: &Filter, now: SteadyMillis) -> Option<Self> {
        let matching = self.locks.iter().filter(|lock| filter.matches(lock, now));
        let mut parts = matching.filter_map(|lock| {
            let problem = lock.problems.iter().find(|problem| problem.problem == self.problem)?;
            Some(Self::new(lock, problem))
        });
        let mut row = parts.next()?;
        parts.for_each(|part| row.add(part));
        Some(Self { whole: self.whole, ..row })
    }

    /// Sorts its locks, oldest problem first, and counts their waiters.
    fn complete(&mut self) {
        let since = |lock: &LockView| {
            let mut found = lock.problems.iter().filter(|p| p.problem == self.problem);
            found.next().map(|problem| problem.since)
        };
        self.locks.sort_by(|a, b| {
            let (one, other) = (&a.id, &b.id);
            (since(a), &one.name, &one.deployment).cmp(&(since(b), &other.name, &other.deployment))
        });
        self.waiting = self.waiting_for(self.locks.iter().map(|lock| &**lock));
    }

    /// Returns the least number of waiters for some of its locks. Those of a red lock wait on all of its servers and count
    /// once.
    #[must_use]
    pub fn waiting_for<'a>(&self, locks: impl Iterator<Item = &'a LockView>) -> u64 {
        let mut of_red: HashMap<RedPart<'_>, u64> = HashMap::new();
        let mut waiting = 0;
        for lock in locks {
            match red_part(lock, self.problem) {
                Some(part) => {
                    let most = of_red.entry(part).or_default();
                    *most = lock.waiting.max(*most);
                }
                None => waiting += lock.waiting,
            }
        }
        waiting + of_red.values().sum::<u64>()
    }
}

/// A red lock and the thread that has the problem: the group of its servers, the database, the name and the thread, which
/// is empty if the lock is free. They are the same on each server.
type RedPart<'a> = (&'a str, u32, &'a LockName, &'a str);

/// Returns the red lock of which a lock is the part on one server, if it is one.
fn red_part(lock: &LockView, problem: ProblemKind) -> Option<RedPart<'_>> {
    let thread = holders(lock, problem).first().map_or("", HolderView::thread);
    Some((&lock.red.as_deref()?.group, lock.id.db, &lock.id.name, thread))
}

/// Joins incidents that have parts of the same red lock, in the order of the first ones.
fn joined(incidents: Vec<IncidentRow>) -> Vec<IncidentRow> {
    // The index of the incident that each one is a part of, which is its own or an earlier one.
    let mut part_of: Vec<usize> = (0..incidents.len()).collect();
    let whole = |part_of: &[usize], mut index: usize| {
        while part_of[index] != index {
            index = part_of[index];
        }
        index
    };
    let mut first_with = HashMap::new();
    for (index, incident) in incidents.iter().enumerate() {
        for lock in &incident.locks {
            if let Some(part) = red_part(lock, incident.problem) {
                let first = *first_with.entry((incident.problem, part)).or_insert(index);
                let (first, index) = (whole(&part_of, first), whole(&part_of, index));
                part_of[first.max(index)] = first.min(index);
            }
        }
    }
    let mut joined: BTreeMap<usize, IncidentRow> = BTreeMap::new();
    for (index, incident) in incidents.into_iter().enumerate() {
        join(joined.entry(whole(&part_of, index)), incident);
    }
    joined.into_values().collect()
}

/// Merges an incident into the one with the same key, or inserts it.
fn join<K: Ord>(place: Entry<'_, K, IncidentRow>, incident: IncidentRow) {
    match place {
        Entry::Vacant(vacant) => drop(vacant.insert(incident)),
        Entry::Occupied(mut occupied) => occupied.get_mut().add(incident),
    }
}

/// Returns the holders that have the problem. The current holders of a lock with an expired hold do not have it, nor do
/// those next to one that is gone.
#[must_use]
pub fn holders(lock: &LockView, problem: ProblemKind) -> &[HolderView] {
    let is_gone = |holder: &&HolderView| {
        holder.client.as_deref().is_some_and(|client| client.alive == Some(false))
    };
    match problem {
        ProblemKind::Expired => &[],
        ProblemKind::Leaked => match lock.holders.iter().find(is_gone) {
            Some(gone) => std::slice::from_ref(gone),
            None => &lock.holders,
        },
        _ => &lock.holders,
    }
}

/// Returns the key that combines problems into one incident: the circle of a deadlock, the process or the client that
/// holds the lock, or the group of a lock that is free.
fn key(lock: &LockView, problem: &ProblemView) -> String {
    if let Some(first) = problem.cycle.iter().map(|wait| &wait.lock).min() {
        return format!("cycle {} {}", first.db, first.name);
    }
    match holders(lock, problem.problem).first() {
        // The clients of an agent are its workers.
        Some(holder) => {
            process(holder).unwrap_or_else(|| format!("client {}", client_of(&holder.id)))
        }
        None => format!("group {}", lock.group),
    }
}

/// Returns the key of a holder's process, if that is known.
fn process(holder: &HolderView) -> Option<String> {
    let client = holder.client.as_deref()?;
    Some(format!("process {} {}", client.label()?, client.pid?))
}

impl Serialize for IncidentRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (_, problem) = self.first();
        let client = self.first_holders().first().and_then(|holder| holder.client.as_deref());
        let (deployment, key) = self.place();
        IncidentJson {
            key,
            problem: self.problem,
            certainty: self.certainty,
            since: self.since,
            deployment,
            deployments: self.deployments().collect(),
            owner: self.owner(),
            owner_name: client.and_then(crate::model::types::ClientView::label),
            owner_verified: client.and_then(|client| client.verified),
            count: self.locks.len(),
            locks: self.locks.iter().take(MAX_NAMES).map(|lock| &lock.id).collect(),
            waiting: self.waiting,
            acknowledged: self.acknowledged,
            evidence: problem.evidence.last().map(|evidence| &*evidence.text),
            advice: &problem.advice,
        }
        .serialize(serializer)
    }
}

impl Listed for IncidentRow {
    type Schema = Self;
    const NAME: &'static str = "incidents";
    const SORTS: &'static [&'static str] = &["severity", "age", "locks", "waiting"];
    const CLEARED: bool = true;

    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self> {
        let troubled = published.snapshot.notable().filter(|lock| !lock.problems.is_empty());
        let mut incidents: BTreeMap<(ProblemKind, BTreeSet<IncidentId>), Self> = BTreeMap::new();
        for lock in troubled {
            for problem in &lock.problems {
                let incident = Self::new(lock, problem);
                join(incidents.entry((problem.problem, incident.places.clone())), incident);
            }
        }
        let mut incidents = joined(incidents.into_values().collect());
        if !filter.is_empty() {
            let matching = incidents.into_iter().filter_map(|row| row.matching(filter, now));
            incidents = matching.collect();
        }
        incidents.iter_mut().for_each(Self::complete);
        incidents
    }

    fn id(&self) -> RowId<'_> {
        let (deployment, key) = self.place();
        RowId { name: key.as_bytes(), deployment, db: 0, problem: self.problem.as_str() }
    }

    fn position(&self, sort: &str) -> Position<'_> {
        let rank = match sort {
            "age" => (self.since.0, 0),
            "locks" => (descending(self.locks.len() as u64), self.since.0),
            "waiting" => (descending(self.waiting), self.since.0),
            _ => severity(self.acknowledged, self.certainty, self.problem, self.since),
        };
        Position { rank, text: b"", id: Listed::id(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::{ClientView, RedView, WaitView};
    use crate::query::fixtures::{acknowledged, leaked, lock, published};
    use thin_vec::thin_vec;

    fn incidents(locks: impl IntoIterator<Item = LockView>) -> Vec<IncidentRow> {
        IncidentRow::all(&published(locks), &Filter::default(), SteadyMillis(2_000_000))
    }

    fn leaked_by(name: &str, holder: &str) -> LockView {
        let mut lock = LockView { problems: thin_vec![leaked()], waiting: 2, ..lock(name) };
        lock.holders[0].id = holder.into();
        lock
    }

    #[test]
    fn leaks_of_one_client_are_one_incident() {
        let holder = "285475da-9152-4c83-822a-67ee2f116a79:";
        let locks =
            (0..300).map(|n| leaked_by(&format!("invoice:{n}:lock"), &format!("{holder}{n}")));
        let other = leaked_by("orders:1", "385475da-9152-4c83-822a-67ee2f116a79:1");
        let rows = incidents(locks.chain([other]));
        assert_eq!(rows.len(), 2);
        let many = rows.iter().find(|row| row.locks.len() == 300).unwrap();
        assert_eq!((many.waiting, many.prefix().as_deref()), (600, Some("invoice:")));
        assert_eq!((many.owner(), many.holders()), (Some(holder.trim_end_matches(':')), 300));
        assert!(
            many.position("locks")
                < rows.iter().find(|row| row.locks.len() == 1).unwrap().position("locks")
        );
        assert_eq!(serde_json::to_value(many).unwrap()["count"], 300);
    }

    #[test]
    fn a_leak_of_one_of_several_readers_is_an_incident_of_that_reader() {
        let [dead, living] =
            ["385475da", "285475da"].map(|start| format!("{start}-9152-4c83-822a-67ee2f116a79"));
        let mut lock = leaked_by("catalog", &format!("{living}:1"));
        let client = Some(Box::new(ClientView { alive: Some(false), ..ClientView::default() }));
        let reader =
            HolderView { id: format!("{dead}:1").into(), client, ..lock.holders[0].clone() };
        lock.holders.push(reader);
        let rows = incidents([lock]);
        assert_eq!((rows[0].owner(), rows[0].holders()), (Some(&*dead), 1));
        assert_eq!(rows[0].place().1, format!("client {dead}"));
        assert_eq!(serde_json::to_value(&rows[0]).unwrap()["owner"], *dead);
    }

    #[test]
    fn each_worker_of_an_agent_has_separate_incidents() {
        let agent = "285475da-9152-4c83-822a-67ee2f116a79";
        let by = |name: &str, pid: u32| {
            // Each hold of an agent has a different id.
            let mut lock = leaked_by(name, &format!("{agent}:{}", name.as_bytes()[0]));
            lock.holders[0].client = Some(Box::new(ClientView {
                host: Some("web-7".into()),
                pid: Some(pid),
                ..ClientView::default()
            }));
            lock
        };
        let rows = incidents([by("a", 1), by("b", 1), by("c", 2)]);
        let mut counts: Vec<usize> = rows.iter().map(|row| row.locks.len()).collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 2]);
        assert!(rows.iter().all(|row| row.holders() == 1), "a process is one holder");
    }

    #[test]
    fn a_new_holder_has_no_part_in_an_expired_hold() {
        let expired = |name: &str, holder: &str| {
            let mut lock = leaked_by(name, holder);
            lock.problems[0].problem = ProblemKind::Expired;
            lock
        };
        let rows = incidents([
            expired("batch:1", "285475da-9152-4c83-822a-67ee2f116a79:1"),
            expired("batch:2", "385475da-9152-4c83-822a-67ee2f116a79:1"),
        ]);
        assert_eq!(rows.len(), 1, "they are one incident of their group");
        let row = &rows[0];
        assert_eq!(
            (row.locks.len(), row.owner(), row.holders(), row.may_be_released()),
            (2, None, 0, false)
        );
        assert_eq!(serde_json::to_value(row).unwrap()["owner"], serde_json::Value::Null);
    }

    #[test]
    fn a_deadlock_is_one_incident() {
        let id = |name: &str| lock(name).id;
        let wait = |name: &str| WaitView { waiter: "w".into(), lock: id(name), holder: "h".into() };
        let cycle: Arc<[WaitView]> = [wait("a"), wait("b")].into();
        let deadlocked = |name: &str, holder: &str| {
            let mut lock = leaked_by(name, holder);
            lock.problems[0].problem = ProblemKind::Deadlock;
            lock.problems[0].cycle = Arc::clone(&cycle);
            lock
        };
        let rows = incidents([deadlocked("a", "x:1"), deadlocked("b", "y:1")]);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].locks.len(), rows[0].owner(), rows[0].holders()), (2, None, 2));
    }

    /// Creates a lock as the part of a red lock on each of these servers, leaked by a client of Redisson.
    fn red(name: &str, on: &[&str]) -> Vec<LockView> {
        let part = |deployment: &&str| {
            // A client of Redisson has a separate uuid on each server.
            let uuid = deployment.repeat(8);
            let mut lock = leaked_by(name, &format!("{uuid}-9152-4c83-822a-67ee2f116a79:52"));
            lock.id.deployment = (*deployment).into();
            lock.red = Some(Box::new(RedView {
                group: "red".into(),
                held: on.iter().map(|of| Arc::from(*of)).collect(),
                unread: Vec::new(),
                of: 3,
            }));
            lock
        };
        on.iter().map(part).collect()
    }

    #[test]
    fn a_red_lock_is_one_incident_on_all_of_its_servers() {
        let rows = incidents(red("a", &["a", "b", "c"]));
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.locks.len(), row.waiting, row.holders()), (3, 2, 1));
        assert!(row.is_one_red_lock());
        assert_eq!(row.deployments().collect::<Vec<_>>(), ["a", "b", "c"]);
        let json = serde_json::to_value(row).unwrap();
        assert_eq!(json["deployments"], serde_json::json!(["a", "b", "c"]));
        // It is still the same once the first server has none of it.
        let later = &incidents(red("a", &["b", "c"]))[0];
        assert!(later.continues(row));
        let (_, key) = later.place();
        assert!(row.is_named("b", ProblemKind::Leaked, key));
        assert!(!row.is_named("a", ProblemKind::Leaked, key));
    }

    #[test]
    fn red_locks_of_one_client_are_one_incident_whichever_servers_they_are_on() {
        let locks = [red("1", &["a", "b"]), red("2", &["b", "c"]), red("3", &["c", "d"])].concat();
        let rows = incidents(locks);
        assert_eq!(rows.iter().map(|row| row.locks.len()).collect::<Vec<_>>(), [6]);
        assert_eq!((rows[0].waiting, rows[0].is_one_red_lock()), (6, false));
    }

    #[test]
    fn another_thread_or_a_plain_lock_on_the_same_servers_is_a_separate_incident() {
        let mut locks = red("a", &["a", "b", "c"]);
        locks[1].holders[0].id = "285475da-9152-4c83-822a-67ee2f116a79:7".into();
        locks[2].red = None;
        assert_eq!(incidents(locks).len(), 3);
    }

    #[test]
    fn a_filter_leaves_locks_out_and_their_number_remains() {
        let locks =
            [red("a", &["a", "b"]), vec![leaked_by("b", "h"), leaked_by("c", "h")]].concat();
        let published = published(locks);
        let of = |filter: &str| {
            let filter = Filter::parse(filter).unwrap();
            let rows = IncidentRow::all(&published, &filter, SteadyMillis(2_000_000));
            rows.iter().map(|row| (row.locks.len(), row.whole, row.waiting)).collect::<Vec<_>>()
        };
        assert_eq!(of(""), [(2, 2, 2), (2, 2, 4)]);
        assert_eq!(of("b"), [(1, 2, 2)]);
        assert_eq!(of("a deployment:b"), [(1, 2, 2)]);
        assert!(of("problem:stuck").is_empty());
    }

    #[test]
    fn an_incident_is_acknowledged_once_all_of_it_is() {
        let known = LockView { problems: thin_vec![acknowledged()], ..lock("a") };
        let open = LockView { problems: thin_vec![leaked()], ..lock("b") };
        assert!(incidents([known.clone()])[0].acknowledged);
        let rows = incidents([known, open]);
        assert!(rows.len() == 1 && !rows[0].acknowledged);
    }
}
