//! Tests of red locks on three servers, one feature at a time.

use std::time::Duration;

use redisson::script::{self, Publish};
use redisson::{ClientId, HolderId, Lease};

use super::grace::ticket;
use super::world::short;
use crate::core::simulation::red::{World, hold_request, lock_name, red_lock};
use crate::protocol::command::{Command, Wait};
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;

const NOW: Wait = Wait::AtMost(Duration::ZERO);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn three(agents: u8) -> World {
    World::new(7, 3, agents, |_| {})
}

fn red(wait: Wait, lease: Option<Lease>) -> Command {
    red_lock("x", wait, lease)
}

fn unlock(world: &mut World, agent: usize, connection: ConnectionId) {
    world.command(agent, connection, Command::Unlock(hold_request("x")));
}

/// Returns the replies of a session, in short form.
fn short_replies(world: &mut World, agent: usize, connection: ConnectionId) -> Vec<String> {
    world.replies_of(agent, connection).iter().map(short).collect()
}

fn pass(world: &mut World, time: u64) {
    world.pass(ms(time));
    assert_eq!(world.violation(), None);
}

#[test]
fn a_red_lock_is_acquired_and_released_on_all_servers() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(Wait::Forever, None));
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
    assert_eq!(world.standing("x"), 3);
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["0"]);
    assert_eq!(world.standing("x"), 0);
}

#[test]
fn a_majority_grants_and_releases_without_waiting_for_a_frozen_server() {
    let mut world = three(1);
    let a = world.open(0);
    world.freeze(1, ms(1_000_000));
    for _ in 0..3 {
        world.command(0, a, red(NOW, None));
        pass(&mut world, 3);
        assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
        unlock(&mut world, 0, a);
        pass(&mut world, 3);
        assert_eq!(short_replies(&mut world, 0, a), ["0"]);
    }
}

#[test]
fn an_attempt_counts_the_answers_that_arrived_while_the_agent_was_held_up() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, None));
    world.stall(0, 100_000);
    pass(&mut world, 110);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    // If the servers are stopped too, the attempt ends anyway.
    (0..3).for_each(|node| world.freeze(node, ms(1_000_000)));
    world.command(0, a, red(NOW, None));
    world.stall(0, 100_000);
    pass(&mut world, 5_000);
    assert_eq!(short_replies(&mut world, 0, a), ["0", "UNAVAILABLE"]);
}

#[test]
fn a_missing_vote_is_counted_although_the_majority_grants_the_lock() {
    for killed in [true, false] {
        let mut world = three(1);
        let a = world.open(0);
        if killed {
            world.kill(1, false);
        } else {
            world.freeze(1, ms(1_000_000));
        }
        world.command(0, a, red(NOW, None));
        pass(&mut world, 3000);
        assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
        assert_eq!(world.silent_votes, 1, "killed: {killed}");
    }
}

#[test]
fn releases_do_not_accumulate_for_a_server_that_received_no_acquire() {
    let mut world = three(1);
    let a = world.open(0);
    world.kill(1, false);
    for _ in 0..20 {
        world.command(0, a, red(NOW, None));
        pass(&mut world, 3);
        assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
        unlock(&mut world, 0, a);
        pass(&mut world, 3);
        assert_eq!(short_replies(&mut world, 0, a), ["0"]);
    }
    assert_eq!(world.agents[0].core.ops.values().count(), 0, "scripts to a server that is down");
    assert_eq!(world.standing("x"), 0);
}

#[test]
fn a_release_is_repeated_rarely_for_a_server_that_is_down() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, None));
    pass(&mut world, 3);
    world.kill(1, false);
    unlock(&mut world, 0, a);
    pass(&mut world, 20_000);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1", "0"]);
    assert!((5..20).contains(&world.unsent), "{} attempts in 20 s", world.unsent);
    world.start(1);
    pass(&mut world, 5_000);
    assert_eq!(world.standing("x"), 0);
}

/// A server that was down for the grant gets the hold later, and must then lose it with the others.
#[test]
fn a_hold_is_also_released_on_a_server_that_received_it_later() {
    let mut world = three(1);
    let a = world.open(0);
    world.kill(1, false);
    world.command(0, a, red(NOW, None));
    pass(&mut world, 60);
    assert_eq!(
        (short_replies(&mut world, 0, a), world.standing("x")),
        (vec!["held 1".to_owned()], 2)
    );
    world.start(1);
    pass(&mut world, 5000);
    assert_eq!(world.standing("x"), 3);
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!((short_replies(&mut world, 0, a), world.standing("x")), (vec!["0".to_owned()], 0));
}

#[test]
fn a_server_that_granted_while_the_agent_slept_and_is_gone_then_is_released_later() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red_lock("y", NOW, None));
    pass(&mut world, 10);
    world.command(0, a, red(Wait::Forever, None));
    world.stall(0, 12_000_000);
    pass(&mut world, 10);
    assert_eq!(world.standing("x"), 3);
    world.kill(1, false);
    pass(&mut world, 12_100);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1", "held 1"]);
    unlock(&mut world, 0, a);
    world.start(1);
    pass(&mut world, 5_000);
    assert_eq!((short_replies(&mut world, 0, a), world.standing("x")), (vec!["0".to_owned()], 0));
}

#[test]
fn a_lock_without_a_majority_replies_with_the_servers_names_and_is_undone() {
    let mut world = three(1);
    let a = world.open(0);
    world.kill(0, false);
    world.kill(2, false);
    world.command(0, a, red(NOW, None));
    pass(&mut world, 60);
    let reply = world.replies_of(0, a).remove(0);
    let sentence = format!("{reply:?}");
    assert!(sentence.contains("UNAVAILABLE `x`"), "{sentence}");
    assert!(sentence.contains("node0") && sentence.contains("node2"), "{sentence}");
    assert!(!sentence.contains("node1"), "{sentence}");
    assert_eq!(world.standing("x"), 0);
    // The waiter acquires the lock as soon as there is a majority again.
    world.command(0, a, red(Wait::Forever, None));
    pass(&mut world, 5000);
    assert_eq!(short_replies(&mut world, 0, a), Vec::<String>::new());
    world.start(2);
    pass(&mut world, 1000);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
}

#[test]
fn null_is_sent_only_after_a_minority_vote_is_released() {
    let mut world = three(2);
    let (a, b) = (world.open(0), world.open(1));
    // The first session has a bare majority until it is renewed.
    world.command(0, a, red(NOW, None));
    pass(&mut world, 60);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
    world.delete(2, "x");
    // On the third server the undo is slow.
    world.servers[2].slow = 20_000;
    world.command(1, b, red(NOW, None));
    pass(&mut world, 30);
    assert_eq!(world.standing("x"), 3, "the second session has the third server");
    assert_eq!(short_replies(&mut world, 1, b), Vec::<String>::new());
    while world.standing("x") == 3 {
        assert_eq!(
            short_replies(&mut world, 1, b),
            Vec::<String>::new(),
            "its vote is not released yet"
        );
        pass(&mut world, 1);
    }
    pass(&mut world, 30);
    assert_eq!(short_replies(&mut world, 1, b), ["null"]);
}

#[test]
fn a_release_by_another_agent_wakes_the_waiter() {
    let mut world = three(2);
    let (a, b) = (world.open(0), world.open(1));
    world.command(0, a, red(Wait::Forever, None));
    pass(&mut world, 10);
    world.command(1, b, red(Wait::Forever, None));
    pass(&mut world, 500);
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 1, b), ["held 1"]);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1", "0"]);
}

/// The servers of red locks are never in the cluster that has the other locks.
#[test]
fn a_release_wakes_the_waiter_although_the_cluster_has_shard_channels() {
    for forced in [false, true] {
        let mut world = World::new(7, 3, 2, |settings| settings.publish = Publish::Sharded);
        let (a, b) = (world.open(0), world.open(1));
        world.command(0, a, red(Wait::Forever, None));
        pass(&mut world, 10);
        world.command(1, b, red(Wait::Forever, None));
        pass(&mut world, 500);
        if forced {
            let operator = world.open(0);
            let name = lock_name("x");
            world.excuse_loss("x");
            world.command(0, operator, Command::Force { name, holder: None, report: false });
        } else {
            unlock(&mut world, 0, a);
        }
        pass(&mut world, 10);
        assert_eq!(short_replies(&mut world, 1, b), ["held 1"], "forced: {forced}");
    }
}

/// A `RedissonRedLock` has a separate client for each server, with a separate id: one thread is three holders.
#[test]
fn a_release_by_redisson_wakes_the_waiter() {
    let mut world = three(1);
    let a = world.open(0);
    let lease = Lease::new(ms(600_000)).unwrap();
    let field = |node: usize| {
        let client = ClientId::from_random([40 + u8::try_from(node).unwrap(); 16]);
        HolderId::new(client, 57)
    };
    (0..3).for_each(|node| {
        world.foreign(node, &script::acquire(&lock_name("x"), &field(node), lease));
    });
    world.command(0, a, red(Wait::Forever, None));
    pass(&mut world, 500);
    let is_listening = world.agents[0]
        .core
        .locks
        .get(&lock_name("x"))
        .expect("a waiter exists")
        .listening
        .is_some();
    assert!(is_listening, "the waiter knows that the three holders are one thread");
    assert!(world.agents[0].core.red.is_empty(), "the waiter sleeps");
    for node in [2, 0] {
        let release = script::release(&lock_name("x"), &field(node), Publish::Plain);
        world.foreign(node, &release);
    }
    pass(&mut world, 10);
    assert_eq!(
        short_replies(&mut world, 0, a),
        ["held 1"],
        "a majority is free, and its messages have arrived"
    );
}

#[test]
fn resume_waits_for_an_extend_in_flight() {
    let mut world = three(1);
    let a = world.open(0);
    let grace = Some(ms(60_000));
    world.command(0, a, Command::Session { grace, push: None, deadlines: None, process: None });
    let (session, secret) = ticket(&world.replies_of(0, a).remove(0));
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    world.replies_of(0, a);
    world.freeze(0, ms(1000));
    world.freeze(1, ms(1000));
    world.command(0, a, Command::Extend(hold_request("x"), Lease::new(ms(500))));
    pass(&mut world, 10);
    world.close(0, a);
    let b = world.open(0);
    world.command(0, b, Command::Resume { session, secret });
    assert_eq!(world.replies_of(0, b), [], "the new lease is not known yet");
    pass(&mut world, 1100);
    let resumed = format!("{:?}", world.replies_of(0, b));
    let valid_ms = resumed.split("(\"valid_ms\", Int(").nth(1).expect("a hold");
    let valid_ms: u64 = valid_ms.split(')').next().unwrap().parse().unwrap();
    assert!(valid_ms < 500, "valid for {valid_ms} ms");
}

#[test]
fn show_reports_every_server_and_needs_a_majority() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(Wait::Forever, None));
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
    world.kill(1, false);
    world.command(0, a, Command::Show(lock_name("x")));
    pass(&mut world, 3_000);
    let shown = format!("{:?}", world.replies_of(0, a));
    let core = &world.agents[0].core;
    let number = *core.leases.iter().map(|hold| &hold.number).next().expect("its hold");
    let holder = HolderId::new(core.numbers.client(), number).to_string();
    let bulk = |text: &str| format!("{:?}", Frame::bytes(text));
    assert_eq!(shown.matches(&bulk(&holder)).count(), 3, "as holder, and on two servers: {shown}");
    assert!(shown.contains(&bulk("node1")) && !shown.contains("majority"), "{shown}");
    world.kill(2, false);
    world.command(0, a, Command::Show(lock_name("x")));
    pass(&mut world, 3_000);
    let reply = short_replies(&mut world, 0, a);
    assert_eq!(reply, ["UNAVAILABLE"]);
}

#[test]
fn a_release_published_while_refusals_are_in_flight_is_not_missed() {
    let mut world = three(2);
    let (a, b) = (world.open(0), world.open(1));
    world.command(0, a, red(Wait::Forever, None));
    pass(&mut world, 10);
    world.command(1, b, red(Wait::Forever, None));
    pass(&mut world, 500);
    // It tries again, and the refusal arrives only long after the later release was announced.
    let servers = world.servers.len();
    (0..servers).for_each(|node| world.answers_later(node, 20_000));
    for _ in 0..6000 {
        if world.agents[1].core.red.is_empty() {
            pass(&mut world, 1);
        }
    }
    pass(&mut world, 2);
    assert!(!world.agents[1].core.red.is_empty(), "its attempt is in flight");
    unlock(&mut world, 0, a);
    pass(&mut world, 200);
    assert_eq!(short_replies(&mut world, 1, b), ["held 1"]);
}

#[test]
fn a_release_on_a_bare_majority_wakes_the_waiter() {
    let mut world = three(2);
    let (a, b) = (world.open(0), world.open(1));
    world.command(1, b, red(Wait::Forever, Lease::new(ms(20_000))));
    world.kill(2, false);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 1, b), ["held 1"]);
    world.start(2);
    pass(&mut world, 100);
    world.command(0, a, red(Wait::Forever, None));
    pass(&mut world, 500);
    unlock(&mut world, 1, b);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
}

#[test]
fn three_agents_that_split_the_votes_acquire_in_turn() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, 3, |_| {});
        let sessions: Vec<_> = (0..3).map(|agent| world.open(agent)).collect();
        for (agent, session) in sessions.iter().enumerate() {
            world.command(agent, *session, red(Wait::Forever, None));
        }
        for round in 0..3 {
            let mut winner = None;
            for _ in 0..200 {
                pass(&mut world, 10);
                winner = (0..3).find(|agent| {
                    short_replies(&mut world, *agent, sessions[*agent])
                        .contains(&"held 1".to_owned())
                });
                if winner.is_some() {
                    break;
                }
            }
            let winner = winner.unwrap_or_else(|| {
                panic!("seed {seed}: nobody acquires the lock in round {round}")
            });
            unlock(&mut world, winner, sessions[winner]);
        }
    }
}

#[test]
fn a_re_entry_is_counted_on_every_server() {
    let mut world = three(1);
    let a = world.open(0);
    for held in ["held 1", "held 2"] {
        world.command(0, a, red(NOW, None));
        pass(&mut world, 10);
        assert_eq!(short_replies(&mut world, 0, a), [held]);
    }
    let counts = |world: &World| -> Vec<_> {
        world.servers.iter().map(|server| server.redis.fields("x")[0].1.clone()).collect()
    };
    assert_eq!(counts(&world), ["2", "2", "2"]);
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["1"]);
    assert_eq!(counts(&world), ["1", "1", "1"]);
    // A server that was frozen learns the count with the next renewal.
    world.freeze(0, ms(15_000));
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 2"]);
    pass(&mut world, 20_000);
    assert_eq!(counts(&world), ["2", "2", "2"]);
}

#[test]
fn a_server_that_lost_its_data_gets_the_hold_again_from_the_majority() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    for node in 0..3 {
        world.kill(node, true);
        pass(&mut world, 500);
        assert_eq!(world.standing("x"), 2);
        world.start(node);
        pass(&mut world, 500);
        assert_eq!(world.standing("x"), 3, "server {node} has the hold again");
    }
    pass(&mut world, 60_000);
    assert_eq!(world.standing("x"), 3);
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1", "0"]);
    assert_eq!(world.standing("x"), 0);
}

#[test]
fn a_server_that_lost_its_data_gets_the_rest_of_a_fixed_lease_again() {
    let mut world = three(2);
    let (a, b) = (world.open(0), world.open(1));
    world.command(0, a, red(NOW, Lease::new(ms(300_000))));
    pass(&mut world, 10);
    // One server after the other forgets its vote: without the restored ones a majority would grant the lock again.
    for node in 0..3 {
        world.kill(node, true);
        world.start(node);
        pass(&mut world, 12_000);
        assert_eq!(world.standing("x"), 3, "server {node} has the hold again");
        world.command(1, b, red(NOW, None));
        pass(&mut world, 100);
        assert_eq!(short_replies(&mut world, 1, b), ["null"]);
    }
    pass(&mut world, 250_000);
    assert_eq!(world.standing("x"), 3);
    pass(&mut world, 20_000);
    assert_eq!(world.standing("x"), 0, "the lease ends when it would have");
}

#[test]
fn a_server_that_refuses_the_hold_causes_few_extra_renewals() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    world.kill(2, true);
    world.servers[2].redis.full = true;
    world.start(2);
    let before: Vec<_> = world.servers.iter().map(|server| server.served).collect();
    pass(&mut world, 20_000);
    for (server, before) in world.servers.iter().zip(before) {
        let served = server.served - before;
        assert!((2..30).contains(&served), "{served} scripts in 20 s");
    }
    assert_eq!(world.standing("x"), 2);
    world.servers[2].redis.full = false;
    pass(&mut world, 3_500);
    assert_eq!(world.standing("x"), 3);
}

#[test]
fn a_majority_that_lost_its_data_is_a_loss_and_is_not_restored() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    world.kill(0, true);
    world.kill(1, true);
    world.start(0);
    world.start(1);
    pass(&mut world, 1000);
    assert_eq!(world.standing("x"), 0, "the hold is released on the third server too");
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1", "LOST"]);
}

#[test]
fn jeopardy_and_loss_depend_on_the_majority() {
    let mut world = three(1);
    let (a, listener) = (world.open(0), world.open(0));
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    let session = world.agents[0].core.session_name(a).into_bytes();
    let events = |world: &mut World| {
        let secret = "01".repeat(16).into_bytes();
        let session = session.clone();
        world.command(0, listener, Command::Events { session, secret, wait: Duration::ZERO });
        short_replies(world, 0, listener).pop().unwrap_or_default()
    };
    world.freeze(0, ms(3_600_000));
    pass(&mut world, 120_000);
    assert_eq!(events(&mut world), "", "a minority does not put the hold in jeopardy");
    world.kill(1, false);
    pass(&mut world, 25_000);
    assert!(events(&mut world).starts_with("jeopardy x red"));
    world.start(1);
    pass(&mut world, 1000);
    assert_eq!(events(&mut world), "safe x red");
    world.kill(1, false);
    pass(&mut world, 30_000);
    let events = events(&mut world);
    assert!(events.ends_with("lost x red unconfirmed"), "{events}");
}

#[test]
fn a_late_vote_counts_towards_the_hold() {
    let mut world = three(1);
    let a = world.open(0);
    world.servers[2].slow = 60_000;
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1"]);
    assert_eq!(world.standing("x"), 2);
    pass(&mut world, 200);
    assert_eq!(world.standing("x"), 3);
    let votes = |world: &World| {
        let hold = world.agents[0].core.leases.iter().next().unwrap();
        let votes = &hold.node_leases.as_ref().unwrap().0;
        votes.iter().filter(|vote| vote.valid_until > hold.granted).count()
    };
    assert_eq!(votes(&world), 3);
}

#[test]
fn a_fixed_lease_is_extended_on_the_majority_and_expires() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, Lease::new(ms(1000))));
    pass(&mut world, 500);
    let lease = Lease::new(ms(2000));
    world.command(0, a, Command::Extend(hold_request("x"), lease));
    pass(&mut world, 10);
    let replies = short_replies(&mut world, 0, a);
    assert_eq!(replies[0], "held 1");
    assert!(replies[1].parse::<u64>().is_ok_and(|ms| (1900..2000).contains(&ms)), "{replies:?}");
    pass(&mut world, 1500);
    assert_eq!(world.standing("x"), 3);
    pass(&mut world, 600);
    assert_eq!(world.standing("x"), 0);
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["LOST"]);
}

#[test]
fn a_fixed_lease_is_verified_as_often_as_a_watched_one_is_renewed() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, Lease::new(ms(600_000))));
    pass(&mut world, 25_000);
    assert_eq!(world.standing("x"), 3);
    (0..3).for_each(|node| world.delete(node, "x"));
    // A third of the watchdog's lease.
    pass(&mut world, 11_000);
    assert_eq!(world.agents[0].core.leases.len(), 0, "the loss is found before any command");
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    assert_eq!(short_replies(&mut world, 0, a), ["held 1", "LOST"]);
}

#[test]
fn a_forced_release_counts_after_a_majority_has_released() {
    let mut world = three(1);
    let a = world.open(0);
    world.command(0, a, red(NOW, None));
    pass(&mut world, 10);
    let number = *world.agents[0].core.leases.iter().map(|hold| &hold.number).next().unwrap();
    for node in 0..2 {
        world.servers[node].redis.keys_mut().clear();
        world.forced(0, node, &lock_name("x"), number);
        pass(&mut world, 20_000);
        assert_eq!(world.standing("x"), 2 - 2 * node, "a renewal does not restore the hold");
    }
    unlock(&mut world, 0, a);
    pass(&mut world, 10);
    let reply = world.replies_of(0, a).pop().unwrap();
    assert!(format!("{reply:?}").contains("forced"), "{reply:?}");
}

#[test]
fn an_agent_without_red_servers_names_the_missing_setting() {
    let mut world = World::new(7, 3, 1, |settings| settings.red = None);
    let a = world.open(0);
    world.command(0, a, red(NOW, None));
    let reply = world.replies_of(0, a).remove(0);
    assert!(format!("{reply:?}").contains("SYNTAX `x`"), "{reply:?}");
    assert!(format!("{reply:?}").contains("--redlock-url"), "{reply:?}");
}
