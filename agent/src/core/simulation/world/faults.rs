//! Faults of servers and agents, and their repair.

use std::time::Duration;

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
        match self.rng.within(0..12) {
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
            _ => {
                let full = self.servers[node].redis.full;
                self.servers[node].redis.full = !full;
            }
        }
        let pause = self.rng.within(1000..lease);
        self.fault_after(pause);
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
        }
    }
}
