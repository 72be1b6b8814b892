//! Tests of replies to workers and scripts to Redis that wait for the journal.

use std::time::Duration;

use redisson::Lease;

use super::grace::{GRACE, NEXT};
use super::world::{Disk, Network, World, lock_command, short};
use crate::protocol::command::{Command, LockRequest};
use crate::protocol::resp::Frame;

#[test]
fn a_grant_to_a_session_with_grace_is_sent_after_the_journal_has_it() {
    let mut world = World::new();
    let (a, _) = world.graced();
    let other = world.open();
    world.disk = Disk::Slow;
    world.lock(a, "x");
    assert!(world.has_no_reply(a));
    world.lock(other, "y");
    assert_eq!(world.reply(other), "held 1", "sessions without grace do not wait for a disk");
    world.pass(Duration::from_secs(3));
    assert_eq!(world.holders("x").len(), 1, "the hold is renewed meanwhile");
    world.disk_answers(Disk::Good);
    assert_eq!(world.reply(a), "held 1");
}

#[test]
fn a_release_is_sent_to_redis_after_the_journal_has_it() {
    for waits in [false, true] {
        let mut world = World::new();
        let (a, ticket) = world.graced();
        let next = world.open();
        world.lock(a, "x");
        if waits {
            world.lock(next, "x");
        }
        let held = world.holders("x");
        world.replies.clear();
        world.disk = Disk::Slow;
        world.unlock(a, "x");
        assert_eq!(world.holders("x"), held, "a successor would find it in the journal");
        // The agent crashes at that moment.
        world.disk = Disk::Good;
        world.kill_and_restart(Duration::from_secs(1));
        let b = world.open_as(0, NEXT);
        world.resume(b, &ticket);
        let (_, holds) = world.resumed(b);
        assert_eq!(holds, ["x lock 1"], "the hold is as before");
        assert!(world.events(b).is_empty(), "nothing is lost");
    }
}

#[test]
fn a_number_in_a_hand_over_stays_in_the_journal_although_its_waiter_leaves() {
    for lost in [false, true] {
        let mut world = World::new();
        let a = world.open();
        let (b, _) = world.graced();
        world.lock(a, "x");
        world.lock(b, "x");
        if lost {
            world.redis.clear();
        }
        world.network = Network::Slow(500);
        world.unlock(a, "x");
        world.close(b);
        if lost {
            world.pass(Duration::from_secs(1));
            assert!(world.past.orphans.is_empty(), "it is not in Redis: {:?}", world.past.orphans);
            continue;
        }
        assert_eq!(world.holders("x").len(), 1, "Redis has it");
        world.network = Network::Good;
        world.kill_and_restart(Duration::from_secs(1));
        assert!(world.holders("x").is_empty(), "the next agent removes it");
    }
}

#[test]
fn a_release_reaches_redis_although_the_disk_hangs() {
    let mut world = World::new();
    let (a, _) = world.graced();
    let next = world.open();
    world.lock(a, "x");
    world.lock(a, "y");
    world.replies.clear();
    world.disk = Disk::Slow;
    world.unlock(a, "x");
    world.disk_answers(Disk::Good);
    assert_eq!(world.reply(a), "0", "the journal has the release");
    assert!(world.holders("x").is_empty());
    world.disk = Disk::Slow;
    world.unlock(a, "y");
    world.lock(next, "y");
    assert!(world.has_no_reply(next));
    world.pass(Duration::from_millis(300));
    assert_eq!(
        world.reply(next),
        "held 1",
        "the lock is released although the disk has not answered"
    );
    world.disk_answers(Disk::Good);
    assert_eq!(world.holders("y").len(), 1);
}

#[test]
fn a_grant_that_cannot_be_journalled_is_undone() {
    let mut world = World::new();
    let (a, _) = world.graced();
    world.lock(a, "kept");
    world.replies.clear();
    world.disk = Disk::Slow;
    world.lock(a, "x");
    world.acquisitions.clear();
    world.disk_answers(Disk::Full);
    assert_eq!(world.reply(a), "UNAVAILABLE");
    assert!(world.holders("x").is_empty());
    world.lock(a, "kept");
    assert_eq!(world.reply(a), "UNAVAILABLE", "not even a reentry");
    assert_eq!(world.acquisitions, ["error", "error"], "each attempt is counted by its reply");
    world.unlock(a, "kept");
    assert_eq!(world.reply(a), "0", "a release needs no record");
    let b = world.open();
    let refused = world.ask_grace(b, GRACE);
    assert_eq!(short(&refused), "UNAVAILABLE");
    world.hold(b, "x");
    world.close(b);
    assert!(world.holders("x").is_empty(), "its session has no grace");
    world.disk = Disk::Good;
    world.hold(a, "x");
}

#[test]
fn a_lease_that_cannot_be_journalled_is_refused_and_taken_back() {
    let lease = |seconds| Lease::new(Duration::from_secs(seconds));
    for fixed in [lease(10), None] {
        let mut world = World::new();
        let (a, ticket) = world.graced();
        world.command(a, Command::Lock(LockRequest { lease: fixed, ..lock_command("x") }));
        world.replies.clear();
        let keeping = |world: &World| {
            let hold = world.core.leases.iter().next().expect("it is held");
            (hold.mode, hold.valid_until)
        };
        let before = keeping(&world);
        world.disk = Disk::Slow;
        // Both wait for the journal.
        for longer in [lease(600), None] {
            world.extend(a, "x", longer);
        }
        assert!(world.has_no_reply(a));
        world.disk_answers(Disk::Full);
        let replies: Vec<_> = world.replies_of(a).iter().map(short).collect();
        assert_eq!(replies, ["UNAVAILABLE", "UNAVAILABLE"]);
        assert_eq!(keeping(&world), before, "the next agent would end it then");
        world.kill_and_restart(Duration::from_secs(1));
        let b = world.open_as(0, NEXT);
        world.resume(b, &ticket);
        assert_eq!(world.resumed(b).1, ["x lock 1"]);
        assert_eq!(keeping(&world).0, before.0);
    }
}

#[test]
fn a_session_keeps_its_grace_if_another_one_cannot_be_journalled() {
    for disconnects_first in [true, false] {
        let mut world = World::new();
        let (a, ticket) = world.graced();
        world.lock(a, "x");
        world.replies.clear();
        world.disk = Disk::Slow;
        for factor in 2..4 {
            let grace = Some(GRACE * factor);
            let command = Command::Session { grace, push: None, deadlines: None, process: None };
            world.command(a, command);
        }
        if disconnects_first {
            world.close(a);
        }
        world.disk_answers(Disk::Full);
        if !disconnects_first {
            let replies: Vec<_> = world.replies_of(a).iter().map(short).collect();
            assert_eq!(replies, ["UNAVAILABLE", "UNAVAILABLE"]);
            world.close(a);
        }
        world.pass(GRACE / 2);
        let b = world.open_as(0, NEXT);
        world.resume(b, &ticket);
        assert_eq!(world.resumed(b).1, ["x lock 1"]);
        world.close(b);
        world.pass(GRACE + Duration::from_millis(1));
        assert!(world.holders("x").is_empty(), "the refused one is longer");
    }
}

#[test]
fn a_number_in_the_journal_is_not_granted_to_a_session_without_grace() {
    let mut world = World::new();
    let (a, _) = world.graced();
    let b = world.open();
    world.network = Network::Slow(500);
    world.lock(a, "x");
    assert_eq!(world.past.orphans.len(), 1);
    world.lock(b, "x");
    // Redis has granted the lock to a waiter that leaves. From now on the disk hangs.
    world.close(a);
    world.disk = Disk::Slow;
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(b), "held 1");
    world.disk = Disk::Good;
    world.kill_and_restart(Duration::from_secs(1));
    assert_eq!(world.holders("x").len(), 1, "its worker relies on it for the rest of its lease");
}

#[test]
fn the_old_secret_stays_valid_if_the_new_one_cannot_be_journalled() {
    let mut world = World::new();
    let (a, mut ticket) = world.graced();
    world.lock(a, "x");
    world.disk = Disk::Full;
    for secret in [NEXT, [3; 16], [4; 16]] {
        world.kill_and_restart(Duration::from_secs(1));
        let b = world.open_as(0, secret);
        world.resume(b, &ticket);
        let (new, holds) = world.resumed(b);
        assert_eq!(holds, ["x lock 1"]);
        // Another command shows that the worker has received the reply.
        world.command(b, Command::Holds);
        ticket = new;
    }
    world.disk = Disk::Good;
    world.kill_and_restart(Duration::from_secs(1));
    let b = world.open_as(0, [5; 16]);
    world.resume(b, &ticket);
    let (new, holds) = world.resumed(b);
    assert_eq!(holds, ["x lock 1"]);
    assert_ne!(new, ticket, "it can be recorded again");
}

#[test]
fn a_session_that_disconnects_before_its_grace_is_refused_ends() {
    for delay in [Duration::ZERO, Duration::from_secs(100)] {
        let mut world = World::new();
        world.core.settings.lock_delay = delay;
        let (a, next) = (world.open(), world.open());
        world.lock(a, "x");
        world.lock(next, "x");
        world.disk = Disk::Slow;
        world.command(
            a,
            Command::Session { grace: Some(GRACE), push: None, deadlines: None, process: None },
        );
        world.close(a);
        assert_eq!(world.core.gauges().away_sessions, 1);
        world.pass(Duration::from_secs(1));
        world.disk_answers(Disk::Full);
        let gauges = world.core.gauges();
        assert_eq!((gauges.sessions, gauges.away_sessions), (1, 0));
        if !delay.is_zero() {
            assert_eq!(gauges.delayed_holds, 1);
            world.pass(Duration::from_millis(98_900));
            assert!(world.has_no_reply(next), "the delay counts from the end of the connection");
            world.pass(Duration::from_millis(200));
        }
        // After a release in Redis the next waiter lets waiters of other agents try first.
        world.pass(Duration::from_millis(10));
        assert_eq!(world.reply(next), "held 1");
        world.unlock(next, "x");
        world.close(next);
        assert!(world.holders("x").is_empty());
        assert!(world.core.sessions.is_empty() && world.core.is_idle());
        assert_eq!(world.core.next_deadline(), None, "no timer is left");
    }
}

#[test]
fn grace_is_bounded_and_needs_a_journal() {
    let mut world = World::new();
    let a = world.open();
    let refused = world.ask_grace(a, Duration::from_secs(601));
    assert_eq!(short(&refused), "LIMIT");
    for _ in 0..100 {
        world.graced();
    }
    let refused = world.ask_grace(a, GRACE);
    assert_eq!(short(&refused), "LIMIT", "a hundred sessions have grace");
    let mut world = World::new();
    world.core.without_journal("nowhere to write".to_owned());
    let a = world.open();
    let Frame::Error(refused) = world.ask_grace(a, GRACE) else { panic!() };
    assert!(
        refused.starts_with("UNAVAILABLE") && refused.contains("nowhere to write"),
        "{refused}"
    );
}

#[test]
fn a_rewritten_journal_restores_the_same_state_as_the_records_before_it() {
    let mut world = World::new();
    let (a, _) = world.graced();
    let (b, _) = world.graced();
    for lock in ["x", "y", "z"] {
        world.lock(a, lock);
    }
    world.lock(b, "x");
    world.unlock(a, "y");
    world.close(a);
    let mut rewritten = crate::journal::Restored::default();
    world.core.journal_records().into_iter().for_each(|record| rewritten.add(record));
    assert_eq!(rewritten.sessions, world.past.sessions);
    assert_eq!(rewritten.orphans, world.past.orphans);
    assert_eq!(rewritten.orphans.len(), 1, "the wait");
}

#[test]
fn a_lease_that_was_made_shorter_ends_in_redis_too_after_a_restart() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let lease = |seconds| Lease::new(Duration::from_secs(seconds));
    let long = LockRequest { lease: lease(3600), ..lock_command("x") };
    world.command(a, Command::Lock(long));
    world.extend(a, "x", lease(10));
    world.kill_and_restart(Duration::from_secs(1));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert_eq!(world.resumed(b).1, ["x lock 1"]);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.events(b), ["lost x lock expired"]);
    assert!(world.holders("x").is_empty());
}

#[test]
fn resume_reports_a_grant_only_after_the_journal_has_it() {
    for (disk, held) in [(Disk::Good, vec!["x lock 1"]), (Disk::Full, vec![])] {
        let mut world = World::new();
        let (a, ticket) = world.graced();
        world.disk = Disk::Slow;
        world.lock(a, "x");
        world.close(a);
        let b = world.open_as(0, NEXT);
        world.resume(b, &ticket);
        assert!(world.has_no_reply(b));
        world.disk_answers(disk);
        world.disk_answers(Disk::Good);
        assert_eq!(world.resumed(b).1, held, "{disk:?}");
        assert_eq!(world.holders("x").len(), held.len(), "{disk:?}");
    }
}
