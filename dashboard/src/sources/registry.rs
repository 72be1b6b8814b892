//! The holder registry: keys in which agents publish themselves, their holders and their waiters. A value's length is
//! read before the value.

use std::collections::HashMap;

use redis::Value;
use redisson::signed_entry::Place;
use redisson::{ClientId, HolderId, LockName, keys};
use service_kit::redis::{Address, CallError, Link, ServerError};

use super::read::integer;
use super::registry_entry::identity;
use super::slot_share::SlotShare;
use crate::access::agent_keys::AgentKeys;
use crate::clock::{SteadyMillis, Time};
use crate::model::types::{AgentReport, Presence};

/// The number of commands in one pipeline.
const COMMANDS: usize = 250;
/// The number of fields in one command.
const FIELDS: usize = 50;
/// The number of commands by which one agent is looked up.
const AGENT_COMMANDS: usize = 3;
/// The longest entry that is read, in bytes.
const MAX_ENTRY: u64 = 4_096;
/// The longest host name that is read, in bytes.
pub(super) const MAX_HOST: u64 = 256;
/// The number of entries that are verified without a pause. Each takes tens of microseconds.
const VERIFIED_AT_ONCE: usize = 16;

/// The holder registry of one database.
#[derive(Debug)]
pub struct Registry {
    pub link: Link,
    pub share: SlotShare,
    /// The keys with which agents sign their entries.
    pub keys: Option<AgentKeys>,
}

/// A holder to look up, with its lock.
pub type Lookup = (HolderId, LockName);

impl Registry {
    /// Looks up holders. The report leaves out agents whose node of the cluster does not reply.
    ///
    /// # Errors
    /// Fails if Redis denies the lookup, or if a node stops replying during it.
    pub async fn look_up(&self, lookups: Vec<Lookup>) -> Result<AgentReport, CallError> {
        let at = Time::now();
        let mut agents: Vec<ClientId> = lookups.iter().map(|(id, _)| id.client).collect();
        agents.sort_unstable();
        agents.dedup();
        let replies = self.send(length_commands(&agents, &lookups)).await;
        if let Some(denied) = denial(&replies) {
            return Err(CallError::Refused(denied));
        }
        // A key of another type is not an agent's key.
        let length = |reply: &Result<Value, CallError>| reply.as_ref().ok().and_then(integer);
        let (of_agents, of_holders) = replies.split_at(agents.len() * AGENT_COMMANDS);
        let present: Vec<(ClientId, Presence)> = agents
            .iter()
            .zip(of_agents.chunks_exact(AGENT_COMMANDS))
            .filter_map(|(id, replies)| {
                let present = length(&replies[0])? > 0;
                let traced = length(&replies[2]).is_some_and(|pttl| pttl > 0);
                Some((*id, Presence::new(present, traced)))
            })
            .collect();
        let hosted = agents.iter().zip(of_agents.chunks_exact(AGENT_COMMANDS));
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
            // An entry that is too long, or has been deleted since its length was read, still shows that the agent
            // knows the holder.
            let entry = entries.get(&id).map(Vec::as_slice).unwrap_or_default();
            let host = hosts.get(&id.client).map(Vec::as_slice).unwrap_or_default();
            let place = Place { agent: &id.client, number: id.thread, lock: &lock, host };
            let identity = (length > 0).then(|| identity(entry, &place, keys.as_ref(), wall));
            holders.push((lock, id, identity));
        }
        Ok(AgentReport { agents: present, holders, at })
    }

    pub(super) async fn hosts(
        &self,
        agents: Vec<ClientId>,
    ) -> Result<HashMap<ClientId, Vec<u8>>, CallError> {
        let command = |id: &ClientId| vec!["HMGET".into(), keys::agent(id), "host".into()];
        let replies = self.send(agents.iter().map(command).collect()).await;
        let mut hosts = HashMap::new();
        for (id, reply) in agents.into_iter().zip(replies) {
            if let Some(Value::BulkString(host)) = list(reply)?.into_iter().next() {
                hosts.insert(id, host);
            }
        }
        Ok(hosts)
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
        let replies = self.send(parts.iter().map(command).collect()).await;
        let mut entries = HashMap::new();
        for (part, reply) in parts.into_iter().zip(replies) {
            for (id, value) in part.iter().zip(list(reply)?) {
                if let Value::BulkString(entry) = value {
                    entries.insert(*id, entry);
                }
            }
        }
        Ok(entries)
    }

    /// Sends commands in pipelines of bounded length. An agent's keys may be on another node of a cluster than the lock:
    /// if that node does not reply, only the commands for it fail.
    pub(super) async fn send(&self, commands: Vec<Vec<Vec<u8>>>) -> Vec<Result<Value, CallError>> {
        let mut by_node: HashMap<Option<Address>, (Link, Vec<usize>)> = HashMap::new();
        let mut replies: Vec<_> = commands.iter().map(|_| Err(no_node())).collect();
        for (index, command) in commands.iter().enumerate() {
            let key = command.get(1).map(Vec::as_slice).unwrap_or_default();
            let Some((node, link)) = self.share.link_of(key, &self.link) else { continue };
            by_node.entry(node).or_insert_with(|| (link, Vec::new())).1.push(index);
        }
        for (link, indexes) in by_node.into_values() {
            let mut chunks = indexes.chunks(COMMANDS);
            while let Some(indexes) = chunks.next() {
                let mut pipeline = redis::Pipeline::new();
                for index in indexes {
                    let mut words = redis::Cmd::new();
                    for word in &commands[*index] {
                        words.arg(word);
                    }
                    pipeline.add_command(words);
                }
                match link.pipeline(pipeline).await {
                    Ok(of_node) => {
                        for (index, reply) in indexes.iter().zip(of_node) {
                            replies[*index] = reply.map_err(CallError::Refused);
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "holder registry not read");
                        // The rest would wait as long.
                        for index in indexes.iter().chain(chunks.by_ref().flatten()) {
                            replies[*index] = Err(error.clone());
                        }
                    }
                }
            }
        }
        replies
    }
}

/// Returns the list in a reply. A key of another type has none.
fn list(reply: Result<Value, CallError>) -> Result<Vec<Value>, CallError> {
    match reply {
        Ok(Value::Array(values)) => Ok(values),
        Ok(_) | Err(CallError::Refused(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn no_node() -> CallError {
    CallError::Unsent { reason: "no node is known to have the agent's keys".to_owned() }
}

/// Returns the commands that show which of these agents and holders are published, and the lengths of their hosts and
/// entries: [`AGENT_COMMANDS`] for each agent, then one for each holder.
fn length_commands(agents: &[ClientId], lookups: &[Lookup]) -> Vec<Vec<Vec<u8>>> {
    let mut commands = Vec::with_capacity(agents.len() * AGENT_COMMANDS + lookups.len());
    for agent in agents {
        let key = keys::agent(agent);
        commands.push(vec!["HSTRLEN".into(), key.clone(), "pid".into()]);
        commands.push(vec!["HSTRLEN".into(), key, "host".into()]);
        commands.push(vec!["PTTL".into(), keys::agent_trace(agent)]);
    }
    for (id, _) in lookups {
        let key = keys::agent_holders(&id.client);
        commands.push(vec!["HSTRLEN".into(), key, id.thread.to_string().into()]);
    }
    commands
}

/// Returns the refusal of Redis, if the Redis user lacks the right to read these keys.
pub(super) fn denial(replies: &[Result<Value, CallError>]) -> Option<ServerError> {
    replies.iter().find_map(|reply| match reply {
        Err(CallError::Refused(refused)) if refused.is_denied() => Some(refused.clone()),
        _ => None,
    })
}
