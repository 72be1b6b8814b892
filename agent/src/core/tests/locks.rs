//! Tests of acquiring, waiting, reentering and releasing, with a Redis that works.

use std::collections::BTreeSet;
use std::time::Duration;

use redisson::{Kind, Lease};

use super::world::{FOREIGN, LEASE, Network, World, hold_command, lock_command, name, short};
use crate::core::{LogLine, Node};
use crate::policy::Policy;
use crate::protocol::command::{Command, HoldRequest, LockRequest, Wait};

#[test]
fn a_worker_acquires_and_releases_a_lock() {
    let mut world = World::new();
    let a = world.open();
    world.hold(a, "x");
    assert_eq!(world.holders("x").len(), 1);
    world.leave(a, "x");
    assert!(world.holders("x").is_empty());
    assert!(world.core.is_idle());
    assert!(world.core.locks.is_empty(), "the agent remembers nothing about a free lock");
    assert_eq!(world.core.next_deadline(), None);
}

#[test]
fn every_grant_has_a_different_number() {
    let mut world = World::new();
    let a = world.open();
    let mut seen = Vec::new();
    for _ in 0..3 {
        world.lock(a, "x");
        seen.extend(world.holders("x"));
        world.unlock(a, "x");
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[test]
fn local_waiters_are_served_in_order_by_hand_over() {
    let mut world = World::new();
    let sessions: Vec<_> = (0..4).map(|_| world.open()).collect();
    for &id in &sessions {
        world.lock(id, "x");
    }
    assert_eq!(world.reply(sessions[0]), "held 1");
    assert_eq!(world.served, ["acquire"], "waiters behind a local holder cost Redis nothing");
    for pair in sessions.windows(2) {
        assert!(world.has_no_reply(pair[1]));
        world.unlock(pair[0], "x");
        assert_eq!(world.reply(pair[0]), "0");
        assert_eq!(world.reply(pair[1]), "held 1");
        assert_eq!(world.holders("x").len(), 1);
    }
    assert_eq!(world.served, ["acquire", "hand_over", "hand_over", "hand_over"]);
}

#[test]
fn a_foreign_holders_release_wakes_the_front_waiter_only() {
    let mut world = World::new();
    world.foreign("x", FOREIGN, LEASE);
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    // One attempt, and another once the subscription is active; the second waiter costs nothing.
    assert_eq!(world.served, ["acquire", "acquire"]);
    assert_eq!(world.listening, [name("x")]);
    world.foreign_release("x");
    assert_eq!(world.reply(a), "held 1");
    assert!(world.has_no_reply(b));
    assert!(world.listening.is_empty(), "a local hold needs no messages");
}

#[test]
fn a_waiter_wakes_when_the_lease_expires_without_a_message() {
    let mut world = World::new();
    world.foreign("x", FOREIGN, Duration::from_secs(2));
    let a = world.open();
    world.lock(a, "x");
    world.pass(Duration::from_millis(1990));
    assert!(world.has_no_reply(a));
    world.pass(Duration::from_millis(20));
    assert_eq!(world.reply(a), "held 1");
}

#[test]
fn a_waiter_polls_a_lock_without_a_ttl() {
    let mut world = World::new();
    world.foreign("x", FOREIGN, LEASE);
    world.redis.get_mut("x").unwrap().expires = None;
    let a = world.open();
    world.lock(a, "x");
    world.redis.clear();
    world.pass(Duration::from_secs(6));
    assert_eq!(world.reply(a), "held 1");
}

#[test]
fn nowait_and_wait_reply_null_when_their_time_is_over() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock_within(b, "x", 0);
    assert_eq!(world.reply(b), "null");
    world.lock_within(b, "x", 300);
    world.pass(Duration::from_millis(299));
    assert!(world.has_no_reply(b));
    world.pass(Duration::from_millis(2));
    assert_eq!(world.reply(b), "null");
    let hours = 2 * 3_600_000;
    world.lock_within(b, "x", hours);
    world.pass(Duration::from_millis(hours - 1));
    assert!(world.has_no_reply(b), "nothing ends a wait before its time");
    world.pass(Duration::from_millis(2));
    assert_eq!(world.reply(b), "null");
    world.foreign("y", FOREIGN, LEASE);
    world.lock_within(b, "y", 0);
    assert_eq!(world.reply(b), "null");
    assert!(world.listening.is_empty());
}

#[test]
fn re_entry_counts_up_and_down_and_bypasses_the_queue() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.lock(a, "x");
    let replies: Vec<_> = world.replies_of(a).iter().map(short).collect();
    assert_eq!(replies, ["held 1", "held 2"]);
    world.unlock(a, "x");
    assert_eq!(world.reply(a), "1");
    assert!(world.has_no_reply(b));
    world.leave(a, "x");
    assert_eq!(world.reply(b), "held 1");
}

/// Returns the hold count of `x` in Redis.
fn count_in_redis(world: &World) -> i64 {
    world.redis["x"].fields.values().copied().max().unwrap_or(0)
}

#[test]
fn a_re_entry_that_is_released_at_once_sends_no_script() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.served.clear();
    world.network = Network::Down;
    world.lock(a, "x");
    assert_eq!(world.reply(a), "held 2", "without a reply of Redis");
    world.unlock(a, "x");
    assert_eq!(world.reply(a), "1");
    world.network = Network::Good;
    world.leave(a, "x");
    assert_eq!(world.served, ["release"]);
    assert!(world.redis.is_empty());
}

#[test]
fn a_new_hold_count_is_soon_sent_to_redis() {
    for kind in [Kind::Lock, Kind::Fair, Kind::Fenced, Kind::Read, Kind::Write] {
        let mut world = World::new();
        let a = world.open();
        world.lock_as(a, "x", kind);
        world.served.clear();
        for _ in 0..10 {
            world.lock_as(a, "x", kind);
        }
        assert_eq!(world.replies_of(a).last().map(short), Some("held 11".to_owned()), "{kind:?}");
        world.pass(Duration::from_millis(150));
        assert_eq!((world.served.len(), count_in_redis(&world)), (1, 11), "{kind:?}");
        world.unlock(a, "x");
        assert_eq!(world.reply(a), "10", "{kind:?}");
        world.pass(Duration::from_millis(150));
        assert_eq!((world.served.len(), count_in_redis(&world)), (2, 10), "{kind:?}");
    }
}

#[test]
fn re_entering_a_hold_in_jeopardy_waits_for_redis() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.replies.clear();
    world.network = Network::Down;
    world.pass(LEASE * 3 / 4);
    world.lock(a, "x");
    assert!(world.has_no_reply(a));
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!((world.reply(a), count_in_redis(&world)), ("held 2".to_owned(), 2));
}

#[test]
fn owners_of_one_session_exclude_each_other_and_do_not_block_each_other() {
    let mut world = World::new();
    let a = world.open();
    let lock = |owner, lock: &str| Command::Lock(LockRequest { owner, ..lock_command(lock) });
    world.command(a, lock(1, "x"));
    world.command(a, lock(2, "x"));
    world.command(a, lock(3, "y"));
    // The third is granted, but its reply waits for the second's.
    assert_eq!(world.replies_of(a).len(), 1);
    assert_eq!(world.holders("y").len(), 1);
    world.command(a, Command::Unlock(HoldRequest { owner: 1, ..hold_command("x") }));
    assert_eq!(world.replies_of(a).len(), 3);
}

#[test]
fn a_blocked_lock_command_blocks_its_owners_next_command() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.lock(b, "y");
    assert!(world.holders("y").is_empty());
    world.unlock(a, "x");
    assert_eq!(world.replies_of(b).len(), 2);
}

#[test]
fn a_deadlock_of_waits_without_a_limit_is_rejected() {
    let mut world = World::new();
    let (a, b, c) = (world.open(), world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "y");
    world.lock(c, "z");
    world.replies.clear();
    world.lock(a, "y");
    world.lock(b, "z");
    world.lock_within(c, "x", 1000);
    assert!(world.has_no_reply(c), "a wait with a limit ends by itself");
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(c), "null");
    world.lock(c, "x");
    assert_eq!(world.reply(c), "DEADLOCK");
}

#[test]
fn a_session_that_ends_releases_its_holds_and_queue_positions() {
    let mut world = World::new();
    let (a, b, c) = (world.open(), world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.lock(c, "x");
    world.close(b);
    world.close(a);
    assert_eq!(world.reply(c), "held 1");
    world.close(c);
    assert!(world.holders("x").is_empty());
    assert!(world.core.is_idle() && world.core.locks.is_empty());
}

#[test]
fn the_watchdog_renews_many_holds_with_few_scripts() {
    let mut world = World::new();
    let a = world.open();
    for i in 0..50 {
        world.lock(a, &format!("x{i}"));
    }
    world.served.clear();
    world.pass(LEASE * 3);
    assert!((0..50).all(|i| world.holders(&format!("x{i}")).len() == 1));
    let renewals = world.served.len();
    assert!(world.served.iter().all(|script| *script == "keep"));
    assert!(renewals < 50 * 9 / 2, "{renewals} scripts for 50 holds in nine thirds of a lease");
}

#[test]
fn a_fixed_lease_is_not_renewed_and_is_reported_as_expired() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    let lease = Lease::new(Duration::from_secs(2));
    world.command(a, Command::Lock(LockRequest { lease, ..lock_command("x") }));
    world.lock(b, "x");
    assert_eq!(world.reply(a), "held 1");
    world.pass(Duration::from_millis(2_100));
    assert_eq!(world.reply(b), "held 1");
    assert_eq!(world.events(a), ["lost x lock expired"]);
    world.unlock(a, "x");
    assert_eq!(world.reply(a), "LOST");
}

#[test]
fn only_a_readers_lease_becomes_shorter_when_a_re_entry_is_released() {
    for (kind, ends) in [(Kind::Read, true), (Kind::Lock, false), (Kind::Write, false)] {
        let mut world = World::new();
        let a = world.open();
        for seconds in [2, 20, 5] {
            let lease = Lease::new(Duration::from_secs(seconds));
            world.command(a, Command::Lock(LockRequest { lease, kind, ..lock_command("x") }));
        }
        world.unlock(a, "x");
        world.pass(Duration::from_secs(3));
        assert!(world.events(a).is_empty(), "the second entry lasts for longer, {kind:?}");
        world.unlock(a, "x");
        world.pass(Duration::from_secs(1));
        assert_eq!(!world.events(a).is_empty(), ends, "{kind:?}");
    }
}

#[test]
fn the_last_living_entry_of_a_reader_is_released_although_an_earlier_one_has_expired() {
    let mut world = World::new();
    let a = world.open();
    for seconds in [2, 20] {
        let lease = Lease::new(Duration::from_secs(seconds));
        world.command(
            a,
            Command::Lock(LockRequest { lease, kind: Kind::Read, ..lock_command("x") }),
        );
    }
    world.replies.clear();
    world.pass(Duration::from_secs(3));
    assert!(world.events(a).is_empty());
    world.network = Network::Slow(50);
    world.unlock(a, "x");
    assert!(world.has_no_reply(a), "Redis has not released it yet");
    world.pass(Duration::from_millis(50));
    assert_eq!(world.reply(a), "0");
    assert_eq!(world.events(a), ["lost x read expired"]);
    world.pass(Duration::from_millis(10));
    assert!(world.redis.is_empty() && world.core.is_idle());
}

#[test]
fn extend_sets_a_fixed_lease_and_restores_the_watchdog() {
    let mut world = World::new();
    let a = world.open();
    world.lock(a, "x");
    world.extend(a, "x", Lease::new(Duration::from_secs(5)));
    world.extend(a, "x", None);
    world.pass(LEASE * 2);
    assert_eq!(world.holders("x").len(), 1, "the watchdog renews it again");
    world.extend(a, "x", Lease::new(Duration::from_secs(5)));
    world.pass(Duration::from_secs(6));
    assert!(
        world.holders("x").is_empty(),
        "the agent releases it, although Redis would keep it longer"
    );
    assert_eq!(world.events(a), ["lost x lock expired"]);
}

#[test]
fn a_lease_that_was_made_shorter_leaves_the_lock_free_soon_after_its_end() {
    let lease = |seconds| Lease::new(Duration::from_secs(seconds));
    for kind in [Kind::Lock, Kind::Fair, Kind::Write, Kind::Read] {
        let mut world = World::new();
        let (a, b) = (world.open(), world.open());
        let hour = LockRequest { lease: lease(3600), kind, ..lock_command("x") };
        world.command(a, Command::Lock(hour.clone()));
        world.extend(a, "x", lease(5));
        world.lock_as(b, "x", if kind == Kind::Read { Kind::Write } else { kind });
        world.pass(Duration::from_millis(4_900));
        assert!(world.has_no_reply(b), "{kind}");
        world.pass(Duration::from_millis(500));
        assert_eq!(world.reply(b), "held 1", "{kind}");
        world.close(b);
        // The end of a reader's entry makes its lease shorter too.
        if kind == Kind::Read {
            world.command(a, Command::Lock(LockRequest { lease: lease(5), ..hour.clone() }));
            world.command(a, Command::Lock(hour));
            world.unlock(a, "x");
            world.pass(Duration::from_millis(5_400));
            assert!(world.holders("x").is_empty());
        }
    }
}

#[test]
fn the_agent_releases_the_lock_after_32_hand_overs_if_other_clients_wait() {
    let mut world = World::new();
    world.other_subscribers = 1;
    let sessions: Vec<_> = (0..40).map(|_| world.open()).collect();
    for &id in &sessions {
        world.lock(id, "x");
    }
    for &id in &sessions {
        world.unlock(id, "x");
        world.pass(Duration::from_millis(1));
    }
    let first = world.served.iter().position(|script| *script == "release").unwrap();
    assert_eq!(world.served[..first].iter().filter(|s| **s == "hand_over").count(), 32);
}

#[test]
fn a_draining_agent_rejects_new_locks_and_keeps_those_of_living_workers() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.replies.clear();
    world.core.drain();
    world.work();
    assert_eq!(world.reply(b), "DRAINING");
    world.lock(b, "y");
    assert_eq!(world.reply(b), "DRAINING");
    world.core.end_drain();
    world.work();
    assert_eq!(world.events(a), ["lost x lock drained"]);
    assert_eq!(world.holders("x").len(), 1, "a living worker's hold is not released");
    assert!(world.core.is_idle());
}

#[test]
fn the_end_of_a_drain_logs_how_many_losses_were_withheld() {
    let mut world = World::new();
    let worker = world.open();
    for index in 0..60 {
        world.lock(worker, &format!("x{index}"));
    }
    world.core.drain();
    world.core.end_drain();
    world.work();
    let logged = world.logged.iter().filter(|line| matches!(line, LogLine::LockLost { .. }));
    assert_eq!(logged.count(), 50);
    let last = world.logged.last().unwrap();
    assert!(matches!(last, LogLine::Withheld("lock lost", 10)), "{last:?}");
}

#[test]
fn cancel_ends_an_owners_wait() {
    let mut world = World::new();
    let (a, b, c) = (world.open(), world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    let session = world.core.session_name(b).into_bytes();
    let secret = "01".repeat(16).into_bytes();
    let cancel = |secret: Vec<u8>| Command::Cancel { session: session.clone(), secret, owner: 0 };
    world.command(c, cancel(b"00".to_vec()));
    assert_eq!(world.reply(c), "SESSION");
    world.command(c, cancel(secret));
    assert_eq!(world.reply(c), "1");
    assert_eq!(world.reply(b), "null");
}

#[test]
fn a_lock_for_another_session_is_rejected() {
    let mut world = World::new();
    let a = world.open();
    let other = Some(b"1-99".to_vec());
    world.command(a, Command::Lock(LockRequest { session: other, ..lock_command("x") }));
    assert_eq!(world.reply(a), "SESSION");
    assert!(world.holders("x").is_empty());
    assert!(world.core.locks.is_empty());
}

#[test]
fn a_full_redis_grants_no_lock_and_still_accepts_releases() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    let lease = Lease::new(LEASE);
    world.command(b, Command::Lock(LockRequest { lease, ..lock_command("x") }));
    world.network = Network::Full;
    world.unlock(a, "x");
    assert!(world.replies_of(a).iter().map(short).eq(["held 1", "0"]));
    assert!(world.holders("x").is_empty(), "a refused hand-over becomes a release");
    world.command(
        a,
        Command::Lock(LockRequest { wait: Wait::AtMost(Duration::ZERO), ..lock_command("y") }),
    );
    assert_eq!(world.reply(a), "UNAVAILABLE");
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(b), "held 1", "the waiter kept its position");
}

#[test]
fn sessions_are_listed_page_by_page() {
    let mut world = World::new();
    let ids: Vec<_> = (0..5).map(|_| world.open()).collect();
    world.lock(ids[1], "x");
    world.lock(ids[2], "x");
    world.core.on_named(ids[1], b"billing".to_vec());
    let first = world.core.list_sessions(0, 3);
    assert_eq!((first.rows.len(), first.next), (3, ids[2].0));
    let row = &first.rows[1];
    assert_eq!((row.holds, row.waits, row.client.as_deref()), (1, 0, Some("billing")));
    assert_eq!((first.rows[2].holds, first.rows[2].waits), (0, 1));
    let last = world.core.list_sessions(first.next, 3);
    assert_eq!((last.rows.len(), last.next), (2, 0));
}

#[test]
fn a_user_gets_three_quarters_of_the_waits_and_only_root_gets_the_reserve() {
    const USERS: [u32; 3] = [4_000_000_001, 4_000_000_002, 0];
    let mut world = World::new();
    let holder = world.open();
    world.hold(holder, "x");
    let mut waiters = USERS.map(|uid| world.open_as(uid, [2; 16]));
    let waiting = waiters.map(|id| {
        for owner in 0..1000 {
            world.command(id, Command::Lock(LockRequest { owner, ..lock_command("x") }));
        }
        world.core.locks.waiting()
    });
    assert_eq!(waiting, [750, 938, 1000]);
    let late = world.open();
    world.lock(late, "x");
    assert_eq!(world.reply(late), "LIMIT");
    world.close(waiters[0]);
    waiters[0] = world.open_as(USERS[0], [3; 16]);
    world.lock(waiters[0], "x");
    assert!(world.has_no_reply(waiters[0]), "ended waits no longer count");
}

#[test]
fn holds_renewed_together_are_due_together_again() {
    let mut world = World::new();
    let session = world.open();
    for n in 0..20 {
        world.lock(session, &format!("a{n}"));
    }
    let due =
        |world: &World| world.core.leases.iter().map(|hold| hold.renew_at).collect::<BTreeSet<_>>();
    assert!(due(&world).len() > 1, "the first renewals are spread out");
    world.core.verify(world.now, Node::Main);
    world.work();
    assert_eq!(due(&world).len(), 1);
}

#[test]
fn show_of_a_name_that_no_rule_allows_is_denied() {
    let mut world = World::new();
    let policy = Policy::parse("[[allow]]\nnames = [\"orders:*\"]").unwrap();
    world.core.set_policy(Some(policy));
    let worker = world.open_as(4711, [2; 16]);
    world.command(worker, Command::Show(name("payroll")));
    assert_eq!(world.reply(worker), "DENIED");
}
