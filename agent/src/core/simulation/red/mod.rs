//! Red locks: agents, and three or five servers that fail independently.

mod invariants;
mod worker;

use std::ops::Range;
use std::time::Duration;

use super::schedule::Trace;
use super::seeds::{self, CheckResult};
use super::world::{self, Scenario};
use crate::core::Node;
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;
use invariants::ForgottenHolds;
use worker::Worker;

pub(in crate::core) use super::requests::{hold_request, lock_name};
pub(in crate::core) use worker::red_lock;

const SEEDS: Range<u64> = 0..40;

pub(in crate::core) type World = world::World<RedLocks>;

#[derive(Debug, Default)]
pub(in crate::core) struct RedLocks {
    forgotten: ForgottenHolds,
}

impl Scenario for RedLocks {
    type Worker = Worker;

    fn node(server: usize) -> Node {
        Node::Red(server)
    }

    fn act(world: &mut World, agent: usize, connection: ConnectionId) {
        world.choose_command(agent, connection);
    }

    fn on_reply(world: &mut World, agent: usize, connection: ConnectionId, reply: Frame) {
        world.handle_reply(agent, connection, &reply);
    }

    fn check(world: &mut World) -> CheckResult {
        world.check()
    }

    fn on_hold_lost(&mut self, lock: &str, field: &str) {
        self.forgotten.note(lock, field);
    }
}

/// Plays a whole run.
fn run(seed: u64, traced: bool) -> (World, CheckResult) {
    let mut world = World::new(seed, if seed.is_multiple_of(3) { 5 } else { 3 }, 2, |settings| {
        let lease = world::set_lease(settings, seed);
        if let Some(red) = &mut settings.red {
            red.node_timeout = Duration::from_millis(lease / 40);
        }
    });
    world.trace = Trace::new(traced);
    let verdict = seeds::guard(|| play(&mut world, seed));
    (world, verdict)
}

fn play(world: &mut World, seed: u64) -> CheckResult {
    let lease = world.settings.lease.duration();
    world.faulty = true;
    world.forgetful = seed % 2 == 1;
    world.start_workers(1..4);
    world.fault_after(100_000);
    world.run_for(lease * 12)?;
    world.repair_all();
    // Dead workers leave at most a lease behind, and the longest requested one is five seconds.
    let enough = lease * 3 + Duration::from_secs(6);
    world.run_for(enough)?;
    let before = world.grants;
    world.run_for(enough * 3)?;
    if world.grants == before {
        return Err("no lock was granted after all faults were repaired".to_owned());
    }
    world.working = false;
    world.run_for(enough * 2)?;
    world.check_end()
}

#[test]
fn two_majorities_are_never_valid_at_once_and_nothing_is_left() {
    let seeds = seeds::chosen(SEEDS);
    let single = seeds::is_single(&seeds);
    let mut grants = 0;
    seeds::run_each(seeds, single, "red", run, |world| grants += world.grants);
    assert!(grants > 0, "no lock was granted");
    println!("{grants} grants");
}

#[test]
fn a_seed_determines_its_run() {
    seeds::assert_repeatable(0..3, run);
}
