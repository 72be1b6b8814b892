//! The lookup of known holders and waiters in the registry of agents, a bounded number at a time.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use redisson::{ClientId, HolderId};
use service_kit::redis::CallError;

use super::agent_waiters::{KnownAgents, WaiterReader, next_part};
use super::registry::{Lookup, Registry};
use super::scope::Scope;
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{LockView, Observation, Walk};

/// The approximate number of holders and waiters that are looked up in one round. The others follow in the next rounds.
const HOLDERS: usize = 1_000;
/// The maximum number of locks that are looked at in one round, in addition to those that have changed. A walk through
/// all of them continues in the next round.
const VISITED: usize = 20_000;
/// The maximum number of holders that wait for their first identity. The walk finds the others later.
const MAX_UNIDENTIFIED: usize = 10_000;

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
    /// The agents that hold or wait for locks, from the latest walk through all locks and the one before.
    active: [HashSet<ClientId>; 2],
    known: KnownAgents,
    waiters: WaiterReader,
}

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

    /// Looks up some of the holders.
    ///
    /// # Errors
    /// Those of [`Registry::look_up`].
    pub(super) async fn look_up(&mut self) -> Result<(), CallError> {
        let lookups = self.choose();
        if lookups.is_empty() {
            return Ok(());
        }
        let report = self.registry.look_up(lookups).await?;
        self.model.observe(self.scope.id, Observation::AgentReport(report)).await;
        Ok(())
    }

    /// Reads the locks that the workers of agents wait for.
    ///
    /// # Errors
    /// Fails if Redis denies the read, or if a node stops replying during it.
    pub(super) async fn read_waiters(&mut self) -> Result<(), CallError> {
        let agents = self.active.iter().flatten().copied().collect();
        let lists = self.waiters.read(&self.scope, &self.registry, &self.known, agents).await?;
        for list in lists {
            self.model.observe(self.scope.id, Observation::AgentWaiters(list)).await;
        }
        Ok(())
    }

    /// Chooses the holders of this round. At least half of them have no identity yet, if there are enough such holders.
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
        // The agent's workers may wait for locks on other nodes of a cluster.
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

#[cfg(test)]
mod tests {
    use redisson::LockName;

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
