//! The task behind a subscriber: it connects, subscribes and delivers events.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::PubSubEvent;
use super::conversation::{BATCH, Conversation, Received};
use super::wanted::{Topic, Wanted};
use crate::redis::backoff::{Backoff, PROVEN};
use crate::redis::endpoint::{Endpoint, Route};
use crate::redis::handshake::Handshake;
use crate::redis::wire::Wire;

/// Commands in flight. Changes that arrive meanwhile are merged into fewer commands.
const WINDOW: usize = 4;

/// The longest message delivered, in bytes, channel included, because many messages may be queued.
const MAX_QUEUED: usize = 16 * 1024;

pub(super) struct Task {
    endpoint: Endpoint,
    handshake: Handshake,
    heartbeat: Duration,
    /// The interval at which refused subscriptions are tried again.
    retry: Duration,
    wanted: Arc<Wanted>,
    events: mpsc::Sender<PubSubEvent>,
}

/// The reason why the work on a connection ended.
enum End {
    Broken(String),
    /// The receiver was dropped.
    Unreceived,
}

impl From<String> for End {
    fn from(reason: String) -> Self {
        Self::Broken(reason)
    }
}

impl Task {
    pub(super) fn new(
        endpoint: Endpoint,
        handshake: Handshake,
        (heartbeat, retry): (Duration, Duration),
        wanted: Arc<Wanted>,
        events: mpsc::Sender<PubSubEvent>,
    ) -> Self {
        Self { endpoint, handshake, heartbeat, retry, wanted, events }
    }

    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        let mut last_failure = None;
        loop {
            let mut tried = None;
            let pause = match self.endpoint.connect(&self.handshake, &mut tried).await {
                Ok((wire, _, route)) => {
                    last_failure = None;
                    let since = Instant::now();
                    tracing::debug!(redis.target = %self.endpoint, link = self.handshake.name, "connected for pub/sub");
                    let End::Broken(reason) = self.converse(wire, route).await else {
                        return;
                    };
                    self.endpoint.suspect();
                    tracing::warn!(redis.target = %self.endpoint, link = self.handshake.name, reason, "lost the pub/sub connection to Redis");
                    if self.deliver(PubSubEvent::Down { reason }).await.is_err() {
                        return;
                    }
                    if since.elapsed() >= PROVEN {
                        backoff.reset();
                        continue;
                    }
                    backoff.after_failure(false)
                }
                Err(error) => {
                    self.endpoint.suspect();
                    if last_failure.as_ref() != Some(&error) {
                        tracing::warn!(redis.target = %self.endpoint, link = self.handshake.name, %error, "cannot connect to Redis for pub/sub");
                        let reason = error.to_string();
                        if self.deliver(PubSubEvent::Down { reason }).await.is_err() {
                            return;
                        }
                    }
                    let pause = backoff.after_failure(error.needs_patience());
                    last_failure = Some(error);
                    pause
                }
            };
            tokio::select! {
                () = self.endpoint.pause(pause, tried.as_ref()) => {}
                () = self.events.closed() => return,
            }
        }
    }

    async fn converse(&self, wire: Wire, route: Route) -> End {
        let end = tokio::select! {
            end = Session::new(self, wire).run() => end,
            reason = self.endpoint.left(&route) => End::Broken(reason.to_owned()),
        };
        self.wanted.stop();
        end
    }

    /// Delivers an event. A slow receiver slows the reading and loses nothing.
    async fn deliver(&self, event: PubSubEvent) -> Result<(), End> {
        self.events.send(event).await.map_err(|_| End::Unreceived)
    }
}

/// The work on one connection.
struct Session<'a> {
    task: &'a Task,
    wire: Wire,
    conversation: Conversation,
    /// Topics that were refused, and wait for `retry_at`.
    refused: HashSet<Topic>,
    /// Topics that were refused and are being tried again.
    retried: HashSet<Topic>,
    retry_at: Instant,
    /// The instant of the server's latest sign of life, or the latest one at which it could have been read.
    alive_at: Instant,
    /// The instant since which an answer is outstanding.
    waiting_since: Option<Instant>,
}

impl<'a> Session<'a> {
    fn new(task: &'a Task, wire: Wire) -> Self {
        Self {
            task,
            wire,
            conversation: Conversation::default(),
            refused: HashSet::new(),
            retried: HashSet::new(),
            retry_at: Instant::now(),
            alive_at: Instant::now(),
            waiting_since: None,
        }
    }

    async fn run(mut self) -> End {
        match self.until_broken().await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn until_broken(&mut self) -> Result<std::convert::Infallible, End> {
        self.task.wanted.start_over();
        self.task.deliver(PubSubEvent::Up).await?;
        loop {
            self.send_changes().await?;
            self.receive_all().await?;
            let room = self.has_room();
            let wanted = Arc::clone(&self.task.wanted);
            let deadline = self.deadline();
            tokio::select! {
                // Data comes before the deadline: after a stall of this process, both are ready.
                biased;
                read = self.wire.fill() => {
                    read?;
                    self.alive_at = Instant::now();
                }
                () = wanted.changed(), if room => {}
                () = tokio::time::sleep_until(self.retry_at), if !self.refused.is_empty() => {
                    self.retried = wanted.repeat(std::mem::take(&mut self.refused));
                }
                () = tokio::time::sleep_until(deadline) => self.on_silence().await?,
                () = self.task.events.closed() => return Err(End::Unreceived),
            }
        }
    }

    fn has_room(&self) -> bool {
        self.conversation.unanswered() < WINDOW
    }

    fn deadline(&self) -> Instant {
        match self.waiting_since {
            Some(since) => since.max(self.alive_at) + self.task.handshake.response_timeout,
            None => self.alive_at + self.task.heartbeat,
        }
    }

    async fn on_silence(&mut self) -> Result<(), End> {
        if self.waiting_since.is_some() {
            let limit = self.task.handshake.response_timeout;
            return Err(End::Broken(format!("no reply within {limit:?}")));
        }
        let ping = self.conversation.ping();
        self.send(&ping).await
    }

    async fn send_changes(&mut self) -> Result<(), End> {
        while self.has_room() {
            let changes = self.task.wanted.take_changes(BATCH);
            if changes.is_empty() {
                break;
            }
            let bytes = self.conversation.send_changes(changes);
            self.send(&bytes).await?;
        }
        Ok(())
    }

    async fn receive_all(&mut self) -> Result<(), End> {
        while let Some(frame) = self.wire.buffered()? {
            match self.conversation.receive(frame)? {
                Received::Nothing => {}
                Received::Event(event) => self.deliver(event).await?,
                Received::Subscribed(topic) => self.on_subscribed(topic).await?,
                Received::Refused(topic, reason) => self.on_refused(topic, reason).await?,
                Received::RefusedTogether(mut topics) => {
                    topics.retain(|topic| self.task.wanted.contains(topic));
                    let bytes = self.conversation.subscribe_singly(topics);
                    self.send(&bytes).await?;
                }
            }
        }
        if self.conversation.unanswered() == 0 {
            self.waiting_since = None;
        }
        Ok(())
    }

    async fn on_subscribed(&mut self, topic: Topic) -> Result<(), End> {
        self.refused.remove(&topic);
        self.retried.remove(&topic);
        if !self.task.wanted.contains(&topic) {
            return Ok(());
        }
        let event = match topic {
            Topic::Channel(name) | Topic::Shard(name) => PubSubEvent::Subscribed(name),
            Topic::Pattern(name) => PubSubEvent::PSubscribed(name),
        };
        self.deliver(event).await
    }

    /// Reports a refusal, unless it was reported before.
    async fn on_refused(&mut self, topic: Topic, reason: String) -> Result<(), End> {
        if self.refused.is_empty() {
            self.retry_at = Instant::now() + self.task.retry;
        }
        self.refused.insert(topic.clone());
        if self.retried.remove(&topic) {
            return Ok(());
        }
        self.deliver(PubSubEvent::Refused { channel: topic.into_name(), reason }).await
    }

    async fn deliver(&mut self, event: PubSubEvent) -> Result<(), End> {
        let bytes = event.size();
        if bytes > MAX_QUEUED {
            tracing::debug!(redis.target = %self.task.endpoint, bytes, "skipped a long pub/sub message");
            return Ok(());
        }
        let Err(event) = self.task.events.try_send(event) else { return Ok(()) };
        self.task.deliver(event.into_inner()).await?;
        // The server could not be read during the wait: its silence does not count.
        self.alive_at = Instant::now();
        Ok(())
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.waiting_since.get_or_insert_with(Instant::now);
        let limit = self.task.handshake.response_timeout;
        match tokio::time::timeout(limit, self.wire.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(End::Broken(format!("the connection broke: {error}"))),
            Err(_) => Err(End::Broken(format!("the server read nothing within {limit:?}"))),
        }
    }
}
