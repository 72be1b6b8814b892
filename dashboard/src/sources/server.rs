//! The sources of one server.

use std::sync::Arc;

use service_kit::redis::{Endpoint, Link, LinkOptions, Replicas};
use service_kit::shutdown::Shutdown;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::agent_waiters::KnownAgents;
use super::agents::Agents;
use super::channels::Channels;
use super::connection::link;
use super::identity::Identity;
use super::keyspace::Keyspace;
use super::monitor::MonitorReader;
use super::poll::Poll;
use super::read::ServerFacts;
use super::refusal::RefusalReader;
use super::registry::Registry;
use super::scan::Scan;
use super::scope::Scope;
use super::shards::Shards;
use super::slot_share::SlotShare;
use super::status::{Server, SourceStatus, Sources};
use super::subscribers::Subscribers;
use crate::access::agent_keys::AgentKeys;
use crate::config::{MonitorSettings, ReadFrom, ScanSettings};
use crate::metrics::{MonitorMetrics, ScanMetrics};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{ReadRequest, Source};
use crate::redis::link_options;

/// Settings and handles that the sources of all servers share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) read_from: ReadFrom,
    pub(super) scan: ScanSettings,
    pub(super) ignore: Vec<Vec<u8>>,
    pub(super) monitor: MonitorSettings,
    pub(super) agent_keys: Option<AgentKeys>,
    pub(super) known_agents: KnownAgents,
    pub(super) model: ModelHandle,
    pub(super) hub: Arc<Hub>,
    pub(super) scan_metrics: ScanMetrics,
    pub(super) monitor_metrics: MonitorMetrics,
    pub(super) sources: Arc<Sources>,
    pub(super) shutdown: Shutdown,
}

/// A server to watch.
pub(super) struct WatchedServer {
    pub(super) deployment: Arc<str>,
    /// The displayed name of the server.
    pub(super) server: String,
    pub(super) endpoint: Endpoint,
    pub(super) monitor: Endpoint,
    /// The databases, each with the model's read requests.
    pub(super) dbs: Vec<(Scope, mpsc::Receiver<Vec<ReadRequest>>)>,
    /// The server's share of the deployment's locks.
    pub(super) share: SlotShare,
    pub(super) stop: CancellationToken,
    /// True if the snapshot is incomplete until the server's keys have been scanned.
    pub(super) first: bool,
}

impl Shared {
    /// Starts the sources of one server. Returns a connection that reads its locks, and the tasks, which end with the
    /// server's token and at shutdown.
    pub(super) fn start(&self, server: WatchedServer) -> Option<(Link, Vec<JoinHandle<()>>)> {
        let WatchedServer { deployment, server, endpoint, monitor, dbs, share, stop, first } =
            server;
        let replicas = (self.read_from == ReadFrom::Replica)
            .then(|| Replicas::start(&endpoint, &link_options(), &self.shutdown));
        // Clients connect to the server itself, even if its locks are read from a replica.
        let server_link = replicas.as_ref().map(|_| link(endpoint.clone(), &self.shutdown));
        let (endpoint, monitor) = match &replicas {
            Some(replicas) => (replicas.endpoint(&endpoint), replicas.endpoint(&monitor)),
            None => (endpoint, monitor),
        };
        let scopes = dbs.iter().map(|(scope, _)| scope.clone()).collect();
        let (shards, tasks) = (Shards::default(), Vec::new());
        let mut starting =
            Starting { shared: self, deployment, server, scopes, share, shards, stop, tasks };
        let mut reading = None;
        let mut agents = Vec::new();
        for (scope, batches) in dbs {
            let endpoint = endpoint.with_db(scope.db);
            let (link, of_db) = starting.database(scope, batches, endpoint, first);
            reading.get_or_insert(link);
            agents.push(of_db);
        }
        let reading = reading?;
        let server_link = server_link.unwrap_or_else(|| reading.clone());
        let (found, refusal) = watch::channel(None);
        let refusals = RefusalReader { link: server_link.clone(), found };
        starting.spawn(format!("refusals of {}", starting.server), refusals.run());
        self.sources.add_server(Server {
            deployment: Arc::clone(&starting.deployment),
            node: starting.server.clone(),
            link: reading.state(),
            reads: replicas.as_ref().map(Replicas::choice),
            refusal,
            whole: matches!(starting.share, SlotShare::Node(..)),
        });
        starting.subscribers(server_link.clone());
        starting.monitor(monitor);
        starting.channels(endpoint.clone(), reading.clone());
        starting.keyspace(endpoint, reading.clone());
        starting.identity(server_link, agents);
        Some((reading, starting.tasks))
    }
}

/// A server whose sources are being started one after the other.
struct Starting<'s> {
    shared: &'s Shared,
    deployment: Arc<str>,
    server: String,
    scopes: Vec<Scope>,
    share: SlotShare,
    shards: Shards,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Starting<'_> {
    /// Starts the poll and the scan of a database. Returns the poll's connection, and the reader that looks up the
    /// database's agents.
    fn database(
        &mut self,
        scope: Scope,
        batches: mpsc::Receiver<Vec<ReadRequest>>,
        endpoint: Endpoint,
        first: bool,
    ) -> (Link, Agents) {
        let Shared { model, hub, sources, shutdown, known_agents, .. } = self.shared;
        let several = self.scopes.len() > 1;
        let node =
            if several { format!("{}/{}", self.server, scope.db) } else { self.server.clone() };
        let facts = ServerFacts::default();
        let reading = link(endpoint.clone(), shutdown);
        let poll = Poll {
            scope: scope.clone(),
            link: reading.clone(),
            batches,
            model: model.clone(),
            status: sources.add_poll(&self.deployment, &node, scope.id),
            facts: facts.clone(),
            share: self.share.clone(),
        };
        let registry = Registry {
            link: reading.clone(),
            share: self.share.clone(),
            keys: self.shared.agent_keys.clone(),
        };
        let agents = Agents::new(
            scope.clone(),
            registry,
            Arc::clone(hub),
            model.clone(),
            known_agents.clone(),
        );
        let scan = Scan {
            scope,
            link: link(endpoint, shutdown),
            settings: self.shared.scan.clone(),
            ignore: self.shared.ignore.clone(),
            model: model.clone(),
            hub: Arc::clone(hub),
            status: sources.add(&self.deployment, &node, Source::Scan),
            metrics: self.shared.scan_metrics.of(&self.deployment, &node),
            facts,
            first,
            agents: known_agents.clone(),
        };
        self.spawn(format!("poll of {node}"), poll.run());
        self.spawn(format!("scan of {node}"), scan.run());
        (reading, agents)
    }

    fn subscribers(&mut self, link: Link) {
        let subscribers = Subscribers {
            scopes: self.scopes.clone(),
            link,
            model: self.shared.model.clone(),
            hub: Arc::clone(&self.shared.hub),
            shards: self.shards.clone(),
            share: self.share.clone(),
            status: self.status(Source::Subscribers),
        };
        self.spawn(format!("subscribers of {}", self.server), subscribers.run());
    }

    fn monitor(&mut self, endpoint: Endpoint) {
        let Shared { model, sources, shutdown, .. } = self.shared;
        let options = LinkOptions { no_touch: false, ..link_options() };
        let (reader, switch) = MonitorReader::new(
            endpoint.clone(),
            Link::start(endpoint, options, shutdown),
            self.shared.monitor,
            self.scopes.clone(),
            model.clone(),
            self.status(Source::Monitor),
            self.shared.monitor_metrics.of(&self.deployment, &self.server),
            sources.traces().clone(),
        );
        sources.add_switch(&self.deployment, &self.server, switch);
        self.spawn(format!("MONITOR of {}", self.server), reader.run());
    }

    fn channels(&mut self, endpoint: Endpoint, reading: Link) {
        let Shared { model, hub, shutdown, .. } = self.shared;
        let channels = Channels::start(
            endpoint,
            self.scopes.clone(),
            (reading, self.shards.clone(), self.share.clone()),
            (Arc::clone(hub), model.clone()),
            self.status(Source::Channels),
            shutdown,
        );
        self.spawn(format!("channels of {}", self.server), channels.run());
    }

    fn keyspace(&mut self, endpoint: Endpoint, reading: Link) {
        let Shared { model, hub, shutdown, .. } = self.shared;
        let keyspace = Keyspace::start(
            endpoint,
            self.scopes.clone(),
            (reading, self.share.clone()),
            Arc::clone(hub),
            model.clone(),
            self.status(Source::Keyspace),
            shutdown,
        );
        self.spawn(format!("keyspace of {}", self.server), keyspace.run());
    }

    fn identity(&mut self, link: Link, agents: Vec<Agents>) {
        let identity = Identity {
            scopes: self.scopes.clone(),
            link,
            agents,
            model: self.shared.model.clone(),
            shards: self.shards.clone(),
            share: self.share.clone(),
            status: self.status(Source::Identity),
        };
        self.spawn(format!("identity of {}", self.server), identity.run());
    }

    fn status(&self, source: Source) -> Arc<SourceStatus> {
        self.shared.sources.add(&self.deployment, &self.server, source)
    }

    fn spawn(&mut self, name: String, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(spawn(&self.shared.shutdown, &self.stop, name, task));
    }
}

/// Spawns a task that ends with `stop` and at shutdown.
pub(super) fn spawn(
    shutdown: &Shutdown,
    stop: &CancellationToken,
    name: String,
    task: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let (ended, stop) = (shutdown.token(), stop.clone());
    shutdown.spawn(name, async move {
        tokio::select! {
            () = ended.cancelled() => {}
            () = stop.cancelled() => {}
            () = task => {}
        }
    })
}
