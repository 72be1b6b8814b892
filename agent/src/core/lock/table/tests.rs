//! Tests of the lock table alone.

use std::time::Duration;

use redisson::{Family, Grouping, Kind, LockName, Moment};

use super::{LockTable, LockTimer, Step};
use crate::core::ids::{OpId, Owner, ReplyTo, WaiterId};
use crate::core::lock::waiter::{FairPosition, Waiter};
use crate::core::{Limits, Node};
use crate::protocol::command::Wait;
use crate::types::ConnectionId;

const T: fn(u64) -> Moment = |s| Moment::default() + Duration::from_secs(s);

fn name() -> LockName {
    LockName::new(b"x".to_vec()).expect("a name")
}

/// Returns a table in which the name is in use, with these waiters in its queue.
fn table(waiters: &[(WaiterId, Kind)]) -> LockTable {
    let mut table = LockTable::new(
        Grouping::new(Vec::new(), 10),
        Limits { max_waiters: 1000, max_locks: 1000 },
    );
    let group = table.label(&name()).group;
    table.insert(name(), group);
    for (id, kind) in waiters {
        table.add_waiter(*id, waiter(*id, *kind), Moment::NEVER);
        table.enqueue(&name(), *id);
    }
    table
}

fn waiter(id: WaiterId, kind: Kind) -> Box<Waiter> {
    let connection = ConnectionId(1);
    Box::new(Waiter {
        name: name(),
        kind,
        number: id,
        owner: Owner { connection, owner: id },
        uid: 1000,
        reply_to: ReplyTo { connection, seq: 0, member: None },
        lease: None,
        wait: Wait::Forever,
        since: T(0),
        trace: None,
        span: tracing::Span::none(),
        behind: None,
        refused: false,
        position: FairPosition::default(),
        attempt: None,
        undoing: None,
        arrival: None,
        armed: Moment::NEVER,
    })
}

#[test]
fn names_that_are_no_longer_in_use_leave_no_memory() {
    let mut table = table(&[]);
    let names: Vec<LockName> =
        (0..20_000).map(|n| LockName::new(n.to_string().into_bytes()).unwrap()).collect();
    for name in &names {
        let group = table.label(name).group;
        table.insert(name.clone(), group);
    }
    for name in &names[100..] {
        assert_eq!(table.next_step(name, T(0)), Step::Nothing);
    }
    assert_eq!(table.locks.len(), 101);
    // Only an empty map's capacity shows how much memory it has.
    table.locks.clear();
    assert!(table.locks.capacity() < 10_000, "{}", table.locks.capacity());
}

#[test]
fn only_the_front_waiter_makes_an_attempt_and_only_one() {
    let mut table = table(&[(1, Kind::Lock), (2, Kind::Lock)]);
    assert_eq!(table.next_step(&name(), T(0)), Step::Attempt(1));
    table.begin_attempt(1, OpId(7));
    table.begin_contest(&name(), OpId(7));
    assert_eq!(table.next_step(&name(), T(0)), Step::Nothing);
    table.end_attempt(&name(), 1, OpId(6));
    assert_eq!(table.next_step(&name(), T(0)), Step::Nothing, "another attempt has ended");
    table.end_attempt(&name(), 1, OpId(7));
    assert_eq!(table.next_step(&name(), T(0)), Step::Attempt(1));
}

#[test]
fn the_front_waiter_does_not_try_while_a_local_hold_excludes_it() {
    let mut table = table(&[(2, Kind::Write)]);
    table.add_hold(&name(), Kind::Read, 1, 1000);
    assert_eq!(table.next_step(&name(), T(0)), Step::Nothing);
    table.begin_leaving(&name(), Kind::Read);
    table.remove_hold(&name(), 1, 1000);
    assert_eq!(table.next_step(&name(), T(0)), Step::Nothing, "its release is in flight");
    assert!(table.end_leaving(&name(), Kind::Read));
    assert_eq!(table.next_step(&name(), T(0)), Step::Attempt(2));
}

#[test]
fn readers_at_the_front_join_a_local_reader_together() {
    let readers = [(2, Kind::Read), (3, Kind::Read), (4, Kind::Write), (5, Kind::Read)];
    let mut table = table(&readers);
    table.add_hold(&name(), Kind::Read, 1, 1000);
    table.begin_attempt(2, OpId(7));
    assert_eq!(table.next_step(&name(), T(0)), Step::Join(vec![3]));
}

/// Otherwise each of many readers would visit all the others.
#[test]
fn readers_with_an_attempt_in_flight_are_not_visited_again() {
    let readers: Vec<_> = (1..=5).map(|id| (id, Kind::Read)).collect();
    let mut table = table(&readers);
    table.add_hold(&name(), Kind::Read, 9, 1000);
    for id in 1..5 {
        table.begin_attempt(id, OpId(7));
    }
    // The others are removed, so a visit would fail.
    let mut found: Vec<_> = (2..5).map(|id| table.waiters.remove(&id)).collect();
    assert_eq!(table.next_step(&name(), T(0)), Step::Join(vec![5]));
    table.begin_attempt(5, OpId(8));
    assert_eq!(table.next_step(&name(), T(0)), Step::Join(vec![]));
    assert!(found.drain(..).all(|waiter| waiter.is_some()));
}

#[test]
fn readers_behind_a_writer_that_leaves_join_in_queue_order() {
    let kinds = [Kind::Read, Kind::Write, Kind::Read, Kind::Write, Kind::Read];
    // The third one is in the queue before others with lower numbers.
    let ids = [1, 2, 9, 4, 5];
    let mut table = table(&std::iter::zip(ids, kinds).collect::<Vec<_>>());
    table.add_hold(&name(), Kind::Read, 10, 1000);
    assert_eq!(table.next_step(&name(), T(0)), Step::Join(vec![1]));
    let leave = |table: &mut LockTable, id| {
        table.remove_waiter(id).expect("the waiter");
        table.dequeue(&name(), id);
        table.next_step(&name(), T(0))
    };
    assert_eq!(leave(&mut table, 4), Step::Join(vec![1]));
    assert_eq!(leave(&mut table, 2), Step::Join(vec![1, 9, 5]));
    table.begin_attempt(9, OpId(7));
    assert_eq!(table.next_step(&name(), T(0)), Step::Join(vec![1, 5]));
    table.end_attempt(&name(), 9, OpId(7));
    assert_eq!(leave(&mut table, 1), Step::Join(vec![9, 5]));
}

#[test]
fn the_list_of_joining_readers_always_matches_the_queue() {
    let mut random: u64 = 7;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let mut table = table(&[]);
    let mut joined = 0;
    for step in 0..20_000 {
        // Numbers return in any order, so the queue is not sorted.
        let id = i64::try_from(draw(12)).expect("a small number");
        let op = OpId(draw(2));
        match draw(6) {
            0 | 1 if !table.has_waiter(id) => {
                let kind = if draw(4) == 0 { Kind::Write } else { Kind::Read };
                table.add_waiter(id, waiter(id, kind), Moment::NEVER);
                if draw(3) == 0 {
                    table.begin_attempt(id, op);
                }
                table.enqueue(&name(), id);
            }
            2 if table.remove_waiter(id).is_some() => table.dequeue(&name(), id),
            3 => table.begin_attempt(id, op),
            _ => table.end_attempt(&name(), id, op),
        }
        assert_eq!(table.find_wrong_joiners(), None, "step {step}: {table:?}");
        joined += table.locks[&name()].queue.joiners().len();
    }
    assert!(joined > 1_000, "{joined}");
}

#[test]
fn a_waiter_is_found_by_its_latest_number_until_it_is_removed() {
    let mut table = table(&[(1, Kind::Fair), (2, Kind::Fair)]);
    let known = |table: &LockTable| {
        let under = |number| table.waiter_under(&name(), number);
        let numbers = 1..=5;
        assert!(numbers.clone().all(|n| table.is_wanted(n) == under(n).is_some()));
        numbers.map(under).collect::<Vec<_>>()
    };
    assert_eq!(known(&table), [Some(1), Some(2), None, None, None]);
    table.renumber(1, 3);
    assert_eq!(known(&table), [None, Some(2), Some(1), None, None]);
    table.renumber(1, 4);
    table.renumber(2, 5);
    assert_eq!(known(&table), [None, None, None, Some(1), Some(2)]);
    let other = LockName::new(b"y".to_vec()).expect("a name");
    assert_eq!(table.waiter_under(&other, 4), None);
    table.remove_waiter(1).expect("the waiter");
    assert_eq!(known(&table), [None, None, None, None, Some(2)]);
    table.renumber(1, 3);
    assert!(!table.is_wanted(3), "the waiter is removed");
    table.remove_waiter(2).expect("the waiter");
    assert!(table.renumbered.is_empty());
}

#[test]
fn a_name_without_holds_and_waiters_is_removed_with_its_deadline() {
    let mut table = table(&[(1, Kind::Lock)]);
    table.sleep(&name(), T(5));
    assert_eq!(table.next_deadline(), Some(T(5)));
    table.remove_waiter(1).expect("the waiter");
    table.dequeue(&name(), 1);
    assert_eq!(table.next_step(&name(), T(1)), Step::Nothing);
    assert!(table.is_empty() && table.next_deadline().is_none());
    assert!(!table.contains(&name()));
}

#[test]
fn a_group_is_reported_once() {
    let mut table = table(&[]);
    let mut groups = |lock: &[u8]| table.label(&LockName::new(lock).unwrap()).groups;
    let before = groups(b"order:1").unwrap();
    assert_eq!(
        [b"order:2", b"offer:1", b"order:1"].map(|lock| groups(lock)),
        [None, Some(before + 1), None]
    );
}

#[test]
fn the_front_waiter_sleeps_while_it_yields_the_lock_to_other_clients() {
    let mut table = table(&[(1, Kind::Lock)]);
    assert!(table.stand_back(&name(), T(5)));
    assert_eq!(table.next_step(&name(), T(1)), Step::Nothing);
    assert_eq!(table.pop_due(T(5)), Some(LockTimer::Lock(name())));
    assert!(table.wake(&name()));
    assert_eq!(table.next_step(&name(), T(5)), Step::Attempt(1));
}

#[test]
fn a_release_message_wakes_only_a_listening_waiter_that_does_not_yield() {
    let mut table = table(&[(1, Kind::Lock)]);
    let on_message = |table: &mut LockTable, node, at| {
        table.on_message(node, &name(), T(at), 2, Duration::from_secs(1))
    };
    assert!(!on_message(&mut table, Node::Main, 1), "the lock has no subscription");
    let channel = table.listen(&name(), Family::Plain).expect("a channel");
    assert!(table.listen(&name(), Family::Plain).is_none(), "the lock has a subscription already");
    assert!(on_message(&mut table, Node::Main, 1));
    assert!(!on_message(&mut table, Node::Red(0), 1), "it is not a red lock");
    table.stand_back(&name(), T(3));
    assert!(!on_message(&mut table, Node::Main, 2));
    assert!(table.take_message(&name(), T(2)) && !table.take_message(&name(), T(0)));
    assert!(table.stop_listening(&name()).is_none(), "a waiter needs the subscription");
    table.dequeue(&name(), 1);
    assert_eq!(table.stop_listening(&name()).map(|ended| ended.channel), Some(channel));
    assert_eq!(table.subscriptions(), 0);
}

#[test]
fn a_red_waiter_wakes_at_a_majority_of_messages_or_soon_after_the_first() {
    let mut table = table(&[(1, Kind::Red)]);
    table.listen(&name(), Family::Red).expect("a channel");
    table.sleep(&name(), T(60));
    let second = Duration::from_secs(1);
    assert!(!table.on_message(Node::Red(0), &name(), T(1), 2, second));
    assert_eq!(table.next_deadline(), Some(T(2)));
    assert!(!table.on_message(Node::Red(0), &name(), T(1), 2, second), "the same node again");
    assert!(table.on_message(Node::Red(2), &name(), T(1), 2, second));
    assert!(table.wake(&name()) && table.next_deadline().is_none());
}

#[test]
fn a_fair_position_has_one_channel_and_is_woken_while_it_sleeps() {
    let mut table = table(&[(1, Kind::Fair)]);
    let first = table.on_queued(1, T(0), vec![], b"a".to_vec()).expect("a new channel");
    assert_eq!((first.old, table.subscriptions()), (None, 1));
    assert!(table.on_queued(1, T(0), vec![], b"a".to_vec()).is_none());
    let second = table.on_queued(1, T(0), vec![], b"b".to_vec()).expect("another channel");
    assert_eq!((second.old, table.subscriptions()), (Some(b"a".to_vec()), 1));
    assert!(!table.wake_fair(1), "it does not sleep");
    table.retry_at(1, T(9));
    assert!(table.wake_fair(1) && table.next_deadline().is_none());
    let removed = table.remove_waiter(1).expect("the waiter");
    assert_eq!((removed.channel, table.subscriptions()), (Some(b"b".to_vec()), 0));
}
