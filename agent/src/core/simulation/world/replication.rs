//! A replica of the main server, network partitions between the two, and failovers.
//!
//! The replica receives the master's whole state after each script, later and in order. During a partition the master
//! continues with the agents on its side. The replica may be promoted for the others; when the partition ends, the old
//! master becomes its replica.

use std::time::Duration;

use redisson::script::Value;

use super::super::redis::Redis;
use super::super::schedule::micros;
use super::network::RedisConnectionId;
use super::{Event, Input, Scenario, World};
use crate::core::{Lane, OpId};

/// The connections of an agent to one server.
pub(super) const LANES: [Lane; 4] =
    [Lane::Commands, Lane::Renewals, Lane::Grants, Lane::ReplicatedRenewals];

#[derive(Debug)]
pub(in crate::core::simulation) struct Replication {
    pub(in crate::core::simulation) master: usize,
    pub(in crate::core::simulation) replica: usize,
    /// The number of scripts that the master has run.
    offset: u64,
    /// The number of scripts whose effects the replica has.
    applied: u64,
    /// Counts partitions. Messages in flight when one began are lost.
    partitions: u64,
    /// The state of the current partition, if any.
    partition: Option<Partition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Partition {
    /// The replica still follows the master, but cannot reach it.
    Cut,
    /// The replica is a master too.
    Promoted,
}

/// The state of the master after a script.
#[derive(Debug)]
pub(super) struct Snapshot {
    offset: u64,
    partitions: u64,
    redis: Redis,
}

/// A step of a failover.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Promote,
    Heal,
}

impl Replication {
    pub(super) fn new(master: usize, replica: usize) -> Self {
        Self { master, replica, offset: 0, applied: 0, partitions: 0, partition: None }
    }

    /// Returns the server that clients would use, except the agents on the old master's side.
    pub(in crate::core::simulation) fn current(&self) -> usize {
        if self.has_two_masters() { self.replica } else { self.master }
    }

    /// Returns whether a replica was promoted while the old master continues.
    pub(in crate::core::simulation) fn has_two_masters(&self) -> bool {
        self.partition == Some(Partition::Promoted)
    }

    /// Returns whether a server rejects writes.
    pub(super) fn is_read_only(&self, node: usize) -> bool {
        node == self.replica && !self.has_two_masters()
    }
}

impl<S: Scenario> World<S> {
    /// Returns whether an agent and a server are on the same side.
    pub(super) fn reaches(&self, agent: usize, node: usize) -> bool {
        let cut = self.replication.as_ref().is_some_and(|state| state.partition.is_some());
        !cut || self.agents[agent].side == node
    }

    /// Sends the master's state to the replica. Returns the offset that confirms it, and the time that this takes.
    pub(super) fn replicate(&mut self, node: usize) -> Option<(u64, u64)> {
        if self.replication.as_ref()?.master != node {
            return None;
        }
        let lag = self.confirmation_delay();
        let redis = self.servers[node].redis.clone();
        let state = self.replication.as_mut()?;
        state.offset += 1;
        let (offset, partitions) = (state.offset, state.partitions);
        if state.partition.is_none() {
            self.after(lag, Event::Replicate(Snapshot { offset, partitions, redis }));
        }
        Some((offset, lag + 400))
    }

    pub(super) fn apply_snapshot(&mut self, snapshot: &Snapshot) {
        let now = self.now;
        let Some(state) = &mut self.replication else { return };
        let replica = &mut self.servers[state.replica];
        let lost = state.partitions != snapshot.partitions || snapshot.offset <= state.applied;
        if lost || !replica.up || replica.frozen_until > now {
            return;
        }
        state.applied = snapshot.offset;
        *replica.redis.keys_mut() = snapshot.redis.keys().clone();
        self.set_clocks();
    }

    /// Returns the outcome of WAIT after a script with that offset.
    pub(super) fn confirmed(&self, op: OpId, reply: Value, node: usize, offset: u64) -> Input {
        let confirmed = self.replication.as_ref().is_some_and(|state| {
            state.master == node && state.partition.is_none() && state.applied >= offset
        });
        Input::Confirmed(op, reply, u32::from(confirmed))
    }

    /// Cuts the master and some agents off from the replica and the others.
    pub(super) fn cut_off(&mut self) {
        let Some(state) = self.replication.as_mut().filter(|state| state.partition.is_none())
        else {
            return;
        };
        state.partition = Some(Partition::Cut);
        state.partitions += 1;
        let (master, replica) = (state.master, state.replica);
        for agent in 0..self.agents.len() {
            self.agents[agent].side = if self.rng.one_in(3) { replica } else { master };
        }
        self.log(|| format!("node {master} is cut off from node {replica}"));
        self.break_unreachable();
        let lease = micros(self.settings.lease.duration());
        let pause = self.rng.within(1000..lease / 3);
        self.after(pause, Event::Failover(Step::Promote));
    }

    pub(super) fn failover(&mut self, step: Step) {
        match step {
            Step::Promote => self.promote(),
            Step::Heal => self.heal(),
        }
    }

    fn promote(&mut self) {
        let lease = micros(self.settings.lease.duration());
        let (fails, pause) = (self.rng.one_in(6), self.rng.within(1000..lease * 3 / 2));
        let Some(state) = self.replication.as_mut().filter(|state| state.partition.is_some())
        else {
            return;
        };
        if !fails {
            state.partition = Some(Partition::Promoted);
            let replica = state.replica;
            self.log(|| format!("node {replica} is promoted"));
            for agent in 0..self.agents.len() {
                if self.agents[agent].side == replica {
                    self.follow(agent, replica);
                }
            }
        }
        self.after(pause, Event::Failover(Step::Heal));
    }

    /// Ends a partition. An old master becomes a replica, and all agents follow the new one.
    pub(super) fn heal(&mut self) {
        let Some(state) = self.replication.as_mut() else { return };
        let Some(partition) = state.partition.take() else { return };
        if partition == Partition::Promoted {
            std::mem::swap(&mut state.master, &mut state.replica);
        }
        let (master, replica) = (state.master, state.replica);
        state.applied = state.offset;
        self.log(|| format!("the partition ends: node {master} is the master"));
        let keys = self.servers[master].redis.keys().clone();
        *self.servers[replica].redis.keys_mut() = keys;
        self.set_clocks();
        for agent in 0..self.agents.len() {
            if self.agents[agent].main != master {
                self.follow(agent, master);
            }
        }
    }

    fn break_unreachable(&mut self) {
        let all: Vec<RedisConnectionId> = self.connections.keys().copied().collect();
        for connection in all {
            if !self.reaches(connection.0, connection.1) {
                self.break_connection(connection, "the network is cut");
            }
        }
    }

    /// Connects an agent to another server in place of its current one.
    fn follow(&mut self, agent: usize, node: usize) {
        let before = self.agents[agent].main;
        for lane in LANES {
            self.break_connection((agent, before, lane), "another server is the master");
            self.break_connection((agent, node, lane), "the server was a replica");
        }
        let state = &mut self.agents[agent];
        state.main = node;
        let moved = |(of, channel)| (if of == before { node } else { of }, channel);
        state.wanted_channels =
            std::mem::take(&mut state.wanted_channels).into_iter().map(moved).collect();
    }

    /// Returns the time that replicas take to confirm.
    pub(super) fn confirmation_delay(&mut self) -> u64 {
        let timeout = micros(self.settings.response_timeout) / 2;
        if self.faulty && self.rng.one_in(4) { timeout } else { self.rng.within(50..400) }
    }

    /// Returns the time after which a WAIT that is not satisfied ends.
    pub(super) fn wait_timeout(&self) -> u64 {
        micros(self.settings.response_timeout / 2 + Duration::from_micros(400))
    }
}
