//! The core's connections to one Redis server: two for scripts, one for messages, and with
//! `--min-replicas` two more for scripts that replicas must confirm.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use redisson::script::{self, Call, Publish};
use redisson::{ClientId, HolderId, LockName, keys};
use service_kit::redis::{
    Address, CallError, Endpoint, Link, LinkOptions, LinkState, LinkStatus, PubSubEvent, Role,
    ServerInfo, Subscriber, SubscriberOptions,
};
use service_kit::shutdown::Shutdown;
use service_kit::trace::{self, TraceParent};
use tokio::sync::{mpsc, watch};
use tracing::Span;
use tracing::field::Empty;

use super::confirmed_calls::{self, Answer, Replicas, Replicated, renewed};
use super::outcome::{Outcome, failure, settled, word};
use crate::collections::HashSet;
use crate::core::{Lane, OpId};
use crate::metrics::Metrics;
use crate::types::Number;

/// The interval of checks that a live connection still leads to the same Redis with the same clock.
const CHECK: Duration = Duration::from_secs(2);
/// The maximum number of messages received at once. Duplicates of one release among them are dropped.
const AT_ONCE: usize = 64;

/// Events from Redis.
#[derive(Debug)]
pub(super) enum FromRedis {
    /// A message was published.
    Message { channel: Vec<u8> },
    /// A subscription is active, for the first time or again.
    Subscribed { channel: Vec<u8> },
    /// The server denies the subscription to this channel.
    SubscriptionRefused { channel: Vec<u8> },
    /// No subscription is active any more.
    Unsubscribed,
    /// This server does not have, or no longer has, the slot of this shard channel: its messages do not arrive there.
    SlotElsewhere { channel: Vec<u8> },
    /// A hold of this agent was released by force.
    Forced { name: LockName, number: Number },
    /// A connection for scripts was opened or closed.
    State {
        /// All are connected: locks that cannot be renewed would be useless.
        up: bool,
        /// The Redis server, and the reason if it cannot be used.
        detail: String,
        /// The connection for renewals is new, the role, the history or the clock of its server has changed, or commands
        /// have left another server than that one.
        in_doubt: bool,
        /// The way to publish releases from now on, if that has changed.
        publish: Option<Publish>,
    },
}

/// The connections to one Redis server.
pub(super) struct RedisNode {
    commands: Link,
    renewals: Link,
    /// The connections for scripts that replicas must confirm.
    replicated: Option<Replicated>,
    subscriber: Subscriber,
    node: String,
    metrics: Arc<Metrics>,
}

/// The facts about a server whose change puts the holds in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verified {
    generation: u64,
    role: Option<Role>,
    run_id: Option<String>,
    replid: Option<String>,
    clock_steps: u32,
}

impl Verified {
    fn new(generation: u64, info: &ServerInfo) -> Self {
        let ServerInfo { role, run_id, replid, clock_steps, .. } = info.clone();
        Self { generation, role, run_id, replid, clock_steps }
    }
}

/// Events from one Redis server.
struct ServerEvents {
    state: watch::Receiver<LinkState>,
    renewals_state: watch::Receiver<LinkState>,
    /// The states of the connections for scripts that replicas must confirm.
    replicated_states: Vec<watch::Receiver<LinkState>>,
    messages: mpsc::Receiver<PubSubEvent>,
    received: VecDeque<PubSubEvent>,
    forced: Vec<u8>,
    node: String,
    metrics: Arc<Metrics>,
    connections: u64,
    evicts: Option<bool>,
    /// The run id of the server.
    run_id: Option<String>,
    /// The run id of the server that runs commands.
    commands_run_id: Option<String>,
    db: String,
    /// The server on which the holds were last verified.
    verified: Option<Verified>,
    /// It is a node of a cluster, or one of the servers of red locks.
    part: bool,
    /// It has replicas, and nothing ensures that they have the locks.
    unguarded: bool,
    /// It stores red locks, which are protected by their majority.
    red: bool,
    /// The current master, if one is followed.
    master: Option<Address>,
    follows: bool,
}

/// The settings of connections to one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeOptions {
    /// The client id of this agent's holders in Redis.
    pub(super) client: ClientId,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    /// It stores red locks.
    pub(super) red: bool,
    /// It is a node of a cluster, and known as one.
    pub(super) in_cluster: bool,
    /// The replicas that must have each grant, if any.
    pub(super) replicas: Option<Replicas>,
}

impl RedisNode {
    /// Starts connecting. Returns the node, which sends scripts, and the stream of its events.
    pub(super) fn start(
        options: NodeOptions,
        endpoint: &Endpoint,
        metrics: &Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> (Self, impl Stream<Item = FromRedis> + use<>) {
        let timeout = options.response_timeout;
        let link_options = |name: &str| LinkOptions {
            response_timeout: timeout,
            connect_timeout: options.connect_timeout,
            heartbeat: timeout,
            load: script::ALL.iter().map(|script| script.source).collect(),
            writable: true,
            alone: !options.in_cluster,
            ..LinkOptions::new(name)
        };
        let commands = Link::start(endpoint.clone(), link_options("lockscope-agent"), shutdown);
        let replicated = options
            .replicas
            .map(|replicas| Replicated::start(replicas, endpoint, link_options, metrics, shutdown));
        let checked = LinkOptions {
            check: Some(CHECK),
            load: [&script::RENEW, &script::RENEW_READ].map(|script| script.source).into(),
            ..link_options("lockscope-agent-renewals")
        };
        let renewals = Link::start(endpoint.clone(), checked, shutdown);
        let subscriber_options = SubscriberOptions {
            response_timeout: timeout,
            connect_timeout: options.connect_timeout,
            heartbeat: timeout,
            ..SubscriberOptions::new("lockscope-agent-messages")
        };
        let (subscriber, messages) =
            Subscriber::start(endpoint.clone(), subscriber_options, shutdown);
        let forced = keys::forced_channel(&options.client);
        subscriber.subscribe([forced.clone()]);
        let state = commands.state();
        let renewals_state = renewals.state();
        let node = endpoint.to_string();
        metrics.servers.add(&node, options.red);
        if !options.red {
            metrics.servers.add_replicated(&node);
        }
        let news = ServerEvents {
            state,
            renewals_state,
            replicated_states: replicated.iter().flat_map(Replicated::states).collect(),
            messages,
            received: VecDeque::new(),
            forced,
            node: node.clone(),
            metrics: Arc::clone(metrics),
            connections: 0,
            evicts: None,
            run_id: None,
            commands_run_id: None,
            db: endpoint.db().to_string(),
            verified: None,
            part: options.red || options.in_cluster,
            unguarded: false,
            red: options.red,
            master: None,
            follows: endpoint.follows_master(),
        };
        let news = unfold(news, |mut news| async move { Some((news.next().await, news)) });
        let metrics = Arc::clone(metrics);
        (Self { commands, renewals, replicated, subscriber, node, metrics }, news)
    }

    pub(super) fn subscribe(&self, channel: Vec<u8>) {
        self.subscriber.subscribe([channel]);
    }

    pub(super) fn unsubscribe(&self, channel: Vec<u8>) {
        self.subscriber.unsubscribe([channel]);
    }

    /// Subscribes to a shard channel, whose slot this server must serve.
    pub(super) fn ssubscribe(&self, channel: Vec<u8>) {
        self.subscriber.ssubscribe([channel]);
    }

    pub(super) fn sunsubscribe(&self, channel: Vec<u8>) {
        self.subscriber.sunsubscribe([channel]);
    }

    /// Returns what the server reported on connect, while it is connected.
    pub(super) fn info(&self) -> Option<Arc<ServerInfo>> {
        match &self.renewals.state().borrow().status {
            LinkStatus::Up(info) => Some(Arc::clone(info)),
            LinkStatus::Down { .. } => None,
        }
    }

    /// Returns its label in metrics.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Sends a script. The future returns its outcome.
    pub(super) fn call(
        &self,
        op: OpId,
        lane: Lane,
        call: Call,
        trace_parent: &TraceParent,
    ) -> impl Future<Output = Outcome> + use<> {
        let sent = self.send(lane, Arc::new(call), false, trace_parent);
        async move { (op, settled(sent.await)) }
    }

    /// Sends a script. `asking` is set if another node of a cluster reported that this one is about to have the keys'
    /// slot. A script that is part of a trace gets a span.
    pub(super) fn send(
        &self,
        lane: Lane,
        call: Arc<Call>,
        asking: bool,
        trace_parent: &TraceParent,
    ) -> impl Future<Output = Result<Answer, CallError>> + use<> {
        let (link, confirmed) = match (lane, &self.replicated) {
            (Lane::ReplicatedRenewals, Some(Replicated { renewals, .. })) => {
                (&self.renewals, Some(renewals.send(Arc::clone(&call), asking)))
            }
            (Lane::Grants, Some(Replicated { grants, .. })) => {
                (&self.commands, Some(grants.send(Arc::clone(&call), asking)))
            }
            (Lane::Renewals | Lane::ReplicatedRenewals, _) => (&self.renewals, None),
            (Lane::Commands | Lane::Grants, _) => (&self.commands, None),
        };
        let link = link.clone();
        let metrics = Arc::clone(&self.metrics);
        let node = self.node.clone();
        let span = if trace_parent.is_empty() {
            Span::none()
        } else {
            trace::within(redis_span(&call, &node), trace_parent)
        };
        async move {
            let sent = service_kit::clock::boot_micros();
            let result = match confirmed {
                None => plain(&link, &call, asking).await,
                // Boxed, because one of these futures is kept for each script in flight.
                Some(confirmed) if lane == Lane::ReplicatedRenewals => {
                    Box::pin(renewed(confirmed, plain(&link, &call, asking))).await
                }
                Some(confirmed) => confirmed.await,
            };
            let took =
                Duration::from_micros(service_kit::clock::boot_micros().saturating_sub(sent));
            match &result {
                Ok(Answer::TooFewReplicas(_)) => {}
                Ok(_) => {
                    let seconds = metrics.redis_seconds.with_label_values(&[call.script.name]);
                    seconds.observe(took.as_secs_f64());
                }
                Err(error) => {
                    let word = word(error);
                    metrics.servers.redis_errors.with_label_values(&[&*node, word]).inc();
                    span.record("error.type", word);
                    span.record("otel.status_code", "ERROR");
                    span.record("otel.status_description", failure(error.clone()).text());
                }
            }
            result
        }
    }
}

/// Sends a script that no replica has to confirm.
async fn plain(link: &Link, call: &Call, asking: bool) -> Result<Answer, CallError> {
    let Call { script, keys, args } = call;
    let answer = link.script(script.source, script.sha(), keys.iter(), args.iter(), asking);
    answer.await.map(Answer::Plain)
}

impl ServerEvents {
    async fn next(&mut self) -> FromRedis {
        loop {
            while let Some(event) = self.received.pop_front() {
                if let Some(event) = self.message(event) {
                    return event;
                }
            }
            let mut events = Vec::new();
            tokio::select! {
                biased;
                Ok(()) = self.renewals_state.changed() => return self.renewals_state_changed(),
                Ok(()) = self.state.changed() => return self.state_changed(),
                () = confirmed_calls::changed(&mut self.replicated_states) => return self.state(false),
                count = self.messages.recv_many(&mut events, AT_ONCE) => match count {
                    // Everything has ended: the agent is about to end.
                    0 => return std::future::pending().await,
                    _ => self.received = without_echoes(events),
                },
            }
        }
    }

    fn state(&self, in_doubt: bool) -> FromRedis {
        let plain = [&self.state, &self.renewals_state].into_iter();
        let down =
            plain.chain(&self.replicated_states).find_map(|state| match &state.borrow().status {
                LinkStatus::Up(_) => None,
                LinkStatus::Down { reason, .. } => Some(format!("{}: {reason}", self.node)),
            });
        self.metrics
            .servers
            .redis_up
            .with_label_values(&[&self.node])
            .set(i64::from(down.is_none()));
        let up = down.is_none();
        let detail = down.unwrap_or_else(|| match &self.master {
            Some(master) => format!("{} answers: {master} is the master", self.node),
            None => format!("{} answers", self.node),
        });
        FromRedis::State { up, detail, in_doubt, publish: None }
    }

    /// The holds are in doubt if commands ran on another server than the one on which the holds were verified.
    fn state_changed(&mut self) -> FromRedis {
        let mut moved = false;
        if let LinkStatus::Up(info) = &self.state.borrow_and_update().status {
            self.connections += 1;
            if self.connections > 1 {
                self.metrics.servers.reconnects.with_label_values(&[&self.node]).inc();
            }
            let before = self.commands_run_id.replace(info.run_id.clone().unwrap_or_default());
            let verified = self.verified.as_ref().and_then(|verified| verified.run_id.as_ref());
            moved =
                before.is_some_and(|before| verified.is_some_and(|verified| *verified != before));
        }
        self.state(moved)
    }

    /// Holds are verified on the connection for renewals, so its state decides. This connection also checks whether its
    /// server is still the same.
    fn renewals_state_changed(&mut self) -> FromRedis {
        let LinkState { generation, status } = self.renewals_state.borrow_and_update().clone();
        match status {
            LinkStatus::Up(info) => {
                self.note_eviction(&info);
                self.note_server(&info);
                self.note_master(&info);
                self.note_replicas(&info);
                let verified = Verified::new(generation, &info);
                let before = self.verified.replace(verified.clone());
                self.state(before != Some(verified))
            }
            LinkStatus::Down { .. } => self.state(false),
        }
    }

    fn note_eviction(&mut self, info: &ServerInfo) {
        let evicts = info.evicts();
        if self.evicts.replace(evicts) == Some(evicts) {
            return;
        }
        self.metrics.servers.redis_evicts.with_label_values(&[&self.node]).set(i64::from(evicts));
        if evicts {
            tracing::warn!(
                redis.node = self.node,
                policy = info.maxmemory_policy.as_deref().unwrap_or("unknown"),
                "this Redis evicts keys when its memory is full, locks included: set maxmemory-policy noeviction"
            );
        }
    }

    /// Exports which server has all locks, so that agents that use another one are noticed.
    fn note_server(&mut self, info: &ServerInfo) {
        if !self.part
            && let Some(run_id) = &info.run_id
            && self.run_id.as_ref() != Some(run_id)
        {
            self.metrics.servers.identify(&self.node, &self.db, self.run_id.as_deref(), run_id);
            self.run_id = Some(run_id.clone());
        }
    }

    /// Warns about a server whose failover can grant a lock twice, once until that changes.
    fn note_replicas(&mut self, info: &ServerInfo) {
        let guarded = !self.replicated_states.is_empty() || self.red || info.requires_replicas;
        let unguarded = !guarded && info.replicas.is_some_and(|replicas| replicas > 0);
        if unguarded && !self.unguarded {
            tracing::warn!(
                redis.node = self.node,
                replicas = info.replicas,
                "replicas without --min-replicas: a failover can grant a lock twice"
            );
        }
        self.unguarded = unguarded;
    }

    fn note_master(&mut self, info: &ServerInfo) {
        let Some(address) = info.address.clone().filter(|_| self.follows) else { return };
        let before = self.master.replace(address.clone());
        if let Some(before) = before.filter(|before| *before != address) {
            self.metrics.servers.master_changes.with_label_values(&[&self.node]).inc();
            tracing::warn!(
                redis.node = self.node, %before, now = %address,
                "master changed; writes not yet replicated to it are lost"
            );
        }
    }

    /// Returns what a message or a change of the subscriptions means for the core, if anything.
    fn message(&self, event: PubSubEvent) -> Option<FromRedis> {
        Some(match event {
            PubSubEvent::Message { channel, payload, .. } if channel == self.forced => {
                return forced(&payload);
            }
            // This message is for clients that may miss the one before it; the agent does not.
            PubSubEvent::Message { payload, .. } if payload == keys::WRITE_RELEASED_AGAIN => {
                return None;
            }
            PubSubEvent::Message { channel, .. } => FromRedis::Message { channel },
            PubSubEvent::Subscribed(channel) => FromRedis::Subscribed { channel },
            PubSubEvent::Down { .. } => FromRedis::Unsubscribed,
            PubSubEvent::Up | PubSubEvent::PSubscribed(_) => return None,
            PubSubEvent::Moved(channel) => FromRedis::SlotElsewhere { channel },
            PubSubEvent::Refused { channel, reason } if is_elsewhere(&reason) => {
                tracing::debug!(
                    redis.node = self.node,
                    reason,
                    "a channel is of another node's slot"
                );
                FromRedis::SlotElsewhere { channel }
            }
            PubSubEvent::Refused { channel, reason } => {
                tracing::warn!(
                    channel = %channel.escape_ascii(),
                    reason = %reason,
                    "subscription refused by Redis; waiters of this lock poll every few seconds"
                );
                FromRedis::SubscriptionRefused { channel }
            }
        })
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

/// Returns whether a node of a cluster refuses because it does not serve the slot: other nodes do, or nobody at the
/// moment.
fn is_elsewhere(reason: &str) -> bool {
    let word = reason.split(' ').next().unwrap_or_default();
    ["MOVED", "CLUSTERDOWN"].contains(&word)
}

/// Returns the events, with each release only once: a cluster publishes it on both types of channel. A waiter that the
/// first message wakes tries after all of these have arrived, so the others add nothing.
fn without_echoes(events: Vec<PubSubEvent>) -> VecDeque<PubSubEvent> {
    let mut seen = HashSet::default();
    let mut is_new = |event: &PubSubEvent| match event {
        PubSubEvent::Message { channel, payload, .. } => {
            seen.insert((channel.clone(), payload.clone()))
        }
        _ => true,
    };
    events.into_iter().filter(|event| is_new(event)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_is_published_twice_is_one() {
        let message = |channel: &str, payload: &str| PubSubEvent::Message {
            channel: channel.into(),
            pattern: None,
            payload: payload.into(),
        };
        let stands = PubSubEvent::Subscribed(b"a".to_vec());
        let events = vec![message("a", "1"), stands.clone(), message("a", "00"), message("b", "1")];
        let twice = events.iter().flat_map(|event| [event.clone(), event.clone()]).collect();
        let mut once: Vec<_> = without_echoes(twice).into();
        assert_eq!(once.remove(1), stands, "subscriptions are reported each time");
        assert_eq!(once, events);
    }

    #[test]
    fn a_channel_of_another_slot_is_distinguished_from_a_refused_one() {
        assert!(is_elsewhere("MOVED 15495 127.0.0.1:7002"));
        assert!(is_elsewhere("CLUSTERDOWN Hash slot not served"));
        assert!(!is_elsewhere("NOPERM No permissions to access a channel"));
    }

    #[test]
    fn a_forced_release_names_holder_and_lock() {
        let payload = b"285475da-9152-4c83-822a-67ee2f116a79:52 a name with spaces";
        let Some(FromRedis::Forced { name, number }) = forced(payload) else { panic!() };
        assert_eq!((name.as_bytes(), number), (&b"a name with spaces"[..], 52));
        assert!(forced(b"nonsense").is_none());
        assert!(forced(b"").is_none());
    }
}
