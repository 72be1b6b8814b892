//! Tests of fair waiters: each makes its own attempts, and none leaves a position behind.

use std::time::Duration;

use redisson::script::{self, Publish};
use redisson::{ClientId, HolderId, Kind, Lease, keys};

use super::world::{FOREIGN, Network, World, lock_command};
use crate::core::simulation::kinds;
use crate::core::simulation::red::lock_name;
use crate::core::simulation::redis::Content;
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::types::ConnectionId;

const SLOW: Duration = Duration::from_millis(100);

fn fair(world: &mut World, id: ConnectionId) {
    world.lock_as(id, "x", Kind::Fair);
}

fn queue_length(world: &World) -> usize {
    world.queues.get("x").map_or(0, Vec::len)
}

#[test]
fn fair_waiters_have_separate_positions_and_are_handed_the_lock_in_order() {
    let mut world = World::new();
    let sessions: Vec<_> = (0..4).map(|_| world.open()).collect();
    for &id in &sessions {
        fair(&mut world, id);
    }
    assert_eq!((queue_length(&world), world.listening.len()), (3, 3));
    for (i, &id) in sessions.iter().enumerate() {
        assert_eq!(
            world.reply(id),
            "held 1",
            "a waiter that was not granted the lock would sleep for seconds"
        );
        world.leave(id, "x");
        assert_eq!(queue_length(&world), 2_usize.saturating_sub(i));
    }
    assert!(world.listening.is_empty() && world.core.is_idle() && world.core.locks.is_empty());
    assert_eq!(world.core.next_deadline(), None);
    let hand_overs = world.served.iter().filter(|name| **name == "hand_over_fair").count();
    assert_eq!(hand_overs, 3, "{:?}", world.served);
}

/// Once it has subscribed, a waiter tries again, since it may have missed a release; but not behind a waiter or holder
/// of this agent.
#[test]
fn a_subscribed_fair_waiter_tries_again_only_behind_another_client() {
    let attempts =
        |world: &World| world.served.iter().filter(|name| **name == "acquire_fair").count();
    let mut world = World::new();
    let sessions: Vec<_> = (0..3).map(|_| world.open()).collect();
    for &id in &sessions {
        fair(&mut world, id);
    }
    assert_eq!((attempts(&world), queue_length(&world), world.listening.len()), (3, 2, 2));
    for &id in &sessions {
        assert_eq!(world.reply(id), "held 1");
        world.leave(id, "x");
    }
    assert_eq!(attempts(&world), 3, "hand-overs need no attempts");
    world.foreign("x", FOREIGN, Duration::from_secs(9));
    fair(&mut world, sessions[0]);
    assert_eq!((attempts(&world), queue_length(&world), world.listening.len()), (5, 1, 1));
}

#[test]
fn a_hand_over_does_not_overtake_another_clients_waiter() {
    let mut world = World::new();
    let (one, two) = (world.open(), world.open());
    fair(&mut world, one);
    assert_eq!(world.reply(one), "held 1");
    world.queues.entry("x".to_owned()).or_default().push(FOREIGN.to_owned());
    fair(&mut world, two);
    world.served.clear();
    world.leave(one, "x");
    assert!(world.has_no_reply(two) && world.holders("x").is_empty());
    // The other client's waiter gets its turn, and leaves.
    assert_eq!(world.served, ["hand_over_fair", "release_fair", "acquire_fair"]);
    world.queues.get_mut("x").unwrap().remove(0);
    world.pass(Duration::from_secs(6));
    assert_eq!(world.reply(two), "held 1");
}

#[test]
fn a_hand_over_to_a_closed_session_continues_to_the_next_waiter() {
    for network in [Network::Slow(100), Network::LosesReplies, Network::Down] {
        let mut world = World::new();
        let (one, two, three) = (world.open(), world.open(), world.open());
        for id in [one, two, three] {
            fair(&mut world, id);
        }
        assert_eq!(world.reply(one), "held 1");
        world.network = network;
        world.unlock(one, "x");
        world.close(two);
        world.network = Network::Good;
        for _ in 0..10 {
            world.pass(SLOW);
        }
        assert_eq!(
            (world.reply(one), world.reply(three)),
            ("0".into(), "held 1".into()),
            "{network:?}"
        );
        assert_eq!((queue_length(&world), world.core.ops.is_empty()), (0, true), "{network:?}");
        world.unlock(three, "x");
        assert!(world.core.is_idle(), "{network:?}");
    }
}

#[test]
fn a_turn_announced_before_the_subscription_is_active_is_not_missed() {
    let mut world = World::new();
    let id = world.open();
    world.foreign("x", FOREIGN, Duration::from_secs(9));
    world.unsubscribed = true;
    fair(&mut world, id);
    world.foreign_release("x");
    assert!(world.has_no_reply(id), "the message of its turn is lost");
    world.subscribed();
    assert_eq!(world.reply(id), "held 1");
}

#[test]
fn a_turn_announced_during_the_first_attempt_is_not_missed() {
    let mut world = World::new();
    let (one, two) = (world.open(), world.open());
    fair(&mut world, one);
    assert_eq!(world.reply(one), "held 1");
    world.network = Network::Slow(100);
    fair(&mut world, two);
    // Redis has refused it, but the reply is still in flight and it has no subscription: only another attempt helps.
    world.network = Network::Good;
    world.unlock(one, "x");
    for _ in 0..3 {
        world.pass(SLOW);
    }
    assert_eq!(world.reply(two), "held 1");
}

#[test]
fn a_turn_announced_during_a_later_attempt_is_not_missed() {
    let mut world = World::new();
    let (one, two) = (world.open(), world.open());
    fair(&mut world, one);
    fair(&mut world, two);
    assert_eq!(world.reply(one), "held 1");
    // It tries again within five seconds; Redis refuses it once more, and then announces its turn.
    let before = world.served.len();
    world.network = Network::Slow(1900);
    while world.served.len() == before {
        world.pass(SLOW);
    }
    world.network = Network::Good;
    world.unlock(one, "x");
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(two), "held 1");
}

#[test]
fn a_fair_waiter_that_disconnects_releases_its_position() {
    for network in [Network::Good, Network::LosesReplies, Network::Slow(100), Network::Holds] {
        let mut world = World::new();
        let (holder, leaving, next) = (world.open(), world.open(), world.open());
        fair(&mut world, holder);
        world.network = network;
        fair(&mut world, leaving);
        world.close(leaving);
        world.network = Network::Good;
        fair(&mut world, next);
        for _ in 0..10 {
            world.pass(SLOW);
        }
        assert_eq!(queue_length(&world), 1, "{network:?}");
        assert!(world.served.contains(&"release_fair"), "{network:?}");
        world.unlock(holder, "x");
        assert_eq!(world.reply(next), "held 1", "{network:?}");
        assert!(world.core.ops.is_empty(), "{network:?} {:?}", world.core.ops);
    }
}

#[test]
fn a_number_is_a_ghost_once_no_waiter_hold_or_script_uses_it() {
    let ghosts = |world: &World| {
        let first = world.core.numbers.first_of_run();
        let numbers = first.thread..first.thread + 9;
        numbers.filter(|thread| world.core.is_ghost(&HolderId { thread: *thread, ..first })).count()
    };
    let mut world = World::new();
    let (holder, leaving) = (world.open(), world.open());
    fair(&mut world, holder);
    fair(&mut world, leaving);
    assert_eq!((queue_length(&world), ghosts(&world)), (1, 0));
    world.network = Network::Holds;
    world.close(leaving);
    assert_eq!(ghosts(&world), 0, "the release of its position is in flight");
    world.network = Network::Good;
    for _ in 0..10 {
        world.pass(SLOW);
    }
    assert_eq!((queue_length(&world), ghosts(&world)), (0, 1));
}

#[test]
fn the_release_of_a_position_is_repeated_until_it_succeeds() {
    let mut world = World::new();
    let (holder, leaving) = (world.open(), world.open());
    fair(&mut world, holder);
    fair(&mut world, leaving);
    assert_eq!(queue_length(&world), 1);
    world.network = Network::Down;
    world.close(leaving);
    world.pass(Duration::from_secs(5));
    assert_eq!(queue_length(&world), 1);
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(queue_length(&world), 0);
}

#[test]
fn a_fair_waiter_whose_attempts_were_never_sent_sends_no_release() {
    let mut world = World::new();
    let id = world.open();
    world.network = Network::Down;
    fair(&mut world, id);
    world.close(id);
    world.network = Network::Good;
    world.pass(Duration::from_secs(5));
    assert!(world.served.is_empty(), "{:?}", world.served);
    assert!(world.core.is_idle());
}

#[test]
fn a_fair_attempt_without_a_wait_creates_no_position() {
    let mut world = World::new();
    let (holder, now) = (world.open(), world.open());
    world.foreign("x", FOREIGN, Duration::from_secs(9));
    let wait = Wait::AtMost(Duration::ZERO);
    let request = LockRequest { kind: Kind::Fair, wait, ..lock_command("x") };
    world.command(now, Command::Lock(request));
    assert_eq!(world.reply(now), "null");
    assert_eq!((queue_length(&world), world.served.len()), (0, 1));
    fair(&mut world, holder);
    assert_eq!(queue_length(&world), 1);
}

#[test]
fn a_fair_grant_that_arrives_after_its_lease_is_requested_again() {
    let mut world = World::new();
    let id = world.open();
    world.network = Network::Slow(1500);
    let request = LockRequest { kind: Kind::Fair, lease: Lease::new(SLOW), ..lock_command("x") };
    world.command(id, Command::Lock(request));
    world.pass(Duration::from_secs(1));
    world.network = Network::Good;
    world.pass(Duration::from_millis(510));
    assert_eq!(world.reply(id), "held 1");
}

/// Another client waits behind the fair waiter.
#[test]
fn a_fair_waiter_keeps_its_place_after_a_lost_reply_and_a_refusal() {
    let mut world = World::new();
    let id = world.open();
    world.foreign("x", FOREIGN, Duration::from_secs(60));
    fair(&mut world, id);
    world.queues.get_mut("x").unwrap().push(format!("{FOREIGN}3"));
    let queue = world.queues["x"].clone();
    let before = world.served.len();
    world.network = Network::Breaks;
    while world.served.len() == before {
        world.pass(SLOW);
    }
    world.network = Network::Refuses;
    world.pass(Duration::from_secs(1));
    world.network = Network::Good;
    world.pass(Duration::from_secs(6));
    assert_eq!(world.queues["x"], queue);
    world.close(id);
    assert_eq!(world.queues["x"], [format!("{FOREIGN}3")]);
}

#[test]
fn a_fair_waiter_keeps_what_a_refused_hand_over_may_have_given_it() {
    for first in [Network::Breaks, Network::Holds] {
        let mut world = World::new();
        let (one, two) = (world.open(), world.open());
        fair(&mut world, one);
        fair(&mut world, two);
        assert_eq!(world.reply(one), "held 1");
        world.queues.get_mut("x").unwrap().push(FOREIGN.to_owned());
        // A first copy runs, or may yet run; a second one is refused.
        world.network = first;
        world.unlock(one, "x");
        world.network = Network::Refuses;
        world.pass(Duration::from_secs(1));
        world.network = Network::Good;
        world.pass(Duration::from_secs(6));
        assert_eq!(world.reply(one), "0", "{first:?}");
        assert_eq!(world.reply(two), "held 1", "{first:?}");
        assert_eq!(world.queues["x"], [FOREIGN], "{first:?}");
    }
}

#[test]
fn a_fair_waiter_tries_again_after_redis_was_full() {
    let mut world = World::new();
    let id = world.open();
    world.network = Network::Full;
    fair(&mut world, id);
    assert!(world.has_no_reply(id));
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(id), "held 1");
}

#[test]
fn a_deadline_behind_another_clients_waiter_grows_by_the_time_waited() {
    let mut world = kinds::World::new(7, 1, 1, |settings| settings.red = None);
    let (name, other) = (lock_name("x"), HolderId::new(ClientId::from_random([40; 16]), 1));
    let lease = Lease::new(Duration::from_secs(600)).unwrap();
    for thread in [1, 2] {
        let (holder, wait) = (HolderId { thread, ..other }, Duration::from_secs(300));
        let queue = Some(Duration::ZERO);
        let call = script::acquire_fair(&name, &holder, lease, wait, queue, &other, Publish::Plain);
        world.foreign(0, &call);
    }
    let deadlines = String::from_utf8(keys::deadlines(&name)).unwrap();
    // The agent's waiter is the last one.
    let deadline = |world: &kinds::World| match &world.servers[0].redis.keys()[&deadlines].content {
        Content::Scores(scores) => scores.values().copied().fold(0.0, f64::max),
        other => panic!("{other:?}"),
    };
    let session = world.open(0);
    let request = LockRequest { kind: Kind::Fair, wait: Wait::Forever, ..LockRequest::new(name) };
    world.command(0, session, Command::Lock(request));
    world.pass(Duration::from_secs(1));
    let first = deadline(&world);
    world.pass(Duration::from_secs(60));
    let grown = deadline(&world) - first;
    assert!((54_000.0..=61_000.0).contains(&grown), "{grown} ms in a minute");
}
