//! Keeps a subscriber's connection and does the talking on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::PubSubEvent;
use super::conversation::{BATCH, Conversation, Heard};
use super::wishes::{Topic, Wishes};
use crate::redis_link::aim::Aim;
use crate::redis_link::backoff::Backoff;
use crate::redis_link::error::ConnectError;
use crate::redis_link::greeting::{self, Greeting};
use crate::redis_link::resp::Wire;
use crate::redis_link::supervisor::PROVEN;
use crate::redis_link::target::Address;

/// Unanswered commands at a time. Wishes that change meanwhile are gathered into fewer commands.
const WINDOW: usize = 4;

pub(super) struct Task {
    aim: Aim,
    greeting: Greeting,
    heartbeat: Duration,
    wishes: Arc<Wishes>,
    events: mpsc::Sender<PubSubEvent>,
}

/// Why the talking on a connection ended.
enum End {
    Broken(String),
    /// Nobody listens any more.
    Unheard,
}

impl From<String> for End {
    fn from(reason: String) -> Self {
        Self::Broken(reason)
    }
}

impl Task {
    pub(super) fn new(
        aim: Aim,
        greeting: Greeting,
        heartbeat: Duration,
        wishes: Arc<Wishes>,
        events: mpsc::Sender<PubSubEvent>,
    ) -> Self {
        Self { aim, greeting, heartbeat, wishes, events }
    }

    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        let mut last_failure = None;
        loop {
            let mut tried = None;
            let pause = match self.connect(&mut tried).await {
                Ok((wire, address)) => {
                    last_failure = None;
                    let since = Instant::now();
                    tracing::debug!(redis.target = %self.aim, link = self.greeting.name, "connected for pub/sub");
                    let End::Broken(reason) = self.talk(wire, &address).await else { return };
                    self.aim.doubt();
                    tracing::warn!(redis.target = %self.aim, link = self.greeting.name, reason, "lost the pub/sub connection to Redis");
                    if self.tell(PubSubEvent::Down { reason }).await.is_err() {
                        return;
                    }
                    if since.elapsed() >= PROVEN {
                        backoff.reset();
                        continue;
                    }
                    backoff.after_failure(false)
                }
                Err(error) => {
                    self.aim.doubt();
                    if last_failure.as_ref() != Some(&error) {
                        tracing::warn!(redis.target = %self.aim, link = self.greeting.name, %error, "cannot connect to Redis for pub/sub");
                        let reason = error.to_string();
                        if self.tell(PubSubEvent::Down { reason }).await.is_err() {
                            return;
                        }
                    }
                    let pause = backoff.after_failure(error.needs_patience());
                    last_failure = Some(error);
                    pause
                }
            };
            tokio::select! {
                () = self.aim.rest(pause, tried.as_ref()) => {}
                () = self.events.closed() => return,
            }
        }
    }

    /// Connects; tells where to, even where that fails.
    async fn connect(&self, tried: &mut Option<Address>) -> Result<(Wire, Address), ConnectError> {
        let target = self.aim.target().await?;
        *tried = Some(target.address().clone());
        let (wire, info) = greeting::connect(&target, &self.greeting).await?;
        self.aim.check(&target, &info)?;
        Ok((wire, target.address().clone()))
    }

    async fn talk(&self, wire: Wire, address: &Address) -> End {
        tokio::select! {
            end = Talk::new(self, wire).talk() => end,
            reason = self.aim.left(address) => End::Broken(reason.to_owned()),
        }
    }

    /// Waits for room: a slow receiver slows the reading, it loses nothing.
    async fn tell(&self, event: PubSubEvent) -> Result<(), End> {
        self.events.send(event).await.map_err(|_| End::Unheard)
    }
}

/// One connection's life.
struct Talk<'a> {
    task: &'a Task,
    wire: Wire,
    conversation: Conversation,
    /// When the server last gave a sign of life, or when we last were able to hear one.
    alive_at: Instant,
    /// Since when the server owes an answer.
    owed_since: Option<Instant>,
}

impl<'a> Talk<'a> {
    fn new(task: &'a Task, wire: Wire) -> Self {
        let conversation = Conversation::default();
        Self { task, wire, conversation, alive_at: Instant::now(), owed_since: None }
    }

    async fn talk(mut self) -> End {
        match self.until_broken().await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn until_broken(&mut self) -> Result<std::convert::Infallible, End> {
        self.task.wishes.start_over();
        self.task.tell(PubSubEvent::Up).await?;
        loop {
            self.pass_on_wishes().await?;
            self.hear_all().await?;
            let room = self.has_room();
            let wishes = Arc::clone(&self.task.wishes);
            let deadline = self.deadline();
            tokio::select! {
                // What was said counts before how long it took: after a stall of our own, both
                // are ready.
                biased;
                read = self.wire.fill() => {
                    read?;
                    self.alive_at = Instant::now();
                }
                () = wishes.changed(), if room => {}
                () = tokio::time::sleep_until(deadline) => self.silence().await?,
                () = self.task.events.closed() => return Err(End::Unheard),
            }
        }
    }

    fn has_room(&self) -> bool {
        self.conversation.unanswered() < WINDOW
    }

    fn deadline(&self) -> Instant {
        match self.owed_since {
            Some(since) => since.max(self.alive_at) + self.task.greeting.response_timeout,
            None => self.alive_at + self.task.heartbeat,
        }
    }

    async fn silence(&mut self) -> Result<(), End> {
        if self.owed_since.is_some() {
            let limit = self.task.greeting.response_timeout;
            return Err(End::Broken(format!("no answer within {limit:?}")));
        }
        let ping = self.conversation.ping();
        self.send(&ping).await
    }

    async fn pass_on_wishes(&mut self) -> Result<(), End> {
        while self.has_room() {
            let changes = self.task.wishes.take_changes(BATCH);
            if changes.is_empty() {
                break;
            }
            let bytes = self.conversation.ask(changes);
            self.send(&bytes).await?;
        }
        Ok(())
    }

    async fn hear_all(&mut self) -> Result<(), End> {
        while let Some(frame) = self.wire.buffered()? {
            match self.conversation.hear(frame)? {
                Heard::Nothing => {}
                Heard::Event(event) => self.tell(event).await?,
                Heard::Subscribed(topic) => self.subscribed(topic).await?,
                Heard::RefusedTogether(mut topics) => {
                    topics.retain(|topic| self.task.wishes.wants(topic));
                    let bytes = self.conversation.ask_singly(topics);
                    self.send(&bytes).await?;
                }
            }
        }
        if self.conversation.unanswered() == 0 {
            self.owed_since = None;
        }
        Ok(())
    }

    async fn subscribed(&mut self, topic: Topic) -> Result<(), End> {
        if !self.task.wishes.wants(&topic) {
            return Ok(());
        }
        let event = match topic {
            Topic::Channel(name) | Topic::Shard(name) => PubSubEvent::Subscribed(name),
            Topic::Pattern(name) => PubSubEvent::PSubscribed(name),
        };
        self.tell(event).await
    }

    async fn tell(&mut self, event: PubSubEvent) -> Result<(), End> {
        let Err(event) = self.task.events.try_send(event) else { return Ok(()) };
        self.task.tell(event.into_inner()).await?;
        // While we waited the server could not be heard: its silence does not count.
        self.alive_at = Instant::now();
        Ok(())
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.owed_since.get_or_insert_with(Instant::now);
        let limit = self.task.greeting.response_timeout;
        match tokio::time::timeout(limit, self.wire.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(End::Broken(format!("the connection broke: {error}"))),
            Err(_) => Err(End::Broken(format!("the server took nothing within {limit:?}"))),
        }
    }
}
