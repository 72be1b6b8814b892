//! Keyspace notifications, if the server's operator has enabled them (`notify-keyspace-events`). A known lock is then
//! read as soon as it changes, and a hold whose key expires is known to have expired. The dashboard never enables them,
//! since they cost the server time for every write.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use redisson::LockName;
use service_kit::redis::{CallError, Endpoint, Link, LinkStatus, PubSubEvent, Subscriber};
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::choice::Choice;
use super::read::strings;
use super::scope::Scope;
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::Time;
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{LockView, Observation};
use crate::redis::subscriber_options;
use crate::sources::view::SourceState;
use crate::text::counted;

/// The maximum number of locks of one server that have a separate subscription.
const MAX_LOCKS: usize = 1_000;
/// The interval at which these locks are chosen.
const INTERVAL: Duration = Duration::from_secs(2);
/// The interval at which the server's setting is read.
const SETTING_INTERVAL: Duration = Duration::from_secs(60);
/// The interval after a refusal, since each refusal adds to the server's log.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1_800);
/// The events in one round above which subscriptions are suspended: a thousand a second.
const MAX_EVENTS: u32 = 2_000;
/// The time without subscriptions after too many events.
const SUSPENSION: Duration = Duration::from_secs(60);
/// The maximum number of events that are handled at once. Several on one key among them count as one.
const AT_ONCE: usize = 256;

/// The notifications that the server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Notifications {
    /// Changes of single keys.
    keys: bool,
    /// Expired keys.
    expired: bool,
}

impl Notifications {
    /// All notifications: a server that does not offer its setting may send any.
    const ANY: Self = Self { keys: true, expired: true };

    /// Parses the setting `notify-keyspace-events`.
    fn from_flags(flags: &str) -> Self {
        let has = |flag: char| flags.contains(flag);
        let all = has('A');
        // A lock is a hash that is written, given a lease and deleted.
        let changes = all || has('g') || has('h') || has('x');
        Self { keys: has('K') && changes, expired: has('E') && (all || has('x')) }
    }
}

/// Returns whether a server with this setting publishes changes of locks.
#[must_use]
pub fn shows_locks(flags: &str) -> bool {
    Notifications::from_flags(flags).keys
}

/// The subject of one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Topic {
    Key(usize, LockName),
    Expired(usize),
}

/// The notifications of one server.
#[derive(Debug)]
pub struct Keyspace {
    scopes: Vec<Scope>,
    link: Link,
    share: SlotShare,
    hub: Arc<Hub>,
    model: ModelHandle,
    status: Arc<SourceStatus>,
    subscriber: Subscriber,
    events: mpsc::Receiver<PubSubEvent>,
    choice: Choice,
    topics: HashMap<Vec<u8>, Topic>,
    setting: Option<(Instant, Result<Notifications, String>)>,
    /// The reason why the server's setting is unknown, although the server may send notifications.
    unoffered: Option<String>,
    /// Set once a notification has arrived from a server whose setting is unknown.
    proven: bool,
    received: u32,
    suspended_until: Option<Instant>,
    /// The channels that the Redis user may not subscribe to, with the reason.
    refused: BTreeMap<Vec<u8>, String>,
}

impl Keyspace {
    /// Starts without subscriptions. `link` is a connection to the server.
    #[must_use]
    pub fn start(
        endpoint: Endpoint,
        scopes: Vec<Scope>,
        (link, share): (Link, SlotShare),
        hub: Arc<Hub>,
        model: ModelHandle,
        status: Arc<SourceStatus>,
        shutdown: &Shutdown,
    ) -> Self {
        let (subscriber, events) = Subscriber::start(endpoint, subscriber_options(), shutdown);
        Self {
            scopes,
            link,
            share,
            hub,
            model,
            status,
            subscriber,
            events,
            choice: Choice::default(),
            topics: HashMap::new(),
            setting: None,
            unoffered: None,
            proven: false,
            received: 0,
            suspended_until: None,
            refused: BTreeMap::new(),
        }
    }

    /// Runs until the connection is given up.
    pub async fn run(mut self) {
        let mut events = Vec::with_capacity(AT_ONCE);
        let mut round = interval(INTERVAL);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                taken = self.events.recv_many(&mut events, AT_ONCE) => {
                    if taken == 0 {
                        return;
                    }
                    self.receive(&mut events).await;
                }
                _ = round.tick() => self.choose().await,
            }
        }
    }

    /// Reports events to the model.
    async fn receive(&mut self, events: &mut Vec<PubSubEvent>) {
        let mut reported = HashSet::new();
        for event in events.drain(..) {
            match event {
                PubSubEvent::Message { channel, payload, .. } => {
                    self.received = self.received.saturating_add(1);
                    let Some(topic) = self.topics.get(&channel) else { continue };
                    self.proven = true;
                    let (scope, name, expired) = match topic {
                        Topic::Key(scope, name) => (*scope, name.clone(), payload == b"expired"),
                        Topic::Expired(scope) => {
                            let Ok(name) = LockName::new(payload) else { continue };
                            (*scope, name, true)
                        }
                    };
                    if reported.insert((scope, name.clone(), expired)) {
                        let at = Time::now();
                        let changed = Observation::KeyChanged { name, expired, at };
                        self.model.observe(self.scopes[scope].id, changed).await;
                    }
                }
                PubSubEvent::Refused { channel, reason } => {
                    if self.topics.contains_key(&channel) {
                        self.refused.insert(channel, reason);
                    }
                }
                PubSubEvent::Subscribed(channel) => drop(self.refused.remove(&channel)),
                PubSubEvent::Up => {
                    self.refused.clear();
                    self.proven = false;
                }
                PubSubEvent::Down { .. } | PubSubEvent::Moved(_) | PubSubEvent::PSubscribed(_) => {}
            }
        }
        self.status.succeeded();
    }

    /// Updates the subscriptions, and reports the source's state.
    async fn choose(&mut self) {
        let received = std::mem::take(&mut self.received);
        let now = Instant::now();
        let state = self.link.state().borrow().status.clone();
        if let LinkStatus::Down { reason, .. } = state {
            // Another server may come back, with another setting.
            self.setting = None;
            return self.status.set(SourceState::Down, reason);
        }
        if received >= MAX_EVENTS {
            self.suspended_until = Some(now + SUSPENSION);
        }
        let notifications = match self.notifications(now).await {
            Ok(notifications) => notifications,
            Err((state, why)) => {
                self.listen(HashMap::new());
                return self.status.set(state, why);
            }
        };
        if self.suspended_until.is_some_and(|until| now < until) {
            self.listen(HashMap::new());
            let why = format!(
                "more than {} events a second: subscriptions suspended for {} s",
                u64::from(MAX_EVENTS) / INTERVAL.as_secs(),
                SUSPENSION.as_secs()
            );
            return self.status.set(SourceState::Paused, why);
        }
        if notifications == Notifications::default() {
            self.listen(HashMap::new());
            let why = "the server does not send notifications of changed locks (notify-keyspace-events); this dashboard does not change that";
            return self.status.set(SourceState::Off, why);
        }
        let topics = self.wanted(notifications);
        let keys = topics.values().filter(|topic| matches!(topic, Topic::Key(..))).count();
        self.listen(topics);
        if let Some((channel, reason)) = self.refused.first_key_value() {
            let channel = String::from_utf8_lossy(channel);
            let why = format!("the Redis user may not subscribe to `{channel}`: {reason}");
            return self.status.set(SourceState::Denied, why);
        }
        if let Some(why) = self.unoffered.as_ref().filter(|_| !self.proven) {
            let why = format!(
                "none has arrived for {}; whether the server sends notifications (notify-keyspace-events) is unknown: {why}",
                counted(keys as u64, "held lock")
            );
            return self.status.set(SourceState::Off, why);
        }
        let locks = counted(keys as u64, "lock");
        let detail = match (notifications.keys, notifications.expired) {
            (true, true) => format!("changes of {locks} are received, and expired keys"),
            (true, false) => format!("changes of {locks} are received"),
            _ => "expired keys are received".to_owned(),
        };
        self.status.set(SourceState::On, detail);
        self.status.succeeded();
    }

    /// Returns the server's setting, which may be slightly out of date.
    async fn notifications(
        &mut self,
        now: Instant,
    ) -> Result<Notifications, (SourceState, String)> {
        let known = self.setting.as_ref().filter(|(at, notifications)| {
            let each = if notifications.is_ok() { SETTING_INTERVAL } else { REFUSED_INTERVAL };
            now.duration_since(*at) < each
        });
        if let Some((_, notifications)) = known {
            return notifications.clone().map_err(|why| (SourceState::Denied, why));
        }
        let mut command = cmd("CONFIG");
        command.arg("GET").arg("notify-keyspace-events");
        self.unoffered = None;
        let notifications = match self.link.call(command).await {
            Ok(reply) => Ok(flags(&reply).map_or_else(
                || {
                    self.unoffered = Some("CONFIG GET returns nothing".to_owned());
                    Notifications::ANY
                },
                |flags| Notifications::from_flags(&flags),
            )),
            // Managed services have no CONFIG, and may send notifications anyway.
            Err(CallError::Refused(refused)) if refused.is_unknown_command() => {
                self.unoffered = Some("the server does not offer CONFIG GET".to_owned());
                Ok(Notifications::ANY)
            }
            Err(CallError::Refused(refused)) if !refused.is_transient() => {
                Err(format!("the Redis user may not read notify-keyspace-events: {refused}"))
            }
            Err(error) => return Err((SourceState::Down, error.to_string())),
        };
        self.setting = Some((now, notifications.clone()));
        notifications.map_err(|why| (SourceState::Denied, why))
    }

    /// Returns the channels to subscribe to: those of held locks, first those with problems or waiters.
    fn wanted(&mut self, notifications: Notifications) -> HashMap<Vec<u8>, Topic> {
        let mut wanted = HashMap::new();
        if notifications.expired {
            for (i, scope) in self.scopes.iter().enumerate() {
                let channel = format!("__keyevent@{}__:expired", scope.db).into_bytes();
                wanted.insert(channel, Topic::Expired(i));
            }
        }
        if !notifications.keys {
            return wanted;
        }
        let snapshot = self.hub.snapshot();
        let scope_of = |lock: &LockView| self.scopes.iter().position(|scope| scope.has(lock));
        let locks = self.choice.update(&snapshot, MAX_LOCKS, |lock| {
            lock.confirmed
                && lock.is_held()
                && self.share.has(&lock.id.name)
                && scope_of(lock).is_some()
        });
        let key = |lock: &LockView| {
            Some((key_channel(lock), Topic::Key(scope_of(lock)?, lock.id.name.clone())))
        };
        wanted.extend(locks.into_iter().filter_map(|lock| key(lock)));
        wanted
    }

    fn listen(&mut self, wanted: HashMap<Vec<u8>, Topic>) {
        let left = self.topics.keys().filter(|channel| !wanted.contains_key(*channel));
        self.subscriber.unsubscribe(left.cloned().collect::<Vec<_>>());
        let new = wanted.keys().filter(|channel| !self.topics.contains_key(*channel));
        self.subscriber.subscribe(new.cloned().collect::<Vec<_>>());
        self.topics = wanted;
        self.refused.retain(|channel, _| self.topics.contains_key(channel));
    }
}

/// Returns the channel for changes of a lock's key.
fn key_channel(lock: &LockView) -> Vec<u8> {
    [format!("__keyspace@{}__:", lock.id.db).as_bytes(), lock.id.name.as_bytes()].concat()
}

/// Returns the value in a reply to CONFIG GET.
fn flags(reply: &Value) -> Option<String> {
    let value = match reply {
        Value::Map(pairs) => strings(&Value::Array(vec![pairs.first()?.1.clone()]))?.pop()?,
        other => strings(other)?.into_iter().nth(1)?,
    };
    Some(String::from_utf8_lossy(&value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_determines_the_notifications() {
        let notifications = |flags| {
            let Notifications { keys, expired } = Notifications::from_flags(flags);
            (keys, expired)
        };
        assert_eq!(notifications(""), (false, false));
        assert_eq!(notifications("AKE"), (true, true));
        assert_eq!(notifications("Ex"), (false, true), "as requested by Redisson's own listeners");
        assert_eq!(notifications("Kgx"), (true, false));
        assert_eq!(notifications("K$l"), (false, false), "strings and lists are not locks");
        assert_eq!(notifications("KEh"), (true, false));
        assert_eq!(notifications("gx"), (false, false), "nothing without K or E");
    }
}
