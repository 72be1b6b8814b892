//! The event loop: carries out each event, feeds the cores and performs their actions.

use std::collections::BTreeSet;
use std::time::Duration;

use redisson::keys;
use redisson::script::may_share;

use super::super::requests::{lock_name, lock_of};
use super::super::schedule::micros;
use super::super::seeds::CheckResult;
use super::connection::{COMMANDS, MESSAGES, RENEWALS};
use super::event::{Event, Input, Script};
use super::names::NAMES;
use super::simulation::{Phase, Simulation};
use crate::core::{Effect, Lane, Node};
use crate::types::{ConnectionId, Peer, Secret};

/// Returns the process of a worker. Each worker has its own.
fn pid_of(id: ConnectionId) -> i32 {
    i32::try_from(id.0 % 1_000_000).expect("below a million") + 1
}

impl Simulation {
    /// Carries out all events until `end`.
    pub(super) fn run_until(&mut self, end: u64) -> CheckResult {
        while let Some((at, event)) = self.schedule.next_until(end) {
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

    fn happen(&mut self, event: Event) -> CheckResult {
        match event {
            Event::Arrive(packet) => self.arrive(packet),
            Event::Answer { host, run, lane, generation, id, outcome } => {
                if self.hosts[host].run != run {
                    return Ok(());
                }
                let stall = self.hosts[host].stall;
                let connection = &mut self.hosts[host].connections[lane];
                if !connection.up || connection.generation != generation {
                    return Ok(());
                }
                let Some(scripts) = connection.in_flight.remove(&id) else { return Ok(()) };
                if let Some(stall) = stall.filter(|_| scripts.len() > 1) {
                    // A stalled agent handles the replies when it resumes.
                    connection.in_flight.insert(id, scripts);
                    let later = Event::Answer { host, run, lane, generation, id, outcome };
                    self.at(stall.until, later);
                    return Ok(());
                }
                self.answered(host, lane, &scripts, outcome)
            }
            Event::Flush { host, run } if self.is_run(host, run) => {
                match self.hosts[host].stall {
                    Some(stall) => self.at(stall.until, Event::Flush { host, run }),
                    None => self.flush(host),
                }
                Ok(())
            }
            Event::TimeOut { host, run, lane, generation, id } if self.is_run(host, run) => {
                let timeout = self.hosts[host].settings.response_timeout;
                if let Some(stall) = self.hosts[host].stall {
                    // A stalled agent gives the server the whole timeout again.
                    let again = Event::TimeOut { host, run, lane, generation, id };
                    self.at(stall.until + micros(timeout), again);
                    return Ok(());
                }
                let connection = &self.hosts[host].connections[lane];
                if connection.up
                    && connection.generation == generation
                    && connection.in_flight.contains_key(&id)
                {
                    return self.break_connection(host, lane, "no reply in time");
                }
                Ok(())
            }
            Event::Heartbeat { host, run, lane, generation } if self.is_run(host, run) => {
                self.heartbeat(host, lane, generation);
                Ok(())
            }
            Event::Break { host, run, lane, generation } if self.is_run(host, run) => {
                let connection = &self.hosts[host].connections[lane];
                if connection.up && connection.generation == generation && self.is_cut(host, lane) {
                    return self.break_connection(host, lane, "no sign of life");
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
            Event::Reconnect { host, run, connection } if self.is_run(host, run) => {
                self.reconnect(host, connection);
                Ok(())
            }
            Event::Act { host, run, connection, owner } if self.is_run(host, run) => {
                self.act(host, connection, owner);
                Ok(())
            }
            Event::Read { host, run, connection } if self.is_run(host, run) => {
                self.read_on(host, connection)
            }
            Event::Join { host } => {
                self.join(host);
                Ok(())
            }
            Event::OtherClient(index) => {
                self.other_client_acts(index);
                Ok(())
            }
            Event::Fault => self.fault(),
            Event::Repair(repair) => {
                self.repair(repair);
                Ok(())
            }
            // For an agent that has been killed since.
            _ => Ok(()),
        }
    }

    /// Sends a message to all subscribers.
    pub(super) fn publish(&mut self, channels: &[String]) {
        for channel in channels {
            let subscribers: Vec<_> = self
                .server
                .subscriptions
                .iter()
                .filter(|(to, ..)| to == channel)
                .map(|(_, host, run, _)| (*host, *run))
                .collect();
            let names = keys::locks_of_channel(channel.as_bytes());
            for (host, run) in subscribers {
                let answer = self.hosts[host].connections[MESSAGES].answer(self.now, &mut self.rng);
                let Some(at) = answer else { continue };
                for name in names.clone() {
                    self.at(at, Event::Input { host, run, input: Input::Message(name) });
                }
            }
            for index in 0..self.other_clients.len() {
                let waits = self.other_clients[index].waits_for().map(lock_name);
                if waits.is_some_and(|name| names.contains(&name)) {
                    let pause = self.rng.within(100..500);
                    self.after(pause, Event::OtherClient(index));
                }
            }
        }
    }

    /// Feeds an input to a core, now or when its host resumes.
    pub(super) fn input(&mut self, host: usize, input: Input) -> CheckResult {
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
            self.history.notified(host, lock, self.now);
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
            Input::Answered(id, reply) => core.on_answered(now, id, reply),
            Input::Closed(id) => core.on_close(now, id),
            Input::Stopped => {
                let mut stopped = BTreeSet::new();
                for (id, session) in &mut state.sessions {
                    // A worker without holds and waits is not checked.
                    let busy = core.sessions.get(id).is_some_and(|session| session.is_busy());
                    let before = session.known_stopped;
                    session.known_stopped = busy && session.connected && !session.reading;
                    if session.known_stopped {
                        stopped.insert(pid_of(*id));
                    }
                    if session.known_stopped && !before {
                        // Renewals that were due when the agent learned of it come first.
                        let at_most = now + state.settings.lease.duration();
                        let holds = core.leases.iter().filter(|hold| hold.owner.connection == *id);
                        for hold in holds {
                            let entry = self.history.renewable.entry((host, hold.number));
                            let entry = entry.or_insert(at_most);
                            *entry = at_most.max(*entry);
                        }
                    }
                }
                core.on_stopped(now, &stopped);
            }
        }
    }

    /// Performs the core's effects and advances its clock, as the runtime does.
    pub(super) fn pump(&mut self, host: usize) -> CheckResult {
        for _ in 0..10_000 {
            while let Some(effect) = self.hosts[host].core.next_effect() {
                self.perform(host, effect)?;
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
        Err(format!("host {host}: the core asks for the time in an endless loop"))
    }

    fn perform(&mut self, host: usize, effect: Effect) -> CheckResult {
        let run = self.hosts[host].run;
        match effect {
            Effect::Send { op, lane, call, .. } => {
                self.history.sending(&mut self.hosts[host], &call)?;
                let lane = if lane == Lane::Renewals { RENEWALS } else { COMMANDS };
                let shares = lane == COMMANDS && may_share(&call);
                let script = Script { op, call };
                if shares {
                    self.hosts[host].sharing.push(script);
                    if self.hosts[host].sharing.len() == 1 {
                        let trouble = self.phase == Phase::Trouble;
                        let most = if trouble { 20_000 } else { 200 };
                        let pause = self.rng.within(0..most);
                        self.after(pause, Event::Flush { host, run });
                    }
                } else {
                    if lane == COMMANDS {
                        self.flush(host);
                    }
                    self.send(host, lane, [script].into());
                }
            }
            Effect::Deliver(session, outgoing) => self.deliver(host, session, outgoing)?,
            Effect::Journal(record) => self.journal(host, record),
            Effect::Report(_) | Effect::Log(_) => {}
            Effect::Subscribe(_, channel) => {
                let name = lock_of(&channel);
                let state = &mut self.hosts[host];
                if !state.wanted_channels.insert(name.clone()) {
                    return Err(format!("host {host} subscribes twice to {name}"));
                }
                let generation = state.connections[MESSAGES].generation;
                self.after(200, Event::Subscribe { host, run, generation, name });
            }
            Effect::Unsubscribe(_, channel) => {
                let name = lock_of(&channel);
                let state = &mut self.hosts[host];
                if !state.wanted_channels.remove(&name) {
                    return Err(format!(
                        "host {host} unsubscribes from {name} without a subscription"
                    ));
                }
                let generation = state.connections[MESSAGES].generation;
                self.after(200, Event::Subscribe { host, run, generation, name });
            }
        }
        Ok(())
    }

    /// Resumes a stalled host. All inputs that arrived meanwhile are there at once.
    fn resume(&mut self, host: usize) -> CheckResult {
        let Some(stall) = self.hosts[host].stall.filter(|stall| stall.until <= self.now) else {
            return Ok(());
        };
        self.hosts[host].stall = None;
        self.log(|| format!("host {host} resumes"));
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

/// Returns the secret of a session.
pub(super) fn secret(id: ConnectionId) -> Secret {
    Secret(u128::from(id.0).to_be_bytes())
}
