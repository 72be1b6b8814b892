//! The task that owns the model, and the handles to it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redisson::{LockName, Moment};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::contention::Contention;
use super::owner_names::OwnerNames;
use super::{Effect, Model};
use crate::clock::{SteadyMillis, Time, now};
use crate::model::types::{Delta, LockId, Observation, ReadRequest, Reading, ScopeId, Snapshot};

/// The maximum number of messages in the queue of the model. Senders wait while it is full.
const QUEUE: usize = 4_096;
/// The maximum number of messages that are handled before a publication.
const AT_ONCE: usize = 512;
/// The interval at which deadlines are checked.
const TICK: Duration = Duration::from_millis(20);
/// The minimum time between two snapshots.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(40);
/// The interval at which the last hour's counts are summed up.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// The interval of the model's tick.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// The number of locks in one batch of reads.
const BATCH: usize = 128;
/// The maximum number of batches in the queue of one reader.
const BATCHES: usize = 2;
/// The maximum number of names with pending reading requests, in all databases together.
const MAX_REQUESTED: usize = 256;
/// The maximum number of deltas that a subscriber may lag behind.
const DELTAS: usize = 64;
/// Deltas, and locks in all of them, that are retained for subscribers that reconnect.
const RECENT: usize = 256;
const RECENT_LOCKS: usize = 5_000;

/// The latest snapshot, and the deltas that led to it.
#[derive(Debug)]
pub struct Hub {
    snapshot: ArcSwap<Snapshot>,
    contention: ArcSwap<Contention>,
    deltas: broadcast::Sender<Arc<Delta>>,
    recent: Mutex<VecDeque<Arc<Delta>>>,
    names: OwnerNames,
}

impl Hub {
    pub(crate) fn new(names: OwnerNames) -> Self {
        Self {
            names,
            snapshot: ArcSwap::from_pointee(Snapshot::empty()),
            contention: ArcSwap::default(),
            deltas: broadcast::Sender::new(DELTAS),
            recent: Mutex::new(VecDeque::new()),
        }
    }

    /// Returns the names of owners.
    #[must_use]
    pub fn names(&self) -> &OwnerNames {
        &self.names
    }

    /// Returns the latest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Returns the acquisitions, holds and waits of the last hour, as of a few seconds ago.
    #[must_use]
    pub fn contention(&self) -> Arc<Contention> {
        self.contention.load_full()
    }

    /// Subscribes to deltas. A snapshot taken after this call may already include some of them.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Arc<Delta>> {
        self.deltas.subscribe()
    }

    /// Returns every delta after that snapshot, or `None` if the snapshot is too old or never existed.
    #[must_use]
    pub fn since(&self, seq: u64) -> Option<Vec<Arc<Delta>>> {
        let recent = self.recent.lock();
        let newest = recent.back().map_or(self.snapshot().seq, |delta| delta.seq);
        let oldest = recent.front().map_or(newest, |delta| delta.seq - 1);
        (oldest..=newest)
            .contains(&seq)
            .then(|| recent.iter().filter(|delta| delta.seq > seq).cloned().collect())
    }

    pub(crate) fn publish(&self, snapshot: Arc<Snapshot>, delta: Arc<Delta>) {
        {
            let mut recent = self.recent.lock();
            recent.push_back(Arc::clone(&delta));
            let size = |delta: &Arc<Delta>| delta.changed.len() + delta.removed.len();
            let mut locks: usize = recent.iter().map(size).sum();
            while recent.len() > RECENT || locks > RECENT_LOCKS {
                locks -= recent.pop_front().as_ref().map_or(locks, size);
            }
            self.snapshot.store(snapshot);
        }
        // Sending fails without subscribers, which does no harm.
        drop(self.deltas.send(delta));
    }
}

/// The reply to a reading request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadingReply {
    pub read_at: SteadyMillis,
    pub reading: Reading,
}

/// A request for a reading.
#[derive(Debug)]
struct ReadingRequest {
    asked: Moment,
    reply: oneshot::Sender<ReadingReply>,
}

#[derive(Debug)]
enum Message {
    Observed(ScopeId, Box<Observation>),
    ReadingRequested(ScopeId, LockName, ReadingRequest),
    Viewed(Vec<LockId>),
    Joined(ScopeId, mpsc::Sender<Vec<ReadRequest>>, oneshot::Sender<ScopeId>),
    Left(ScopeId),
}

/// A handle to the model, for sources and pages. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ModelHandle {
    messages: mpsc::Sender<Message>,
    scopes: Arc<[(Arc<str>, u32)]>,
}

impl ModelHandle {
    /// Sends an observation. Waits while the model is busy. Observations after the end of the model are dropped.
    pub async fn observe(&self, scope: ScopeId, observation: Observation) {
        drop(self.messages.send(Message::Observed(scope, Box::new(observation))).await);
    }

    /// Sends an observation without waiting. Returns false if the model is too busy; the observation is then dropped.
    #[must_use]
    pub fn try_observe(&self, scope: ScopeId, observation: Observation) -> bool {
        self.messages.try_send(Message::Observed(scope, Box::new(observation))).is_ok()
    }

    /// Returns the scope of a database if it is watched. For a cluster, this is the front.
    #[must_use]
    pub fn scope(&self, deployment: &str, db: u32) -> Option<ScopeId> {
        self.scopes.iter().position(|(name, n)| &**name == deployment && *n == db).map(ScopeId)
    }

    /// Adds a node to the cluster with this front. Returns its scope and its read requests, or `None` at the end of the
    /// program.
    pub async fn join(
        &self,
        front: ScopeId,
    ) -> Option<(ScopeId, mpsc::Receiver<Vec<ReadRequest>>)> {
        let (sender, batches) = mpsc::channel(BATCHES);
        let (reply, joined) = oneshot::channel();
        self.messages.send(Message::Joined(front, sender, reply)).await.ok()?;
        Some((joined.await.ok()?, batches))
    }

    /// Removes a node of a cluster. No observation may be sent for its scope after this.
    pub async fn leave(&self, node: ScopeId) {
        drop(self.messages.send(Message::Left(node)).await);
    }

    /// Returns every watched database.
    #[must_use]
    pub fn scopes(&self) -> &[(Arc<str>, u32)] {
        &self.scopes
    }

    /// Requests a reading of a key whose command is sent after this call, so that the reading shows no older state.
    /// Returns `None` if there was none within `timeout`, or there are too many requests.
    pub async fn request_reading(&self, id: &LockId, timeout: Duration) -> Option<ReadingReply> {
        let scope = self.scope(&id.deployment, id.db)?;
        let (reply, answer) = oneshot::channel();
        let request = ReadingRequest { asked: now(), reply };
        self.messages.try_send(Message::ReadingRequested(scope, id.name.clone(), request)).ok()?;
        tokio::time::timeout(timeout, answer).await.ok()?.ok()
    }

    /// Sets the locks that open pages show. Waits while the model is busy.
    pub async fn set_viewed(&self, ids: Vec<LockId>) {
        drop(self.messages.send(Message::Viewed(ids)).await);
    }
}

/// The model's task.
#[derive(Debug)]
pub struct Actor {
    model: Model,
    hub: Arc<Hub>,
    messages: mpsc::Receiver<Message>,
    /// The senders of read requests by scope, or `None` if the reader has ended.
    readers: Vec<Option<mpsc::Sender<Vec<ReadRequest>>>>,
    requested: HashMap<(ScopeId, LockName), Vec<ReadingRequest>>,
    /// The locks that open pages show.
    viewed: Vec<LockId>,
    published: Instant,
    /// True if read requests have to be sent: at each tick, on a reading request, and until there was room for all.
    reads_due: bool,
    counted: Option<Instant>,
}

/// A receiver of effects and of each scope's polling delay.
pub trait Listener: Send + 'static {
    /// Receives an effect of an observation of that deployment.
    fn effect(&mut self, deployment: &Arc<str>, effect: Effect);
    /// Receives the delay with which known locks of a scope are read.
    fn lag(&mut self, scope: ScopeId, lag: Duration);
}

/// Creates the model's task, its handle, its hub, and the queues of read requests for each database.
#[must_use]
pub fn new(
    model: Model,
    scopes: &[(Arc<str>, u32)],
) -> (Actor, ModelHandle, Arc<Hub>, Vec<mpsc::Receiver<Vec<ReadRequest>>>) {
    let (sender, messages) = mpsc::channel(QUEUE);
    let hub = Arc::new(Hub::new(model.names().clone()));
    let channels = scopes.iter().map(|_| mpsc::channel(BATCHES));
    let (readers, batches) = channels.map(|(sender, batches)| (Some(sender), batches)).unzip();
    let handle = ModelHandle { messages: sender, scopes: scopes.into() };
    let actor = Actor {
        model,
        hub: Arc::clone(&hub),
        messages,
        readers,
        requested: HashMap::new(),
        viewed: Vec::new(),
        published: Instant::now(),
        reads_due: false,
        counted: None,
    };
    (actor, handle, hub, batches)
}

impl Actor {
    /// Runs until `stop` is cancelled.
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
                        self.handle(message);
                    }
                }
                _ = tick.tick() => {
                    self.reads_due = true;
                    if tidied.elapsed() >= TIDY_INTERVAL {
                        tidied = Instant::now();
                        self.tidy(&mut listener);
                    }
                }
            }
            // Requests are not sent after each message: a thousand messages a second would make a thousand batches of
            // one lock each.
            if self.reads_due {
                self.send_read_requests();
            }
            for (scope, effect) in self.model.take_effects() {
                listener.effect(self.model.deployment(scope), effect);
            }
            if self.published.elapsed() >= PUBLISH_INTERVAL {
                self.publish();
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Observed(scope, observation) => {
                let reply = self.reply_to(scope, &observation);
                let moves_locks = matches!(*observation, Observation::SlotsAssigned(_));
                self.model.observe(scope, *observation);
                if moves_locks {
                    self.set_viewed();
                }
                if let Some((answered, reading)) = reply {
                    // The requester reads the snapshot next.
                    self.publish();
                    for request in answered {
                        // The requester may have timed out.
                        drop(request.reply.send(reading.clone()));
                    }
                }
            }
            Message::ReadingRequested(scope, name, request) => {
                let scope = self.model.home(scope, &name);
                // Dropping the sender reports that the key could not be read.
                if self.model.is_readable(scope)
                    && self.requested.len() < MAX_REQUESTED
                    && self.model.request(scope, &name)
                {
                    self.requested.entry((scope, name)).or_default().push(request);
                    self.reads_due = true;
                }
            }
            Message::Viewed(ids) => {
                self.viewed = ids;
                self.set_viewed();
            }
            Message::Joined(front, reader, reply) => {
                let node = self.model.join(front, now());
                if self.readers.len() <= node.0 {
                    self.readers.resize_with(node.0 + 1, || None);
                }
                self.readers[node.0] = Some(reader);
                if reply.send(node).is_err() {
                    // The requester has ended in the meantime.
                    self.model.leave(node);
                }
            }
            Message::Left(node) => {
                self.readers[node.0] = None;
                self.model.leave(node);
            }
        }
    }

    /// Sets the locks that open pages show, each at the node that has it now.
    fn set_viewed(&mut self) {
        let mut names: HashMap<ScopeId, Vec<LockName>> = HashMap::new();
        for id in &self.viewed {
            if let Some(scope) = self.model.scope(id) {
                names.entry(scope).or_default().push(id.name.clone());
            }
        }
        for scope in (0..self.readers.len()).map(ScopeId) {
            self.model.set_viewed(scope, names.remove(&scope).unwrap_or_default());
        }
    }

    /// Returns the pending requests that this reading answers, with the reply. Those that were made after its command was
    /// sent wait for their own reading, which is scheduled.
    fn reply_to(
        &mut self,
        scope: ScopeId,
        observation: &Observation,
    ) -> Option<(Vec<ReadingRequest>, ReadingReply)> {
        if self.requested.is_empty() {
            return None;
        }
        let Observation::Read { name, stamp, reading, .. } = observation else { return None };
        let key = (scope, name.clone());
        let waiting = self.requested.get_mut(&key)?;
        let answered: Vec<ReadingRequest> =
            waiting.extract_if(.., |request| request.asked <= stamp.sent).collect();
        if waiting.is_empty() {
            self.requested.remove(&key);
        }
        if answered.is_empty() {
            return None;
        }
        Some((answered, ReadingReply { read_at: stamp.steady(), reading: reading.clone() }))
    }

    fn send_read_requests(&mut self) {
        self.reads_due = false;
        let now = now();
        for (index, reader) in self.readers.iter().enumerate() {
            let Some(reader) = reader else { continue };
            loop {
                let Ok(permit) = reader.try_reserve() else {
                    self.reads_due = true;
                    break;
                };
                let due = self.model.due(ScopeId(index), now, BATCH);
                if due.is_empty() {
                    break;
                }
                permit.send(due);
            }
        }
    }

    fn tidy(&mut self, listener: &mut impl Listener) {
        let now = Time::now();
        if let Some(by) = crate::clock::resync() {
            tracing::warn!(
                by_ms = by,
                "host clock was set; displayed times follow it, ages are unaffected"
            );
        }
        self.model.tick(now.moment());
        self.model.end_acknowledgements(now.steady());
        if self.counted.is_none_or(|counted| counted.elapsed() >= COUNT_INTERVAL) {
            self.counted = Some(Instant::now());
            self.hub.contention.store(Arc::new(self.model.contention(now)));
        }
        for waiting in self.requested.values_mut() {
            waiting.retain(|request| !request.reply.is_closed());
        }
        self.requested.retain(|_, waiting| !waiting.is_empty());
        for scope in (0..self.readers.len()).map(ScopeId) {
            let lag = if self.model.is_readable(scope) {
                self.model.lag(scope, now.moment())
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
