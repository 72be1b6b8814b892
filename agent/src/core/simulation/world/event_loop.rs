//! The event loop: carries out each event, feeds the cores and performs their effects.

use std::time::Duration;

use redisson::script::Value;
use redisson::{Moment, keys};

use super::super::requests::lock_of;
use super::network::RedisConnectionId;
use super::network::must_be_confirmed;
use super::{Event, Input, Scenario, World};
use crate::core::{Confirmed, Effect, Failure, LogLine, Node, OpId, Report};
use crate::protocol::resp::Outgoing;
use crate::types::ConnectionId;

impl<S: Scenario> World<S> {
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(packet) => self.arrive(packet),
            Event::Answer { connection, generation, op, outcome, offset } => {
                let state = self.connection(connection);
                if state.up && state.generation == generation && state.in_flight.remove(&op) {
                    self.outcome(connection, op, outcome, offset);
                }
            }
            Event::TimeOut { connection, generation, op } => {
                let state = self.connection(connection);
                if state.up && state.generation == generation && state.in_flight.contains(&op) {
                    self.break_connection(connection, "no reply in time");
                }
            }
            Event::Connect(connection) => self.connect(connection),
            Event::Subscribe { agent, node, channel } => {
                let subscribed =
                    self.agents[agent].wanted_channels.contains(&(node, channel.clone()));
                let server = &mut self.servers[node];
                if !server.up || server.frozen_until > self.now {
                    return;
                }
                if subscribed {
                    server.subscriptions.insert((channel.clone(), agent));
                    let input = Input::Subscribed(node, channel);
                    self.after(200, Event::Input { agent, input });
                } else {
                    server.subscriptions.remove(&(channel, agent));
                }
            }
            Event::Input { agent, input } => self.input(agent, input),
            Event::Alarm { agent, at } => {
                if self.agents[agent].alarm_at == at {
                    self.agents[agent].alarm_at = u64::MAX;
                    self.wake(agent);
                }
            }
            Event::Replicate(snapshot) => self.apply_snapshot(&snapshot),
            Event::Failover(step) => self.failover(step),
            Event::Thaw(node) => self.thaw(node),
            Event::Act { agent, connection } => S::act(self, agent, connection),
            Event::Fault => self.fault(),
        }
    }

    pub(super) fn wake(&mut self, agent: usize) {
        while let Some(input) = self.agents[agent].inbox.pop_front() {
            self.feed(agent, input);
            self.work(agent);
        }
        self.work(agent);
    }

    pub(super) fn input(&mut self, agent: usize, input: Input) {
        if self.agents[agent].stalled_until > self.now {
            return self.agents[agent].inbox.push_back(input);
        }
        self.feed(agent, input);
        self.work(agent);
    }

    fn feed(&mut self, agent: usize, input: Input) {
        let now = self.boot();
        if let Input::Subscribed(node, _) = &input
            && S::node(*node) == Node::Main
            && *node != self.agents[agent].main
        {
            return;
        }
        let core = &mut self.agents[agent].core;
        match input {
            Input::Outcome(op, Ok(reply)) => core.on_reply(now, op, &reply),
            Input::Confirmed(op, reply, replicas) => {
                let confirmed = Confirmed { replicas, refusal: None };
                core.on_confirmed(now, op, &reply, confirmed);
            }
            Input::Outcome(op, Err(failure)) => core.on_failure(now, op, &failure),
            Input::Verify(node) => core.verify(now, S::node(node)),
            Input::Message(node, channel) => match keys::waiter_of_channel(&channel) {
                Some(waiter) => core.on_turn(now, &lock_of(&channel), waiter.thread),
                None => core.on_message(now, S::node(node), &lock_of(&channel)),
            },
            Input::Subscribed(node, channel) => match keys::waiter_of_channel(&channel) {
                Some(waiter) => core.on_turn_subscribed(now, &lock_of(&channel), waiter.thread),
                None => core.on_subscribed(now, S::node(node), &lock_of(&channel)),
            },
            Input::Unsubscribed(node) => core.on_unsubscribed(S::node(node)),
            Input::Command(connection, command) => core.on_command(now, connection, command),
            Input::Closed(connection) => core.on_close(now, connection),
        }
    }

    /// Handles a reply. Where replicas must confirm, it carries the number of those that did.
    fn outcome(
        &mut self,
        connection: RedisConnectionId,
        op: OpId,
        outcome: Result<Value, Failure>,
        offset: Option<u64>,
    ) {
        let input = match (outcome, offset) {
            (Ok(reply), Some(offset)) => self.confirmed(op, reply, connection.1, offset),
            (Ok(reply), None) if must_be_confirmed(connection.2) => {
                let missing = self.faulty && self.rng.one_in(8);
                Input::Confirmed(op, reply, u32::from(!missing))
            }
            (outcome, _) => Input::Outcome(op, outcome),
        };
        self.input(connection.0, input);
    }

    /// Performs the core's effects and advances its clock, as the runtime does.
    pub(super) fn work(&mut self, agent: usize) {
        for _ in 0..10_000 {
            while let Some(effect) = self.agents[agent].core.next_effect() {
                self.perform(agent, effect);
            }
            let now = self.boot();
            let state = &mut self.agents[agent];
            let mut due = state.core.next_deadline().unwrap_or(Moment::NEVER);
            if state.core.holds() > 0 {
                due = due.min(state.tick_at);
            }
            if due > now {
                if due != Moment::NEVER && due.as_micros() != state.alarm_at {
                    let at = due.as_micros();
                    state.alarm_at = at;
                    self.after(at - self.now, Event::Alarm { agent, at });
                }
                return;
            }
            state.tick_at = now + Duration::from_millis(100);
            state.core.on_time(now);
        }
        self.violation = Some(format!("agent {agent} asks for the time in an endless loop"));
    }

    /// Returns the server that an agent has at an address, if this world has it.
    fn server_at(&self, agent: usize, node: Node) -> Option<usize> {
        let main = self.agents[agent].main;
        (0..self.servers.len())
            .find(|server| S::node(*server) == node && (node != Node::Main || *server == main))
    }

    fn perform(&mut self, agent: usize, effect: Effect) {
        match effect {
            Effect::Send { op, node, lane, call, .. } => match self.server_at(agent, node) {
                Some(node) => self.send((agent, node, lane), op, call),
                None => {
                    self.violation = Some(format!("{} for an unknown server", call.script.name));
                }
            },
            Effect::Deliver(connection, outgoing) => self.deliver(agent, connection, outgoing),
            // The disk takes all records at once.
            Effect::Journal(_) => {
                let now = self.boot();
                self.agents[agent].core.on_journalled(now, u64::MAX);
            }
            Effect::Report(Report::NodeVote { outcome: "silent", .. }) => self.silent_votes += 1,
            Effect::Log(LogLine::ForcedRelease { confirmed, .. }) => self.audited.push(confirmed),
            Effect::Report(_) | Effect::Log(_) => {}
            Effect::Subscribe(node, channel) => self.subscribe(agent, node, channel, true),
            Effect::Unsubscribe(node, channel) => self.subscribe(agent, node, channel, false),
        }
    }

    fn subscribe(&mut self, agent: usize, node: Node, channel: Vec<u8>, on: bool) {
        let Some(node) = self.server_at(agent, node) else {
            self.violation = Some("a subscription on an unknown server".to_owned());
            return;
        };
        let wanted_channels = &mut self.agents[agent].wanted_channels;
        let key = (node, channel.clone());
        let changed = if on { wanted_channels.insert(key) } else { wanted_channels.remove(&key) };
        if !changed {
            let channel = channel.escape_ascii();
            self.violation =
                Some(format!("{channel} on node {node} was already subscribed, or was not"));
        }
        self.after(300, Event::Subscribe { agent, node, channel });
    }

    fn deliver(&mut self, agent: usize, connection: ConnectionId, outgoing: Outgoing) {
        self.log(|| format!("agent {agent} connection {connection:?} <- {outgoing:?}"));
        if !self.workers.contains_key(&(agent, connection)) {
            self.replies.push((agent, connection, outgoing));
        } else if let Outgoing::Reply(reply) = outgoing {
            S::on_reply(self, agent, connection, reply);
        }
    }
}
