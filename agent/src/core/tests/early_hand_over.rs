//! Tests of hand-overs whose successor holds the lock before Redis has answered.

use std::time::Duration;

use redisson::{Kind, Lease};

use super::grace::{GRACE, NEXT, ticket};
use super::world::{FOREIGN, LEASE, Network, World, lock_command, name};
use crate::core::Node;
use crate::core::lease::hold::Hold;
use crate::protocol::command::{Command, LockRequest};
use crate::types::{ConnectionId, Number};

/// The time that a reply of Redis takes, in milliseconds.
const REPLY: u64 = 100;
const LATER: Duration = Duration::from_millis(REPLY + 1);

/// Lets the first session hold `x`, and the others wait for it. Redis's replies are delayed from now on.
fn queue<const N: usize>(world: &mut World) -> [ConnectionId; N] {
    let sessions = std::array::from_fn(|_| world.open());
    for id in sessions {
        world.lock(id, "x");
    }
    world.replies.clear();
    world.served.clear();
    world.network = Network::Slow(REPLY);
    sessions
}

fn holder(world: &World) -> &Hold {
    world.core.leases.iter().next().expect("it is held")
}

fn field(world: &World) -> String {
    world.core.numbers.field(Kind::Lock, holder(world).number).to_string()
}

fn enter(world: &mut World, id: ConnectionId) {
    world.lock(id, "x");
}

fn extend(world: &mut World, id: ConnectionId, lease: Duration) {
    world.extend(id, "x", Lease::new(lease));
}

#[test]
fn the_next_waiter_is_granted_the_lock_before_redis_replies() {
    let mut world = World::new();
    let [a, b] = queue(&mut world);
    let inherited = holder(&world).valid_until;
    world.pass(Duration::from_millis(500));
    world.unlock(a, "x");
    assert_eq!(world.reply(b), "held 1");
    assert_eq!(holder(&world).valid_until, inherited, "it inherits its predecessor's validity");
    assert!(world.has_no_reply(a), "Redis has not confirmed yet that the hold lasted to its end");
    world.pass(LATER);
    assert_eq!(world.reply(a), "0");
    assert_eq!(holder(&world).valid_until, inherited + Duration::from_millis(500));
    assert_eq!(world.holders("x"), [field(&world)]);
    assert_eq!(world.served, ["hand_over"]);
    world.pass(LEASE / 3);
    assert_eq!(world.served, ["hand_over", "keep"], "the early hold is renewed like any other");
}

#[test]
fn an_early_hold_that_ends_before_the_reply_is_never_sent_to_redis() {
    let mut world = World::new();
    let [a, b, c, d] = queue(&mut world);
    for id in [a, b, c] {
        world.unlock(id, "x");
    }
    assert_eq!(world.reply(d), "held 1");
    assert_eq!((world.reply(b), world.reply(c)), ("held 1".into(), "held 1".into()));
    assert_eq!(world.served, ["hand_over"], "only one hand-over is in flight");
    world.pass(LATER);
    for id in [a, b, c] {
        assert_eq!(world.reply(id), "0");
    }
    world.pass(LATER);
    assert_eq!(
        world.served, ["hand_over"; 2],
        "the second hand-over goes from the second holder to the last"
    );
    assert_eq!(world.holders("x"), [field(&world)]);
    world.unlock(d, "x");
    world.pass(LATER);
    assert_eq!(world.reply(d), "0");
    assert!(world.holders("x").is_empty() && world.core.is_idle());
    assert!(world.core.locks.is_empty());
}

#[test]
fn an_early_hold_that_ends_without_a_next_waiter_is_released_after_the_reply() {
    let mut world = World::new();
    let [a, b] = queue(&mut world);
    world.unlock(a, "x");
    world.close(b);
    assert!(world.core.leases.iter().next().is_none());
    world.pass(LATER);
    assert_eq!(world.served, ["hand_over", "release"]);
    world.pass(LATER);
    assert!(world.holders("x").is_empty() && world.core.is_idle());
    assert!(world.core.locks.is_empty());
}

#[test]
fn an_early_hold_whose_hand_over_operation_is_missing_is_released() {
    let mut world = World::new();
    let [a, b, c] = queue(&mut world);
    world.unlock(a, "x");
    assert_eq!(world.reply(b), "held 1");
    // The hand-over has run in Redis, but its operation is removed from the agent.
    let hand_over = world.core.locks.get(&name("x")).unwrap().early.unwrap();
    assert!(world.core.take_op(hand_over).is_some());
    world.unlock(b, "x");
    assert!(world.has_no_reply(c), "a lock of unknown state is not handed over early");
    world.pass(LATER);
    assert_eq!(world.reply(b), "0");
    world.pass(LATER);
    assert_eq!(world.reply(c), "held 1");
    assert_eq!(world.served, ["hand_over", "release", "acquire"]);
    assert_eq!(world.holders("x"), [field(&world)]);
}

#[test]
fn a_lost_lock_is_reported_to_its_holder_and_all_early_holders_after_it() {
    let mut world = World::new();
    let [a, b, c, d] = queue(&mut world);
    world.redis.clear();
    for id in [a, b] {
        world.unlock(id, "x");
    }
    world.replies.clear();
    world.pass(LATER);
    assert_eq!((world.reply(a), world.reply(b)), ("LOST".into(), "LOST".into()));
    world.unlock(c, "x");
    assert_eq!(world.reply(c), "LOST");
    world.pass(LATER);
    assert_eq!(world.reply(d), "held 1", "the next waiter acquires the lock");
    assert_eq!(world.holders("x"), [field(&world)]);
}

/// Reports that an operator has released the hold of `x` with that number.
fn force(world: &mut World, number: Number) {
    world.redis.clear();
    world.core.on_forced(world.now, Node::Main, &name("x"), number);
    world.work();
}

#[test]
fn a_forced_release_is_reported_to_its_holder_and_all_early_holders_after_it() {
    let mut world = World::new();
    let [a, b, c] = queue(&mut world);
    let number = holder(&world).number;
    world.redis.clear();
    for id in [a, b] {
        world.unlock(id, "x");
    }
    world.replies.clear();
    force(&mut world, number);
    world.pass(LATER);
    for id in [a, b] {
        let replies = format!("{:?}", world.replies_of(id));
        assert!(replies.contains("LOST") && replies.contains("forced"), "{replies}");
    }
    assert_eq!(world.events(c), ["lost x lock forced"]);
}

#[test]
fn a_lock_is_not_handed_over_early_after_the_message_of_its_forced_release() {
    for early in [false, true] {
        let mut world = World::new();
        let [a, b, c] = queue(&mut world);
        let (leaves, waits) = if early { (b, c) } else { (a, b) };
        if early {
            world.unlock(a, "x");
        }
        let number = holder(&world).number;
        world.foreign("x", FOREIGN, LEASE);
        world.core.on_forced(world.now, Node::Main, &name("x"), number);
        world.work();
        world.replies.clear();
        world.unlock(leaves, "x");
        assert!(world.has_no_reply(waits), "another client may have it");
        world.pass(LATER * 3);
        assert_eq!(world.reply(leaves), "LOST");
        assert!(world.has_no_reply(waits));
    }
}

#[test]
fn a_forced_release_of_an_early_hold_that_has_ended_is_reported_to_the_holder_after_it() {
    let mut world = World::new();
    let [a, b, c] = queue(&mut world);
    world.unlock(a, "x");
    let number = holder(&world).number;
    world.unlock(b, "x");
    force(&mut world, number);
    world.replies.clear();
    world.pass(LATER * 2);
    assert_eq!(world.events(c), ["lost x lock forced"]);
}

#[test]
fn an_early_hold_ends_if_another_client_has_stolen_the_lock() {
    let mut world = World::new();
    let [a, _b] = queue(&mut world);
    world.foreign("x", FOREIGN, LEASE);
    world.unlock(a, "x");
    world.pass(LATER);
    assert!(world.core.leases.iter().next().is_none());
    assert_eq!(world.holders("x"), [FOREIGN]);
}

#[test]
fn an_unanswered_hand_over_is_repeated_while_waiters_pass_the_lock_on() {
    let mut world = World::new();
    let [a, b, c] = queue(&mut world);
    world.network = Network::Down;
    world.unlock(a, "x");
    world.unlock(b, "x");
    assert_eq!(world.reply(c), "held 1");
    world.pass(Duration::from_secs(3));
    assert_eq!(world.reply(a), "UNAVAILABLE", "Redis does not reply");
    let replies = world.replies_of(b);
    assert_eq!(replies.len(), 2, "its grant and UNAVAILABLE for its UNLOCK: {replies:?}");
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.holders("x"), [field(&world)]);
    assert!(holder(&world).valid_until > world.now + LEASE / 2);
}

#[test]
fn a_waiter_is_not_granted_early_after_redis_has_refused_a_hand_over() {
    let mut world = World::new();
    let [a, b, c] = queue(&mut world);
    world.network = Network::Refuses;
    world.unlock(a, "x");
    world.replies.clear();
    world.unlock(b, "x");
    assert!(world.has_no_reply(c));
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(c), "held 1");
    assert_eq!(world.served, ["hand_over"; 2]);
    assert_eq!(world.holders("x"), [field(&world)]);
}

#[test]
fn an_early_hold_ends_with_its_validity_if_redis_does_not_reply() {
    let mut world = World::new();
    let [a, b, c] = queue(&mut world);
    world.network = Network::Down;
    world.unlock(a, "x");
    let valid_until = holder(&world).valid_until;
    world.pass(valid_until.since(world.now));
    assert!(world.core.leases.iter().next().is_none(), "the early hold is lost");
    world.network = Network::Good;
    world.replies.clear();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(c), "held 1");
    world.unlock(b, "x");
    assert_eq!(world.reply(b), "LOST");
    assert_eq!(world.holders("x"), [field(&world)]);
}

#[test]
fn the_lock_of_a_lost_early_hold_is_not_granted_before_its_validity_ends() {
    let mut world = World::new();
    let [a, _b, c] = queue(&mut world);
    world.network = Network::Down;
    world.unlock(a, "x");
    let valid_until = holder(&world).valid_until;
    while world.core.leases.iter().next().is_some() {
        world.pass(Duration::from_millis(1));
    }
    assert!(world.now < valid_until);
    world.network = Network::Good;
    world.replies.clear();
    while world.has_no_reply(c) {
        world.pass(Duration::from_millis(1));
    }
    assert!(world.now >= valid_until, "its owner may use it until then");
}

#[test]
fn an_early_hold_is_re_entered_and_left_without_waiting_for_redis() {
    let mut world = World::new();
    let [a, b] = queue(&mut world);
    world.unlock(a, "x");
    assert_eq!(world.reply(b), "held 1");
    enter(&mut world, b);
    assert_eq!(world.reply(b), "held 2");
    enter(&mut world, b);
    assert_eq!(world.reply(b), "held 3");
    world.unlock(b, "x");
    assert_eq!(world.reply(b), "2");
    world.pass(LATER * 2);
    assert_eq!(world.served, ["hand_over", "keep"]);
    assert_eq!(world.redis["x"].fields.values().collect::<Vec<_>>(), [&2], "Redis has the count");
}

#[test]
fn extend_of_an_early_hold_waits_until_redis_has_the_hold() {
    let mut world = World::new();
    let [a, b] = queue(&mut world);
    world.unlock(a, "x");
    world.replies.clear();
    extend(&mut world, b, Duration::from_secs(60));
    assert!(world.has_no_reply(b));
    world.pass(LATER * 2);
    assert_eq!(world.served, ["hand_over", "keep"]);
    assert!(world.redis["x"].expires > Some(world.now + Duration::from_secs(59)));
    world.replies.clear();

    let mut world = World::new();
    let [a, b] = queue(&mut world);
    world.network = Network::Down;
    world.unlock(a, "x");
    world.replies_of(b);
    extend(&mut world, b, Duration::from_secs(60));
    world.pass(Duration::from_secs(3));
    assert_eq!(world.reply(b), "UNAVAILABLE");
}

#[test]
fn extend_of_an_early_hold_is_answered_in_time_after_a_second_hand_over() {
    let mut world = World::new();
    let [a, b, c] = queue(&mut world);
    world.unlock(a, "x");
    world.unlock(b, "x");
    world.replies_of(c);
    extend(&mut world, c, Duration::from_secs(60));
    // The reply to the first hand-over still arrives, which makes the agent send the second one.
    world.network = Network::Down;
    world.pass(Duration::from_secs(3));
    assert_eq!(world.reply(c), "UNAVAILABLE");
}

#[test]
fn resume_waits_for_an_extend_that_waits_until_redis_has_the_hold() {
    let mut world = World::new();
    let [a, b] = queue(&mut world);
    world.unlock(a, "x");
    assert_eq!(world.reply(b), "held 1");
    let ticket = ticket(&world.ask_grace(b, GRACE));
    extend(&mut world, b, Duration::from_secs(60));
    world.close(b);
    let c = world.open_as(0, NEXT);
    world.resume(c, &ticket);
    assert!(world.has_no_reply(c), "the EXTEND would change the hold after the reply");
    world.pass(LATER * 3);
    assert_eq!(world.resumed(c).1, ["x lock 1"]);
    assert!(world.redis["x"].expires > Some(world.now + Duration::from_secs(59)));
}

#[test]
fn an_early_hold_is_verified_only_after_its_hand_over_is_answered() {
    let mut world = World::new();
    let [a, _b] = queue(&mut world);
    world.unlock(a, "x");
    world.core.verify(world.now, Node::Main);
    world.work();
    assert_eq!(world.served, ["hand_over"], "Redis may not have the early hold yet");
    world.pass(LATER);
    assert_eq!(world.served, ["hand_over", "keep"]);
}

#[test]
fn hand_overs_to_waiters_with_a_lease_token_or_grace_wait_for_redis() {
    let lease = Lease::new(Duration::from_secs(60));
    let waits = |request: LockRequest, prepare: fn(&mut World, ConnectionId)| {
        let mut world = World::new();
        let (a, b) = (world.open(), world.open());
        prepare(&mut world, b);
        world.lock(a, "x");
        world.command(b, Command::Lock(request));
        world.replies.clear();
        world.network = Network::Slow(REPLY);
        world.unlock(a, "x");
        world.has_no_reply(b)
    };
    let nothing = |_: &mut World, _: ConnectionId| {};
    let grace = |world: &mut World, id: ConnectionId| {
        let grace = Some(Duration::from_secs(60));
        world.command(id, Command::Session { grace, push: None, deadlines: None, process: None });
        assert_eq!(world.replies_of(id).len(), 1);
    };
    assert!(!waits(lock_command("x"), nothing));
    assert!(waits(LockRequest { lease, ..lock_command("x") }, nothing), "a fixed lease");
    assert!(waits(LockRequest { kind: Kind::Fenced, ..lock_command("x") }, nothing), "a token");
    assert!(waits(lock_command("x"), grace), "a record in the journal");
}

#[test]
fn a_hand_over_from_a_hold_in_jeopardy_waits_for_redis() {
    let mut world = World::new();
    let [a, b] = queue(&mut world);
    world.network = Network::Down;
    let at_risk = Lease::new(LEASE).unwrap().at_risk_at(holder(&world).valid_until);
    world.pass(at_risk.since(world.now) + Duration::from_millis(1));
    assert!(holder(&world).jeopardy);
    world.replies.clear();
    world.unlock(a, "x");
    assert!(world.has_no_reply(b));
}
