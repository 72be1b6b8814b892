//! A supervised connection for pub/sub.

mod conversation;
mod task;
mod wanted;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use self::wanted::{Topic, Wanted};
use super::endpoint::Endpoint;
use super::handshake::Handshake;
use super::reply_limit::MIB;
use crate::shutdown::Shutdown;

/// Events queued for their receiver. The connection is not read while the queue is full.
const EVENT_QUEUE: usize = 1024;

/// The memory that one message may need, in bytes. The connection is replaced when a message exceeds it.
const MESSAGE_LIMIT: usize = 8 * MIB;

/// Settings of a [`Subscriber`].
#[derive(Debug, Clone)]
pub struct SubscriberOptions {
    /// The name that CLIENT LIST shows; without spaces.
    pub name: String,
    /// The limit for connecting, TLS included.
    pub connect_timeout: Duration,
    /// The limit for the server's silence while an answer is outstanding.
    pub response_timeout: Duration,
    /// The silence after which the server is sent a PING. A dead connection is noticed within
    /// `heartbeat + response_timeout`.
    pub heartbeat: Duration,
    /// Collects the messages of up to 10 ms before they are read, if the server is reached by TCP. A server on the same host
    /// then spends less CPU time on waking this process.
    pub batched: bool,
    /// The interval at which refused subscriptions are tried again.
    pub retry: Duration,
}

impl SubscriberOptions {
    /// Returns settings that connect within 1 s, expect answers within 500 ms and send a PING each second. Messages
    /// are read at once, and refused subscriptions tried again every 10 s.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            heartbeat: Duration::from_secs(1),
            batched: false,
            retry: Duration::from_secs(10),
        }
    }
}

/// An event of a [`Subscriber`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PubSubEvent {
    /// Connected. The wanted channels are being subscribed.
    Up,
    /// Disconnected: messages published now are missed. Sent for each loss, and again when the reason changes.
    Down {
        /// The reason.
        reason: String,
    },
    /// From here on, messages of this channel arrive. Sent after each [`Subscriber::subscribe`] and after every reconnect.
    /// Messages published before may have been missed.
    Subscribed(Vec<u8>),
    /// From here on, messages of this pattern arrive.
    PSubscribed(Vec<u8>),
    /// A message was published. Messages of more than 16 KiB are skipped.
    Message {
        /// The channel.
        channel: Vec<u8>,
        /// The pattern that matched, if it arrived by a pattern.
        pattern: Option<Vec<u8>>,
        /// The message.
        payload: Vec<u8>,
    },
    /// The server no longer serves the slot of this shard channel. Its messages no longer arrive.
    Moved(Vec<u8>),
    /// The server refuses a subscription. It is tried again at intervals and on the next connection, without another event
    /// until it succeeds or the connection ends.
    Refused {
        /// The channel or pattern.
        channel: Vec<u8>,
        /// The server's error.
        reason: String,
    },
}

impl PubSubEvent {
    /// Returns the number of bytes that the server determines.
    fn size(&self) -> usize {
        match self {
            Self::Message { channel, pattern, payload } => {
                channel.len() + pattern.as_ref().map_or(0, Vec::len) + payload.len()
            }
            Self::Moved(channel) => channel.len(),
            Self::Refused { reason, .. } | Self::Down { reason } => reason.len(),
            Self::Up | Self::Subscribed(_) | Self::PSubscribed(_) => 0,
        }
    }
}

/// A supervised pub/sub connection. Wanted channels are subscribed as soon as possible and resubscribed after every
/// reconnect. Methods never wait. Clones share the subscriptions.
#[derive(Debug, Clone)]
pub struct Subscriber {
    wanted: Arc<Wanted>,
}

impl Subscriber {
    /// Starts to connect and reconnect, until `shutdown` or until the receiver is dropped.
    ///
    /// While the receiver is slow, the connection is not read and no event is dropped. When the server's output buffer
    /// grows too large, the server closes the connection, which is a [`PubSubEvent::Down`] like any other.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(
        endpoint: impl Into<Endpoint>,
        options: SubscriberOptions,
        shutdown: &Shutdown,
    ) -> (Self, mpsc::Receiver<PubSubEvent>) {
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        let wanted = Arc::new(Wanted::default());
        let task_name = format!("Redis subscriber {}", options.name);
        let stopped = shutdown.child_token();
        let handshake = Handshake {
            reply_limit: MESSAGE_LIMIT,
            batched: options.batched,
            ..Handshake::plain(options.name, options.connect_timeout, options.response_timeout)
        };
        let task = task::Task::new(
            endpoint.into(),
            handshake,
            (options.heartbeat, options.retry),
            Arc::clone(&wanted),
            events,
        );
        shutdown.spawn(task_name, async move {
            stopped.run_until_cancelled(task.run()).await;
        });
        (Self { wanted }, receiver)
    }

    /// Subscribes to these channels. Each is confirmed with [`PubSubEvent::Subscribed`], even if it was subscribed before.
    /// The caller limits their number.
    pub fn subscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wanted.add(channels.into_iter().map(Topic::Channel));
    }

    /// Unsubscribes from these channels.
    pub fn unsubscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wanted.remove(channels.into_iter().map(Topic::Channel));
    }

    /// Subscribes to these patterns.
    pub fn psubscribe(&self, patterns: impl IntoIterator<Item = Vec<u8>>) {
        self.wanted.add(patterns.into_iter().map(Topic::Pattern));
    }

    /// Unsubscribes from these patterns.
    pub fn punsubscribe(&self, patterns: impl IntoIterator<Item = Vec<u8>>) {
        self.wanted.remove(patterns.into_iter().map(Topic::Pattern));
    }

    /// Subscribes to these shard channels of a cluster (Redis 7.0 and later). Messages sent with SPUBLISH arrive by no
    /// other subscription. A server that does not serve the channel's slot refuses.
    pub fn ssubscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wanted.add(channels.into_iter().map(Topic::Shard));
    }

    /// Unsubscribes from these shard channels.
    pub fn sunsubscribe(&self, channels: impl IntoIterator<Item = Vec<u8>>) {
        self.wanted.remove(channels.into_iter().map(Topic::Shard));
    }

    /// The number of wanted channels and patterns.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.wanted.count()
    }
}
