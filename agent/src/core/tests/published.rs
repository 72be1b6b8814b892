//! Tests of differences between the holder registry and the holds and waits.

use std::collections::BTreeSet;
use std::time::Duration;

use redisson::{Kind, Moment};

use super::grace::NEXT;
use super::world::{Network, World};
use crate::core::report::{PublishDiff, PublishedPage};
use crate::types::Number;

const SECOND: Duration = Duration::from_secs(1);

fn empty_page() -> PublishedPage {
    PublishedPage {
        after: 0,
        until: Number::MAX,
        numbers: Vec::new(),
        stale: Vec::new(),
        transient: Vec::new(),
        changed_since: Moment::NEVER,
        min_age: SECOND,
        red: false,
    }
}

fn compare(world: &World, after: Number, until: Number, numbers: &[Number]) -> PublishDiff {
    let numbers = numbers.to_vec();
    world.core.diff_published(&PublishedPage { after, until, numbers, ..empty_page() })
}

fn due(differences: &PublishDiff) -> Vec<Number> {
    differences.due.iter().map(|row| row.number).collect()
}

#[test]
fn unpublished_holds_and_waits_are_due_and_ended_ones_are_gone() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    assert_eq!(due(&compare(&world, 0, Number::MAX, &[])), [0; 0], "both are young");
    world.pass(SECOND);
    let differences = compare(&world, 0, Number::MAX, &[]);
    let numbers = due(&differences);
    assert_eq!(numbers.len(), 2, "the hold and the wait");
    assert_eq!(differences.next, None);
    assert_eq!(differences.due[0].session, world.core.session_name(a));
    assert!(differences.due[0].age_ms >= 1_000);
    let [held, waiting] = numbers[..] else { panic!() };
    assert_eq!(due(&compare(&world, 0, Number::MAX, &[held])), [waiting]);
    assert_eq!(due(&compare(&world, held, Number::MAX, &[])), [waiting]);
    world.close(b);
    let differences = compare(&world, 0, Number::MAX, &[held, waiting]);
    assert_eq!((due(&differences), differences.gone), (vec![], vec![waiting]));
}

#[test]
fn a_wait_is_published_under_the_number_of_its_next_attempt() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.pass(SECOND);
    let before = due(&compare(&world, 0, Number::MAX, &[]));
    let [held, waiting] = before[..] else { panic!() };
    world.core.renumber(waiting);
    let differences = compare(&world, 0, Number::MAX, &before);
    assert_eq!(differences.gone, [waiting]);
    let [awaited] = &world.core.awaited(false, SECOND)[..] else { panic!() };
    assert_eq!(due(&differences), [awaited.named[0].0]);
    world.unlock(a, "x");
    world.pass(SECOND * 2);
    assert_eq!(due(&compare(&world, held, Number::MAX, &[])), due(&differences));
}

#[test]
fn the_entry_of_a_wait_is_due_again_once_the_lock_is_held() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "x");
    world.pass(SECOND);
    let before = compare(&world, 0, Number::MAX, &[]);
    let [held, waiting] = due(&before)[..] else { panic!() };
    assert_eq!(before.due.iter().map(|row| row.transient).collect::<Vec<_>>(), [false, true]);
    let (numbers, transient) = (vec![waiting], vec![waiting]);
    let page = PublishedPage { after: held, numbers, transient, ..empty_page() };
    assert_eq!(due(&world.core.diff_published(&page)), [0; 0], "it still waits");
    world.unlock(a, "x");
    world.pass(SECOND * 2);
    let again = world.core.diff_published(&page);
    assert_eq!((due(&again), again.due[0].transient), (vec![waiting], false));
    assert!(again.due[0].age_ms < 2_100, "the time since the grant");
}

#[test]
fn a_stale_entry_is_due_again_while_its_hold_lasts() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.lock(a, "x");
    world.lock(b, "y");
    world.pass(SECOND);
    let numbers = due(&compare(&world, 0, Number::MAX, &[]));
    let compare_stale = |world: &World| {
        let (numbers, stale) = (numbers.clone(), numbers.clone());
        world.core.diff_published(&PublishedPage { numbers, stale, ..empty_page() })
    };
    let both = compare_stale(&world);
    assert_eq!((due(&both), both.gone), (numbers.clone(), vec![]));
    assert_eq!(both.due[0].lock.as_bytes(), b"x");
    world.close(a);
    let one = compare_stale(&world);
    assert_eq!((due(&one), one.gone), (vec![numbers[1]], vec![numbers[0]]));
}

#[test]
fn the_entry_of_a_changed_worker_is_due_again() {
    let mut world = World::new();
    let (a, ticket) = world.graced();
    let b = world.open();
    world.lock(a, "x");
    world.lock(b, "y");
    world.replies.clear();
    world.pass(SECOND);
    let numbers = due(&compare(&world, 0, Number::MAX, &[]));
    let [x, y] = numbers[..] else { panic!() };
    let since = |world: &World, changed_since| {
        let numbers = numbers.clone();
        let page = PublishedPage { numbers, changed_since, ..empty_page() };
        world.core.diff_published(&page).due
    };
    let before = world.now;
    assert_eq!(since(&world, before), []);
    assert_eq!(since(&world, Moment::default()).len(), 2, "over a new connection");
    world.close(a);
    let next = world.open_as(0, NEXT);
    world.resume(next, &ticket);
    let again = since(&world, before);
    assert_eq!((again[0].number, again[0].pid, again.len()), (x, Some(3), 1));
    world.pass(SECOND);
    let resumed = world.now;
    assert_eq!(since(&world, resumed), []);
    world.core.on_named(b, b"billing".to_vec());
    let again = since(&world, resumed);
    assert_eq!((again[0].number, again[0].client.as_deref(), again.len()), (y, Some("billing"), 1));
}

#[test]
fn many_holds_are_compared_in_pages() {
    let mut world = World::new();
    let all: usize = 2_345;
    let mut session = world.open();
    for lock in 0..all {
        if lock % 100 == 0 {
            session = world.open();
        }
        world.lock(session, &format!("lock{lock}"));
    }
    world.pass(SECOND);
    let (mut after, mut found) = (0, BTreeSet::new());
    loop {
        let differences = compare(&world, after, Number::MAX, &[]);
        for number in due(&differences) {
            assert!(number > after && found.insert(number));
        }
        let Some(next) = differences.next else { break };
        after = next;
    }
    assert_eq!(found.len(), all);
    // A partial comparison reports its end, and nothing beyond it.
    let numbers: Vec<Number> = found.iter().copied().collect();
    let part = compare(&world, numbers[9], numbers[19], &[]);
    assert_eq!((due(&part).as_slice(), part.next), (&numbers[10..=19], Some(numbers[19])));
}

#[test]
fn an_awaited_lock_reports_the_count_of_all_its_waiters() {
    let mut world = World::new();
    let holder = world.open();
    world.lock(holder, "x");
    world.lock(holder, "alone");
    let waiters: Vec<_> = (0..10).map(|_| world.open()).collect();
    for waiter in &waiters {
        world.lock(*waiter, "x");
    }
    assert!(world.core.awaited(false, SECOND).is_empty(), "all are young");
    world.pass(SECOND);
    let late = world.open();
    world.lock(late, "x");
    let awaited = world.core.awaited(false, SECOND);
    let [x] = awaited.as_slice() else { panic!("{awaited:?}") };
    assert_eq!((x.lock.as_str(), x.count, x.named.len()), (Some("x"), 11, 8));
    assert!(x.named.is_sorted(), "in order of arrival");
    for waiter in waiters {
        world.close(waiter);
    }
    assert!(world.core.awaited(false, SECOND).is_empty(), "only a young one is left");
    world.pass(SECOND);
    assert_eq!(world.core.awaited(false, SECOND)[0].count, 1);
}

#[test]
fn a_reader_below_its_own_write_hold_waits_for_no_lock() {
    let mut world = World::new();
    let writer = world.open();
    world.lock_as(writer, "x", Kind::Write);
    world.network = Network::Slow(1_500);
    world.lock_as(writer, "x", Kind::Read);
    world.pass(SECOND);
    assert_eq!(world.core.waiters(), 1);
    assert!(world.core.awaited(false, SECOND).is_empty());
}
