//! Connections between agents and servers, which keep the order of bytes and break; and subscriptions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson::script::Call;

use super::super::redis::Served;
use super::super::schedule::micros;
use super::{Event, Input, Scenario, Server, World};
use crate::core::{Failure, Lane, Node, OpId};

/// Returns whether the replies of a connection carry what replicas have.
pub(super) fn must_be_confirmed(lane: Lane) -> bool {
    matches!(lane, Lane::Grants | Lane::ReplicatedRenewals)
}

/// An agent's connection for scripts: agent, server and purpose.
pub(super) type RedisConnectionId = (usize, usize, Lane);

#[derive(Debug)]
pub(super) struct Packet {
    connection: RedisConnectionId,
    generation: u64,
    op: OpId,
    call: Call,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) up: bool,
    pub(super) generation: u64,
    pub(super) in_flight: BTreeSet<OpId>,
    /// Bytes keep their order.
    pub(super) arrived: u64,
    pub(super) answered: u64,
}

impl Server {
    /// Counts the subscribed agents of each channel.
    fn subscribers(&self) -> BTreeMap<String, usize> {
        let mut subscribers = BTreeMap::new();
        for (channel, _) in &self.subscriptions {
            let channel = String::from_utf8_lossy(channel).into_owned();
            *subscribers.entry(channel).or_default() += 1;
        }
        subscribers
    }
}

impl<S: Scenario> World<S> {
    pub(super) fn connection(&mut self, id: RedisConnectionId) -> &mut Connection {
        self.connections.get_mut(&id).expect("connections are made once")
    }

    pub(super) fn send(&mut self, connection: RedisConnectionId, op: OpId, call: Call) {
        self.log(|| {
            let args: Vec<_> = call.args.iter().map(String::from_utf8_lossy).collect();
            format!(
                "agent {} -> node {} {} {op:?} {args:?}",
                connection.0, connection.1, call.script.name
            )
        });
        let (now, slow) = (self.now, self.servers[connection.1].slow);
        let travel = self.rng.within(50..400) + slow;
        let timeout = micros(self.settings.response_timeout);
        let state = self.connection(connection);
        if !state.up {
            self.unsent += 1;
            let failure = Err(Failure::Unsent("no connection".to_owned()));
            let input = Input::Outcome(op, failure);
            return self.after(20, Event::Input { agent: connection.0, input });
        }
        state.in_flight.insert(op);
        state.arrived = state.arrived.max(now + travel);
        let (generation, arrives) = (state.generation, state.arrived - now);
        self.after(arrives, Event::Arrive(Packet { connection, generation, op, call }));
        self.after(timeout, Event::TimeOut { connection, generation, op });
    }

    pub(super) fn arrive(&mut self, packet: Packet) {
        let (agent, node, _) = packet.connection;
        let now = self.now;
        let server = &mut self.servers[node];
        if !server.up {
            return;
        }
        if server.frozen_until > now {
            let wait = server.frozen_until - now;
            return self.after(wait, Event::Arrive(packet));
        }
        server.served += 1;
        server.redis.subscribers = server.subscribers();
        let read_only = self.replication.as_ref().is_some_and(|state| state.is_read_only(node));
        let read_only =
            read_only.then_some("READONLY You can't write against a read only replica.");
        let (served, written) = if let Some(error) = read_only.or(server.refuses) {
            (Served { reply: Err(error.to_owned()), published: Vec::new() }, None)
        } else {
            let served = server.redis.serve(&packet.call);
            (served, self.replicate(node))
        };
        let connection = self.connection(packet.connection);
        if !connection.up || connection.generation != packet.generation {
            S::on_late_script(self, agent, &packet.call);
        }
        let slow = self.servers[node].slow;
        self.log(|| {
            let name = packet.call.script.name;
            format!("node {node}: {name} of agent {agent} {:?} -> {:?}", packet.op, served.reply)
        });
        self.publish(node, &served.published);
        let travel = self.rng.within(50..400) + slow + self.servers[node].answers_later;
        let state = self.connection(packet.connection);
        if state.up && state.generation == packet.generation {
            state.answered = state.answered.max(now + travel);
            let answers = state.answered - now;
            let Packet { connection, generation, op, .. } = packet;
            let outcome = served.reply.map_err(Failure::Refused);
            let (offset, waits) = match (must_be_confirmed(connection.2), written) {
                (true, Some((offset, takes))) => (Some(offset), takes.min(self.wait_timeout())),
                // A promoted replica has no replica yet.
                (true, None) if self.replication.is_some() => (Some(u64::MAX), self.wait_timeout()),
                (true, None) => (None, self.confirmation_delay()),
                (false, _) => (None, 0),
            };
            let state = self.connection(connection);
            state.answered += waits;
            let event = Event::Answer { connection, generation, op, outcome, offset };
            self.after(answers + waits, event);
        }
    }

    /// Sends messages to the subscribers on a server.
    fn publish(&mut self, node: usize, channels: &[String]) {
        let subscribers: Vec<_> = self.servers[node].subscriptions.iter().cloned().collect();
        for channel in channels {
            for (to, agent) in subscribers.iter().filter(|(to, _)| *to == channel.as_bytes()) {
                let travel = self.rng.within(50..400) + self.servers[node].slow;
                let input = Input::Message(node, to.clone());
                self.after(travel, Event::Input { agent: *agent, input });
            }
        }
    }

    /// Runs another client's script on one server.
    pub(in crate::core) fn foreign(&mut self, node: usize, call: &Call) {
        self.set_clocks();
        let served = self.servers[node].redis.serve(call);
        self.log(|| format!("node {node}: {} of another client", call.script.name));
        self.publish(node, &served.published);
    }

    pub(in crate::core) fn break_connection(&mut self, connection: RedisConnectionId, why: &str) {
        let state = self.connection(connection);
        if !state.up {
            return;
        }
        state.up = false;
        let lost = std::mem::take(&mut state.in_flight);
        self.log(|| format!("agent {} loses node {}: {why}", connection.0, connection.1));
        self.after(5000, Event::Connect(connection));
        for op in lost {
            self.input(connection.0, Input::Outcome(op, Err(Failure::Lost(why.to_owned()))));
        }
        if connection.2 == Lane::Commands && self.is_in_use(connection) {
            self.servers[connection.1].subscriptions.retain(|(_, agent)| *agent != connection.0);
            self.input(connection.0, Input::Unsubscribed(connection.1));
        }
    }

    /// Returns whether an agent sends scripts to that server, rather than to the master that it replicates.
    fn is_in_use(&self, (agent, node, _): RedisConnectionId) -> bool {
        S::node(node) != Node::Main || self.agents[agent].main == node
    }

    pub(super) fn connect(&mut self, connection: RedisConnectionId) {
        let (agent, node, lane) = connection;
        let server = &self.servers[node];
        if !server.up || server.frozen_until > self.now || !self.reaches(agent, node) {
            return self.after(20_000, Event::Connect(connection));
        }
        let state = self.connection(connection);
        state.up = true;
        state.generation += 1;
        (state.arrived, state.answered) = (0, 0);
        if !self.is_in_use(connection) {
            return;
        }
        match lane {
            Lane::Renewals => return self.input(agent, Input::Verify(node)),
            Lane::Grants | Lane::ReplicatedRenewals => return,
            Lane::Commands => {}
        }
        for (of, channel) in self.agents[agent].wanted_channels.clone() {
            if of == node {
                self.after(200, Event::Subscribe { agent, node, channel });
            }
        }
    }

    /// Kills a server, with or without its data.
    pub(in crate::core) fn kill(&mut self, node: usize, forgets: bool) {
        self.log(|| format!("node {node} is killed, forgets: {forgets}"));
        self.servers[node].up = false;
        self.servers[node].subscriptions.clear();
        if forgets {
            let locks: Vec<_> = self.servers[node].redis.keys().keys().cloned().collect();
            for lock in locks {
                for (field, _) in self.servers[node].redis.fields(&lock) {
                    self.scenario.on_hold_lost(&lock, field);
                }
            }
            self.servers[node].redis.keys_mut().clear();
        }
        for connection in self
            .connections
            .keys()
            .copied()
            .filter(|connection| connection.1 == node)
            .collect::<Vec<_>>()
        {
            self.break_connection(connection, "the server is gone");
        }
    }

    pub(in crate::core) fn start(&mut self, node: usize) {
        self.log(|| format!("node {node} restarts"));
        self.servers[node].up = true;
    }

    pub(in crate::core) fn answers_later(&mut self, node: usize, micros: u64) {
        self.servers[node].answers_later = micros;
    }

    /// Freezes a server, as SIGSTOP does.
    pub(in crate::core) fn freeze(&mut self, node: usize, time: Duration) {
        self.log(|| format!("node {node} is frozen for {time:?}"));
        self.servers[node].frozen_until = self.now + micros(time);
        self.after(micros(time), Event::Thaw(node));
    }

    pub(in crate::core::simulation) fn thaw(&mut self, node: usize) {
        // Agents that did not notice get the subscriptions that they requested meanwhile.
        for agent in 0..self.agents.len() {
            let wanted_channels = self.agents[agent].wanted_channels.clone();
            for (_, channel) in wanted_channels.into_iter().filter(|(of, _)| *of == node) {
                self.after(200, Event::Subscribe { agent, node, channel });
            }
        }
    }
}
