//! The task that owns the model, and how others reach it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redisson::LockName;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::contention::Contention;
use super::{Effect, Model};
use crate::clock::{SteadyMillis, now};
use crate::model::types::{Delta, LockId, Observation, ReadRequest, Reading, ScopeId, Snapshot};

/// Messages that wait for the model; senders then wait.
const QUEUE: usize = 4_096;
/// Messages taken in before anything is published.
const AT_ONCE: usize = 512;
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(20);
/// How often a picture is published, at most.
const PUBLISH_EACH: Duration = Duration::from_millis(50);
/// How often what was counted in the last hour is summed up.
const COUNT_EACH: Duration = Duration::from_secs(5);
/// How often what is old is forgotten.
const TIDY_EACH: Duration = Duration::from_secs(1);
/// Locks in one batch of reads.
const BATCH: usize = 128;
/// Batches that wait for one reader.
const BATCHES: usize = 2;
/// Names that somebody waits for, all databases together.
const MAX_ASKED: usize = 256;
/// How many deltas a reader may fall behind.
const DELTAS: usize = 64;
/// Deltas, and locks in all of them, that are kept for those that come back.
const RECENT: usize = 256;
const RECENT_LOCKS: usize = 5_000;

/// What the model published last, and the way there.
#[derive(Debug)]
pub struct Hub {
    snapshot: ArcSwap<Snapshot>,
    contention: ArcSwap<Contention>,
    deltas: broadcast::Sender<Arc<Delta>>,
    recent: Mutex<VecDeque<Arc<Delta>>>,
}

impl Hub {
    fn new() -> Self {
        Self {
            snapshot: ArcSwap::from_pointee(Snapshot::empty()),
            contention: ArcSwap::default(),
            deltas: broadcast::Sender::new(DELTAS),
            recent: Mutex::new(VecDeque::new()),
        }
    }

    /// The newest picture.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// How often locks were taken, held and waited for in the last hour, as of the last few seconds.
    #[must_use]
    pub fn contention(&self) -> Arc<Contention> {
        self.contention.load_full()
    }

    /// What changes from now on. A picture taken after this call may already have some of it.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Arc<Delta>> {
        self.deltas.subscribe()
    }

    /// Every change after that picture; none where it is too long ago, or was never made.
    #[must_use]
    pub fn since(&self, seq: u64) -> Option<Vec<Arc<Delta>>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = recent.back().map_or(self.snapshot().seq, |delta| delta.seq);
        let oldest = recent.front().map_or(newest, |delta| delta.seq - 1);
        (oldest..=newest)
            .contains(&seq)
            .then(|| recent.iter().filter(|delta| delta.seq > seq).cloned().collect())
    }

    fn publish(&self, snapshot: Arc<Snapshot>, delta: Arc<Delta>) {
        {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.push_back(Arc::clone(&delta));
            let size = |delta: &Arc<Delta>| delta.changed.len() + delta.removed.len();
            let mut entry: usize = recent.iter().map(size).sum();
            while recent.len() > RECENT || entry > RECENT_LOCKS {
                entry -= recent.pop_front().as_ref().map_or(entry, size);
            }
            self.snapshot.store(snapshot);
        }
        // Nobody listening is no error.
        drop(self.deltas.send(delta));
    }
}

/// What a key turned out to be for somebody who asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// When it was read.
    pub read_at: SteadyMillis,
    /// What it is.
    pub reading: Reading,
}

#[derive(Debug)]
enum Message {
    Seen(ScopeId, Observation),
    Asked(ScopeId, LockName, oneshot::Sender<Answer>),
    Viewed(Vec<LockId>),
    Joined(ScopeId, mpsc::Sender<Vec<ReadRequest>>, oneshot::Sender<ScopeId>),
    Left(ScopeId),
}

/// How sources and pages reach the model. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ModelHandle {
    messages: mpsc::Sender<Message>,
    scopes: Arc<[(Arc<str>, u32)]>,
}

impl ModelHandle {
    /// Tells what a source saw. Waits where the model is busy; what comes after its end is dropped.
    pub async fn see(&self, scope: ScopeId, observation: Observation) {
        drop(self.messages.send(Message::Seen(scope, observation)).await);
    }

    /// The same for a source that must never wait; false where the model is too busy, then nothing was told.
    #[must_use]
    pub fn try_see(&self, scope: ScopeId, observation: Observation) -> bool {
        self.messages.try_send(Message::Seen(scope, observation)).is_ok()
    }

    /// Which database that is, where it is looked at; of a cluster the front.
    #[must_use]
    pub fn scope(&self, deployment: &str, db: u32) -> Option<ScopeId> {
        self.scopes.iter().position(|(name, n)| &**name == deployment && *n == db).map(ScopeId)
    }

    /// A node more of a cluster is looked at, whose front is given: its scope, and what is to be read there. None at the
    /// end.
    pub async fn join(
        &self,
        front: ScopeId,
    ) -> Option<(ScopeId, mpsc::Receiver<Vec<ReadRequest>>)> {
        let (sender, batches) = mpsc::channel(BATCHES);
        let (reply, joined) = oneshot::channel();
        self.messages.send(Message::Joined(front, sender, reply)).await.ok()?;
        Some((joined.await.ok()?, batches))
    }

    /// A node of a cluster is looked at no longer; nothing may be told in its scope after this.
    pub async fn leave(&self, node: ScopeId) {
        drop(self.messages.send(Message::Left(node)).await);
    }

    /// Every database that is looked at.
    #[must_use]
    pub fn scopes(&self) -> &[(Arc<str>, u32)] {
        &self.scopes
    }

    /// Has a key read now, for at most `patience`. None where it was not read in that time, or where too many ask.
    pub async fn ask(&self, id: &LockId, patience: Duration) -> Option<Answer> {
        let scope = self.scope(&id.deployment, id.db)?;
        let (reply, answer) = oneshot::channel();
        self.messages.try_send(Message::Asked(scope, id.name.clone(), reply)).ok()?;
        tokio::time::timeout(patience, answer).await.ok()?.ok()
    }

    /// Tells what people look at from now on.
    pub fn view(&self, ids: Vec<LockId>) {
        // Where the model is that busy, the next call will do.
        drop(self.messages.try_send(Message::Viewed(ids)));
    }
}

/// Where the model's task reaches the readers, and what it tells of itself.
#[derive(Debug)]
pub struct Actor {
    model: Model,
    hub: Arc<Hub>,
    messages: mpsc::Receiver<Message>,
    /// By scope; none where nobody reads there any more.
    readers: Vec<Option<mpsc::Sender<Vec<ReadRequest>>>>,
    asked: HashMap<(ScopeId, LockName), Vec<oneshot::Sender<Answer>>>,
    published: Instant,
    /// Whether readers are to be given something to read: at each tick, when somebody asks, and until there was room for all.
    pressed: bool,
    counted: Option<Instant>,
}

/// Hears what metrics count, and how late each database is polled.
pub trait Listener: Send + 'static {
    /// Something happened in that deployment.
    fn effect(&mut self, deployment: &Arc<str>, effect: Effect);
    /// How much later than due known locks of a database are read.
    fn lag(&mut self, scope: ScopeId, lag: Duration);
}

/// Makes the model's task: also its handle, what it publishes, and for each database the batches to be read.
#[must_use]
pub fn new(
    model: Model,
    scopes: &[(Arc<str>, u32)],
) -> (Actor, ModelHandle, Arc<Hub>, Vec<mpsc::Receiver<Vec<ReadRequest>>>) {
    let (sender, messages) = mpsc::channel(QUEUE);
    let hub = Arc::new(Hub::new());
    let channels = scopes.iter().map(|_| mpsc::channel(BATCHES));
    let (readers, batches) = channels.map(|(sender, batches)| (Some(sender), batches)).unzip();
    let handle = ModelHandle { messages: sender, scopes: scopes.into() };
    let actor = Actor {
        model,
        hub: Arc::clone(&hub),
        messages,
        readers,
        asked: HashMap::new(),
        published: Instant::now(),
        pressed: false,
        counted: None,
    };
    (actor, handle, hub, batches)
}

impl Actor {
    /// Runs until `stop`.
    pub async fn run(mut self, mut listener: impl Listener, stop: CancellationToken) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tidied = Instant::now();
        let mut messages = Vec::with_capacity(AT_ONCE);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                taken = self.messages.recv_many(&mut messages, AT_ONCE) => {
                    if taken == 0 {
                        return;
                    }
                    for message in messages.drain(..) {
                        self.take_in(message);
                    }
                }
                _ = tick.tick() => {
                    self.pressed = true;
                    if tidied.elapsed() >= TIDY_EACH {
                        tidied = Instant::now();
                        self.tidy(&mut listener);
                    }
                }
            }
            // Not after each message: a thousand a second would make a thousand batches of one lock each.
            if self.pressed {
                self.hand_out();
            }
            for (scope, effect) in self.model.take_effects() {
                listener.effect(self.model.deployment(scope), effect);
            }
            if self.published.elapsed() >= PUBLISH_EACH {
                self.publish();
            }
        }
    }

    fn take_in(&mut self, message: Message) {
        match message {
            Message::Seen(scope, observation) => {
                let answer = self.answer_to(scope, &observation);
                self.model.observe(scope, observation);
                if let Some((waiting, answer)) = answer {
                    // Whoever asked looks into the picture next.
                    self.publish();
                    for reply in waiting {
                        // Whoever lost patience is gone.
                        drop(reply.send(answer.clone()));
                    }
                }
            }
            Message::Asked(scope, name, reply) => {
                let scope = self.model.home(scope, &name);
                // Dropping the reply tells that it could not be read.
                if self.model.is_readable(scope)
                    && self.asked.len() < MAX_ASKED
                    && self.model.prioritize(scope, &name)
                {
                    self.asked.entry((scope, name)).or_default().push(reply);
                    self.pressed = true;
                }
            }
            Message::Viewed(ids) => {
                let mut names: HashMap<ScopeId, Vec<LockName>> = HashMap::new();
                for id in ids {
                    if let Some(scope) = self.model.scope(&id) {
                        names.entry(scope).or_default().push(id.name);
                    }
                }
                for scope in (0..self.readers.len()).map(ScopeId) {
                    self.model.view(scope, names.remove(&scope).unwrap_or_default());
                }
            }
            Message::Joined(front, reader, reply) => {
                let node = self.model.join(front, now());
                if self.readers.len() <= node.0 {
                    self.readers.resize_with(node.0 + 1, || None);
                }
                self.readers[node.0] = Some(reader);
                if reply.send(node).is_err() {
                    // Whoever asked has ended meanwhile.
                    self.model.leave(node);
                }
            }
            Message::Left(node) => {
                self.readers[node.0] = None;
                self.model.leave(node);
            }
        }
    }

    /// Who waits for this reading, with what they are told.
    fn answer_to(
        &mut self,
        scope: ScopeId,
        observation: &Observation,
    ) -> Option<(Vec<oneshot::Sender<Answer>>, Answer)> {
        if self.asked.is_empty() {
            return None;
        }
        let Observation::Read { name, stamp, reading, .. } = observation else { return None };
        let waiting = self.asked.remove(&(scope, name.clone()))?;
        Some((waiting, Answer { read_at: stamp.steady, reading: reading.clone() }))
    }

    fn hand_out(&mut self) {
        self.pressed = false;
        let now = now();
        for (index, reader) in self.readers.iter().enumerate() {
            let Some(reader) = reader else { continue };
            loop {
                let Ok(place) = reader.try_reserve() else {
                    self.pressed = true;
                    break;
                };
                let due = self.model.due(ScopeId(index), now, BATCH);
                if due.is_empty() {
                    break;
                }
                place.send(due);
            }
        }
    }

    fn tidy(&mut self, listener: &mut impl Listener) {
        let now = now();
        if let Some(by) = crate::clock::resync() {
            tracing::warn!(
                by_ms = by,
                "this host's clock was set: what is told goes by it from now on, and ages are as they were"
            );
        }
        self.model.tick(now);
        self.model.end_acknowledgements(SteadyMillis::now());
        if self.counted.is_none_or(|counted| counted.elapsed() >= COUNT_EACH) {
            self.counted = Some(Instant::now());
            self.hub.contention.store(Arc::new(self.model.contention(now, SteadyMillis::now())));
        }
        for waiting in self.asked.values_mut() {
            waiting.retain(|reply| !reply.is_closed());
        }
        self.asked.retain(|_, waiting| !waiting.is_empty());
        for scope in (0..self.readers.len()).map(ScopeId) {
            let lag = if self.model.is_readable(scope) {
                self.model.lag(scope, now)
            } else {
                Duration::ZERO
            };
            listener.lag(scope, lag);
        }
    }

    fn publish(&mut self) {
        if let Some((snapshot, delta)) = self.model.publish(SteadyMillis::now()) {
            self.published = Instant::now();
            self.hub.publish(snapshot, delta);
        }
    }
}
