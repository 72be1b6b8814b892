//! The event loop: one queue of what happens when, in true time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson::script::Value;
use redisson::{LockName, keys};

use super::dice::Dice;
use super::foreign::Foreign;
use super::host::{Host, Input, micros, settings};
use super::laws::Laws;
use super::link::{COMMANDS, MESSAGES, RENEWALS};
use super::redis::Entry;
use super::redis::Redis;
use super::wire::Packet;
use crate::core::{Effect, Failure, Frozen, Lane, Node};
use crate::types::{Peer, SessionId};

/// What a law's breach says.
pub(super) type Lawful<T = ()> = Result<T, String>;

#[derive(Debug)]
pub(super) enum Event {
    Arrive(Packet),
    Answer {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
        id: u64,
        outcome: Result<Value, Failure>,
    },
    TimeOut {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
        id: u64,
    },
    Heartbeat {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
    },
    Break {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
    },
    Connect {
        host: usize,
        run: u64,
        lane: usize,
    },
    Subscribe {
        host: usize,
        run: u64,
        generation: u64,
        name: LockName,
    },
    Input {
        host: usize,
        run: u64,
        input: Input,
    },
    Alarm {
        host: usize,
        at: u64,
    },
    Resume {
        host: usize,
    },
    Reconnect {
        host: usize,
        run: u64,
        session: SessionId,
    },
    Act {
        host: usize,
        run: u64,
        session: SessionId,
        owner: usize,
    },
    Read {
        host: usize,
        run: u64,
        session: SessionId,
    },
    Join {
        host: usize,
    },
    Foreign(usize),
    Fault,
    Mend(super::faults::Mend),
}

/// The server, and what surrounds the model of it.
pub(super) struct Server {
    pub(super) redis: Redis,
    /// Its wall clock less true time.
    pub(super) offset_ms: u64,
    pub(super) up: bool,
    pub(super) frozen_until: u64,
    /// It answers every script with this error, and runs none: loading, a replica, unable to save.
    pub(super) refusal: Option<&'static str>,
    /// What a replica that lags has, or what was saved to disk.
    pub(super) copy: BTreeMap<String, Entry>,
    /// Channel, host, generation.
    pub(super) subscriptions: BTreeSet<(String, usize, u64, u64)>,
    /// Since when nothing has been wrong with it.
    pub(super) calm_since: u64,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Work, and faults all the time.
    Trouble,
    /// Everything is mended and stays so; work goes on.
    Healed,
    /// Nobody begins anything, everybody finishes.
    Ending,
}

pub(super) struct Simulation {
    pub(super) now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    pub(super) dice: Dice,
    pub(super) server: Server,
    pub(super) hosts: Vec<Host>,
    pub(super) foreign: Vec<Foreign>,
    pub(super) laws: Laws,
    pub(super) phase: Phase,
    /// How many more things the workers do.
    pub(super) work_left: u64,
    pub(super) next_packet: u64,
    /// Who was granted a lock, in order.
    pub(super) grants: Vec<(usize, SessionId)>,
    /// In a contest every worker wants the same lock again and again, and holds it for that long.
    pub(super) contest: Option<u64>,
    /// Events so far: a measure of a run's length.
    pub(super) events: u64,
    trace: Option<Vec<String>>,
}

pub(super) const NAMES: [&str; 3] = ["x", "y", "z"];

/// Each worker is a process of its own.
fn pid_of(id: SessionId) -> i32 {
    i32::try_from(id.0 % 1_000_000).expect("below a million") + 1
}

pub(super) fn lock_name(text: &str) -> LockName {
    LockName::new(text.as_bytes()).expect("a short name")
}

impl Simulation {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut dice = Dice::new(seed);
        let hosts = dice.pick(&[1, 2, 2]);
        let mut settings = settings(&mut dice);
        // Dead workers' locks are kept back in half of the runs, stopped workers' ones are let lapse in half of them.
        settings.lock_delay = match seed % 8 {
            2 | 3 => Duration::from_millis(200),
            4 | 5 => settings.lease.duration() * 3 / 2,
            _ => Duration::ZERO,
        };
        settings.frozen = if seed % 8 < 4 { Frozen::Keep } else { Frozen::Lapse };
        let hosts: Vec<Host> =
            (0..hosts).map(|index| Host::new(index, settings.clone(), &mut dice)).collect();
        let mut simulation = Self::empty(dice, hosts, traced);
        simulation.foreign = (0..simulation.dice.within(0..3)).map(Foreign::new).collect();
        simulation
    }

    /// Hosts that begin to connect, and nobody who does anything.
    pub(super) fn empty(dice: Dice, hosts: Vec<Host>, traced: bool) -> Self {
        let server = Server {
            redis: Redis::default(),
            offset_ms: 1_800_000_000_000,
            up: true,
            frozen_until: 0,
            refusal: None,
            copy: BTreeMap::new(),
            subscriptions: BTreeSet::new(),
            calm_since: 0,
        };
        let mut simulation = Self {
            now: 1,
            sequence: 0,
            queue: BTreeMap::new(),
            dice,
            server,
            hosts,
            foreign: Vec::new(),
            laws: Laws::default(),
            phase: Phase::Trouble,
            work_left: 0,
            next_packet: 0,
            grants: Vec::new(),
            contest: None,
            events: 0,
            trace: traced.then(Vec::new),
        };
        for host in 0..simulation.hosts.len() {
            simulation.connect_all(host);
        }
        simulation
    }

    pub(super) fn connect_all(&mut self, host: usize) {
        let run = self.hosts[host].run;
        for lane in [COMMANDS, RENEWALS, MESSAGES] {
            self.after(1000, Event::Connect { host, run, lane });
        }
    }

    /// A line of the trace, made only where one is kept.
    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!(
                "{:>11.6}  {}",
                Duration::from_micros(self.now).as_secs_f64(),
                line()
            ));
        }
    }

    pub(super) fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or(&[])
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }

    pub(super) fn after(&mut self, micros: u64, event: Event) {
        self.at(self.now + micros, event);
    }

    /// Runs until that instant, or until nothing is to come.
    pub(super) fn run_until(&mut self, end: u64) -> Lawful {
        while let Some(next) = self.queue.first_entry() {
            let (at, _) = *next.key();
            if at > end {
                break;
            }
            let event = next.remove();
            self.now = at;
            self.events += 1;
            self.set_clock();
            self.happen(event)?;
            self.check()?;
        }
        self.now = end;
        self.set_clock();
        self.check()
    }

    pub(super) fn set_clock(&mut self) {
        self.server.redis.set_clock(self.server.offset_ms + self.now / 1000);
    }

    pub(super) fn is_run(&self, host: usize, run: u64) -> bool {
        self.hosts[host].run == run
    }

    fn happen(&mut self, event: Event) -> Lawful {
        match event {
            Event::Arrive(packet) => self.arrive(packet),
            Event::Answer { host, run, lane, generation, id, outcome } => {
                if self.hosts[host].run != run {
                    return Ok(());
                }
                let link = &mut self.hosts[host].links[lane];
                if !link.up || link.generation != generation {
                    return Ok(());
                }
                let Some(op) = link.in_flight.remove(&id) else { return Ok(()) };
                self.input(host, Input::Outcome { renewal: lane == RENEWALS, op, outcome })
            }
            Event::TimeOut { host, run, lane, generation, id } if self.is_run(host, run) => {
                let timeout = self.hosts[host].settings.response_timeout;
                if let Some(stall) = self.hosts[host].stall {
                    // Who was held up itself gives the server the same time again.
                    let again = Event::TimeOut { host, run, lane, generation, id };
                    self.at(stall.until + micros(timeout), again);
                    return Ok(());
                }
                let link = &self.hosts[host].links[lane];
                if link.up && link.generation == generation && link.in_flight.contains_key(&id) {
                    return self.break_link(host, lane, "no answer in time");
                }
                Ok(())
            }
            Event::Heartbeat { host, run, lane, generation } if self.is_run(host, run) => {
                self.heartbeat(host, lane, generation);
                Ok(())
            }
            Event::Break { host, run, lane, generation } if self.is_run(host, run) => {
                let link = &self.hosts[host].links[lane];
                if link.up && link.generation == generation && self.is_cut(host, lane) {
                    return self.break_link(host, lane, "no sign of life");
                }
                Ok(())
            }
            Event::Connect { host, run, lane } if self.is_run(host, run) => {
                self.connect(host, lane)
            }
            Event::Subscribe { host, run, generation, name } if self.is_run(host, run) => {
                self.subscribe(host, generation, name);
                Ok(())
            }
            Event::Input { host, run, input } if self.is_run(host, run) => self.input(host, input),
            Event::Alarm { host, at } => {
                if self.hosts[host].stall.is_none() && self.hosts[host].alarm_at == at {
                    self.hosts[host].alarm_at = u64::MAX;
                    return self.pump(host);
                }
                Ok(())
            }
            Event::Resume { host } => self.resume(host),
            Event::Reconnect { host, run, session } if self.is_run(host, run) => {
                self.reconnect(host, session);
                Ok(())
            }
            Event::Act { host, run, session, owner } if self.is_run(host, run) => {
                self.act(host, session, owner);
                Ok(())
            }
            Event::Read { host, run, session } if self.is_run(host, run) => {
                self.read_on(host, session)
            }
            Event::Join { host } => {
                self.join(host);
                Ok(())
            }
            Event::Foreign(index) => {
                self.foreign_acts(index);
                Ok(())
            }
            Event::Fault => self.fault(),
            Event::Mend(mend) => {
                self.mend(mend);
                Ok(())
            }
            // It was meant for an agent that has been killed since.
            _ => Ok(()),
        }
    }

    /// Brings a message to all who listen.
    pub(super) fn publish(&mut self, channels: &[String]) {
        for channel in channels {
            let told: Vec<_> = self
                .server
                .subscriptions
                .iter()
                .filter(|(to, ..)| to == channel)
                .map(|(_, host, run, _)| (*host, *run))
                .collect();
            let names = keys::locks_of_channel(channel.as_bytes());
            for (host, run) in told {
                let answer = self.hosts[host].links[MESSAGES].answer(self.now, &mut self.dice);
                let Some(at) = answer else { continue };
                for name in names.clone() {
                    self.at(at, Event::Input { host, run, input: Input::Message(name) });
                }
            }
            for index in 0..self.foreign.len() {
                let waits = self.foreign[index].waits_for().map(lock_name);
                if waits.is_some_and(|name| names.contains(&name)) {
                    let pause = self.dice.within(100..500);
                    self.after(pause, Event::Foreign(index));
                }
            }
        }
    }

    /// Something reaches a core, now or when its host wakes up.
    pub(super) fn input(&mut self, host: usize, input: Input) -> Lawful {
        if self.hosts[host].stall.is_some() {
            self.hosts[host].inbox.push(input);
            return Ok(());
        }
        self.feed(host, input);
        self.pump(host)
    }

    pub(super) fn feed(&mut self, host: usize, input: Input) {
        self.log(|| format!("host {host} <- {input:?}"));
        if let Input::Message(name) = &input
            && let Some(lock) = NAMES.iter().find(|lock| lock_name(lock) == *name)
            && self.server.redis.get(lock).is_none()
        {
            self.laws.heard(host, lock, self.now);
        }
        let state = &mut self.hosts[host];
        let now = state.boot(self.now);
        let core = &mut state.core;
        match input {
            Input::Outcome { op, outcome: Ok(reply), .. } => core.on_reply(now, op, &reply),
            Input::Outcome { op, outcome: Err(failure), .. } => core.on_failure(now, op, &failure),
            Input::Connected => core.verify(now, Node::Main),
            Input::Message(name) => core.on_message(now, Node::Main, &name),
            Input::Subscribed(name) => core.on_subscribed(now, Node::Main, &name),
            Input::Unsubscribed => core.on_unsubscribed(Node::Main),
            Input::Forced(name, number) => core.on_forced(now, Node::Main, &name, number),
            Input::Opened(id, resp3) => {
                let peer = Peer { pid: Some(pid_of(id)), ..Peer::default() };
                core.on_open(now, id, peer, secret(id));
                core.on_protocol(id, resp3);
            }
            Input::Command(id, command) => core.on_command(now, id, command),
            Input::Closed(id) => core.on_close(now, id),
            Input::Stopped => {
                let mut stopped = BTreeSet::new();
                for (id, session) in &mut state.sessions {
                    // Of who neither holds nor waits it wants to know nothing until the next look.
                    let busy = core.sessions.get(id).is_some_and(|session| session.is_busy());
                    session.known_stopped = busy && session.connected && !session.reading;
                    if session.known_stopped {
                        stopped.insert(pid_of(*id));
                    }
                }
                core.on_stopped(now, &stopped);
            }
        }
    }

    /// The driver's loop: does what the core says, and tells it the time when it is due.
    pub(super) fn pump(&mut self, host: usize) -> Lawful {
        for _ in 0..10_000 {
            while let Some(action) = self.hosts[host].core.next_effect() {
                self.perform(host, action)?;
            }
            let state = &mut self.hosts[host];
            let (now, due) = (state.boot(self.now), state.due());
            if due > now {
                let at = state.true_time(due);
                if state.alarm_at != at {
                    state.alarm_at = at;
                    if at != u64::MAX {
                        self.at(at, Event::Alarm { host, at });
                    }
                }
                return Ok(());
            }
            state.tick_at = now + Duration::from_millis(100);
            state.core.on_time(now);
        }
        Err(format!("host {host}: the core asks for its time again and again without an end"))
    }

    fn perform(&mut self, host: usize, action: Effect) -> Lawful {
        let run = self.hosts[host].run;
        match action {
            Effect::Send { op, lane, call, .. } => {
                self.laws.sending(&mut self.hosts[host], &call)?;
                let lane = if lane == Lane::Renewals { RENEWALS } else { COMMANDS };
                self.send(host, op, lane, call);
            }
            Effect::Deliver(session, outgoing) => self.deliver(host, session, outgoing)?,
            Effect::Journal(record) => self.journal(host, record),
            Effect::Report(_) | Effect::Log(_) => {}
            Effect::Subscribe(_, channel) => {
                let name = lock_of(&channel);
                let state = &mut self.hosts[host];
                if !state.wishes.insert(name.clone()) {
                    return Err(format!("host {host} subscribes twice to {name}"));
                }
                let generation = state.links[MESSAGES].generation;
                self.after(200, Event::Subscribe { host, run, generation, name });
            }
            Effect::Unsubscribe(_, channel) => {
                let name = lock_of(&channel);
                let state = &mut self.hosts[host];
                if !state.wishes.remove(&name) {
                    return Err(format!("host {host} unsubscribes from {name} unasked"));
                }
                let generation = state.links[MESSAGES].generation;
                self.after(200, Event::Subscribe { host, run, generation, name });
            }
        }
        Ok(())
    }

    /// A host that has stood still goes on: what has arrived meanwhile is all there at once.
    fn resume(&mut self, host: usize) -> Lawful {
        let Some(stall) = self.hosts[host].stall.filter(|stall| stall.until <= self.now) else {
            return Ok(());
        };
        self.hosts[host].stall = None;
        self.log(|| format!("host {host} goes on"));
        let mut inbox = std::mem::take(&mut self.hosts[host].inbox);
        inbox.sort_by_key(Input::urgency);
        if !stall.suspended {
            self.pump(host)?;
        }
        for input in inbox {
            self.feed(host, input);
            self.pump(host)?;
        }
        self.pump(host)
    }
}

/// A connection's secret.
pub(super) fn secret(id: SessionId) -> [u8; 16] {
    u128::from(id.0).to_be_bytes()
}

pub(super) fn channel(name: &LockName) -> String {
    String::from_utf8(keys::channel(name)).expect("names of simulations are ASCII")
}

/// The lock whose releases are told on a channel. No name here has braces, so that there is one.
fn lock_of(channel: &[u8]) -> LockName {
    keys::locks_of_channel(channel).remove(0)
}
