//! Read-write, fair and plain locks, single and several at once, under a seed's chance: agents and one Redis that hangs,
//! restarts with what it had, is slow or full. `LOCKSCOPE_SEEDS` chooses seeds here too.

mod laws;
mod player;

use std::time::Duration;

use redisson::Lease;

pub(super) use laws::{Queue, Turns};
pub(super) use player::Player;

use super::seeds;
use super::world::World;

const SEEDS: std::ops::Range<u64> = 0..32;

/// One run from its first to its last instant.
fn run(seed: u64, traced: bool) -> (World, Result<(), String>) {
    let mut world = World::new(seed, 1, 2, |settings| {
        let lease = 600 + seed % 7 * 700;
        settings.lease = Lease::new(Duration::from_millis(lease)).expect("a lease within bounds");
        settings.response_timeout = Duration::from_millis(lease / 10);
        settings.poll_max = Duration::from_secs(1);
        settings.red = None;
        // Every now and then a replica must have what is granted, and sometimes has not.
        settings.min_replicas = u32::from(seed % 5 == 3);
    });
    world.is_main = true;
    world.trace = traced.then(Vec::new);
    let outcome = play(&mut world, seed);
    (world, outcome)
}

fn go_on(world: &mut World, time: Duration) -> Result<(), String> {
    world.pass(time);
    world.breach.take().map_or(Ok(()), Err)
}

fn play(world: &mut World, seed: u64) -> Result<(), String> {
    let lease = world.settings.lease.duration();
    world.working = true;
    world.faulty = !seed.is_multiple_of(4);
    for agent in 0..world.agents.len() {
        for _ in 0..world.dice.within(2..5) {
            world.join_player(agent);
        }
    }
    world.fault_after(100_000);
    go_on(world, lease * 12)?;
    world.heal();
    // Whoever died has left a lease at most, the longest one asked for is five seconds, a dead place stands for fifteen.
    let enough = lease * 3 + Duration::from_secs(21);
    go_on(world, enough)?;
    let before = world.grants;
    go_on(world, enough)?;
    if world.grants == before {
        return Err("nobody was granted anything after everything was mended".to_owned());
    }
    world.working = false;
    // Several who take the same fair locks in turns need some seconds for each of them: MLOCK's patience.
    for _ in 0..6 {
        go_on(world, enough)?;
        if world.agents.iter().all(|agent| agent.players.is_empty()) {
            break;
        }
    }
    go_on(world, enough)?;
    world.check_kinds_at_end()
}

#[test]
fn readers_writers_queues_and_rows_keep_their_promises() {
    let wanted = seeds(SEEDS);
    let alone = wanted.end - wanted.start == 1;
    let mut turns = Turns::default();
    for seed in wanted {
        let (world, outcome) = run(seed, alone);
        turns.add(&world.turns);
        if alone {
            println!("{}", world.trace.unwrap_or_default().join("\n"));
        }
        if let Err(breach) = outcome {
            let trace = run(seed, true).0.trace.unwrap_or_default();
            let shown = trace.len().saturating_sub(60);
            panic!(
                "{}\n\n{breach}\n\nthe end of the trace of seed {seed}; all of it:\n\
                 LOCKSCOPE_SEEDS={seed} cargo test -p lockscope-agent --lib simulation::kinds -- --nocapture\n",
                trace[shown..].join("\n"),
            );
        }
    }
    println!("{turns:?}");
    if !alone {
        turns.check();
    }
}

#[test]
fn a_seed_determines_its_run() {
    for seed in 0..10 {
        let (first, second) = (run(seed, true).0.trace, run(seed, true).0.trace);
        assert!(first.as_ref().is_some_and(|trace| trace.len() > 50), "seed {seed} does nothing");
        assert_eq!(first, second, "seed {seed}");
    }
}
