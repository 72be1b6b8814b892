//! The map of a cluster: which node serves which slot.

mod choice;
mod view;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio_util::sync::DropGuard;

use self::choice::Views;
pub use self::view::Slots;
use self::view::View;
use super::resolver::{ResolverOptions, spawn};
use crate::redis::deployment::ClusterTarget;
use crate::redis::handshake::{self, Handshake};
use crate::redis::target::Address;
use crate::shutdown::Shutdown;

/// Nodes queried in parallel: one may be down, and another may not know the latest change.
const AT_ONCE: usize = 3;
/// The interval between queries while the cluster is healthy.
const CALM: Duration = Duration::from_secs(5);
/// The interval while it is not, until it has recovered.
const HURRY: Duration = Duration::from_millis(250);
/// The minimum time between two queries, however many refreshes are requested.
const LEAST: Duration = Duration::from_millis(50);

/// The known state of a cluster. Published after each query, changed or not.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// The latest map.
    pub slots: Arc<Slots>,
    /// The reason why the latest query failed, if it did.
    pub trouble: Option<String>,
}

/// Tracks the map of a cluster by short connections to some of its nodes. Clones share it. It ends with the last clone,
/// or with its stage of shutdown.
#[derive(Debug, Clone)]
pub struct Cluster {
    target: Arc<ClusterTarget>,
    state: watch::Receiver<ClusterState>,
    requests: Arc<Requests>,
    _stop_with_last_handle: Arc<DropGuard>,
}

#[derive(Debug, Default)]
struct Requests {
    refresh: Notify,
    hurry: AtomicBool,
}

impl Cluster {
    /// Starts to query the nodes. Returns at once.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(target: ClusterTarget, options: ResolverOptions, shutdown: &Shutdown) -> Self {
        let target = Arc::new(target);
        let requests = Arc::new(Requests::default());
        let (sender, state) = watch::channel(ClusterState::default());
        let handshake = options.handshake();
        let resolver = Resolver {
            target: Arc::clone(&target),
            handshake,
            best: None,
            turn: 0,
            strays: Vec::new(),
            state: sender,
            requests: Arc::clone(&requests),
        };
        let stop = spawn(format!("cluster {target}"), resolver.run(), shutdown);
        Self { target, state, requests, _stop_with_last_handle: stop }
    }

    /// The state and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<ClusterState> {
        self.state.clone()
    }

    /// The cluster, as configured.
    #[must_use]
    pub fn target(&self) -> &ClusterTarget {
        &self.target
    }

    /// Returns the address of a node that a reply from `sender` names. An empty host is that of the sender.
    #[must_use]
    pub fn address(&self, host: &str, port: u16, sender: &Address) -> Address {
        view::address(&self.target, host, port, sender)
    }

    /// Requests a query soon, after a sign of change.
    pub fn refresh(&self) {
        self.requests.refresh.notify_one();
    }

    /// Turns frequent queries on or off, for a cluster that is about to change.
    pub fn hurry(&self, on: bool) {
        if self.requests.hurry.swap(on, Ordering::Relaxed) != on && on {
            self.refresh();
        }
    }
}

struct Resolver {
    target: Arc<ClusterTarget>,
    handshake: Handshake,
    /// The published view.
    best: Option<View>,
    /// Rotates the nodes that are queried.
    turn: usize,
    /// Nodes that were found to belong to another cluster.
    strays: Vec<Address>,
    state: watch::Sender<ClusterState>,
    requests: Arc<Requests>,
}

impl Resolver {
    async fn run(mut self) {
        loop {
            let result = self.query().await;
            let answered = result.is_ok();
            self.publish(result);
            let hurry = !answered || self.requests.hurry.load(Ordering::Relaxed);
            let pause = if hurry { HURRY } else { CALM };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.requests.refresh.notified() => tokio::time::sleep(LEAST).await,
            }
        }
    }

    fn publish(&mut self, result: Result<View, String>) {
        let known = self.state.borrow().trouble.clone();
        let trouble = match result {
            Ok(view) => {
                let slots = &view.slots;
                if self.best.as_ref().is_none_or(|best| best.slots != *slots) {
                    let masters: Vec<_> = slots.masters().iter().map(ToString::to_string).collect();
                    tracing::info!(
                        redis.cluster = %self.target, masters = masters.join(", "),
                        unserved = slots.unserved(), "cluster masters changed"
                    );
                }
                self.best = Some(view);
                None
            }
            Err(reason) => {
                if known.as_ref() != Some(&reason) {
                    tracing::warn!(redis.cluster = %self.target, reason, "no node of the cluster reports its slots");
                }
                Some(reason)
            }
        };
        let slots = self.best.as_ref().map(|view| Arc::clone(&view.slots)).unwrap_or_default();
        self.state.send_replace(ClusterState { slots, trouble });
    }

    /// Queries some nodes, and then the others if their views are older than the known one.
    async fn query(&mut self) -> Result<View, String> {
        let nodes = self.nodes();
        self.turn = self.turn.wrapping_add(1);
        let known = self.best.as_ref().map_or(0, |best| best.epoch);
        let mut views = Views::new(self.best.as_ref());
        let mut failures = Vec::new();
        for some in nodes.chunks(AT_ONCE) {
            let answers = join_all(some.iter().map(|node| self.query_node(node))).await;
            for (node, answer) in some.iter().zip(answers) {
                match answer {
                    Ok(view) => views.add(node, view),
                    Err(why) => failures.push((node, why)),
                }
            }
            if views.best().is_some_and(|best| best.well && best.epoch >= known) {
                break;
            }
        }
        let (best, strays) = views.into_best();
        let reason = match strays.first() {
            Some(stray) => format!("{stray} belongs to another cluster"),
            None => reason(failures),
        };
        if !strays.is_empty() && strays != self.strays {
            let nodes: Vec<_> = strays.iter().map(ToString::to_string).collect();
            tracing::warn!(
                redis.cluster = %self.target, nodes = nodes.join(", "),
                "these nodes belong to another cluster and are left out: correct the addresses"
            );
            self.strays = strays;
        }
        best.ok_or(reason)
    }

    /// All known nodes, starting with another one each time, and then the configured ones.
    fn nodes(&self) -> Vec<Address> {
        let mut nodes: Vec<Address> = Vec::new();
        if let Some(best) = &self.best {
            nodes.extend(best.slots.masters().iter().chain(&best.replicas).cloned());
            let first = self.turn % nodes.len().max(1);
            nodes.rotate_left(first);
        }
        nodes.extend_from_slice(self.target.seeds());
        let mut seen = HashSet::new();
        nodes.retain(|node| seen.insert(node.clone()));
        nodes
    }

    async fn query_node(&self, node: &Address) -> Result<View, String> {
        let target = self.target.node(node.clone());
        let connected = handshake::connect(&target, &self.handshake).await;
        let (mut wire, _) = connected.map_err(|error| error.to_string())?;
        let limit = self.handshake.response_timeout;
        let answer = tokio::time::timeout(limit, view::query(&mut wire, &self.target, node)).await;
        answer.unwrap_or_else(|_| Err(format!("{node} does not answer within {limit:?}")))
    }
}

/// Returns the reason why no node has answered. It is the same in every order of the nodes, so that it is logged once.
fn reason(failures: Vec<(&Address, String)>) -> String {
    let first = failures.into_iter().min_by(|(one, _), (other, _)| one.cmp(other));
    first.map_or_else(|| "the cluster has no known node".to_owned(), |(_, why)| why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_an_outage_does_not_depend_on_the_order_of_the_nodes() {
        let node = |n: u8| Address::Tcp { host: format!("10.0.0.{n}"), port: 7000, tls: false };
        let nodes = [node(1), node(2), node(3)];
        for first in 0..nodes.len() {
            let mut failures: Vec<_> =
                nodes.iter().map(|node| (node, format!("{node} is down"))).collect();
            failures.rotate_left(first);
            assert_eq!(reason(failures), "10.0.0.1:7000 is down");
        }
        assert_eq!(reason(Vec::new()), "the cluster has no known node");
    }
}
