//! Tests of sessions that outlive their connection, and of agents that continue those of a killed one.

use std::time::Duration;

use redisson::{Kind, Lease};

use super::world::{FOREIGN, LEASE, Network, World, lock_command, short};
use crate::journal::{Record, Restored};
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::ConnectionId;

pub(super) const GRACE: Duration = Duration::from_secs(60);

/// Returns the grace minus that much.
fn grace_less(rest: Duration) -> Duration {
    GRACE.checked_sub(rest).unwrap()
}

pub(super) const NEXT: [u8; 16] = [2; 16];

/// A session's id and secret, as its worker received them.
pub(super) type Ticket = (Vec<u8>, Vec<u8>);

pub(super) fn ticket(frame: &Frame) -> Ticket {
    let Frame::Map(pairs) = frame else { panic!("{frame:?}") };
    let value = |name| match pairs.iter().find(|(key, _)| *key == name) {
        Some((_, Frame::Bulk(bytes))) => bytes.to_vec(),
        other => panic!("{name}: {other:?}"),
    };
    (value("id"), value("secret"))
}

impl World {
    pub(super) fn ask_grace(&mut self, id: ConnectionId, grace: Duration) -> Frame {
        let command =
            Command::Session { grace: Some(grace), push: None, deadlines: None, process: None };
        self.command(id, command);
        self.replies_of(id).remove(0)
    }

    pub(super) fn graced(&mut self) -> (ConnectionId, Ticket) {
        let id = self.open();
        let reply = self.ask_grace(id, GRACE);
        (id, ticket(&reply))
    }

    pub(super) fn resume(&mut self, id: ConnectionId, (session, secret): &Ticket) {
        let (session, secret) = (session.clone(), secret.clone());
        self.command(id, Command::Resume { session, secret });
    }

    /// Returns the reply to RESUME: the new ticket, and each hold as `lock kind count`.
    pub(super) fn resumed(&mut self, id: ConnectionId) -> (Ticket, Vec<String>) {
        let frame = self.replies_of(id).remove(0);
        let Frame::Map(pairs) = &frame else { panic!("{}", short(&frame)) };
        let Some((_, Frame::Array(rows))) = pairs.iter().find(|(key, _)| *key == "holds") else {
            panic!("{frame:?}")
        };
        let row = |row: &Frame| {
            let Frame::Map(pairs) = row else { panic!("{row:?}") };
            let text = |name: &str| match pairs.iter().find(|(key, _)| *key == name) {
                Some((_, Frame::Bulk(bytes))) => String::from_utf8_lossy(bytes).into_owned(),
                Some((_, Frame::Int(number))) => number.to_string(),
                other => panic!("{name}: {other:?}"),
            };
            format!("{} {} {}", text("lock"), text("kind"), text("holds"))
        };
        (ticket(&frame), rows.iter().map(row).collect())
    }
}

#[test]
fn the_death_of_a_watched_process_ends_the_grace() {
    for noticed_first in [true, false] {
        let mut world = World::new();
        let (a, _) = world.graced();
        world.lock(a, "x");
        if noticed_first {
            world.die(a);
            world.close(a);
        } else {
            world.close(a);
            world.die(a);
        }
        assert!(world.holders("x").is_empty());
        assert!(world.core.sessions.is_empty() && world.core.is_idle() && world.past.is_empty());
    }
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.close(a);
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    world.die(a);
    assert!(!world.holders("x").is_empty(), "another process has resumed the session");
}

#[test]
fn a_resumed_session_has_the_holds_of_its_broken_connection() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.lock(a, "x");
    world.close(a);
    let before = world.holders("x");
    world.pass(grace_less(Duration::from_secs(1)));
    assert_eq!(world.holders("x"), before, "it is renewed meanwhile");
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    let (new, holds) = world.resumed(b);
    assert_eq!(holds, ["x lock 2"]);
    assert_eq!((&new.0, new.1 == ticket.1), (&ticket.0, false), "the same id, a new secret");
    world.pass(GRACE * 2);
    assert_eq!(world.holders("x"), before, "the grace period has ended with the resumption");
    world.unlock(b, "x");
    world.unlock(b, "x");
    assert_eq!(world.short_replies(b), ["1", "0"]);
    world.command(
        b,
        Command::Session {
            grace: Some(Duration::ZERO),
            push: None,
            deadlines: None,
            process: None,
        },
    );
    world.close(b);
    assert!(world.core.sessions.is_empty() && world.core.is_idle() && world.past.is_empty());
    assert_eq!(world.core.next_deadline(), None);
}

#[test]
fn a_session_that_is_not_resumed_in_time_ends() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let waiter = world.open();
    world.lock(a, "x");
    world.lock(waiter, "x");
    world.close(a);
    world.pass(grace_less(Duration::from_millis(1)));
    assert!(world.has_no_reply(waiter));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reply(waiter), "held 1");
    let late = world.open();
    world.resume(late, &ticket);
    assert_eq!(world.reply(late), "GONE");
    assert!(world.past.is_empty(), "{:?}", world.past);
}

#[test]
fn only_the_same_user_with_the_right_secret_can_resume_a_session() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    // Its connection is open: RESUME waits a moment for the end of the connection, and is then rejected.
    let early = world.open_as(0, NEXT);
    world.resume(early, &ticket);
    assert!(world.has_no_reply(early));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.reply(early), "SESSION");
    world.close(a);
    let other_user = world.open_as(1000, NEXT);
    world.resume(other_user, &ticket);
    assert_eq!(world.reply(other_user), "DENIED");
    let guesser = world.open_as(0, NEXT);
    world.resume(guesser, &(ticket.0.clone(), b"0".repeat(32)));
    assert_eq!(world.reply(guesser), "SESSION");
    world.resume(guesser, &(b"7-99".to_vec(), ticket.1.clone()));
    world.resume(guesser, &(b"no name".to_vec(), ticket.1.clone()));
    assert_eq!(world.short_replies(guesser), ["GONE", "GONE"]);
    let busy = world.open();
    world.lock(busy, "y");
    world.replies.clear();
    world.resume(busy, &ticket);
    assert_eq!(world.reply(busy), "SESSION", "its session has holds already");
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    let (new, holds) = world.resumed(b);
    assert_eq!(holds, ["x lock 1"]);
    // It sends another command, so it has received the new secret.
    world.command(b, Command::Holds);
    world.replies.clear();
    world.close(b);
    let c = world.open_as(0, [3; 16]);
    world.resume(c, &ticket);
    assert_eq!(world.reply(c), "SESSION", "the old secret is no longer valid");
    world.resume(c, &new);
    assert_eq!(world.resumed(c).1, ["x lock 1"]);
}

#[test]
fn the_old_secret_resumes_a_session_until_the_new_one_is_received() {
    for killed in [false, true] {
        let mut world = World::new();
        let (a, ticket) = world.graced();
        world.lock(a, "x");
        world.close(a);
        // The reply is repeatedly lost with the connection, or with the agent.
        for secret in [NEXT, [3; 16], [4; 16]] {
            let b = world.open_as(0, secret);
            world.resume(b, &ticket);
            assert_eq!(world.resumed(b).1, ["x lock 1"]);
            // A PING that was sent with RESUME does not show that the worker has the reply.
            let pong = Outgoing::Reply(Frame::Simple("PONG"));
            world.core.on_answered(world.now, b, pong);
            world.work();
            if killed {
                world.kill_and_restart(Duration::from_secs(1));
            } else {
                world.close(b);
            }
        }
        let c = world.open_as(0, [5; 16]);
        world.resume(c, &ticket);
        let (new, holds) = world.resumed(c);
        assert_eq!(holds, ["x lock 1"]);
        // It sends another command, so only the new secret is valid, for the next agent too.
        world.command(c, Command::Holds);
        world.close(c);
        world.kill_and_restart(Duration::from_secs(1));
        let d = world.open_as(0, [6; 16]);
        world.resume(d, &ticket);
        assert_eq!(world.reply(d), "SESSION");
        world.resume(d, &new);
        assert_eq!(world.resumed(d).1, ["x lock 1"]);
    }
}

#[test]
fn resume_waits_until_the_old_connection_is_closed() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert!(world.has_no_reply(b));
    world.close(a);
    assert_eq!(world.resumed(b).1, ["x lock 1"]);
}

#[test]
fn resume_waits_for_operations_in_flight() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let leased = LockRequest { lease: Lease::new(LEASE), ..lock_command("x") };
    world.command(a, Command::Lock(leased.clone()));
    world.foreign("y", FOREIGN, LEASE);
    world.network = Network::Slow(500);
    // A reentry with a lease and a wait are in flight.
    world.command(a, Command::Lock(leased));
    world.command(a, Command::Lock(LockRequest { owner: 5, ..lock_command("y") }));
    world.close(a);
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert!(world.has_no_reply(b));
    world.pass(Duration::from_millis(501));
    assert_eq!(world.resumed(b).1, ["x lock 2"], "the reentry in flight counts");
    assert_eq!(world.core.waiters(), 0, "the wait of the closed connection has ended");
}

#[test]
fn a_resumed_session_learns_which_holds_were_lost() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.close(a);
    world.redis.clear();
    world.pass(LEASE);
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    let (_, holds) = world.resumed(b);
    assert!(holds.is_empty(), "{holds:?}");
    assert_eq!(world.events(b), ["lost x lock missing"]);
    world.unlock(b, "x");
    assert_eq!(world.reply(b), "LOST");
}

#[test]
fn a_session_that_quits_or_sets_its_grace_to_zero_ends_at_once() {
    for goodbye in [true, false] {
        let mut world = World::new();
        let (a, ticket) = world.graced();
        world.lock(a, "x");
        if goodbye {
            world.core.on_quit(a);
        } else {
            world.ask_grace(a, Duration::ZERO);
        }
        world.close(a);
        assert!(world.holders("x").is_empty());
        let b = world.open();
        world.resume(b, &ticket);
        assert_eq!(world.reply(b), "GONE");
        assert!(world.past.is_empty());
    }
}

#[test]
fn a_successor_agent_keeps_holds_of_every_kind() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    for (lock, kind) in [
        ("plain", Kind::Lock),
        ("fenced", Kind::Fenced),
        ("fair", Kind::Fair),
        ("shared", Kind::Read),
        ("sole", Kind::Write),
        ("sole", Kind::Read),
    ] {
        world.lock_as(a, lock, kind);
    }
    world.lock(a, "plain");
    let short_lease = Lease::new(Duration::from_secs(5));
    let brief = LockRequest { lease: short_lease, ..lock_command("brief") };
    world.command(a, Command::Lock(brief));
    let b = world.open();
    world.lock(b, "ungraced");
    let before: Vec<_> =
        ["plain", "fenced", "fair", "shared", "sole"].map(|name| world.holders(name)).into();
    world.kill_and_restart(LEASE / 2);
    world.pass(LEASE);
    let after: Vec<_> =
        ["plain", "fenced", "fair", "shared", "sole"].map(|name| world.holders(name)).into();
    assert_eq!(before, after, "the successor renews them");
    assert!(world.holders("ungraced").is_empty(), "its lease has run out");
    let c = world.open_as(0, NEXT);
    world.resume(c, &ticket);
    let (_, mut holds) = world.resumed(c);
    holds.sort();
    let expected = [
        "fair fair 1",
        "fenced fenced 1",
        "plain lock 2",
        "shared read 1",
        "sole read 1",
        "sole write 1",
    ];
    assert_eq!(holds, expected);
    assert_eq!(world.events(c), ["lost brief lock expired"]);
    world.unlock(c, "plain");
    world.unlock(c, "plain");
    world.unlock(c, "fair");
    assert_eq!(world.short_replies(c), ["1", "0", "0"]);
}

#[test]
fn a_re_entry_beyond_the_highest_count_is_counted_as_denied() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    // So many reentries would take too long: the next agent finds this count in the journal.
    let holds = world.past.sessions.values_mut().flat_map(|session| session.holds.values_mut());
    holds.for_each(|hold| hold.count = u32::MAX);
    world.kill_and_restart(Duration::from_secs(1));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert_eq!(world.resumed(b).1, ["x lock 4294967295"]);
    world.acquisitions.clear();
    world.lock(b, "x");
    assert_eq!(world.reply(b), "LIMIT");
    assert_eq!(world.acquisitions, ["denied"]);
}

#[test]
fn a_successor_agent_releases_holds_of_sessions_that_nobody_resumes() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.kill_and_restart(Duration::from_secs(1));
    world.pass(grace_less(Duration::from_millis(1)));
    assert_eq!(world.holders("x").len(), 1);
    world.pass(Duration::from_millis(2));
    assert!(world.holders("x").is_empty());
    let late = world.open();
    world.resume(late, &ticket);
    assert_eq!(world.reply(late), "GONE");
    assert!(world.past.is_empty(), "{:?}", world.past);
}

#[test]
fn a_grace_period_that_began_before_the_agent_was_killed_is_not_restarted() {
    let mut world = World::new();
    let (a, _) = world.graced();
    world.lock(a, "x");
    world.close(a);
    world.pass(grace_less(Duration::from_secs(5)));
    world.kill_and_restart(Duration::from_secs(2));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.holders("x").len(), 1);
    world.pass(Duration::from_secs(2));
    assert!(world.holders("x").is_empty());
}

#[test]
fn a_successor_agent_reports_holds_only_after_redis_has_confirmed_them() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.lock(a, "y");
    world.network = Network::Down;
    world.redis.remove("y");
    world.kill_and_restart(Duration::from_secs(1));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.reply(b), "UNAVAILABLE");
    world.resume(b, &ticket);
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    let (_, holds) = world.resumed(b);
    assert_eq!(holds, ["x lock 1"]);
    assert_eq!(world.events(b), ["lost y lock missing"]);
}

#[test]
fn a_restored_hold_that_redis_never_confirms_is_lost_after_its_lease() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.network = Network::Down;
    world.kill_and_restart(Duration::from_secs(1));
    world.pass(LEASE + Duration::from_secs(5));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    let (_, holds) = world.resumed(b);
    assert!(holds.is_empty(), "{holds:?}");
    assert_eq!(world.events(b), ["lost x lock unconfirmed"]);
}

/// Its worker does not know about the failure, and relies on the hold for up to a lease.
#[test]
fn a_hold_whose_session_is_missing_in_the_journal_is_released_after_its_lease() {
    let mut world = World::new();
    let (a, _) = world.graced();
    world.lock(a, "x");
    let holds: Vec<_> =
        world.past.sessions.values().flat_map(|session| session.holds.values().cloned()).collect();
    world.past = Restored::default();
    holds.into_iter().for_each(|hold| world.past.add(Record::Hold(hold)));
    world.kill_and_restart(Duration::from_secs(1));
    assert_eq!(world.holders("x").len(), 1, "its worker may still rely on it");
    world.pass(LEASE.checked_sub(Duration::from_secs(2)).unwrap());
    let next = world.open();
    world.lock(next, "x");
    assert!(world.has_no_reply(next));
    world.pass(Duration::from_secs(3));
    assert_eq!(world.reply(next), "held 1");
}

/// A fixed lease stays in Redis during the outage.
#[test]
fn a_restored_hold_with_a_long_lease_survives_an_outage() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let lease = Lease::new(LEASE * 20);
    world.command(a, Command::Lock(LockRequest { lease, ..lock_command("x") }));
    world.command(a, Command::Lock(LockRequest { lease, ..lock_command("y") }));
    world.replies.clear();
    world.network = Network::Down;
    world.unlock(a, "y");
    world.kill_and_restart(Duration::from_secs(1));
    world.pass(LEASE + Duration::from_secs(10));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.resumed(b).1, ["x lock 1"]);
    assert_eq!((world.holders("x").len(), world.holders("y").len()), (1, 0));
}

/// A script whose reply is lost may run late, and renew the hold.
#[test]
fn a_restored_hold_lost_in_an_outage_is_released_after_the_outage() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    world.network = Network::Holds;
    world.kill_and_restart(Duration::from_secs(1));
    world.pass(LEASE * 9 / 10);
    world.deliver_late();
    world.pass(LEASE / 3);
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert!(world.resumed(b).1.is_empty());
    assert_eq!(world.holders("x").len(), 1, "its lease in Redis is longer");
    world.network = Network::Good;
    world.pass(Duration::from_secs(1));
    assert!(world.holders("x").is_empty());
}

#[test]
fn a_successor_agent_removes_positions_and_locks_of_unanswered_waits() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let holder = world.open();
    world.lock_as(holder, "x", Kind::Fair);
    world.lock_as(a, "x", Kind::Fair);
    assert_eq!(world.queues["x"].len(), 1);
    // This attempt runs, but the killed agent never receives the reply.
    world.network = Network::Slow(1000);
    world.command(a, Command::Lock(LockRequest { owner: 5, ..lock_command("y") }));
    assert_eq!(world.holders("y").len(), 1);
    world.network = Network::Good;
    world.kill_and_restart(Duration::from_secs(1));
    assert!(world.queues.get("x").is_none_or(Vec::is_empty), "{:?}", world.queues);
    assert!(world.holders("y").is_empty());
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert!(world.resumed(b).1.is_empty());
}

#[test]
fn a_drained_agent_leaves_holds_with_grace_to_its_successor() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let other = world.open();
    world.lock(a, "x");
    world.lock(other, "y");
    let wait = Wait::AtMost(Duration::from_secs(600));
    world.command(a, Command::Lock(LockRequest { wait, ..lock_command("y") }));
    world.replies.clear();
    world.core.drain();
    world.work();
    assert_eq!(world.reply(a), "DRAINING");
    assert!(!world.core.is_idle(), "a living worker without grace holds y");
    world.unlock(other, "y");
    assert!(world.core.is_idle());
    world.core.end_drain();
    world.work();
    assert_eq!(world.events(a), Vec::<String>::new(), "nothing is lost");
    world.kill_and_restart(Duration::from_secs(1));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert_eq!(world.resumed(b).1, ["x lock 1"]);
}

#[test]
fn a_pending_events_command_survives_the_resumption_of_its_session() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    let listener = world.open();
    let wait = Duration::from_secs(600);
    let (session, secret) = ticket.clone();
    world.command(listener, Command::Events { session, secret, wait });
    world.close(a);
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert!(world.has_no_reply(listener));
    world.redis.clear();
    world.pass(LEASE);
    assert_eq!(world.reply(listener), "lost x lock missing");
}

#[test]
fn a_resumption_answers_the_events_command_of_the_session_that_it_replaces() {
    let mut world = World::new();
    let (a, own) = world.graced();
    world.lock(a, "x");
    let (of_a, of_b) = (world.open(), world.open());
    let wait = Duration::from_secs(600);
    let (session, secret) = own.clone();
    world.command(of_a, Command::Events { session, secret, wait });
    let b = world.open();
    let (session, secret) = world.credentials(b);
    world.command(of_b, Command::Events { session, secret, wait: wait / 2 });
    world.close(a);
    world.resume(b, &own);
    assert_eq!(world.reply(of_b), "", "a session has one listener");
    world.pass(wait / 2);
    assert!(world.has_no_reply(of_a), "its own time is not over");
    world.redis.clear();
    world.pass(LEASE);
    assert_eq!(world.reply(of_a), "lost x lock missing");
}

#[test]
fn an_events_command_on_a_closed_connection_does_not_consume_events() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.lock(a, "x");
    let (session, secret) = ticket.clone();
    let wait = Duration::from_secs(600);
    world.command(a, Command::Events { session, secret, wait });
    world.close(a);
    world.redis.clear();
    world.pass(LEASE);
    let b = world.open_as(0, [1; 16]);
    world.resume(b, &ticket);
    world.replies.clear();
    assert_eq!(world.events(b), ["lost x lock missing"]);
}

#[test]
fn a_resumed_session_does_not_inherit_the_deadlines_setting() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    world.command(
        a,
        Command::Session { grace: None, push: None, deadlines: Some(true), process: None },
    );
    world.lock(a, "x");
    world.pass(LEASE);
    assert!(world.events(a).iter().all(|event| event.starts_with("valid x lock")));
    world.close(a);
    world.pass(LEASE);
    let b = world.open_as(0, [1; 16]);
    world.resume(b, &ticket);
    world.replies.clear();
    assert_eq!(world.events(b), Vec::<String>::new());
}

#[test]
fn losses_while_no_agent_ran_are_counted_and_logged() {
    let mut world = World::new();
    let (a, _) = world.graced();
    world.lock(a, "x");
    let lease = Lease::new(Duration::from_secs(1));
    world.command(a, Command::Lock(LockRequest { lease, ..lock_command("y") }));
    world.redis.remove("x");
    world.kill_and_restart(Duration::from_secs(2));
    world.losses.sort_unstable();
    let both = ["loss counted", "loss logged", "overrun counted", "overrun logged"];
    assert_eq!(world.losses, both);
}

#[test]
fn a_successor_agent_releases_the_locks_of_an_unanswered_mlock() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let mlock = |names: [&str; 2]| Command::LockAll(names.map(lock_command).into());
    world.command(a, mlock(["v", "w"]));
    assert_eq!(world.reply(a), "held 1 held 1");
    world.foreign("y", FOREIGN, GRACE);
    world.command(a, mlock(["x", "y"]));
    assert_eq!(world.holders("x").len(), 1);
    world.kill_and_restart(Duration::from_secs(1));
    let b = world.open_as(0, NEXT);
    world.resume(b, &ticket);
    assert_eq!(world.resumed(b).1, ["v lock 1", "w lock 1"]);
    assert!(world.holders("x").is_empty());
}

#[test]
fn jeopardy_is_reported_again_to_a_resumed_session_in_order_of_arrival() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let all: Vec<_> = (0..9).rev().map(|lock| format!("jeopardy x{lock}")).collect();
    all.iter().for_each(|event| world.lock(a, event.trim_start_matches("jeopardy ")));
    world.network = Network::Down;
    world.pass(LEASE * 2 / 3 + Duration::from_secs(1));
    let jeopardy = |events: Vec<String>| -> Vec<String> {
        let short = |event: String| event.split(' ').take(2).collect::<Vec<_>>().join(" ");
        events.into_iter().map(short).collect()
    };
    // Each renewal has its own jitter.
    let mut first = jeopardy(world.events(a));
    first.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(first, all);
    world.close(a);
    let b = world.open_as(0, [1; 16]);
    world.resume(b, &ticket);
    world.replies.clear();
    assert_eq!(jeopardy(world.events(b)), all);
    world.command(
        b,
        Command::Session { grace: None, push: Some(true), deadlines: None, process: None },
    );
    assert_eq!(
        jeopardy(world.events(b)),
        all,
        "jeopardy is reported again when pushes are enabled"
    );
    world.command(
        b,
        Command::Session { grace: None, push: Some(true), deadlines: None, process: None },
    );
    assert_eq!(world.events(b), Vec::<String>::new());
}
