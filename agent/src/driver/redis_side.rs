//! The core's side of one Redis: two connections for scripts, one for messages.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use redis::Value as RedisValue;
use redisson::script::{self, Call, Value};
use redisson::{HolderId, LockName, keys};
use service_kit::redis_link::{
    CallError, Link, LinkOptions, LinkState, LinkStatus, PubSubEvent, ServerInfo, Subscriber,
    SubscriberOptions, Target,
};
use service_kit::shutdown::Shutdown;
use service_kit::trace::{self, TraceParent};
use tokio::sync::{mpsc, watch};
use tracing::Span;
use tracing::field::Empty;

use super::Start;
use crate::core::{Failure, Lane, Node, Number, OpId};
use crate::metrics::{self, Figures};

/// How often to look whether a living connection still leads to the same Redis with the same clock.
const CHECK: Duration = Duration::from_secs(2);

/// What became of a script.
pub(super) type Outcome = (OpId, Result<Value, Failure>);

/// News of Redis.
#[derive(Debug)]
pub(super) enum FromRedis {
    /// Something was published.
    Message { channel: Vec<u8> },
    /// A subscription stands, for the first time or again.
    Subscribed { channel: Vec<u8> },
    /// No subscription stands any more.
    Unsubscribed,
    /// An operator released a hold of ours.
    Forced { name: LockName, number: Number },
    /// A connection for scripts has come or gone.
    State {
        /// Whether both are there: locks that cannot be renewed are of no use.
        up: bool,
        /// Which Redis, and why it cannot be used.
        detail: String,
        /// There is a fresh connection for renewals, or what is behind it has changed: its role, its history, its clock.
        in_doubt: bool,
    },
    /// Nothing that anybody needs to know.
    Nothing,
}

/// What goes to Redis.
pub(super) struct RedisSide {
    commands: Link,
    renewals: Link,
    subscriber: Subscriber,
    node: String,
    figures: Arc<Figures>,
}

/// What comes from it unasked.
struct News {
    state: watch::Receiver<LinkState>,
    renewals_state: watch::Receiver<LinkState>,
    messages: mpsc::Receiver<PubSubEvent>,
    forced: Vec<u8>,
    node: String,
    figures: Arc<Figures>,
    connections: u64,
    evicts: Option<bool>,
}

impl RedisSide {
    /// Starts connecting; gives what scripts go by, and what comes back unasked.
    pub(super) fn start(
        start: &Start,
        place: Node,
        target: &Target,
        figures: &Arc<Figures>,
        stage: &Shutdown,
    ) -> (Self, impl Stream<Item = (Node, FromRedis)> + use<>) {
        let timeout = start.settings.response_timeout;
        let options = |name: &str| LinkOptions {
            response_timeout: timeout,
            connect_timeout: start.connect_timeout,
            heartbeat: timeout,
            load: script::ALL.iter().map(|script| script.source.to_owned()).collect(),
            writable: true,
            ..LinkOptions::new(name)
        };
        let commands = Link::start(target.clone(), options("lockscope-agent"), stage);
        let checked = LinkOptions { check: Some(CHECK), ..options("lockscope-agent-renewals") };
        let renewals = Link::start(target.clone(), checked, stage);
        let subscriber_options = SubscriberOptions {
            response_timeout: timeout,
            connect_timeout: start.connect_timeout,
            heartbeat: timeout,
            ..SubscriberOptions::new("lockscope-agent-messages")
        };
        let (subscriber, messages) = Subscriber::start(target.clone(), subscriber_options, stage);
        let forced = keys::forced_channel(&start.client);
        subscriber.subscribe([forced.clone()]);
        let state = commands.state();
        let renewals_state = renewals.state();
        let node = target.to_string();
        figures.server(&node, place != Node::Main);
        let news = News {
            state,
            renewals_state,
            messages,
            forced,
            node: node.clone(),
            figures: Arc::clone(figures),
            connections: 0,
            evicts: None,
        };
        let news = unfold(news, move |mut news| async move {
            let event = news.next().await;
            Some(((place, event), news))
        });
        (Self { commands, renewals, subscriber, node, figures: Arc::clone(figures) }, news)
    }

    pub(super) fn subscribe(&self, channel: Vec<u8>) {
        self.subscriber.subscribe([channel]);
    }

    pub(super) fn unsubscribe(&self, channel: Vec<u8>) {
        self.subscriber.unsubscribe([channel]);
    }

    /// Sends a script; the future brings what became of it. What is part of a trace has a span of its own there.
    pub(super) fn call(
        &self,
        op: OpId,
        lane: Lane,
        call: Call,
        place: &TraceParent,
    ) -> impl Future<Output = Outcome> + use<> {
        let link = match lane {
            Lane::Commands => self.commands.clone(),
            Lane::Renewals => self.renewals.clone(),
        };
        let figures = Arc::clone(&self.figures);
        let node = self.node.clone();
        let span = if place.is_empty() {
            Span::none()
        } else {
            trace::within(redis_span(&call, &node), place)
        };
        async move {
            let Call { script, keys, args } = call;
            let sent = service_kit::clock::boot_micros();
            let result = link.script(script.source, script.sha(), keys.iter(), args.iter()).await;
            let took =
                Duration::from_micros(service_kit::clock::boot_micros().saturating_sub(sent));
            let outcome = match result {
                Ok(value) => {
                    figures
                        .redis_seconds
                        .with_label_values(&[script.name])
                        .observe(took.as_secs_f64());
                    read(value)
                        .ok_or_else(|| Failure::Refused("a reply of no known type".to_owned()))
                }
                Err(error) => {
                    let (word, failure) = failure(error);
                    figures.redis_errors.with_label_values(&[&node, &word]).inc();
                    span.record("error.type", &word);
                    span.record("otel.status_code", "ERROR");
                    span.record("otel.status_description", failure.text());
                    Err(failure)
                }
            };
            (op, outcome)
        }
    }
}

impl News {
    async fn next(&mut self) -> FromRedis {
        tokio::select! {
            biased;
            Ok(()) = self.renewals_state.changed() => self.renewals_state_changed(),
            Ok(()) = self.state.changed() => self.state_changed(),
            Some(event) = self.messages.recv() => self.message(event),
            // Both have ended: the agent is about to.
            else => std::future::pending().await,
        }
    }

    fn state(&self, in_doubt: bool) -> FromRedis {
        let down = [&self.state, &self.renewals_state].into_iter().find_map(|state| {
            match &state.borrow().status {
                LinkStatus::Up(_) => None,
                LinkStatus::Down { reason, .. } => Some(format!("{}: {reason}", self.node)),
            }
        });
        self.figures.redis_up.with_label_values(&[&self.node]).set(i64::from(down.is_none()));
        let up = down.is_none();
        let detail = down.unwrap_or_else(|| format!("{} answers", self.node));
        FromRedis::State { up, detail, in_doubt }
    }

    fn state_changed(&mut self) -> FromRedis {
        if matches!(self.state.borrow_and_update().status, LinkStatus::Up(_)) {
            self.connections += 1;
            if self.connections > 1 {
                self.figures.reconnects.with_label_values(&[&self.node]).inc();
            }
        }
        self.state(false)
    }

    /// Holds are verified down the connection for renewals, so it is that one which must be there. It is also the
    /// one that looks whether the server behind it is still what it was.
    fn renewals_state_changed(&mut self) -> FromRedis {
        let status = self.renewals_state.borrow_and_update().status.clone();
        match status {
            LinkStatus::Up(info) => {
                self.note_eviction(&info);
                self.state(true)
            }
            LinkStatus::Down { .. } => self.state(false),
        }
    }

    fn note_eviction(&mut self, info: &ServerInfo) {
        let evicts = info.evicts();
        if self.evicts.replace(evicts) == Some(evicts) {
            return;
        }
        self.figures.redis_evicts.with_label_values(&[&self.node]).set(i64::from(evicts));
        if evicts {
            tracing::warn!(
                redis.node = self.node,
                policy = info.maxmemory_policy.as_deref().unwrap_or("unknown"),
                "this Redis evicts keys when its memory is full, locks included: set maxmemory-policy noeviction"
            );
        }
    }

    fn message(&self, event: PubSubEvent) -> FromRedis {
        match event {
            PubSubEvent::Message { channel, payload, .. } if channel == self.forced => {
                forced(&payload).unwrap_or(FromRedis::Nothing)
            }
            // For those who might miss the message before it, as we do not.
            PubSubEvent::Message { payload, .. } if payload == keys::WRITE_RELEASED_AGAIN => {
                FromRedis::Nothing
            }
            PubSubEvent::Message { channel, .. } => FromRedis::Message { channel },
            PubSubEvent::Subscribed(channel) => FromRedis::Subscribed { channel },
            PubSubEvent::Down { .. } => FromRedis::Unsubscribed,
            PubSubEvent::Up | PubSubEvent::PSubscribed(_) => FromRedis::Nothing,
            PubSubEvent::Refused { channel, reason } => {
                tracing::warn!(
                    channel = %channel.escape_ascii(),
                    reason = %reason,
                    "Redis refuses a subscription: waiters of this lock look again each few seconds instead"
                );
                FromRedis::Nothing
            }
        }
    }
}

/// A call of Redis, named as OpenTelemetry names calls of databases.
fn redis_span(call: &Call, node: &str) -> Span {
    tracing::info_span!(
        target: trace::TARGET, parent: None, "EVALSHA",
        otel.name = format!("EVALSHA {}", call.script.name), otel.kind = "client",
        db.system.name = "redis", db.operation.name = "EVALSHA",
        db.stored_procedure.name = call.script.name, redis.node = node,
        "error.type" = Empty, otel.status_code = Empty, otel.status_description = Empty,
    )
}

/// `<holder> <lock>`, as the force-release script publishes it.
fn forced(payload: &[u8]) -> Option<FromRedis> {
    let space = payload.iter().position(|b| *b == b' ')?;
    let holder = HolderId::parse(&payload[..space])?;
    let name = LockName::new(&payload[space + 1..]).ok()?;
    Some(FromRedis::Forced { name, number: holder.thread })
}

/// A failed call as the core sees it, and the word it is counted by.
fn failure(error: CallError) -> (String, Failure) {
    match error {
        CallError::Unsent { reason } => (metrics::UNSENT.to_owned(), Failure::Unsent(reason)),
        CallError::Lost { reason } => (metrics::LOST.to_owned(), Failure::Lost(reason)),
        CallError::Refused(error) => {
            // The first word classifies; a server that makes words up must not make up series.
            let known =
                error.code.len() <= 16 && error.code.bytes().all(|b| b.is_ascii_uppercase());
            let word = if known { error.code.clone() } else { "other".to_owned() };
            (word, Failure::Refused(error.to_string()))
        }
    }
}

fn read(value: RedisValue) -> Option<Value> {
    Some(match value {
        RedisValue::Nil => Value::Nil,
        RedisValue::Int(n) => Value::Int(n),
        RedisValue::BulkString(bytes) => Value::Bytes(bytes.to_vec()),
        RedisValue::SimpleString(text) => Value::Bytes(text.into_bytes()),
        RedisValue::Okay => Value::Bytes(b"OK".to_vec()),
        RedisValue::Array(items) => {
            Value::Array(items.into_iter().map(read).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_release_names_holder_and_lock() {
        let payload = b"285475da-9152-4c83-822a-67ee2f116a79:52 a name with spaces";
        let Some(FromRedis::Forced { name, number }) = forced(payload) else { panic!() };
        assert_eq!((name.as_bytes(), number), (&b"a name with spaces"[..], 52));
        assert!(forced(b"nonsense").is_none());
        assert!(forced(b"").is_none());
    }
}
