//! Tests of readings that are processed before the release message that explains them.

use redisson::monitor::Action;

use super::*;

fn endings(view: &LockView) -> Vec<(SteadyMillis, &'static str)> {
    view.history
        .past
        .iter()
        .filter_map(|past| past.to.zip(past.ended.map(PastEnding::as_str)))
        .collect()
}

#[test]
fn a_release_is_one_although_its_message_arrives_after_a_reading() {
    for reading in [absent(), held(2, 1, Some(30_000))] {
        let mut model = model();
        read(&mut model, "a", 0, held(1, 1, Some(30_000)));
        read(&mut model, "a", 1_000, reading.clone());
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(view.state, State::Held, "the message may be under way");
        release(&mut model, "a", 1_200);
        read(&mut model, "a", 1_300, reading);
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(endings(&view), [(SteadyMillis(1_200), "released")]);
        assert!(!words(&view).contains(&"vanished"));
    }
}

#[test]
fn without_a_message_the_first_reading_counts() {
    for (reading, state) in [(absent(), State::Free), (held(2, 1, Some(30_000)), State::Held)] {
        let mut model = model();
        read(&mut model, "a", 0, held(1, 1, Some(30_000)));
        read(&mut model, "a", 1_000, reading.clone());
        read(&mut model, "a", 1_100, reading.clone());
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(endings(&view), [], "it waits for the message");
        let due = model.scopes[0].locks.get(&name("a")).unwrap().record.next_read();
        assert!(due <= at(1_300), "the next reading decides soon: {due:?}");
        read(&mut model, "a", 1_300, reading);
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(endings(&view), [(SteadyMillis(1_001), "vanished")]);
        assert_eq!(view.state, state);
    }
}

#[test]
fn a_hold_of_the_same_holder_after_one_without_a_message_is_another_one() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    read(&mut model, "a", 1_000, absent());
    read(&mut model, "a", 1_300, held(1, 1, Some(30_000)));
    let view = shown(&mut model, "a").unwrap();
    assert_eq!(endings(&view), [(SteadyMillis(1_001), "vanished")]);
    assert!(view.holders[0].since.at > SteadyMillis(1_000));
}

#[test]
fn only_where_messages_arrive_a_reading_waits_for_one() {
    let mut model = model();
    model.observe(MAIN, Observation::PubSubActive { on: false, at: at(0) });
    read(&mut model, "a", 0, held(1, 1, Some(30_000)));
    read(&mut model, "a", 1_000, absent());
    assert_eq!(shown(&mut model, "a").unwrap().state, State::Free);
}

#[test]
fn a_release_that_monitor_shows_late_does_not_end_the_next_hold() {
    for late in [10, 400] {
        let mut model = model();
        read(&mut model, "a", 0, held(1, 1, Some(30_000)));
        release(&mut model, "a", 1_000);
        read(&mut model, "a", 1_005, held(2, 1, Some(30_000)));
        let since = shown(&mut model, "a").unwrap().holders[0].since;
        traffic(&mut model, 1_000 + late, vec![event("a", 52, Action::Released)]);
        let newer = 2_000;
        read(&mut model, "a", newer, held(2, 1, Some(29_000)));
        traffic(&mut model, newer - 1, vec![event("a", 52, Action::Released)]);
        let view = shown(&mut model, "a").unwrap();
        assert_eq!(endings(&view), [(SteadyMillis(1_000), "released")], "{late}");
        assert_eq!((view.state, view.holders[0].since), (State::Held, since), "{late}");
        // The release of that hold is not mistaken for the one before.
        release(&mut model, "a", newer + 10);
        assert_eq!(endings(&shown(&mut model, "a").unwrap()).len(), 2, "{late}");
    }
}

#[test]
fn a_release_of_an_acquisition_that_only_monitor_shows_ends_that_hold() {
    let mut model = model();
    model.observe(MAIN, Observation::PubSubActive { on: false, at: at(0) });
    read(&mut model, "a", 0, held(2, 1, Some(1_000)));
    traffic(&mut model, 2_000, vec![event("a", 52, Action::Acquired { lease: None })]);
    traffic(&mut model, 2_500, vec![event("a", 52, Action::Released)]);
    assert_eq!(endings(&shown(&mut model, "a").unwrap()).len(), 1);
}

#[test]
fn a_reading_that_is_older_than_a_hand_over_does_not_undo_it() {
    let thread = |n| HolderId::new(ClientId::from_random([1; 16]), n);
    let by = |n| {
        let holders = vec![Holder { id: thread(n), count: 1 }];
        let hash = LockHash { holders, ..LockHash::default() };
        let ttl = Some(Duration::from_secs(30));
        Reading::Lock { hash, ttl, companions: Companions::default() }
    };
    let hand_over = |model: &mut Model, ms, from, to| {
        let what = Action::HandedOver { to: thread(to), lease: None };
        traffic(model, ms, vec![event("a", from, what)]);
    };
    let mut model = model();
    read(&mut model, "a", 0, by(1));
    // This reading waits for a message, and MONITOR shows the hand-overs.
    read(&mut model, "a", 1_000, by(2));
    hand_over(&mut model, 1_005, 1, 2);
    hand_over(&mut model, 1_100, 2, 3);
    // This reading was answered before the hand-over.
    read(&mut model, "a", 1_099, by(2));
    read(&mut model, "a", 1_300, by(3));
    let view = shown(&mut model, "a").unwrap();
    let ends = [1_100, 1_005].map(|ms| (SteadyMillis(ms), "handed_over"));
    assert_eq!(endings(&view), ends);
    assert_eq!(view.holders.len(), 1);
    assert_eq!(
        (&*view.holders[0].id, view.holders[0].since.at),
        (&*thread(3).to_string(), SteadyMillis(1_100))
    );
}

#[test]
fn a_reading_that_is_older_than_an_expiry_begins_no_hold() {
    let mut model = model();
    read(&mut model, "a", 0, held(1, 1, Some(1_000)));
    let expired = Observation::KeyChanged { name: name("a"), expired: true, at: time(1_010) };
    model.observe(MAIN, expired);
    read(&mut model, "a", 990, held(1, 1, Some(10)));
    assert_eq!(shown(&mut model, "a").unwrap().state, State::Free);
    read(&mut model, "a", 1_020, absent());
    assert_eq!(endings(&shown(&mut model, "a").unwrap()), [(SteadyMillis(1_010), "ran_out")]);
}

#[test]
fn a_reading_that_is_older_than_the_end_of_writing_does_not_undo_it() {
    let side = |write| HolderId { write, ..holder(1) };
    let both = |sides: &[bool], mode: &str| {
        let holders = sides.iter().map(|write| Holder { id: side(*write), count: 1 }).collect();
        let hash = LockHash { holders, mode: Some(mode.into()), ..LockHash::default() };
        let ttl = Some(Duration::from_secs(30));
        Reading::Lock { hash, ttl, companions: Companions::default() }
    };
    let mut model = model();
    read(&mut model, "a", 0, both(&[true, false], "write"));
    let mut released = event("a", 52, Action::Released);
    (released.holder, released.kind) = (Some(side(true)), Some(redisson::Kind::Write));
    traffic(&mut model, 1_005, vec![released]);
    read(&mut model, "a", 1_000, both(&[true, false], "write"));
    read(&mut model, "a", 1_300, both(&[false], "read"));
    assert_eq!(endings(&shown(&mut model, "a").unwrap()), [(SteadyMillis(1_005), "released")]);
}
