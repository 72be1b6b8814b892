//! Where knowledge of locks comes from: passes over all keys, release messages, notifications of changed keys, known locks
//! read again, counts of those who listen for a release, MONITOR.
//!
//! Each database has a connection of its own for the passes and one for reading known locks, each deployment one for
//! messages, one for notifications, one for MONITOR and one that judges whether that may be on, all of them called `lockscope-dashboard`.
//! In a cluster each master has what a deployment has otherwise ([`cluster`]).
//!
//! Their account needs to read keys (`%R~*`, or the patterns of the locks it may see), to subscribe to
//! `redisson_lock__channel:*` and `redisson_rwlock:*`, and these commands: SCAN, DBSIZE, HLEN, HRANDFIELD, HSTRLEN, HMGET,
//! PTTL, TYPE, MULTI, EXEC, PING, PSUBSCRIBE, INFO, and SELECT for another database than 0; CONFIG GET, SUBSCRIBE and
//! UNSUBSCRIBE for notifications, SSUBSCRIBE, SUNSUBSCRIBE and ASKING in a cluster; PUBSUB NUMSUB to count
//! waiters, CLIENT LIST to tell who is gone (what agents tell of their holders is read by HSTRLEN and HMGET); LLEN, LRANGE, MEMORY USAGE, ZCARD, ZCOUNT, ZMSCORE, GETRANGE and TIME for what stands beside a lock. Without
//! one of them the source that needs it is denied or sees less, and says so.

mod agents;
pub mod channels;
mod cluster;
mod fine_timer;
pub mod identity;
pub mod keyspace;
pub mod pace;
pub mod poll;
pub mod read;
pub mod scan;
pub mod shards;
mod share;
pub mod status;
pub mod subscribers;
pub mod tap;
pub mod view;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use service_kit::redis::{
    CallError, Endpoint, Link, LinkOptions, LinkStatus, Replicas, ServerInfo, resolve,
};
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, MonitorSettings, ReadFrom, ScanSettings};
use crate::metrics::{ScansMetrics, TapsMetrics};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::view::LockView;
use crate::model::{ReadRequest, ScopeId, Source};
use crate::redis::{link_options, sentinel_options};
use crate::sources::view::SourceState;

use agents::Agents;
use channels::Channels;
use cluster::Follower;
use identity::Identity;
use keyspace::Keyspace;
use poll::Poll;
use read::{ReadError, ServerFacts};
use scan::Scan;
use shards::Shards;
use share::Share;
use status::{Server, SourceStatus, Sources};
use subscribers::Subscribers;
use tap::Tap;

/// How long to wait before something is tried again that was refused or failed.
const AGAIN: Duration = Duration::from_secs(5);

/// One database of one deployment.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Its index in the model.
    pub id: ScopeId,
    pub deployment: Arc<str>,
    pub db: u32,
}

impl Scope {
    /// Whether a lock stands in this database.
    fn has(&self, lock: &LockView) -> bool {
        self.deployment == lock.id.deployment && self.db == lock.id.db
    }
}

/// What the sources of all servers have in common.
#[derive(Clone)]
struct Common {
    read_from: ReadFrom,
    scan: ScanSettings,
    ignore: Vec<Vec<u8>>,
    monitor: MonitorSettings,
    model: ModelHandle,
    hub: Arc<Hub>,
    scans: ScansMetrics,
    taps: TapsMetrics,
    sources: Arc<Sources>,
    shutdown: Shutdown,
}

/// A server to be looked at.
struct Place {
    deployment: Arc<str>,
    /// What it is called.
    server: String,
    endpoint: Endpoint,
    monitor: Endpoint,
    /// Its databases, with what the model wants to be read there.
    dbs: Vec<(Scope, mpsc::Receiver<Vec<ReadRequest>>)>,
    /// Which of the deployment's locks it has.
    share: Share,
    stop: CancellationToken,
    /// Whether its keys have still to be passed over before the picture is whole.
    first: bool,
}

/// Starts every source of every deployment. `batches` are the model's reads, a queue for each scope of the settings.
#[must_use]
pub fn start(
    config: &Config,
    model: &ModelHandle,
    hub: &Arc<Hub>,
    batches: Vec<mpsc::Receiver<Vec<ReadRequest>>>,
    metrics: (&ScansMetrics, &TapsMetrics),
    shutdown: &Shutdown,
) -> Arc<Sources> {
    let sources = Arc::new(Sources::default());
    let common = Common {
        read_from: config.read_from,
        scan: config.scan.clone(),
        ignore: config.model.ignore.clone(),
        monitor: config.monitor,
        model: model.clone(),
        hub: Arc::clone(hub),
        scans: metrics.0.clone(),
        taps: metrics.1.clone(),
        sources: Arc::clone(&sources),
        shutdown: shutdown.clone(),
    };
    let mut batches = batches.into_iter();
    let mut index = 0..;
    for deployment in &config.deployments {
        let mut dbs = Vec::new();
        for db in &deployment.dbs {
            let (Some(id), Some(batches)) = (index.next().map(ScopeId), batches.next()) else {
                continue;
            };
            dbs.push((Scope { id, deployment: Arc::clone(&deployment.name), db: *db }, batches));
        }
        match resolve(&deployment.target, sentinel_options(), shutdown) {
            Ok(endpoint) => {
                let place = Place {
                    deployment: Arc::clone(&deployment.name),
                    server: deployment.target.place(),
                    monitor: endpoint.with_credentials(&deployment.monitor).with_db(0),
                    endpoint,
                    dbs,
                    share: Share::Whole,
                    stop: shutdown.token(),
                    first: true,
                };
                common.start(place);
            }
            Err(_cluster) => {
                let front = dbs.first().map(|(scope, _)| scope.id);
                let follower = front.and_then(|front| Follower::new(&common, deployment, front));
                if let Some(follower) = follower {
                    let name = format!("nodes of {}", deployment.name);
                    spawn(shutdown, &shutdown.token(), name, follower.run());
                }
            }
        }
    }
    sources
}

impl Common {
    /// Starts the sources of one server. Gives a connection by which its locks are read, and the tasks, which end with
    /// the place's token and with the stage.
    fn start(&self, place: Place) -> Option<(Link, Vec<JoinHandle<()>>)> {
        let Place { deployment, server, endpoint, monitor, dbs, share, stop, first } = place;
        let Self { model, hub, sources, shutdown, .. } = self;
        let mut tasks = Vec::new();
        let mut spawn = |name: String, task: BoxFuture<'static, ()>| {
            tasks.push(spawn(shutdown, &stop, name, task));
        };
        let several = dbs.len() > 1;
        let scopes: Vec<Scope> = dbs.iter().map(|(scope, _)| scope.clone()).collect();
        let replicas = (self.read_from == ReadFrom::Replica)
            .then(|| Replicas::start(&endpoint, &link_options(), shutdown));
        // Clients are connected to the server, whatever its locks are read from.
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
                (poll.link.clone(), share.clone()),
                Arc::clone(hub),
                model.clone(),
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
                    whole: matches!(share, Share::Node(..)),
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
                metrics: self.scans.of(&node),
                facts,
                first,
            };
            spawn(format!("poll of {node}"), Box::pin(poll.run()));
            spawn(format!("scan of {node}"), Box::pin(scan.run()));
        }
        let reading = reading?;
        let options = LinkOptions { no_touch: false, ..link_options() };
        let (tap, switch) = Tap::new(
            monitor.clone(),
            Link::start(monitor, options, shutdown),
            self.monitor,
            scopes.clone(),
            model.clone(),
            sources.add(&deployment, &server, Source::Monitor),
            self.taps.of(&server),
        );
        sources.add_switch(&deployment, &server, switch);
        spawn(format!("MONITOR of {server}"), Box::pin(tap.run()));
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

fn spawn(
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

fn link(endpoint: Endpoint, shutdown: &Shutdown) -> Link {
    Link::start(endpoint, link_options(), shutdown)
}

/// Says why a source could not do its work, and waits where trying again at once is pointless.
async fn failed(status: &SourceStatus, link: &Link, error: &ReadError) {
    let state = match error {
        ReadError::Call(CallError::Refused(refused)) if !refused.is_transient() => {
            SourceState::Denied
        }
        ReadError::Odd(_) => SourceState::Denied,
        ReadError::Call(_) => SourceState::Down,
    };
    status.set(state, error.to_string());
    if let ReadError::Call(CallError::Unsent { .. } | CallError::Lost { .. }) = error {
        // Its supervisor is at it; where the server is back already there is nothing to wait for.
        link.up().await;
    } else {
        tokio::time::sleep(AGAIN).await;
    }
}

/// Waits until the server can be asked, and tells meanwhile why it cannot: it may be lost in the very moment in which
/// a rest ends, when nobody else would tell. None once it never will be asked again.
async fn up(link: &Link, status: &SourceStatus) -> Option<Arc<ServerInfo>> {
    let tell = async {
        let mut state = link.state();
        loop {
            if let LinkStatus::Down { reason, .. } = &state.borrow_and_update().status {
                status.set(SourceState::Down, reason.clone());
            }
            if state.changed().await.is_err() {
                return std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        biased;
        info = link.up() => info,
        () = tell => None,
    }
}

/// Rests until then. A server that is lost meanwhile is told at once, and ends the rest.
async fn rest(link: &Link, status: &SourceStatus, until: Instant) {
    let mut state = link.state();
    let lost = state.wait_for(|link| matches!(link.status, LinkStatus::Down { .. }));
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        Ok(link) = lost => {
            if let LinkStatus::Down { reason, .. } = &link.status {
                status.set(SourceState::Down, reason.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use service_kit::redis::Target;

    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_server_that_was_lost_says_so() {
        let stage = Shutdown::new();
        // Nobody listens there.
        let nowhere = tempfile::tempdir().unwrap();
        let target = format!("unix://{}", nowhere.path().join("redis.sock").display());
        let target: Target = target.parse().unwrap();
        let link = link(target.into(), &stage);
        let status = Sources::default().add(&"default".into(), "here", Source::Identity);
        // It was lost when a rest had just ended.
        status.set(SourceState::On, "");
        let waiting = up(&link, &status);
        let told = tokio::time::timeout(Duration::from_secs(60), async {
            while status.state() != SourceState::Down {
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            _ = waiting => panic!("there is nobody"),
            told = told => told.expect("it was never told"),
        }
    }
}
