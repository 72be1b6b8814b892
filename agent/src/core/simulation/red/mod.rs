//! Red locks under a seed's chance: agents, and three or five servers that fail each for itself.
//!
//! A world of its own, since what fails here are servers and not the way to one of them. The servers are the model of Redis
//! that the other simulation uses. `LOCKSCOPE_SEEDS` chooses seeds here too.

mod laws;
mod worker;

use std::time::Duration;

use redisson::Lease;

pub(super) use laws::Forgotten;
pub(super) use worker::Worker;
pub(in crate::core) use worker::{hold_request, lock_name, red_lock};

pub(in crate::core) use super::world::World;

use super::seeds;

const SEEDS: std::ops::Range<u64> = 0..40;

/// One run from its first to its last instant.
fn run(seed: u64, traced: bool) -> (World, Result<(), String>) {
    let mut world = World::new(seed, if seed.is_multiple_of(3) { 5 } else { 3 }, 2, |settings| {
        let lease = 600 + seed % 7 * 700;
        settings.lease = Lease::new(Duration::from_millis(lease)).expect("a lease within bounds");
        settings.response_timeout = Duration::from_millis(lease / 10);
        settings.poll_max = Duration::from_secs(1);
        if let Some(red) = &mut settings.red {
            red.node_timeout = Duration::from_millis(lease / 40);
        }
    });
    world.trace = traced.then(Vec::new);
    let outcome = play(&mut world, seed);
    (world, outcome)
}

fn play(world: &mut World, seed: u64) -> Result<(), String> {
    let lease = world.settings.lease.duration();
    world.working = true;
    world.faulty = true;
    world.forgetful = seed % 2 == 1;
    for agent in 0..world.agents.len() {
        for _ in 0..world.dice.within(1..4) {
            world.join(agent);
        }
    }
    world.fault_after(100_000);
    let go_on = |world: &mut World, time: Duration| {
        world.pass(time);
        world.breach.take().map_or(Ok(()), Err)
    };
    go_on(world, lease * 12)?;
    world.heal();
    // Whoever died has left a lease at most, and the longest one asked for is five seconds.
    let enough = lease * 3 + Duration::from_secs(6);
    go_on(world, enough)?;
    let before = world.grants;
    go_on(world, enough * 3)?;
    if world.grants == before {
        return Err("nobody was granted anything after everything was mended".to_owned());
    }
    world.working = false;
    go_on(world, enough * 2)?;
    world.check_end()
}

#[test]
fn no_two_majorities_and_nothing_left_behind() {
    let wanted = seeds(SEEDS);
    let alone = wanted.end - wanted.start == 1;
    let mut grants = 0;
    for seed in wanted {
        let (world, outcome) = run(seed, alone);
        grants += world.grants;
        if alone {
            println!("{}", world.trace.unwrap_or_default().join("\n"));
        }
        if let Err(breach) = outcome {
            let trace = run(seed, true).0.trace.unwrap_or_default();
            let shown = trace.len().saturating_sub(60);
            panic!(
                "{}\n\n{breach}\n\nthe end of the trace of seed {seed}; all of it:\n\
                 LOCKSCOPE_SEEDS={seed} cargo test -p lockscope-agent --lib simulation::red -- --nocapture\n",
                trace[shown..].join("\n"),
            );
        }
    }
    assert!(grants > 0, "nobody was granted anything");
    println!("{grants} grants");
}

#[test]
fn a_seed_determines_its_run() {
    for seed in 0..10 {
        let (first, second) = (run(seed, true).0.trace, run(seed, true).0.trace);
        assert!(first.as_ref().is_some_and(|trace| trace.len() > 50), "seed {seed} does nothing");
        assert_eq!(first, second, "seed {seed}");
    }
}
