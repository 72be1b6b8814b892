//! One connection for pub/sub, as its users see it.

mod conversation;
mod task;
mod wishes;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use self::wishes::{Topic, Wishes};
use super::aim::Aim;
use super::greeting::Greeting;
use crate::shutdown::Shutdown;

/// Events that wait for their receiver; beyond, the connection is not read.
const EVENT_QUEUE: usize = 1024;

/// How a [`Subscriber`] behaves.
#[derive(Debug, Clone)]
pub struct SubscriberOptions {
    /// What CLIENT LIST shows; without spaces.
    pub name: String,
    /// The limit for reaching the server, TLS included.
    pub connect_timeout: Duration,
    /// The limit for the server's silence while it owes us an answer.
    pub response_timeout: Duration,
    /// After this long without a word the server is asked for a sign of life, so a dead connection
    /// is noticed within `heartbeat + response_timeout`.
    pub heartbeat: Duration,
}

impl SubscriberOptions {
    /// Connecting within 1 s, answers within 500 ms, a sign of life each second.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            heartbeat: Duration::from_secs(1),
        }
    }
}

/// What a [`Subscriber`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PubSubEvent {
    /// There is a connection; what is wished is being subscribed on it.
    Up,
    /// There is none; what is published now is not heard. Told for each loss, and again when the
    /// reason changes.
    Down {
        /// Why.
        reason: String,
    },
    /// From here on, messages of this channel are heard. Told after each [`Subscriber::subscribe`]
    /// and again after every reconnect: what was published before may have been missed, so look.
    Subscribed(Vec<u8>),
    /// The same for a pattern.
    PSubscribed(Vec<u8>),
    /// Something was published.
    Message {
        /// Where.
        channel: Vec<u8>,
        /// The pattern that it matched, if it comes by a pattern.
        pattern: Option<Vec<u8>>,
        /// What.
        payload: Vec<u8>,
    },
    /// The server no longer has the slot of this channel of a shard: what is published there is not heard any more.
    Moved(Vec<u8>),
    /// The server does not let us subscribe this channel or pattern. The wish stays, and is tried
    /// again with the next connection.
    Refused {
        /// The channel or pattern.
        channel: Vec<u8>,
        /// What the server said.
        reason: String,
    },
}

/// The wishes of one supervised pub/sub connection. What is wished is subscribed as soon as can be
/// and stays so across reconnects. Wishing never waits; clones share the wishes.
#[derive(Debug, Clone)]
pub struct Subscriber {
    wishes: Arc<Wishes>,
}

impl Subscriber {
    /// Starts connecting, and stays at it until `shutdown` or until the receiver is dropped.
    ///
    /// Where the receiver is slow the connection is not read meanwhile and nothing is dropped here.
    /// A server that has too much waiting for us then closes it, which is a
    /// [`PubSubEvent::Down`] like any other.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(
        aim: impl Into<Aim>,
        options: SubscriberOptions,
        shutdown: &Shutdown,
    ) -> (Self, mpsc::Receiver<PubSubEvent>) {
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        let wishes = Arc::new(Wishes::default());
        let task_name = format!("Redis subscriber {}", options.name);
        let stopped = shutdown.child_token();
        let greeting = Greeting {
            name: options.name,
            no_touch: false,
            load: Vec::new(),
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
        };
        let task =
            task::Task::new(aim.into(), greeting, options.heartbeat, Arc::clone(&wishes), events);
        shutdown.spawn(task_name, async move {
            stopped.run_until_cancelled(task.run()).await;
        });
        (Self { wishes }, receiver)
    }

    /// Wishes for these channels. Each is told as [`PubSubEvent::Subscribed`], also when it had
    /// been subscribed before. How many there are is the caller's to bound.
    pub fn subscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wishes.add(channels.into_iter().map(Topic::Channel));
    }

    /// Wishes for these channels no longer.
    pub fn unsubscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wishes.remove(channels.into_iter().map(Topic::Channel));
    }

    /// Wishes for these patterns.
    pub fn psubscribe(&self, patterns: impl IntoIterator<Item = Vec<u8>>) {
        self.wishes.add(patterns.into_iter().map(Topic::Pattern));
    }

    /// Wishes for these patterns no longer.
    pub fn punsubscribe(&self, patterns: impl IntoIterator<Item = Vec<u8>>) {
        self.wishes.remove(patterns.into_iter().map(Topic::Pattern));
    }

    /// Wishes for these channels of a cluster's shards (Redis 7.0 and later): what is published there with SPUBLISH
    /// is heard by no other subscription. A server that is not their slot's refuses them.
    pub fn ssubscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wishes.add(channels.into_iter().map(Topic::Shard));
    }

    /// Wishes for these channels of shards no longer.
    pub fn sunsubscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wishes.remove(channels.into_iter().map(Topic::Shard));
    }

    /// How many channels and patterns are wished.
    #[must_use]
    pub fn wished(&self) -> usize {
        self.wishes.count()
    }
}
