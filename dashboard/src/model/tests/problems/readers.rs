//! Tests of readers that leave, renew for too long, or are gone.

use super::*;

#[test]
fn a_reader_without_a_marker_is_a_zombie() {
    let mut model = model();
    let id = |n: i64| HolderId::new(ClientId::from_random([9; 16]), n);
    let holders = vec![Holder { id: id(1), count: 1 }];
    let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
    let markers = vec![(id(1), Marker::Missing)];
    let companions = Companions { markers, ..Companions::default() };
    read(&mut model, "a", 0, Reading::Lock { hash, ttl: Some(Duration::from_secs(9)), companions });
    let view = shown(&mut model, "a").unwrap();
    assert!(
        view.holders[0].zombie && view.state == State::Held && view.kind == redisson::Kind::Read
    );
}

#[test]
fn markers_of_readers_whose_lock_was_deleted_are_orphans_until_they_are_gone() {
    let id = |n: i64| HolderId::new(ClientId::from_random([9; 16]), n);
    let marked = |left: &[(i64, Marker)]| Companions {
        markers: left.iter().map(|(n, marker)| (id(*n), *marker)).collect(),
        ..Companions::default()
    };
    let readers = |model: &mut Model, ms| {
        let holders = (1..=2).map(|n| Holder { id: id(n), count: 1 }).collect();
        let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
        let companions = marked(&[(1, Marker::Persistent), (2, LEFT)]);
        read(
            model,
            "a",
            ms,
            Reading::Lock { hash, ttl: Some(Duration::from_secs(30)), companions },
        );
    };
    const LEFT: Marker = Marker::Expires(Duration::from_secs(20));
    const GONE: Marker = Marker::Missing;
    let mut model = model();
    let requested = |model: &mut Model, ms| {
        model.prioritize(MAIN, &name("a"));
        model.due(MAIN, at(ms), 1).remove(0).known.readers
    };
    readers(&mut model, 0);
    let absent = |left: &[(i64, Marker)]| Reading::Absent { companions: marked(left) };
    let endless = (1, Marker::Persistent);
    read(&mut model, "a", 10_000, absent(&[endless, (2, LEFT)]));
    assert_eq!(requested(&mut model, 20_000), [(id(1), 1), (id(2), 1)]);
    read(&mut model, "a", 40_000, absent(&[endless, (2, GONE)]));
    assert_eq!(requested(&mut model, 50_000), [(id(1), 1)], "one of them has expired");
    read(&mut model, "a", 69_000, absent(&[endless]));
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), []);
    read(&mut model, "a", 71_000, absent(&[endless]));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(problems(&view), [(ProblemKind::Orphan, CERTAIN)]);
    assert!(view.problems[0].evidence[0].text.contains("markers of 1 of its readers"));
    read(&mut model, "a", 80_000, absent(&[(1, GONE)]));
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), []);
    assert_eq!(requested(&mut model, 90_000), []);
    // Readers that release the lock delete their markers.
    readers(&mut model, 100_000);
    release(&mut model, "a", 101_000);
    read(&mut model, "a", 101_010, absent(&[(1, GONE), (2, GONE)]));
    assert_eq!(requested(&mut model, 102_000), []);
}

#[test]
fn markers_of_readers_whose_lock_expired_are_orphans_whatever_told_of_the_end() {
    let id = HolderId::new(ClientId::from_random([9; 16]), 1);
    for notified in [false, true] {
        let companions =
            Companions { markers: vec![(id, Marker::Persistent)], ..Companions::default() };
        let holders = vec![Holder { id, count: 1 }];
        let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
        let ttl = Some(Duration::from_secs(5));
        let mut model = model();
        read(&mut model, "a", 0, Reading::Lock { hash, ttl, companions: companions.clone() });
        if notified {
            let expired =
                Observation::KeyChanged { name: name("a"), expired: true, at: time(5_000) };
            model.observe(MAIN, expired);
        }
        for ms in [5_100, 70_000] {
            read(&mut model, "a", ms, Reading::Absent { companions: companions.clone() });
        }
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(problems(&view), [(ProblemKind::Orphan, CERTAIN)], "{notified}");
    }
}

#[test]
fn a_reader_that_leaves_others_behind_has_released_its_hold() {
    let id = |n: i64| HolderId::new(ClientId::from_random([9; 16]), n);
    let readers = |model: &mut Model, ms, left: &[i64], markers: &[(i64, Marker)]| {
        let holders = left.iter().map(|n| Holder { id: id(*n), count: 1 }).collect();
        let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
        let markers = markers.iter().map(|(n, marker)| (id(*n), *marker)).collect();
        let companions = Companions { markers, ..Companions::default() };
        let ttl = Some(Duration::from_secs(30));
        read(model, "a", ms, Reading::Lock { hash, ttl, companions });
    };
    let live = Marker::Expires(Duration::from_secs(20));
    let ending = Marker::Expires(Duration::from_millis(900));
    for (marker, ended, word) in [
        (live, "released", "released"),
        (ending, "ran_out", "vanished"),
        (Marker::Missing, "ran_out", "vanished"),
    ] {
        let mut model = model();
        readers(&mut model, 0, &[1, 2], &[(1, marker), (2, live)]);
        readers(&mut model, 1_000, &[2], &[(2, live)]);
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(view.history.past[0].ended.map(PastEnding::as_str), Some(ended), "{marker:?}");
        assert_eq!(words(&view).last(), Some(&word), "{marker:?}");
        assert_eq!(problems(&view), []);
    }
}

#[test]
fn one_of_several_readers_that_renews_its_hold_for_too_long_makes_the_lock_stuck() {
    let mut model = model();
    for ms in (0..=400_000).step_by(2_000) {
        // Each reader renews every ten seconds, the second one four seconds after the first.
        let left = [renewed_ttl(ms), renewed_ttl(ms + 6_000)].map(Option::unwrap);
        let holders = [1, 2].map(|n| Holder { id: holder(n), count: 1 }).to_vec();
        let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
        let marker = |n: usize| Marker::Expires(Duration::from_millis(left[n]));
        let markers = vec![(holder(1), marker(0)), (holder(2), marker(1))];
        let companions = Companions { markers, ..Companions::default() };
        let ttl = Some(Duration::from_millis(left[0].max(left[1])));
        read(&mut model, "a", ms, Reading::Lock { hash, ttl, companions });
    }
    let view = shown(&mut model, "a").unwrap();
    assert_eq!((view.renewed, problems(&view)), (true, vec![(ProblemKind::Stuck, SUSPECTED)]));
}

#[test]
fn a_lock_of_readers_that_are_gone_is_an_orphan_until_one_of_them_is_back() {
    let mut model = model();
    let readers = |live: bool, ttl: Option<u64>| {
        let holders = vec![Holder { id: holder(1), count: 1 }, Holder { id: holder(2), count: 1 }];
        let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
        let second = if live { Marker::Expires(Duration::from_secs(30)) } else { Marker::Missing };
        let markers = vec![(holder(1), Marker::Missing), (holder(2), second)];
        let companions = Companions { markers, ..Companions::default() };
        Reading::Lock { hash, ttl: ttl.map(Duration::from_millis), companions }
    };
    let run = |model: &mut Model, from: u64, live: bool, ttl: fn(u64) -> Option<u64>| {
        for ms in (from..=from + 70_000).step_by(10_000) {
            read(model, "a", ms, readers(live, ttl(ms)));
        }
        problems(&shown(model, "a").unwrap())
    };
    let falling = |ms: u64| Some(900_000 - ms);
    assert_eq!(run(&mut model, 10_000, true, falling), [], "one of them lives");
    assert_eq!(run(&mut model, 100_000, false, falling), [(ProblemKind::Orphan, CERTAIN)]);
    assert_eq!(run(&mut model, 200_000, true, falling), []);
    assert_eq!(run(&mut model, 300_000, false, |_| None), [(ProblemKind::Leaked, CERTAIN)]);
    assert_eq!(run(&mut model, 400_000, false, falling), [(ProblemKind::Orphan, CERTAIN)]);
    read_twice(&mut model, "a", 500_000, absent());
    assert_eq!(problems(&shown(&mut model, "a").unwrap()), []);
}

#[test]
fn a_renewed_reader_whose_lease_runs_out_next_to_others_has_lost_the_lock() {
    for renews in [true, false] {
        let mut model = model();
        for ms in (0..=100_000).step_by(2_000) {
            let left = match (renews, ms) {
                (true, ..60_000) => renewed_ttl(ms).unwrap(),
                _ => 90_000_u64.saturating_sub(ms),
            };
            let first = match left {
                0 => Marker::Missing,
                left => Marker::Expires(Duration::from_millis(left)),
            };
            let ttl = renewed_ttl(ms + 6_000).map(Duration::from_millis);
            let holders = [1, 2].map(|n| Holder { id: holder(n), count: 1 }).to_vec();
            let hash = LockHash { holders, mode: Some(b"read".to_vec()), ..Default::default() };
            let markers = vec![(holder(1), first), (holder(2), Marker::Expires(ttl.unwrap()))];
            let companions = Companions { markers, ..Companions::default() };
            read(&mut model, "a", ms, Reading::Lock { hash, ttl, companions });
        }
        let lost = if renews { vec![(ProblemKind::Expired, SUSPECTED)] } else { Vec::new() };
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(problems(&view), lost);
        if let Some(found) = view.problems.first() {
            let text = &found.evidence[0].text;
            assert!(text.starts_with(&holder(1).to_string()) && text.contains("marker"), "{text}");
        }
        assert!(view.holders[0].zombie);
        // The other one is the last to leave.
        release(&mut model, "a", 101_000);
        read(&mut model, "a", 101_010, absent());
        let view = shown(&mut model, "a").unwrap();
        let ended = |n: u8| {
            let id = holder(n).to_string();
            view.history
                .past
                .iter()
                .find(|past| *past.id == id)
                .unwrap()
                .ended
                .map(PastEnding::as_str)
        };
        assert_eq!((ended(1), ended(2)), (Some("ran_out"), Some("released")));
        assert_eq!(problems(&view), lost);
    }
}

#[test]
fn an_agents_writer_that_goes_on_reading_keeps_its_read_hold() {
    let grant =
        |n: i64| HolderId::new(ClientId::from_random([1; 16]), 1_927_612_615_576_518_676 + n);
    let (writer, reader) = (HolderId { write: true, ..grant(1) }, grant(2));
    let side = |ids: &[HolderId], mode: &str| {
        let holders = ids.iter().map(|id| Holder { id: *id, count: 1 }).collect();
        let hash = LockHash { holders, mode: Some(mode.into()), ..LockHash::default() };
        let ttl = Some(Duration::from_secs(30));
        Reading::Lock { hash, ttl, companions: Companions::default() }
    };
    for seen_by in [
        &["message"][..],
        &["monitor"],
        &["monitor", "message"],
        &["message", "monitor"],
        &["reading", "message"],
        &["reading", "reading later"],
    ] {
        let mut model = model();
        read(&mut model, "a", 0, side(&[writer], "write"));
        read(&mut model, "a", 1_000, side(&[writer, reader], "write"));
        assert_eq!(problems(&shown(&mut model, "a").unwrap()), [], "it is well-formed");
        // Its release lets another reader enter.
        let left = side(&[reader, holder(3)], "read");
        for (ms, what) in (3_000..).step_by(10).zip(seen_by) {
            match *what {
                "message" => release(&mut model, "a", ms),
                "monitor" => {
                    let mut released = event("a", 52, monitor::Action::Released);
                    (released.holder, released.kind) = (Some(writer), Some(redisson::Kind::Write));
                    traffic(&mut model, ms, vec![released]);
                }
                "reading" => read(&mut model, "a", ms, left.clone()),
                _ => read(&mut model, "a", ms + 300, left.clone()),
            }
        }
        read(&mut model, "a", 3_500, left);
        let view = shown(&mut model, "a").unwrap();
        let past: Vec<_> = view
            .history
            .past
            .iter()
            .map(|past| (&*past.id, past.ended.map(PastEnding::as_str)))
            .collect();
        assert_eq!(past, [(&*writer.to_string(), Some("released"))], "{seen_by:?}");
        let read_side = view.holders.iter().find(|it| *it.id == reader.to_string()).unwrap();
        assert_eq!(read_side.since.at, SteadyMillis(1_001), "{seen_by:?}");
        let taken = words(&view).iter().filter(|word| **word == "taken").count();
        assert_eq!(taken, 3, "{seen_by:?}: {:?}", words(&view));
    }
    // Both sides are released before the next reading.
    let mut model = model();
    read(&mut model, "a", 0, side(&[writer, reader], "write"));
    release(&mut model, "a", 1_000);
    read(&mut model, "a", 1_100, absent());
    let view = shown(&mut model, "a").unwrap();
    let ended: Vec<_> =
        view.history.past.iter().map(|past| past.ended.map(PastEnding::as_str)).collect();
    assert_eq!(ended, [Some("released"); 2]);
}
