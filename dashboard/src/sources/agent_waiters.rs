//! The locks that workers of agents wait for. Each agent publishes them in one value.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use parking_lot::Mutex;
use redis::Value;
use redisson::signed_entry::Place;
use redisson::{ClientId, HolderId, LockName, keys};
use serde::Deserialize;
use service_kit::redis::CallError;

use super::read::integer;
use super::registry::{MAX_HOST, Registry, denial};
use super::registry_entry::is_believed;
use super::scope::Scope;
use crate::access::agent_keys::AgentKeys;
use crate::clock::{SteadyMillis, Time, WallMillis};
use crate::model::types::{AgentWaiters, AwaitedLock};

/// The largest difference of an agent's clock from ours, in milliseconds, that is not corrected. A value is written every 2
/// to 20 seconds.
const CLOCK_TOLERANCE_MS: u64 = 30_000;
/// The maximum number of agents of one database that are known by name.
const MAX_AGENTS: usize = 2_000;
/// The maximum number of agents that are read in one round. The others follow in the next rounds.
const AGENTS: usize = 250;
/// The number of values in one pipeline.
const VALUES: usize = 32;
/// The longest value that is read, bytes.
const MAX_VALUE: usize = 64 * 1024;
/// The maximum number of locks of one agent, and of waiters of one lock that are named.
const MAX_LOCKS: usize = 256;
const MAX_NAMED: usize = 16;
/// The maximum number of waiters of one lock at one agent.
const MAX_COUNT: u64 = 1_000_000;

/// The agents that scans have found, by database. Cheap to clone, and clones share them.
#[derive(Debug, Clone, Default)]
pub struct KnownAgents(Arc<Mutex<ByDatabase>>);

/// The agents by deployment and database, oldest first.
type ByDatabase = HashMap<(Arc<str>, u32), VecDeque<ClientId>>;

impl KnownAgents {
    /// Adds an agent. If there are too many, it replaces the oldest.
    pub(super) fn add(&self, scope: &Scope, agent: ClientId) {
        let mut known = self.0.lock();
        let known = known.entry((Arc::clone(&scope.deployment), scope.db)).or_default();
        if !known.contains(&agent) {
            if known.len() >= MAX_AGENTS {
                known.pop_front();
            }
            known.push_back(agent);
        }
    }

    fn of(&self, scope: &Scope) -> Vec<ClientId> {
        let known = self.0.lock();
        let known = known.get(&(Arc::clone(&scope.deployment), scope.db));
        known.into_iter().flatten().copied().collect()
    }
}

/// A reader of the values of all known agents.
#[derive(Debug, Default)]
pub(super) struct WaiterReader {
    /// The agents that had waiters when they were last read, and the last of them that was read.
    waiting: BTreeSet<ClientId>,
    after_waiting: Option<ClientId>,
    /// The last of the other agents that was read.
    after: Option<ClientId>,
}

impl WaiterReader {
    /// Reads the values of some agents. `holders` are the agents of known holders and waiters. Returns their lists, or
    /// Redis' refusal. Empty lists end waits, also those that another node's reader has found before the lock moved here.
    pub(super) async fn read(
        &mut self,
        scope: &Scope,
        registry: &Registry,
        known: &KnownAgents,
        holders: HashSet<ClientId>,
    ) -> Result<Vec<AgentWaiters>, CallError> {
        let mut lists = Vec::new();
        let agents = self.choose(known.of(scope).into_iter().chain(holders));
        for agents in agents.chunks(VALUES) {
            lists.extend(registry.waiters(agents).await?);
        }
        for list in &lists {
            match list.locks.is_empty() {
                true => self.waiting.remove(&list.agent),
                false => self.waiting.insert(list.agent),
            };
        }
        for list in &mut lists {
            list.locks.retain(|awaited| registry.share.has(&awaited.lock));
        }
        Ok(lists)
    }

    /// Chooses the agents of this round: in turn, those with waiters, and some of the others.
    fn choose(&mut self, agents: impl Iterator<Item = ClientId>) -> Vec<ClientId> {
        let others: BTreeSet<ClientId> =
            agents.filter(|agent| !self.waiting.contains(agent)).collect();
        let mut chosen = next_part(&self.waiting, &mut self.after_waiting, AGENTS);
        let room = (AGENTS - chosen.len()).max(AGENTS / 4);
        chosen.extend(next_part(&others, &mut self.after, room));
        chosen
    }
}

/// Returns the next part of a set that is processed in rotation, sorted.
pub(super) fn next_part<T: Clone + Ord>(
    set: &BTreeSet<T>,
    after: &mut Option<T>,
    room: usize,
) -> Vec<T> {
    let later = after.as_ref().map(|after| set.range((Excluded(after), Unbounded)));
    let mut part: Vec<T> =
        later.into_iter().flatten().chain(set).take(room.min(set.len())).cloned().collect();
    *after = part.last().cloned();
    part.sort_unstable();
    part
}

impl Registry {
    /// Reads the values of these agents, except those whose node of the cluster does not reply.
    async fn waiters(&self, agents: &[ClientId]) -> Result<Vec<AgentWaiters>, CallError> {
        let at = Time::now();
        let range = |agent: &ClientId| {
            vec![
                "GETRANGE".into(),
                keys::agent_waiters(agent),
                "0".into(),
                (MAX_VALUE - 1).to_string().into(),
            ]
        };
        let replies = self.send(agents.iter().map(range).collect()).await;
        if let Some(denied) = denial(&replies) {
            return Err(CallError::Refused(denied));
        }
        let value = |reply| match reply {
            Ok(Value::BulkString(value)) => Some(value),
            // A key of another type is not an agent's.
            Err(CallError::Refused(error)) if error.is_wrong_type() => Some(Vec::new()),
            _ => None,
        };
        let values: HashMap<ClientId, Vec<u8>> = agents
            .iter()
            .zip(replies)
            .filter_map(|(agent, reply)| Some((*agent, value(reply)?)))
            .collect();
        let keys = self.keys.as_ref().map(AgentKeys::now);
        let hosts = match &keys {
            Some(_) => {
                let published = values.iter().filter(|(_, value)| !value.is_empty());
                self.short_hosts(published.map(|(agent, _)| *agent).collect()).await?
            }
            None => HashMap::new(),
        };
        let wall = SteadyMillis::now().to_wall();
        let list = |(agent, value): (&ClientId, &Vec<u8>)| {
            let host = hosts.get(agent).map(Vec::as_slice).unwrap_or_default();
            let key = keys::agent_waiters(agent);
            let believed = keys.as_ref().is_none_or(|keys| {
                LockName::new(key.as_slice()).is_ok_and(|lock| {
                    let place = Place { agent, number: 0, lock: &lock, host };
                    is_believed(value, &place, keys, wall)
                })
            });
            let locks = if believed { awaited(agent, value, at.steady()) } else { Vec::new() };
            AgentWaiters { agent: *agent, locks, at }
        };
        Ok(values.iter().map(list).collect())
    }

    /// Reads the hosts of agents, except those that are too long.
    async fn short_hosts(
        &self,
        agents: Vec<ClientId>,
    ) -> Result<HashMap<ClientId, Vec<u8>>, CallError> {
        let length = |agent: &ClientId| vec!["HSTRLEN".into(), keys::agent(agent), "host".into()];
        let lengths = self.send(agents.iter().map(length).collect()).await;
        let mut short = Vec::new();
        for (agent, length) in agents.into_iter().zip(lengths) {
            let length = match length {
                Ok(length) => integer(&length),
                Err(CallError::Refused(_)) => None,
                Err(error) => return Err(error),
            };
            if length.is_some_and(|length| (1..=MAX_HOST).contains(&length)) {
                short.push(agent);
            }
        }
        self.hosts(short).await
    }
}

/// The value as it is stored in Redis. Anyone who can write there may have written it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Published {
    locks: Vec<Row>,
    /// The instant of the writing in epoch milliseconds, by the agent's clock.
    at: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Row {
    lock: Name,
    count: u64,
    #[serde(default)]
    first: Vec<(i64, u64)>,
}

/// A name as text, or as bytes if it is not UTF-8.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Bytes(Vec<u8>),
}

/// Returns the beginning of a wait by our clock. `since` and the time of the writing, `at`, are by the agent's clock, which
/// is only taken to be right if it differs from ours by less than [`CLOCK_TOLERANCE_MS`].
fn beginning(since: u64, at: Option<u64>, now: SteadyMillis) -> SteadyMillis {
    let claimed = WallMillis(since).to_steady();
    match at {
        Some(at) if at.abs_diff(now.to_wall().0) > CLOCK_TOLERANCE_MS => {
            now.minus(at.saturating_sub(since))
        }
        _ => claimed.min(now),
    }
}

/// Returns the locks in a value that was read at `now`, within bounds, or none if it is malformed.
fn awaited(agent: &ClientId, value: &[u8], now: SteadyMillis) -> Vec<AwaitedLock> {
    let published: Published = serde_json::from_slice(value).unwrap_or_default();
    let mut seen = HashSet::new();
    let row = |row: Row| {
        let name = match row.lock {
            Name::Text(text) => text.into_bytes(),
            Name::Bytes(bytes) => bytes,
        };
        let lock = LockName::new(name).ok()?;
        let first = row.first.into_iter().take(MAX_NAMED).map(|(number, since)| {
            (HolderId::new(*agent, number), beginning(since, published.at, now))
        });
        let count = row.count.min(MAX_COUNT);
        (count > 0 && seen.insert(lock.clone())).then(|| AwaitedLock {
            lock,
            count,
            first: first.collect(),
        })
    };
    published.locks.into_iter().take(MAX_LOCKS).filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_within_bounds() {
        let agent = ClientId::from_random([1; 16]);
        let read = |text: &str| awaited(&agent, text.as_bytes(), SteadyMillis(60_000));
        let locks = read(
            r#"{"locks":[{"lock":"a","count":10,"first":[[7,1000],[8,2000]]},{"lock":[255,1],"count":1}],"key":"k"}"#,
        );
        assert_eq!((locks[0].lock.as_str(), locks[0].count), (Some("a"), 10));
        assert_eq!(locks[0].first[1], (HolderId::new(agent, 8), SteadyMillis(2_000)));
        assert_eq!((locks[1].lock.as_bytes(), locks[1].first.len()), (&[255, 1][..], 0));
        for wrong in ["", "null", "[]", r#"{"locks":7}"#, r#"{"locks":[{"lock":"","count":1}]}"#] {
            assert!(read(wrong).is_empty(), "{wrong}");
        }
        let row = |i: usize| format!(r#"{{"lock":"{}","count":99999999999}}"#, i / 2);
        let many: Vec<String> = (0..1_000).map(row).collect();
        let locks = read(&format!(r#"{{"locks":[{}]}}"#, many.join(",")));
        assert_eq!((locks.len(), locks[0].count), (MAX_LOCKS / 2, MAX_COUNT), "each name once");
    }

    #[test]
    fn each_of_many_agents_is_read_in_turn() {
        let agent = |n: u16| {
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&n.to_be_bytes());
            ClientId::from_random(bytes)
        };
        let waiting = (0..600).map(agent).collect();
        let mut reader = WaiterReader { waiting, ..WaiterReader::default() };
        let mut read = HashSet::new();
        for _ in 0..5 {
            let chosen = reader.choose((600..900).map(agent));
            assert!(chosen.len() <= AGENTS + AGENTS / 4, "{}", chosen.len());
            read.extend(chosen);
        }
        assert_eq!(read.len(), 900);
    }

    #[test]
    fn an_agents_wrong_clock_makes_no_wait_longer() {
        let (now, hour) = (SteadyMillis(100_000_000), 3_600_000);
        let begins = |since: u64, at: Option<u64>| beginning(since, at, now).0;
        for off in [0, CLOCK_TOLERANCE_MS, hour] {
            for at in [now.0 - off, now.0 + off] {
                let error = begins(at - 5_000, Some(at)).abs_diff(now.0 - 5_000);
                assert!(error <= if off == hour { 0 } else { off }, "{off} {error}");
            }
        }
        assert_eq!(begins(now.0 + hour, None), now.0, "no wait begins later than now");
        assert_eq!(begins(now.0 - hour, None), now.0 - hour);
    }

    #[test]
    fn known_agents_are_bounded() {
        let known = KnownAgents::default();
        let id = crate::model::types::ScopeId(0);
        let scope = Scope { id, deployment: "main".into(), db: 0 };
        for i in 0..MAX_AGENTS as u128 + 5 {
            known.add(&scope, ClientId::from_random(i.to_be_bytes()));
            known.add(&scope, ClientId::from_random(i.to_be_bytes()));
        }
        assert_eq!(known.of(&scope).len(), MAX_AGENTS);
        assert!(known.of(&Scope { db: 1, ..scope }).is_empty());
    }
}
