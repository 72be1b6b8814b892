//! The masters of a cluster, each watched as a separate server: discovered, followed when slots move or a replica takes
//! over, and dropped once they serve no slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use service_kit::clock;
use service_kit::redis::{
    Address, Cluster, ClusterState, ClusterTarget, Deployment, Link, LinkState, LinkStatus,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::scope::Scope;
use super::server::{Shared, WatchedServer};
use super::slot_share::{Nodes, SlotShare};
use super::status::Server;
use crate::clock::Time;
use crate::config;
use crate::model::types::{Observation, ScopeId, SlotAssignment};
use crate::redis::{TIMEOUT, resolver_options};
use crate::text::counted;

/// The maximum number of masters that are watched, since each has separate connections and metrics.
const MAX_MASTERS: usize = 64;
/// The interval at which their connections are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Follower {
    shared: Shared,
    deployment: Arc<str>,
    front: ScopeId,
    cluster: Cluster,
    /// The credentials for MONITOR.
    monitor: ClusterTarget,
    nodes: Arc<Nodes>,
    running: BTreeMap<Address, Node>,
    /// The entry for the cluster in the list of servers until its nodes are known.
    unknown: Option<(String, watch::Sender<LinkState>)>,
    /// The last problem of the whole cluster.
    problem: Option<String>,
}

/// A watched master.
struct Node {
    scope: ScopeId,
    link: Link,
    tasks: Vec<JoinHandle<()>>,
    stop: DropGuard,
}

impl Follower {
    /// Starts to query the configured nodes. Returns `None` if the deployment is not a cluster.
    pub(super) fn new(
        shared: &Shared,
        deployment: &config::Deployment,
        front: ScopeId,
    ) -> Option<Self> {
        let (Deployment::Cluster(target), Deployment::Cluster(monitor)) =
            (&deployment.target, &deployment.monitor)
        else {
            return None;
        };
        let cluster = Cluster::start(target.clone(), resolver_options(TIMEOUT), &shared.shutdown);
        let named = deployment.target.place();
        let status = LinkStatus::Down {
            reason: "not connected yet".to_owned(),
            since_micros: clock::boot_micros(),
        };
        let (sender, link) = watch::channel(LinkState { generation: 0, status });
        shared.sources.add_server(Server {
            deployment: Arc::clone(&deployment.name),
            node: named.clone(),
            link,
            reads: None,
            refusal: watch::channel(None).1,
            whole: true,
        });
        Some(Self {
            shared: shared.clone(),
            deployment: Arc::clone(&deployment.name),
            front,
            nodes: Arc::new(Nodes::new(cluster.clone(), &shared.shutdown)),
            cluster,
            monitor: monitor.clone(),
            running: BTreeMap::new(),
            unknown: Some((named, sender)),
            problem: None,
        })
    }

    /// Runs until the end.
    pub(super) async fn run(mut self) {
        let mut state = self.cluster.state();
        let mut check = interval(CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let update = state.borrow_and_update().clone();
                    self.follow(update).await;
                }
                _ = check.tick() => {}
            }
            self.check_nodes();
        }
    }

    /// Applies a new state of the cluster.
    async fn follow(&mut self, update: ClusterState) {
        let masters = update.slots.masters();
        if let Some((_, sender)) = &self.unknown {
            let reason =
                update.trouble.clone().unwrap_or_else(|| "no node serves a slot".to_owned());
            sender.send_modify(|state| {
                if let LinkStatus::Down { reason: known, .. } = &mut state.status {
                    *known = reason;
                }
            });
        }
        if masters.is_empty() {
            return;
        }
        // The entry is removed before the nodes are added, since one of them may have the same name.
        if let Some((named, _)) = self.unknown.take() {
            self.shared.sources.remove(&self.deployment, &named);
        }
        for address in masters {
            if self.running.len() < MAX_MASTERS && !self.running.contains_key(address) {
                self.start(address).await;
            }
        }
        let gone: Vec<Address> =
            self.running.keys().filter(|address| !masters.contains(address)).cloned().collect();
        let links = self.running.iter().filter(|(address, _)| !gone.contains(address));
        let links: HashMap<_, _> =
            links.map(|(address, node)| (address.clone(), node.link.clone())).collect();
        self.nodes.set(Arc::clone(&update.slots), links);
        let slots = update
            .slots
            .ranges()
            .filter_map(|(range, address)| Some((range, self.running.get(address)?.scope)));
        let drained = gone.iter().filter_map(|address| Some(self.running.get(address)?.scope));
        let served =
            SlotAssignment { slots: slots.collect(), drained: drained.collect(), at: Time::now() };
        self.shared.model.observe(self.front, Observation::SlotsAssigned(served)).await;
        for address in gone {
            self.stop(&address).await;
        }
        self.shared.sources.set_slots(&self.deployment, Arc::clone(&update.slots));
        let problem = cluster_problem(masters.len(), self.running.len(), update.slots.unserved());
        if problem != self.problem {
            match &problem {
                Some(problem) => tracing::warn!(
                    deployment = &*self.deployment,
                    problem,
                    "cluster only partly visible"
                ),
                None => {
                    tracing::info!(deployment = &*self.deployment, "cluster fully visible again");
                }
            }
            self.problem.clone_from(&problem);
        }
        self.shared.sources.set_cluster(&self.deployment, problem);
    }

    /// Chooses the node that receives the messages sent to all nodes, and refreshes the slots if a node is down.
    fn check_nodes(&self) {
        let is_up = |node: &Node| matches!(node.link.state().borrow().status, LinkStatus::Up(_));
        let listener =
            self.nodes.listener().filter(|listener| self.running.get(listener).is_some_and(is_up));
        let mut others = self.running.iter();
        let listener = listener.or_else(|| {
            let up = others.find(|(_, node)| is_up(node));
            up.or_else(|| self.running.first_key_value()).map(|(address, _)| address.clone())
        });
        self.nodes.set_listener(listener);
        self.nodes.tidy();
        self.cluster.hurry(!self.running.values().all(is_up));
    }

    async fn start(&mut self, address: &Address) {
        let Some((id, batches)) = self.shared.model.join(self.front).await else { return };
        let scope = Scope { id, deployment: Arc::clone(&self.deployment), db: 0 };
        let stop = CancellationToken::new();
        let server = WatchedServer {
            deployment: Arc::clone(&self.deployment),
            server: address.to_string(),
            endpoint: self.cluster.target().node(address.clone()).into(),
            monitor: self.monitor.node(address.clone()).into(),
            dbs: vec![(scope, batches)],
            share: SlotShare::Node(Arc::clone(&self.nodes), address.clone()),
            stop: stop.clone(),
            // The locks of a node that joins later come from the other nodes, which have been scanned.
            first: !self.shared.sources.is_scanned(&self.deployment),
        };
        let Some((link, tasks)) = self.shared.start(server) else { return };
        let node = Node { scope: id, link, tasks, stop: stop.drop_guard() };
        self.running.insert(address.clone(), node);
    }

    /// Stops the sources of a node, and only then removes its scope, which may be reused.
    async fn stop(&mut self, address: &Address) {
        let Some(Node { scope, tasks, stop, .. }) = self.running.remove(address) else { return };
        drop(stop);
        for task in tasks {
            // A task that panicked has ended as well.
            drop(task.await);
        }
        self.shared.model.leave(scope).await;
        let node = address.to_string();
        self.shared.sources.remove(&self.deployment, &node);
        self.shared.scan_metrics.forget(&self.deployment, &node);
        self.shared.monitor_metrics.forget(&self.deployment, &node);
    }
}

/// Returns the problem of a cluster with more masters than are watched, or with slots that no node serves.
fn cluster_problem(masters: usize, watched: usize, unserved: u32) -> Option<String> {
    let mut problems = Vec::new();
    let left_out = masters.saturating_sub(watched);
    if left_out > 0 {
        problems.push(format!(
            "it has {masters} masters, and the locks of {left_out} are not watched: the limit is {MAX_MASTERS} masters"
        ));
    }
    if unserved > 0 {
        problems.push(format!(
            "{} of the cluster {} served by no node: locks there can be neither acquired nor read, and are shown as of \
             their last reading",
            counted(unserved.into(), "slot"),
            if unserved == 1 { "is" } else { "are" },
        ));
    }
    (!problems.is_empty()).then(|| problems.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_beyond_the_limit_and_unserved_slots_are_reported() {
        assert_eq!(cluster_problem(64, 64, 0), None);
        let more = cluster_problem(66, MAX_MASTERS, 0).unwrap();
        assert_eq!(
            more,
            "it has 66 masters, and the locks of 2 are not watched: the limit is 64 masters"
        );
        assert!(
            cluster_problem(3, 3, 1)
                .unwrap()
                .starts_with("1 slot of the cluster is served by no node")
        );
        assert!(cluster_problem(65, 64, 100).unwrap().contains("; 100 slots"));
    }
}
