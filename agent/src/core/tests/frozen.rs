//! Tests of workers that are stopped while they hold something.

use std::collections::BTreeSet;
use std::time::Duration;

use super::world::{LEASE, World};
use crate::core::Frozen;
use crate::types::ConnectionId;

impl World {
    /// Stops the workers of these sessions; all others run.
    fn stop(&mut self, sessions: &[ConnectionId]) {
        let pid = |id: &ConnectionId| i32::try_from(id.0).unwrap();
        let pids: BTreeSet<i32> = sessions.iter().map(pid).collect();
        self.core.on_stopped(self.now, &pids);
        self.work();
    }

    fn frozen(&self) -> usize {
        self.core.gauges().frozen_sessions
    }
}

fn world() -> World {
    let mut world = World::new();
    world.core.settings.frozen = Frozen::Lapse;
    world
}

#[test]
fn a_stopped_worker_keeps_its_lock_by_default() {
    let mut world = World::new();
    let (a, idle) = (world.open(), world.open());
    world.lock(a, "x");
    assert_eq!(world.core.busy_pids(), BTreeSet::from([1]));
    world.stop(&[a, idle]);
    assert_eq!(world.frozen(), 1, "a session without holds is not counted");
    world.pass(LEASE * 3);
    assert_eq!(world.holders("x").len(), 1);
    world.stop(&[]);
    assert_eq!(world.frozen(), 0);
    assert!(world.events(a).is_empty());
}

#[test]
fn a_stopped_workers_hold_lapses_and_is_reported_as_frozen() {
    let mut world = world();
    let (a, next) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(next, "x");
    world.stop(&[a]);
    assert_eq!(world.frozen(), 1);
    world.pass(LEASE / 3 * 2);
    assert!(world.has_no_reply(next), "the reported validity has not ended yet");
    world.pass(LEASE / 3 + Duration::from_secs(1));
    assert_eq!(world.reply(next), "held 1");
    let events = world.events(a);
    assert_eq!(events.last().map(String::as_str), Some("lost x lock frozen"), "{events:?}");
}

#[test]
fn a_stopped_worker_that_continues_in_time_keeps_its_hold() {
    let mut world = world();
    let a = world.open();
    world.lock(a, "x");
    let before = world.holders("x");
    for _ in 0..5 {
        world.stop(&[a]);
        world.pass(LEASE / 4 * 3);
        world.stop(&[]);
        world.pass(Duration::from_millis(100));
    }
    world.pass(LEASE * 2);
    assert_eq!(world.holders("x"), before);
    let events = world.events(a);
    assert_eq!(events.last().map(String::as_str), Some("safe x lock"), "{events:?}");
}

#[test]
fn a_hold_granted_to_a_stopped_worker_lapses_or_ends_with_its_death() {
    let mut world = world();
    let (holder, waiter) = (world.open(), world.open());
    world.lock(holder, "x");
    world.lock(waiter, "x");
    world.stop(&[waiter]);
    world.unlock(holder, "x");
    world.pass(LEASE + Duration::from_secs(1));
    assert!(world.holders("x").is_empty(), "{:?}", world.holders("x"));
    world.lock(holder, "y");
    world.stop(&[holder]);
    world.close(holder);
    assert!(world.holders("y").is_empty());
    assert_eq!(world.frozen(), 0);
}
