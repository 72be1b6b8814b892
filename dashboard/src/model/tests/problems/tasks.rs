//! Tests of tasks of agents' workers: each of their holds and waits has a different id, and only their agents publish
//! the owner.

use redisson::ClientId;
use redisson::shape::{Holder, LockHash};

use super::*;

fn id(agent: u8, number: i64) -> HolderId {
    HolderId::new(ClientId::from_random([agent; 16]), number)
}

/// Returns a fair lock with a holder and a waiter.
fn contended(holder: HolderId, waiter: HolderId) -> Reading {
    let hash = LockHash { holders: vec![Holder { id: holder, count: 1 }], ..LockHash::default() };
    let front = vec![QueueEntry { id: waiter, deadline: Some(900_000) }];
    let queue = Some(Queue { len: 1, front, deadlines: 1, passed: 0 });
    let companions = Companions { queue, ..Companions::default() };
    Reading::Lock { hash, ttl: Some(Duration::from_secs(60)), companions }
}

/// Returns the problems of two locks, each held by a worker that waits for the other, as their agents publish it.
/// `waits` is the published entry of the first wait.
fn found(waits: Option<&HolderIdentity>) -> Option<(Certainty, Vec<String>)> {
    let task = |session: &str, pid| HolderIdentity {
        host: Some("web-1".into()),
        pid: Some(pid),
        session: Some(session.to_owned()),
        owner: Some(0),
        ..HolderIdentity::default()
    };
    let mut model = model();
    for ms in [1_000, 2_000, 3_000] {
        read(&mut model, "a", ms, contended(id(1, 10), id(2, 21)));
        read(&mut model, "b", ms, contended(id(2, 20), id(1, 11)));
        let entry = |lock: &str, id, who| (name(lock), id, Some(who));
        let mut holders = vec![
            entry("a", id(1, 10), task("s-1", 17)),
            entry("a", id(2, 21), task("t-1", 18)),
            entry("b", id(2, 20), task("t-1", 18)),
        ];
        holders.extend(waits.cloned().map(|who| entry("b", id(1, 11), who)));
        let at = time(ms + 100);
        let agents = [1, 2].map(|agent| (id(agent, 0).client, Presence::Present)).to_vec();
        model.observe(MAIN, Observation::AgentReport(AgentReport { agents, holders, at }));
        model.tick(at.moment() + Duration::from_millis(400));
    }
    let shows = |lock: &str, model: &mut Model| {
        let view = shown(model, lock).unwrap();
        let found = view.problems.iter().find(|p| p.problem == ProblemKind::Deadlock)?;
        let evidence = found.evidence.iter().map(|evidence| evidence.text.clone()).collect();
        Some((found.certainty, evidence))
    };
    let found = shows("a", &mut model);
    assert_eq!(shows("b", &mut model), found);
    found
}

#[test]
fn deadlocked_workers_are_identified_by_their_agents() {
    let same = HolderIdentity {
        session: Some("s-1".to_owned()),
        owner: Some(0),
        ..HolderIdentity::default()
    };
    let (certainty, evidence) = found(Some(&same)).unwrap();
    assert_eq!((certainty, evidence.len()), (CERTAIN, 2));
    let words = "(process 18 on the host web-1) waits for `a`";
    assert!(evidence.iter().any(|text| text.contains(words)), "{evidence:?}");
    // The wait has a time limit.
    let limited = HolderIdentity { until: Some(SteadyMillis(60_000)), ..same.clone() };
    assert_eq!(found(Some(&limited)).unwrap().0, SUSPECTED);
    // Anyone may have written the entry of the wait.
    let verification = Verification::Claimed("it is not signed");
    let claimed = HolderIdentity { host: Some("web-1".into()), verification, ..same.clone() };
    let (certainty, evidence) = found(Some(&claimed)).unwrap();
    assert_eq!(certainty, SUSPECTED);
    let words = "(a worker on the host web-1, only claimed) waits for `b`";
    assert!(evidence.iter().any(|text| text.contains(words)), "{evidence:?}");
    // There is no cycle with another task of the same connection, another connection, a task that acquires several
    // locks, or no entry.
    for other in [
        HolderIdentity { owner: Some(7), ..same.clone() },
        HolderIdentity { session: Some("s-2".to_owned()), ..same.clone() },
        HolderIdentity { owner: None, ..same.clone() },
        HolderIdentity { session: None, ..same },
    ] {
        assert_eq!(found(Some(&other)), None, "{other:?}");
    }
    assert_eq!(found(None), None);
}

#[test]
fn a_certain_deadlock_is_found_next_to_one_that_may_end_by_itself() {
    // The writer holds `x` and wants to write `r`, which two readers hold that wait for `x`, one of them for a limited time.
    let (writes, wants) = (id(1, 10), id(1, 11));
    for (limited, endless) in [((20, 21), (30, 31)), ((30, 31), (20, 21))] {
        let task = |number: i64| HolderIdentity {
            session: Some(format!("s-{}", number / 10)),
            owner: Some(0),
            until: (number == limited.1).then_some(SteadyMillis(60_000)),
            ..HolderIdentity::default()
        };
        let reading = |holders: &[i64], mode: Option<&str>| {
            let holders = holders.iter().map(|n| Holder { id: id(1, *n), count: 1 }).collect();
            let mode = mode.map(Into::into);
            let hash = LockHash { holders, mode, ..LockHash::default() };
            let companions = Companions::default();
            Reading::Lock { hash, ttl: Some(Duration::from_secs(60)), companions }
        };
        let mut model = model();
        for ms in [1_000, 2_000, 3_000] {
            read(&mut model, "x", ms, reading(&[10], None));
            read(&mut model, "r", ms, reading(&[20, 30], Some("read")));
            let entry = |lock: &str, number| (name(lock), id(1, number), Some(task(number)));
            let holders = vec![
                entry("x", 10),
                entry("r", 11),
                entry("r", limited.0),
                entry("x", limited.1),
                entry("r", endless.0),
                entry("x", endless.1),
            ];
            let waits = |lock: &str, of: &[HolderId]| AwaitedLock {
                lock: name(lock),
                count: of.len() as u64,
                first: of.iter().map(|id| (*id, SteadyMillis(900))).collect(),
            };
            let (agent, at) = (writes.client, time(ms + 100));
            let locks = vec![waits("r", &[wants]), waits("x", &[id(1, 21), id(1, 31)])];
            model.observe(MAIN, Observation::AgentWaiters(AgentWaiters { agent, locks, at }));
            let agents = vec![(agent, Presence::Present)];
            model.observe(MAIN, Observation::AgentReport(AgentReport { agents, holders, at }));
            model.tick(at.moment() + Duration::from_millis(400));
        }
        for lock in ["x", "r"] {
            let found = problems(&shown(&mut model, lock).unwrap());
            assert!(
                found.contains(&(ProblemKind::Deadlock, CERTAIN)),
                "{lock} {limited:?} {found:?}"
            );
        }
    }
}

#[test]
fn a_writer_that_has_got_its_lock_waits_no_longer() {
    let (waiter, other) = (id(1, 10), id(2, 20));
    let writes = HolderId { write: true, ..waiter };
    let lock_of = |holder: HolderId, mode: &str| {
        let holders = vec![Holder { id: holder, count: 1 }];
        let hash = LockHash { holders, mode: Some(mode.into()), ..LockHash::default() };
        let companions = Companions::default();
        Reading::Lock { hash, ttl: Some(Duration::from_secs(60)), companions }
    };
    let list = |ms: u64| {
        let first = vec![(waiter, SteadyMillis(900))];
        let locks = vec![AwaitedLock { lock: name("a"), count: 1, first }];
        let at = time(ms);
        Observation::AgentWaiters(AgentWaiters { agent: waiter.client, locks, at })
    };
    let waits = |model: &mut Model| {
        let view = shown(model, "a").unwrap();
        (view.waiters.len(), view.problems.len())
    };
    let mut model = model();
    read(&mut model, "a", 1_000, lock_of(other, "read"));
    model.observe(MAIN, list(1_100));
    assert_eq!(waits(&mut model), (1, 0));
    read(&mut model, "a", 2_000, lock_of(writes, "write"));
    model.tick(at(2_100));
    assert_eq!(waits(&mut model), (0, 0), "it is the holder");
    // The list may be older than the reading.
    model.observe(MAIN, list(2_200));
    model.tick(at(2_300));
    assert_eq!(waits(&mut model), (0, 0), "its agent's list is old");
}
