//! The holder registry: keys in which agents publish themselves, their holders and their waiters.
//!
//! Only the agents of known holders and waiters are looked up, a bounded number at a time, and no value is read before its
//! length. Anybody who can write to Redis may have written this text: it is truncated, invisible characters are escaped, and
//! it is only displayed.

use std::collections::HashMap;
use std::sync::Arc;

use redis::Value;
use redisson::name::is_invisible;
use redisson::{ClientId, HolderId, LockName, keys};
use serde::Deserialize;
use service_kit::redis::{Address, CallError, Link, ServerError};

use super::read::integer;
use super::scope::Scope;
use super::slot_share::SlotShare;
use crate::clock::{SteadyMillis, WallMillis, now};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{AgentReport, HolderIdentity, Observation, Presence};

/// The most holders and waiters that are looked up in one round; the others follow in the next ones.
const HOLDERS: usize = 1_000;
/// Commands in one pipeline.
const COMMANDS: usize = 250;
/// Fields in one command.
const FIELDS: usize = 50;
/// The longest entry that is read, in bytes.
const MAX_ENTRY: u64 = 4_096;
/// The longest host name that is read, in bytes.
const MAX_HOST: u64 = 256;
/// The most characters of any text that are retained.
const MAX_TEXT: usize = 100;

/// The holder registry of one database.
#[derive(Debug)]
pub struct Registry {
    pub link: Link,
    pub share: SlotShare,
}

/// A reader of the registry entries of known holders.
#[derive(Debug)]
pub(super) struct Agents {
    scope: Scope,
    registry: Registry,
    hub: Arc<Hub>,
    model: ModelHandle,
    /// The last holders looked up, of those without an identity yet and of the others.
    after: (Option<HolderId>, Option<HolderId>),
}

/// A holder's entry as its agent publishes it; missing or malformed fields are unknown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RegistryEntry {
    pid: Option<u32>,
    uid: Option<u32>,
    comm: Option<String>,
    client: Option<String>,
    session: Option<String>,
    since: Option<u64>,
    owner: Option<i64>,
    several: bool,
    until: Option<u64>,
}

impl RegistryEntry {
    fn identity(bytes: &[u8], host: Option<Arc<str>>) -> HolderIdentity {
        let entry: Self = serde_json::from_slice(bytes).unwrap_or_default();
        let text = |text: Option<String>| text.map(|text| plain(&text)).filter(|t| !t.is_empty());
        HolderIdentity {
            host,
            pid: entry.pid,
            uid: entry.uid,
            comm: text(entry.comm),
            name: text(entry.client),
            session: text(entry.session),
            // By its own host's wall clock.
            since: entry.since.map(|at| WallMillis(at).to_steady()),
            // A task that acquires several locks at once releases them rather than waiting forever.
            owner: entry.owner.filter(|_| !entry.several),
            until: entry.until.map(|at| WallMillis(at).to_steady()),
        }
    }
}

/// Returns the beginning of a text, with invisible characters escaped.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars().take(MAX_TEXT) {
        if c.is_control() || is_invisible(c) {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// A holder to look up, with its lock.
pub type Lookup = (HolderId, LockName);

impl Agents {
    #[must_use]
    pub(super) fn new(
        scope: Scope,
        (link, share): (Link, SlotShare),
        hub: Arc<Hub>,
        model: ModelHandle,
    ) -> Self {
        Self { scope, registry: Registry { link, share }, hub, model, after: (None, None) }
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

    /// Chooses the holders of this round; at least half of them without an identity yet, if there are enough.
    fn choose(&mut self) -> Vec<Lookup> {
        let snapshot = self.hub.snapshot();
        let ours = snapshot
            .locks()
            .filter(|lock| self.scope.has(lock) && self.registry.share.has(&lock.id.name));
        let (mut new, mut known) = (Vec::new(), Vec::new());
        for lock in ours.filter(|lock| !lock.is_unknown()) {
            let holders = lock.holders.iter().map(|holder| (&holder.id, &holder.client));
            let waiters = lock.waiters.iter().map(|waiter| (&waiter.id, &waiter.client));
            let alive =
                holders.chain(waiters).map(|(id, client)| (id.as_bytes(), client.as_deref()));
            // Dead waiters are only in the queue. Their agents may come back.
            let dead = lock.queue.iter().filter(|entry| entry.gone);
            for (id, client) in alive.chain(dead.map(|entry| (entry.id.as_bytes(), None))) {
                let id = HolderId::parse(id);
                let Some(id) = id.filter(HolderId::looks_like_agent) else { continue };
                let is_known = client.is_some_and(|client| client.host.is_some());
                let list = if is_known { &mut known } else { &mut new };
                list.push((id, lock.id.name.clone()));
            }
        }
        let room = HOLDERS - known.len().min(HOLDERS / 2);
        let mut lookups = next_part(new, &mut self.after.0, room);
        let room = HOLDERS - lookups.len();
        lookups.extend(next_part(known, &mut self.after.1, room));
        lookups
    }
}

impl Registry {
    /// Looks up holders, a thousand at most. The inner error is Redis' refusal.
    ///
    /// # Errors
    /// Fails if there is no reply.
    pub async fn look_up(
        &self,
        lookups: Vec<Lookup>,
    ) -> Result<Result<AgentReport, ServerError>, CallError> {
        let (at, steady) = (now(), SteadyMillis::now());
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
        let mut holders = Vec::with_capacity(lookups.len());
        for ((id, lock), reply) in lookups.into_iter().zip(of_holders) {
            let Some(length) = length(reply) else { continue };
            // An entry that is too long, or gone since its length was read, still shows that the agent knows the holder.
            let entry = entries.get(&id).map(Vec::as_slice).unwrap_or_default();
            let host = || hosts.get(&id.client).cloned();
            holders.push((lock, id, (length > 0).then(|| RegistryEntry::identity(entry, host()))));
        }
        Ok(Ok(AgentReport { agents: present, holders, at, steady }))
    }

    async fn hosts(&self, agents: Vec<ClientId>) -> Result<HashMap<ClientId, Arc<str>>, CallError> {
        let command = |id: &ClientId| vec!["HMGET".into(), keys::agent(id), "host".into()];
        let replies = self.send(agents.iter().map(command).collect()).await?;
        let hosts = agents.into_iter().zip(replies).filter_map(|(id, reply)| {
            let Ok(Value::Array(values)) = reply else { return None };
            let Some(Value::BulkString(host)) = values.first() else { return None };
            Some((id, plain(&String::from_utf8_lossy(host)).into()))
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
    async fn send(
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

/// Returns the next part of a list that is processed in rotation, sorted by agent.
fn next_part(mut list: Vec<Lookup>, after: &mut Option<HolderId>, room: usize) -> Vec<Lookup> {
    list.sort_unstable();
    if list.len() > room {
        let from = after.map_or(0, |after| list.partition_point(|(id, _)| *id <= after));
        let len = list.len();
        list.rotate_left(from % len);
        list.truncate(room);
        *after = list.last().map(|(id, _)| *id);
        list.sort_unstable();
    }
    list
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
        let list: Vec<Lookup> = (0..10).map(lookup).collect();
        let mut after = None;
        let mut seen = HashSet::new();
        for _ in 0..4 {
            let part = next_part(list.clone(), &mut after, 3);
            assert_eq!(part.len(), 3);
            seen.extend(part.into_iter().map(|(id, _)| id.thread));
        }
        assert_eq!(seen.len(), 10);
        assert_eq!(next_part(list, &mut after, 10).len(), 10);
    }

    #[test]
    fn an_entry_is_treated_as_hostile_text() {
        let identity = |entry: &str| RegistryEntry::identity(entry.as_bytes(), None);
        let whole = identity(
            r#"{"pid":4711,"uid":1000,"comm":"java","client":"a\u001b[31m\u202ex","session":"1-2","since":5,"more":[]}"#,
        );
        assert_eq!(
            (whole.pid, whole.uid, whole.since),
            (Some(4711), Some(1000), Some(SteadyMillis(5)))
        );
        assert_eq!(whole.name.as_deref(), Some("a\\u{1b}[31m\\u{202e}x"));
        let long = format!(r#"{{"comm":"{}"}}"#, "x".repeat(4_000));
        assert_eq!(identity(&long).comm.unwrap().len(), MAX_TEXT);
        assert_eq!(identity(r#"{"pid":null,"comm":null,"client":""}"#), HolderIdentity::default());
        for invalid in ["", "null", "[]", r#"{"pid":-1}"#, r#"{"pid":"x"}"#, "{\"comm\":\"\u{7}"] {
            assert_eq!(identity(invalid), HolderIdentity::default(), "{invalid}");
        }
    }
}
