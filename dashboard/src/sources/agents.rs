//! The holder registry: keys in which agents publish themselves, their holders and their waiters.
//!
//! Only the agents of known holders and waiters are looked up, a bounded number at a time, and no value is read before its
//! length.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use redis::Value;
use redisson::signed_entry::Place;
use redisson::{ClientId, HolderId, LockName, keys};
use service_kit::redis::{Address, CallError, Link, ServerError};

use super::agent_waiters::{KnownAgents, WaiterReader};
use super::read::integer;
use super::registry_entry::identity;
use super::scope::Scope;
use super::slot_share::SlotShare;
use crate::access::agent_keys::AgentKeys;
use crate::clock::{SteadyMillis, Time};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{AgentReport, LockView, Observation, Presence, Walk};

/// About the most holders and waiters that are looked up in one round; the others follow in the next ones.
const HOLDERS: usize = 1_000;
/// The most locks that are looked at in one round, besides those that have changed; a walk through all of them goes on in the
/// next one.
const VISITED: usize = 20_000;
/// The most holders that wait for their first identity; the walk finds the others later.
const MAX_UNIDENTIFIED: usize = 10_000;
/// Commands in one pipeline.
const COMMANDS: usize = 250;
/// Fields in one command.
const FIELDS: usize = 50;
/// The longest entry that is read, in bytes.
const MAX_ENTRY: u64 = 4_096;
/// The longest host name that is read, in bytes.
pub(super) const MAX_HOST: u64 = 256;
/// The entries that are verified in one go: each takes tens of microseconds.
const VERIFIED_AT_ONCE: usize = 16;

/// The holder registry of one database.
#[derive(Debug)]
pub struct Registry {
    pub link: Link,
    pub share: SlotShare,
    /// The keys with which agents sign their entries.
    pub keys: Option<AgentKeys>,
}

/// A reader of the registry entries of known holders.
#[derive(Debug)]
pub(super) struct Agents {
    scope: Scope,
    registry: Registry,
    hub: Arc<Hub>,
    model: ModelHandle,
    /// The snapshot up to which changed locks have been looked at.
    seen: u64,
    walk: Walk,
    /// Holders without an identity yet, and the last one that was looked up.
    unidentified: BTreeSet<Lookup>,
    after: Option<Lookup>,
    /// The agents that hold or wait for locks, by the latest walk through all locks and the one before.
    active: [HashSet<ClientId>; 2],
    known: KnownAgents,
    waiters: WaiterReader,
}

/// A holder to look up, with its lock.
pub type Lookup = (HolderId, LockName);

impl Agents {
    #[must_use]
    pub(super) fn new(
        scope: Scope,
        registry: Registry,
        hub: Arc<Hub>,
        model: ModelHandle,
        known: KnownAgents,
    ) -> Self {
        Self {
            scope,
            registry,
            hub,
            model,
            seen: 0,
            walk: Walk::default(),
            unidentified: BTreeSet::new(),
            after: None,
            active: Default::default(),
            known,
            waiters: WaiterReader::default(),
        }
    }

    /// Looks up some of the holders. Returns the error if Redis refuses that.
    pub(super) async fn look_up(&mut self) -> Result<Option<ServerError>, CallError> {
        let lookups = self.choose();
        if lookups.is_empty() {
            return Ok(None);
        }
        match self.registry.look_up(lookups).await? {
            Ok(report) => {
                self.model.observe(self.scope.id, Observation::AgentReport(report)).await;
                Ok(None)
            }
            Err(refused) => Ok(Some(refused)),
        }
    }

    /// Reads which locks the workers of agents wait for. Returns the error if Redis refuses that.
    pub(super) async fn read_waiters(&mut self) -> Result<Option<ServerError>, CallError> {
        let agents = self.active.iter().flatten().copied().collect();
        match self.waiters.read(&self.scope, &self.registry, &self.known, agents).await? {
            Ok(lists) => {
                for list in lists {
                    self.model.observe(self.scope.id, Observation::AgentWaiters(list)).await;
                }
                Ok(None)
            }
            Err(refused) => Ok(Some(refused)),
        }
    }

    /// Chooses the holders of this round; at least half of them without an identity yet, if there are enough.
    fn choose(&mut self) -> Vec<Lookup> {
        let snapshot = self.hub.snapshot();
        self.unidentified.retain(|(id, name)| {
            let lock = snapshot.get(&self.scope.id_of(name));
            lock.is_some_and(|lock| of_agents(lock).any(|(of, known)| of == *id && !known))
        });
        for delta in self.hub.since(self.seen).into_iter().flatten() {
            delta.changed.iter().for_each(|lock| drop(self.look_at(lock)));
        }
        self.seen = snapshot.seq;
        let reserved = self.unidentified.len().min(HOLDERS / 2);
        let mut identified = Vec::new();
        let mut walk = self.walk;
        for part in snapshot.visit(&mut walk, VISITED) {
            identified.extend(part.iter().flat_map(|lock| self.look_at(lock)));
            if identified.len() >= HOLDERS - reserved {
                break;
            }
        }
        if walk.turns() > self.walk.turns() {
            let [latest, before] = &mut self.active;
            *before = std::mem::take(latest);
        }
        self.walk = walk;
        let room = HOLDERS.saturating_sub(identified.len()).max(reserved);
        let mut lookups = next_part(&self.unidentified, &mut self.after, room);
        identified.sort_unstable();
        lookups.extend(identified);
        lookups
    }

    /// Stores the lock's agents, and its holders and waiters without an identity. Returns those with one.
    fn look_at(&mut self, lock: &LockView) -> Vec<Lookup> {
        if !self.scope.has(lock) {
            return Vec::new();
        }
        // Its workers may wait for locks on other nodes of a cluster.
        self.active[0].extend(of_agents(lock).map(|(id, _)| id.client));
        if !self.registry.share.has(&lock.id.name) || lock.is_unknown() {
            return Vec::new();
        }
        let mut identified = Vec::new();
        for (id, is_identified) in of_agents(lock) {
            let lookup = (id, lock.id.name.clone());
            if is_identified {
                identified.push(lookup);
            } else if self.unidentified.len() < MAX_UNIDENTIFIED {
                self.unidentified.insert(lookup);
            }
        }
        identified
    }
}

/// Returns the lock's holders and waiters at agents, and whether they have an identity.
fn of_agents(lock: &LockView) -> impl Iterator<Item = (HolderId, bool)> {
    let holders = lock.holders.iter().map(|holder| (&holder.id, &holder.client));
    let waiters = lock.waiters.iter().map(|waiter| (&waiter.id, &waiter.client));
    let alive = holders.chain(waiters).map(|(id, client)| (id.as_bytes(), client.as_deref()));
    // Dead waiters are only in the queue. Their agents may come back.
    let dead = lock.queue.iter().filter(|entry| entry.gone);
    let all = alive.chain(dead.map(|entry| (entry.id.as_bytes(), None)));
    all.filter_map(|(id, client)| {
        let id = HolderId::parse(id).filter(HolderId::looks_like_agent)?;
        Some((id, client.is_some_and(|client| client.host.is_some())))
    })
}

impl Registry {
    /// Looks up holders. The inner error is Redis' refusal.
    ///
    /// # Errors
    /// Fails if there is no reply.
    pub async fn look_up(
        &self,
        lookups: Vec<Lookup>,
    ) -> Result<Result<AgentReport, ServerError>, CallError> {
        let at = Time::now();
        let mut agents: Vec<ClientId> = lookups.iter().map(|(id, _)| id.client).collect();
        agents.sort_unstable();
        agents.dedup();
        let mut lengths = Vec::new();
        for agent in &agents {
            let key = keys::agent(agent);
            lengths.push(["HSTRLEN".into(), key.clone(), "pid".into()].to_vec());
            lengths.push(["HSTRLEN".into(), key, "host".into()].to_vec());
            lengths.push(["PTTL".into(), keys::agent_trace(agent)].to_vec());
        }
        for (id, _) in &lookups {
            let key = keys::agent_holders(&id.client);
            lengths.push(["HSTRLEN".into(), key, id.thread.to_string().into()].to_vec());
        }
        let replies = self.send(lengths).await?;
        let refused = replies.iter().find_map(|reply| reply.as_ref().err());
        if let Some(refused) = refused.filter(|refused| refused.is_denied()) {
            return Ok(Err(refused.clone()));
        }
        // A key of another type is not an agent's.
        let length = |reply: &Result<Value, ServerError>| reply.as_ref().ok().and_then(integer);
        let (of_agents, of_holders) = replies.split_at(agents.len() * 3);
        let present: Vec<(ClientId, Presence)> = agents
            .iter()
            .zip(of_agents.chunks_exact(3))
            .filter_map(|(id, replies)| {
                let present = length(&replies[0])? > 0;
                let traced = length(&replies[2]).is_some_and(|pttl| pttl > 0);
                Some((*id, Presence::new(present, traced)))
            })
            .collect();
        let hosted = agents.iter().zip(of_agents.chunks_exact(3));
        let hosted = hosted.filter(|(_, lengths)| {
            length(&lengths[1]).is_some_and(|length| (1..=MAX_HOST).contains(&length))
        });
        let hosts = self.hosts(hosted.map(|(id, _)| *id).collect()).await?;
        let short = lookups.iter().zip(of_holders).filter(|(_, reply)| {
            length(reply).is_some_and(|length| (1..=MAX_ENTRY).contains(&length))
        });
        let entries = self.entries(short.map(|((id, _), _)| *id).collect()).await?;
        let keys = self.keys.as_ref().map(AgentKeys::now);
        let wall = SteadyMillis::now().to_wall();
        let mut holders = Vec::with_capacity(lookups.len());
        for ((id, lock), reply) in lookups.into_iter().zip(of_holders) {
            if keys.is_some() && holders.len() % VERIFIED_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
            let Some(length) = length(reply) else { continue };
            // An entry that is too long, or gone since its length was read, still shows that the agent knows the holder.
            let entry = entries.get(&id).map(Vec::as_slice).unwrap_or_default();
            let host = hosts.get(&id.client).map(Vec::as_slice).unwrap_or_default();
            let place = Place { agent: &id.client, number: id.thread, lock: &lock, host };
            let identity = (length > 0).then(|| identity(entry, &place, keys.as_ref(), wall));
            holders.push((lock, id, identity));
        }
        Ok(Ok(AgentReport { agents: present, holders, at }))
    }

    pub(super) async fn hosts(
        &self,
        agents: Vec<ClientId>,
    ) -> Result<HashMap<ClientId, Vec<u8>>, CallError> {
        let command = |id: &ClientId| vec!["HMGET".into(), keys::agent(id), "host".into()];
        let replies = self.send(agents.iter().map(command).collect()).await?;
        let hosts = agents.into_iter().zip(replies).filter_map(|(id, reply)| {
            let Ok(Value::Array(values)) = reply else { return None };
            let Some(Value::BulkString(host)) = values.into_iter().next() else { return None };
            Some((id, host))
        });
        Ok(hosts.collect())
    }

    async fn entries(
        &self,
        lookups: Vec<HolderId>,
    ) -> Result<HashMap<HolderId, Vec<u8>>, CallError> {
        let parts: Vec<&[HolderId]> = lookups
            .chunk_by(|a, b| a.client == b.client)
            .flat_map(|of_one| of_one.chunks(FIELDS))
            .collect();
        let command = |part: &&[HolderId]| {
            let mut command = vec!["HMGET".into(), keys::agent_holders(&part[0].client)];
            command.extend(part.iter().map(|id| id.thread.to_string().into_bytes()));
            command
        };
        let replies = self.send(parts.iter().map(command).collect()).await?;
        let mut entries = HashMap::new();
        for (part, reply) in parts.into_iter().zip(replies) {
            let Ok(Value::Array(values)) = reply else { continue };
            for (id, value) in part.iter().zip(values) {
                if let Value::BulkString(entry) = value {
                    entries.insert(*id, entry);
                }
            }
        }
        Ok(entries)
    }

    /// Sends commands in pipelines of bounded length.
    pub(super) async fn send(
        &self,
        commands: Vec<Vec<Vec<u8>>>,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        // An agent's keys may be on another node than the lock.
        let mut by_node: HashMap<Option<Address>, (Link, Vec<usize>)> = HashMap::new();
        for (index, command) in commands.iter().enumerate() {
            let key = command.get(1).map(Vec::as_slice).unwrap_or_default();
            let Some((node, link)) = self.share.link_of(key, &self.link) else {
                let reason = "no node is known to have the agent's keys".to_owned();
                return Err(CallError::Unsent { reason });
            };
            by_node.entry(node).or_insert_with(|| (link, Vec::new())).1.push(index);
        }
        let mut replies: Vec<Option<Result<Value, ServerError>>> = vec![None; commands.len()];
        for (link, indexes) in by_node.into_values() {
            for indexes in indexes.chunks(COMMANDS) {
                let mut pipeline = redis::Pipeline::new();
                for index in indexes {
                    let mut words = redis::Cmd::new();
                    for word in &commands[*index] {
                        words.arg(word);
                    }
                    pipeline.add_command(words);
                }
                for (index, reply) in indexes.iter().zip(link.pipeline(pipeline).await?) {
                    replies[*index] = Some(reply);
                }
            }
        }
        Ok(replies.into_iter().map(|reply| reply.unwrap_or(Ok(Value::Nil))).collect())
    }
}

/// Returns the next part of a set that is processed in rotation, sorted by agent.
fn next_part(set: &BTreeSet<Lookup>, after: &mut Option<Lookup>, room: usize) -> Vec<Lookup> {
    let later = after.as_ref().map(|after| set.range((Excluded(after), Unbounded)));
    let mut part: Vec<Lookup> =
        later.into_iter().flatten().chain(set).take(room.min(set.len())).cloned().collect();
    *after = part.last().cloned();
    part.sort_unstable();
    part
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn lookup(n: i64) -> Lookup {
        let id = HolderId::new(ClientId::from_random([1; 16]), n);
        (id, LockName::new(n.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn every_holder_is_looked_up_in_rotation() {
        let set: BTreeSet<Lookup> = (0..10).map(lookup).collect();
        let mut after = None;
        let mut seen = HashSet::new();
        for _ in 0..4 {
            let part = next_part(&set, &mut after, 3);
            assert_eq!(part.len(), 3);
            seen.extend(part.into_iter().map(|(id, _)| id.thread));
        }
        assert_eq!(seen.len(), 10);
        assert_eq!(next_part(&set, &mut after, 10).len(), 10);
    }
}
