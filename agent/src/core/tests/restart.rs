//! Tests of what an agent makes of the journal of an earlier run.

use std::time::Duration;

use redisson::{Kind, Lease};

use super::grace::{GRACE, NEXT, Ticket};
use super::world::{Disk, LEASE, Network, World, lock_command};
use crate::core::Node;
use crate::protocol::command::{Command, LockRequest};
use crate::types::ConnectionId;

const SECOND: Duration = Duration::from_secs(1);

/// Kills the agent. Returns the holds of a session, which is resumed at the next one.
fn held_after_restart(world: &mut World, ticket: &Ticket) -> Vec<String> {
    world.kill_and_restart(SECOND);
    world.pass(SECOND);
    let id = world.open_as(0, NEXT);
    world.resume(id, ticket);
    world.resumed(id).1
}

/// Returns the longest lease of the only hold in the journal.
fn longest_lease(world: &mut World) -> &mut Lease {
    let session = world.past.sessions.values_mut().next().expect("it has grace");
    &mut session.holds.values_mut().next().expect("it holds a lock").longest
}

fn lock_both(world: &mut World, id: ConnectionId, owner: i64) {
    let request = |lock| LockRequest { owner, ..lock_command(lock) };
    world.command(id, Command::LockAll(vec![request("x"), request("y")]));
}

#[test]
fn a_count_that_was_lowered_for_another_lost_member_is_as_low_after_a_restart() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let b = world.open();
    world.command(a, Command::Lock(LockRequest { owner: 7, ..lock_command("y") }));
    world.lock(b, "busy");
    world.lock(a, "busy");
    // Its reply waits for that of the other owner.
    lock_both(&mut world, a, 7);
    world.redis.remove("x");
    world.core.verify(world.now, Node::Main);
    world.work();
    world.replies.clear();
    assert_eq!(held_after_restart(&mut world, &ticket), ["y lock 1"]);
}

#[test]
fn a_count_that_redis_has_not_confirmed_is_as_low_after_a_restart() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let lease = Lease::new(LEASE);
    for _ in 0..2 {
        let request = LockRequest { kind: Kind::Read, lease, ..lock_command("x") };
        world.command(a, Command::Lock(request));
    }
    world.replies.clear();
    world.network = Network::Down;
    world.unlock(a, "x");
    world.network = Network::Good;
    assert_eq!(held_after_restart(&mut world, &ticket), ["x read 1"]);
}

#[test]
fn a_lock_that_redis_refuses_does_not_prevent_the_others_from_being_kept() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let (b, _) = world.graced();
    let locks: Vec<_> = (0..9).map(|lock| format!("x{lock}")).collect();
    locks.iter().for_each(|lock| world.lock(a, lock));
    world.lock(b, "forbidden");
    world.replies.clear();
    world.network = Network::Forbids("forbidden");
    let mut held = held_after_restart(&mut world, &ticket);
    held.sort();
    let expected: Vec<_> = locks.iter().map(|lock| format!("{lock} lock 1")).collect();
    assert_eq!(held, expected);
    world.losses.clear();
    world.pass(LEASE * 2);
    assert_eq!(world.losses, ["loss logged", "loss counted"], "only one is lost");
    assert!(locks.iter().all(|lock| world.holders(lock).len() == 1));
    assert!(world.forbidden < 40, "{} scripts in a minute for one lock", world.forbidden);
}

#[test]
fn a_reader_is_kept_while_its_slot_moves() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock_as(a, "x", Kind::Read);
    world.replies.clear();
    world.network = Network::Moves;
    assert_eq!(held_after_restart(&mut world, &ticket), ["x read 1"]);
}

#[test]
fn a_readers_markers_that_are_missing_are_restored_before_its_session_is_resumed() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock_as(a, "x", Kind::Read);
    world.replies.clear();
    world.missing_markers = true;
    assert_eq!(held_after_restart(&mut world, &ticket), ["x read 1"]);
    assert!(!world.missing_markers);
}

/// The hold is renewed from its reentry on, which leaves it the validity that was promised before.
#[test]
fn a_restored_hold_that_was_promised_for_longer_than_a_lease_survives_an_outage() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let request = LockRequest { lease: Lease::new(LEASE * 20), ..lock_command("x") };
    world.command(a, Command::Lock(request));
    world.lock(a, "x");
    world.network = Network::Down;
    world.kill_and_restart(SECOND);
    world.pass(LEASE + SECOND * 10);
    let b = world.open_as(0, NEXT);
    world.network = Network::Good;
    world.pass(SECOND);
    assert_eq!(world.holders("x").len(), 1, "its worker may still rely on it");
    world.resume(b, &ticket);
    assert_eq!(world.resumed(b).1, ["x lock 2"]);
}

#[test]
fn a_fixed_lease_survives_a_sleep_before_the_first_answer_of_redis() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let request = LockRequest { lease: Lease::new(LEASE * 20), ..lock_command("x") };
    world.command(a, Command::Lock(request));
    world.network = Network::Slow(500);
    world.kill_and_restart(SECOND);
    world.now = world.now + LEASE * 3 / 2;
    world.pass(SECOND);
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert_eq!(world.resumed(b).1, ["x lock 1"]);
}

#[test]
fn the_journal_has_the_lease_of_the_agent_that_continues_a_hold() {
    let mut world = World::new();
    let (a, _) = world.graced();
    world.lock(a, "x");
    // The agent before had a shorter one.
    *longest_lease(&mut world) = Lease::new(SECOND).unwrap();
    world.kill_and_restart(SECOND);
    assert_eq!(longest_lease(&mut world).duration(), LEASE);
}

#[test]
fn restarts_do_not_begin_the_grace_again() {
    let mut world = World::new();
    let (a, _) = world.graced();
    world.lock(a, "x");
    for _ in 0..3 {
        world.kill_and_restart(SECOND);
        assert_eq!(world.holders("x").len(), 1);
        world.pass(GRACE / 3);
    }
    assert!(world.holders("x").is_empty(), "a third restart has not prolonged it");
    assert!(world.past.is_empty());
}

#[test]
fn a_full_disk_at_the_start_of_an_agent_costs_no_hold() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.replies.clear();
    world.disk = Disk::Full;
    assert_eq!(held_after_restart(&mut world, &ticket), ["x lock 1"]);
}
