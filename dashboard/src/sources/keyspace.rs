//! What the server itself tells of keys that change, where its operator has that switched on already
//! (`notify-keyspace-events`): a known lock is read as soon as anything was done to it, and a hold that runs out is known
//! to have run out. The dashboard never switches it on, since it costs the server something for each write.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use redisson::LockName;
use service_kit::redis::{CallError, Endpoint, Link, LinkStatus, PubSubEvent, Subscriber};
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::read::strings;
use super::scope::Scope;
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::{SteadyMillis, now};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{LockView, Observation};
use crate::redis::subscriber_options;
use crate::sources::view::SourceState;

/// The most locks of one server that are listened for each by itself.
const MAX_LOCKS: usize = 1_000;
/// How often it is looked which locks these are.
const EACH: Duration = Duration::from_secs(2);
/// How often the server is asked what it tells, and how often where it does not let us: each time is in its log.
const ASK_EACH: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_secs(1_800);
/// Events in one round from which on they are more than they are worth: a thousand a second.
const TOO_MANY: u32 = 2_000;
/// How long it then stays quiet.
const QUIET_FOR: Duration = Duration::from_secs(60);
/// Events taken at once; of several on one key among them one is told.
const AT_ONCE: usize = 256;

/// What the server tells, as its setting has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Told {
    /// What happens to single keys.
    keys: bool,
    /// Which keys expire.
    expired: bool,
}

impl Told {
    /// From the setting `notify-keyspace-events`.
    fn from_flags(flags: &str) -> Self {
        let has = |flag: char| flags.contains(flag);
        let all = has('A');
        // A lock is a hash that is written, given a lease and deleted.
        let changes = all || has('g') || has('h') || has('x');
        Self { keys: has('K') && changes, expired: has('E') && (all || has('x')) }
    }
}

/// What one channel is about.
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
    topics: HashMap<Vec<u8>, Topic>,
    asked: Option<(Instant, Result<Told, String>)>,
    heard: u32,
    quiet_until: Option<Instant>,
    refused: Option<String>,
}

impl Keyspace {
    /// Subscribes to nothing yet. `link` is a connection to the deployment.
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
            topics: HashMap::new(),
            asked: None,
            heard: 0,
            quiet_until: None,
            refused: None,
        }
    }

    /// Listens until the end.
    pub async fn run(mut self) {
        let mut events = Vec::with_capacity(AT_ONCE);
        let mut round = interval(EACH);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                taken = self.events.recv_many(&mut events, AT_ONCE) => {
                    if taken == 0 {
                        return;
                    }
                    self.hear(&mut events).await;
                }
                _ = round.tick() => self.choose().await,
            }
        }
    }

    /// Passes on what was heard.
    async fn hear(&mut self, events: &mut Vec<PubSubEvent>) {
        let mut told = HashSet::new();
        for event in events.drain(..) {
            match event {
                PubSubEvent::Message { channel, payload, .. } => {
                    self.heard = self.heard.saturating_add(1);
                    let Some(topic) = self.topics.get(&channel) else { continue };
                    let (scope, name, expired) = match topic {
                        Topic::Key(scope, name) => (*scope, name.clone(), payload == b"expired"),
                        Topic::Expired(scope) => {
                            let Ok(name) = LockName::new(payload) else { continue };
                            (*scope, name, true)
                        }
                    };
                    if told.insert((scope, name.clone(), expired)) {
                        let (at, steady) = (now(), SteadyMillis::now());
                        let changed = Observation::KeyChanged { name, expired, at, steady };
                        self.model.see(self.scopes[scope].id, changed).await;
                    }
                }
                PubSubEvent::Refused { channel, reason } => {
                    let channel = String::from_utf8_lossy(&channel).into_owned();
                    self.refused =
                        Some(format!("the account may not subscribe to `{channel}`: {reason}"));
                }
                PubSubEvent::Up => self.refused = None,
                PubSubEvent::Down { .. }
                | PubSubEvent::Moved(_)
                | PubSubEvent::Subscribed(_)
                | PubSubEvent::PSubscribed(_) => {}
            }
        }
        self.status.succeeded();
    }

    /// Subscribes to what is worth hearing now, and says how it fares.
    async fn choose(&mut self) {
        let heard = std::mem::take(&mut self.heard);
        let now = Instant::now();
        let state = self.link.state().borrow().status.clone();
        if let LinkStatus::Down { reason, .. } = state {
            // Another server may come back, with another setting.
            self.asked = None;
            return self.status.set(SourceState::Down, reason);
        }
        if heard >= TOO_MANY {
            self.quiet_until = Some(now + QUIET_FOR);
        }
        let told = match self.told(now).await {
            Ok(told) => told,
            Err((state, why)) => {
                self.listen(HashMap::new());
                return self.status.set(state, why);
            }
        };
        if self.quiet_until.is_some_and(|until| now < until) {
            self.listen(HashMap::new());
            let why = format!(
                "more than {} events a second: nothing is heard for {} s",
                u64::from(TOO_MANY) / EACH.as_secs(),
                QUIET_FOR.as_secs()
            );
            return self.status.set(SourceState::Paused, why);
        }
        if told == Told::default() {
            self.listen(HashMap::new());
            let why = "the server tells nothing of locks that change (notify-keyspace-events); that stays so";
            return self.status.set(SourceState::Off, why);
        }
        let topics = self.wanted(told);
        let keys = topics.values().filter(|topic| matches!(topic, Topic::Key(..))).count();
        self.listen(topics);
        if let Some(refused) = &self.refused {
            return self.status.set(SourceState::Denied, refused.clone());
        }
        let detail = match (told.keys, told.expired) {
            (true, true) => format!("changes of {keys} locks are heard, and which keys expire"),
            (true, false) => format!("changes of {keys} locks are heard"),
            _ => "it is heard which keys expire".to_owned(),
        };
        self.status.set(SourceState::On, detail);
        self.status.succeeded();
    }

    /// What the server tells, as it said a while ago at most.
    async fn told(&mut self, now: Instant) -> Result<Told, (SourceState, String)> {
        let known = self.asked.as_ref().filter(|(at, told)| {
            let each = if told.is_ok() { ASK_EACH } else { ASK_AGAIN };
            now.duration_since(*at) < each
        });
        if let Some((_, told)) = known {
            return told.clone().map_err(|why| (SourceState::Denied, why));
        }
        let mut command = cmd("CONFIG");
        command.arg("GET").arg("notify-keyspace-events");
        let told = match self.link.call(command).await {
            Ok(reply) => {
                Ok(flags(&reply).map(|flags| Told::from_flags(&flags)).unwrap_or_default())
            }
            Err(CallError::Refused(refused)) if !refused.is_transient() => {
                Err(format!("whether the server tells of changed keys may not be asked: {refused}"))
            }
            Err(error) => return Err((SourceState::Down, error.to_string())),
        };
        self.asked = Some((now, told.clone()));
        told.map_err(|why| (SourceState::Denied, why))
    }

    /// The channels worth hearing: those of held locks, the troubled and awaited ones first.
    fn wanted(&self, told: Told) -> HashMap<Vec<u8>, Topic> {
        let mut wanted = HashMap::new();
        if told.expired {
            for (i, scope) in self.scopes.iter().enumerate() {
                let channel = format!("__keyevent@{}__:expired", scope.db).into_bytes();
                wanted.insert(channel, Topic::Expired(i));
            }
        }
        if !told.keys {
            return wanted;
        }
        let snapshot = self.hub.snapshot();
        let mut locks: Vec<_> = snapshot
            .locks()
            .filter(|lock| lock.confirmed && lock.is_held() && self.share.has(&lock.id.name))
            .filter_map(|lock| {
                let scope = self.scopes.iter().position(|scope| scope.has(lock))?;
                let channel = key_channel(lock);
                // Those that are heard already stay, so that little is subscribed anew.
                let weight = (
                    lock.problems.is_empty(),
                    !lock.is_awaited(),
                    !self.topics.contains_key(&channel),
                );
                Some((weight, channel, scope, lock))
            })
            .collect();
        if locks.len() > MAX_LOCKS {
            locks.select_nth_unstable_by(MAX_LOCKS, |a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
            locks.truncate(MAX_LOCKS);
        }
        let keys = locks
            .into_iter()
            .map(|(_, channel, scope, lock)| (channel, Topic::Key(scope, lock.id.name.clone())));
        wanted.extend(keys);
        wanted
    }

    fn listen(&mut self, wanted: HashMap<Vec<u8>, Topic>) {
        let left = self.topics.keys().filter(|channel| !wanted.contains_key(*channel));
        self.subscriber.unsubscribe(left.cloned().collect::<Vec<_>>());
        let new = wanted.keys().filter(|channel| !self.topics.contains_key(*channel));
        self.subscriber.subscribe(new.cloned().collect::<Vec<_>>());
        self.topics = wanted;
    }
}

/// The channel on which the server tells what is done to a lock's key.
fn key_channel(lock: &LockView) -> Vec<u8> {
    [format!("__keyspace@{}__:", lock.id.db).as_bytes(), lock.id.name.as_bytes()].concat()
}

/// The value in an answer to CONFIG GET.
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
    fn the_setting_says_what_is_told() {
        let told = |flags| {
            let Told { keys, expired } = Told::from_flags(flags);
            (keys, expired)
        };
        assert_eq!(told(""), (false, false));
        assert_eq!(told("AKE"), (true, true));
        assert_eq!(told("Ex"), (false, true), "such as Redisson's own listeners ask for");
        assert_eq!(told("Kgx"), (true, false));
        assert_eq!(told("K$l"), (false, false), "strings and lists are no locks");
        assert_eq!(told("KEh"), (true, false));
        assert_eq!(told("gx"), (false, false), "nothing without K or E");
    }
}
