//! Tests of forced releases.

use std::time::Duration;

use redisson::script::Publish;
use redisson::{ClientId, HolderId, Kind, Lease, script};

use super::world::short;
use crate::core::Lane;
use crate::core::simulation::kinds;
use crate::core::simulation::red::{self, hold_request, lock_name, red_lock};
use crate::core::simulation::redis::{Content, Entry};
use crate::core::simulation::world::{Scenario, World};
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;

const MOMENT: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_secs(3);

fn force<S: Scenario>(world: &mut World<S>, agent: usize, operator: ConnectionId, lock: &str) {
    force_holder(world, agent, operator, lock, None);
}

/// Releases a lock, or one holder's hold.
fn force_holder<S: Scenario>(
    world: &mut World<S>,
    agent: usize,
    operator: ConnectionId,
    lock: &str,
    holder: Option<HolderId>,
) {
    world.excuse_loss(lock);
    let holder = holder.map(|id| id.to_string().into_bytes());
    let command = Command::Force { name: lock_name(lock), holder, report: false };
    world.command(agent, operator, command);
}

fn reply<S: Scenario>(world: &mut World<S>, agent: usize, connection: ConnectionId) -> String {
    let replies: Vec<_> = world.replies_of(agent, connection).iter().map(short).collect();
    replies.join(" ")
}

fn holders<S: Scenario>(world: &World<S>, server: usize) -> Vec<HolderId> {
    let fields = world.servers[server].redis.fields("x");
    fields.iter().filter_map(|(field, _)| HolderId::parse(field.as_bytes())).collect()
}

const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// Lets an operator of the first agent release `x`, for which the second agent waits. Once the second agent has the lock on
/// every server, the first one's connections break, before it has received an answer.
fn break_after_force<S: Scenario>(world: &mut World<S>, operator: ConnectionId) {
    let servers = 0..world.servers.len();
    let next = world.agents[1].core.numbers.client();
    servers.clone().for_each(|server| world.answers_later(server, 20_000));
    force(world, 0, operator, "x");
    let has_next = |world: &World<S>, node| holders(world, node).iter().any(|id| id.client == next);
    for _ in 0..5_000 {
        if servers.clone().all(|node| has_next(world, node)) {
            break;
        }
        world.pass(MOMENT);
    }
    assert!(servers.clone().all(|node| has_next(world, node)), "the other agent waits");
    assert_eq!(reply(world, 0, operator), "");
    for server in servers {
        world.answers_later(server, 0);
        world.break_connection((0, server, Lane::Commands), "a test");
    }
}

/// Asserts that a forced release is reported as unknown whose answers are lost, before every server, or the agent, is in
/// this state.
fn is_unknown<S: Scenario>(world: &mut World<S>, operator: ConnectionId, state: &str) {
    break_after_force(world, operator);
    if state == "stalled" {
        // The repeats have no connection yet, and the agent runs again when it is too late for them.
        world.pass(MOMENT);
        world.stall(0, 2_500_000);
    }
    for server in 0..world.servers.len() {
        match state {
            "silent" => world.freeze(server, LATER * 2),
            "loading" => world.servers[server].refuses = Some(LOADING),
            _ => {}
        }
    }
    world.pass(LATER);
    assert_eq!(reply(world, 0, operator), "UNAVAILABLE", "{state}");
    assert_eq!(world.audited, [false], "{state}");
}

#[test]
fn a_forced_release_whose_answer_was_lost_is_reported_as_unknown() {
    for state in ["back", "silent", "loading", "stalled"] {
        let mut world = kinds::World::new(7, 1, 2, |settings| settings.red = None);
        let (a, operator, b) = (world.open(0), world.open(0), world.open(1));
        for (agent, session) in [(0, a), (1, b)] {
            let request = LockRequest { wait: Wait::Forever, ..LockRequest::new(lock_name("x")) };
            world.command(agent, session, Command::Lock(request));
            world.pass(MOMENT * 500);
        }
        is_unknown(&mut world, operator, state);
    }
}

#[test]
fn a_forced_release_of_a_red_lock_whose_answers_were_lost_is_reported_as_unknown() {
    for state in ["back", "silent", "loading", "stalled"] {
        let mut world = red::World::new(7, 3, 2, |_| {});
        let (a, operator, b) = (world.open(0), world.open(0), world.open(1));
        for (agent, session) in [(0, a), (1, b)] {
            world.command(agent, session, red_lock("x", Wait::Forever, None));
            world.pass(MOMENT * 500);
        }
        is_unknown(&mut world, operator, state);
    }
}

#[test]
fn a_removal_of_dead_waiters_whose_answer_was_lost_is_logged() {
    let mut world = kinds::World::new(7, 1, 1, |settings| settings.red = None);
    let operator = world.open(0);
    let (lock, agent) = (lock_name("x"), HolderId::new(ClientId::from_random([40; 16]), 1));
    let lease = Lease::new(Duration::from_millis(500)).unwrap();
    let fair = |n, wait| {
        let holder = HolderId { thread: n, ..agent };
        script::acquire_fair(&lock, &holder, lease, wait, Some(MOMENT), &agent, Publish::Plain)
    };
    world.foreign(0, &fair(1, MOMENT));
    world.foreign(0, &fair(2, MOMENT));
    world.pass(LATER);
    world.answers_later(0, 20_000);
    force(&mut world, 0, operator, "x");
    world.pass(MOMENT * 30);
    world.freeze(0, LATER * 2);
    world.break_connection((0, 0, Lane::Commands), "a test");
    world.pass(LATER);
    assert_eq!(reply(&mut world, 0, operator), "UNAVAILABLE");
    assert_eq!(world.audited, [false]);
}

#[test]
fn a_forced_release_of_one_reader_leaves_the_lock_to_the_others() {
    let mut world = kinds::World::new(7, 1, 2, |settings| settings.red = None);
    let (a, b, writer, operator) = (world.open(0), world.open(1), world.open(0), world.open(0));
    let request = |kind| LockRequest { kind, ..LockRequest::new(lock_name("x")) };
    let write = LockRequest { wait: Wait::Forever, ..request(Kind::Write) };
    for (agent, session) in [(0, a), (1, b)] {
        world.command(agent, session, Command::Lock(request(Kind::Read)));
        world.pass(MOMENT * 500);
        assert_eq!(reply(&mut world, agent, session), "held 1");
    }
    world.command(0, writer, Command::Lock(write));
    world.pass(MOMENT * 500);
    let client = |agent: usize| world.agents[agent].core.numbers.client();
    let (first, second) = (client(0), client(1));
    let of = |world: &kinds::World, client| {
        holders(world, 0).into_iter().find(|id| id.client == client).expect("it holds")
    };
    let named = of(&world, first);
    force_holder(&mut world, 0, operator, "x", Some(named));
    world.pass(MOMENT * 10);
    assert_eq!(reply(&mut world, 0, operator), "1");
    assert_eq!(holders(&world, 0), [of(&world, second)]);
    let unlock = |world: &mut kinds::World, agent, session| {
        world.command(agent, session, Command::Unlock(hold_request("x")));
        world.pass(MOMENT * 10);
        reply(world, agent, session)
    };
    assert_eq!(unlock(&mut world, 0, a), "LOST");
    assert_eq!(reply(&mut world, 0, writer), "", "a reader has the lock");
    let last = of(&world, second);
    force_holder(&mut world, 0, operator, "x", Some(last));
    world.pass(MOMENT * 10);
    assert_eq!(reply(&mut world, 0, writer), "held 1");
    assert_eq!(unlock(&mut world, 1, b), "LOST");
    assert_eq!(world.audited, [true, true]);
}

/// `RedissonRedLock` takes locks of any kind, also read locks, and has another client's id on each server.
#[test]
fn a_forced_release_of_one_reader_of_a_red_lock_leaves_it_to_the_others() {
    // Only the servers of red locks may have this name.
    let mut world = red::World::new(7, 3, 1, |settings| settings.slots = true);
    let (lock, operator) = ("a{b", world.open(0));
    let lease = Lease::new(Duration::from_secs(600)).unwrap();
    let field = |node: u8, thread| HolderId::new(ClientId::from_random([40 + node; 16]), thread);
    for (node, thread) in [(0, 57), (1, 57), (2, 57), (0, 58), (1, 58)] {
        let read = script::acquire_read(&lock_name(lock), &field(node, thread), lease, None);
        world.foreign(usize::from(node), &read);
    }
    force_holder(&mut world, 0, operator, lock, Some(field(1, 57)));
    world.pass(MOMENT * 10);
    assert_eq!(reply(&mut world, 0, operator), "1");
    for (node, left) in [(0, Some(58)), (1, Some(58)), (2, None)] {
        let fields = world.servers[usize::from(node)].redis.fields(lock).iter();
        let fields: Vec<_> = fields.map(|(id, _)| id.clone()).filter(|id| id != "mode").collect();
        let left: Vec<_> = left.map(|thread| field(node, thread).to_string()).into_iter().collect();
        assert_eq!(fields, left, "server {node}");
    }
}

#[test]
fn an_unknown_client_among_several_holders_is_not_released_alone() {
    let mut world = kinds::World::new(7, 1, 1, |settings| settings.red = None);
    let (reader, operator) = (world.open(0), world.open(0));
    let request = LockRequest { kind: Kind::Read, ..LockRequest::new(lock_name("x")) };
    world.command(0, reader, Command::Lock(request));
    world.pass(MOMENT * 10);
    let Some(Entry { content: Content::Hash(fields), .. }) =
        world.servers[0].redis.keys_mut().get_mut("x")
    else {
        panic!("no lock");
    };
    fields.push(("worker-1".to_owned(), "1".to_owned()));
    let before = world.servers[0].redis.fields("x").to_vec();
    let name = lock_name("x");
    let command = Command::Force { name, holder: Some(b"worker-1".to_vec()), report: false };
    world.command(0, operator, command);
    world.pass(MOMENT * 10);
    assert_eq!(reply(&mut world, 0, operator), "LIMIT");
    assert_eq!(world.servers[0].redis.fields("x"), before);
}

#[test]
fn a_red_lock_is_shown_and_released_although_its_name_does_not_fit_the_cluster() {
    let mut world = red::World::new(7, 3, 2, |settings| settings.slots = true);
    let (a, operator) = (world.open(0), world.open(1));
    let name = lock_name("a{b");
    world.command(0, a, red_lock("a{b", Wait::Forever, None));
    world.pass(MOMENT * 10);
    assert_eq!(reply(&mut world, 0, a), "held 1");
    world.command(1, operator, Command::Show(name.clone()));
    world.pass(MOMENT * 10);
    let shown = format!("{:?}", world.replies_of(1, operator));
    assert!(shown.contains(&format!("{:?}", Frame::bytes("node2"))), "{shown}");
    force(&mut world, 1, operator, "a{b");
    world.pass(MOMENT * 10);
    assert_eq!((reply(&mut world, 1, operator), world.standing("a{b")), ("1".to_owned(), 0));
    // The cluster may have a lock of that name.
    world.command(1, operator, Command::Show(name));
    force(&mut world, 1, operator, "a{b");
    world.pass(MOMENT * 10);
    assert_eq!(reply(&mut world, 1, operator), "LIMIT LIMIT");
}
