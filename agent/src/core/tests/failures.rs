//! Tests of lost replies, late scripts and lost locks.

use std::time::Duration;

use redisson::script::Value;
use redisson::{Kind, Lease};

use super::world::{FOREIGN, LEASE, Network, World, hold_command, lock_command, name, short};
use crate::core::{Failure, Node};
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::{ConnectionId, Number};

#[test]
fn an_acquisition_repeated_after_a_lost_reply_counts_once() {
    let mut world = World::new();
    let a = world.open();
    world.network = Network::LosesReplies;
    world.hold(a, "x");
    assert_eq!(world.redis["x"].fields.values().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_release_with_a_lost_reply_takes_effect() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.network = Network::LosesReplies;
    world.leave(a, "x");
}

#[test]
fn a_hand_over_with_a_lost_reply_passes_the_lock_once() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.replies.clear();
    world.network = Network::LosesReplies;
    world.unlock(a, "x");
    assert_eq!((world.reply(a), world.reply(b)), ("0".into(), "held 1".into()));
    assert_eq!(world.holders("x").len(), 1);
}

#[test]
fn a_reply_that_an_agent_held_up_has_not_read_yet_counts() {
    let mut world = World::new();
    let a = world.open();
    world.network = Network::Slow(50);
    world.lock(a, "x");
    world.pass(Duration::from_millis(60));
    assert_eq!(world.reply(a), "held 1");
    world.unlock(a, "x");
    // The reply arrives meanwhile, but the deadline is noticed before it is read.
    world.now = world.now + Duration::from_secs(4);
    world.pass(Duration::from_micros(1));
    assert_eq!(world.reply(a), "0");
    // Without a reply the command waits a little longer, but only once.
    world.lock(a, "x");
    world.pass(Duration::from_millis(60));
    assert_eq!(world.reply(a), "held 1");
    world.network = Network::Slow(60_000);
    world.unlock(a, "x");
    world.now = world.now + Duration::from_secs(4);
    world.pass(Duration::from_millis(400));
    assert!(world.has_no_reply(a));
    world.pass(Duration::from_millis(200));
    assert_eq!(world.reply(a), "UNAVAILABLE");
}

#[test]
fn a_wait_or_an_update_that_an_agent_held_up_has_not_seen_answered_lasts_a_little_longer() {
    for network in [Network::Slow(50), Network::Slow(60_000)] {
        let mut world = World::new();
        let (a, b, c) = (world.open(), world.open(), world.open());
        world.hold(a, "x");
        world.network = network;
        world.extend(a, "x", None);
        world.lock_within(b, "y", 0);
        world.lock_within(c, "z", 5);
        world.now = world.now + Duration::from_secs(4);
        world.pass(Duration::from_micros(1));
        if network == Network::Slow(50) {
            let extended = world.reply(a);
            assert!(extended.parse::<u64>().is_ok(), "{extended}");
            assert_eq!([b, c].map(|worker| world.reply(worker)), ["held 1"; 2]);
            continue;
        }
        world.pass(Duration::from_millis(400));
        assert!([a, b, c].into_iter().all(|worker| world.has_no_reply(worker)));
        world.pass(Duration::from_millis(200));
        let replies = [a, b, c].map(|worker| world.reply(worker));
        assert_eq!(replies, ["UNAVAILABLE"; 3]);
    }
}

#[test]
fn a_lock_acquired_by_a_late_script_is_removed_by_the_next_waiter() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.network = Network::Holds;
    world.lock_within(a, "x", 1000);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(a), "UNAVAILABLE");
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert!(world.core.is_idle(), "the attempt was undone before it ever ran");
    world.deliver_late();
    assert_eq!(world.holders("x").len(), 1, "the late script has acquired the lock");
    world.hold(b, "x");
    assert_eq!(world.holders("x").len(), 1);
}

#[test]
fn a_lock_that_redis_refuses_does_not_delay_the_renewals_of_others() {
    let mut world = World::new();
    let a = world.open();
    let locks: Vec<_> = (0..9).map(|lock| format!("x{lock}")).collect();
    locks.iter().for_each(|lock| world.lock(a, lock));
    world.lock(a, "forbidden");
    world.pass(Duration::from_secs(1));
    world.network = Network::Forbids("forbidden");
    let now = world.now;
    world.core.verify(now, Node::Main);
    world.work();
    for lock in &locks {
        assert_eq!(world.redis[lock].expires, Some(now + LEASE), "{lock}");
    }
    world.forbidden = 0;
    world.pass(LEASE / 2);
    assert!(world.forbidden < 10, "{} scripts in half a lease for one lock", world.forbidden);
    world.pass(LEASE * 2);
    assert_eq!(world.losses, ["loss logged", "loss counted"], "only one is lost");
}

#[test]
fn a_wait_shorter_than_a_round_trip_ends_with_its_first_reply() {
    for kind in [Kind::Lock, Kind::Fair] {
        let mut world = World::new();
        let (a, b, c) = (world.open(), world.open(), world.open());
        let wait = Wait::AtMost(Duration::from_millis(5));
        let lock = |name| Command::Lock(LockRequest { kind, wait, ..lock_command(name) });
        world.foreign("y", FOREIGN, LEASE);
        world.network = Network::Slow(50);
        world.command(a, lock("x"));
        world.command(b, lock("y"));
        world.pass(Duration::from_millis(40));
        assert!(world.has_no_reply(a) && world.has_no_reply(b));
        world.pass(Duration::from_millis(20));
        assert_eq!((world.reply(a), world.reply(b)), ("held 1".into(), "null".into()));
        world.pass(Duration::from_millis(100));
        assert!(world.queues.values().all(Vec::is_empty), "{:?}", world.queues);
        world.network = Network::Slow(60_000);
        world.command(c, lock("z"));
        world.pass(Duration::from_millis(240));
        assert!(world.has_no_reply(c));
        world.pass(Duration::from_millis(20));
        assert_eq!(world.reply(c), "UNAVAILABLE", "Redis does not reply");
    }
}

#[test]
fn a_late_release_does_not_affect_a_newer_hold() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.network = Network::Holds;
    world.unlock(a, "x");
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(a), "0");
    world.hold(a, "x");
    world.deliver_late();
    assert_eq!(world.holders("x").len(), 1, "the old release names the old number");
}

#[test]
fn an_unlock_during_an_outage_replies_unavailable_and_is_completed_later() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.replies.clear();
    world.network = Network::Down;
    world.unlock(a, "x");
    world.pass(Duration::from_millis(1900));
    assert!(world.has_no_reply(a));
    world.pass(Duration::from_millis(200));
    assert_eq!(world.reply(a), "UNAVAILABLE");
    world.lock(b, "x");
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(b), "held 1");
    assert_eq!(world.holders("x").len(), 1);
}

#[test]
fn a_lease_that_ends_in_an_outage_after_the_unlock_is_not_a_loss() {
    for (kind, waits) in [(Kind::Lock, false), (Kind::Lock, true), (Kind::Fenced, true)] {
        let mut world = World::new();
        let (a, b) = (world.open(), world.open());
        let lock = || Command::Lock(LockRequest { kind, ..lock_command("x") });
        world.command(a, lock());
        if waits {
            world.command(b, lock());
        }
        world.network = Network::Down;
        world.unlock(a, "x");
        world.unlock(b, "x");
        world.pass(LEASE + Duration::from_millis(100));
        world.network = Network::Good;
        world.pass(Duration::from_secs(1));
        assert!(world.losses.is_empty(), "{kind}, {waits}: {:?}", world.losses);
        assert!(world.core.is_idle() || waits);
    }
}

#[test]
fn an_outage_is_reported_as_jeopardy_and_then_as_loss_before_validity_ends() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    let granted = world.now;
    world.network = Network::Down;
    world.pass(LEASE * 2 / 3 + Duration::from_millis(1));
    let events = world.events(a);
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].starts_with("jeopardy x lock "));
    while world.events(a).is_empty() {
        world.pass(Duration::from_millis(10));
        assert!(world.now.since(granted) < LEASE, "the loss is reported too late");
    }
    world.unlock(a, "x");
    assert_eq!(world.reply(a), "LOST");
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert!(world.holders("x").is_empty(), "the lost hold is released in Redis too");
    assert!(world.core.is_idle());
}

#[test]
fn a_hold_is_reported_safe_after_a_short_outage() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.network = Network::Down;
    world.pass(LEASE * 2 / 3 + Duration::from_secs(1));
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    let events = world.events(a);
    assert!(events[0].starts_with("jeopardy"), "{events:?}");
    assert_eq!(events[1..], ["safe x lock"]);
    world.pass(LEASE * 2);
    assert!(world.events(a).is_empty());
    assert_eq!(world.holders("x").len(), 1);
}

#[test]
fn a_hold_missing_in_redis_is_lost_and_never_created_again() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.redis.clear();
    world.pass(LEASE / 3 + Duration::from_millis(1));
    assert_eq!(world.events(a), ["lost x lock missing"]);
    world.pass(LEASE);
    assert!(world.redis.is_empty());
}

#[test]
fn a_loss_is_reported_after_a_thousand_earlier_ones() {
    let mut world = World::new();
    let a = world.open();
    for loss in 0..1100 {
        world.lock(a, "x");
        world.redis.clear();
        world.core.verify(world.now, Node::Main);
        world.work();
        world.unlock(a, "x");
        let replies: Vec<_> = world.replies_of(a).iter().map(short).collect();
        assert_eq!(replies, ["held 1", "LOST"], "loss {loss}");
    }
}

#[test]
fn a_stolen_hold_is_lost_and_its_new_holder_is_not_affected() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.foreign("x", FOREIGN, LEASE);
    world.pass(LEASE / 3 + Duration::from_millis(1));
    assert_eq!(world.events(a), ["lost x lock stolen"]);
    assert_eq!(world.holders("x"), [FOREIGN]);
}

#[test]
fn re_entering_a_lost_hold_reports_the_loss_and_does_not_restore_it() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.redis.clear();
    world.lock(a, "x");
    let replies: Vec<_> = world.replies_of(a).iter().map(short).collect();
    assert_eq!(replies, ["held 1", "held 2"], "a reentry does not wait for Redis");
    world.pass(Duration::from_millis(150));
    assert_eq!(
        world.events(a),
        ["lost x lock missing"],
        "the renewal that sends the count finds the loss"
    );
    assert!(world.redis.is_empty());
    world.lock(a, "x");
    assert_eq!(world.reply(a), "held 1", "the next LOCK gets a new grant");
}

#[test]
fn a_re_entry_with_a_lease_replies_lost_if_the_hold_is_lost() {
    let mut world = World::new();
    let a = world.open();
    let lease = Lease::new(Duration::from_secs(20));
    world.command(a, Command::Lock(LockRequest { lease, ..lock_command("x") }));
    world.redis.clear();
    world.command(a, Command::Lock(LockRequest { lease, ..lock_command("x") }));
    let replies: Vec<_> = world.replies_of(a).iter().map(short).collect();
    assert_eq!(replies, ["held 1", "LOST"]);
    assert!(world.redis.is_empty());
}

#[test]
fn a_changed_count_is_corrected_by_the_next_renewal() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.lock(a, "x");
    for count in world.redis.get_mut("x").unwrap().fields.values_mut() {
        *count = 9;
    }
    world.pass(LEASE / 3 + Duration::from_millis(1));
    assert_eq!(world.redis["x"].fields.values().copied().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_waiter_keeps_its_position_during_an_outage() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.network = Network::Down;
    world.lock(a, "x");
    world.lock_within(b, "x", 60_000);
    world.pass(Duration::from_secs(10));
    assert!(world.has_no_reply(a) && world.has_no_reply(b));
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(a), "held 1");
    world.unlock(a, "x");
    assert_eq!(world.reply(b), "held 1");
}

#[test]
fn nowait_replies_unavailable_during_an_outage() {
    let mut world = World::new();
    let a = world.open();
    world.network = Network::Down;
    world.lock_within(a, "x", 0);
    world.pass(Duration::from_millis(2100));
    assert_eq!(world.reply(a), "UNAVAILABLE");
    assert!(world.core.is_idle() && world.core.locks.is_empty());
}

#[test]
fn the_next_waiter_tries_at_once_when_the_front_waiter_disconnects() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.foreign("x", FOREIGN, LEASE);
    world.lock(a, "x");
    world.lock(b, "x");
    world.redis.clear();
    world.close(a);
    assert_eq!(world.reply(b), "held 1");
    assert_eq!(world.holders("x").len(), 1);
}

#[test]
fn the_agent_verifies_every_hold_after_a_suspension() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.lock(a, "y");
    world.replies.clear();
    world.redis.remove("x");
    world.now = world.now + LEASE / 2;
    world.core.on_time(world.now);
    world.work();
    assert_eq!(world.events(a), ["lost x lock missing"]);
    world.redis.clear();
    world.now = world.now + LEASE * 2;
    world.core.on_time(world.now);
    world.work();
    assert_eq!(world.events(a), ["lost y lock unconfirmed"]);
}

/// Returns a session whose hold of `x`, with this number, is missing in Redis. The agent has not been notified yet.
fn released_by_an_operator() -> (World, ConnectionId, Number) {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    let holder = world.holders("x").remove(0);
    let number = holder.rsplit_once(':').unwrap().1.parse().unwrap();
    world.redis.clear();
    (world, a, number)
}

#[test]
fn a_forced_release_is_reported_as_forced() {
    let (mut world, a, number) = released_by_an_operator();
    world.core.on_forced(world.now, Node::Main, &name("x"), number);
    world.work();
    assert_eq!(world.events(a), ["lost x lock forced"]);
}

#[test]
fn a_forced_release_close_to_an_unlock_is_reported_as_forced() {
    for unlocked_first in [false, true] {
        let (mut world, a, number) = released_by_an_operator();
        // Neither the renewal that verifies the message nor the release is answered before the other input arrives.
        let forced = |world: &mut World| {
            world.core.on_forced(world.now, Node::Main, &name("x"), number);
        };
        let unlock = |world: &mut World| {
            world.core.on_command(world.now, a, Command::Unlock(hold_command("x")));
        };
        if unlocked_first {
            unlock(&mut world);
            forced(&mut world);
        } else {
            forced(&mut world);
            unlock(&mut world);
        }
        world.work();
        let replies = format!("{:?}", world.replies_of(a));
        assert!(replies.contains("LOST") && replies.contains("forced"), "{replies}");
    }
}

#[test]
fn unread_events_are_bounded_and_their_gap_is_reported() {
    let mut world = World::new();
    let a = world.open();
    for i in 0..300 {
        world.lock(a, &format!("x{i}"));
    }
    world.redis.clear();
    world.pass(LEASE / 2);
    world.replies.clear();
    let events = world.events(a);
    assert_eq!(events[0], "gap 44");
    assert_eq!(events.len(), 257);
}

#[test]
fn the_next_command_runs_if_an_outcome_arrives_exactly_at_the_deadline() {
    for reply in [None, Some(Value::Nil)] {
        let mut world = World::new();
        let a = world.open();
        world.hold(a, "x");
        world.network = Network::Slow(3000);
        world.extend(a, "x", Lease::new(LEASE));
        world.unlock(a, "x");
        let (timeout, op, _) = world.in_flight.remove(0);
        world.served.clear();
        match &reply {
            Some(reply) => world.core.on_reply(timeout, op, reply),
            None => world.core.on_failure(timeout, op, &Failure::Lost("timeout".to_owned())),
        }
        world.work();
        assert_eq!((world.reply(a), &*world.served), ("UNAVAILABLE".into(), &["release"][..]));
    }
}

#[test]
fn a_re_entry_that_fails_is_counted_as_an_error() {
    let mut world = World::new();
    let a = world.open();
    let leased = |lock: &str| {
        let lease = Lease::new(Duration::from_secs(600));
        Command::Lock(LockRequest { lease, ..lock_command(lock) })
    };
    for (network, missing, expected) in [
        (Network::Refuses, false, "UNAVAILABLE"),
        (Network::Down, false, "UNAVAILABLE"),
        (Network::Good, true, "LOST"),
    ] {
        world.command(a, leased("x"));
        assert_eq!(world.reply(a), "held 1");
        if missing {
            world.redis.clear();
        }
        world.network = network;
        world.acquisitions.clear();
        world.command(a, leased("x"));
        world.pass(Duration::from_secs(5));
        assert_eq!(world.reply(a), expected);
        assert_eq!(world.acquisitions, ["error"], "{network:?}");
        world.network = Network::Good;
        world.unlock(a, "x");
        world.replies.clear();
    }
}

#[test]
fn a_pending_re_entry_of_a_hold_that_ends_is_counted_as_an_error() {
    let mut world = World::new();
    let a = world.open();
    let lease = Lease::new(Duration::from_secs(1));
    let lock = Command::Lock(LockRequest { lease, ..lock_command("x") });
    world.command(a, lock.clone());
    world.network = Network::Down;
    world.replies.clear();
    world.acquisitions.clear();
    world.command(a, lock);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(a), "LOST");
    assert_eq!(world.acquisitions, ["error"]);
}

#[test]
fn a_released_long_lease_is_released_again_on_a_server_with_older_data() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    for lock in ["released", "shortened", "abandoned"] {
        let session = if lock == "abandoned" { b } else { a };
        let lease = Lease::new(Duration::from_secs(600)).unwrap();
        let request = LockRequest { lease: Some(lease), ..lock_command(lock) };
        world.command(session, Command::Lock(request));
        assert_eq!(world.reply(session), "held 1");
    }
    let before = world.redis.clone();
    world.extend(a, "shortened", Lease::new(Duration::from_secs(1)));
    world.replies.clear();
    world.leave(a, "released");
    world.close(b);
    world.pass(Duration::from_secs(2));
    assert!(world.redis.is_empty(), "{:?}", world.redis);
    // A replica that has none of the releases takes over.
    world.redis = before;
    world.core.verify(world.now, Node::Main);
    world.pass(Duration::from_secs(1));
    assert!(world.redis.is_empty(), "{:?}", world.redis);
    assert!(world.core.is_idle());
}

#[test]
fn unavailable_quotes_the_error_of_a_cluster_that_is_down() {
    let mut world = World::new();
    let a = world.open();
    world.hold(a, "x");
    world.network = Network::Unserved;
    world.unlock(a, "x");
    world.pass(Duration::from_secs(3));
    let reply = world.replies_of(a).pop().unwrap();
    let Frame::Error(text) = &reply else { panic!("{reply:?}") };
    assert!(text.starts_with("UNAVAILABLE ") && text.contains("CLUSTERDOWN it is down"), "{text}");
    let refusal = world.core.redis_refusal().expect("the error concerns all locks");
    assert_eq!(refusal.error, "CLUSTERDOWN it is down");
}

#[test]
fn the_end_of_a_long_lease_is_repeated_on_a_server_with_older_data_after_a_hand_over() {
    let long = Lease::new(LEASE * 20);
    for (kind, lease, script) in [
        (Kind::Lock, None, "hand_over"),
        (Kind::Lock, Lease::new(LEASE), "hand_over"),
        (Kind::Fair, None, "hand_over_fair"),
    ] {
        let mut world = World::new();
        let (a, b) = (world.open(), world.open());
        world.command(a, Command::Lock(LockRequest { kind, lease: long, ..lock_command("x") }));
        world.command(b, Command::Lock(LockRequest { kind, lease, ..lock_command("x") }));
        let older = world.redis["x"].clone();
        world.unlock(a, "x");
        assert!(world.served.contains(&script), "{:?}", world.served);
        world.redis.insert("x".to_owned(), older);
        world.core.verify(world.now, Node::Main);
        world.work();
        assert_eq!(world.holders("x"), [""; 0], "{kind} {lease:?}");
    }
}
