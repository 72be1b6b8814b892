//! Tests of contention counts with the available sources, and of keyspace notifications.

use redisson::monitor;

use super::*;
use crate::model::contention::{Contention, Tally};

fn counted(model: &mut Model, ms: u64) -> Contention {
    model.contention(time(ms))
}

/// Returns the counts of the only lock, which equal those of its group.
fn tally(model: &mut Model, ms: u64) -> Tally {
    let counted = counted(model, ms);
    assert_eq!(counted.groups[0].tally, counted.locks[0].tally);
    counted.locks[0].tally.clone()
}

fn open_monitor(model: &mut Model) {
    model.observe(MAIN, Observation::MonitorActive { on: true });
}

fn read_queue(model: &mut Model, ms: u64, by: u8, companions: Companions) {
    let Reading::Lock { hash, ttl, .. } = held(by, 1, Some(30_000)) else { unreachable!() };
    read(model, "a", ms, Reading::Lock { hash, ttl, companions });
}

#[test]
fn readings_and_messages_count_what_they_show() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    release(&mut model, "a", 400);
    read(&mut model, "a", 401, absent());
    assert_eq!(tally(&mut model, 402).acquisitions, 0, "it was held when it was first read");
    read(&mut model, "a", 900, held(2, 1, Some(30_000)));
    read(&mut model, "a", 30_960, absent());
    // The lock is acquired and released between two readings, so only the message shows the hold.
    release(&mut model, "a", 32_000);
    let tally = tally(&mut model, 33_000);
    assert_eq!((tally.acquisitions, tally.holds.count(), tally.holds_lost), (2, 2, 1));
    assert_eq!(tally.longest_hold.unwrap().ms, 30_060);
}

#[test]
fn monitor_shows_every_short_hold_and_nothing_is_counted_twice() {
    use monitor::Action::{Acquired, Released};
    let mut model = model();
    open_monitor(&mut model);
    read(&mut model, "a", 0, held(2, 1, Some(30_000)));
    release(&mut model, "a", 500);
    traffic(&mut model, 501, vec![event("a", 52, Released)]);
    // The whole hold is between two readings, and its message arrives after MONITOR's lines or before them.
    traffic(&mut model, 1_000, vec![event("a", 1, Acquired { lease: None })]);
    traffic(&mut model, 1_003, vec![event("a", 1, Released)]);
    release(&mut model, "a", 1_004);
    release(&mut model, "a", 2_000);
    let both = vec![event("a", 3, Acquired { lease: None }), event("a", 3, Released)];
    traffic(&mut model, 2_001, both);
    read(&mut model, "a", 3_000, absent());
    // A reading shows the hold before MONITOR does, and after it.
    read(&mut model, "a", 4_000, held(1, 1, Some(30_000)));
    traffic(&mut model, 4_002, vec![event("a", 52, Acquired { lease: None })]);
    read(&mut model, "a", 4_010, held(1, 1, Some(29_990)));
    release(&mut model, "a", 5_000);
    traffic(&mut model, 6_000, vec![event("a", 52, Acquired { lease: None })]);
    read(&mut model, "a", 6_700, held(1, 1, Some(29_400)));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(
        (view.holders[0].since.at, view.holders[0].since.exact),
        (SteadyMillis(6_000), true)
    );
    release(&mut model, "a", 7_000);
    let tally = tally(&mut model, 8_000);
    assert_eq!((tally.acquisitions, tally.holds.count()), (4, 4), "{tally:?}");
    let short = view.history.past.iter().find(|past| past.since.at == SteadyMillis(1_000)).unwrap();
    assert_eq!(
        (short.to, short.ended.map(PastEnding::as_str)),
        (Some(SteadyMillis(1_003)), Some("released"))
    );
}

#[test]
fn each_of_several_releases_in_quick_succession_is_its_holders() {
    use monitor::Action::{Acquired, Released};
    let mut model = model();
    open_monitor(&mut model);
    read(&mut model, "a", 0, absent());
    let acquired = |by| event("a", by, Acquired { lease: None });
    traffic(&mut model, 1_000, vec![acquired(1)]);
    release(&mut model, "a", 1_010);
    traffic(&mut model, 1_011, vec![event("a", 1, Released), acquired(2)]);
    // MONITOR is the first to report the next release.
    traffic(&mut model, 1_030, vec![event("a", 2, Released), acquired(3)]);
    release(&mut model, "a", 1_031);
    // Both messages arrive before MONITOR's lines.
    release(&mut model, "a", 1_050);
    release(&mut model, "a", 1_060);
    traffic(&mut model, 1_061, vec![event("a", 3, Released), acquired(4)]);
    traffic(&mut model, 1_062, vec![event("a", 4, Released), acquired(5)]);
    let view = shown(&mut model, "a").unwrap();
    let hold = |past: &PastHoldView| {
        let thread = past.id.rsplit(':').next().unwrap().parse().unwrap();
        (thread, past.since.at.0, past.to.unwrap().0)
    };
    let past: Vec<(u64, u64, u64)> = view.history.past.iter().rev().map(hold).collect();
    assert_eq!(past, [(1, 1_000, 1_010), (2, 1_011, 1_030), (3, 1_030, 1_050)]);
}

#[test]
fn waits_by_name_are_counted_by_their_endings() {
    let mut model = model();
    let longest = |view: &LockView| {
        let wait = view.history.longest_wait.clone().unwrap();
        (wait.to.0 - wait.since.at.0, wait.granted)
    };
    read_queue(&mut model, 1_000, 1, queued(&[(1, 90_000), (2, 95_000)]));
    read_queue(&mut model, 4_000, 1, queued(&[(2, 95_000)]));
    // The second waiter is granted the lock; the first one left and does not return.
    let second = HolderId::new(ClientId::from_random([9; 16]), 2);
    let holders = vec![Holder { id: second, count: 1 }];
    let hash = LockHash { holders, ..Default::default() };
    let ttl = Some(Duration::from_secs(30));
    read_twice(&mut model, "a", 5_000, Reading::Lock { hash, ttl, companions: queued(&[]) });
    assert_eq!(longest(&shown(&mut model, "a").unwrap()), (4_000, true));
    read_twice(&mut model, "a", 12_000, absent());
    let tally = tally(&mut model, 12_400);
    assert_eq!((tally.waits.count(), tally.waits_given_up), (2, 1));
    assert_eq!(tally.longest_wait.unwrap().id, second.into());
}

#[test]
fn attempts_that_monitor_shows_are_waits_from_the_second_on() {
    use monitor::Action::{Acquired, Refused};
    let mut model = model();
    open_monitor(&mut model);
    read(&mut model, "a", 0, held(2, 1, Some(10_000)));
    let tries = |model: &mut Model, ms, by| traffic(model, ms, vec![event("a", by, Refused)]);
    for ms in [1_000, 1_001] {
        (1..=2).for_each(|by| tries(&mut model, ms, by));
    }
    tries(&mut model, 1_500, 3);
    release(&mut model, "a", 2_000);
    traffic(&mut model, 2_002, vec![event("a", 1, Acquired { lease: None })]);
    // The second waiter stops retrying, and the third tried only once.
    read(&mut model, "a", 60_000, absent());
    let tally = tally(&mut model, 60_000);
    assert_eq!((tally.waits.count(), tally.waits_given_up), (2, 1), "{tally:?}");
    assert_eq!(tally.longest_wait.unwrap().ms, 1_002);
}

#[test]
fn waiting_time_is_summed_over_all_waiters() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    let count = |model: &mut Model, ms, n| {
        let counts = vec![(name("a"), SubscriberCount::from(n))];
        model.observe(MAIN, Observation::Subscribers { counts, at: time(ms) });
    };
    model.tick(at(1_000));
    count(&mut model, 1_000, 3);
    (2..=4).for_each(|second| model.tick(at(second * 1_000)));
    assert_eq!(tally(&mut model, 4_000).waiting_ms, 9_000);
    count(&mut model, 4_000, 0);
    model.tick(at(5_000));
    // The waiters are unknown during a long pause of this program.
    count(&mut model, 5_000, 1);
    model.tick(at(900_000));
    assert_eq!(tally(&mut model, 900_000).waiting_ms, 14_000);
    model.observe(MAIN, Observation::ServerDown);
    model.tick(at(901_000));
    assert_eq!(tally(&mut model, 901_000).waiting_ms, 14_000, "the server is unreachable");
}

#[test]
fn an_agent_identifies_its_waiters() {
    let mut model = model();
    read_queue(&mut model, 1_000, 1, queued(&[(1, 90_000), (2, 95_000)]));
    let waiter = |thread| HolderId::new(ClientId::from_random([9; 16]), thread);
    let who = HolderIdentity {
        host: Some("worker-3".into()),
        pid: Some(4711),
        ..HolderIdentity::default()
    };
    let report = |who: Option<HolderIdentity>, ms| {
        Observation::AgentReport(AgentReport {
            agents: vec![(waiter(1).client, Presence::Present)],
            holders: vec![(name("a"), waiter(1), who), (name("a"), waiter(2), None)],
            at: time(ms),
        })
    };
    model.observe(MAIN, report(Some(who), 1_100));
    let view = shown(&mut model, "a").unwrap();
    let pid = |i: usize| view.waiters[i].client.as_ref().and_then(|client| client.pid);
    assert_eq!((pid(0), pid(1)), (Some(4711), None));
    // A waiter that its agent does not report proves nothing.
    model.observe(MAIN, report(None, 50_000));
    let view = shown(&mut model, "a").unwrap();
    let alive = |i: usize| view.waiters[i].client.as_ref().and_then(|client| client.alive);
    assert_eq!((alive(0), alive(1)), (Some(true), None));
    assert!(view.problems.is_empty());
    read_queue(&mut model, 60_000, 1, queued(&[]));
    assert!(shown(&mut model, "a").unwrap().waiters.is_empty());
}

#[test]
fn an_expired_key_ends_its_hold_as_expired() {
    use crate::model::types::{Certainty, ProblemKind};
    let expire = |model: &mut Model, ms| {
        let (name, at) = (name("a"), time(ms));
        model.observe(MAIN, Observation::KeyChanged { name, expired: true, at });
    };
    let renewed = |model: &mut Model| {
        (0..50_000).step_by(5_000).for_each(|ms| {
            read(model, "a", ms, held(1, 1, renewed_ttl(ms)));
        });
    };
    // The time to live was last read as 25 s, so only the server's notification shows that the lease ended the hold.
    let mut model = model();
    renewed(&mut model);
    expire(&mut model, 70_000);
    read(&mut model, "a", 70_010, absent());
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(
        (view.history.past[0].ended.map(PastEnding::as_str), view.history.past[0].to),
        (Some("ran_out"), Some(SteadyMillis(70_000)))
    );
    assert_eq!(words(&view).iter().filter(|word| **word == "vanished").count(), 1);
    let problem = &view.problems[0];
    let found = (problem.problem, problem.certainty);
    assert_eq!(found, (ProblemKind::Expired, Certainty::Suspected));
    assert_eq!(problem.evidence[0].source, "keyspace");
    // The lock was read since then, released, or never renewed, so nothing has been lost.
    let mut model = self::model();
    renewed(&mut model);
    expire(&mut model, 45_000);
    assert!(shown(&mut model, "a").unwrap().is_held());
    release(&mut model, "a", 60_000);
    expire(&mut model, 60_001);
    read(&mut model, "a", 60_010, absent());
    let view = shown(&mut model, "a").unwrap();
    assert!(
        view.problems.is_empty()
            && view.history.past[0].ended == Some(PastEnding::Seen(Ending::Released))
    );
    let mut model = self::model();
    read(&mut model, "a", 0, held(1, 1, Some(9_000)));
    expire(&mut model, 9_100);
    read(&mut model, "a", 9_110, absent());
    assert!(shown(&mut model, "a").unwrap().problems.is_empty());
    // A key that is not a lock does not become one by expiring.
    expire(&mut model, 9_200);
    let (name, at) = (name("session"), time(9_300));
    model.observe(MAIN, Observation::KeyChanged { name, expired: true, at });
    assert!(shown(&mut model, "session").is_none());
}

#[test]
fn a_late_notification_of_an_expiry_does_not_end_the_next_hold() {
    let mut model = model();
    let expire = |model: &mut Model, ms| {
        let (name, at) = (name("a"), time(ms));
        model.observe(MAIN, Observation::KeyChanged { name, expired: true, at });
        let view = shown(model, "a").unwrap();
        (
            view.is_held(),
            view.history
                .past
                .iter()
                .map(|past| past.ended.map(PastEnding::as_str))
                .collect::<Vec<_>>(),
        )
    };
    read(&mut model, "a", 0, held(1, 1, Some(1_000)));
    read(&mut model, "a", 1_020, held(2, 1, Some(30_000)));
    assert_eq!(expire(&mut model, 1_030), (true, vec![Some("ran_out")]));
    // Its own lease may end sooner than was last read, if the server's clock was set.
    assert_eq!(expire(&mut model, 5_000), (false, vec![Some("ran_out"); 2]));
}
