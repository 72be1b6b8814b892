//! Agents, Redis servers and the connections between them. A [`Scenario`] adds the workers and the invariants.

mod choices;
mod event_loop;
mod faults;
mod network;
mod replication;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use redisson::script::{Call, Value};
use redisson::{ClientId, Grouping, Lease, LockName, Moment};

use super::first_number;
use super::redis::Redis;
use super::rng::Rng;
use super::schedule::{Schedule, Trace, micros};
use super::seeds::{CheckResult, Traced};
use crate::core::{Core, Failure, Node, OpId, RedSettings, Settings, tests::settings};
use crate::protocol::command::Command;
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{ConnectionId, Number, Peer, Secret};
use network::{Connection, Packet, RedisConnectionId};
pub(super) use replication::Replication;
use replication::{LANES, Snapshot, Step};

/// The servers' wall clock at the start, in milliseconds.
const EPOCH_MS: u64 = 1_800_000_000_000;

#[derive(Debug)]
enum Event {
    /// A script arrives at a server.
    Arrive(Packet),
    /// Its reply arrives.
    Answer {
        connection: RedisConnectionId,
        generation: u64,
        op: OpId,
        outcome: Result<Value, Failure>,
        /// The offset that replicas must reach, where they are modelled.
        offset: Option<u64>,
    },
    /// The reply is overdue.
    TimeOut {
        connection: RedisConnectionId,
        generation: u64,
        op: OpId,
    },
    /// An agent tries to connect.
    Connect(RedisConnectionId),
    /// A subscribe or unsubscribe arrives at a server.
    Subscribe {
        agent: usize,
        node: usize,
        channel: Vec<u8>,
    },
    Input {
        agent: usize,
        input: Input,
    },
    /// An agent's timer fires.
    Alarm {
        agent: usize,
        at: u64,
    },
    /// The replica receives the master's state.
    Replicate(Snapshot),
    Failover(Step),
    /// A frozen server resumes.
    Thaw(usize),
    /// A worker chooses its next command.
    Act {
        agent: usize,
        connection: ConnectionId,
    },
    Fault,
}

/// An input of a core.
#[derive(Debug)]
pub(super) enum Input {
    Outcome(OpId, Result<Value, Failure>),
    Confirmed(OpId, Value, u32),
    Verify(usize),
    Message(usize, Vec<u8>),
    Subscribed(usize, Vec<u8>),
    Unsubscribed(usize),
    Command(ConnectionId, Command),
    Closed(ConnectionId),
}

pub(in crate::core) struct Server {
    pub(in crate::core) redis: Redis,
    pub(in crate::core) up: bool,
    /// The end of a freeze. Scripts that arrive meanwhile run then.
    pub(in crate::core) frozen_until: u64,
    /// The time by which its clock is ahead, in milliseconds.
    pub(in crate::core) clock_ahead_ms: u64,
    /// The extra delay in each direction, in microseconds.
    pub(in crate::core) slow: u64,
    /// The extra delay of replies, but not of messages, in microseconds.
    answers_later: u64,
    /// The error with which it refuses all scripts, if it does.
    pub(in crate::core) refuses: Option<&'static str>,
    /// The number of scripts that it served.
    pub(in crate::core) served: u64,
    subscriptions: BTreeSet<(Vec<u8>, usize)>,
}

pub(in crate::core) struct Agent {
    pub(in crate::core) core: Core,
    /// The server of all kinds but red.
    pub(super) main: usize,
    /// The server that it reaches during a partition.
    side: usize,
    pub(super) wanted_channels: BTreeSet<(usize, Vec<u8>)>,
    next_connection: u64,
    alarm_at: u64,
    tick_at: Moment,
    pub(super) stalled_until: u64,
    inbox: VecDeque<Input>,
}

/// The workers of a world, and its invariants.
pub(in crate::core) trait Scenario: Default {
    /// A worker with one connection.
    type Worker: Default;

    /// Returns the address by which a core knows a server of this world.
    fn node(server: usize) -> Node;

    /// Chooses and sends a worker's next command.
    fn act(world: &mut World<Self>, agent: usize, connection: ConnectionId);

    /// Handles a reply to a worker.
    fn on_reply(world: &mut World<Self>, agent: usize, connection: ConnectionId, reply: Frame);

    /// Checks the invariants. Runs after every event.
    fn check(world: &mut World<Self>) -> CheckResult;

    /// Notes that a server lost a hold.
    fn on_hold_lost(&mut self, _lock: &str, _field: &str) {}

    /// Notes that a script ran after its agent had given up its connection.
    fn on_late_script(_world: &mut World<Self>, _agent: usize, _call: &Call) {}
}

/// Sets a short lease, which the seed determines, and the times that go with it. Returns it in milliseconds.
pub(super) fn set_lease(settings: &mut Settings, seed: u64) -> u64 {
    let lease = 600 + seed % 7 * 700;
    settings.lease = Lease::new(Duration::from_millis(lease)).expect("a lease within bounds");
    settings.response_timeout = Duration::from_millis(lease / 10);
    settings.poll_max = Duration::from_secs(1);
    lease
}

pub(in crate::core) struct World<S: Scenario> {
    pub(super) now: u64,
    schedule: Schedule<Event>,
    pub(super) rng: Rng,
    pub(in crate::core) settings: Settings,
    pub(in crate::core) servers: Vec<Server>,
    pub(in crate::core) agents: Vec<Agent>,
    connections: BTreeMap<RedisConnectionId, Connection>,
    /// The replication from one server to another, if it is modelled.
    pub(super) replication: Option<Replication>,
    /// Replies to sessions without a worker, for tests that send commands themselves.
    pub(in crate::core) replies: Vec<(usize, ConnectionId, Outgoing)>,
    /// Workers by agent and session.
    pub(super) workers: BTreeMap<(usize, ConnectionId), S::Worker>,
    pub(super) scenario: S,
    /// The instant at which all faults were repaired.
    pub(super) fault_free_since: u64,
    /// Workers start new work.
    pub(super) working: bool,
    /// Faults occur.
    pub(super) faulty: bool,
    /// Killed servers may lose their data.
    pub(super) forgetful: bool,
    pub(super) grants: u64,
    /// The votes on red locks that servers have not cast.
    pub(in crate::core) silent_votes: u64,
    /// The forced releases that were logged: whether each was confirmed.
    pub(in crate::core) audited: Vec<bool>,
    /// Scripts for which there was no connection.
    pub(in crate::core) unsent: u64,
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
            clock_ahead_ms: 0,
            slow: 0,
            answers_later: 0,
            refuses: None,
            served: 0,
            subscriptions: BTreeSet::new(),
        };
        let mut world = Self {
            now: 1_000_000,
            schedule: Schedule::default(),
            rng: Rng::new(seed),
            servers: (0..servers).map(|_| server()).collect(),
            agents: (0..agents).map(|index| Agent::new(index, &all)).collect(),
            settings: all,
            connections: BTreeMap::new(),
            replication: None,
            replies: Vec::new(),
            workers: BTreeMap::new(),
            scenario: S::default(),
            fault_free_since: 0,
            working: false,
            faulty: false,
            forgetful: false,
            grants: 0,
            silent_votes: 0,
            audited: Vec::new(),
            unsent: 0,
            violation: None,
            trace: Trace::default(),
        };
        for agent in 0..world.agents.len() {
            for node in 0..servers {
                for lane in LANES {
                    let connection = Connection { up: true, ..Connection::default() };
                    world.connections.insert((agent, node, lane), connection);
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

    pub(super) fn act_after(&mut self, micros: u64, agent: usize, connection: ConnectionId) {
        self.after(micros, Event::Act { agent, connection });
    }

    pub(super) fn fault_after(&mut self, micros: u64) {
        self.after(micros, Event::Fault);
    }

    pub(super) fn boot(&self) -> Moment {
        Moment::from_micros(self.now)
    }

    /// Lets time pass, up to the first violation.
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

    /// Deletes a lock on a server without its holder's knowledge.
    pub(in crate::core) fn delete(&mut self, node: usize, lock: &str) {
        for (field, _) in self.servers[node].redis.fields(lock) {
            self.scenario.on_hold_lost(lock, field);
        }
        self.servers[node].redis.keys_mut().remove(lock);
    }

    /// Permits the loss of a lock's present holds: an operator may release them.
    pub(in crate::core) fn excuse_loss(&mut self, lock: &str) {
        for server in &self.servers {
            for (field, _) in server.redis.fields(lock) {
                self.scenario.on_hold_lost(lock, field);
            }
        }
    }

    /// Lets time pass, and returns the violation, if any.
    pub(super) fn run_for(&mut self, time: Duration) -> CheckResult {
        self.pass(time);
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Makes the second server a replica of the first, with a clock that is ahead by that time.
    pub(super) fn with_replica(mut self, clock_ahead_ms: u64) -> Self {
        self.replication = Some(Replication::new(0, 1));
        self.servers[1].clock_ahead_ms = clock_ahead_ms;
        self
    }

    /// Starts the workers: so many of each agent.
    pub(super) fn start_workers(&mut self, count: Range<u64>) {
        self.working = true;
        for agent in 0..self.agents.len() {
            for _ in 0..self.rng.within(count.clone()) {
                self.join(agent);
            }
        }
    }

    /// Checks that no agent has anything left.
    pub(super) fn check_idle(&self) -> CheckResult {
        for (index, agent) in self.agents.iter().enumerate() {
            let (core, channels) = (&agent.core, &agent.wanted_channels);
            if !core.ops.is_empty() || core.leases.len() > 0 || core.locks.waiting() > 0 {
                return Err(format!("agent {index} still has {:?} {:?}", core.ops, core.leases));
            }
            let forgotten = core.locks.is_empty() && core.red.is_empty() && channels.is_empty();
            if !forgotten || !core.is_idle() {
                return Err(format!(
                    "agent {index} remembers {:?} {:?} {channels:?}",
                    core.locks, core.red
                ));
            }
            if let Some(at) = core.next_deadline() {
                return Err(format!("agent {index} has a deadline without a purpose: {at:?}"));
            }
        }
        Ok(())
    }

    fn set_clocks(&mut self) {
        for server in &mut self.servers {
            server.redis.set_clock(EPOCH_MS + server.clock_ahead_ms + self.now / 1000);
        }
    }

    /// Returns the instant at which a key expires on a server; `None` without a key or a TTL.
    pub(super) fn expiry(&self, node: usize, lock: &str) -> Option<u64> {
        let entry = self.servers[node].redis.keys().get(lock)?;
        let ahead = self.servers[node].clock_ahead_ms;
        entry.expires_ms.map(|ms| (ms - EPOCH_MS - ahead) * 1000)
    }

    pub(in crate::core) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Notifies an agent of a forced release of its hold on one server.
    pub(in crate::core) fn forced(
        &mut self,
        agent: usize,
        node: usize,
        name: &LockName,
        number: Number,
    ) {
        let holder = redisson::HolderId::new(self.agents[agent].core.numbers.client(), number);
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

    /// Ends a worker's connection. The worker does not return.
    pub(super) fn leave(&mut self, agent: usize, connection: ConnectionId) {
        self.workers.remove(&(agent, connection));
        self.close(agent, connection);
    }

    pub(in crate::core) fn open(&mut self, agent: usize) -> ConnectionId {
        let now = self.boot();
        let state = &mut self.agents[agent];
        state.next_connection += 1;
        let id = ConnectionId(state.next_connection);
        state.core.on_open(now, id, Peer::default(), Secret([1; 16]));
        id
    }

    pub(in crate::core) fn command(
        &mut self,
        agent: usize,
        connection: ConnectionId,
        command: Command,
    ) {
        self.log(|| format!("agent {agent} connection {connection:?}: {command:?}"));
        self.input(agent, Input::Command(connection, command));
    }

    pub(in crate::core) fn close(&mut self, agent: usize, connection: ConnectionId) {
        self.log(|| format!("agent {agent} connection {connection:?} closes"));
        self.input(agent, Input::Closed(connection));
    }

    pub(in crate::core) fn stall(&mut self, agent: usize, time: u64) {
        self.log(|| format!("agent {agent} stalls for {time} µs"));
        self.agents[agent].stalled_until = self.now + time;
        self.agents[agent].alarm_at = self.now + time;
        self.after(time, Event::Alarm { agent, at: self.now + time });
    }

    /// Returns the replies and pushes to a session without a worker since the last call.
    pub(in crate::core) fn replies_of(
        &mut self,
        agent: usize,
        connection: ConnectionId,
    ) -> Vec<Frame> {
        let mine =
            |(to, id, _): &(usize, ConnectionId, Outgoing)| *to == agent && *id == connection;
        let (own, rest) = std::mem::take(&mut self.replies).into_iter().partition(mine);
        self.replies = rest;
        let own: Vec<(usize, ConnectionId, Outgoing)> = own;
        own.into_iter()
            .map(|(.., outgoing)| match outgoing {
                Outgoing::Reply(frame) => frame,
                Outgoing::Push(frames) | Outgoing::Loss(frames) => Frame::Array(frames),
                other => panic!("unexpected {other:?}"),
            })
            .collect()
    }

    /// Returns the number of servers on which a lock is held.
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
        let first = first_number(1);
        let core = Core::new(settings.clone(), client, first, Grouping::new(vec![], 50), now);
        Self {
            core,
            main: 0,
            side: 0,
            wanted_channels: BTreeSet::new(),
            next_connection: 0,
            alarm_at: u64::MAX,
            tick_at: Moment::default(),
            stalled_until: 0,
            inbox: VecDeque::new(),
        }
    }
}
