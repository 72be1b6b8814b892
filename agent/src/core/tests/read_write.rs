//! Tests of readers and writers of one lock.

use std::time::Duration;

use redisson::script::MAX_READ_COUNT;
use redisson::{Kind, Lease};

use super::grace::NEXT;
use super::world::{FOREIGN, LEASE, Network, World, hold_command, lock_command, short};
use crate::core::Node;
use crate::protocol::command::{Command, HoldRequest, LockRequest, Wait};
use crate::types::ConnectionId;

const SLOW: Duration = Duration::from_millis(100);

#[test]
fn waiting_readers_acquire_together_once_the_first_of_them_has_the_lock() {
    let mut world = World::new();
    let writer = world.open();
    let readers: Vec<_> = (0..5).map(|_| world.open()).collect();
    world.lock_as(writer, "x", Kind::Write);
    for &reader in &readers {
        world.lock_as(reader, "x", Kind::Read);
    }
    assert_eq!(world.served, ["acquire_write"]);
    world.network = Network::Slow(10);
    world.unlock(writer, "x");
    // The release, the first reader's attempt, and all others at once.
    for _ in 0..3 {
        world.pass(Duration::from_millis(10));
    }
    for &reader in &readers {
        assert_eq!(world.reply(reader), "held 1");
    }
    assert_eq!(world.served.len(), 7);
}

#[test]
fn a_reader_beyond_the_highest_count_gets_limit_and_is_counted_as_denied() {
    let mut world = World::new();
    let reader = world.open();
    for _ in 0..=MAX_READ_COUNT {
        world.lock_as(reader, "x", Kind::Read);
    }
    let reply = world.replies_of(reader).pop();
    assert_eq!(reply.as_ref().map(short).as_deref(), Some("LIMIT"));
    assert_eq!(world.acquisitions.first(), Some(&"acquired"));
    assert_eq!(world.acquisitions.last(), Some(&"denied"));
}

#[test]
fn a_reader_with_a_fixed_lease_gets_it_back_when_another_reader_has_shortened_it() {
    let mut world = World::new();
    let reader = world.open();
    let lease = Lease::new(Duration::from_secs(600)).unwrap();
    let request = LockRequest { kind: Kind::Read, lease: Some(lease), ..lock_command("x") };
    world.command(reader, Command::Lock(request));
    assert_eq!(world.reply(reader), "held 1");
    world.redis.get_mut("x").unwrap().expires = Some(world.now + LEASE);
    world.pass(LEASE / 2);
    let left = world.redis["x"].expires.unwrap().since(world.now);
    assert!(left > Duration::from_secs(570), "{left:?}");
}

#[test]
fn a_reader_extends_its_lease_while_its_slot_moves_unless_its_markers_are_missing() {
    for (network, missing_markers, extends) in
        [(Network::Moves, false, true), (Network::Moves, true, false), (Network::Good, true, true)]
    {
        let mut world = World::new();
        let reader = world.open();
        world.lock_as(reader, "x", Kind::Read);
        world.replies.clear();
        (world.network, world.missing_markers) = (network, missing_markers);
        world.extend(reader, "x", Lease::new(LEASE * 2));
        let reply = world.reply(reader);
        assert_eq!(reply.parse::<u64>().is_ok(), extends, "{network:?}: {reply}");
        assert_eq!(world.missing_markers, network == Network::Moves && missing_markers);
    }
}

#[test]
fn a_reader_has_one_attempt_at_a_time() {
    let mut world = World::new();
    let (first, second, writer) = (world.open(), world.open(), world.open());
    world.lock_as(first, "x", Kind::Read);
    world.network = Network::Slow(100);
    world.lock_as(second, "x", Kind::Read);
    // It joins the first reader, which leaves Redis while the attempt is still in flight.
    world.network = Network::Slow(40);
    world.unlock(first, "x");
    world.pass(SLOW / 2);
    world.pass(SLOW);
    assert_eq!(world.reply(second), "held 1");
    world.network = Network::Good;
    world.pass(SLOW * 3);
    world.lock_as(writer, "x", Kind::Write);
    world.pass(SLOW * 3);
    assert!(world.has_no_reply(writer), "the second reader still has its hold in Redis");
    assert_eq!(world.served.iter().filter(|script| **script == "acquire_read").count(), 2);
    world.unlock(second, "x");
    assert_eq!(world.reply(writer), "held 1");
}

#[test]
fn a_writer_waits_until_redis_has_released_every_local_reader() {
    let mut world = World::new();
    let (one, two, writer) = (world.open(), world.open(), world.open());
    for reader in [one, two] {
        world.lock_as(reader, "x", Kind::Read);
    }
    world.lock_as(writer, "x", Kind::Write);
    world.network = Network::Slow(40);
    world.unlock(one, "x");
    world.network = Network::Slow(90);
    world.unlock(two, "x");
    world.pass(SLOW / 2);
    assert!(!world.served.contains(&"acquire_write"), "the release of a reader is in flight");
    world.pass(SLOW);
    world.pass(SLOW);
    assert_eq!(world.reply(writer), "held 1");
    assert_eq!(world.holders("x").len(), 2, "the writer and the mode");
}

#[test]
fn a_reader_whose_write_hold_is_lost_is_sent_the_loss_and_waits() {
    let mut world = World::new();
    let worker = world.open();
    world.hold_as(worker, "x", Kind::Write);
    world.foreign("x", &format!("{FOREIGN}:write"), LEASE);
    world.lock_as(worker, "x", Kind::Read);
    assert!(world.has_no_reply(worker));
    assert_eq!(world.core.holds(), 0);
    assert_eq!(world.core.waiters(), 1);
    world.foreign_release("x");
    assert_eq!(world.reply(worker), "held 1");
    assert_eq!(world.events(worker), ["lost x write stolen"]);
}

#[test]
fn a_writers_request_to_read_is_repeated_until_it_is_granted() {
    for network in [Network::Down, Network::LosesReplies, Network::Holds] {
        let mut world = World::new();
        let (worker, other) = (world.open(), world.open());
        world.lock_as(worker, "x", Kind::Write);
        world.lock_as(other, "x", Kind::Write);
        assert_eq!(world.reply(worker), "held 1");
        world.network = network;
        world.lock_as(worker, "x", Kind::Read);
        world.network = Network::Good;
        world.pass(Duration::from_secs(2));
        assert_eq!(world.reply(worker), "held 1", "{network:?}");
        assert!(world.has_no_reply(other));
        world.close(worker);
        world.pass(Duration::from_secs(2));
        assert_eq!(world.reply(other), "held 1", "{network:?}");
        world.deliver_late();
        assert_eq!(world.holders("x").iter().filter(|field| field.ends_with(":write")).count(), 1);
    }
}

#[test]
fn a_writers_request_to_read_is_repeated_if_its_grant_arrives_too_late() {
    let mut world = World::new();
    let worker = world.open();
    world.hold_as(worker, "x", Kind::Write);
    world.network = Network::Slow(1500);
    let lease = Lease::new(SLOW);
    let read = LockRequest { kind: Kind::Read, lease, ..lock_command("x") };
    world.command(worker, Command::Lock(read));
    world.pass(Duration::from_secs(1));
    world.network = Network::Good;
    world.pass(Duration::from_millis(510));
    assert_eq!(world.reply(worker), "held 1");
    assert_eq!(world.core.holds(), 2);
}

#[test]
fn the_entries_of_a_restored_reader_keep_their_leases() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    for seconds in [10, 60] {
        let lease = Lease::new(Duration::from_secs(seconds));
        let read = LockRequest { kind: Kind::Read, lease, ..lock_command("x") };
        world.command(a, Command::Lock(read));
    }
    world.kill_and_restart(Duration::from_secs(1));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert_eq!(world.resumed(b).1, ["x read 2"]);
    world.unlock(b, "x");
    assert_eq!(world.reply(b), "1");
    world.pass(Duration::from_secs(10));
    assert_eq!(world.events(b), ["lost x read expired"]);
    assert!(world.holders("x").is_empty());
}

#[test]
fn a_reader_that_does_not_wait_gets_the_error_that_keeps_it_from_the_readers() {
    let mut world = World::new();
    let (first, second, third) = (world.open(), world.open(), world.open());
    world.lock_as(first, "x", Kind::Read);
    world.network = Network::Down;
    let read = |wait| Command::Lock(LockRequest { kind: Kind::Read, wait, ..lock_command("x") });
    world.command(second, read(Wait::AtMost(Duration::from_secs(60))));
    world.pass(SLOW * 4);
    world.command(third, read(Wait::AtMost(Duration::ZERO)));
    world.pass(SLOW);
    assert_eq!(world.reply(third), "UNAVAILABLE");
}

#[test]
fn a_writer_behind_local_readers_times_out_despite_the_earlier_error_of_a_reader() {
    let mut world = World::new();
    let (first, second, writer) = (world.open(), world.open(), world.open());
    world.lock_as(first, "x", Kind::Read);
    world.network = Network::Down;
    let within = |kind, ms| {
        let wait = Wait::AtMost(Duration::from_millis(ms));
        Command::Lock(LockRequest { kind, wait, ..lock_command("x") })
    };
    world.command(second, within(Kind::Read, 300));
    world.pass(SLOW * 4);
    assert_eq!(world.reply(second), "UNAVAILABLE");
    world.network = Network::Good;
    world.command(writer, within(Kind::Write, 2_000));
    world.pass(SLOW * 21);
    assert_eq!(world.reply(writer), "null");
}

#[test]
fn a_reader_behind_a_waiting_writer_does_not_get_the_error_of_one_that_left() {
    for network in [Network::Down, Network::Slow(5_000)] {
        let mut world = World::new();
        let [first, second, writer, third] = [(); 4].map(|()| world.open());
        world.lock_as(first, "x", Kind::Read);
        world.network = network;
        let within = |kind, ms| {
            let wait = Wait::AtMost(Duration::from_millis(ms));
            Command::Lock(LockRequest { kind, wait, ..lock_command("x") })
        };
        world.command(second, within(Kind::Read, 300));
        world.pass(SLOW * 4);
        assert_eq!(world.reply(second), "UNAVAILABLE");
        world.network = Network::Good;
        world.pass(SLOW * 20);
        world.lock_as(writer, "x", Kind::Write);
        world.command(third, within(Kind::Read, 0));
        assert_eq!(world.reply(third), "null", "{network:?}");
    }
}

/// Lets a session write and read. Returns the field of the write hold.
fn write_and_read(world: &mut World, id: ConnectionId, read_lease: Option<Lease>) -> String {
    world.lock_as(id, "x", Kind::Write);
    let writer = world.holders("x").into_iter().find(|field| field != "mode").unwrap();
    let request = LockRequest { kind: Kind::Read, lease: read_lease, ..lock_command("x") };
    world.command(id, Command::Lock(request));
    writer
}

/// The renewals of the read hold would keep the field of the write hold in Redis.
#[test]
fn a_write_hold_that_ended_before_a_failover_is_removed_again_while_its_owner_reads() {
    let mut world = World::new();
    let id = world.open();
    let writer = write_and_read(&mut world, id, None);
    let before = world.redis["x"].clone();
    let request = HoldRequest { kind: Some(Kind::Write), ..hold_command("x") };
    world.command(id, Command::Unlock(request));
    assert!(!world.holders("x").contains(&writer));
    world.redis.insert("x".to_owned(), before);
    world.core.verify(world.now, Node::Main);
    world.work();
    assert!(!world.holders("x").contains(&writer));
    assert_eq!(world.holders("x").len(), 2, "the mode and the read hold stay");
}

#[test]
fn a_write_hold_is_removed_after_a_long_outage_if_its_owner_still_reads() {
    let mut world = World::new();
    let id = world.open();
    let writer = write_and_read(&mut world, id, Lease::new(Duration::from_secs(3_600)));
    world.network = Network::Down;
    world.pass(LEASE * 4);
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert!(!world.holders("x").contains(&writer));
    assert_eq!(world.holders("x").len(), 2, "the mode and the read hold stay");
}

/// Lets the lease of a read hold stay with the key of its owner's write hold, which ends in a long outage.
fn leave_read_lease(read: impl Fn(&mut World, ConnectionId)) {
    let mut world = World::new();
    let id = world.open();
    world.lock_as(id, "x", Kind::Write);
    assert_eq!(world.reply(id), "held 1");
    read(&mut world, id);
    world.network = Network::Down;
    world.command(id, unlock(Kind::Write));
    world.pass(LEASE * 4);
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert!(world.holders("x").is_empty(), "{:?}", world.holders("x"));
}

fn hold_of(kind: Kind) -> HoldRequest {
    HoldRequest { kind: Some(kind), ..hold_command("x") }
}

fn unlock(kind: Kind) -> Command {
    Command::Unlock(hold_of(kind))
}

fn read_for(lease: Duration) -> LockRequest {
    LockRequest { kind: Kind::Read, lease: Lease::new(lease), ..lock_command("x") }
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_write_hold_is_removed_after_a_long_outage_if_its_owner_has_read() {
    leave_read_lease(|world, id| {
        world.command(id, Command::Lock(read_for(HOUR)));
        world.command(id, unlock(Kind::Read));
    });
    leave_read_lease(|world, id| {
        world.command(id, Command::Lock(read_for(HOUR)));
        world.network = Network::Down;
        world.command(id, unlock(Kind::Read));
    });
    leave_read_lease(|world, id| {
        world.command(id, Command::Lock(read_for(LEASE)));
        world.command(id, Command::Extend(hold_of(Kind::Read), Lease::new(HOUR)));
        world.command(id, unlock(Kind::Read));
    });
    leave_read_lease(|world, id| {
        world.network = Network::Slow(5_000);
        let wait = Wait::AtMost(SLOW);
        world.command(id, Command::Lock(LockRequest { wait, ..read_for(HOUR) }));
        world.pass(SLOW * 40);
        assert_eq!(world.reply(id), "UNAVAILABLE");
    });
}

#[test]
fn a_write_hold_that_expired_before_a_failover_is_removed_again_if_its_owner_has_read() {
    let mut world = World::new();
    let id = world.open();
    let write = LockRequest { kind: Kind::Write, ..read_for(LEASE * 2) };
    world.command(id, Command::Lock(write));
    world.command(id, Command::Lock(read_for(HOUR)));
    world.command(id, unlock(Kind::Read));
    let before = world.redis["x"].clone();
    world.pass(LEASE * 3);
    assert!(world.holders("x").is_empty(), "{:?}", world.holders("x"));
    world.redis.insert("x".to_owned(), before);
    world.core.verify(world.now, Node::Main);
    world.work();
    assert!(world.holders("x").is_empty());
}

#[test]
fn a_write_hold_that_ended_before_a_failover_is_removed_again_if_its_owner_has_read() {
    let mut world = World::new();
    let id = world.open();
    write_and_read(&mut world, id, Lease::new(Duration::from_secs(3_600)));
    for kind in [Kind::Read, Kind::Write] {
        let before = world.redis["x"].clone();
        let request = HoldRequest { kind: Some(kind), ..hold_command("x") };
        world.command(id, Command::Unlock(request));
        if kind == Kind::Write {
            assert!(world.holders("x").is_empty());
            world.redis.insert("x".to_owned(), before);
        }
    }
    world.core.verify(world.now, Node::Main);
    world.work();
    assert!(world.holders("x").is_empty());
}
