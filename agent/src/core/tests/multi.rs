//! Tests of MLOCK and MUNLOCK: all or none.

use std::time::Duration;

use redisson::{Kind, Lease};

use super::world::{FOREIGN, LEASE, Network, World, hold_command, lock_command, name, short};
use crate::policy::Policy;
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::types::ConnectionId;

/// Longer than an MLOCK of two waits while it holds one of them.
const LONG: Duration = Duration::from_millis(3100);

fn mlock(world: &mut World, id: ConnectionId, names: &str) {
    mlock_as(world, id, names, &lock_command("x"));
}

fn mlock_as(world: &mut World, id: ConnectionId, names: &str, like: &LockRequest) {
    let each = names.split(' ').map(|lock| LockRequest { name: name(lock), ..like.clone() });
    let requests = each.collect();
    world.command(id, Command::LockAll(requests));
}

fn within(ms: u64) -> LockRequest {
    LockRequest { wait: Wait::AtMost(Duration::from_millis(ms)), ..lock_command("x") }
}

fn munlock(world: &mut World, id: ConnectionId, names: &str) {
    world.command(id, Command::UnlockAll(names.split(' ').map(hold_command).collect()));
}

fn cancel(world: &mut World, by: ConnectionId, whose: ConnectionId) -> String {
    let (session, secret) = world.credentials(whose);
    world.command(by, Command::Cancel { session, secret, owner: 0 });
    world.reply(by)
}

/// Checks that nothing is left in Redis or in the agent.
fn assert_clean(world: &mut World) {
    assert!(world.redis.is_empty(), "{:?}", world.redis);
    assert!(world.core.is_idle() && world.core.locks.is_empty() && world.listening.is_empty());
    assert_eq!(world.core.next_deadline(), None);
}

#[test]
fn mlock_acquires_all_locks_and_munlock_releases_them() {
    let mut world = World::new();
    let a = world.open();
    mlock(&mut world, a, "y x z");
    assert_eq!(world.reply(a), "held 1 held 1 held 1");
    for lock in ["x", "y", "z"] {
        assert_eq!(world.holders(lock).len(), 1);
    }
    munlock(&mut world, a, "x y z");
    assert_eq!(world.reply(a), "0 0 0");
    assert_clean(&mut world);
}

#[test]
fn mlock_re_enters_locks_that_its_owner_holds_already() {
    let mut world = World::new();
    let a = world.open();
    world.hold(a, "y");
    mlock(&mut world, a, "x y");
    assert_eq!(world.reply(a), "held 1 held 2", "in the order of the command");
    munlock(&mut world, a, "y x");
    assert_eq!(world.reply(a), "1 0");
    // Holds from before a failed MLOCK remain.
    world.foreign("z", FOREIGN, LEASE);
    mlock_as(&mut world, a, "y z", &within(0));
    assert_eq!(world.reply(a), "null");
    world.leave(a, "y");
    world.foreign_release("z");
    assert_clean(&mut world);
}

#[test]
fn mlock_replies_null_only_after_its_locks_are_released() {
    let mut world = World::new();
    let a = world.open();
    world.foreign("y", FOREIGN, LEASE);
    mlock_as(&mut world, a, "x y", &within(500));
    assert_eq!(world.holders("x").len(), 1);
    assert!(world.has_no_reply(a));
    // The release of x is in flight for a while.
    world.network = Network::Slow(300);
    world.pass(Duration::from_millis(600));
    assert!(world.has_no_reply(a), "the release of x is not answered yet");
    world.pass(Duration::from_millis(300));
    assert_eq!(world.reply(a), "null");
    assert!(world.holders("x").is_empty());
    world.network = Network::Good;
    world.foreign_release("y");
    assert_clean(&mut world);
}

#[test]
fn mlock_without_a_wait_replies_null_at_once_and_holds_nothing() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.hold(b, "y");
    mlock_as(&mut world, a, "x y z", &within(0));
    assert_eq!(world.reply(a), "null");
    assert!(world.holders("x").is_empty() && world.holders("z").is_empty());
    world.leave(b, "y");
    assert_clean(&mut world);
}

#[test]
fn mlock_releases_its_locks_during_a_long_wait_and_keeps_its_position() {
    let mut world = World::new();
    let (a, b, c) = (world.open(), world.open(), world.open());
    world.hold(b, "y");
    mlock(&mut world, a, "x y");
    world.pass(Duration::from_millis(2200));
    assert_eq!(world.holders("x").len(), 1, "it still holds x while it waits for y");
    world.lock(c, "y");
    world.pass(LONG);
    assert!(world.holders("x").is_empty(), "it releases x during a long wait");
    assert!(world.has_no_reply(a));
    world.leave(b, "y");
    world.pass(Duration::from_millis(100));
    assert_eq!(world.reply(a), "held 1 held 1", "it has kept its position before the later waiter");
    assert!(world.has_no_reply(c));
    munlock(&mut world, a, "x y");
    assert_eq!(world.reply(a), "0 0");
    assert_eq!(world.reply(c), "held 1");
    world.close(c);
    assert_clean(&mut world);
}

#[test]
fn mlock_yields_to_a_session_that_acquires_in_the_opposite_order() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    // b has acquired them in the other order, as a foreign client would.
    world.hold(b, "y");
    mlock(&mut world, a, "x y");
    world.lock(b, "x");
    assert!(world.has_no_reply(b), "no deadlock, since the MLOCK will release x");
    world.pass(LONG);
    assert_eq!(world.reply(b), "held 1");
    munlock(&mut world, b, "y x");
    assert_eq!(world.reply(b), "0 0");
    world.pass(LONG);
    assert_eq!(world.reply(a), "held 1 held 1");
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn mlocks_with_overlapping_lists_are_all_granted() {
    let mut world = World::new();
    let lists = ["a b c", "c b a", "b d", "d a", "c d b a"];
    let all: Vec<_> = lists.iter().map(|list| (world.open(), *list)).collect();
    for (id, list) in &all {
        mlock(&mut world, *id, list);
    }
    let mut waiting = all;
    for _ in 0..200 {
        waiting.retain(|(id, list)| {
            let done = !world.has_no_reply(*id);
            if done {
                munlock(&mut world, *id, list);
            }
            !done
        });
        world.pass(Duration::from_millis(100));
    }
    assert!(waiting.is_empty(), "{waiting:?}");
    assert_clean(&mut world);
}

#[test]
fn mlock_reports_a_deadlock_through_a_lock_held_before() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "y");
    assert_eq!((world.reply(a), world.reply(b)), ("held 1".to_owned(), "held 1".to_owned()));
    world.lock(b, "x");
    // a will not release x while it waits for y.
    world.served.clear();
    mlock(&mut world, a, "w y");
    assert_eq!(world.reply(a), "DEADLOCK");
    assert!(world.served.is_empty(), "it is rejected before it acquires any lock");
    mlock_as(&mut world, a, "w y", &within(300));
    world.pass(Duration::from_millis(400));
    assert_eq!(world.reply(a), "null");
    world.unlock(a, "x");
    assert_eq!((world.reply(a), world.reply(b)), ("0".to_owned(), "held 1".to_owned()));
    // In the opposite case the MLOCK waits first.
    mlock(&mut world, a, "v x");
    assert!(world.has_no_reply(a));
    world.close(b);
    assert_eq!(world.reply(a), "held 1 held 1");
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn a_lock_is_rejected_if_it_closes_a_deadlock_with_a_waiting_mlock() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "y");
    world.replies_of(a);
    world.replies_of(b);
    mlock(&mut world, a, "w y");
    world.lock(b, "x");
    assert_eq!(world.reply(b), "DEADLOCK");
    // w will be released, so others may wait for it.
    world.lock(b, "w");
    assert!(world.has_no_reply(b));
    world.pass(LONG);
    assert_eq!(world.reply(b), "held 1");
    world.close(b);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.reply(a), "held 1 held 1");
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn cancel_ends_a_waiting_mlock_and_releases_its_locks() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.foreign("y", FOREIGN, LEASE);
    mlock(&mut world, a, "x y");
    assert_eq!(cancel(&mut world, b, a), "1");
    assert_eq!(world.reply(a), "null");
    assert!(world.holders("x").is_empty());
    assert_eq!(cancel(&mut world, b, a), "0");
    world.foreign_release("y");
    assert_clean(&mut world);
}

#[test]
fn a_session_that_ends_during_an_mlock_leaves_nothing() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.foreign("y", FOREIGN, LEASE);
    mlock(&mut world, a, "x y z");
    mlock(&mut world, b, "x z");
    world.close(a);
    assert_eq!(world.reply(b), "held 1 held 1");
    world.close(b);
    world.foreign_release("y");
    world.pass(LONG);
    assert_clean(&mut world);
}

#[test]
fn mlock_reports_an_impossible_lock_before_it_acquires_any() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.hold_as(b, "z", Kind::Fair);
    world.served.clear();
    mlock(&mut world, a, "x y z");
    assert_eq!(world.reply(a), "WRONGKIND");
    assert!(world.served.is_empty());
    world.close(b);
    assert_clean(&mut world);
}

#[test]
fn mlock_acquires_fair_read_and_write_locks() {
    for kind in [Kind::Fair, Kind::Read, Kind::Write] {
        let mut world = World::new();
        let (a, b) = (world.open(), world.open());
        mlock_as(&mut world, a, "x y", &LockRequest { kind, ..lock_command("x") });
        assert_eq!(world.reply(a), "held 1 held 1");
        mlock_as(&mut world, b, "y x", &LockRequest { kind, ..lock_command("x") });
        if kind != Kind::Read {
            assert!(world.has_no_reply(b));
            world.close(a);
        }
        assert_eq!(world.reply(b), "held 1 held 1", "{kind}");
        world.close(a);
        world.close(b);
        assert!(world.redis.is_empty() && world.core.is_idle(), "{kind}");
    }
}

#[test]
fn the_lease_of_an_mlock_begins_when_it_has_all_locks() {
    let mut world = World::new();
    let a = world.open();
    world.foreign("y", FOREIGN, LEASE);
    let lease = Lease::new(Duration::from_secs(5));
    mlock_as(&mut world, a, "x y", &LockRequest { lease, ..lock_command("x") });
    world.pass(Duration::from_secs(2));
    world.foreign_release("y");
    assert_eq!(world.reply(a), "held 1 held 1");
    world.pass(Duration::from_secs(4));
    assert!(world.events(a).is_empty(), "no lease ends early");
    world.pass(Duration::from_secs(2));
    assert_eq!(world.events(a).len(), 2, "both leases have ended");
    world.foreign_release("y");
    world.pass(LEASE);
    assert_clean(&mut world);
}

#[test]
fn mlock_with_a_shorter_lease_does_not_shorten_that_of_a_lock_held_before() {
    for kind in [Kind::Lock, Kind::Fair, Kind::Read, Kind::Write] {
        let mut world = World::new();
        let a = world.open();
        let within = |seconds| {
            let lease = Lease::new(Duration::from_secs(seconds));
            LockRequest { lease, kind, ..lock_command("x") }
        };
        world.command(a, Command::Lock(within(60)));
        assert_eq!(world.reply(a), "held 1");
        mlock_as(&mut world, a, "x y", &within(5));
        assert_eq!(world.reply(a), "held 2 held 1");
        world.pass(Duration::from_secs(10));
        assert_eq!(world.events(a), [format!("lost y {kind} expired")]);
        world.unlock(a, "x");
        assert_eq!(world.reply(a), "1");
        world.pass(Duration::from_secs(45));
        assert!(world.events(a).is_empty(), "{kind}");
    }
}

#[test]
fn mlock_acquires_a_lock_again_that_is_lost_before_the_grant() {
    let mut world = World::new();
    let a = world.open();
    world.foreign("y", FOREIGN, Duration::from_secs(60));
    mlock(&mut world, a, "x y");
    world.redis.remove("x");
    world.core.verify(world.now, crate::core::Node::Main);
    world.work();
    assert!(world.has_no_reply(a));
    world.foreign_release("y");
    assert_eq!(world.reply(a), "held 1 held 1");
    assert_eq!(world.holders("x").len(), 1);
    assert!(world.events(a).is_empty(), "the loss happened before the grant");
    world.close(a);
    assert_clean(&mut world);
}

/// Lets an MLOCK wait for its last member for longer than a lease. Its session receives events of renewals.
fn waiting_for_the_last_one(world: &mut World) -> ConnectionId {
    let a = world.open();
    let (push, deadlines, grace) = (None, Some(true), None);
    world.command(a, Command::Session { grace, push, deadlines, process: None });
    world.replies_of(a);
    let all: Vec<_> = (0..40).map(|member| format!("x{member}")).collect();
    mlock(world, a, &format!("{} z", all.join(" ")));
    a
}

#[test]
fn mlock_reports_no_events_of_its_locks_before_the_grant() {
    let mut world = World::new();
    world.foreign("z", FOREIGN, LEASE * 10);
    let (b, a) = (world.open(), waiting_for_the_last_one(&mut world));
    world.pass(LEASE / 2);
    assert!(world.served.contains(&"keep"), "the members are renewed");
    assert!(world.events_of(b, a).is_empty());
    // The members are in jeopardy, and then safe again.
    world.network = Network::Down;
    world.pass(LEASE * 3 / 4);
    assert_eq!(world.core.leases.in_jeopardy(), 40);
    world.network = Network::Good;
    world.pass(Duration::from_secs(3));
    assert_eq!(world.core.leases.in_jeopardy(), 0);
    assert!(world.events_of(b, a).is_empty() && world.has_no_reply(a));
    world.foreign_release("z");
    assert_eq!(world.reply(a), ["held 1"; 41].join(" "));
    world.pass(LEASE / 2);
    assert!(world.events_of(b, a).iter().any(|event| event.starts_with("valid x0 lock")));
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn mlock_reports_locks_in_jeopardy_when_they_are_granted() {
    let mut world = World::new();
    let (b, c) = (world.open(), world.open());
    let lease = Lease::new(LEASE * 10);
    world.command(b, Command::Lock(LockRequest { lease, ..lock_command("z") }));
    assert_eq!(world.reply(b), "held 1");
    let a = waiting_for_the_last_one(&mut world);
    world.network = Network::Down;
    world.pass(LEASE * 3 / 4);
    assert!(world.events_of(c, a).is_empty());
    // The grant arrives before some of them are renewed.
    world.network = Network::Good;
    world.unlock(b, "z");
    let mut replies = world.replies_of(a);
    while replies.is_empty() {
        world.pass(Duration::from_millis(1));
        replies = world.replies_of(a);
    }
    assert_eq!(short(&replies[0]), ["held 1"; 41].join(" "));
    let events = world.events_of(c, a);
    assert!(!events.is_empty() && events.len() == world.core.leases.in_jeopardy(), "{events:?}");
    assert!(events.iter().all(|event| event.starts_with("jeopardy x")), "{events:?}");
    world.pass(Duration::from_secs(3));
    let later = world.events_of(c, a);
    assert_eq!(later.iter().filter(|event| event.starts_with("safe x")).count(), events.len());
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn a_lock_held_before_a_waiting_mlock_still_reports_jeopardy() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.hold(a, "x0");
    world.foreign("y", FOREIGN, LEASE * 10);
    mlock(&mut world, a, "x0 y");
    world.network = Network::Down;
    world.pass(LEASE * 3 / 4);
    let events = world.events_of(b, a);
    assert!(events[0].starts_with("jeopardy x0 lock"), "{events:?}");
}

#[test]
fn mlock_replies_lost_if_a_lock_held_before_is_lost_during_its_wait() {
    let mut world = World::new();
    let a = world.open();
    world.hold(a, "x");
    world.foreign("y", FOREIGN, Duration::from_secs(60));
    mlock(&mut world, a, "x y");
    world.redis.remove("x");
    world.core.verify(world.now, crate::core::Node::Main);
    world.work();
    world.foreign_release("y");
    assert_eq!(world.reply(a), "LOST");
    assert_eq!(world.events(a), ["lost x lock missing"]);
    assert_clean(&mut world);
}

#[test]
fn mlock_releases_all_locks_if_one_is_lost_before_its_reply_is_sent() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(b, "busy");
    world.lock(a, "busy");
    let like = LockRequest { owner: 7, ..lock_command("x") };
    mlock_as(&mut world, a, "x y", &like);
    assert!(world.has_no_reply(a), "its reply waits for the other owner's");
    world.redis.remove("x");
    world.core.verify(world.now, crate::core::Node::Main);
    world.work();
    assert!(world.holders("y").is_empty(), "all or none");
    world.close(b);
    let replies = world.replies_of(a);
    let replies: Vec<_> = replies.iter().map(short).collect();
    assert_eq!(replies, ["held 1", "LOST"]);
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn munlock_releases_the_other_locks_if_one_is_lost() {
    let mut world = World::new();
    let a = world.open();
    mlock(&mut world, a, "x y z");
    assert_eq!(world.reply(a), "held 1 held 1 held 1");
    world.redis.remove("x");
    world.core.verify(world.now, crate::core::Node::Main);
    world.work();
    munlock(&mut world, a, "x y z");
    assert_eq!(world.reply(a), "LOST");
    assert_clean(&mut world);
    munlock(&mut world, a, "y z");
    assert_eq!(world.reply(a), "NOTHELD");
}

#[test]
fn later_commands_of_the_owner_wait_for_its_mlock() {
    let mut world = World::new();
    let a = world.open();
    world.foreign("y", FOREIGN, LEASE);
    mlock(&mut world, a, "x y");
    munlock(&mut world, a, "x y");
    world.lock(a, "w");
    world.unlock(a, "w");
    assert!(world.has_no_reply(a) && world.holders("w").is_empty());
    world.foreign_release("y");
    let replies = world.replies_of(a);
    let replies: Vec<_> = replies.iter().map(short).collect();
    assert_eq!(replies, ["held 1 held 1", "0 0", "held 1", "0"]);
    assert_clean(&mut world);
}

#[test]
fn mlock_replies_after_its_deadline_in_an_outage_and_leaves_nothing() {
    let mut world = World::new();
    let a = world.open();
    world.foreign("y", FOREIGN, LEASE);
    mlock_as(&mut world, a, "x y", &within(1000));
    world.network = Network::Down;
    world.pass(Duration::from_millis(900));
    assert!(world.has_no_reply(a));
    world.pass(Duration::from_secs(3));
    let reply = world.reply(a);
    assert!(["null", "UNAVAILABLE"].contains(&reply.as_str()), "{reply}");
    world.network = Network::Good;
    world.pass(Duration::from_secs(2));
    assert!(world.holders("x").is_empty());
    world.foreign_release("y");
    assert_clean(&mut world);
}

#[test]
fn draining_ends_a_waiting_mlock() {
    let mut world = World::new();
    let a = world.open();
    world.foreign("y", FOREIGN, LEASE);
    mlock(&mut world, a, "x y");
    world.core.drain();
    world.work();
    assert_eq!(world.reply(a), "DRAINING");
    assert!(world.holders("x").is_empty());
    mlock(&mut world, a, "x y");
    assert_eq!(world.reply(a), "DRAINING");
    world.foreign_release("y");
    assert_clean(&mut world);
}

#[test]
fn mlock_acquires_its_locks_in_byte_order() {
    let mut world = World::new();
    let a = world.open();
    world.foreign("x", FOREIGN, LEASE);
    mlock(&mut world, a, "z y x");
    assert!(world.holders("y").is_empty() && world.holders("z").is_empty());
    world.foreign_release("x");
    assert_eq!(world.reply(a), "held 1 held 1 held 1");
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn mlock_does_not_release_a_lock_that_was_held_before() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "y");
    world.replies_of(a);
    world.replies_of(b);
    mlock(&mut world, a, "x y");
    world.lock(b, "x");
    assert_eq!(world.reply(b), "DEADLOCK");
    world.pass(LONG);
    assert_eq!(world.holders("x").len(), 1);
    world.close(b);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.reply(a), "held 2 held 1");
    world.close(a);
    assert_clean(&mut world);
}

#[test]
fn cancel_ends_an_mlock_between_its_waits() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.hold(a, "x");
    world.network = Network::Slow(100);
    // It reenters x without a wait.
    mlock(&mut world, a, "x y");
    assert_eq!(cancel(&mut world, b, a), "1");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(a), "null");
    world.network = Network::Good;
    world.leave(a, "x");
    assert_clean(&mut world);
}

#[test]
fn faults_during_munlock_leave_nothing_of_a_waiting_mlock() {
    let networks = [Network::LosesReplies, Network::Breaks, Network::Slow(300), Network::Refuses];
    for network in networks {
        for steps in 0..12 {
            let mut world = World::new();
            let (a, b) = (world.open(), world.open());
            mlock(&mut world, a, "x y z");
            mlock_as(&mut world, b, "z y x", &within(2500));
            assert_eq!(world.reply(a), "held 1 held 1 held 1");
            // The fault lasts for a different time in each run: it affects the release, the hand-over or the next
            // acquisition.
            world.network = network;
            munlock(&mut world, a, "z y x");
            world.pass(Duration::from_millis(steps * 50));
            world.network = Network::Good;
            world.pass(Duration::from_secs(3));
            let case = format!("{network:?} for {steps}");
            assert_eq!(world.replies_of(a).len(), 1, "{case}");
            let reply = world.reply(b);
            assert!(
                ["held 1 held 1 held 1", "null", "UNAVAILABLE"].contains(&reply.as_str()),
                "{reply}"
            );
            let held = usize::from(reply.starts_with("held"));
            for lock in ["x", "y", "z"] {
                assert_eq!(world.holders(lock).len(), held, "{case}: {lock}");
            }
            world.close(b);
            world.pass(Duration::from_secs(1));
            assert_clean(&mut world);
        }
    }
}

#[test]
fn mlock_beyond_the_policys_max_locks_is_denied_before_it_acquires_any() {
    let mut world = World::new();
    let policy = Policy::parse("[[allow]]\nnames = [\"*\"]\nmax_locks = 3").unwrap();
    world.core.set_policy(Some(policy));
    let a = world.open();
    world.hold(a, "b");
    world.foreign("a", FOREIGN, LEASE);
    mlock(&mut world, a, "a c d");
    assert_eq!(world.reply(a), "DENIED", "it is denied before it waits");
    assert!(world.holders("c").is_empty());
    world.foreign_release("a");
    mlock(&mut world, a, "c b d");
    assert_eq!(world.reply(a), "held 1 held 2 held 1", "a lock that it holds already counts once");
}

#[test]
fn mlock_with_a_wait_shorter_than_a_round_trip_can_be_granted() {
    let mut world = World::new();
    let (a, b, c) = (world.open(), world.open(), world.open());
    world.foreign("w", FOREIGN, LEASE);
    world.network = Network::Slow(20);
    mlock_as(&mut world, a, "x y z", &within(5));
    mlock_as(&mut world, b, "v w", &within(5));
    world.pass(Duration::from_millis(600));
    assert_eq!(world.reply(a), "held 1 held 1 held 1");
    assert_eq!((world.reply(b), world.holders("v").len()), ("null".into(), 0));
    world.network = Network::Slow(200);
    mlock_as(&mut world, c, "s t u", &within(5));
    world.pass(Duration::from_millis(1500));
    assert_eq!(
        world.reply(c),
        "null",
        "the time for first replies ends before the last one arrives"
    );
    assert!(world.holders("s").is_empty() && world.holders("t").is_empty());
}
