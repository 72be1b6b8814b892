//! Tests of leases that replicas must confirm, renewed while too few of them do.

use std::time::Duration;

use redisson::{Kind, Lease};

use super::world::{LEASE, Replicas, World, lock_command};
use crate::core::LogLine;
use crate::protocol::command::{Command, LockRequest};
use crate::types::ConnectionId;

/// Returns a world whose agent requires one replica, and a worker that holds `x`.
fn holding(kind: Kind) -> (World, ConnectionId) {
    let mut world = World::with_replicas(1);
    let worker = world.open();
    world.hold_as(worker, "x", kind);
    (world, worker)
}

#[test]
fn unconfirmed_renewals_put_a_hold_in_jeopardy_and_then_lose_it_in_time() {
    for kind in [Kind::Lock, Kind::Fair, Kind::Read, Kind::Write, Kind::Fenced] {
        let (mut world, a) = holding(kind);
        world.pass(LEASE);
        assert!(world.events(a).is_empty(), "confirmed renewals keep it");
        let confirmed = world.core.leases.iter().next().unwrap().valid_until;
        world.replicas = Replicas::Confirm(0);
        world.pass((confirmed - LEASE / 3).since(world.now) + Duration::from_millis(1));
        let events = world.events(a);
        assert_eq!(events.len(), 1, "{kind} {events:?}");
        assert!(events[0].starts_with("jeopardy x"), "{events:?}");
        assert!(!world.holders("x").is_empty(), "Redis still has the hold");
        let lost = loop {
            world.pass(Duration::from_millis(10));
            assert!(world.now < confirmed, "the loss is reported too late");
            if let Some(event) = world.events(a).pop() {
                break event;
            }
        };
        assert_eq!(lost, format!("lost x {kind} unconfirmed"));
        assert!(
            !world.holders("x").is_empty(),
            "its owner may use the lock until its validity ends"
        );
        world.pass(LEASE / 10);
        assert!(world.holders("x").is_empty() && world.core.is_idle());
    }
}

#[test]
fn losses_are_logged_although_refused_grants_flood_the_log() {
    let mut world = World::with_replicas(1);
    let (holder, refused) = (world.open(), world.open());
    for index in 0..20 {
        world.lock(holder, &format!("held {index}"));
    }
    world.replicas = Replicas::Confirm(0);
    let mut refusals = 0;
    while world.core.holds() > 0 {
        for _ in 0..10 {
            world.lock(refused, "y");
            refusals += 1;
        }
        world.pass(Duration::from_millis(100));
    }
    world.pass(Duration::from_secs(1));
    let count =
        |wanted: fn(&LogLine) -> bool| world.logged.iter().filter(|line| wanted(line)).count();
    assert_eq!(count(|line| matches!(line, LogLine::LockLost { .. })), 20);
    assert_eq!(count(|line| matches!(line, LogLine::Jeopardy { .. })), 20);
    let logged = count(|line| matches!(line, LogLine::TooFewReplicas { .. }));
    let withheld = world.logged.iter().filter_map(|line| match line {
        LogLine::Withheld("too few replicas", lines) => Some(*lines),
        LogLine::Withheld(..) => panic!("{line:?}"),
        _ => None,
    });
    let withheld = usize::try_from(withheld.sum::<u64>()).unwrap();
    assert!(withheld > 0 && logged > 0, "{withheld} of {refusals}");
    assert_eq!(logged + withheld, refusals);
    assert_eq!(world.core.next_deadline(), None, "no line remains to be logged");
}

#[test]
fn a_replica_that_confirms_in_time_ends_the_jeopardy() {
    let (mut world, a) = holding(Kind::Lock);
    world.replicas = Replicas::Confirm(0);
    world.pass(LEASE * 5 / 6);
    assert!(world.events(a)[0].starts_with("jeopardy"));
    world.replicas = Replicas::Confirm(1);
    world.pass(LEASE / 10);
    assert_eq!(world.events(a), ["safe x lock"]);
    world.pass(LEASE * 2);
    assert!(world.events(a).is_empty());
}

#[test]
fn a_fixed_lease_lasts_without_replicas_and_is_extended_only_with_them() {
    let mut world = World::with_replicas(1);
    let a = world.open();
    let fixed = LEASE * 2;
    world.command(a, Command::Lock(LockRequest { lease: Lease::new(fixed), ..lock_command("x") }));
    assert_eq!(world.reply(a), "held 1");
    let valid_until = |world: &World| world.core.leases.iter().next().unwrap().valid_until;
    let granted = valid_until(&world);
    world.replicas = Replicas::Confirm(0);
    world.pass(LEASE);
    assert!(world.events(a).is_empty());
    for lease in [Lease::new(fixed), None] {
        world.extend(a, "x", lease);
        let replies = world.replies_of(a);
        let sentence = format!("{replies:?}");
        assert!(sentence.contains("UNAVAILABLE `x`: its lease is not changed: 0 of"), "{sentence}");
        assert_eq!(valid_until(&world), granted);
    }
    world.pass(LEASE);
    assert_eq!(world.events(a), ["lost x lock expired"]);
}

#[test]
fn a_successor_agent_reports_a_hold_only_after_a_replica_confirms_it() {
    for (confirms, held) in [(true, 1), (false, 0)] {
        let mut world = World::with_replicas(1);
        let (a, ticket) = world.graced();
        world.lock(a, "x");
        world.replicas = Replicas::Confirm(0);
        world.kill_and_restart(Duration::from_secs(1));
        world.pass(LEASE / 2);
        assert_eq!(world.core.holds(), 0, "no replica has confirmed the hold yet");
        world.replicas = Replicas::Confirm(u32::from(confirms));
        world.pass(LEASE);
        let b = world.open_as(0, super::grace::NEXT);
        world.resume(b, &ticket);
        assert_eq!(world.resumed(b).1.len(), held, "a replica confirms: {confirms}");
    }
}
