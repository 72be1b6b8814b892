//! Where knowledge of locks comes from: passes over all keys, release messages, notifications of changed keys, known locks
//! read again, counts of those who listen for a release, MONITOR.
//!
//! Each database has a connection of its own for the passes and one for reading known locks, each deployment one for
//! messages, one for notifications, one for MONITOR and one that judges whether that may be on, all of them called `lockscope-dashboard`.
//!
//! Their account needs to read keys (`%R~*`, or the patterns of the locks it may see), to subscribe to
//! `redisson_lock__channel:*` and `redisson_rwlock:*`, and these commands: SCAN, DBSIZE, HLEN, HRANDFIELD, HSTRLEN, HMGET,
//! PTTL, TYPE, MULTI, EXEC, PING, PSUBSCRIBE, INFO, and SELECT for another database than 0; CONFIG GET, SUBSCRIBE and
//! UNSUBSCRIBE for notifications, SSUBSCRIBE and SUNSUBSCRIBE in a cluster; PUBSUB NUMSUB to count
//! waiters, CLIENT LIST to tell who is gone (what agents tell of their holders is read by HSTRLEN and HMGET); LLEN, LRANGE, MEMORY USAGE, ZCARD, ZCOUNT, ZMSCORE, GETRANGE and TIME for what stands beside a lock. Without
//! one of them the source that needs it is denied or sees less, and says so.

mod agents;
pub mod channels;
mod fine_timer;
pub mod identity;
pub mod keyspace;
pub mod pace;
pub mod poll;
pub mod read;
pub mod scan;
pub mod shards;
pub mod status;
pub mod subscribers;
pub mod tap;

use std::sync::Arc;
use std::time::Duration;

use service_kit::redis_link::{CallError, Link, LinkOptions, LinkStatus, Target};
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::{Config, node_of};
use crate::metrics::{ScansMetrics, TapsMetrics};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::view::SourceState;
use crate::model::{ReadRequest, ScopeId, Source};

use agents::Agents;
use channels::Channels;
use identity::Identity;
use keyspace::Keyspace;
use poll::Poll;
use read::{ReadError, ServerFacts};
use scan::Scan;
use shards::Shards;
use status::{Server, SourceStatus, Sources};
use subscribers::Subscribers;
use tap::Tap;

/// What our connections are called, so that other observers know them.
pub const CLIENT_NAME: &str = "lockscope-dashboard";
/// How long a server may take to answer before it counts as gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before something is tried again that was refused or failed.
const AGAIN: Duration = Duration::from_secs(5);

/// One database of one deployment.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Its index in the model.
    pub id: ScopeId,
    /// The deployment.
    pub deployment: Arc<str>,
    /// The database.
    pub db: u32,
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
) -> Sources {
    let mut sources = Sources::default();
    let mut batches = batches.into_iter();
    let mut index = 0..;
    for deployment in &config.deployments {
        let server = node_of(&deployment.target);
        let mut scopes = Vec::new();
        let mut first = None;
        let shards = Shards::default();
        let mut agents = Vec::new();
        for db in &deployment.dbs {
            let (Some(id), Some(batches)) = (index.next().map(ScopeId), batches.next()) else {
                continue;
            };
            let scope = Scope { id, deployment: Arc::clone(&deployment.name), db: *db };
            let node =
                if deployment.dbs.len() > 1 { format!("{server}/{db}") } else { server.clone() };
            let target = deployment.target.with_db(*db);
            let facts = ServerFacts::default();
            let poll = Poll {
                scope: scope.clone(),
                link: link(target.clone(), shutdown),
                batches,
                model: model.clone(),
                status: sources.add(&deployment.name, &node, Source::Poll),
                facts: facts.clone(),
            };
            agents.push(Agents::new(
                scope.clone(),
                poll.link.clone(),
                Arc::clone(hub),
                model.clone(),
            ));
            if scopes.is_empty() {
                let subscribers = Subscribers {
                    deployment: Arc::clone(&deployment.name),
                    link: poll.link.clone(),
                    model: model.clone(),
                    hub: Arc::clone(hub),
                    shards: shards.clone(),
                    status: sources.add(&deployment.name, &server, Source::Subscribers),
                };
                spawn(shutdown, format!("subscribers of {server}"), subscribers.run());
                first = Some(poll.link.clone());
                sources.add_server(Server {
                    deployment: Arc::clone(&deployment.name),
                    node: server.clone(),
                    link: poll.link.state(),
                });
            }
            let scan = Scan {
                scope: scope.clone(),
                link: link(target, shutdown),
                settings: config.scan.clone(),
                ignore: config.model.ignore.clone(),
                model: model.clone(),
                hub: Arc::clone(hub),
                status: sources.add(&deployment.name, &node, Source::Scan),
                metrics: metrics.0.of(&node),
                facts,
            };
            spawn(shutdown, format!("poll of {node}"), poll.run());
            spawn(shutdown, format!("scan of {node}"), scan.run());
            scopes.push(scope);
        }
        let (tap, switch) = Tap::new(
            deployment.monitor.clone(),
            Link::start(
                deployment.monitor.clone(),
                LinkOptions { no_touch: false, ..link_options() },
                shutdown,
            ),
            config.monitor,
            scopes.clone(),
            model.clone(),
            sources.add(&deployment.name, &server, Source::Monitor),
            metrics.1.of(&server),
        );
        sources.add_switch(&deployment.name, switch);
        spawn(shutdown, format!("MONITOR of {server}"), tap.run());
        if let Some(link) = first {
            let channels = Channels::start(
                deployment.target.clone(),
                scopes.clone(),
                (link.clone(), shards.clone()),
                (Arc::clone(hub), model.clone()),
                sources.add(&deployment.name, &server, Source::Channels),
                shutdown,
            );
            spawn(shutdown, format!("channels of {server}"), channels.run());
            let keyspace = Keyspace::start(
                deployment.target.clone(),
                scopes.clone(),
                link.clone(),
                Arc::clone(hub),
                model.clone(),
                sources.add(&deployment.name, &server, Source::Keyspace),
                shutdown,
            );
            spawn(shutdown, format!("keyspace of {server}"), keyspace.run());
            let identity = Identity {
                scopes: scopes.clone(),
                link,
                agents,
                model: model.clone(),
                shards,
                status: sources.add(&deployment.name, &server, Source::Identity),
            };
            spawn(shutdown, format!("identity of {server}"), identity.run());
        }
    }
    sources
}

fn spawn(shutdown: &Shutdown, name: String, task: impl Future<Output = ()> + Send + 'static) {
    let stop = shutdown.token();
    shutdown.spawn(name, async move {
        stop.run_until_cancelled(task).await;
    });
}

fn link(target: Target, shutdown: &Shutdown) -> Link {
    Link::start(target, link_options(), shutdown)
}

fn link_options() -> LinkOptions {
    LinkOptions {
        response_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        no_touch: true,
        ..LinkOptions::new(CLIENT_NAME)
    }
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
