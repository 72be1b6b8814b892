//! Faults of servers and agents, and their repair.

use std::time::Duration;

use redisson::keys;

use super::super::redis::{Content, Entry};
use super::super::schedule::micros;
use super::{Scenario, World};

impl<S: Scenario> World<S> {
    /// Causes a random fault, usually on a minority of the servers.
    pub(in crate::core::simulation) fn fault(&mut self) {
        if !self.faulty {
            return;
        }
        let lease = micros(self.settings.lease.duration());
        if self.replication.is_some() && self.rng.one_in(2) {
            self.cut_off();
        }
        let node = self.rng.index(self.servers.len());
        let longest = self.rng.pick(&[100_000, lease / 2, lease * 2]);
        let time = self.rng.within(1000..longest);
        match self.rng.within(0..14) {
            0..3 => self.freeze(node, Duration::from_micros(time)),
            3..5 if self.servers[node].up => self.kill(node, false),
            5 if self.servers[node].up && self.forgetful => self.kill(node, true),
            3..8 => self.start(node),
            8 => self.servers[node].slow = self.rng.pick(&[1000, 30_000, 80_000]),
            9 => self.servers[node].slow = 0,
            10 => {
                let agent = self.rng.index(self.agents.len());
                self.stall(agent, time);
            }
            11 => {
                let full = self.servers[node].redis.full;
                self.servers[node].redis.full = !full;
            }
            _ => self.lose_entry(node),
        }
        let pause = self.rng.within(1000..lease);
        self.fault_after(pause);
    }

    /// Lets the entry of a random agent expire, as if the agent had vanished, or restores it.
    fn lose_entry(&mut self, node: usize) {
        let agent = self.rng.index(self.agents.len());
        let [entry, trace] = self.entry_keys(agent);
        let gone = self.rng.one_in(2);
        self.log(|| format!("the entry of agent {agent} on node {node} is gone: {gone}"));
        let stored = || Entry { content: Content::Text(String::new()), expires_ms: None };
        let keys = self.servers[node].redis.keys_mut();
        keys.insert(trace, stored());
        if gone {
            keys.remove(&entry);
        } else {
            keys.insert(entry, stored());
        }
    }

    /// Returns the keys of what an agent publishes about itself.
    fn entry_keys(&self, agent: usize) -> [String; 2] {
        let client = self.agents[agent].core.numbers.client();
        [keys::agent(&client), keys::agent_trace(&client)]
            .map(|key| String::from_utf8(key).expect("keys of agents are ASCII"))
    }

    /// Repairs all faults. No more occur.
    pub(in crate::core::simulation) fn repair_all(&mut self) {
        self.log(|| "everything is repaired".to_owned());
        self.faulty = false;
        self.fault_free_since = self.now;
        self.heal();
        for node in 0..self.servers.len() {
            self.servers[node].frozen_until = self.now;
            self.servers[node].slow = 0;
            self.servers[node].redis.full = false;
            self.start(node);
            self.thaw(node);
            for agent in 0..self.agents.len() {
                for key in self.entry_keys(agent) {
                    self.servers[node].redis.keys_mut().remove(&key);
                }
            }
        }
    }
}
