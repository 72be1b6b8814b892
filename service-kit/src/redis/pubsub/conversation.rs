//! The outstanding commands of one pub/sub connection, matched with their replies. No I/O.
//!
//! Redis answers a SUBSCRIBE of n channels with n confirmations, or with one error for all of them. Replies have the order
//! of the commands, with messages in between.

use std::collections::{HashMap, HashSet, VecDeque};

use redis::cmd;

use super::PubSubEvent;
use super::wanted::{Change, Topic};
use crate::redis::error::ServerError;
use crate::redis::excerpt::excerpt;
use crate::redis::wire::Frame;

/// Topics per command: enough to be fast, and few enough not to block the server.
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

    /// Topics per command.
    fn batch(self) -> usize {
        match self {
            // All channels of one command must share a slot.
            Self::SSubscribe | Self::SUnsubscribe => 1,
            Self::Subscribe | Self::PSubscribe | Self::Unsubscribe | Self::PUnsubscribe => BATCH,
        }
    }
}

/// An outstanding command.
#[derive(Debug)]
enum Outstanding {
    Ping,
    Change { verb: Verb, topics: VecDeque<Topic> },
}

/// The meaning of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Nothing to report.
    Nothing,
    /// A topic is subscribed, and no later command about it is outstanding.
    Subscribed(Topic),
    /// An event to deliver.
    Event(PubSubEvent),
    /// The subscription of this topic was refused, for this reason.
    Refused(Topic, String),
    /// A command was refused as a whole. Subscribing its topics one by one shows which of them is refused.
    RefusedTogether(Vec<Topic>),
}

#[derive(Debug, Default)]
pub(super) struct Conversation {
    outstanding: VecDeque<Outstanding>,
    /// Topics whose latest command subscribes.
    subscribed: HashSet<Topic>,
    /// The number of outstanding commands for each topic.
    pending: HashMap<Topic, u32>,
}

impl Conversation {
    /// The number of outstanding commands.
    pub(super) fn unanswered(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns the commands for these changes, as few as possible.
    pub(super) fn send_changes(&mut self, changes: Vec<Change>) -> Vec<u8> {
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

    /// Returns a command for each of these topics.
    pub(super) fn subscribe_singly(&mut self, topics: Vec<Topic>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for topic in topics {
            let verb = Verb::of(&Change { topic: topic.clone(), wanted: true });
            self.send(verb, &[topic], &mut bytes);
        }
        bytes
    }

    pub(super) fn ping(&mut self) -> Vec<u8> {
        self.outstanding.push_back(Outstanding::Ping);
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
        self.outstanding
            .push_back(Outstanding::Change { verb, topics: topics.iter().cloned().collect() });
    }

    /// Matches a reply with its command.
    ///
    /// # Errors
    ///
    /// Returns an error for an unexpected reply. The connection cannot be used any more.
    pub(super) fn receive(&mut self, frame: Frame) -> Result<Received, String> {
        match frame {
            Frame::Array(parts) => self.receive_array(parts),
            Frame::Simple(text) if text == "PONG" => self.pong(),
            Frame::Error(error) => self.refused(&error),
            other => Err(unexpected(&other)),
        }
    }

    fn receive_array(&mut self, parts: Vec<Frame>) -> Result<Received, String> {
        let mut parts = parts.into_iter();
        let kind = parts.next();
        let Some(Frame::Bulk(kind)) = kind else { return Err(unexpected(&kind)) };
        let rest = (parts.next(), parts.next(), parts.next());
        match (kind.as_slice(), rest) {
            (
                b"message" | b"smessage",
                (Some(Frame::Bulk(channel)), Some(Frame::Bulk(payload)), None),
            ) => Ok(Received::Event(PubSubEvent::Message { channel, pattern: None, payload })),
            (
                b"pmessage",
                (
                    Some(Frame::Bulk(pattern)),
                    Some(Frame::Bulk(channel)),
                    Some(Frame::Bulk(payload)),
                ),
            ) => Ok(Received::Event(PubSubEvent::Message {
                channel,
                pattern: Some(pattern),
                payload,
            })),
            (b"pong", _) => self.pong(),
            (verb, (Some(Frame::Bulk(name)), Some(Frame::Int(_)), None)) => {
                self.confirmed(verb, &name)
            }
            (other, _) => Err(unexpected(&String::from_utf8_lossy(other))),
        }
    }

    fn pong(&mut self) -> Result<Received, String> {
        match self.outstanding.pop_front() {
            Some(Outstanding::Ping) => Ok(Received::Nothing),
            _ => Err(unexpected(&"PONG")),
        }
    }

    fn confirmed(&mut self, verb_name: &[u8], name: &[u8]) -> Result<Received, String> {
        if verb_name == Verb::SUnsubscribe.name().as_bytes() && !self.awaits_unsubscribed(name) {
            // Unsolicited: the slot has left this server, and its subscriptions with it.
            self.subscribed.remove(&Topic::Shard(name.to_vec()));
            return Ok(Received::Event(PubSubEvent::Moved(name.to_vec())));
        }
        let Some(Outstanding::Change { verb, topics }) = self.outstanding.front_mut() else {
            return Err(unexpected(&String::from_utf8_lossy(verb_name)));
        };
        let verb = *verb;
        let topic = topics
            .pop_front()
            .filter(|topic| topic.name() == name && verb.name().as_bytes() == verb_name);
        let Some(topic) = topic else {
            return Err(unexpected(&String::from_utf8_lossy(verb_name)));
        };
        if topics.is_empty() {
            self.outstanding.pop_front();
        }
        let last = self.answered(&topic);
        Ok(if last && verb.subscribes() { Received::Subscribed(topic) } else { Received::Nothing })
    }

    /// Reports whether the next outstanding reply is to a SUNSUBSCRIBE of this channel.
    fn awaits_unsubscribed(&self, name: &[u8]) -> bool {
        matches!(
            self.outstanding.front(),
            Some(Outstanding::Change { verb: Verb::SUnsubscribe, topics })
                if topics.front().is_some_and(|topic| topic.name() == name)
        )
    }

    /// Counts an answer about this topic. Returns `true` if it was the last outstanding one.
    fn answered(&mut self, topic: &Topic) -> bool {
        let Some(pending) = self.pending.get_mut(topic) else { return true };
        *pending -= 1;
        let last = *pending == 0;
        if last {
            self.pending.remove(topic);
        }
        last
    }

    fn refused(&mut self, error: &ServerError) -> Result<Received, String> {
        let (verb, mut topics) = match self.outstanding.pop_front() {
            Some(Outstanding::Change { verb, topics }) => (verb, topics),
            // An answer is a sign of life, whatever it says.
            Some(Outstanding::Ping) => return Ok(Received::Nothing),
            None => return Err(format!("the server said: {error}")),
        };
        for topic in &topics {
            if self.answered(topic) {
                self.subscribed.remove(topic);
            }
        }
        if !verb.subscribes() {
            return Ok(Received::Nothing);
        }
        match topics.pop_front() {
            Some(topic) if topics.is_empty() => Ok(Received::Refused(topic, error.to_string())),
            Some(first) => {
                topics.push_front(first);
                Ok(Received::RefusedTogether(topics.into()))
            }
            None => Err(unexpected(&error)),
        }
    }
}

fn unexpected(what: &dyn std::fmt::Debug) -> String {
    format!("the server sent {} where that makes no sense", excerpt(what))
}

#[cfg(test)]
mod tests;
