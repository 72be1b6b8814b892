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
