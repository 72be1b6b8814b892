//! Agents and few servers: the independent ones of red locks, or the one Redis of the other kinds. What is sent, what
//! arrives, what fails. `links.rs` has what lies between an agent and a server.

mod choices;
mod faults;
mod network;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use redisson::script::{Call, Value};
use redisson::{ClientId, Grouping, LockName, Moment, keys};

use super::redis::Redis;
use super::requests::lock_of;
use super::rng::Rng;
use super::schedule::{Schedule, Trace, micros};
use super::seeds::{Traced, Verdict};
use crate::core::{
    Confirmed, Core, Effect, Failure, Lane, Node, OpId, RedSettings, Settings, tests::settings,
};
use crate::protocol::command::Command;
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::Number;
use crate::types::{Peer, SessionId};
use network::{Connection, ConnectionId, Packet};

/// The servers' wall clock at the beginning, in milliseconds.
const EPOCH_MS: u64 = 1_800_000_000_000;

#[derive(Debug)]
enum Event {
    /// A script comes to a server.
    Arrive(Packet),
    /// Its reply comes back.
    Answer { link: ConnectionId, generation: u64, op: OpId, outcome: Result<Value, Failure> },
    /// It has had no reply for as long as an agent waits.
    TimeOut { link: ConnectionId, generation: u64, op: OpId },
    /// An agent tries to connect.
    Connect(ConnectionId),
    /// A subscription, or its end, comes to a server.
    Subscribe { agent: usize, node: usize, channel: Vec<u8> },
    /// An agent hears something.
    Input { agent: usize, input: Input },
    /// An agent looks at its clock.
    Alarm { agent: usize, at: u64 },
    /// A server that stood still goes on.
    Thaw(usize),
    /// A worker does something.
    Act { agent: usize, session: SessionId },
    /// Something goes wrong, or is repaired.
    Fault,
}

/// What reaches a core.
#[derive(Debug)]
pub(super) enum Input {
    Outcome(OpId, Result<Value, Failure>),
    Confirmed(OpId, Value, u32),
    Verify(usize),
    Message(usize, Vec<u8>),
    Subscribed(usize, Vec<u8>),
    Unsubscribed(usize),
    Command(SessionId, Command),
    Closed(SessionId),
}

/// One independent server.
pub(in crate::core) struct Server {
    pub(in crate::core) redis: Redis,
    pub(in crate::core) up: bool,
    /// It stands still until then, and serves what has come meanwhile when it goes on.
    pub(in crate::core) frozen_until: u64,
    /// How long each way takes beyond the usual.
    pub(in crate::core) slow: u64,
    /// How much later than usual it answers, while its messages do not.
    answers_later: u64,
    subscriptions: BTreeSet<(Vec<u8>, usize)>,
}

pub(in crate::core) struct Agent {
    pub(in crate::core) core: Core,
    pub(super) wanted_channels: BTreeSet<(usize, Vec<u8>)>,
    next_session: u64,
    alarm_at: u64,
    tick_at: Moment,
    /// It does nothing until then.
    pub(super) stalled_until: u64,
    inbox: VecDeque<Input>,
}

/// The workers of a world, and its invariants.
pub(in crate::core) trait Scenario: Default {
    /// A worker with a connection of its own.
    type Worker: Default;

    /// Returns the address by which a core knows a server of this world.
    fn node(server: usize) -> Node;

    /// Chooses and sends a worker's next command.
    fn act(world: &mut World<Self>, agent: usize, session: SessionId);

    /// Handles a reply to a worker.
    fn on_reply(world: &mut World<Self>, agent: usize, session: SessionId, reply: Frame);

    /// Checks the invariants. Runs after every event.
    fn check(world: &mut World<Self>) -> Verdict;

    /// Notes that a server lost a hold.
    fn on_hold_lost(&mut self, _lock: &str, _field: &str) {}

    /// Notes that a script ran after its agent had given up its connection.
    fn on_late_script(_world: &mut World<Self>, _agent: usize, _call: &Call) {}
}

pub(in crate::core) struct World<S: Scenario> {
    pub(super) now: u64,
    schedule: Schedule<Event>,
    pub(super) rng: Rng,
    pub(in crate::core) settings: Settings,
    pub(in crate::core) servers: Vec<Server>,
    pub(in crate::core) agents: Vec<Agent>,
    links: BTreeMap<ConnectionId, Connection>,
    /// Replies to sessions that no [`Worker`] drives, for single scenarios.
    pub(in crate::core) replies: Vec<(usize, SessionId, Outgoing)>,
    /// Workers by agent and session.
    pub(super) workers: BTreeMap<(usize, SessionId), S::Worker>,
    pub(super) scenario: S,
    /// When everything was repaired.
    pub(super) fault_free_since: u64,
    /// Whether workers begin anything, and things go wrong.
    pub(super) working: bool,
    pub(super) faulty: bool,
    /// Whether servers that are killed may lose what they have.
    pub(super) forgetful: bool,
    pub(super) grants: u64,
    pub(super) violation: Option<String>,
    pub(super) trace: Trace,
}

impl<S: Scenario> World<S> {
    pub(in crate::core) fn new(
        seed: u64,
        servers: usize,
        agents: u8,
        settings: impl FnOnce(&mut Settings),
    ) -> Self {
        let red = RedSettings {
            nodes: (0..servers).map(|node| format!("node{node}")).collect(),
            node_timeout: Duration::from_millis(50),
        };
        let mut all = Settings { red: Some(red), ..settings::settings() };
        settings(&mut all);
        let server = || Server {
            redis: Redis::default(),
            up: true,
            frozen_until: 0,
            slow: 0,
            answers_later: 0,
            subscriptions: BTreeSet::new(),
        };
        let mut world = Self {
            now: 1_000_000,
            schedule: Schedule::default(),
            rng: Rng::new(seed),
            servers: (0..servers).map(|_| server()).collect(),
            agents: (0..agents).map(|index| Agent::new(index, &all)).collect(),
            settings: all,
            links: BTreeMap::new(),
            replies: Vec::new(),
            workers: BTreeMap::new(),
            scenario: S::default(),
            fault_free_since: 0,
            working: false,
            faulty: false,
            forgetful: false,
            grants: 0,
            violation: None,
            trace: Trace::default(),
        };
        for agent in 0..world.agents.len() {
            for node in 0..servers {
                for lane in [Lane::Commands, Lane::Renewals, Lane::Grants] {
                    let link = Connection { up: true, ..Connection::default() };
                    world.links.insert((agent, node, lane), link);
                }
            }
        }
        world
    }

    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        self.trace.log(self.now, line);
    }

    fn after(&mut self, micros: u64, event: Event) {
        self.schedule.insert(self.now + micros, event);
    }

    pub(super) fn act_after(&mut self, micros: u64, agent: usize, session: SessionId) {
        self.after(micros, Event::Act { agent, session });
    }

    pub(super) fn fault_after(&mut self, micros: u64) {
        self.after(micros, Event::Fault);
    }

    pub(super) fn boot(&self) -> Moment {
        Moment::from_micros(self.now)
    }

    /// Lets time pass; after each event the laws are checked.
    pub(in crate::core) fn pass(&mut self, time: Duration) {
        let end = self.now + micros(time);
        while let Some((at, event)) = self.schedule.next_until(end) {
            self.now = at.max(self.now);
            self.set_clocks();
            self.happen(event);
            if self.violation.is_none() {
                self.violation = S::check(self).err();
            }
            if self.violation.is_some() {
                return;
            }
        }
        self.now = end;
        self.set_clocks();
    }

    /// Lets time pass, and returns the violation, if any.
    pub(super) fn run_for(&mut self, time: Duration) -> Verdict {
        self.pass(time);
        self.violation.take().map_or(Ok(()), Err)
    }

    fn set_clocks(&mut self) {
        for server in &mut self.servers {
            server.redis.set_clock(EPOCH_MS + self.now / 1000);
        }
    }

    /// When a server will have forgotten a lock by itself, in microseconds of the world's time; none where it has none, or
    /// keeps it for ever.
    pub(super) fn expiry(&self, node: usize, lock: &str) -> Option<u64> {
        let entry = self.servers[node].redis.keys().get(lock)?;
        entry.expires_ms.map(|ms| (ms - EPOCH_MS) * 1000)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(packet) => self.arrive(packet),
            Event::Answer { link, generation, op, outcome } => {
                let state = self.link(link);
                if state.up && state.generation == generation && state.in_flight.remove(&op) {
                    self.outcome(link, op, outcome);
                }
            }
            Event::TimeOut { link, generation, op } => {
                let state = self.link(link);
                if state.up && state.generation == generation && state.in_flight.contains(&op) {
                    self.break_link(link, "no answer in time");
                }
            }
            Event::Connect(link) => self.connect(link),
            Event::Subscribe { agent, node, channel } => {
                let wished = self.agents[agent].wanted_channels.contains(&(node, channel.clone()));
                let server = &mut self.servers[node];
                if !server.up || server.frozen_until > self.now {
                    return;
                }
                if wished {
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
            Event::Thaw(node) => self.thaw(node),
            Event::Act { agent, session } => S::act(self, agent, session),
            Event::Fault => self.fault(),
        }
    }

    /// What broke a law, if anything did.
    pub(in crate::core) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// An agent hears that an operator released a hold of it on one server.
    pub(in crate::core) fn forced(
        &mut self,
        agent: usize,
        node: usize,
        name: &LockName,
        number: Number,
    ) {
        let holder = redisson::HolderId::new(self.agents[agent].core.client, number);
        self.scenario.on_hold_lost(&name.to_string(), &holder.to_string());
        let now = self.boot();
        self.agents[agent].core.on_forced(now, S::node(node), name, number);
        self.work(agent);
    }

    /// Opens a session for a new worker.
    pub(super) fn join(&mut self, agent: usize) {
        let session = self.open(agent);
        self.workers.insert((agent, session), S::Worker::default());
        let pause = self.think();
        self.act_after(pause, agent, session);
    }

    /// Ends a worker's connection. The worker does not come back.
    pub(super) fn leave(&mut self, agent: usize, session: SessionId) {
        self.workers.remove(&(agent, session));
        self.close(agent, session);
    }

    pub(in crate::core) fn open(&mut self, agent: usize) -> SessionId {
        let now = self.boot();
        let state = &mut self.agents[agent];
        state.next_session += 1;
        let id = SessionId(state.next_session);
        state.core.on_open(now, id, Peer::default(), [1; 16]);
        id
    }

    pub(in crate::core) fn command(&mut self, agent: usize, session: SessionId, command: Command) {
        self.log(|| format!("agent {agent} session {session:?}: {command:?}"));
        self.input(agent, Input::Command(session, command));
    }

    pub(in crate::core) fn close(&mut self, agent: usize, session: SessionId) {
        self.log(|| format!("agent {agent} session {session:?} closes"));
        self.input(agent, Input::Closed(session));
    }

    pub(super) fn stall(&mut self, agent: usize, time: u64) {
        self.log(|| format!("agent {agent} stands still for {time} µs"));
        self.agents[agent].stalled_until = self.now + time;
        self.agents[agent].alarm_at = self.now + time;
        self.after(time, Event::Alarm { agent, at: self.now + time });
    }

    fn wake(&mut self, agent: usize) {
        while let Some(input) = self.agents[agent].inbox.pop_front() {
            self.feed(agent, input);
            self.work(agent);
        }
        self.work(agent);
    }

    fn input(&mut self, agent: usize, input: Input) {
        if self.agents[agent].stalled_until > self.now {
            return self.agents[agent].inbox.push_back(input);
        }
        self.feed(agent, input);
        self.work(agent);
    }

    fn feed(&mut self, agent: usize, input: Input) {
        let now = self.boot();
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
            Input::Command(session, command) => core.on_command(now, session, command),
            Input::Closed(session) => core.on_close(now, session),
        }
    }

    /// An answer has come back; on the connection for grants with what replicas have of it.
    fn outcome(&mut self, link: ConnectionId, op: OpId, outcome: Result<Value, Failure>) {
        let input = match outcome {
            Ok(reply) if link.2 == Lane::Grants => {
                let missing = self.faulty && self.rng.one_in(8);
                Input::Confirmed(op, reply, u32::from(!missing))
            }
            outcome => Input::Outcome(op, outcome),
        };
        self.input(link.0, input);
    }

    /// The driver's loop.
    fn work(&mut self, agent: usize) {
        for _ in 0..10_000 {
            while let Some(action) = self.agents[agent].core.next_effect() {
                self.perform(agent, action);
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
        self.violation = Some(format!("agent {agent} asks for its time without an end"));
    }

    /// Which server that is, if it is one of this world's.
    fn server_at(&self, node: Node) -> Option<usize> {
        (0..self.servers.len()).find(|server| S::node(*server) == node)
    }

    fn perform(&mut self, agent: usize, action: Effect) {
        match action {
            Effect::Send { op, node, lane, call, .. } => match self.server_at(node) {
                Some(node) => self.send((agent, node, lane), op, call),
                None => {
                    self.violation = Some(format!("{} for a server of others", call.script.name));
                }
            },
            Effect::Deliver(session, outgoing) => self.deliver(agent, session, outgoing),
            Effect::Journal(_) | Effect::Report(_) | Effect::Log(_) => {}
            Effect::Subscribe(node, channel) => self.wish(agent, node, channel, true),
            Effect::Unsubscribe(node, channel) => self.wish(agent, node, channel, false),
        }
    }

    fn wish(&mut self, agent: usize, node: Node, channel: Vec<u8>, on: bool) {
        let Some(node) = self.server_at(node) else {
            self.violation = Some("a subscription on a server of others".to_owned());
            return;
        };
        let wanted_channels = &mut self.agents[agent].wanted_channels;
        let key = (node, channel.clone());
        let changed = if on { wanted_channels.insert(key) } else { wanted_channels.remove(&key) };
        if !changed {
            let channel = channel.escape_ascii();
            self.violation =
                Some(format!("{channel} on node {node} is subscribed to twice, or not"));
        }
        self.after(300, Event::Subscribe { agent, node, channel });
    }

    fn deliver(&mut self, agent: usize, session: SessionId, outgoing: Outgoing) {
        self.log(|| format!("agent {agent} session {session:?} <- {outgoing:?}"));
        if !self.workers.contains_key(&(agent, session)) {
            self.replies.push((agent, session, outgoing));
        } else if let Outgoing::Reply(reply) = outgoing {
            S::on_reply(self, agent, session, reply);
        }
    }

    /// The frames that a session without a [`Worker`] was sent since the last call.
    pub(in crate::core) fn replies_of(&mut self, agent: usize, session: SessionId) -> Vec<Frame> {
        let mine = |(to, id, _): &(usize, SessionId, Outgoing)| *to == agent && *id == session;
        let (own, rest) = std::mem::take(&mut self.replies).into_iter().partition(mine);
        self.replies = rest;
        let own: Vec<(usize, SessionId, Outgoing)> = own;
        own.into_iter()
            .map(|(.., outgoing)| match outgoing {
                Outgoing::Reply(frame) => frame,
                Outgoing::Push(frames) => Frame::Array(frames),
                other => panic!("unexpected {other:?}"),
            })
            .collect()
    }

    /// On how many servers some agent's field stands under that name.
    pub(in crate::core) fn standing(&self, lock: &str) -> usize {
        self.servers.iter().filter(|server| !server.redis.fields(lock).is_empty()).count()
    }
}

impl<S: Scenario> Traced for World<S> {
    fn trace(&self) -> &[String] {
        self.trace.lines()
    }
}

impl Agent {
    fn new(index: u8, settings: &Settings) -> Self {
        let client = ClientId::from_random([index + 1; 16]);
        let now = Moment::from_micros(1_000_000);
        let first = 1 << 30;
        let core = Core::new(settings.clone(), client, first, Grouping::new(vec![], 50), now);
        Self {
            core,
            wanted_channels: BTreeSet::new(),
            next_session: 0,
            alarm_at: u64::MAX,
            tick_at: Moment::default(),
            stalled_until: 0,
            inbox: VecDeque::new(),
        }
    }
}
