//! The nodes of a cluster. Each is a separate scope of the same deployment, and a lock is in the scope of the node that
//! serves its slot.
//!
//! The state of a server, such as its clock and its reachability, is thus known for each node. A lock in a slot that no
//! node serves stays at its last node. Other modules know one scope for the whole deployment, the *front*, which has no
//! locks: it passes observations and requests about a lock on to the lock's node.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redisson::slot::{SLOTS, slot};
use redisson::{LockName, Moment};

use super::Model;
use super::schedule::Schedule;
use super::scope::Scope;
use crate::clock::Time;
use crate::model::types::{Observation, ScopeId, SlotAssignment};

#[derive(Debug)]
pub(super) struct Cluster {
    /// The node of each slot, or the last one that served it.
    owners: Box<[Option<ScopeId>]>,
    /// The watched nodes.
    pub(super) nodes: Vec<ScopeId>,
    /// Nodes that are no longer watched; their scopes are reused once they are empty.
    left: Vec<ScopeId>,
    spare: Vec<ScopeId>,
    /// The nodes that receive the release messages of all nodes, usually one, with the instants since which they do.
    listeners: BTreeMap<ScopeId, Moment>,
}

impl Cluster {
    fn new() -> Self {
        let owners = vec![None; usize::from(SLOTS)].into_boxed_slice();
        let (nodes, left, spare) = (Vec::new(), Vec::new(), Vec::new());
        Self { owners, nodes, left, spare, listeners: BTreeMap::new() }
    }

    fn owner(&self, name: &LockName) -> Option<ScopeId> {
        self.owners.get(usize::from(slot(name.as_bytes()))).copied().flatten()
    }
}

impl Model {
    /// Returns the scope of a lock that was observed in `scope`.
    pub(super) fn home(&self, scope: ScopeId, name: &LockName) -> ScopeId {
        if self.clusters.is_empty() {
            return scope;
        }
        let front = self.scopes[scope.0].front.unwrap_or(scope);
        let owner = self.clusters.get(&front).map(|cluster| cluster.owner(name));
        owner.map_or(scope, |owner| owner.unwrap_or(front))
    }

    /// Returns the watched databases of a server. A cluster has one.
    pub(super) fn databases(&self, scope: ScopeId) -> Vec<ScopeId> {
        let Scope { deployment, cluster, .. } = &self.scopes[scope.0];
        if *cluster || self.clusters.contains_key(&scope) {
            return vec![scope];
        }
        let same = |other: &Scope| !other.cluster && other.deployment == *deployment;
        let all = self.scopes.iter().enumerate();
        all.filter(|(_, other)| same(other)).map(|(index, _)| ScopeId(index)).collect()
    }

    /// Returns the scope that an observation concerns, or `None` if a node reports a lock that it no longer serves.
    pub(super) fn target_scope(
        &self,
        scope: ScopeId,
        observation: &Observation,
    ) -> Option<ScopeId> {
        match observation {
            Observation::Read { name, .. } => {
                Some(scope).filter(|_| self.home(scope, name) == scope)
            }
            Observation::KeyChanged { name, .. }
            | Observation::CompanionKey { name }
            | Observation::ForceRelease { name, .. }
            | Observation::OperatorActed { name, .. }
            | Observation::Acknowledged { name, .. } => Some(self.home(scope, name)),
            _ => Some(scope),
        }
    }

    /// Adds a node to the cluster with this front.
    pub fn join(&mut self, front: ScopeId, now: Moment) -> ScopeId {
        let Scope { deployment, db, listening_since, .. } = &self.scopes[front.0];
        let listening_since = *listening_since;
        let names = self.names.clone();
        let rate = self.settings.reads_a_second(0);
        let mut scope = Scope::new(Arc::clone(deployment), *db, rate, now, names);
        scope.front = Some(front);
        scope.cluster = true;
        scope.listening_since = listening_since;
        let cluster = self.clusters.entry(front).or_insert_with(Cluster::new);
        let id = cluster.spare.pop().unwrap_or(ScopeId(self.scopes.len()));
        cluster.nodes.push(id);
        match self.scopes.get_mut(id.0) {
            Some(spare) => *spare = scope,
            None => self.scopes.push(scope),
        }
        id
    }

    /// Removes a node. Locks that no other node has taken over stay as they were last seen.
    pub fn leave(&mut self, node: ScopeId) {
        self.observe(node, Observation::MonitorActive { on: false });
        self.observe(node, Observation::PubSubActive { on: false, at: self.ticked });
        self.observe(node, Observation::ServerDown);
        self.scopes[node.0].forget_refused();
        self.stale = true;
        let Some(front) = self.scopes[node.0].front else { return };
        if let Some(cluster) = self.clusters.get_mut(&front) {
            cluster.nodes.retain(|other| *other != node);
            cluster.left.push(node);
        }
        self.reclaim(front);
        self.update_scanned(front);
    }

    /// Sets the instant since which release messages arrive at a server. In a cluster, one node receives those of all.
    pub(super) fn set_listening(&mut self, scope: ScopeId, since: Option<Moment>) {
        let front = self.scopes[scope.0].front;
        let Some((front, cluster)) =
            front.and_then(|front| Some((front, self.clusters.get_mut(&front)?)))
        else {
            self.scopes[scope.0].listening_since = since;
            return;
        };
        match since {
            Some(since) => cluster.listeners.insert(scope, since),
            None => cluster.listeners.remove(&scope),
        };
        let since = cluster.listeners.values().min().copied();
        for node in cluster.nodes.iter().chain([&front]) {
            self.scopes[node.0].listening_since = since;
        }
    }

    /// Applies a new assignment of slots. Locks move with their slots. Reading them at the new node shows which were lost with
    /// a node that no longer serves any.
    pub(super) fn assign_slots(&mut self, front: ScopeId, served: &SlotAssignment) {
        let Some(cluster) = self.clusters.get_mut(&front) else { return };
        for (range, node) in &served.slots {
            for slot in RangeInclusive::clone(range) {
                if let Some(owner) = cluster.owners.get_mut(usize::from(slot)) {
                    *owner = Some(*node);
                }
            }
        }
        let cluster = &self.clusters[&front];
        let known = cluster.nodes.iter().chain(&cluster.left).copied();
        let known: Vec<ScopeId> = known.chain([front]).collect();
        for from in known {
            let names = self.scopes[from.0].locks.names();
            let mut gone: Vec<LockName> =
                names.filter(|name| self.home(from, name) != from).cloned().collect();
            gone.sort_unstable();
            let drained =
                self.clusters[&front].left.contains(&from) || served.drained.contains(&from);
            for name in &gone {
                self.move_lock(from, name, served.at, drained);
            }
        }
        self.reclaim(front);
        self.update_scanned(front);
    }

    /// Moves a lock with its record to the node that now serves it.
    fn move_lock(&mut self, from: ScopeId, name: &LockName, at: Time, drained: bool) {
        let to = self.home(from, name);
        let Some(mut entry) = self.scopes[from.0].move_out(name) else { return };
        // Grants and waiters that gave up on the way were not observed.
        entry.record.monitor_stopped();
        if let Ok([source, target]) = self.scopes.get_disjoint_mut([from.0, to.0]) {
            target.clients.adopt(&source.clients, entry.record.clients());
        }
        self.scopes[to.0].move_in(name, entry, at, drained);
        self.settle(to, name);
        let target = &mut self.scopes[to.0];
        if let Some(entry) = target.locks.get_mut(name) {
            target.schedule.advance(&mut entry.due, name, at.moment());
        }
    }

    /// Makes the empty scopes of nodes that have left available to others.
    fn reclaim(&mut self, front: ScopeId) {
        let Some(cluster) = self.clusters.get_mut(&front) else { return };
        let scopes = &self.scopes;
        let empty: Vec<ScopeId> =
            cluster.left.extract_if(.., |node| scopes[node.0].locks.is_empty()).collect();
        for node in &empty {
            // It still has the names of the locks that were to be read.
            self.scopes[node.0].schedule =
                Schedule::new(self.settings.reads_a_second(0), self.ticked);
            for owner in cluster.owners.iter_mut().filter(|owner| **owner == Some(*node)) {
                *owner = None;
            }
        }
        cluster.spare.extend(empty);
    }

    /// Marks the whole cluster as scanned once all nodes have been. The mark stays, since the locks of a new node came
    /// from other nodes.
    pub(super) fn update_scanned(&mut self, front: ScopeId) -> bool {
        let Some(cluster) = self.clusters.get(&front) else { return false };
        let began = cluster.nodes.iter().map(|node| self.scopes[node.0].pass_began());
        let Some(first) = began.min().flatten() else { return false };
        let new = self.scopes[front.0].mark_scanned(first);
        self.stale |= new;
        new
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redisson::{ClientId, HolderId};

    use super::super::tests::{MAIN, absent, at, held, holder, model, name, stamp, time};
    use super::*;
    use crate::clock::SteadyMillis;
    use crate::model::types::{
        AgentReport, AgentWaiters, AwaitedLock, LockId, PastEnding, Presence, ProblemKind, Reading,
        Source, State,
    };

    /// Returns a cluster of two readable nodes, each with half of the slots.
    fn of_two() -> (Model, [ScopeId; 2]) {
        let mut model = model();
        let nodes = [model.join(MAIN, at(0)), model.join(MAIN, at(0))];
        for node in nodes {
            up(&mut model, node, 0);
        }
        serve(&mut model, &[(0..=8_191, nodes[0]), (8_192..=16_383, nodes[1])], &[], 0);
        (model, nodes)
    }

    fn up(model: &mut Model, node: ScopeId, ms: u64) {
        let (since, at, run_id) = (at(ms), SteadyMillis(ms), Some("r".into()));
        model.observe(node, Observation::ServerUp { since, at, run_id, cluster: true });
    }

    fn serve(model: &mut Model, by: &[(RangeInclusive<u16>, ScopeId)], over: &[ScopeId], ms: u64) {
        let (slots, drained) = (by.to_vec(), over.to_vec());
        model.observe(
            MAIN,
            Observation::SlotsAssigned(SlotAssignment { slots, drained, at: time(ms) }),
        );
    }

    fn read(model: &mut Model, node: ScopeId, lock: &str, ms: u64, reading: Reading) {
        let source = Source::Poll;
        model.observe(
            node,
            Observation::Read { name: name(lock), stamp: stamp(ms), source, reading },
        );
    }

    fn state(model: &mut Model, lock: &str) -> Option<State> {
        model.publish(SteadyMillis(0));
        let id = LockId { deployment: Arc::from("main"), db: 0, name: name(lock) };
        model.snapshot.get(&id).map(|lock| lock.state)
    }

    /// Returns names of locks whose slots are in the first half, or in the second.
    fn names(first: bool) -> impl Iterator<Item = String> {
        (0..).map(|i| format!("l:{i}")).filter(move |name| (slot(name.as_bytes()) < 8_192) == first)
    }

    #[test]
    fn a_lock_is_at_the_node_of_its_slot_and_becomes_unknown_with_it() {
        let (mut model, nodes) = of_two();
        let (a, b) = (names(true).next().unwrap(), names(false).next().unwrap());
        read(&mut model, nodes[0], &a, 1, held(1, 1, Some(30_000)));
        read(&mut model, nodes[1], &b, 1, held(1, 1, Some(30_000)));
        // A node's reading of another node's lock is ignored.
        read(&mut model, nodes[0], &b, 2, held(2, 1, Some(30_000)));
        assert_eq!(model.lock_count, 2);
        assert_eq!(state(&mut model, &a), Some(State::Held));
        assert_eq!(state(&mut model, &b), Some(State::Held));
        // A message may arrive from any node, and the lock is read at its own.
        let names = vec![name(&b)];
        model.observe(nodes[0], Observation::Released { names, at: time(500) });
        let due = |model: &mut Model, node| -> Vec<LockName> {
            model.due(node, at(800), 10).into_iter().map(|read| read.name).collect()
        };
        assert!(!due(&mut model, nodes[0]).contains(&name(&b)));
        assert!(due(&mut model, nodes[1]).contains(&name(&b)));
        model.observe(nodes[1], Observation::ServerDown);
        assert_eq!(state(&mut model, &a), Some(State::Held));
        assert_eq!(state(&mut model, &b), Some(State::Unknown));
    }

    #[test]
    fn release_messages_arrive_for_all_nodes_at_the_node_that_listens() {
        let (mut model, nodes) = of_two();
        let listens = |model: &mut Model, node, on, ms| {
            model.observe(node, Observation::PubSubActive { on, at: at(ms) });
            nodes.map(|node| model.scopes[node.0].listening_since)
        };
        model.observe(MAIN, Observation::PubSubActive { on: false, at: at(0) });
        assert_eq!(listens(&mut model, nodes[0], true, 1), [Some(at(1)); 2]);
        let lock = names(false).next().unwrap();
        read(&mut model, nodes[1], &lock, 10, held(1, 1, Some(30_000)));
        read(&mut model, nodes[1], &lock, 1_000, absent());
        assert_eq!(state(&mut model, &lock), Some(State::Held), "the message may be under way");
        let released = Observation::Released { names: vec![name(&lock)], at: time(1_100) };
        model.observe(nodes[0], released);
        let id = LockId { deployment: Arc::from("main"), db: 0, name: name(&lock) };
        model.publish(SteadyMillis(0));
        assert_eq!(
            model.snapshot.get(&id).unwrap().history.past[0].ended.map(PastEnding::as_str),
            Some("released")
        );
        // Another node takes over, and the one before reports its end later.
        assert_eq!(listens(&mut model, nodes[1], true, 2_000), [Some(at(1)); 2]);
        // That one may have reconnected in between.
        assert_eq!(listens(&mut model, nodes[0], true, 2_001), [Some(at(2_000)); 2]);
        assert_eq!(listens(&mut model, nodes[0], false, 2_002), [Some(at(2_000)); 2]);
        let new = model.join(MAIN, at(2_100));
        assert_eq!(model.scopes[new.0].listening_since, Some(at(2_000)));
        model.leave(nodes[1]);
        assert_eq!(model.scopes[nodes[0].0].listening_since, None);
    }

    #[test]
    fn the_snapshot_is_complete_once_every_node_has_been_scanned_and_stays_so() {
        let (mut model, nodes) = of_two();
        let pass = |model: &mut Model, node| {
            model.observe(
                node,
                Observation::ScanEnded { started: at(1), ended: time(1), whole: true, skipped: 0 },
            );
            model.publish(SteadyMillis(1));
            model.snapshot.complete
        };
        assert!(!pass(&mut model, nodes[0]));
        assert!(pass(&mut model, nodes[1]));
        model.join(MAIN, at(2));
        assert!(pass(&mut model, nodes[0]));
    }

    #[test]
    fn locks_without_room_at_a_node_that_has_left_are_not_counted() {
        let (mut model, nodes) = of_two();
        let ended =
            Observation::ScanEnded { started: at(1), ended: time(1), whole: true, skipped: 7 };
        model.observe(nodes[0], ended);
        model.publish(SteadyMillis(1));
        assert_eq!(model.snapshot.possible_not_kept, 7);
        model.leave(nodes[0]);
        model.publish(SteadyMillis(2));
        assert_eq!(model.snapshot.possible_not_kept, 0);
    }

    #[test]
    fn a_wait_at_an_agent_that_ends_while_the_lock_moves_ends() {
        let (mut model, nodes) = of_two();
        let lock = names(true).next().unwrap();
        read(&mut model, nodes[0], &lock, 1, held(1, 1, Some(30_000)));
        let agent = ClientId::from_random([8; 16]);
        let waiting = |model: &mut Model, node, first: &[i64], ms| {
            let first: Vec<_> =
                first.iter().map(|n| (HolderId::new(agent, *n), SteadyMillis(1))).collect();
            let awaited = AwaitedLock { lock: name(&lock), count: first.len() as u64, first };
            let locks = [awaited].into_iter().filter(|it| it.count > 0).collect();
            let waiters = AgentWaiters { agent, locks, at: time(ms) };
            model.observe(node, Observation::AgentWaiters(waiters));
            model.publish(SteadyMillis(0));
            let id = LockId { deployment: Arc::from("main"), db: 0, name: name(&lock) };
            model.snapshot.get(&id).unwrap().waiting
        };
        assert_eq!(waiting(&mut model, nodes[0], &[7], 2), 1);
        serve(&mut model, &[(0..=8_191, nodes[1])], &[], 100);
        assert_eq!(waiting(&mut model, nodes[0], &[], 200), 1, "it has another node's locks");
        assert_eq!(waiting(&mut model, nodes[1], &[], 300), 0);
    }

    #[test]
    fn a_lock_whose_agent_is_gone_stays_leaked_when_it_moves() {
        let (mut model, nodes) = of_two();
        let lock = names(true).next().unwrap();
        let leaked = |model: &mut Model| {
            model.publish(SteadyMillis(0));
            let id = LockId { deployment: Arc::from("main"), db: 0, name: name(&lock) };
            let view = model.snapshot.get(&id).unwrap();
            view.problems.iter().any(|found| found.problem == ProblemKind::Leaked)
        };
        for ms in (0..60_000).step_by(2_000) {
            read(&mut model, nodes[0], &lock, ms, held(1, 1, Some(900_000 - ms)));
            let presence = if ms < 5_000 { Presence::Present } else { Presence::Missing };
            let agents = vec![(holder(1).client, presence)];
            let report = AgentReport { agents, holders: Vec::new(), at: time(ms + 100) };
            model.observe(nodes[0], Observation::AgentReport(report));
        }
        assert!(leaked(&mut model));
        serve(&mut model, &[(0..=8_191, nodes[1])], &[], 61_000);
        read(&mut model, nodes[1], &lock, 62_000, held(1, 1, Some(838_000)));
        assert!(leaked(&mut model));
    }

    #[test]
    fn locks_lost_in_a_failover_make_one_notice_and_none_counts_as_expired() {
        let (mut model, nodes) = of_two();
        let locks: Vec<String> = names(true).take(20).collect();
        // The locks are renewed, and are about to expire when the node is lost.
        for lock in &locks {
            read(&mut model, nodes[0], lock, 1, held(1, 1, Some(30_000)));
            read(&mut model, nodes[0], lock, 10_001, held(1, 1, Some(30_000)));
            read(&mut model, nodes[0], lock, 39_900, held(1, 1, Some(101)));
        }
        let next = model.join(MAIN, at(39_950));
        up(&mut model, next, 0);
        let all = [(0..=8_191, next), (8_192..=16_383, nodes[1])];
        serve(&mut model, &all, &[nodes[0]], 40_000);
        model.leave(nodes[0]);
        assert_eq!(model.due(next, at(40_001), 100).len(), 20, "each is read there at once");
        for (i, lock) in locks.iter().enumerate() {
            model.tick(at(40_002));
            assert!(model.notices.is_empty());
            let reading = if i < 15 { absent() } else { held(1, 1, Some(30_000)) };
            read(&mut model, next, lock, 40_003, reading);
        }
        model.tick(at(40_010));
        let text = &model.notices[0].text;
        assert!(
            text.contains("20 known locks") && text.contains("15 held locks were gone"),
            "{text}"
        );
        assert_eq!(model.notices.len(), 1);
        assert_eq!(state(&mut model, &locks[0]), Some(State::Free));
        assert_eq!(state(&mut model, &locks[19]), Some(State::Held));
        assert!(model.snapshot.locks().all(|lock| lock.problems.is_empty()));
        assert_eq!(model.join(MAIN, at(40_011)), nodes[0], "its scope is reused");
    }

    #[test]
    fn locks_move_with_their_slots_and_none_counts_as_lost() {
        let (mut model, nodes) = of_two();
        let mut two = names(true);
        let (stays, goes) = (two.next().unwrap(), two.next().unwrap());
        for lock in [&stays, &goes] {
            read(&mut model, nodes[0], lock, 1, held(1, 1, Some(30_000)));
        }
        let moved = slot(goes.as_bytes());
        serve(&mut model, &[(moved..=moved, nodes[1])], &[], 100);
        read(&mut model, nodes[0], &goes, 101, absent());
        assert_eq!(state(&mut model, &goes), Some(State::Held), "that node no longer serves it");
        read(&mut model, nodes[1], &goes, 102, held(1, 2, Some(29_000)));
        model.tick(at(200));
        // It is released on the way back, and no message arrives.
        serve(&mut model, &[(moved..=moved, nodes[0])], &[], 300);
        for ms in [301, 701] {
            read(&mut model, nodes[0], &goes, ms, absent());
        }
        model.tick(at(800));
        assert!(model.notices.is_empty(), "{:?}", model.notices);
        assert_eq!(state(&mut model, &goes), Some(State::Free));
        let id = LockId { deployment: Arc::from("main"), db: 0, name: name(&goes) };
        let view = model.snapshot.get(&id).unwrap();
        assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some("vanished"));
        assert_eq!(state(&mut model, &stays), Some(State::Held));
        // No node serves the slots of a node that has left, so its locks stay as they were last seen.
        read(&mut model, nodes[0], &stays, 900, held(1, 1, Some(30_000)));
        model.leave(nodes[0]);
        assert_eq!(state(&mut model, &stays), Some(State::Unknown));
        assert_eq!(model.due(nodes[0], at(60_000), 10), []);
        let entry = Duration::from_secs(3_600);
        model.tick(at(900) + entry);
        assert_eq!(state(&mut model, &stays), Some(State::Unknown));
    }
}
