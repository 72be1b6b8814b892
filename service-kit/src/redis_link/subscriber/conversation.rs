//! What was said on one pub/sub connection and not answered yet. No I/O.
//!
//! Redis answers a SUBSCRIBE of n channels with n confirmations, or with one error for all of them,
//! always in the order of the commands, with messages in between.

use std::collections::{HashMap, HashSet, VecDeque};

use redis::cmd;

use super::PubSubEvent;
use super::wishes::{Change, Topic};
use crate::redis_link::error::ServerError;
use crate::redis_link::resp::Frame;

/// Topics to a command: large enough to be quick, small enough not to hold the server up.
pub(super) const BATCH: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Verb {
    Subscribe,
    Unsubscribe,
    PSubscribe,
    PUnsubscribe,
    SSubscribe,
    SUnsubscribe,
}

impl Verb {
    const ALL: [Self; 6] = [
        Self::PSubscribe,
        Self::Subscribe,
        Self::SSubscribe,
        Self::PUnsubscribe,
        Self::Unsubscribe,
        Self::SUnsubscribe,
    ];

    fn of(change: &Change) -> Self {
        match (&change.topic, change.wanted) {
            (Topic::Channel(_), true) => Self::Subscribe,
            (Topic::Channel(_), false) => Self::Unsubscribe,
            (Topic::Pattern(_), true) => Self::PSubscribe,
            (Topic::Pattern(_), false) => Self::PUnsubscribe,
            (Topic::Shard(_), true) => Self::SSubscribe,
            (Topic::Shard(_), false) => Self::SUnsubscribe,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Subscribe => "subscribe",
            Self::Unsubscribe => "unsubscribe",
            Self::PSubscribe => "psubscribe",
            Self::PUnsubscribe => "punsubscribe",
            Self::SSubscribe => "ssubscribe",
            Self::SUnsubscribe => "sunsubscribe",
        }
    }

    fn subscribes(self) -> bool {
        matches!(self, Self::Subscribe | Self::PSubscribe | Self::SSubscribe)
    }

    /// Topics to a command.
    fn batch(self) -> usize {
        match self {
            // Channels of one command must be of one slot.
            Self::SSubscribe | Self::SUnsubscribe => 1,
            _ => BATCH,
        }
    }
}

/// A command that the server owes answers to.
#[derive(Debug)]
enum Asked {
    Ping,
    Change { verb: Verb, topics: VecDeque<Topic> },
}

/// What a reply means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing to tell.
    Nothing,
    /// A topic is subscribed, and no later command about it is under way.
    Subscribed(Topic),
    /// To be told as it is.
    Event(PubSubEvent),
    /// These were refused together; one at a time will show which of them is to blame.
    RefusedTogether(Vec<Topic>),
}

#[derive(Debug, Default)]
pub(super) struct Conversation {
    asked: VecDeque<Asked>,
    /// Topics whose last command was a subscribing one.
    subscribed: HashSet<Topic>,
    /// Commands about a topic that are not answered.
    pending: HashMap<Topic, u32>,
}

impl Conversation {
    /// Commands that the server owes answers to.
    pub(super) fn unanswered(&self) -> usize {
        self.asked.len()
    }

    /// Commands for these changes, as few as can be.
    pub(super) fn ask(&mut self, changes: Vec<Change>) -> Vec<u8> {
        let mut topics: HashMap<Verb, Vec<Topic>> = HashMap::new();
        for change in changes {
            let had = self.subscribed.contains(&change.topic);
            if change.wanted || had {
                topics.entry(Verb::of(&change)).or_default().push(change.topic);
            }
        }
        let mut bytes = Vec::new();
        for verb in Verb::ALL {
            let topics = topics.remove(&verb).unwrap_or_default();
            for batch in topics.chunks(verb.batch()) {
                self.send(verb, batch, &mut bytes);
            }
        }
        bytes
    }

    /// A command for each of these topics.
    pub(super) fn ask_singly(&mut self, topics: Vec<Topic>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for topic in topics {
            let verb = Verb::of(&Change { topic: topic.clone(), wanted: true });
            self.send(verb, &[topic], &mut bytes);
        }
        bytes
    }

    pub(super) fn ping(&mut self) -> Vec<u8> {
        self.asked.push_back(Asked::Ping);
        cmd("PING").get_packed_command()
    }

    fn send(&mut self, verb: Verb, topics: &[Topic], bytes: &mut Vec<u8>) {
        let mut command = cmd(verb.name());
        for topic in topics {
            command.arg(topic.name());
            *self.pending.entry(topic.clone()).or_default() += 1;
            if verb.subscribes() {
                self.subscribed.insert(topic.clone());
            } else {
                self.subscribed.remove(topic);
            }
        }
        command.write_packed_command(bytes);
        self.asked.push_back(Asked::Change { verb, topics: topics.iter().cloned().collect() });
    }

    /// # Errors
    ///
    /// When the reply makes no sense here: nothing on this connection can be trusted any more.
    pub(super) fn hear(&mut self, frame: Frame) -> Result<Heard, String> {
        match frame {
            Frame::Array(parts) => self.hear_array(parts),
            Frame::Simple(text) if text == "PONG" => self.pong(),
            Frame::Error(error) => self.refused(&error),
            other => Err(unexpected(&other)),
        }
    }

    fn hear_array(&mut self, parts: Vec<Frame>) -> Result<Heard, String> {
        let mut parts = parts.into_iter();
        let kind = parts.next();
        let Some(Frame::Bulk(kind)) = kind else { return Err(unexpected(&kind)) };
        let rest = (parts.next(), parts.next(), parts.next());
        match (kind.as_slice(), rest) {
            (
                b"message" | b"smessage",
                (Some(Frame::Bulk(channel)), Some(Frame::Bulk(payload)), None),
            ) => Ok(Heard::Event(PubSubEvent::Message { channel, pattern: None, payload })),
            (
                b"pmessage",
                (
                    Some(Frame::Bulk(pattern)),
                    Some(Frame::Bulk(channel)),
                    Some(Frame::Bulk(payload)),
                ),
            ) => {
                Ok(Heard::Event(PubSubEvent::Message { channel, pattern: Some(pattern), payload }))
            }
            (b"pong", _) => self.pong(),
            (verb, (Some(Frame::Bulk(name)), Some(Frame::Int(_)), None)) => {
                self.confirmed(verb, &name)
            }
            (other, _) => Err(unexpected(&String::from_utf8_lossy(other))),
        }
    }

    fn pong(&mut self) -> Result<Heard, String> {
        match self.asked.pop_front() {
            Some(Asked::Ping) => Ok(Heard::Nothing),
            _ => Err(unexpected(&"PONG")),
        }
    }

    fn confirmed(&mut self, said: &[u8], name: &[u8]) -> Result<Heard, String> {
        if said == Verb::SUnsubscribe.name().as_bytes() && !self.awaits_unsubscribed(name) {
            // Nobody asked: the slot has left this server, and its subscriptions with it.
            self.subscribed.remove(&Topic::Shard(name.to_vec()));
            return Ok(Heard::Event(PubSubEvent::Moved(name.to_vec())));
        }
        let Some(Asked::Change { verb, topics }) = self.asked.front_mut() else {
            return Err(unexpected(&String::from_utf8_lossy(said)));
        };
        let verb = *verb;
        let topic = topics
            .pop_front()
            .filter(|topic| topic.name() == name && verb.name().as_bytes() == said);
        let Some(topic) = topic else {
            return Err(unexpected(&String::from_utf8_lossy(said)));
        };
        if topics.is_empty() {
            self.asked.pop_front();
        }
        let last = self.answered(&topic);
        Ok(if last && verb.subscribes() { Heard::Subscribed(topic) } else { Heard::Nothing })
    }

    /// Whether the next answer is to a SUNSUBSCRIBE of this channel.
    fn awaits_unsubscribed(&self, name: &[u8]) -> bool {
        matches!(
            self.asked.front(),
            Some(Asked::Change { verb: Verb::SUnsubscribe, topics })
                if topics.front().is_some_and(|topic| topic.name() == name)
        )
    }

    /// One command about this topic is answered; whether it was the last one.
    fn answered(&mut self, topic: &Topic) -> bool {
        let Some(pending) = self.pending.get_mut(topic) else { return true };
        *pending -= 1;
        let last = *pending == 0;
        if last {
            self.pending.remove(topic);
        }
        last
    }

    fn refused(&mut self, error: &ServerError) -> Result<Heard, String> {
        let (verb, mut topics) = match self.asked.pop_front() {
            Some(Asked::Change { verb, topics }) => (verb, topics),
            // An answer is a sign of life, whatever it says.
            Some(Asked::Ping) => return Ok(Heard::Nothing),
            None => return Err(format!("the server said: {error}")),
        };
        for topic in &topics {
            if self.answered(topic) {
                self.subscribed.remove(topic);
            }
        }
        if !verb.subscribes() {
            return Ok(Heard::Nothing);
        }
        match topics.pop_front() {
            Some(topic) if topics.is_empty() => {
                let reason = error.to_string();
                Ok(Heard::Event(PubSubEvent::Refused { channel: topic.into_name(), reason }))
            }
            Some(first) => {
                topics.push_front(first);
                Ok(Heard::RefusedTogether(topics.into()))
            }
            None => Err(unexpected(&error)),
        }
    }
}

fn unexpected(what: &dyn std::fmt::Debug) -> String {
    format!("the server sent {what:?} where that makes no sense")
}

#[cfg(test)]
mod tests;
