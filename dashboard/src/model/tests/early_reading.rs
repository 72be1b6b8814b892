//! Tests of readings that are processed before the release message that explains them.

use super::*;

fn endings(view: &LockView) -> Vec<(SteadyMillis, &'static str)> {
    view.history.past.iter().filter_map(|past| past.to.zip(past.ended)).collect()
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
