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
fn a_topic_is_reported_once_its_latest_command_is_a_confirmed_subscription() {
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
fn topics_never_subscribed_are_not_unsubscribed() {
    let mut talk = Conversation::default();
    assert!(talk.send_changes(vec![change("a", false)]).is_empty());
    assert_eq!(talk.unanswered(), 0);
}

#[test]
fn subscribing_again_is_confirmed_again() {
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
fn sharded_channels_are_subscribed_one_by_one() {
    let mut talk = Conversation::default();
    let shard = |name: &str| Topic::Shard(name.as_bytes().to_vec());
    let changes = ["a", "b"].map(|name| Change { topic: shard(name), wanted: true });
    talk.send_changes(changes.into());
    assert_eq!(talk.unanswered(), 2);
    let text = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
    assert_eq!(talk.receive(reply("ssubscribe", "a")), Ok(Received::Subscribed(shard("a"))));
    let message = Frame::Array(vec![text("smessage"), text("a"), text("0")]);
    let expected =
        PubSubEvent::Message { channel: b"a".into(), pattern: None, payload: b"0".into() };
    assert_eq!(talk.receive(message), Ok(Received::Event(expected)));
    let refused = talk.receive(error("MOVED 1 127.0.0.1:7000"));
    assert_eq!(refused, Ok(Received::Refused(shard("b"), "MOVED 1 127.0.0.1:7000".to_owned())));
    talk.send_changes(vec![Change { topic: shard("a"), wanted: false }]);
    assert_eq!(talk.receive(reply("sunsubscribe", "a")), Ok(Received::Nothing));
}

#[test]
fn messages_may_arrive_at_any_time() {
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
fn a_rejected_batch_is_repeated_one_by_one() {
    let mut talk = Conversation::default();
    talk.send_changes(vec![change("a", true), change("b", true)]);
    let Ok(Received::RefusedTogether(topics)) = talk.receive(error("NOPERM no")) else { panic!() };
    assert_eq!(topics.len(), 2);
    talk.subscribe_singly(vec![channel("a"), channel("b")]);
    assert_eq!(talk.unanswered(), 2);
    assert_eq!(talk.receive(reply("subscribe", "a")), Ok(Received::Subscribed(channel("a"))));
    let refused = Received::Refused(channel("b"), "NOPERM no".to_owned());
    assert_eq!(talk.receive(error("NOPERM no")), Ok(refused));
    // It is not subscribed, so no UNSUBSCRIBE is needed.
    assert!(talk.send_changes(vec![change("b", false)]).is_empty());
}

#[test]
fn a_ping_may_be_answered_in_several_forms() {
    let mut talk = Conversation::default();
    let pong = Frame::Array(vec![Frame::Bulk(b"pong".to_vec()), Frame::Bulk(Vec::new())]);
    for answer in [pong, Frame::Simple("PONG".to_owned()), error("NOPERM no")] {
        assert!(!talk.ping().is_empty());
        assert_eq!(talk.receive(answer), Ok(Received::Nothing));
        assert_eq!(talk.unanswered(), 0);
    }
}

#[test]
fn unexpected_replies_are_errors() {
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
fn a_migrated_slot_loses_its_subscriptions() {
    let mut talk = Conversation::default();
    let shard = |name: &str| Topic::Shard(name.as_bytes().to_vec());
    talk.send_changes(vec![Change { topic: shard("a"), wanted: true }]);
    assert_eq!(talk.receive(reply("ssubscribe", "a")), Ok(Received::Subscribed(shard("a"))));
    // Not requested, while another reply is pending.
    talk.send_changes(vec![Change { topic: shard("b"), wanted: true }]);
    let moved = Received::Event(PubSubEvent::Moved(b"a".to_vec()));
    assert_eq!(talk.receive(reply("sunsubscribe", "a")), Ok(moved));
    assert_eq!(talk.receive(reply("ssubscribe", "b")), Ok(Received::Subscribed(shard("b"))));
    assert!(talk.send_changes(vec![Change { topic: shard("a"), wanted: false }]).is_empty());
    // A requested one is a reply.
    talk.send_changes(vec![Change { topic: shard("b"), wanted: false }]);
    assert_eq!(talk.receive(reply("sunsubscribe", "b")), Ok(Received::Nothing));
    assert_eq!(talk.unanswered(), 0);
}
