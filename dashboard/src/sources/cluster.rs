//! The masters of a cluster, each looked at as a server of its own: found, followed when slots move or a replica takes
//! over, and left when they serve nothing any more.

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
use crate::clock::{SteadyMillis, now};
use crate::config;
use crate::model::types::{Observation, ScopeId, SlotAssignment};
use crate::redis::{TIMEOUT, cluster_options};

/// The most masters that are looked at: each has connections and metrics of its own.
const MOST: usize = 64;
/// How often it is looked which of them answer.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// What follows one cluster.
pub(super) struct Follower {
    shared: Shared,
    deployment: Arc<str>,
    front: ScopeId,
    cluster: Cluster,
    /// How the nodes are reached for MONITOR.
    monitor: ClusterTarget,
    nodes: Arc<Nodes>,
    running: BTreeMap<Address, Node>,
    /// Stands for the cluster until it has told of its nodes.
    unknown: Option<(String, watch::Sender<LinkState>)>,
    /// What was said of it last.
    amiss: Option<String>,
}

/// A master that is looked at.
struct Node {
    scope: ScopeId,
    link: Link,
    tasks: Vec<JoinHandle<()>>,
    stop: DropGuard,
}

impl Follower {
    /// Begins to ask the nodes that are named; none where the deployment is no cluster.
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
        let cluster = Cluster::start(target.clone(), cluster_options(TIMEOUT), &shared.shutdown);
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
            amiss: None,
        })
    }

    /// Follows it, until the end.
    pub(super) async fn run(mut self) {
        let mut state = self.cluster.state();
        let mut look = interval(LOOK_EACH);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let told = state.borrow_and_update().clone();
                    self.follow(told).await;
                }
                _ = look.tick() => {}
            }
            self.look();
        }
    }

    /// The nodes have been asked.
    async fn follow(&mut self, told: ClusterState) {
        let masters = told.slots.masters();
        if let Some((_, sender)) = &self.unknown {
            let reason = told.trouble.clone().unwrap_or_else(|| "no node serves a slot".to_owned());
            sender.send_modify(|state| {
                if let LinkStatus::Down { reason: known, .. } = &mut state.status {
                    *known = reason;
                }
            });
        }
        if masters.is_empty() {
            return;
        }
        // Before they come: it may bear the name of one of them.
        if let Some((named, _)) = self.unknown.take() {
            self.shared.sources.remove(&self.deployment, &named);
        }
        for address in masters {
            if self.running.len() < MOST && !self.running.contains_key(address) {
                self.start(address).await;
            }
        }
        let gone: Vec<Address> =
            self.running.keys().filter(|address| !masters.contains(address)).cloned().collect();
        let links = self.running.iter().filter(|(address, _)| !gone.contains(address));
        let links: HashMap<_, _> =
            links.map(|(address, node)| (address.clone(), node.link.clone())).collect();
        self.nodes.set(Arc::clone(&told.slots), links);
        let by = told
            .slots
            .ranges()
            .filter_map(|(range, address)| Some((range, self.running.get(address)?.scope)));
        let by = by.collect();
        let over = gone.iter().filter_map(|address| Some(self.running.get(address)?.scope));
        let served = SlotAssignment {
            slots: by,
            drained: over.collect(),
            at: now(),
            steady: SteadyMillis::now(),
        };
        self.shared.model.see(self.front, Observation::SlotsAssigned(served)).await;
        for address in gone {
            self.stop(&address).await;
        }
        self.shared.sources.set_slots(&self.deployment, Arc::clone(&told.slots));
        let amiss = amiss(masters.len(), self.running.len(), told.slots.unserved());
        if amiss != self.amiss {
            match &amiss {
                Some(amiss) => tracing::warn!(
                    deployment = &*self.deployment,
                    amiss,
                    "the cluster is not seen as a whole"
                ),
                None => tracing::info!(
                    deployment = &*self.deployment,
                    "the cluster is seen as a whole again"
                ),
            }
            self.amiss.clone_from(&amiss);
        }
        self.shared.sources.tell_cluster(&self.deployment, amiss);
    }

    /// Where messages are heard that go to all nodes, and whether the cluster is about to change.
    fn look(&self) {
        let is_up = |node: &Node| matches!(node.link.state().borrow().status, LinkStatus::Up(_));
        let ear = self.nodes.ear().filter(|ear| self.running.get(ear).is_some_and(is_up));
        let mut others = self.running.iter();
        let ear = ear.or_else(|| {
            let up = others.find(|(_, node)| is_up(node));
            up.or_else(|| self.running.first_key_value()).map(|(address, _)| address.clone())
        });
        self.nodes.set_ear(ear);
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
            // What a node has that joins later comes from the others, which have been passed over.
            first: !self.shared.sources.is_passed_over(&self.deployment),
        };
        let Some((link, tasks)) = self.shared.start(server) else { return };
        let node = Node { scope: id, link, tasks, stop: stop.drop_guard() };
        self.running.insert(address.clone(), node);
    }

    /// Ends all that looks at a node, and only then says so: its scope may become another's.
    async fn stop(&mut self, address: &Address) {
        let Some(Node { scope, tasks, stop, .. }) = self.running.remove(address) else { return };
        drop(stop);
        for task in tasks {
            // One that panicked has ended too.
            drop(task.await);
        }
        self.shared.model.leave(scope).await;
        let node = address.to_string();
        self.shared.sources.remove(&self.deployment, &node);
        self.shared.scans.forget(&node);
        self.shared.taps.forget(&node);
    }
}

/// What is to be said of a cluster of so many masters, of which so many are looked at, and slots that nobody serves.
fn amiss(masters: usize, looked_at: usize, unserved: u32) -> Option<String> {
    let mut amiss = Vec::new();
    let left_out = masters.saturating_sub(looked_at);
    if left_out > 0 {
        amiss.push(format!(
            "it has {masters} masters, and the locks of {left_out} are not looked at: {MOST} are the most"
        ));
    }
    if unserved > 0 {
        amiss.push(format!(
            "{unserved} slots of the cluster are served by nobody, and their locks shown as they were last seen"
        ));
    }
    (!amiss.is_empty()).then(|| amiss.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_beyond_the_most_and_slots_of_nobody_are_told() {
        assert_eq!(amiss(64, 64, 0), None);
        let more = amiss(66, MOST, 0).unwrap();
        assert_eq!(
            more,
            "it has 66 masters, and the locks of 2 are not looked at: 64 are the most"
        );
        assert!(amiss(3, 3, 1).unwrap().starts_with("1 slots of the cluster are served by nobody"));
        assert!(amiss(65, 64, 100).unwrap().contains("; 100 slots"));
    }
}
