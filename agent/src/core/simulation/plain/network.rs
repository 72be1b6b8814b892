//! The network between hosts and Redis: connects, disconnects, scripts and subscriptions on their way.

use std::collections::BTreeMap;
use std::rc::Rc;

use redisson::LockName;
use redisson::script::{Call, Value, batch, parse_batch};

use super::super::redis::Served;
use super::super::requests::{channel, lock_name};
use super::super::schedule::micros;
use super::super::seeds::CheckResult;
use super::connection::{COMMANDS, MESSAGES, Network, RENEWALS};
use super::event::{Event, Input, Packet, REPEATED, Script};
use super::simulation::{Phase, Simulation};
use crate::core::Failure;

/// Returns the call of scripts that are sent together.
fn joined(scripts: &[Script]) -> Call {
    match scripts {
        [alone] => alone.call.clone(),
        _ => batch(scripts.iter().map(|script| &script.call)),
    }
}

impl Simulation {
    /// Reports whether no reply arrives on that connection.
    pub(super) fn is_cut(&self, host: usize, lane: usize) -> bool {
        !self.server.up
            || self.server.frozen_until > self.now
            || !matches!(self.hosts[host].connections[lane].network(self.now), Network::Up(_))
    }

    pub(super) fn heartbeat(&mut self, host: usize, lane: usize, generation: u64) {
        let connection = &self.hosts[host].connections[lane];
        if !connection.up || connection.generation != generation {
            return;
        }
        let (run, cut) = (self.hosts[host].run, self.is_cut(host, lane));
        let period = micros(self.hosts[host].settings.response_timeout);
        let event = if cut {
            Event::Break { host, run, lane, generation }
        } else {
            Event::Heartbeat { host, run, lane, generation }
        };
        self.after(period, event);
        if cut {
            self.after(period + 1, Event::Heartbeat { host, run, lane, generation });
        }
    }

    pub(super) fn connect(&mut self, host: usize, lane: usize) -> CheckResult {
        if self.hosts[host].connections[lane].up {
            return Ok(());
        }
        let run = self.hosts[host].run;
        if self.is_cut(host, lane) || self.hosts[host].stall.is_some() {
            let connection = &mut self.hosts[host].connections[lane];
            connection.failures += 1;
            let pause = (10_000 << connection.failures.min(7)).min(1_000_000);
            self.after(pause, Event::Connect { host, run, lane });
            return Ok(());
        }
        self.hosts[host].connections[lane].connected();
        let generation = self.hosts[host].connections[lane].generation;
        self.log(|| format!("host {host}: connection {lane} is up ({generation})"));
        let period = micros(self.hosts[host].settings.response_timeout);
        self.after(period, Event::Heartbeat { host, run, lane, generation });
        match lane {
            RENEWALS => self.input(host, Input::Connected),
            MESSAGES => {
                for name in self.hosts[host].wanted_channels.clone() {
                    self.after(200, Event::Subscribe { host, run, generation, name });
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ends a connection. Calls without a reply have an unknown outcome.
    pub(super) fn break_connection(&mut self, host: usize, lane: usize, why: &str) -> CheckResult {
        let connection = &mut self.hosts[host].connections[lane];
        if !connection.up {
            return Ok(());
        }
        connection.up = false;
        let generation = connection.generation;
        let in_flight = std::mem::take(&mut connection.in_flight);
        let run = self.hosts[host].run;
        self.log(|| format!("host {host}: connection {lane} broke: {why}"));
        let pause = self.rng.within(1000..20_000);
        self.after(pause, Event::Connect { host, run, lane });
        if lane == MESSAGES {
            self.server
                .subscriptions
                .retain(|(_, of, r, g)| (*of, *r, *g) != (host, run, generation));
            self.count_subscribers();
            self.input(host, Input::Unsubscribed)?;
        }
        for scripts in in_flight.into_values() {
            for Script { op, .. } in &*scripts {
                let (op, outcome) = (*op, Err(Failure::Lost(why.to_owned())));
                self.input(host, Input::Outcome { renewal: lane == RENEWALS, op, outcome })?;
            }
        }
        Ok(())
    }

    pub(super) fn drop_subscriptions(&mut self, host: usize) {
        self.server.subscriptions.retain(|(_, of, ..)| *of != host);
        self.count_subscribers();
    }

    pub(super) fn subscribe(&mut self, host: usize, generation: u64, name: LockName) {
        let connection = &self.hosts[host].connections[MESSAGES];
        let run = self.hosts[host].run;
        if !connection.up || connection.generation != generation || self.is_cut(host, MESSAGES) {
            return;
        }
        let channel = channel(&name);
        if self.hosts[host].wanted_channels.contains(&name) {
            self.server.subscriptions.insert((channel, host, run, generation));
            self.count_subscribers();
            self.after(200, Event::Input { host, run, input: Input::Subscribed(name) });
        } else {
            self.server.subscriptions.remove(&(channel, host, run, generation));
            self.count_subscribers();
        }
    }

    pub(super) fn count_subscribers(&mut self) {
        let mut subscribers: BTreeMap<String, usize> = BTreeMap::new();
        for (channel, ..) in &self.server.subscriptions {
            *subscribers.entry(channel.clone()).or_default() += 1;
        }
        for other_clients in &self.other_clients {
            if let Some(name) = other_clients.waits_for() {
                *subscribers.entry(channel(&lock_name(name))).or_default() += 1;
            }
        }
        self.server.redis.subscribers = subscribers;
    }

    /// Runs a script that arrives at Redis.
    pub(super) fn arrive(&mut self, packet: Packet) -> CheckResult {
        let Packet { host, run, lane, generation, id, .. } = packet;
        let connection = &self.hosts[host].connections[lane];
        let live = self.is_run(host, run) && connection.up && connection.generation == generation;
        if !self.server.up || (!live && !packet.held && self.rng.one_in(4)) {
            return Ok(());
        }
        if self.server.frozen_until > self.now {
            self.at(self.server.frozen_until, Event::Arrive(packet));
            return Ok(());
        }
        self.history.before_script(&packet, &self.server.redis);
        let call = joined(&packet.scripts);
        let served = match self.server.refusal {
            Some(refusal) => Served { reply: Err(refusal.to_owned()), published: Vec::new() },
            None => self.server.redis.serve(&call),
        };
        self.log(|| {
            let late = if live { "" } else { " (late)" };
            let args: Vec<_> = call.args.iter().take(3).map(String::from_utf8_lossy).collect();
            let key = String::from_utf8_lossy(&call.keys[0]);
            let reply = &served.reply;
            format!("redis: {} {key} {args:?}{late} -> {reply:?}", call.script.name)
        });
        self.history.after_script(&packet, &self.hosts, &self.server.redis);
        self.publish(&served.published);
        if live && let Some(at) = self.hosts[host].connections[lane].answer(self.now, &mut self.rng)
        {
            let outcome = served.reply.map_err(Failure::Refused);
            self.at(at, Event::Answer { host, run, lane, generation, id, outcome });
        }
        Ok(())
    }

    /// Sends the scripts that have become ready together.
    pub(super) fn flush(&mut self, host: usize) {
        let scripts = std::mem::take(&mut self.hosts[host].sharing);
        if !scripts.is_empty() {
            self.send(host, COMMANDS, scripts.into());
        }
    }

    /// Handles the answer to scripts. Scripts that a batch left aside are called alone.
    pub(super) fn answered(
        &mut self,
        host: usize,
        lane: usize,
        scripts: &[Script],
        outcome: Result<Value, Failure>,
    ) -> CheckResult {
        let renewal = lane == RENEWALS;
        if let [Script { op, .. }] = scripts {
            return self.input(host, Input::Outcome { renewal, op: *op, outcome });
        }
        let replies = match outcome {
            Ok(reply) => parse_batch(&reply, scripts.len()).map_err(|bad| bad.to_string())?,
            Err(_) => vec![None; scripts.len()],
        };
        for (script, reply) in scripts.iter().zip(replies) {
            match reply {
                Some(reply) => {
                    let (op, outcome) = (script.op, Ok(reply));
                    self.input(host, Input::Outcome { renewal, op, outcome })?;
                }
                None => self.send(host, lane, [script.clone()].into()),
            }
        }
        Ok(())
    }

    pub(super) fn send(&mut self, host: usize, lane: usize, scripts: Rc<[Script]>) {
        self.log(|| {
            let names: Vec<_> =
                scripts.iter().map(|s| format!("{} {:?}", s.call.script.name, s.op)).collect();
            format!("host {host} -> {}", names.join(", "))
        });
        self.next_packet += 1;
        let id = self.next_packet;
        let state = &mut self.hosts[host];
        let run = state.run;
        let connection = &mut state.connections[lane];
        if !connection.up {
            for Script { op, .. } in &*scripts {
                let (op, outcome) = (*op, Err(Failure::Unsent("no connection".to_owned())));
                let input = Input::Outcome { renewal: lane == RENEWALS, op, outcome };
                self.after(20, Event::Input { host, run, input });
            }
            return;
        }
        connection.in_flight.insert(id, Rc::clone(&scripts));
        let generation = connection.generation;
        let held = connection.half_open_until(self.now).is_some();
        let arrival = connection.arrival(self.now, &mut self.rng);
        let timeout = micros(state.settings.response_timeout);
        self.after(timeout, Event::TimeOut { host, run, lane, generation, id });
        let Some(at) = arrival else { return };
        let packet = Packet { host, run, lane, generation, id, scripts, held };
        if self.phase == Phase::Trouble && self.rng.one_in(200) {
            // The network repeats it.
            let again = at + self.rng.within(0..2_000_000);
            self.at(
                again,
                Event::Arrive(Packet { held: true, generation: REPEATED, ..packet.clone() }),
            );
        }
        self.at(at, Event::Arrive(packet));
    }
}
