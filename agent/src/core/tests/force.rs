//! Tests of forced releases.

use std::time::Duration;

use redisson::HolderId;

use super::world::short;
use crate::core::Lane;
use crate::core::simulation::kinds;
use crate::core::simulation::red::{self, lock_name, red_lock};
use crate::core::simulation::world::{Scenario, World};
use crate::protocol::command::{Command, LockRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;

const MOMENT: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_secs(3);

fn force<S: Scenario>(world: &mut World<S>, agent: usize, operator: ConnectionId, lock: &str) {
    world.excuse_loss(lock);
    let command = Command::Force { name: lock_name(lock), holder: None, report: false };
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

/// Asserts that a forced release is reported as unknown whose answers are lost, before every server is in this state.
fn is_unknown<S: Scenario>(world: &mut World<S>, operator: ConnectionId, state: &str) {
    break_after_force(world, operator);
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
    for state in ["back", "silent", "loading"] {
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
    for state in ["back", "silent", "loading"] {
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
