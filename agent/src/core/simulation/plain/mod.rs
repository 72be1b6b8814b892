//! Plain and fenced locks, and sessions with grace: two or three agents and a few other clients around one Redis.
//!
//! Everything fails here: connections, hosts, agents, disks, and Redis itself. In half of the runs faults continue to the
//! end. In the others all faults are repaired at last; then every worker must make progress, and nothing may be left behind.

mod connection;
mod event;
mod event_loop;
mod fairness;
mod faults;
mod history;
mod host;
mod invariants;
mod names;
mod network;
mod other_client;
mod outside_actions;
mod replies;
mod resume;
mod session;
mod simulation;
mod tokens;
mod worker;

use std::ops::Range;

use super::schedule::micros;
use super::seeds::{self, CheckResult, Traced};
use event::Event;
use simulation::Simulation;

const SEEDS: Range<u64> = 0..2000;

/// Plays a whole run.
fn run(seed: u64, traced: bool) -> (Simulation, CheckResult) {
    let mut simulation = Simulation::new(seed, traced);
    let verdict = seeds::guard(|| simulation.play(seed % 2 == 1));
    (simulation, verdict)
}

impl Traced for Simulation {
    fn trace(&self) -> &[String] {
        self.trace.lines()
    }
}

impl Simulation {
    fn play(&mut self, repaired_at_last: bool) -> CheckResult {
        let lease = micros(self.hosts[0].lease());
        for host in 0..self.hosts.len() {
            for _ in 0..self.rng.within(1..5) {
                let pause = self.think(host);
                self.after(pause, Event::Join { host });
            }
        }
        for index in 0..self.other_clients.len() {
            self.after(1000, Event::OtherClient(index));
        }
        self.after(lease / 2, Event::Fault);
        self.work_left = self.rng.within(20..200);
        let limit = self.now + 20 * lease;
        while self.work_left > 0 && self.now < limit {
            self.run_until(self.now + lease / 2)?;
        }
        if !repaired_at_last {
            return Ok(());
        }
        self.repair_all()?;
        // Dead workers leave at most a lease behind, and the longest requested one is ten seconds.
        let leases = 2 * lease + 12_000_000;
        // By bad luck all workers may time out on locks that others hold, so they get several chances.
        let mut attempts = 0;
        for _ in 0..4 {
            if self.history.granted_since == 0 {
                self.work_left = 40;
                self.run_until(self.now + leases)?;
                attempts += 40 - self.work_left;
            }
        }
        if self.history.granted_since == 0 && attempts > 0 {
            return Err("no lock was granted after all faults were repaired".to_owned());
        }
        self.wind_down();
        self.run_until(self.now + leases)?;
        self.check_answered()?;
        for host in 0..self.hosts.len() {
            for session in self.hosts[host].sessions.keys().copied().collect::<Vec<_>>() {
                self.hang_up(host, session);
            }
        }
        self.run_until(self.now + leases)?;
        self.check_end()
    }
}

/// Runs the seeds with that remainder modulo 2.
fn try_seeds(remainder: u64) {
    let seeds = seeds::chosen(SEEDS);
    let single = seeds::is_single(&seeds);
    let mut events = 0;
    let seeds = seeds.filter(|seed| seed % 2 == remainder);
    seeds::run_each(seeds, single, "plain", run, |simulation| events += simulation.events);
    println!("{events} events");
}

#[test]
fn no_invariant_is_violated_while_faults_continue() {
    try_seeds(0);
}

#[test]
fn workers_make_progress_after_all_faults_and_nothing_is_left() {
    try_seeds(1);
}

#[test]
fn a_seed_determines_its_run() {
    seeds::assert_repeatable(0..10, run);
}
