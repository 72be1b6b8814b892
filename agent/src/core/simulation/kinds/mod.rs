//! Read-write, fair and plain locks, one or two at once: two agents, and one Redis that hangs, restarts with its data,
//! is slow or full. In some runs it has a replica, which is cut off and promoted while the old master continues, and
//! which must confirm grants and renewals.

mod invariants;
mod worker;

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use redisson::HolderId;
use redisson::script::Call;

use super::schedule::Trace;
use super::seeds::{self, CheckResult};
use super::world::{self, Scenario};
use crate::core::Node;
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;
use invariants::{Coverage, FairQueue};
use worker::Worker;

const SEEDS: Range<u64> = 0..32;

pub(in crate::core) type World = world::World<Kinds>;

#[derive(Debug, Default)]
pub(in crate::core) struct Kinds {
    coverage: Coverage,
    queues: [FairQueue; 2],
    /// Queue positions created by a late script whose waiter was gone. They stay until they expire, unless the agent finds
    /// them.
    late_positions: BTreeSet<String>,
}

impl Scenario for Kinds {
    type Worker = Worker;

    fn node(_server: usize) -> Node {
        Node::Main
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

    fn on_late_script(world: &mut World, agent: usize, call: &Call) {
        if call.script.name != "acquire_fair" {
            return;
        }
        let Some(holder) = HolderId::parse(&call.args[0]) else { return };
        if !world.agents[agent].core.locks.is_wanted(holder.thread) {
            world.scenario.late_positions.insert(holder.to_string());
        }
    }
}

fn is_replicated(seed: u64) -> bool {
    seed % 5 == 3
}

/// Plays a whole run.
fn run(seed: u64, traced: bool) -> (World, CheckResult) {
    let mut world = World::new(seed, 2, 2, |settings| {
        world::set_lease(settings, seed);
        settings.red = None;
        // In some runs a replica must confirm each grant and renewal. It is cut off, and promoted, at times.
        settings.min_replicas = u32::from(is_replicated(seed));
    });
    if is_replicated(seed) {
        // The drift that every lease allows for.
        world = world.with_replica(seed % 2);
    }
    world.trace = Trace::new(traced);
    let verdict = seeds::guard(|| play(&mut world, seed));
    (world, verdict)
}

fn play(world: &mut World, seed: u64) -> CheckResult {
    let lease = world.settings.lease.duration();
    world.faulty = !seed.is_multiple_of(4);
    world.start_workers(2..5);
    world.fault_after(100_000);
    world.run_for(lease * 12)?;
    world.repair_all();
    // Dead workers leave at most a lease (five seconds) or a queue position (fifteen seconds) behind.
    let enough = lease * 3 + Duration::from_secs(21);
    world.run_for(enough)?;
    let before = world.grants;
    world.run_for(enough)?;
    if world.grants == before {
        return Err("no lock was granted after all faults were repaired".to_owned());
    }
    world.working = false;
    // MLOCKs of the same fair locks take turns, a few seconds each.
    for _ in 0..6 {
        world.run_for(enough)?;
        if world.workers.is_empty() {
            break;
        }
    }
    world.run_for(enough)?;
    world.check_end()
}

#[test]
fn readers_writers_queues_and_lock_sets_keep_their_invariants() {
    let seeds = seeds::chosen(SEEDS);
    let single = seeds::is_single(&seeds);
    let mut coverage = Coverage::default();
    seeds::run_each(seeds, single, "kinds", run, |world| coverage.add(&world.scenario.coverage));
    println!("{coverage:?}");
    if !single {
        coverage.check();
    }
}

#[test]
fn a_seed_determines_its_run() {
    seeds::assert_repeatable(0..3, run);
}
