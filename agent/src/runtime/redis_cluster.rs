//! A cluster as one node of the core: connections to each master. Scripts and subscriptions are sent to the master of
//! their slot.
//!
//! The core only knows that the keys of one script share their slot. A script whose slot is on another node is
//! redirected; one whose slot nobody serves was certainly not run, and the core sends it again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, SelectAll, unfold};
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use redisson::script::{Call, Publish};
use redisson::slot;
use service_kit::redis::{Address, CallError, Cluster, ClusterState, ServerError, Slots};
use service_kit::shutdown::Shutdown;
use service_kit::trace::TraceParent;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::confirmed_calls::Answer;
use super::outcome::{Outcome, settled};
use super::redis_node::{FromRedis, NodeOptions, RedisNode};
use crate::collections::{HashMap, HashSet};
use crate::core::{Lane, OpId};
use crate::metrics::Metrics;

/// The maximum number of redirections of one script before it counts as not sent: nodes that disagree may redirect it
/// in circles.
const MAX_REDIRECTS: usize = 4;
/// The time for which a node without slots is kept after a redirection to it: a new node has none until its first slot
/// has moved.
const REDIRECT_TARGET: Duration = Duration::from_secs(30);

/// The connections to a cluster.
pub(super) struct RedisCluster {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: Cluster,
    routes: Mutex<Routes>,
}

/// The node of each slot and channel.
#[derive(Default)]
struct Routes {
    slots: Arc<Slots>,
    nodes: HashMap<Address, ClusterNode>,
    /// Nodes without slots that scripts were redirected to, and the instant of that.
    redirect_targets: HashMap<Address, Instant>,
    /// The channels that the core subscribes to.
    channels: HashMap<Vec<u8>, ChannelNode>,
    /// The channels whose node turned out not to serve them.
    misrouted: HashSet<Vec<u8>>,
    /// The way releases are published, and thus received.
    publish: Publish,
}

/// The node of a channel's subscription.
#[derive(Default)]
struct ChannelNode {
    at: Option<Address>,
    /// The number of channel types whose subscription is not confirmed yet.
    open: usize,
}

struct ClusterNode {
    node: Arc<RedisNode>,
    /// It has been connected before; until then its features are unknown.
    seen: bool,
    /// It supported sharded channels when it was last connected.
    sharded: bool,
    up: bool,
    detail: String,
    _end_news: DropGuard,
}

/// Events from a cluster.
struct ClusterEvents {
    inner: Arc<Inner>,
    state: watch::Receiver<ClusterState>,
    nodes: SelectAll<BoxStream<'static, (Address, FromRedis)>>,
    options: NodeOptions,
    /// The way to publish releases, if the servers support it.
    preferred: Publish,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
}

impl RedisCluster {
    /// Starts connecting. Returns the connections for scripts, and the events.
    pub(super) fn start(
        options: NodeOptions,
        cluster: Cluster,
        preferred: Publish,
        metrics: &Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> (Self, impl Stream<Item = FromRedis> + use<>) {
        let state = cluster.state();
        let inner = Arc::new(Inner { cluster, routes: Mutex::default() });
        let news = ClusterEvents {
            inner: Arc::clone(&inner),
            state,
            nodes: SelectAll::new(),
            options,
            preferred,
            metrics: Arc::clone(metrics),
            shutdown: shutdown.clone(),
        };
        let news = unfold(news, |mut news| async move { Some((news.next().await, news)) });
        (Self { inner }, news)
    }

    pub(super) fn subscribe(&self, channel: &[u8]) {
        let routes = &mut *self.inner.routes.lock();
        routes.channels.entry(channel.to_vec()).or_default();
        routes.listen(channel, true);
    }

    pub(super) fn unsubscribe(&self, channel: &[u8]) {
        let routes = &mut *self.inner.routes.lock();
        routes.leave(channel);
        routes.channels.remove(channel);
        routes.misrouted.remove(channel);
    }

    /// Sends a script to the master of its keys' slot. The future returns its outcome.
    pub(super) fn call(
        &self,
        op: OpId,
        lane: Lane,
        call: Call,
        trace_parent: &TraceParent,
    ) -> impl Future<Output = Outcome> + use<> {
        let (inner, trace_parent) = (Arc::clone(&self.inner), trace_parent.clone());
        async move { (op, settled(inner.send(lane, Arc::new(call), &trace_parent).await)) }
    }
}

impl Inner {
    async fn send(
        &self,
        lane: Lane,
        call: Arc<Call>,
        trace_parent: &TraceParent,
    ) -> Result<Answer, CallError> {
        let slot = call.keys.iter().next().map_or(0, slot);
        let (mut address, mut node) = self.routes.lock().owner(slot).map_err(unsent)?;
        let mut asking = false;
        for _ in 0..MAX_REDIRECTS {
            let error = match node.send(lane, Arc::clone(&call), asking, trace_parent).await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Refused(error)) => error,
                Err(error) => {
                    self.cluster.refresh();
                    return Err(error);
                }
            };
            let Some(redirect) = error.redirect() else {
                if !is_unserved(&error) {
                    return Err(CallError::Refused(error));
                }
                self.cluster.refresh();
                return Err(unsent(error.to_string()));
            };
            if !redirect.ask {
                self.cluster.refresh();
            }
            asking = redirect.ask;
            address = self.cluster.address(&redirect.host, redirect.port, &address);
            node = match self.routes.lock().redirect_target(&address) {
                Some(node) => node,
                None => {
                    self.cluster.refresh();
                    return Err(unsent(format!("{error}, which is not connected yet")));
                }
            };
        }
        Err(unsent("the nodes of the cluster do not agree who has the slot".to_owned()))
    }
}

/// Returns whether nobody serves the request at the moment: nothing was run, and that may change soon.
fn is_unserved(error: &ServerError) -> bool {
    ["CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "READONLY"].contains(&error.code.as_str())
}

fn unsent(reason: String) -> CallError {
    CallError::Unsent { reason }
}

/// Returns the number of channel types on which a release may be published.
fn channel_kinds(publish: Publish) -> usize {
    match publish {
        Publish::Both => 2,
        Publish::Plain | Publish::Sharded => 1,
    }
}

impl Routes {
    /// Returns the node that has a slot.
    fn owner(&self, slot: u16) -> Result<(Address, Arc<RedisNode>), String> {
        let Some(address) = self.slots.owner(slot) else {
            return Err(format!("no node is known to serve slot {slot}"));
        };
        match self.nodes.get(address).filter(|node| node.seen) {
            Some(node) => Ok((address.clone(), Arc::clone(&node.node))),
            None => Err(format!("no connection to {address} yet, which serves slot {slot}")),
        }
    }

    /// Returns a node that another one names; an unknown node is recorded and will be connected.
    fn redirect_target(&mut self, address: &Address) -> Option<Arc<RedisNode>> {
        if self.slots.masters().binary_search(address).is_err() {
            self.redirect_targets.insert(address.clone(), Instant::now());
        }
        let node = self.nodes.get(address).filter(|node| node.seen)?;
        Some(Arc::clone(&node.node))
    }

    /// Subscribes to a channel at the node of its slot, unless it is subscribed there already; with `again`, even then.
    fn listen(&mut self, channel: &[u8], again: bool) {
        let owner = self.owner(slot(channel)).ok();
        let address = owner.as_ref().map(|(address, _)| address);
        let Some(channel_node) = self.channels.get(channel) else { return };
        let moved = channel_node.at.as_ref() != address;
        if !moved && !again {
            return;
        }
        if moved {
            self.leave(channel);
        }
        if let Some((address, node)) = owner {
            if self.publish != Publish::Sharded {
                node.subscribe(channel.to_vec());
            }
            if self.publish != Publish::Plain {
                node.ssubscribe(channel.to_vec());
            }
            let channel_node = ChannelNode { at: Some(address), open: channel_kinds(self.publish) };
            self.channels.insert(channel.to_vec(), channel_node);
        }
    }

    fn leave(&mut self, channel: &[u8]) {
        let Some(at) = self.channels.get_mut(channel).and_then(|held| held.at.take()) else {
            return;
        };
        if let Some(ClusterNode { node, .. }) = self.nodes.get(&at) {
            node.unsubscribe(channel.to_vec());
            node.sunsubscribe(channel.to_vec());
        }
    }

    /// Records that one subscription to a channel is confirmed at that node, or refused. Returns true once none is
    /// outstanding: an attempt made from then on misses no release.
    fn on_settled(&mut self, channel: &[u8], address: &Address) -> bool {
        let Some(channel_node) = self.channels.get_mut(channel) else { return false };
        let here = channel_node.at.as_ref() == Some(address);
        if here {
            channel_node.open = channel_node.open.saturating_sub(1);
        }
        here && channel_node.open == 0
    }

    /// Marks all subscriptions at that node as unconfirmed.
    fn mark_unsubscribed(&mut self, address: &Address) {
        let open = channel_kinds(self.publish);
        for channel_node in
            self.channels.values_mut().filter(|held| held.at.as_ref() == Some(address))
        {
            channel_node.open = open;
        }
    }

    /// Subscribes to each channel at the node that has its slot now.
    fn settle(&mut self) {
        let channels: Vec<Vec<u8>> = self.channels.keys().cloned().collect();
        channels.iter().for_each(|channel| self.listen(channel, false));
    }

    /// Sets how releases are published from now on, and subscribes to all channels again.
    fn set_publish(&mut self, publish: Publish) {
        let channels: Vec<Vec<u8>> = self.channels.keys().cloned().collect();
        channels.iter().for_each(|channel| self.leave(channel));
        self.publish = publish;
        self.settle();
    }

    /// Returns the reason why some slots cannot be served; `None` if all can.
    fn trouble(&self, state: &ClusterState) -> Option<String> {
        let masters = self.slots.masters();
        if masters.is_empty() {
            return Some(state.trouble.clone().unwrap_or_else(|| "not connected yet".to_owned()));
        }
        let down = masters.iter().filter_map(|address| match self.nodes.get(address) {
            Some(node) if node.up => None,
            Some(node) => Some(node.detail.clone()),
            None => Some(format!("{address}: not connected yet")),
        });
        let mut problems: Vec<String> = down.collect();
        let unserved = self.slots.unserved();
        if unserved > 0 {
            problems.push(format!("{unserved} slots of the cluster have no node"));
        }
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

impl ClusterEvents {
    async fn next(&mut self) -> FromRedis {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.state.changed() => {
                    self.apply();
                    return self.report(false);
                }
                Some((address, event)) = self.nodes.next(), if !self.nodes.is_empty() => {
                    if let Some(event) = self.on_event(&address, event) {
                        return event;
                    }
                }
                // Everything has ended: the agent is about to end.
                else => return std::future::pending().await,
            }
        }
    }

    /// Applies a new state of the cluster: connects to each master, and disconnects from nodes that are no longer
    /// masters.
    fn apply(&mut self) {
        let state = self.state.borrow_and_update().clone();
        let inner = Arc::clone(&self.inner);
        let routes = &mut *inner.routes.lock();
        let moved = routes.slots != state.slots;
        routes.slots = state.slots;
        routes.redirect_targets.retain(|_, since| since.elapsed() < REDIRECT_TARGET);
        let wanted: HashSet<Address> =
            routes.slots.masters().iter().chain(routes.redirect_targets.keys()).cloned().collect();
        for (_, gone) in routes.nodes.extract_if(|address, _| !wanted.contains(address)) {
            self.metrics.servers.remove(gone.node.node());
        }
        for address in wanted {
            routes.nodes.entry(address).or_insert_with_key(|address| self.start(address));
        }
        for channel in std::mem::take(&mut routes.misrouted) {
            routes.listen(&channel, true);
        }
        if moved {
            routes.settle();
        }
    }

    fn start(&mut self, address: &Address) -> ClusterNode {
        let target = self.inner.cluster.target().node(address.clone());
        let (node, news) =
            RedisNode::start(self.options, &target.clone().into(), &self.metrics, &self.shutdown);
        let end = CancellationToken::new();
        let of = address.clone();
        let news = news.map(move |event| (of.clone(), event));
        self.nodes.push(news.take_until(end.clone().cancelled_owned()).boxed());
        let detail = format!("{target}: not connected yet");
        let _end_news = end.drop_guard();
        ClusterNode {
            node: Arc::new(node),
            seen: false,
            sharded: false,
            up: false,
            detail,
            _end_news,
        }
    }

    fn on_event(&mut self, address: &Address, event: FromRedis) -> Option<FromRedis> {
        match event {
            FromRedis::State { up, detail, in_doubt, .. } => {
                let inner = Arc::clone(&self.inner);
                let mut routes = inner.routes.lock();
                let node = routes.nodes.get_mut(address)?;
                (node.up, node.detail) = (up, detail);
                match node.node.info() {
                    Some(info) if up => {
                        node.sharded = info.has_shards();
                        if !std::mem::replace(&mut node.seen, true) {
                            routes.settle();
                        }
                    }
                    // Another node may be the master now.
                    _ => inner.cluster.refresh(),
                }
                drop(routes);
                Some(self.report(in_doubt))
            }
            FromRedis::SlotElsewhere { channel } => {
                let mut routes = self.inner.routes.lock();
                let channel_node = routes.channels.get(&channel);
                if channel_node.is_some_and(|held| held.at.as_ref() == Some(address)) {
                    routes.misrouted.insert(channel);
                    self.inner.cluster.hurry(true);
                }
                None
            }
            // A refused subscription receives nothing: the other channel type is then used, if there is one.
            FromRedis::Subscribed { channel } | FromRedis::SubscriptionRefused { channel } => self
                .inner
                .routes
                .lock()
                .on_settled(&channel, address)
                .then_some(FromRedis::Subscribed { channel }),
            FromRedis::Unsubscribed => {
                self.inner.routes.lock().mark_unsubscribed(address);
                Some(FromRedis::Unsubscribed)
            }
            other => Some(other),
        }
    }

    /// Returns the state of the cluster as a whole.
    fn report(&self, in_doubt: bool) -> FromRedis {
        let mut routes = self.inner.routes.lock();
        self.metrics.servers.set_unserved_slots(routes.slots.unserved());
        let trouble = routes.trouble(&self.state.borrow());
        self.inner.cluster.hurry(trouble.is_some() || !routes.misrouted.is_empty());
        let seen = || routes.nodes.values().filter(|node| node.seen);
        // Nodes are not asked for features that they do not have.
        let able = seen().next().is_some() && seen().all(|node| node.sharded);
        let publish = if able { self.preferred } else { Publish::Plain };
        let changed = (publish != routes.publish).then_some(publish);
        if changed.is_some() {
            routes.set_publish(publish);
        }
        let (up, masters) = (trouble.is_none(), routes.slots.masters().len());
        let detail = trouble.unwrap_or_else(|| {
            format!("all {masters} masters of {} answer", self.inner.cluster.target())
        });
        FromRedis::State { up, detail, in_doubt, publish: changed }
    }
}
