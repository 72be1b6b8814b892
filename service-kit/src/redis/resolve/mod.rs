//! Resolvers: tasks that find out where a connection has to go, and keep an [`Endpoint`] up to date.

mod cluster;
mod replica;
mod sentinel;

pub use cluster::{Cluster, ClusterState, Slots};
pub use replica::{ReadsFrom, Replicas};

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::DropGuard;

use super::deployment::{ClusterTarget, Deployment};
use super::endpoint::Endpoint;
use super::handshake::Handshake;
use crate::shutdown::Shutdown;

/// Settings of a resolver's connections to sentinels or nodes.
#[derive(Debug, Clone)]
pub struct ResolverOptions {
    /// The name that CLIENT LIST shows; without spaces.
    pub name: String,
    /// The limit for connecting, TLS included.
    pub connect_timeout: Duration,
    /// The limit for the answers to one query.
    pub response_timeout: Duration,
}

impl ResolverOptions {
    fn handshake(self) -> Handshake {
        Handshake::plain(self.name, self.connect_timeout, self.response_timeout)
    }
}

/// Returns the endpoint of a deployment with one server at a time. Sentinels are queried from now on.
///
/// # Errors
///
/// A cluster, which has an endpoint for each node instead.
///
/// # Panics
///
/// With sentinels, outside of a tokio runtime.
pub fn resolve(
    deployment: &Deployment,
    options: ResolverOptions,
    shutdown: &Shutdown,
) -> Result<Endpoint, Box<ClusterTarget>> {
    match deployment {
        Deployment::Server(target) => Ok(target.clone().into()),
        Deployment::Sentinel(target) => Ok(sentinel::start(target.clone(), options, shutdown)),
        Deployment::Cluster(target) => Err(Box::new(target.clone())),
    }
}

/// Spawns a resolver's task, which ends with the last clone of the guard, or with its stage of shutdown.
fn spawn(
    name: String,
    task: impl Future<Output = ()> + Send + 'static,
    shutdown: &Shutdown,
) -> Arc<DropGuard> {
    let stopped = shutdown.child_token();
    let stop = Arc::new(stopped.clone().drop_guard());
    shutdown.spawn(name, async move {
        stopped.run_until_cancelled(task).await;
    });
    stop
}
