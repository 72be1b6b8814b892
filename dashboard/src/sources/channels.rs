//! Redisson's release messages. Each reports that a lock is free at this moment, or was. In a cluster they may also
//! arrive on sharded channels.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redisson::keys;
use service_kit::redis::{Endpoint, Link, LinkStatus, PubSubEvent, Subscriber};
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::scope::Scope;
use super::shards::Shards;
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::{Time, now};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::Observation;
use crate::redis::subscriber_options;
use crate::sources::view::SourceState;
use crate::text::counted;

/// The maximum number of events that are handled at once. Several messages on one channel among them count as one.
const AT_ONCE: usize = 256;
/// The interval at which success is reported if there are no messages.
const QUIET: Duration = Duration::from_secs(2);

/// The release messages of one server. Pub/sub has no databases, so the model finds out to which one a message belongs.
#[derive(Debug)]
pub struct Channels {
    scopes: Vec<Scope>,
    model: ModelHandle,
    status: Arc<SourceStatus>,
    events: mpsc::Receiver<PubSubEvent>,
    subscribed: HashSet<Vec<u8>>,
    subscriber: Subscriber,
    shards: Shards,
    share: SlotShare,
    up: bool,
    /// True if the patterns are to be subscribed.
    receives_all: bool,
    link: Link,
    hub: Arc<Hub>,
}

/// Returns the subscribed patterns: a Redis user needs permission for exactly these.
fn patterns() -> [Vec<u8>; 2] {
    [keys::LOCK_CHANNEL, keys::READ_WRITE_CHANNEL].map(|prefix| [prefix, b"*"].concat())
}

impl Channels {
    /// Starts to subscribe. `link` is a connection to the server, `shards` are its sharded channels, and `share` is its
    /// share of the locks.
    #[must_use]
    pub fn start(
        endpoint: Endpoint,
        scopes: Vec<Scope>,
        (link, shards, share): (Link, Shards, SlotShare),
        (hub, model): (Arc<Hub>, ModelHandle),
        status: Arc<SourceStatus>,
        shutdown: &Shutdown,
    ) -> Self {
        let (subscriber, events) = Subscriber::start(endpoint, subscriber_options(), shutdown);
        let mut channels = Self {
            scopes,
            model,
            status,
            events,
            subscribed: HashSet::new(),
            subscriber,
            shards,
            share,
            up: false,
            receives_all: false,
            link,
            hub,
        };
        channels.choose_patterns();
        channels
    }

    /// Reports releases to the model until the connection is given up.
    pub async fn run(mut self) {
        let mut events = Vec::with_capacity(AT_ONCE);
        let mut quiet = interval(QUIET);
        quiet.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                taken = self.events.recv_many(&mut events, AT_ONCE) => {
                    if taken == 0 {
                        return;
                    }
                }
                // The connection is verified every second, and reports when it is down.
                _ = quiet.tick() => {
                    let received_all = self.receives_all;
                    self.choose_patterns();
                    if received_all && !self.receives_all {
                        self.listening(false).await;
                    }
                    if self.is_listening() {
                        self.status.succeeded();
                        self.choose_shards();
                    }
                }
            }
            let mut reported = HashSet::new();
            for event in events.drain(..) {
                match event {
                    // The message repeats the one before it.
                    PubSubEvent::Message { payload, .. }
                        if payload == keys::WRITE_RELEASED_AGAIN => {}
                    PubSubEvent::Message { channel, .. } => {
                        if !reported.contains(&channel) {
                            self.released(&channel).await;
                            reported.insert(channel);
                        }
                    }
                    other => {
                        reported.clear();
                        self.changed(other).await;
                    }
                }
            }
        }
    }

    /// Subscribes to the patterns on only one node of a cluster, since messages reach every node.
    fn choose_patterns(&mut self) {
        let wanted = self.share.receives_all();
        if std::mem::replace(&mut self.receives_all, wanted) == wanted {
            return;
        }
        if wanted {
            self.subscriber.psubscribe(patterns());
        } else {
            self.subscriber.punsubscribe(patterns());
            self.subscribed.clear();
        }
    }

    fn choose_shards(&self) {
        let Some(scope) = self.scopes.first() else { return };
        let sharded = matches!(
            &self.link.state().borrow().status,
            LinkStatus::Up(server) if server.has_shards()
        );
        let ours = (&*scope.deployment, &self.share);
        self.shards.choose(&self.subscriber, &self.hub.snapshot(), ours, sharded);
        if sharded {
            let locks = counted(self.shards.count() as u64, "lock");
            let detail = if self.receives_all {
                format!("release messages are received, and those of {locks} on sharded channels")
            } else {
                format!(
                    "release messages of {locks} are received on sharded channels; all others at another node"
                )
            };
            self.status.set(SourceState::On, detail);
        } else if !self.receives_all {
            self.status.set(SourceState::On, "release messages are received at another node");
        }
    }

    async fn released(&self, channel: &[u8]) {
        let names = keys::locks_of_channel(channel);
        if names.is_empty() {
            return;
        }
        if let Some(scope) = self.scopes.first() {
            let at = Time::now();
            self.model.observe(scope.id, Observation::Released { names, at }).await;
        }
        self.status.succeeded();
    }

    async fn changed(&mut self, event: PubSubEvent) {
        match event {
            PubSubEvent::PSubscribed(pattern) => {
                self.subscribed.insert(pattern);
                if self.is_listening() {
                    self.status.set(SourceState::On, "release messages are received");
                    self.status.succeeded();
                    self.listening(true).await;
                }
            }
            PubSubEvent::Refused { channel, .. } if !patterns().contains(&channel) => {
                // The slot of the sharded channel is on another server, or the Redis user may not subscribe to the
                // channel.
                tracing::debug!(channel = %String::from_utf8_lossy(&channel), "cannot subscribe to a sharded channel");
            }
            PubSubEvent::Refused { channel, reason } => {
                let pattern = String::from_utf8_lossy(&channel).into_owned();
                let detail = format!("the Redis user may not subscribe to `{pattern}`: {reason}");
                self.subscribed.remove(&channel);
                self.status.set(SourceState::Denied, detail);
                self.listening(false).await;
            }
            PubSubEvent::Down { reason } => {
                self.up = false;
                self.subscribed.clear();
                self.shards.clear();
                self.status.set(SourceState::Down, reason);
                self.listening(false).await;
            }
            PubSubEvent::Subscribed(channel) => {
                self.shards.subscribed(&channel);
            }
            PubSubEvent::Moved(channel) => self.shards.remove(&channel),
            PubSubEvent::Up => self.up = true,
            PubSubEvent::Message { .. } => {}
        }
    }

    fn is_listening(&self) -> bool {
        self.up
            && (!self.receives_all
                || patterns().iter().all(|pattern| self.subscribed.contains(pattern)))
    }

    async fn listening(&self, on: bool) {
        for scope in &self.scopes {
            self.model.observe(scope.id, Observation::PubSubActive { on, at: now() }).await;
        }
    }
}
