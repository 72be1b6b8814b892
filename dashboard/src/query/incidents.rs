//! Incidents. The same problem of the same owner, or the same deadlock, is one row for any number of locks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// The most locks that an incident names in JSON.
const MAX_NAMES: usize = 100;

/// A problem that several locks may share.
#[derive(Debug, Clone)]
pub struct IncidentRow {
    /// The key of the group within its deployment and problem.
    key: String,
    pub problem: ProblemKind,
    pub certainty: Certainty,
    /// The beginning of its first problem.
    pub since: SteadyMillis,
    /// The locks, oldest problem first.
    pub locks: Vec<Arc<LockView>>,
    /// True if every one of its problems is acknowledged.
    pub acknowledged: bool,
    /// The minimum number of waiters of all its locks.
    pub waiting: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Incident)]
struct IncidentJson<'a> {
    /// It distinguishes the incident from others of its deployment and problem.
    key: &'a str,
    problem: ProblemKind,
    certainty: Certainty,
    #[serde(serialize_with = "crate::clock::as_wall")]
    since: SteadyMillis,
    deployment: &'a str,
    /// The client that holds the locks, or null if they have none, or several.
    owner: Option<&'a str>,
    /// The owner's service and host, if they are known.
    owner_name: Option<String>,
    /// True if the owner's agent signed them, false if they are only claimed; null if that is not checked.
    owner_verified: Option<bool>,
    /// The number of its locks.
    count: usize,
    /// The first 100 of its locks.
    locks: Vec<&'a LockId>,
    /// The least number of waiters of all its locks.
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
        let holders = self.locks.iter().flat_map(|lock| holders(lock, self.problem));
        holders
            .map(|holder| process(holder).unwrap_or_else(|| holder.id.to_string()))
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// Returns the key that distinguishes the incident from others with the same deployment and problem.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the deployment, problem and key, which distinguish the incident from all others.
    #[must_use]
    pub fn identity(&self) -> (Arc<str>, ProblemKind, String) {
        (Arc::clone(&self.first().0.id.deployment), self.problem, self.key.clone())
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
        Self::all(published, &Filter::default(), now).into_iter().find(|incident| {
            let (first, _) = incident.first();
            incident.problem == problem
                && incident.key == key
                && &*first.id.deployment == deployment
        })
    }

    fn add(&mut self, lock: &Arc<LockView>, problem: &ProblemView) {
        self.since = self.since.min(problem.since);
        if problem.certainty == Certainty::Certain {
            self.certainty = Certainty::Certain;
        }
        self.acknowledged &= problem.acknowledged.is_some();
        self.waiting += lock.waiting;
        self.locks.push(Arc::clone(lock));
    }
}

/// Returns the holders that have the problem. The current holders of a lock with an expired hold do not have it.
fn holders(lock: &LockView, problem: ProblemKind) -> &[HolderView] {
    if problem == ProblemKind::Expired { &[] } else { &lock.holders }
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
        let (lock, problem) = self.first();
        let holder = holders(lock, self.problem).first();
        let client = holder.and_then(|holder| holder.client.as_deref());
        IncidentJson {
            key: &self.key,
            problem: self.problem,
            certainty: self.certainty,
            since: self.since,
            deployment: &lock.id.deployment,
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
        let mut incidents: BTreeMap<(Arc<str>, ProblemKind, String), Self> = BTreeMap::new();
        for lock in troubled.filter(|lock| filter.matches(lock, now)) {
            for problem in &lock.problems {
                let key = key(lock, problem);
                let place = (Arc::clone(&lock.id.deployment), problem.problem, key.clone());
                incidents
                    .entry(place)
                    .or_insert_with(|| Self {
                        key,
                        problem: problem.problem,
                        certainty: Certainty::Suspected,
                        since: problem.since,
                        locks: Vec::new(),
                        acknowledged: true,
                        waiting: 0,
                    })
                    .add(lock, problem);
            }
        }
        let sorted = |mut incident: Self| {
            let since = |lock: &LockView| {
                let mut found = lock.problems.iter().filter(|p| p.problem == incident.problem);
                found.next().map(|problem| problem.since)
            };
            incident.locks.sort_by(|a, b| (since(a), &a.id.name).cmp(&(since(b), &b.id.name)));
            incident
        };
        incidents.into_values().map(sorted).collect()
    }

    fn id(&self) -> RowId<'_> {
        let deployment = &self.locks[0].id.deployment;
        RowId { name: self.key.as_bytes(), deployment, db: 0, problem: self.problem.as_str() }
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
    use crate::model::types::{ClientView, WaitView};
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

    #[test]
    fn an_incident_is_acknowledged_once_all_of_it_is() {
        let known = LockView { problems: thin_vec![acknowledged()], ..lock("a") };
        let open = LockView { problems: thin_vec![leaked()], ..lock("b") };
        assert!(incidents([known.clone()])[0].acknowledged);
        let rows = incidents([known, open]);
        assert!(rows.len() == 1 && !rows[0].acknowledged);
    }
}
