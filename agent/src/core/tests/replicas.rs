//! Tests of grants that replicas must have, and of those that too few confirm.

use std::time::Duration;

use redisson::Kind;

use super::world::{FOREIGN, Network, Replicas, World, lock_command, name};
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;

/// Returns the only reply to a session, which must be an error.
fn error(world: &mut World, id: ConnectionId) -> String {
    let replies = world.replies_of(id);
    let [Frame::Error(sentence)] = replies.as_slice() else { panic!("{replies:?}") };
    sentence.clone()
}

fn confirmations(world: &World) -> Vec<usize> {
    let counted = |outcome| world.confirmations.iter().filter(|other| **other == outcome).count();
    ["confirmed", "too_few", "not_tried"].map(counted).to_vec()
}

fn assert_nothing_left(world: &World) {
    assert!(world.redis.is_empty(), "{:?}", world.redis);
    assert!(world.core.is_idle() && world.core.locks.is_empty() && world.core.ops.is_empty());
}

#[test]
fn a_lock_that_too_few_replicas_confirm_is_released_and_not_granted() {
    for kind in [Kind::Lock, Kind::Fair, Kind::Read, Kind::Write] {
        let mut world = World::with_replicas(2);
        let a = world.open();
        world.replicas = Replicas::Confirm(1);
        world.lock_as(a, "x", kind);
        let sentence = error(&mut world, a);
        assert!(sentence.starts_with("UNAVAILABLE `x` is not granted: 1 of the 2 "), "{sentence}");
        assert_nothing_left(&world);
        world.replicas = Replicas::Confirm(2);
        world.lock_as(a, "x", kind);
        assert_eq!(world.reply(a), "held 1", "{kind}");
        assert_eq!(confirmations(&world), [1, 1, 0]);
    }
}

#[test]
fn a_re_entry_that_too_few_replicas_confirm_leaves_the_hold_unchanged() {
    for kind in [Kind::Lock, Kind::Read] {
        let mut world = World::with_replicas(1);
        let a = world.open();
        world.hold_as(a, "x", kind);
        world.replicas = Replicas::Confirm(0);
        world.lock_as(a, "x", kind);
        assert!(error(&mut world, a).starts_with("UNAVAILABLE `x`: it is not entered again: 0 of"));
        let counts = |world: &World| {
            let fields = world.redis["x"].fields.iter().filter(|(field, _)| *field != "mode");
            fields.map(|(_, count)| *count).collect::<Vec<_>>()
        };
        assert_eq!(counts(&world), [1], "{kind}");
        world.replicas = Replicas::TooFew;
        world.lock_as(a, "x", kind);
        assert!(error(&mut world, a).contains("0 are connected"));
        assert_eq!(counts(&world), [1]);
        world.leave(a, "x");
        assert_nothing_left(&world);
    }
}

/// The old count is restored however long that takes, and the owner keeps the hold throughout.
#[test]
fn the_count_before_a_failed_re_entry_is_restored_until_redis_has_it() {
    let mut world = World::with_replicas(1);
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.replicas = Replicas::Late;
    world.lock(a, "x");
    world.send_grants(0);
    world.network = Network::Refuses;
    world.work();
    assert!(error(&mut world, a).contains("not entered again"));
    assert_eq!(world.redis["x"].fields.values().copied().collect::<Vec<_>>(), [2]);
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.redis["x"].fields.values().copied().collect::<Vec<_>>(), [1]);
    world.leave(a, "x");
}

#[test]
fn a_hand_over_that_too_few_replicas_confirm_leaves_the_lock_free() {
    let mut world = World::with_replicas(1);
    let [a, b, c] = [world.open(), world.open(), world.open()];
    for id in [a, b, c] {
        world.lock(id, "x");
    }
    assert_eq!(world.reply(a), "held 1");
    world.replicas = Replicas::Confirm(0);
    world.unlock(a, "x");
    assert_eq!(world.reply(a), "0", "its hold is released, although the hand-over failed");
    assert!(error(&mut world, b).contains("0 of the 1 replicas"));
    assert!(error(&mut world, c).contains("0 of the 1 replicas"), "it made its own attempt");
    assert_nothing_left(&world);
    world.replicas = Replicas::Confirm(1);
    world.lock(a, "x");
    world.lock(b, "x");
    world.served.clear();
    world.unlock(a, "x");
    assert_eq!(world.short_replies(a), ["held 1", "0"]);
    assert_eq!((world.reply(b), world.served.as_slice()), ("held 1".into(), &["hand_over"][..]));
}

#[test]
fn a_release_does_not_hand_over_while_replicas_are_known_to_be_missing() {
    let mut world = World::with_replicas(1);
    let [a, b, c] = [world.open(), world.open(), world.open()];
    world.lock(a, "x");
    world.lock(b, "x");
    world.replicas = Replicas::Confirm(0);
    world.lock(c, "y");
    world.replies.clear();
    world.served.clear();
    world.unlock(a, "x");
    assert_eq!(world.served, ["release", "acquire", "release"], "no hand-over");
    assert_eq!(world.reply(a), "0");
    assert!(error(&mut world, b).contains("0 of the 1 replicas"));
}

#[test]
fn a_lock_is_rejected_without_an_attempt_if_too_few_replicas_are_connected() {
    let mut world = World::with_replicas(1);
    let [a, b] = [world.open(), world.open()];
    world.lock(a, "x");
    world.lock(b, "x");
    assert_eq!(world.reply(a), "held 1");
    world.replicas = Replicas::TooFew;
    world.served.clear();
    world.unlock(a, "x");
    assert_eq!(world.served, ["release"]);
    assert_eq!(world.reply(a), "0");
    assert!(error(&mut world, b).contains("0 are connected"));
    for kind in [Kind::Fair, Kind::Write] {
        world.lock_as(b, "x", kind);
        assert!(error(&mut world, b).contains("0 are connected"));
    }
    assert_eq!(world.served, ["release"]);
    assert_nothing_left(&world);
    assert_eq!(confirmations(&world), [1, 0, 3]);
}

#[test]
fn a_repeated_acquisition_after_a_lost_reply_needs_confirmation_too() {
    for (replicas, reply) in [(1, "held 1"), (0, "UNAVAILABLE")] {
        let mut world = World::with_replicas(1);
        let a = world.open();
        world.replicas = Replicas::Confirm(replicas);
        world.network = Network::LosesReplies;
        world.lock(a, "x");
        assert_eq!(world.reply(a), reply);
        assert_eq!(world.holders("x").len(), usize::try_from(replicas).unwrap());
    }
}

/// The connection breaks after a script has run, and no replica is left before its second copy is answered.
#[test]
fn a_lock_left_by_a_broken_connection_is_released_if_replicas_are_missing() {
    let mut world = World::with_replicas(1);
    let a = world.open();
    world.network = Network::Breaks;
    world.lock(a, "x");
    assert!(world.has_no_reply(a));
    assert_eq!(world.holders("x").len(), 1);
    world.network = Network::Good;
    world.replicas = Replicas::TooFew;
    world.pass(Duration::from_secs(1));
    assert!(error(&mut world, a).contains("0 are connected"));
    assert_nothing_left(&world);
}

#[test]
fn a_late_grant_to_an_ended_wait_is_released_confirmed_or_not() {
    for replicas in [0, 1] {
        let mut world = World::with_replicas(1);
        let a = world.open();
        world.replicas = Replicas::Late;
        world.lock_within(a, "x", 100);
        world.pass(Duration::from_millis(300));
        assert_eq!(world.reply(a), "UNAVAILABLE");
        world.send_grants(replicas);
        world.work();
        assert_nothing_left(&world);
    }
}

/// Its position was released on another connection before the script that creates it arrived.
#[test]
fn a_late_attempt_of_an_ended_fair_wait_leaves_no_position() {
    let mut world = World::with_replicas(1);
    let a = world.open();
    world.foreign("x", FOREIGN, Duration::from_secs(5));
    world.replicas = Replicas::Late;
    let wait = Wait::AtMost(Duration::from_millis(100));
    let request = LockRequest { kind: Kind::Fair, wait, ..lock_command("x") };
    world.command(a, Command::Lock(request));
    world.pass(Duration::from_millis(300));
    world.replies.clear();
    world.send_grants(1);
    world.work();
    assert!(world.queues["x"].is_empty(), "{:?}", world.queues);
    assert!(world.core.is_idle() && !world.core.locks.contains(&name("x")));
}

#[test]
fn mlock_releases_all_its_locks_if_replicas_do_not_confirm_one() {
    let mut world = World::with_replicas(1);
    let a = world.open();
    let all = || Command::LockAll(["x", "y"].map(lock_command).to_vec());
    world.command(a, all());
    assert_eq!(world.reply(a), "held 1 held 1");
    world.close(a);
    world.replicas = Replicas::Once;
    let b = world.open();
    world.command(b, all());
    assert!(error(&mut world, b).contains("0 of the 1 replicas"));
    assert_nothing_left(&world);
}
