use super::*;

fn channel(name: &str) -> Topic {
    Topic::Channel(name.as_bytes().to_vec())
}

fn change(name: &str, wanted: bool) -> Change {
    Change { topic: channel(name), wanted }
}

fn reply(verb: &str, name: &str) -> Frame {
    let text = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
    Frame::Array(vec![text(verb), text(name), Frame::Int(1)])
}

fn error(line: &str) -> Frame {
    Frame::Error(ServerError::parse(line))
}

#[test]
fn a_topic_is_told_when_the_last_word_about_it_is_a_confirmed_subscription() {
    let mut talk = Conversation::default();
    for wanted in [true, false, true] {
        assert!(!talk.send_changes(vec![change("a", wanted)]).is_empty());
    }
    assert_eq!(talk.unanswered(), 3);
    assert_eq!(talk.receive(reply("subscribe", "a")), Ok(Received::Nothing));
    assert_eq!(talk.receive(reply("unsubscribe", "a")), Ok(Received::Nothing));
    assert_eq!(talk.receive(reply("subscribe", "a")), Ok(Received::Subscribed(channel("a"))));
    assert_eq!(talk.unanswered(), 0);
}

#[test]
fn what_was_never_subscribed_is_not_unsubscribed() {
    let mut talk = Conversation::default();
    assert!(talk.send_changes(vec![change("a", false)]).is_empty());
    assert_eq!(talk.unanswered(), 0);
}

#[test]
fn asking_again_for_what_is_subscribed_is_confirmed_again() {
    let mut talk = Conversation::default();
    for _ in 0..2 {
        talk.send_changes(vec![change("a", true)]);
        assert_eq!(talk.receive(reply("subscribe", "a")), Ok(Received::Subscribed(channel("a"))));
    }
}

#[test]
fn many_topics_go_in_few_commands() {
    let mut talk = Conversation::default();
    talk.send_changes((0..1200).map(|n| change(&n.to_string(), true)).collect());
    assert_eq!(talk.unanswered(), 3);
}

#[test]
fn channels_of_shards_are_asked_for_one_by_one() {
    let mut talk = Conversation::default();
    let shard = |name: &str| Topic::Shard(name.as_bytes().to_vec());
    let changes = ["a", "b"].map(|name| Change { topic: shard(name), wanted: true });
    talk.send_changes(changes.into());
    assert_eq!(talk.unanswered(), 2);
    let text = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
    assert_eq!(talk.receive(reply("ssubscribe", "a")), Ok(Received::Subscribed(shard("a"))));
    let message = Frame::Array(vec![text("smessage"), text("a"), text("0")]);
    let heard = PubSubEvent::Message { channel: b"a".into(), pattern: None, payload: b"0".into() };
    assert_eq!(talk.receive(message), Ok(Received::Event(heard)));
    let refused = talk.receive(error("MOVED 1 127.0.0.1:7000"));
    assert!(
        matches!(&refused, Ok(Received::Event(PubSubEvent::Refused { channel, .. })) if channel == b"b")
    );
    talk.send_changes(vec![Change { topic: shard("a"), wanted: false }]);
    assert_eq!(talk.receive(reply("sunsubscribe", "a")), Ok(Received::Nothing));
}

#[test]
fn messages_come_through_at_any_time() {
    let mut talk = Conversation::default();
    talk.send_changes(vec![change("a", true)]);
    let text = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
    let message = Frame::Array(vec![text("message"), text("b"), text("hi")]);
    let (channel, payload) = (b"b".to_vec(), b"hi".to_vec());
    assert_eq!(
        talk.receive(message),
        Ok(Received::Event(PubSubEvent::Message {
            channel: channel.clone(),
            pattern: None,
            payload: payload.clone()
        }))
    );
    let message = Frame::Array(vec![text("pmessage"), text("?"), text("b"), text("hi")]);
    let pattern = Some(b"?".to_vec());
    assert_eq!(
        talk.receive(message),
        Ok(Received::Event(PubSubEvent::Message { channel, pattern, payload }))
    );
    assert_eq!(talk.unanswered(), 1);
}

#[test]
fn a_refusal_of_many_leads_to_who_is_to_blame() {
    let mut talk = Conversation::default();
    talk.send_changes(vec![change("a", true), change("b", true)]);
    let Ok(Received::RefusedTogether(topics)) = talk.receive(error("NOPERM no")) else { panic!() };
    assert_eq!(topics.len(), 2);
    talk.subscribe_singly(vec![channel("a"), channel("b")]);
    assert_eq!(talk.unanswered(), 2);
    assert_eq!(talk.receive(reply("subscribe", "a")), Ok(Received::Subscribed(channel("a"))));
    let refused = PubSubEvent::Refused { channel: b"b".to_vec(), reason: "NOPERM no".to_owned() };
    assert_eq!(talk.receive(error("NOPERM no")), Ok(Received::Event(refused)));
    // It is not subscribed, so there is nothing to take back.
    assert!(talk.send_changes(vec![change("b", false)]).is_empty());
}

#[test]
fn a_sign_of_life_is_one_in_each_of_its_forms() {
    let mut talk = Conversation::default();
    let pong = Frame::Array(vec![Frame::Bulk(b"pong".to_vec()), Frame::Bulk(Vec::new())]);
    for answer in [pong, Frame::Simple("PONG".to_owned()), error("NOPERM no")] {
        assert!(!talk.ping().is_empty());
        assert_eq!(talk.receive(answer), Ok(Received::Nothing));
        assert_eq!(talk.unanswered(), 0);
    }
}

#[test]
fn answers_to_nothing_end_the_conversation() {
    for frame in [
        reply("subscribe", "a"),
        Frame::Simple("PONG".to_owned()),
        error("ERR what"),
        Frame::Int(1),
        Frame::Array(Vec::new()),
    ] {
        assert!(Conversation::default().receive(frame.clone()).is_err(), "{frame:?}");
    }
    let mut talk = Conversation::default();
    talk.send_changes(vec![change("a", true)]);
    assert!(talk.receive(reply("subscribe", "b")).is_err());
}

#[test]
fn a_slot_that_leaves_takes_its_subscriptions_along() {
    let mut talk = Conversation::default();
    let shard = |name: &str| Topic::Shard(name.as_bytes().to_vec());
    talk.send_changes(vec![Change { topic: shard("a"), wanted: true }]);
    assert_eq!(talk.receive(reply("ssubscribe", "a")), Ok(Received::Subscribed(shard("a"))));
    // Unasked, and while something else is asked.
    talk.send_changes(vec![Change { topic: shard("b"), wanted: true }]);
    let moved = Received::Event(PubSubEvent::Moved(b"a".to_vec()));
    assert_eq!(talk.receive(reply("sunsubscribe", "a")), Ok(moved));
    assert_eq!(talk.receive(reply("ssubscribe", "b")), Ok(Received::Subscribed(shard("b"))));
    assert!(talk.send_changes(vec![Change { topic: shard("a"), wanted: false }]).is_empty());
    // One that was asked for is an answer.
    talk.send_changes(vec![Change { topic: shard("b"), wanted: false }]);
    assert_eq!(talk.receive(reply("sunsubscribe", "b")), Ok(Received::Nothing));
    assert_eq!(talk.unanswered(), 0);
}
