//! Faults and their repair.

use redisson::keys;

use super::super::redis::{Content, Entry};
use super::super::requests::lock_name;
use super::super::schedule::micros;
use super::super::seeds::CheckResult;
use super::connection::{COMMANDS, MESSAGES, Network, RENEWALS};
use super::event::{Event, Repair};
use super::host::Stall;
use super::names::NAMES;
use super::simulation::{Phase, Simulation};

/// The value of a spoiled token counter.
const NO_NUMBER: &str = "no number";

impl Simulation {
    pub(super) fn fault(&mut self) -> CheckResult {
        if self.phase != Phase::Trouble {
            return Ok(());
        }
        let pause = self.fault_duration() * 2;
        self.after(pause, Event::Fault);
        let host = self.rng.index(self.hosts.len());
        let lock = self.rng.pick(&NAMES);
        match self.rng.within(0..32) {
            0..9 => self.disturb_network(host),
            9..12 => {
                let lane = self.rng.pick(&[COMMANDS, RENEWALS, MESSAGES]);
                return self.break_connection(host, lane, "reset");
            }
            12 | 13 => {
                let until = self.now + self.fault_duration();
                self.log(|| "Redis freezes".to_owned());
                self.server.frozen_until = until;
            }
            14 | 15 => return self.restart_server(),
            16 | 17 => {
                self.log(|| "a replica catches up".to_owned());
                self.server.copy = self.server.redis.keys().clone();
            }
            18..21 => {
                let until = self.now + self.fault_duration();
                let suspended = self.rng.one_in(2);
                if self.hosts[host].stall.is_none() {
                    self.log(|| format!("host {host} stalls, suspended: {suspended}"));
                    self.hosts[host].stall = Some(Stall { until, suspended });
                    self.at(until, Event::Resume { host });
                }
            }
            21 if self.rng.one_in(2) => return self.kill_agent(host),
            22 if self.rng.one_in(2) => {
                self.log(|| format!("the counter of {lock} is evicted"));
                self.history.tokens.counter_lost(lock, &self.server.redis);
                self.server.redis.keys_mut().remove(&counter(lock));
            }
            30 => self.spoil_counter(lock),
            31 => {
                self.log(|| format!("the disk of host {host} is full"));
                self.hosts[host].disk.full = true;
                let pause = self.fault_duration();
                self.after(pause, Event::Repair(Repair::Disk(host)));
            }
            22 => {
                self.log(|| format!("{lock} is evicted"));
                self.history.excuse_key(lock, &self.server.redis);
                self.server.redis.keys_mut().remove(lock);
            }
            23 if self.server.up => self.force_release(lock),
            24 if self.server.redis.get(lock).is_none() || self.rng.one_in(3) => {
                self.log(|| format!("{lock} is used for something else"));
                self.become_alien(lock);
                let pause = self.fault_duration();
                self.after(pause, Event::Repair(Repair::Alien(lock)));
            }
            25 => {
                let step = self.rng.within(0..3000);
                let back = self.rng.one_in(2);
                self.log(|| format!("Redis' clock steps {step} ms, back: {back}"));
                self.history.excuse_all(&self.server.redis);
                let offset = &mut self.server.offset_ms;
                *offset = if back { *offset - step } else { *offset + step };
                if back {
                    self.history.tokens.clock_set_back();
                }
                self.set_clock();
            }
            26 | 27 => {
                self.log(|| "Redis' memory is full".to_owned());
                self.server.redis.full = true;
                let pause = self.fault_duration();
                self.after(pause, Event::Repair(Repair::Memory));
            }
            28 | 29 => {
                let refusals =
                    [Some("LOADING Redis is loading"), Some("READONLY You can't write"), None];
                let refusal = self.rng.pick(&refusals);
                match refusal {
                    Some(refusal) => self.log(|| format!("Redis refuses everything: {refusal}")),
                    None => self.log(|| "Redis refuses writes".to_owned()),
                }
                self.server.refusal = refusal;
                self.server.redis.read_only = refusal.is_none();
                let pause = self.fault_duration();
                self.after(pause, Event::Repair(Repair::Refusal));
            }
            _ => {}
        }
        Ok(())
    }

    /// Reports whether the server has no fault.
    pub(super) fn server_is_fault_free(&self) -> bool {
        let server = &self.server;
        let hangs = !server.up || server.frozen_until > self.now;
        let redis = &server.redis;
        !hangs && !redis.full && !redis.read_only && server.refusal.is_none()
    }

    /// Turns a lock's key into a string, or gives it the queue of a fair lock with a waiter.
    fn become_alien(&mut self, lock: &'static str) {
        self.history.excuse_key(lock, &self.server.redis);
        let mut set = |key: String, content: Content| {
            let entry = Entry { content, expires_ms: None };
            self.server.redis.keys_mut().insert(key, entry);
        };
        if self.rng.one_in(2) {
            return set(lock.to_owned(), Content::Text("no lock".to_owned()));
        }
        let name = lock_name(lock);
        let key = |bytes: Vec<u8>| String::from_utf8(bytes).expect("ASCII, as the names are");
        let waiter = "f0000000-0000-4000-8000-00000000000f:1".to_owned();
        set(key(keys::queue(&name)), Content::List([waiter.clone()].into()));
        set(key(keys::deadlines(&name)), Content::Scores([(waiter, 9e15)].into()));
    }

    /// Overwrites a lock's token counter with text.
    fn spoil_counter(&mut self, lock: &'static str) {
        self.log(|| format!("the counter of {lock} is used for something else"));
        self.history.tokens.counter_lost(lock, &self.server.redis);
        let entry = Entry { content: Content::Text(NO_NUMBER.to_owned()), expires_ms: None };
        self.server.redis.keys_mut().insert(counter(lock), entry);
        let pause = self.fault_duration();
        self.after(pause, Event::Repair(Repair::Counter(lock)));
    }

    /// Returns a duration in microseconds, from less than a round trip to more than a lease.
    fn fault_duration(&mut self) -> u64 {
        let settings = &self.hosts[0].settings;
        let timeout = micros(settings.response_timeout);
        let lease = micros(settings.lease.duration());
        let most = self.rng.pick(&[1000, timeout, timeout * 4, lease / 2, lease * 2]);
        self.rng.within(1..most)
    }

    fn disturb_network(&mut self, host: usize) {
        let until = self.now + self.fault_duration();
        let timeout = micros(self.hosts[host].settings.response_timeout);
        let network = match self.rng.within(0..4) {
            0 | 1 => Network::HalfOpen,
            2 => Network::OneWay,
            _ => Network::Up(self.rng.pick(&[5000, timeout / 2, timeout * 2])),
        };
        let lanes: &[usize] = match self.rng.within(0..6) {
            0 => &[COMMANDS],
            1 => &[RENEWALS],
            2 => &[MESSAGES],
            _ => &[COMMANDS, RENEWALS, MESSAGES],
        };
        self.log(|| format!("host {host}, connections {lanes:?}: {network:?} until {until}"));
        for lane in lanes {
            self.hosts[host].connections[*lane].set_network(network, until);
        }
    }

    /// Stops the server. It restarts empty or with old data, as from a disk or on a lagging replica.
    fn restart_server(&mut self) -> CheckResult {
        let old_data = self.rng.one_in(2);
        self.log(|| format!("Redis restarts; with old data: {old_data}"));
        self.history.excuse_all(&self.server.redis);
        let copy = if old_data { self.server.copy.clone() } else { Default::default() };
        *self.server.redis.keys_mut() = copy;
        self.set_clock();
        self.history.resurrected(&self.server.redis);
        for lock in NAMES {
            self.history.taken(lock);
            self.history.tokens.counter_lost(lock, &self.server.redis);
            self.repair(Repair::Counter(lock));
        }
        self.server.up = false;
        for host in 0..self.hosts.len() {
            for lane in [COMMANDS, RENEWALS, MESSAGES] {
                self.break_connection(host, lane, "Redis restarts")?;
            }
        }
        let pause = self.fault_duration() / 2;
        self.after(pause, Event::Repair(Repair::ServerUp));
        Ok(())
    }

    fn kill_agent(&mut self, host: usize) -> CheckResult {
        self.log(|| format!("agent {host} is killed and starts again"));
        let sessions = self.hosts[host].sessions.len();
        let survivors = self.survivors(host);
        self.excuse_unjournalled_ends(host);
        self.hosts[host].restart(self.now);
        self.drop_subscriptions(host);
        self.connect_all(host);
        self.hosts[host].sessions.retain(|id, _| survivors.contains(id));
        for id in &survivors {
            self.reconnect_later(host, *id);
        }
        for _ in survivors.len()..sessions {
            let pause = self.think(host);
            self.after(pause, Event::Join { host });
        }
        self.pump(host)
    }

    pub(super) fn repair(&mut self, repair: Repair) {
        self.log(|| format!("repaired: {repair:?}"));
        match repair {
            Repair::ServerUp => self.server.up = true,
            Repair::Refusal => {
                self.server.refusal = None;
                self.server.redis.read_only = false;
            }
            Repair::Disk(host) => self.hosts[host].disk.full = false,
            Repair::Memory => self.server.redis.full = false,
            Repair::Counter(lock) => {
                let (counter, spoiled) = (counter(lock), Content::Text(NO_NUMBER.to_owned()));
                let keys = self.server.redis.keys_mut();
                keys.retain(|key, entry| *key != counter || entry.content != spoiled);
            }
            Repair::Alien(lock) => {
                if matches!(self.server.redis.get(lock).map(|e| &e.content), Some(Content::Text(_)))
                {
                    self.server.redis.keys_mut().remove(lock);
                }
            }
        }
    }

    /// Repairs all faults. No more occur.
    pub(super) fn repair_all(&mut self) -> CheckResult {
        self.log(|| "everything is repaired".to_owned());
        self.phase = Phase::Repaired;
        self.server.frozen_until = self.now;
        self.repair(Repair::ServerUp);
        self.repair(Repair::Memory);
        self.repair(Repair::Refusal);
        for lock in NAMES {
            self.repair(Repair::Alien(lock));
            self.repair(Repair::Counter(lock));
        }
        for host in 0..self.hosts.len() {
            self.repair(Repair::Disk(host));
            for connection in &mut self.hosts[host].connections {
                connection.set_network(Network::HalfOpen, 0);
            }
            if let Some(stall) = &mut self.hosts[host].stall {
                stall.until = self.now;
                self.after(0, Event::Resume { host });
            }
        }
        Ok(())
    }
}

/// Returns the key of a fenced lock's counter.
fn counter(lock: &str) -> String {
    String::from_utf8(keys::token(&lock_name(lock))).expect("ASCII, as the names are")
}
