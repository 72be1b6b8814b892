//! Tests of holders that are gone, and of reports about them.

use redisson::monitor;

use super::*;

#[test]
fn a_lock_whose_holder_is_gone_is_leaked_unless_it_expires_soon_or_is_renewed() {
    use monitor::Action::Acquired;
    let found = |ttl: u64, renewed: bool, connected: &str| {
        let mut model = model();
        let client = Some(monitor::Address::Tcp("10.0.0.7:5123".parse().unwrap()));
        let taken = monitor::Event { client, ..event("a", 52, Acquired { lease: None }) };
        traffic(&mut model, 500, vec![taken]);
        let ttl =
            |ms: u64| if renewed { renewed_ttl(ms).map(|ms| ms + 90_000) } else { Some(ttl - ms) };
        for ms in (0..80_000).step_by(5_000) {
            read(&mut model, "a", ms, held(1, 1, ttl(ms)));
            if ms % 10_000 == 0 {
                let addresses = [connected.parse().unwrap()].into();
                let connections = Connections { addresses, ..Connections::default() };
                let at = time(ms + 600);
                model.observe(MAIN, Observation::Connected { connections, at });
            }
        }
        let view = shown(&mut model, "a").unwrap();
        let effects = model.take_effects();
        let detected = effects.iter().any(|(_, effect)| matches!(effect, Effect::Detected(..)));
        assert!(!(renewed && detected), "not even for a moment");
        let alive = view.holders[0].client.as_ref().and_then(|client| client.alive);
        (problems(&view), alive)
    };
    let leaked = vec![(ProblemKind::Leaked, SUSPECTED)];
    assert_eq!(found(600_000, false, "10.0.0.9"), (leaked, Some(false)));
    assert_eq!(found(600_000, false, "10.0.0.7"), (vec![], Some(true)));
    assert_eq!(found(120_000, false, "10.0.0.9"), (vec![], Some(false)), "it ends within a minute");
    assert_eq!(found(0, true, "10.0.0.9").0, [], "its holder renews it");
}

/// MONITOR shows a client at an address from which no client is connected any more, so that it counts as gone at 31 s.
fn with_gone_client() -> Model {
    let mut model = model();
    let client = Some(monitor::Address::Tcp("10.0.0.7:5123".parse().unwrap()));
    let refused = monitor::Event { client, ..event("x", 52, monitor::Action::Refused) };
    traffic(&mut model, 500, vec![refused]);
    for ms in [1_000, 31_000] {
        list_clients(&mut model, ms, "10.0.0.9");
    }
    model
}

/// Lets time pass until that instant.
fn pass_until(model: &mut Model, ms: u64) {
    while model.ticked < at(ms) {
        let next = (model.ticked + Duration::from_secs(1)).min(at(ms));
        model.tick(next);
    }
}

/// Clients are connected from that address only.
fn list_clients(model: &mut Model, ms: u64, from: &str) {
    pass_until(model, ms);
    let addresses = [from.parse().unwrap()].into();
    let connections = Connections { addresses, ..Connections::default() };
    model.observe(MAIN, Observation::Connected { connections, at: time(ms) });
}

fn alive(view: &LockView) -> Option<bool> {
    view.holders[0].client.as_ref()?.alive
}

#[test]
fn without_lists_of_clients_none_is_alive_or_gone_for_long() {
    for (before, problem) in
        [("10.0.0.7", None), ("10.0.0.9", Some((ProblemKind::Leaked, SUSPECTED)))]
    {
        let mut model = with_gone_client();
        list_clients(&mut model, 40_000, before);
        let mut found = |ms: u64| {
            pass_until(&mut model, ms);
            read(&mut model, "a", ms, held(1, 1, Some(3_600_000 - ms)));
            let view = shown(&mut model, "a").unwrap();
            (problems(&view), alive(&view))
        };
        let known = (problem.into_iter().collect(), Some(problem.is_none()));
        assert_eq!(found(41_000), known);
        assert_eq!(found(630_000), known, "clients do not come back by not being listed");
        assert_eq!(found(641_000), (vec![], None));
    }
}

#[test]
fn a_client_that_monitor_has_just_shown_is_alive_without_lists_of_clients() {
    let mut model = with_gone_client();
    let client = Some(monitor::Address::Tcp("10.0.0.7:5123".parse().unwrap()));
    let refused = monitor::Event { client, ..event("x", 52, monitor::Action::Refused) };
    traffic(&mut model, 90_000, vec![refused]);
    let mut alive_after = |ms| {
        pass_until(&mut model, ms);
        read(&mut model, "a", ms, held(1, 1, Some(3_600_000)));
        alive(&shown(&mut model, "a").unwrap())
    };
    assert_eq!(alive_after(660_000), Some(true));
    assert_eq!(alive_after(691_000), None);
}

#[test]
fn without_reports_of_agents_none_is_alive_or_gone() {
    for (agent, published) in
        [(Presence::Present, true), (Presence::Present, false), (Presence::Missing, false)]
    {
        let mut model = model();
        for ms in (0..60_000).step_by(2_000) {
            pass_until(&mut model, ms);
            read(&mut model, "a", ms, held(1, 1, Some(900_000 - ms)));
            read(&mut model, "b", ms, held(1, 1, Some(900_000 - ms)));
            let who = |published: bool| published.then(HolderIdentity::default);
            let holders =
                vec![(name("b"), holder(1), who(true)), (name("a"), holder(1), who(published))];
            let agents = vec![(holder(1).client, agent)];
            let report = AgentReport { agents, holders, at: time(ms + 100) };
            model.observe(MAIN, Observation::AgentReport(report));
        }
        let found = |model: &mut Model| {
            let view = shown(model, "a").unwrap();
            (problems(&view).len(), alive(&view))
        };
        assert_eq!(found(&mut model), (usize::from(!published), Some(published)));
        let before = found(&mut model);
        for (ms, expected) in [(61_000, before), (600_000, before), (662_000, (0, None))] {
            pass_until(&mut model, ms);
            read(&mut model, "a", ms, held(1, 1, Some(900_000 - ms)));
            assert_eq!(found(&mut model), expected, "{agent:?} {published} {ms}");
        }
    }
}

#[test]
fn waiters_that_are_not_reported_for_long_no_longer_count_unless_the_server_cannot_be_read() {
    for down in [false, true] {
        let mut model = model();
        for lock in ["a", "b"] {
            read(&mut model, lock, 0, held(1, 1, Some(3_600_000)));
        }
        let locks = vec![AwaitedLock { lock: name("a"), count: 3, first: Vec::new() }];
        let waiters = AgentWaiters { agent: holder(2).client, locks, at: time(1_000) };
        model.observe(MAIN, Observation::AgentWaiters(waiters));
        let counts = vec![(name("b"), 2.into())];
        model.observe(MAIN, Observation::Subscribers { counts, at: time(1_000) });
        if down {
            model.observe(MAIN, Observation::ServerDown);
        }
        let waiting = |model: &mut Model, ms| {
            pass_until(model, ms);
            ["a", "b"].map(|lock| shown(model, lock).unwrap().waiting)
        };
        assert_eq!(waiting(&mut model, 599_000), [3, 2]);
        assert_eq!(waiting(&mut model, 601_000), if down { [3, 2] } else { [0, 0] });
    }
}

#[test]
fn a_client_that_acquires_a_lock_after_it_seemed_gone_is_alive() {
    let mut model = with_gone_client();
    read(&mut model, "new", 49_000, held(2, 1, Some(3_600_000)));
    release(&mut model, "new", 49_900);
    read(&mut model, "new", 50_000, held(1, 1, Some(3_600_000)));
    assert_eq!(problems(&shown(&mut model, "new").unwrap()), []);
}

#[test]
fn a_gone_client_leaks_also_the_locks_that_are_found_later() {
    let mut model = with_gone_client();
    read(&mut model, "late", 50_000, held(1, 1, Some(3_600_000)));
    let leaked = [(ProblemKind::Leaked, SUSPECTED)];
    assert_eq!(problems(&shown(&mut model, "late").unwrap()), leaked);
}

#[test]
fn a_reader_that_enters_next_to_a_dead_one_does_not_end_the_leak() {
    let mut model = with_gone_client();
    let readers = |model: &mut Model, ms, readers: &[u8]| {
        let holders = readers.iter().map(|n| Holder { id: holder(*n), count: 1 }).collect();
        let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
        let (ttl, companions) = (Some(Duration::from_secs(3_600)), Companions::default());
        read(model, "a", ms, Reading::Lock { hash, ttl, companions });
        problems(&shown(model, "a").unwrap())
    };
    let leaked = [(ProblemKind::Leaked, SUSPECTED)];
    assert_eq!(readers(&mut model, 50_000, &[1]), leaked);
    assert_eq!(readers(&mut model, 51_000, &[2, 1]), leaked);
    let view = shown(&mut model, "a").unwrap();
    let (problem, dead) = (&view.problems[0], holder(1).to_string());
    assert!(problem.evidence[0].text.starts_with(&dead), "{problem:?}");
    let named = format!("One of its 2 holders, {dead}, appears to be gone.");
    assert!(problem.advice.starts_with(&named), "{problem:?}");
    assert!(problem.advice.contains("only that hold by force, not the whole lock"), "{problem:?}");
    let over =
        archived(&mut model).into_iter().filter(|it| matches!(it, ArchiveEntry::Cleared(..)));
    assert_eq!(over.count(), 0, "not even for a moment");
    assert_eq!(readers(&mut model, 52_000, &[2]), []);
}

#[test]
fn one_renewal_delays_the_leak_of_a_gone_client() {
    let mut model = with_gone_client();
    let leaked = [(ProblemKind::Leaked, SUSPECTED)];
    let mut read_at = |ms: u64, ttl: u64| {
        read(&mut model, "a", ms, held(1, 1, Some(ttl - ms)));
        problems(&shown(&mut model, "a").unwrap())
    };
    assert_eq!(read_at(50_000, 3_600_000), leaked);
    // Another reader renews it, or the clock is set.
    assert_eq!(read_at(51_000, 3_605_000), []);
    assert_eq!(read_at(351_000, 3_605_000), []);
    assert_eq!(read_at(352_000, 3_605_000), leaked);
}

#[test]
fn a_gone_client_is_dead_in_a_queue_that_is_read_later() {
    let mut model = with_gone_client();
    let mut companions = queued(&[(52, 9_000_000)]);
    companions.queue.as_mut().unwrap().front[0].id = holder(1);
    read(&mut model, "a", 50_000, Reading::Absent { companions });
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.queue[0].gone, view.queue[0].alive), (true, false));
    assert!(model.scopes[0].locks.get(&name("a")).unwrap().record.is_in_trouble());
}

#[test]
fn a_holder_is_gone_if_its_agent_denies_it_or_is_gone() {
    let leaked = vec![(ProblemKind::Leaked, SUSPECTED)];
    let minutes = |ms: u64| Some(600_000 - ms);
    // The entries published at an instant: the agent, the holder of `a`, the holder of `b`.
    type Published = fn(u64) -> (bool, bool, bool);
    let cases: [(&str, Published, _, _); 6] = [
        ("published", |_| (true, true, true), vec![], Some(true)),
        ("denied", |_| (true, false, true), leaked.clone(), Some(false)),
        ("denied at first", |ms| (true, ms >= 20_000, true), vec![], Some(true)),
        ("the agent publishes no holder", |_| (true, false, false), vec![], None),
        ("the agent was never seen", |_| (false, false, false), vec![], None),
        ("the agent is gone", |ms| (ms < 5_000, ms < 5_000, true), leaked, Some(false)),
    ];
    for (what, published, expected, alive) in cases {
        let mut model = model();
        for ms in (0..60_000).step_by(2_000) {
            read(&mut model, "a", ms, held(1, 1, minutes(ms)));
            read(&mut model, "b", ms, held(1, 1, minutes(ms)));
            let (agent, a, b) = published(ms);
            let identity = |published: bool| {
                published.then(|| HolderIdentity { pid: Some(4711), ..HolderIdentity::default() })
            };
            let report = AgentReport {
                agents: vec![(holder(1).client, Presence::new(agent, false))],
                holders: vec![
                    (name("b"), holder(1), identity(b)),
                    (name("a"), holder(1), identity(a)),
                ],
                at: time(ms + 100),
            };
            model.observe(MAIN, Observation::AgentReport(report));
            if ms < 30_000 {
                let view = shown(&mut model, "a").unwrap();
                assert_eq!(problems(&view), [], "{what}: two checks are as far apart");
            }
        }
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(problems(&view), expected, "{what}");
        let shown = view.holders[0].client.as_ref();
        assert_eq!(shown.and_then(|client| client.alive), alive, "{what}");
    }
}

#[test]
fn a_holders_identity_ends_with_its_hold() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(600_000)));
    let report = |model: &mut Model, ms| {
        let who = HolderIdentity { pid: Some(4711), ..HolderIdentity::default() };
        let report = AgentReport {
            agents: vec![(holder(1).client, Presence::Present)],
            holders: vec![(name("a"), holder(1), Some(who)), (name("x"), holder(1), None)],
            at: time(ms),
        };
        model.observe(MAIN, Observation::AgentReport(report));
        let view = shown(model, "a").unwrap();
        view.holders[0].client.as_ref().and_then(|client| client.pid)
    };
    assert_eq!(report(&mut model, 100), Some(4711));
    read_twice(&mut model, "a", 1_000, held(2, 1, Some(600_000)));
    assert_eq!(report(&mut model, 1_400), None, "another client holds it now");
    read(&mut model, "a", 2_000, held(1, 1, Some(600_000)));
    let view = shown(&mut model, "a").unwrap();
    assert!(view.holders[0].client.as_ref().is_none_or(|client| client.pid.is_none()));
}

#[test]
fn a_claimed_identity_is_displayed_but_neither_remembered_nor_a_proof() {
    let holder = holder(1);
    let signed_by = |name: &str| Verification::Verified(name.into());
    for (verification, verified) in [
        (Verification::Unchecked, None),
        (signed_by("web"), Some(true)),
        (Verification::Claimed("it is not signed"), Some(false)),
    ] {
        let mut model = model();
        read(&mut model, "a", 0, held(1, 1, None));
        let identity = HolderIdentity {
            host: Some("web-7".into()),
            pid: Some(1),
            comm: Some("systemd".to_owned()),
            verification,
            ..HolderIdentity::default()
        };
        let report = AgentReport {
            agents: vec![(holder.client, Presence::Present)],
            holders: vec![(name("a"), holder, Some(identity))],
            at: time(100),
        };
        model.observe(MAIN, Observation::AgentReport(report));
        let view = shown(&mut model, "a").unwrap();
        let client = view.holders[0].client.as_deref().unwrap();
        assert_eq!((client.pid, client.verified), (Some(1), verified));
        assert_eq!(client.signed_by.is_some(), verified == Some(true));
        assert_eq!(client.unverified_because.is_some(), verified == Some(false));
        assert_eq!(view.confirmed, verified != Some(false));
        let names = model.scopes[0].clients.names();
        let remembered = names.name(&holder.to_string()).map(|name| name.to_string());
        let expected = (verified != Some(false)).then(|| "systemd@web-7".to_owned());
        assert_eq!(remembered, expected);
    }
}

#[test]
fn a_dead_head_is_no_longer_named_once_it_is_removed() {
    let [first, second, live] = [7, 8, 9].map(|n| HolderId::new(ClientId::from_random([n; 16]), 1));
    let mut model = model();
    let run = |model: &mut Model, from: u64, queue: &[HolderId]| {
        for ms in (from..from + 200_000).step_by(5_000) {
            let places: Vec<_> = queue.iter().map(|id| (id.thread, 9_000_000)).collect();
            let mut companions = queued(&places);
            let entries = &mut companions.queue.as_mut().unwrap().front;
            entries.iter_mut().zip(queue).for_each(|(entry, id)| entry.id = *id);
            read(model, "a", ms, Reading::Absent { companions });
            let report = AgentReport {
                agents: vec![(first.client, Presence::Missing), (second.client, Presence::Missing)],
                holders: queue.iter().map(|id| (name("a"), *id, None)).collect(),
                at: time(ms + 100),
            };
            model.observe(MAIN, Observation::AgentReport(report));
        }
        let view = shown(model, "a").unwrap();
        let of = |kind| view.problems.iter().find(|problem| problem.problem == kind).cloned();
        [ProblemKind::Starving, ProblemKind::Orphan].map(of)
    };
    let names = |problem: &ProblemView, id: HolderId| {
        problem.evidence.iter().any(|one| one.text.contains(&format!("{id}, is dead")))
    };
    let [starving, orphan] = run(&mut model, 0, &[first, second, live]).map(Option::unwrap);
    assert!(names(&starving, first) && names(&orphan, first), "{starving:?} {orphan:?}");
    let [next, next_orphan] = run(&mut model, 200_000, &[second, live]).map(Option::unwrap);
    for (problem, before) in [(&next, &starving), (&next_orphan, &orphan)] {
        assert!(names(problem, second) && !names(problem, first), "{problem:?}");
        assert_eq!(problem.since, before.since);
    }
    let [last, over] = run(&mut model, 400_000, &[live]);
    let last = last.unwrap();
    assert!(!names(&last, first) && !names(&last, second), "{last:?}");
    assert!(over.is_none(), "{over:?}");
    // Evidence that is still valid keeps its first time.
    let again = run(&mut model, 600_000, &[live])[0].clone().unwrap();
    assert_eq!(again.evidence, last.evidence);
}

#[test]
fn a_dead_head_of_a_fair_queue_is_named_and_not_shown_as_a_waiter() {
    let [dead, live] = [(1_700_000_000 << 30) + 1, 7];
    let dead_id = HolderId::new(ClientId::from_random([9; 16]), dead);
    for (what, presence, gone) in [
        ("the agent has vanished", Presence::Missing, true),
        ("the agent never published itself", Presence::Unknown, false),
        ("the agent is alive", Presence::Present, false),
    ] {
        let mut model = model();
        for ms in (0..200_000).step_by(5_000) {
            let mut companions = queued(&[(dead, 9_000_000), (live, 9_000_000)]);
            let second = &mut companions.queue.as_mut().unwrap().front[1].id;
            second.client = ClientId::from_random([8; 16]);
            read(&mut model, "a", ms, Reading::Absent { companions });
            let report = AgentReport {
                agents: vec![(dead_id.client, presence)],
                holders: vec![(name("a"), dead_id, None)],
                at: time(ms + 100),
            };
            model.observe(MAIN, Observation::AgentReport(report));
        }
        let view = shown(&mut model, "a").unwrap();
        let [head, next] = &view.queue[..] else { panic!("{:?}", view.queue) };
        assert_eq!((head.gone, head.alive), (gone, !gone), "{what}");
        assert_eq!((next.gone, next.alive), (false, true), "{what}");
        assert_eq!(view.waiters.len(), if gone { 1 } else { 2 }, "{what}");
        let sentences = view.problems.iter().flat_map(|problem| &problem.evidence);
        let named = sentences.filter(|evidence| {
            evidence.text.contains(&format!("{dead_id}, is dead: its client is gone"))
        });
        assert_eq!(named.count() > 0, gone, "{what}: {:?}", view.problems);
        let orphan = view.problems.iter().any(|problem| problem.problem == ProblemKind::Orphan);
        assert_eq!(orphan, gone, "{what}");
    }
}
