//! Tests of the lock delay, for which the agent keeps the locks of a dead worker.

use std::time::Duration;

use redisson::{Kind, Lease};

use super::grace::GRACE;
use super::world::{LEASE, Network, World, lock_command};
use crate::journal::Record;
use crate::protocol::command::{Command, LockRequest};

const DELAY: Duration = Duration::from_secs(100);
const MOMENT: Duration = Duration::from_millis(10);
const NEARLY: Duration = DELAY.saturating_sub(MOMENT);

fn world() -> World {
    let mut world = World::new();
    world.core.settings.lock_delay = DELAY;
    world
}

#[test]
fn a_dead_workers_lock_is_granted_after_the_lock_delay_and_not_before() {
    let mut world = world();
    let (dying, next) = (world.open(), world.open());
    world.lock(dying, "x");
    let before = world.holders("x");
    world.lock(next, "x");
    world.close(dying);
    // The delay is longer than a lease: the hold is renewed as if its worker were alive.
    world.pass(NEARLY);
    assert_eq!(world.holders("x"), before);
    assert!(world.has_no_reply(next));
    assert_eq!(world.core.gauges().delayed_holds, 1);
    world.pass(MOMENT * 2);
    assert_eq!(world.reply(next), "held 1");
    assert_ne!(world.holders("x"), before);
    assert_eq!(world.core.gauges().delayed_holds, 0);
}

#[test]
fn the_lock_delay_does_not_apply_to_releases_and_ended_sessions() {
    let mut world = world();
    let (releasing, quitting) = (world.open(), world.open());
    world.lock(releasing, "x");
    world.unlock(releasing, "x");
    world.close(releasing);
    assert!(world.holders("x").is_empty());
    world.lock(quitting, "y");
    world.core.on_quit(quitting);
    world.close(quitting);
    assert!(world.holders("y").is_empty());
    let (operator, kicked) = (world.open(), world.open());
    world.lock(kicked, "z");
    let (session, _) = world.credentials(kicked);
    world.command(operator, Command::Kick(session));
    assert_eq!(world.reply(operator), "1");
    assert!(world.holders("z").is_empty());
    assert_eq!(world.core.next_deadline(), None);
}

#[test]
fn a_dead_workers_fixed_lease_is_renewed_during_the_lock_delay() {
    let mut world = world();
    let dying = world.open();
    let lease = Lease::new(Duration::from_secs(5));
    world.command(dying, Command::Lock(LockRequest { lease, ..lock_command("x") }));
    world.lock_as(dying, "y", Kind::Read);
    world.close(dying);
    world.pass(NEARLY);
    assert!(!world.holders("x").is_empty() && !world.holders("y").is_empty());
    world.pass(MOMENT * 2);
    assert!(world.holders("x").is_empty() && world.holders("y").is_empty());
    assert!(world.core.is_idle());
}

#[test]
fn a_delayed_hold_ends_with_its_lease_during_an_outage() {
    let mut world = world();
    let dying = world.open();
    world.lock(dying, "x");
    world.close(dying);
    world.network = Network::Holds;
    world.pass(LEASE * 2);
    assert_eq!(world.core.holds(), 0);
    world.network = Network::Good;
    world.pass(LEASE * 2);
    assert!(world.holders("x").is_empty());
    assert_eq!(world.core.gauges().delayed_holds, 0);
}

#[test]
fn grace_counts_towards_the_lock_delay_and_the_journal_records_its_end() {
    let mut world = world();
    let dying = world.open();
    let grace = Some(Duration::from_secs(60));
    world.command(dying, Command::Session { grace, push: None, deadlines: None, process: None });
    world.lock(dying, "x");
    world.close(dying);
    world.pass(Duration::from_secs(70));
    assert!(world.core.sessions.is_empty(), "its grace period is over");
    assert_eq!(world.holders("x").len(), 1);
    // A rewritten journal has the same records.
    let records = world.core.journal_records();
    assert_eq!(records.len(), 1, "{records:?}");
    let recorded: Vec<_> = world.past.orphans.values().map(|trace| trace.after).collect();
    let after = world.now + Duration::from_secs(30);
    assert_eq!(recorded, [after]);
    // So does the journal that a successor writes.
    world.kill_and_restart(MOMENT);
    let records = world.core.journal_records();
    let after = |record: &Record| matches!(record, Record::Orphan(orphan) if orphan.after == after);
    assert!(records.len() == 1 && records.iter().all(after), "{records:?}");
    world.pass(Duration::from_secs(30) + MOMENT);
    assert!(world.holders("x").is_empty());
    assert!(world.past.is_empty());
}

#[test]
fn the_lock_delay_applies_to_a_grace_period_that_ends_before_redis_has_confirmed_the_hold() {
    let mut world = world();
    let dying = world.open();
    let grace = Some(Duration::from_secs(5));
    world.command(dying, Command::Session { grace, push: None, deadlines: None, process: None });
    world.lock(dying, "x");
    world.close(dying);
    world.network = Network::Down;
    world.kill_and_restart(Duration::from_secs(1));
    world.core.settings.lock_delay = DELAY;
    world.pass(Duration::from_secs(6));
    world.network = Network::Good;
    world.pass(Duration::from_secs(5));
    assert!(world.core.sessions.is_empty(), "its grace period is over");
    world.pass(NEARLY.checked_sub(Duration::from_secs(12)).unwrap());
    assert_eq!(world.holders("x").len(), 1, "another worker could acquire it");
    world.pass(MOMENT * 2);
    assert!(world.holders("x").is_empty());
    assert!(world.past.is_empty(), "{:?}", world.past);
}

#[test]
fn many_holds_of_a_closed_session_are_released_in_batches() {
    let mut world = World::new();
    let (dying, next) = (world.open(), world.open());
    for index in 0..1_001 {
        world.lock(dying, &format!("x{index}"));
    }
    world.lock(next, "x700");
    world.close(dying);
    assert!(world.holders("x0").is_empty() && world.holders("x499").is_empty());
    assert_eq!(world.core.gauges().delayed_holds, 501);
    assert!(world.has_no_reply(next));
    let interval = Duration::from_millis(50);
    world.pass(interval + MOMENT);
    assert_eq!(world.reply(next), "held 1");
    assert!(world.holders("x999").is_empty());
    assert_eq!(world.core.gauges().delayed_holds, 1);
    world.pass(interval);
    assert!(world.holders("x1000").is_empty());
    assert_eq!(world.core.gauges().delayed_holds, 0);
}

/// The end of the session turns its fixed lease into a renewed one, which the answer to a verification does not extend.
#[test]
fn a_delayed_hold_outlives_a_lease_that_was_being_verified() {
    let mut world = world();
    let dying = world.open();
    let lease = Lease::new(LEASE * 2 / 5);
    world.command(dying, Command::Lock(LockRequest { lease, ..lock_command("x") }));
    world.network = Network::Slow(1_500);
    while !world.served.contains(&"keep") {
        world.pass(MOMENT);
    }
    world.close(dying);
    world.pass(Duration::from_millis(1_400));
    world.network = Network::Good;
    world.pass(LEASE / 2);
    assert_eq!(world.holders("x").len(), 1);
    assert_eq!(world.core.gauges().delayed_holds, 1);
}

#[test]
fn a_lock_that_expired_after_the_agents_end_is_granted_before_the_lock_delay_is_over() {
    let mut world = World::new();
    let delay = GRACE + 10 * LEASE;
    world.core.settings.lock_delay = delay;
    let (dying, _) = world.graced();
    world.lock(dying, "x");
    world.close(dying);
    world.pass(GRACE + MOMENT);
    assert_eq!(world.core.gauges().delayed_holds, 1);
    world.kill_and_restart(LEASE / 2);
    let next = world.open();
    world.lock(next, "x");
    assert!(world.has_no_reply(next), "the lock has not expired");
    world.pass(LEASE);
    assert_eq!(world.reply(next), "held 1");
    world.pass(delay);
    assert_eq!(world.holders("x").len(), 1);
    assert!(world.losses.is_empty());
}
