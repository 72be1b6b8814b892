//! Agents and the independent servers of their red locks: what is sent, what arrives, what fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use redisson::script::{Call, Publish, Value};
use redisson::{ClientId, Grouping, Lease, LockName, Moment, keys};

use super::super::dice::Dice;
use super::super::host::micros;
use super::super::redis::Redis;
use super::laws::Forgotten;
use super::worker::Worker;
use crate::command::Command;
use crate::core::{Action, Core, Failure, Frozen, Lane, Node, Number, OpId, RedSettings, Settings};
use crate::metrics::Figures;
use crate::resp::{Frame, Outgoing};
use crate::session::{Peer, SessionId};

/// The servers' wall clock at the beginning, in milliseconds.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// What happens.
#[derive(Debug)]
enum Event {
    /// A script comes to a server.
    Arrive(Packet),
    /// Its reply comes back.
    Answer { link: LinkId, generation: u64, op: OpId, outcome: Result<Value, Failure> },
    /// It has had no reply for as long as an agent waits.
    TimeOut { link: LinkId, generation: u64, op: OpId },
    /// An agent tries to connect.
    Connect(LinkId),
    /// A subscription, or its end, comes to a server.
    Subscribe { agent: usize, node: usize, name: LockName },
    /// An agent hears something.
    Input { agent: usize, input: Input },
    /// An agent looks at its clock.
    Alarm { agent: usize, at: u64 },
    /// A server that stood still goes on.
    Thaw(usize),
    /// A worker does something.
    Act { agent: usize, session: SessionId },
    /// Something goes wrong, or is mended.
    Fault,
}

/// What reaches a core.
#[derive(Debug)]
pub(super) enum Input {
    Outcome(OpId, Result<Value, Failure>),
    Verify(usize),
    Message(usize, LockName),
    Subscribed(usize, LockName),
    Unsubscribed(usize),
    Command(SessionId, Command),
    Closed(SessionId),
}

/// One connection of an agent for scripts: agent, server, and whether it is that for renewals.
type LinkId = (usize, usize, bool);

#[derive(Debug)]
struct Packet {
    link: LinkId,
    generation: u64,
    op: OpId,
    call: Call,
}

#[derive(Debug, Default)]
struct Link {
    up: bool,
    generation: u64,
    in_flight: BTreeSet<OpId>,
    /// Bytes keep their order.
    arrived: u64,
    answered: u64,
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
    subscriptions: BTreeSet<(LockName, usize)>,
}

/// One agent.
pub(in crate::core) struct Agent {
    pub(in crate::core) core: Core,
    pub(super) wishes: BTreeSet<(usize, LockName)>,
    pub(super) workers: BTreeMap<SessionId, Worker>,
    next_session: u64,
    alarm_at: u64,
    tick_at: Moment,
    /// It does nothing until then.
    pub(super) stalled_until: u64,
    inbox: VecDeque<Input>,
}

pub(in crate::core) struct World {
    pub(super) now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    pub(super) dice: Dice,
    pub(in crate::core) settings: Settings,
    pub(in crate::core) servers: Vec<Server>,
    pub(in crate::core) agents: Vec<Agent>,
    links: BTreeMap<LinkId, Link>,
    /// Replies to sessions that no [`Worker`] drives, for single scenarios.
    pub(in crate::core) replies: Vec<(usize, SessionId, Outgoing)>,
    pub(super) forgotten: Forgotten,
    /// Whether workers begin anything, and things go wrong.
    pub(super) working: bool,
    pub(super) faulty: bool,
    /// Whether servers that are killed may lose what they have.
    pub(super) forgetful: bool,
    pub(super) grants: u64,
    pub(super) breach: Option<String>,
    pub(super) trace: Option<Vec<String>>,
}

impl World {
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
        let mut all = Settings {
            lease: Lease::new(Duration::from_secs(30)).expect("a lease within bounds"),
            lost_margin: Duration::from_millis(500),
            handover_max: 32,
            handover_max_time: Duration::from_millis(100),
            poll_max: Duration::from_secs(5),
            max_waiters: 1000,
            max_grace: Duration::from_secs(600),
            max_graced: 100,
            require_session: false,
            response_timeout: Duration::from_secs(2),
            publish: Publish::Plain,
            lock_delay: Duration::ZERO,
            frozen: Frozen::Keep,
            red: Some(red),
        };
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
            sequence: 0,
            queue: BTreeMap::new(),
            dice: Dice::new(seed),
            servers: (0..servers).map(|_| server()).collect(),
            agents: (0..agents).map(|index| Agent::new(index, &all)).collect(),
            settings: all,
            links: BTreeMap::new(),
            replies: Vec::new(),
            forgotten: Forgotten::default(),
            working: false,
            faulty: false,
            forgetful: false,
            grants: 0,
            breach: None,
            trace: None,
        };
        for agent in 0..world.agents.len() {
            for node in 0..servers {
                for renewals in [false, true] {
                    let link = Link { up: true, ..Link::default() };
                    world.links.insert((agent, node, renewals), link);
                }
            }
        }
        world
    }

    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        let now = Duration::from_micros(self.now).as_secs_f64();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:>11.6}  {}", line()));
        }
    }

    fn after(&mut self, micros: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + micros, self.sequence), event);
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
        while let Some(next) = self.queue.first_entry().filter(|next| next.key().0 <= end) {
            self.now = next.key().0.max(self.now);
            let event = next.remove();
            self.set_clocks();
            self.happen(event);
            if self.breach.is_none() {
                self.breach = self.check().err();
            }
            if self.breach.is_some() {
                return;
            }
        }
        self.now = end;
        self.set_clocks();
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
                    self.input(link.0, Input::Outcome(op, outcome));
                }
            }
            Event::TimeOut { link, generation, op } => {
                let state = self.link(link);
                if state.up && state.generation == generation && state.in_flight.contains(&op) {
                    self.break_link(link, "no answer in time");
                }
            }
            Event::Connect(link) => self.connect(link),
            Event::Subscribe { agent, node, name } => {
                let wished = self.agents[agent].wishes.contains(&(node, name.clone()));
                let server = &mut self.servers[node];
                if !server.up || server.frozen_until > self.now {
                    return;
                }
                if wished {
                    server.subscriptions.insert((name.clone(), agent));
                    let input = Input::Subscribed(node, name);
                    self.after(200, Event::Input { agent, input });
                } else {
                    server.subscriptions.remove(&(name, agent));
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
            Event::Act { agent, session } => self.act(agent, session),
            Event::Fault => self.fault(),
        }
    }

    fn link(&mut self, id: LinkId) -> &mut Link {
        self.links.get_mut(&id).expect("links are made once")
    }

    fn send(&mut self, link: LinkId, op: OpId, call: Call) {
        self.log(|| {
            let args: Vec<_> = call.args.iter().map(String::from_utf8_lossy).collect();
            format!("agent {} -> node {} {} {op:?} {args:?}", link.0, link.1, call.script.name)
        });
        let (now, slow) = (self.now, self.servers[link.1].slow);
        let travel = self.dice.within(50..400) + slow;
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

    fn arrive(&mut self, packet: Packet) {
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
        let served = server.redis.serve(&packet.call);
        let slow = server.slow;
        self.log(|| {
            let name = packet.call.script.name;
            format!("node {node}: {name} of agent {agent} {:?} -> {:?}", packet.op, served.reply)
        });
        self.publish(node, &served.published);
        let travel = self.dice.within(50..400) + slow + self.servers[node].answers_later;
        let state = self.link(packet.link);
        if state.up && state.generation == packet.generation {
            state.answered = state.answered.max(now + travel);
            let answers = state.answered - now;
            let Packet { link, generation, op, .. } = packet;
            let outcome = served.reply.map_err(Failure::Refused);
            self.after(answers, Event::Answer { link, generation, op, outcome });
        }
    }

    /// What is published on a server comes to those who have subscribed there.
    fn publish(&mut self, node: usize, channels: &[String]) {
        let told: Vec<_> = self.servers[node].subscriptions.iter().cloned().collect();
        for channel in channels {
            let names = keys::locks_of_channel(channel.as_bytes());
            for (name, agent) in told.iter().filter(|(name, _)| names.contains(name)) {
                let travel = self.dice.within(50..400) + self.servers[node].slow;
                let input = Input::Message(node, name.clone());
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

    fn break_link(&mut self, link: LinkId, why: &str) {
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
        if !link.2 {
            self.servers[link.1].subscriptions.retain(|(_, agent)| *agent != link.0);
            self.input(link.0, Input::Unsubscribed(link.1));
        }
    }

    fn connect(&mut self, link: LinkId) {
        let (agent, node, renewals) = link;
        let server = &self.servers[node];
        if !server.up || server.frozen_until > self.now {
            return self.after(20_000, Event::Connect(link));
        }
        let state = self.link(link);
        state.up = true;
        state.generation += 1;
        (state.arrived, state.answered) = (0, 0);
        if renewals {
            return self.input(agent, Input::Verify(node));
        }
        for (of, name) in self.agents[agent].wishes.clone() {
            if of == node {
                self.after(200, Event::Subscribe { agent, node, name });
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
                    self.forgotten.note(&lock, field);
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

    pub(super) fn thaw(&mut self, node: usize) {
        // Whoever has not noticed is told of what it asked for meanwhile.
        for agent in 0..self.agents.len() {
            let wishes = self.agents[agent].wishes.clone();
            for (_, name) in wishes.into_iter().filter(|(of, _)| *of == node) {
                self.after(200, Event::Subscribe { agent, node, name });
            }
        }
    }

    /// What broke a law, if anything did.
    pub(in crate::core) fn breach(&self) -> Option<&str> {
        self.breach.as_deref()
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
        self.forgotten.note(&name.to_string(), &holder.to_string());
        let now = self.boot();
        self.agents[agent].core.on_forced(now, Node::Red(node), name, number);
        self.work(agent);
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
            Input::Outcome(op, Err(failure)) => core.on_failure(now, op, &failure),
            Input::Verify(node) => core.verify(now, Node::Red(node)),
            Input::Message(node, name) => core.on_message(now, Node::Red(node), &name),
            Input::Subscribed(node, name) => core.on_subscribed(now, Node::Red(node), &name),
            Input::Unsubscribed(node) => core.on_unsubscribed(Node::Red(node)),
            Input::Command(session, command) => core.on_command(now, session, command),
            Input::Closed(session) => core.on_close(now, session),
        }
    }

    /// The driver's loop.
    fn work(&mut self, agent: usize) {
        for _ in 0..10_000 {
            while let Some(action) = self.agents[agent].core.next_action() {
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
        self.breach = Some(format!("agent {agent} asks for its time without an end"));
    }

    fn perform(&mut self, agent: usize, action: Action) {
        match action {
            Action::Send { op, node: Node::Red(node), lane, call, .. } => {
                self.send((agent, node, lane == Lane::Renewals), op, call);
            }
            Action::Send { call, .. } => {
                self.breach = Some(format!("{} for the main server", call.script.name));
            }
            Action::Deliver(session, outgoing) => self.deliver(agent, session, outgoing),
            Action::Journal(_) => {}
            Action::Subscribe(node, channel) => self.wish(agent, node, &channel, true),
            Action::Unsubscribe(node, channel) => self.wish(agent, node, &channel, false),
        }
    }

    fn wish(&mut self, agent: usize, node: Node, channel: &[u8], on: bool) {
        let name = keys::locks_of_channel(channel).remove(0);
        let Node::Red(node) = node else {
            self.breach = Some(format!("a subscription of {name} on the main server"));
            return;
        };
        let wishes = &mut self.agents[agent].wishes;
        let key = (node, name.clone());
        let changed = if on { wishes.insert(key) } else { wishes.remove(&key) };
        if !changed {
            self.breach = Some(format!("{name} on node {node} is subscribed to twice, or not"));
        }
        self.after(300, Event::Subscribe { agent, node, name });
    }

    fn deliver(&mut self, agent: usize, session: SessionId, outgoing: Outgoing) {
        self.log(|| format!("agent {agent} session {session:?} <- {outgoing:?}"));
        if self.agents[agent].workers.contains_key(&session) {
            self.told(agent, session, outgoing);
        } else {
            self.replies.push((agent, session, outgoing));
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

impl Agent {
    fn new(index: u8, settings: &Settings) -> Self {
        let made = Figures::new(Grouping::new(vec![], 50), &Registry::new());
        let figures = Arc::new(made.expect("an empty registry takes every figure"));
        let client = ClientId::from_random([index + 1; 16]);
        let now = Moment::from_micros(1_000_000);
        let first = 1 << 30;
        let core = Core::new(settings.clone(), client, first, figures, now);
        Self {
            core,
            wishes: BTreeSet::new(),
            workers: BTreeMap::new(),
            next_session: 0,
            alarm_at: u64::MAX,
            tick_at: Moment::default(),
            stalled_until: 0,
            inbox: VecDeque::new(),
        }
    }
}
