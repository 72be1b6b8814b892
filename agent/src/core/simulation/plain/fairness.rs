//! Fairness under contention, without faults: the share and the order of grants.

use std::collections::BTreeMap;

use super::super::rng::Rng;
use super::event::Event;
use super::host::Host;
use super::simulation::Simulation;
use crate::core::tests::settings;
use crate::types::ConnectionId;

/// Lets `workers` on each host repeatedly acquire one lock and hold it for `hold` microseconds. Returns the grants within
/// `seconds` of simulated time, in order.
fn contend(workers: &[usize], hold: u64, seconds: u64) -> Vec<(usize, ConnectionId)> {
    let mut rng = Rng::new(7);
    let hosts =
        (0_u8..).zip(workers).map(|(i, _)| Host::new(i, settings::settings(), &mut rng)).collect();
    let mut simulation = Simulation::empty(rng, hosts, false);
    simulation.contention = Some(hold);
    for (host, workers) in workers.iter().enumerate() {
        for worker in 0..*workers as u64 {
            simulation.after(5000 + worker * 10, Event::Join { host });
        }
    }
    simulation.run_until(seconds * 1_000_000).expect("nothing goes wrong");
    simulation.grants
}

fn shares(grants: &[(usize, ConnectionId)], hosts: usize) -> Vec<usize> {
    (0..hosts).map(|host| grants.iter().filter(|(of, _)| *of == host).count()).collect()
}

#[test]
fn two_hosts_share_a_lock_evenly() {
    for (hold, seconds) in [(50, 3), (1000, 3), (20_000, 12)] {
        let grants = contend(&[5, 5], hold, seconds);
        let shares = shares(&grants, 2);
        let all = grants.len();
        let fair = all * 4 / 10..=all * 6 / 10;
        assert!(shares.iter().all(|share| fair.contains(share)), "held {hold} µs: {shares:?}");
    }
}

#[test]
fn a_crowd_on_one_host_does_not_starve_a_single_worker_on_another() {
    let grants = contend(&[30, 1], 200, 4);
    let shares = shares(&grants, 2);
    assert!(shares[1] > 4 * 5, "{shares:?}: less than five times a second");
}

#[test]
fn local_workers_are_served_in_order_of_arrival() {
    let grants = contend(&[20], 200, 2);
    assert!(grants.len() > 1000, "{} grants", grants.len());
    // Each worker queues again at once after its release, so all rounds have the order of the first.
    let first: Vec<_> = grants.iter().take(20).collect();
    for round in grants.chunks_exact(20) {
        assert!(round.iter().eq(first.iter().copied()), "{round:?}");
    }
}

#[test]
fn workers_of_a_single_host_take_turns_evenly_and_without_pauses() {
    let grants = contend(&[4], 500, 3);
    let mut each: BTreeMap<ConnectionId, usize> = BTreeMap::new();
    for (_, id) in &grants {
        *each.entry(*id).or_default() += 1;
    }
    let (least, most) = (each.values().min().unwrap(), each.values().max().unwrap());
    assert!(most - least <= 1, "{each:?}");
    // Each hold takes half a millisecond, the hand-over and the delivery less than one.
    assert!(grants.len() > 2000, "{} grants in three seconds", grants.len());
}
