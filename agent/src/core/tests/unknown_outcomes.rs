//! Tests of unknown outcomes that the simulation found, each as one scenario.

use std::time::Duration;

use redisson::{Kind, Lease};

use super::world::{LEASE, Network, World, lock_command, short};
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::types::ConnectionId;

fn lock_as(world: &mut World, id: ConnectionId, owner: i64, lock: &str, wait_ms: u64) {
    let wait = Wait::AtMost(Duration::from_millis(wait_ms));
    world.command(id, Command::Lock(LockRequest { owner, wait, ..lock_command(lock) }));
}

fn lease(ms: u64) -> Option<Lease> {
    Lease::new(Duration::from_millis(ms))
}

fn valid_ms(world: &mut World, id: ConnectionId) -> u64 {
    let replies = world.replies_of(id);
    let Some(crate::protocol::resp::Frame::Map(pairs)) = replies.last() else {
        panic!("{replies:?}")
    };
    let valid =
        pairs.iter().find(|(key, _)| *key == "valid_ms").expect("the reply to a grant has it");
    short(&valid.1).parse().expect("a number")
}

#[test]
fn a_delayed_grant_reply_states_the_validity_left_when_it_is_sent() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(b, "x");
    lock_as(&mut world, a, 1, "x", 8000);
    lock_as(&mut world, a, 2, "y", 0);
    assert!(world.has_no_reply(a), "the second owner's reply waits for the first owner's");
    world.pass(Duration::from_secs(8));
    let valid = valid_ms(&mut world, a);
    assert!(valid < 22_000, "{valid} ms, as if eight seconds had not passed");
}

#[test]
fn a_hold_lost_before_its_grant_is_sent_is_reported_as_lost() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(b, "x");
    lock_as(&mut world, a, 1, "x", 20_000);
    lock_as(&mut world, a, 2, "y", 0);
    world.redis.remove("y");
    world.pass(Duration::from_secs(21));
    assert_eq!(world.short_replies(a), ["null", "LOST"]);
}

#[test]
fn a_pending_re_entry_of_a_lost_hold_is_answered_at_once_and_not_repeated() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.network = Network::Down;
    world.pass(LEASE * 14 / 15);
    world.lock(a, "x");
    world.served.clear();
    world.pass(Duration::from_millis(1500));
    assert_eq!(world.short_replies(a), ["LOST"]);
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert_eq!(world.served, ["release"], "a lost hold is not renewed");
}

#[test]
fn a_lost_hold_excludes_local_waiters_until_its_validity_ends() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.replies.clear();
    world.network = Network::Down;
    let granted = world.now;
    while world.events(a).iter().all(|event| !event.starts_with("lost")) {
        world.pass(Duration::from_millis(10));
    }
    world.network = Network::Good;
    let valid_until = lease(30_000).expect("a lease").valid_until(granted);
    assert!(world.now < valid_until);
    while world.now + Duration::from_millis(1) < valid_until {
        world.pass(Duration::from_millis(1));
        assert!(world.has_no_reply(b), "the lost hold's owner may still use the lock");
    }
    world.pass(Duration::from_millis(50));
    assert_eq!(world.reply(b), "held 1");
}

#[test]
fn a_release_is_repeated_for_as_long_as_redis_may_keep_the_lock() {
    let mut world = World::new();
    let a = world.open();
    let hour = lease(3_600_000);
    world.command(a, Command::Lock(LockRequest { lease: hour, ..lock_command("x") }));
    world.extend(a, "x", lease(5000));
    world.network = Network::Down;
    world.unlock(a, "x");
    world.pass(Duration::from_secs(120));
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert!(world.holders("x").is_empty(), "Redis would have kept it for an hour");
}

#[test]
fn a_grant_that_arrives_after_its_lease_is_undone_and_never_sent() {
    let mut world = World::new();
    let a = world.open();
    world.network = Network::Slow(300);
    world.command(a, Command::Lock(LockRequest { lease: lease(200), ..lock_command("x") }));
    let first = world.holders("x");
    world.pass(Duration::from_millis(310));
    assert!(world.has_no_reply(a), "its lease was over before the reply arrived");
    world.network = Network::Good;
    world.pass(Duration::from_millis(700));
    assert_eq!(world.reply(a), "held 1");
    assert_ne!(world.holders("x"), first, "the undo of the first number may still be in flight");
}

#[test]
fn a_suspension_of_the_host_is_detected_by_a_command_before_the_tick() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(a, "y");
    world.replies.clear();
    world.redis.remove("x");
    world.now = world.now + LEASE / 2;
    // The core's first input is not the tick but a worker's command.
    world.lock_within(b, "z", 0);
    assert_eq!(world.events(a), ["lost x lock missing"]);
}

#[test]
fn a_reply_from_before_a_suspension_is_discarded_and_requested_again() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.replies.clear();
    world.network = Network::Slow(100);
    world.lock(b, "y");
    // The reply is in flight, the host is suspended, and the lock is lost.
    world.redis.clear();
    world.network = Network::Good;
    world.now = world.now + LEASE / 2;
    world.served.clear();
    world.pass(Duration::from_millis(200));
    assert_eq!(world.served.iter().filter(|script| **script == "acquire").count(), 1);
    assert_eq!(world.reply(b), "held 1");
    assert_eq!(world.holders("y").len(), 1, "Redis has the hold that was granted");
}

#[test]
fn an_abandoned_hand_over_leaves_nothing_in_redis() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.command(b, Command::Lock(LockRequest { lease: lease(3_600_000), ..lock_command("x") }));
    world.replies.clear();
    // It runs, the reply is lost, and nothing gets through until the old hold's lease is long over.
    world.network = Network::Breaks;
    world.unlock(a, "x");
    assert_eq!(world.holders("x").len(), 1);
    world.close(b);
    world.pass(Duration::from_secs(90));
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert!(world.core.is_idle(), "{:?}", world.core.ops);
    assert!(world.holders("x").is_empty());
}

#[test]
fn a_refused_hand_over_of_unknown_outcome_is_undone_and_its_number_not_reused() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.command(b, Command::Lock(LockRequest { lease: lease(60_000), ..lock_command("x") }));
    assert_eq!(world.reply(a), "held 1");
    world.network = Network::Breaks;
    world.unlock(a, "x");
    let successor = world.holders("x");
    world.network = Network::Refuses;
    world.pass(Duration::from_millis(100));
    assert!(world.has_no_reply(b));
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(a), "0", "it was released in order");
    assert_eq!(world.reply(b), "held 1");
    assert_ne!(world.holders("x"), successor, "the undo of that number may still be in flight");
    assert_eq!(world.holders("x").len(), 1);
}

#[test]
fn the_validity_of_a_renewal_counts_from_its_sending() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.network = Network::Slow(1500);
    world.pass(LEASE / 3 + Duration::from_secs(2));
    let hold = world.core.leases.iter().next().expect("it is held");
    let kept_until = world.redis["x"].expires.expect("it has a time to live");
    assert!(kept_until.since(world.now) > LEASE / 2, "it has been renewed");
    assert!(hold.valid_until < kept_until, "the hold is valid for longer than Redis keeps it");
}

#[test]
fn a_refused_hand_over_of_unknown_outcome_is_undone_after_its_waiter_left() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.hold(a, "x");
    world.command(b, Command::Lock(LockRequest { lease: lease(60_000), ..lock_command("x") }));
    world.network = Network::Breaks;
    world.unlock(a, "x");
    world.network = Network::Refuses;
    world.pass(Duration::from_millis(100));
    world.close(b);
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(a), "0", "it was released in order");
    assert!(world.holders("x").is_empty());
}

#[test]
fn a_lock_from_a_lost_reply_is_released_if_the_repetition_gets_wrongtype() {
    let mut world = World::new();
    let a = world.open();
    world.network = Network::Breaks;
    world.lock_as(a, "x", Kind::Fenced);
    assert_eq!(world.holders("x").len(), 1, "the script ran, its reply is lost");
    world.spoilt_counters = true;
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(a), "WRONGTYPE");
    assert_eq!(
        world.holders("x"),
        Vec::<String>::new(),
        "the lock does not stay until its lease ends"
    );
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn nowait_gets_a_lock_whose_abandoned_attempt_is_being_undone() {
    let mut world = World::new();
    let (a, b, c) = (world.open(), world.open(), world.open());
    world.network = Network::Slow(100);
    world.lock(a, "x");
    world.close(a);
    world.pass(MS * 150);
    assert_eq!(world.holders("x").len(), 0, "the undo has run and is not answered yet");
    lock_as(&mut world, b, 0, "x", 0);
    assert!(world.has_no_reply(b), "nobody holds the lock");
    lock_as(&mut world, c, 0, "x", 0);
    assert_eq!(world.reply(c), "null", "an earlier one may get it");
    world.pass(MS * 200);
    assert_eq!(world.reply(b), "held 1");
}

#[test]
fn a_wait_shorter_than_a_release_under_way_ends_with_its_first_answer() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.network = Network::Slow(50);
    world.unlock(a, "x");
    lock_as(&mut world, b, 0, "x", 5);
    world.pass(MS * 240);
    assert_eq!(world.reply(b), "held 1");
}

#[test]
fn a_lock_whose_release_redis_does_not_answer_is_unavailable_rather_than_held() {
    for wait_ms in [0, 1000] {
        let mut world = World::new();
        let (a, b) = (world.open(), world.open());
        world.lock(a, "x");
        world.acquisitions.clear();
        world.network = Network::Down;
        world.unlock(a, "x");
        lock_as(&mut world, b, 0, "x", wait_ms);
        world.pass(MS * 2100);
        assert_eq!(world.reply(b), "UNAVAILABLE", "WAIT {wait_ms}");
        assert_eq!(world.acquisitions, ["error"]);
    }
}

#[test]
fn a_lost_hold_counts_as_held_until_its_validity_ends() {
    for wait_ms in [0, 100] {
        let mut world = World::new();
        let (a, b) = (world.open(), world.open());
        world.lock(a, "x");
        world.network = Network::Down;
        while world.events(a).iter().all(|event| !event.starts_with("lost")) {
            world.pass(MS * 10);
        }
        world.network = Network::Good;
        lock_as(&mut world, b, 0, "x", wait_ms);
        world.pass(Duration::from_millis(wait_ms));
        assert_eq!(world.reply(b), "null", "WAIT {wait_ms}");
    }
}

#[test]
fn nowait_reports_a_silent_redis_while_an_unknown_attempt_is_undone() {
    let mut world = World::new();
    let workers = [(); 3].map(|()| world.open());
    world.network = Network::Slow(5000);
    for worker in workers {
        lock_as(&mut world, worker, 0, "x", 0);
        world.pass(Duration::from_secs(3));
        assert_eq!(world.reply(worker), "UNAVAILABLE", "nobody is known to hold the lock");
    }
    assert_eq!(world.acquisitions, ["error"; 3]);
    let holder = world.open();
    world.network = Network::Good;
    world.pass(Duration::from_secs(3));
    world.hold(holder, "x");
    world.network = Network::Slow(5000);
    lock_as(&mut world, workers[0], 0, "x", 0);
    assert_eq!(world.reply(workers[0]), "null", "it is held");
}
