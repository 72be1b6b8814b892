//! The sources of one server.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use service_kit::redis::{Endpoint, Link, LinkOptions, Replicas};
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc;
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
use super::registry::Registry;
use super::scan::Scan;
use super::scope::Scope;
use super::shards::Shards;
use super::slot_share::SlotShare;
use super::status::{Server, Sources};
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
    /// Its displayed name.
    pub(super) server: String,
    pub(super) endpoint: Endpoint,
    pub(super) monitor: Endpoint,
    /// Its databases, each with the model's read requests.
    pub(super) dbs: Vec<(Scope, mpsc::Receiver<Vec<ReadRequest>>)>,
    /// Its share of the deployment's locks.
    pub(super) share: SlotShare,
    pub(super) stop: CancellationToken,
    /// The snapshot is incomplete until its keys have been scanned.
    pub(super) first: bool,
}

impl Shared {
    /// Starts the sources of one server. Returns a connection that reads its locks, and the tasks, which end with the
    /// server's token and at shutdown.
    pub(super) fn start(&self, server: WatchedServer) -> Option<(Link, Vec<JoinHandle<()>>)> {
        let WatchedServer { deployment, server, endpoint, monitor, dbs, share, stop, first } =
            server;
        let Self { model, hub, sources, shutdown, .. } = self;
        let mut tasks = Vec::new();
        let mut spawn = |name: String, task: BoxFuture<'static, ()>| {
            tasks.push(spawn(shutdown, &stop, name, task));
        };
        let several = dbs.len() > 1;
        let scopes: Vec<Scope> = dbs.iter().map(|(scope, _)| scope.clone()).collect();
        let replicas = (self.read_from == ReadFrom::Replica)
            .then(|| Replicas::start(&endpoint, &link_options(), shutdown));
        // Clients connect to the server itself, even where its locks are read from a replica.
        let server_link = replicas.as_ref().map(|_| link(endpoint.clone(), shutdown));
        let (endpoint, monitor) = match &replicas {
            Some(replicas) => (replicas.endpoint(&endpoint), replicas.endpoint(&monitor)),
            None => (endpoint, monitor),
        };
        let mut reading = None;
        let shards = Shards::default();
        let mut agents = Vec::new();
        for (scope, batches) in dbs {
            let db = scope.db;
            let node = if several { format!("{server}/{db}") } else { server.clone() };
            let endpoint = endpoint.with_db(db);
            let facts = ServerFacts::default();
            let poll = Poll {
                scope: scope.clone(),
                link: link(endpoint.clone(), shutdown),
                batches,
                model: model.clone(),
                status: sources.add_poll(&deployment, &node, scope.id),
                facts: facts.clone(),
                share: share.clone(),
            };
            agents.push(Agents::new(
                scope.clone(),
                Registry {
                    link: poll.link.clone(),
                    share: share.clone(),
                    keys: self.agent_keys.clone(),
                },
                Arc::clone(hub),
                model.clone(),
                self.known_agents.clone(),
            ));
            if reading.is_none() {
                let subscribers = Subscribers {
                    scopes: scopes.clone(),
                    link: server_link.as_ref().unwrap_or(&poll.link).clone(),
                    model: model.clone(),
                    hub: Arc::clone(hub),
                    shards: shards.clone(),
                    share: share.clone(),
                    status: sources.add(&deployment, &server, Source::Subscribers),
                };
                spawn(format!("subscribers of {server}"), Box::pin(subscribers.run()));
                reading = Some(poll.link.clone());
                sources.add_server(Server {
                    deployment: Arc::clone(&deployment),
                    node: server.clone(),
                    link: poll.link.state(),
                    reads: replicas.as_ref().map(Replicas::choice),
                    whole: matches!(share, SlotShare::Node(..)),
                });
            }
            let scan = Scan {
                scope,
                link: link(endpoint, shutdown),
                settings: self.scan.clone(),
                ignore: self.ignore.clone(),
                model: model.clone(),
                hub: Arc::clone(hub),
                status: sources.add(&deployment, &node, Source::Scan),
                metrics: self.scan_metrics.of(&node),
                facts,
                first,
                agents: self.known_agents.clone(),
            };
            spawn(format!("poll of {node}"), Box::pin(poll.run()));
            spawn(format!("scan of {node}"), Box::pin(scan.run()));
        }
        let reading = reading?;
        let options = LinkOptions { no_touch: false, ..link_options() };
        let (reader, switch) = MonitorReader::new(
            monitor.clone(),
            Link::start(monitor, options, shutdown),
            self.monitor,
            scopes.clone(),
            model.clone(),
            sources.add(&deployment, &server, Source::Monitor),
            self.monitor_metrics.of(&server),
            sources.traces().clone(),
        );
        sources.add_switch(&deployment, &server, switch);
        spawn(format!("MONITOR of {server}"), Box::pin(reader.run()));
        let channels = Channels::start(
            endpoint.clone(),
            scopes.clone(),
            (reading.clone(), shards.clone(), share.clone()),
            (Arc::clone(hub), model.clone()),
            sources.add(&deployment, &server, Source::Channels),
            shutdown,
        );
        spawn(format!("channels of {server}"), Box::pin(channels.run()));
        let keyspace = Keyspace::start(
            endpoint,
            scopes.clone(),
            (reading.clone(), share.clone()),
            Arc::clone(hub),
            model.clone(),
            sources.add(&deployment, &server, Source::Keyspace),
            shutdown,
        );
        spawn(format!("keyspace of {server}"), Box::pin(keyspace.run()));
        let identity = Identity {
            scopes,
            link: server_link.unwrap_or_else(|| reading.clone()),
            agents,
            model: model.clone(),
            shards,
            share,
            status: sources.add(&deployment, &server, Source::Identity),
        };
        spawn(format!("identity of {server}"), Box::pin(identity.run()));
        Some((reading, tasks))
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
