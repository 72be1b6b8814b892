//! Observations that concern several locks: MONITOR's traffic, deadlocks, clients that are gone, reports of agents.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, HolderId, LockName, Moment, monitor};

use super::deadlock::{self, Cycle, Wait};
use super::{Effect, Model};
use crate::clock::{SteadyMillis, Time};
use crate::model::types::{
    AgentReport, AgentWaiters, ArchiveEntry, AwaitedLock, ClientView, Connections, HolderIdentity,
    ScopeId, Source, Traffic, WaitView,
};

/// The maximum number of pairs of waiter and holder among which deadlocks are searched.
const MAX_WAITS: usize = 100_000;

impl Model {
    /// Applies MONITOR's events. A lock whose holders have changed is read at once.
    pub(super) fn traffic(&mut self, scope_id: ScopeId, traffic: &Traffic) {
        if traffic.missed > 0 {
            // The missed events may include grants and waiters that gave up.
            self.monitor_stopped(scope_id);
            if let Some(since) = &mut self.scopes[scope_id.0].monitored_since {
                *since = traffic.at.moment();
            }
        }
        for event in &traffic.events {
            let effect = Effect::Event(Source::Monitor, event.action.as_str());
            let observed_by = scope_id;
            let scope_id = self.home(scope_id, &event.lock);
            let entry = self.scopes[scope_id.0].locks.get(&event.lock);
            let known = entry.is_some();
            let is_possible = entry.is_some_and(|entry| !entry.record.is_confirmed());
            let is_certain = event.certainty == monitor::Certainty::Certain;
            if !known && event.action == monitor::Action::Removed {
                // Any key can be removed by hand.
                continue;
            }
            self.effects.push((observed_by, effect));
            if let (Some(holder), Some(monitor::Address::Tcp(address))) =
                (event.holder, event.client)
            {
                let clients = &mut self.scopes[scope_id.0].clients;
                clients.record_activity(holder.client, address, traffic.at.moment());
            }
            let unsubscribed = self.unsubscribed_client(scope_id, event, traffic.at);
            // A command that only looks like a lock's does not prove that a hash of a lock's shape is one.
            if is_possible && !is_certain && event.action != monitor::Action::Removed {
                continue;
            }
            let is_lock = is_certain && event.holder.is_some();
            let mut admit = || self.admit(scope_id, &event.lock, Source::Monitor, traffic.at);
            if !(known || is_lock && admit()) {
                continue;
            }
            let known_now =
                self.update(scope_id, &event.lock, traffic.at, |record, context, effects| {
                    record.traffic(event, traffic.at, context, effects);
                    if let Some(client) = unsubscribed {
                        record.unsubscribed(client, traffic.at, effects);
                    }
                });
            if known_now && (!known || changes_holders(event.action)) {
                self.prioritize(scope_id, &event.lock);
            }
        }
    }

    /// Returns the client that unsubscribes from a lock's channel with this event, so that none of its threads waits
    /// any more. The event only has an address, so the client must be the only one there.
    fn unsubscribed_client(
        &self,
        scope_id: ScopeId,
        event: &monitor::Event,
        at: Time,
    ) -> Option<ClientId> {
        let (monitor::Action::Unsubscribed, Some(monitor::Address::Tcp(address))) =
            (event.action, event.client)
        else {
            return None;
        };
        let scope = &self.scopes[scope_id.0];
        let mut waiting = scope.locks.get(&event.lock)?.record.attempting_clients();
        waiting.find(|client| scope.clients.is_alone_at(client, address.ip(), at.moment()))
    }

    /// Applies a report of agents about themselves and their holders.
    pub(super) fn agent_report(&mut self, scope_id: ScopeId, report: AgentReport) {
        let scope = &mut self.scopes[scope_id.0];
        let agents_changed = scope.clients.report(&report);
        let mut changed = Vec::new();
        let mut named = Vec::new();
        for (name, id, identity) in report.holders {
            let denies = scope.clients.would_publish(&id.client);
            let Some(entry) = scope.locks.get_mut(&name) else { continue };
            // A name without a proof is displayed with its remark, but not remembered.
            let believed = identity.as_ref().filter(|it| !it.verification.is_only_claimed());
            if let Some(identity) = believed {
                named.extend(names_of(&id, identity));
            }
            let identified = entry.record.identify(id, identity, denies, report.at);
            if entry.record.update_gone(&scope.clients) || identified {
                changed.push(name);
            }
        }
        for name in changed {
            self.settle(scope_id, &name);
            self.prioritize(scope_id, &name);
        }
        let names = self.scopes[scope_id.0].clients.names();
        named.retain(|(owner, name)| names.record(owner, name));
        self.archive_names(scope_id, named, report.at.steady());
        if agents_changed {
            self.update_gone_holders(scope_id);
        }
    }

    /// Forgets reports that no later ones have replaced for long, although the server can be read: who lives, who waits at
    /// agents, and how many connections listen.
    pub(super) fn forget_unreported(&mut self, passed: Duration, now: Moment) {
        for scope_id in (0..self.scopes.len()).map(ScopeId) {
            let scope = &mut self.scopes[scope_id.0];
            if !scope.is_readable() {
                continue;
            }
            let mut changed = scope.clients.forget_unlisted(passed, now);
            if scope.clients.forget_unreported(passed) {
                scope.locks.iter_mut().for_each(|(_, entry)| entry.record.forget_denials());
                changed = true;
            }
            let at_agents = scope.unreported_waiters(passed);
            let uncounted = scope.uncounted_locks(passed);
            if changed {
                self.update_gone_holders(scope_id);
            }
            for waiters in at_agents {
                self.agent_waiters(scope_id, &waiters);
            }
            for name in uncounted {
                self.update(scope_id, &name, now, |record, _, _| record.forget_subscribers());
            }
        }
    }

    /// Applies the list of locks that workers of an agent wait for.
    pub(super) fn agent_waiters(&mut self, scope_id: ScopeId, waiters: &AgentWaiters) {
        let AgentWaiters { agent, locks, at } = waiters;
        for name in self.scopes[scope_id.0].set_agent_waits(waiters) {
            self.update(scope_id, &name, *at, |record, _, _| {
                record.agent_waits(*agent, 0, &[], *at);
            });
        }
        for AwaitedLock { lock, count, first } in locks {
            let known = self.update(scope_id, lock, *at, |record, _, _| {
                record.agent_waits(*agent, *count, first, *at);
            });
            // The lock is read now, and gets its waiters from the next list.
            if !known {
                self.prioritize(scope_id, lock);
            }
        }
    }

    /// Applies a list of all connections: which clients are gone, and the names of others.
    pub(super) fn connected(&mut self, scope_id: ScopeId, connections: &Connections, at: Time) {
        let gone_changed = self.scopes[scope_id.0].clients.connected(connections, at);
        self.name_clients(scope_id, connections, at);
        if gone_changed {
            self.update_gone_holders(scope_id);
        }
    }

    /// Applies the names of clients in a list of all connections.
    fn name_clients(&mut self, scope_id: ScopeId, connections: &Connections, at: Time) {
        let scope = &mut self.scopes[scope_id.0];
        let named = scope.clients.name_clients(connections, at.moment());
        if !named.is_empty() {
            let has_new_name = |client: &ClientId| named.iter().any(|(id, _)| id == client);
            let mut changed: Vec<LockName> = Vec::new();
            for (name, entry) in scope.locks.iter_mut() {
                if entry.record.redraw_if(has_new_name) {
                    changed.push(name.clone());
                }
            }
            changed.sort_unstable();
            for name in changed {
                self.settle(scope_id, &name);
            }
            let named = named.into_iter().map(|(id, name)| (id.to_string(), name)).collect();
            self.archive_names(scope_id, named, at.steady());
        }
    }

    /// Sends names to the history on disk.
    fn archive_names(&mut self, scope: ScopeId, named: Vec<(String, String)>, at: SteadyMillis) {
        for (owner, name) in named {
            let entry = Box::new(ArchiveEntry::Named { owner, name, at });
            self.effects.push((scope, Effect::Archive(entry)));
        }
    }

    /// Updates the holders of all locks after clients have gone or come back.
    pub(super) fn update_gone_holders(&mut self, scope_id: ScopeId) {
        let scope = &mut self.scopes[scope_id.0];
        let mut changed = Vec::new();
        for (name, entry) in scope.locks.iter_mut() {
            if entry.record.update_gone(&scope.clients) {
                changed.push(name.clone());
            }
        }
        changed.sort_unstable();
        for name in changed {
            self.settle(scope_id, &name);
            self.prioritize(scope_id, &name);
        }
    }

    /// Drops waiters that only MONITOR has shown, since it has stopped or missed events.
    pub(super) fn monitor_stopped(&mut self, scope_id: ScopeId) {
        let names: Vec<LockName> =
            self.scopes[scope_id.0].locks.with_named_waiters().iter().cloned().collect();
        for name in names {
            self.update(scope_id, &name, self.ticked, |record, _, _| record.monitor_stopped());
        }
    }

    /// Searches for deadlocks among the waiters and holders known by name.
    pub(super) fn detect_deadlocks(&mut self, now: Moment) {
        let mut locks = Vec::new();
        for (index, scope) in self.scopes.iter().enumerate() {
            // While a scope cannot be read, no problem of its locks begins or ends.
            if scope.is_readable() {
                locks.extend(
                    scope.locks.with_named_waiters().iter().map(|name| (index, name.clone())),
                );
            }
        }
        if locks.is_empty() {
            return;
        }
        let record = |lock: &(usize, LockName)| self.scopes[lock.0].locks.get(&lock.1);
        let mut waits: Vec<Wait> = Vec::new();
        for lock in &locks {
            let Some(entry) = record(lock) else { continue };
            waits.extend(entry.record.waits(lock).take(MAX_WAITS.saturating_sub(waits.len())));
        }
        let mut part_of: HashMap<(usize, LockName), Arc<Cycle>> = HashMap::new();
        // A wait of several cycles is found in one of them, which should be a certain one.
        let certain = waits.iter().filter(|wait| wait.is_certain());
        let certain = deadlock::cycles(certain);
        for cycle in certain.into_iter().chain(deadlock::cycles(&waits)) {
            if !cycle.is_confirmed(now) {
                // The waits may not have overlapped in time; the next readings decide.
                for wait in &cycle.waits {
                    self.prioritize(ScopeId(wait.lock.0), &wait.lock.1);
                }
                continue;
            }
            let views = cycle.waits.iter().map(|wait| WaitView {
                waiter: wait.waiter.to_string(),
                lock: self.scopes[wait.lock.0].id(&wait.lock.1),
                holder: wait.holder.to_string(),
            });
            let cycle = Arc::new(Cycle { views: views.collect(), ..cycle });
            for wait in &cycle.waits {
                part_of.entry(wait.lock.clone()).or_insert_with(|| Arc::clone(&cycle));
            }
        }
        for lock in locks {
            let cycle = part_of.remove(&lock).or_else(|| self.lasting_cycle(&lock, &waits));
            self.update(ScopeId(lock.0), &lock.1, self.ticked, |record, context, effects| {
                record.set_cycle(cycle, context, effects);
            });
        }
    }

    /// Returns the known deadlock of a lock if nothing shows that it has ended: each of its waits is among the current ones, is
    /// for a lock that cannot be read now, or was shown by MONITOR, which has not shown everything since.
    fn lasting_cycle(&self, lock: &(usize, LockName), waits: &[Wait]) -> Option<Arc<Cycle>> {
        let cycle = self.scopes[lock.0].locks.get(&lock.1)?.record.cycle()?;
        let is_readable = |wait: &&Wait| {
            let (scope, name) = &wait.lock;
            self.scopes[self.home(ScopeId(*scope), name).0].is_readable()
        };
        let (read, unread): (Vec<&Wait>, Vec<&Wait>) = cycle.waits.iter().partition(is_readable);
        let is_seen = |wait: &&Wait| waits.iter().any(|now| now.is_same(wait));
        let is_known = |wait: &&Wait| self.scopes[wait.lock.0].locks.contains(&wait.lock.1);
        let may_last = !cycle.waits.iter().all(|wait| is_seen(&wait))
            && !cycle.is_limited()
            && unread.iter().all(is_known)
            && read.iter().all(|wait| is_seen(wait) || self.may_last_unseen(wait));
        let is_unread = !unread.is_empty();
        may_last.then(|| match cycle.unread == is_unread {
            true => Arc::clone(cycle),
            false => Arc::new(Cycle { unread: is_unread, ..Cycle::clone(cycle) }),
        })
    }

    /// Returns whether a wait that only MONITOR has shown may continue: MONITOR has paused since, and the same hold still has
    /// waiters.
    fn may_last_unseen(&self, wait: &Wait) -> bool {
        let scope = &self.scopes[wait.lock.0];
        let paused = scope.monitored_since.is_none_or(|since| since > wait.confirmed);
        let entry = scope.locks.get(&wait.lock.1).filter(|_| paused && wait.doubted_for.is_some());
        entry.is_some_and(|entry| entry.record.still_blocks(wait))
    }
}

/// Returns the names of a holder and of its agent.
fn names_of(id: &HolderId, identity: &HolderIdentity) -> impl Iterator<Item = (String, String)> {
    let worker = ClientView {
        name: identity.name.clone(),
        host: identity.host.clone(),
        comm: identity.comm.clone(),
        ..ClientView::default()
    };
    let agent = identity.host.as_ref().map(|host| format!("lockscope-agent@{host}"));
    let agent = agent.map(|name| (id.client.to_string(), name));
    worker.label().map(|name| (id.to_string(), name)).into_iter().chain(agent)
}

/// Returns whether an event changes the lock's holders or their counts.
fn changes_holders(what: monitor::Action) -> bool {
    use monitor::Action;
    matches!(
        what,
        Action::Acquired { .. }
            | Action::Reentered { .. }
            | Action::Recounted { .. }
            | Action::PartlyReleased
            | Action::Released
            | Action::HandedOver { .. }
            | Action::ForceReleased
            | Action::Removed
            | Action::Vanished
    )
}
