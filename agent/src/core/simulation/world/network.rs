//! What lies between agents and servers: connections that keep the order of bytes and break, and subscriptions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson::script::Call;

use super::super::schedule::micros;
use super::{Event, Input, Scenario, Server, World};
use crate::core::{Failure, Lane, OpId};

/// One connection of an agent for scripts: agent, server, and what it is for.
pub(super) type ConnectionId = (usize, usize, Lane);

#[derive(Debug)]
pub(super) struct Packet {
    link: ConnectionId,
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
    /// How many agents are subscribed to each channel.
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
    pub(super) fn link(&mut self, id: ConnectionId) -> &mut Connection {
        self.links.get_mut(&id).expect("links are made once")
    }

    pub(super) fn send(&mut self, link: ConnectionId, op: OpId, call: Call) {
        self.log(|| {
            let args: Vec<_> = call.args.iter().map(String::from_utf8_lossy).collect();
            format!("agent {} -> node {} {} {op:?} {args:?}", link.0, link.1, call.script.name)
        });
        let (now, slow) = (self.now, self.servers[link.1].slow);
        let travel = self.rng.within(50..400) + slow;
        let timeout = micros(self.settings.response_timeout);
        let state = self.link(link);
        if !state.up {
            let failure = Err(Failure::Unsent("no connection".to_owned()));
            let input = Input::Outcome(op, failure);
            return self.after(20, Event::Input { agent: link.0, input });
        }
        state.in_flight.insert(op);
        state.arrived = state.arrived.max(now + travel);
        let (generation, arrives) = (state.generation, state.arrived - now);
        self.after(arrives, Event::Arrive(Packet { link, generation, op, call }));
        self.after(timeout, Event::TimeOut { link, generation, op });
    }

    pub(super) fn arrive(&mut self, packet: Packet) {
        let (agent, node, _) = packet.link;
        let now = self.now;
        let server = &mut self.servers[node];
        if !server.up {
            return;
        }
        if server.frozen_until > now {
            let wait = server.frozen_until - now;
            return self.after(wait, Event::Arrive(packet));
        }
        server.redis.subscribers = server.subscribers();
        let served = server.redis.serve(&packet.call);
        let link = self.link(packet.link);
        if !link.up || link.generation != packet.generation {
            S::on_late_script(self, agent, &packet.call);
        }
        let slow = self.servers[node].slow;
        self.log(|| {
            let name = packet.call.script.name;
            format!("node {node}: {name} of agent {agent} {:?} -> {:?}", packet.op, served.reply)
        });
        self.publish(node, &served.published);
        let travel = self.rng.within(50..400) + slow + self.servers[node].answers_later;
        let state = self.link(packet.link);
        if state.up && state.generation == packet.generation {
            state.answered = state.answered.max(now + travel);
            let answers = state.answered - now;
            let Packet { link, generation, op, .. } = packet;
            let outcome = served.reply.map_err(Failure::Refused);
            let waits = if link.2 == Lane::Grants { self.replicas_take() } else { 0 };
            let state = self.link(link);
            state.answered += waits;
            self.after(answers + waits, Event::Answer { link, generation, op, outcome });
        }
    }

    /// How long replicas take to confirm.
    fn replicas_take(&mut self) -> u64 {
        let timeout = micros(self.settings.response_timeout) / 2;
        if self.faulty && self.rng.one_in(4) { timeout } else { self.rng.within(50..400) }
    }

    /// What is published on a server comes to those who have subscribed there.
    fn publish(&mut self, node: usize, channels: &[String]) {
        let told: Vec<_> = self.servers[node].subscriptions.iter().cloned().collect();
        for channel in channels {
            for (to, agent) in told.iter().filter(|(to, _)| *to == channel.as_bytes()) {
                let travel = self.rng.within(50..400) + self.servers[node].slow;
                let input = Input::Message(node, to.clone());
                self.after(travel, Event::Input { agent: *agent, input });
            }
        }
    }

    /// Another client's script on one server.
    pub(in crate::core) fn foreign(&mut self, node: usize, call: &Call) {
        self.set_clocks();
        let served = self.servers[node].redis.serve(call);
        self.log(|| format!("node {node}: {} of a stranger", call.script.name));
        self.publish(node, &served.published);
    }

    pub(super) fn break_link(&mut self, link: ConnectionId, why: &str) {
        let state = self.link(link);
        if !state.up {
            return;
        }
        state.up = false;
        let lost = std::mem::take(&mut state.in_flight);
        self.log(|| format!("agent {} loses node {}: {why}", link.0, link.1));
        self.after(5000, Event::Connect(link));
        for op in lost {
            self.input(link.0, Input::Outcome(op, Err(Failure::Lost(why.to_owned()))));
        }
        if link.2 == Lane::Commands {
            self.servers[link.1].subscriptions.retain(|(_, agent)| *agent != link.0);
            self.input(link.0, Input::Unsubscribed(link.1));
        }
    }

    pub(super) fn connect(&mut self, link: ConnectionId) {
        let (agent, node, lane) = link;
        let server = &self.servers[node];
        if !server.up || server.frozen_until > self.now {
            return self.after(20_000, Event::Connect(link));
        }
        let state = self.link(link);
        state.up = true;
        state.generation += 1;
        (state.arrived, state.answered) = (0, 0);
        match lane {
            Lane::Renewals => return self.input(agent, Input::Verify(node)),
            Lane::Grants => return,
            Lane::Commands => {}
        }
        for (of, channel) in self.agents[agent].wanted_channels.clone() {
            if of == node {
                self.after(200, Event::Subscribe { agent, node, channel });
            }
        }
    }

    /// A server is killed. It keeps what it has, or loses it.
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
        for link in self.links.keys().copied().filter(|link| link.1 == node).collect::<Vec<_>>() {
            self.break_link(link, "the server is gone");
        }
    }

    pub(in crate::core) fn start(&mut self, node: usize) {
        self.log(|| format!("node {node} is back"));
        self.servers[node].up = true;
    }

    pub(in crate::core) fn answers_later(&mut self, node: usize, micros: u64) {
        self.servers[node].answers_later = micros;
    }

    /// A server stands still, as one that is stopped by a signal.
    pub(in crate::core) fn freeze(&mut self, node: usize, time: Duration) {
        self.log(|| format!("node {node} stands still for {time:?}"));
        self.servers[node].frozen_until = self.now + micros(time);
        self.after(micros(time), Event::Thaw(node));
    }

    pub(in crate::core::simulation) fn thaw(&mut self, node: usize) {
        // Whoever has not noticed is told of what it asked for meanwhile.
        for agent in 0..self.agents.len() {
            let wanted_channels = self.agents[agent].wanted_channels.clone();
            for (_, channel) in wanted_channels.into_iter().filter(|(of, _)| *of == node) {
                self.after(200, Event::Subscribe { agent, node, channel });
            }
        }
    }
}
