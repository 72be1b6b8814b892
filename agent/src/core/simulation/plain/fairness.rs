//! Crowds on one lock, with nothing going wrong: who gets it how often, and in which order.

use std::collections::BTreeMap;

use super::super::rng::Rng;
use super::event::Event;
use super::host::Host;
use super::simulation::Simulation;
use crate::core::tests::settings;
use crate::types::SessionId;

/// So many workers on each host want one lock for ever, and hold it for that many microseconds each time. Returns
/// who was granted it, in order, within so many simulated seconds.
fn contend(workers: &[usize], hold: u64, seconds: u64) -> Vec<(usize, SessionId)> {
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

fn shares(grants: &[(usize, SessionId)], hosts: usize) -> Vec<usize> {
    (0..hosts).map(|host| grants.iter().filter(|(of, _)| *of == host).count()).collect()
}

#[test]
fn two_hosts_share_a_lock_for_ever() {
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
    // Each comes back as soon as it has released, so that the order of the first round is that of all others.
    let first: Vec<_> = grants.iter().take(20).collect();
    for round in grants.chunks_exact(20) {
        assert!(round.iter().eq(first.iter().copied()), "{round:?}");
    }
}

#[test]
fn a_host_alone_passes_a_lock_around_evenly_and_without_pauses() {
    let grants = contend(&[4], 500, 3);
    let mut each: BTreeMap<SessionId, usize> = BTreeMap::new();
    for (_, id) in &grants {
        *each.entry(*id).or_default() += 1;
    }
    let (least, most) = (each.values().min().unwrap(), each.values().max().unwrap());
    assert!(most - least <= 1, "{each:?}");
    // Half a millisecond held, less than one for a hand-over and the way to the worker and back.
    assert!(grants.len() > 2000, "{} grants in three seconds", grants.len());
}
