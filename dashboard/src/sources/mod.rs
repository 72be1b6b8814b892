//! The sources: scans of all keys, release messages, keyspace notifications, reads of known locks, counts of
//! subscribers, client lists, the holder registry, and MONITOR.
//!
//! Each database has a connection for scanning and one for reading known locks. Each server has one for release
//! messages, one for notifications, one for MONITOR, and one for judging whether MONITOR may be on. All of them have
//! the name `lockscope-dashboard`. In a cluster, each master has the connections of a single server, see [`cluster`].
//!
//! Their Redis user needs to read keys (`%R~*`, or the patterns of the locks it may see), to subscribe to
//! `redisson_lock__channel:*` and `redisson_rwlock:*`, and these commands:
//! - for reading locks: SCAN, DBSIZE, HLEN, HRANDFIELD, HSTRLEN, HMGET, PTTL, TYPE, MULTI, EXEC, PING, PSUBSCRIBE, INFO, and
//!   SELECT for databases other than 0;
//! - for their companions and the waiters of agents: EXISTS, LLEN, LRANGE, MEMORY USAGE, ZCARD, ZCOUNT, ZMSCORE, GETRANGE
//!   and TIME;
//! - for waiters: PUBSUB NUMSUB; for holders: CLIENT LIST;
//! - for notifications: CONFIG GET, SUBSCRIBE and UNSUBSCRIBE; in a cluster: SSUBSCRIBE, SUNSUBSCRIBE and ASKING;
//! - for the reasons for which a server refuses writes: INFO and CONFIG GET.
//!
//! If a command is not permitted, the source that needs it is denied or sees less, and reports that.

pub mod agent_waiters;
pub mod agents;
pub mod channels;
mod choice;
mod client_list;
mod cluster;
mod connection;
mod fine_timer;
pub mod identity;
pub mod keyspace;
mod limits;
pub mod monitor;
pub mod pace;
pub mod poll;
mod possible;
pub mod read;
pub mod refusal;
pub mod registry;
mod registry_entry;
pub mod scan;
pub mod scope;
mod server;
pub mod shards;
pub mod slot_share;
pub mod status;
pub mod subscribers;
pub mod trace;
pub mod view;

use std::sync::Arc;

use service_kit::redis::resolve;
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::metrics::{MonitorMetrics, ScanMetrics};
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{ReadRequest, ScopeId};
use crate::redis::{TIMEOUT, resolver_options};

use agent_waiters::KnownAgents;
use cluster::Follower;
use scope::Scope;
use server::{Shared, WatchedServer, spawn};
use slot_share::SlotShare;
use status::Sources;

/// Starts every source of every deployment. `batches` are the model's read requests, with a queue for each scope of the
/// settings.
#[must_use]
pub fn start(
    config: &Config,
    model: &ModelHandle,
    hub: &Arc<Hub>,
    batches: Vec<mpsc::Receiver<Vec<ReadRequest>>>,
    metrics: (&ScanMetrics, &MonitorMetrics),
    shutdown: &Shutdown,
) -> Arc<Sources> {
    let sources = Arc::new(Sources::default());
    let shared = Shared {
        read_from: config.read_from,
        scan: config.scan.clone(),
        ignore: config.model.ignore.clone(),
        monitor: config.monitor,
        agent_keys: config.agent_keys.clone(),
        known_agents: KnownAgents::default(),
        model: model.clone(),
        hub: Arc::clone(hub),
        scan_metrics: metrics.0.clone(),
        monitor_metrics: metrics.1.clone(),
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
        match resolve(&deployment.target, resolver_options(TIMEOUT), shutdown) {
            Ok(endpoint) => {
                let server = WatchedServer {
                    deployment: Arc::clone(&deployment.name),
                    server: deployment.target.place(),
                    monitor: endpoint.with_credentials(&deployment.monitor).with_db(0),
                    endpoint,
                    dbs,
                    share: SlotShare::Whole,
                    stop: shutdown.token(),
                    first: true,
                };
                shared.start(server);
            }
            Err(_cluster) => {
                let front = dbs.first().map(|(scope, _)| scope.id);
                let follower = front.and_then(|front| Follower::new(&shared, deployment, front));
                if let Some(follower) = follower {
                    let name = format!("nodes of {}", deployment.name);
                    spawn(shutdown, &shutdown.token(), name, follower.run());
                }
            }
        }
    }
    sources
}
