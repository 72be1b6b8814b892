//! Resolvers: tasks that find out where a connection has to go, and keep an [`Endpoint`] up to date.

mod cluster;
mod fixed;
mod replica;
mod resolver;
mod sentinel;

pub use cluster::{Cluster, ClusterState, Slots};
pub use replica::{ReadsFrom, Replicas};
pub use resolver::ResolverOptions;

use super::deployment::{ClusterTarget, Deployment};
use super::endpoint::Endpoint;
use crate::shutdown::Shutdown;

/// Returns the endpoint of a deployment with one server at a time. Its name, or its sentinels, are queried from now on.
///
/// # Errors
///
/// A cluster, which has an endpoint for each node instead.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub fn resolve(
    deployment: &Deployment,
    options: ResolverOptions,
    shutdown: &Shutdown,
) -> Result<Endpoint, Box<ClusterTarget>> {
    match deployment {
        Deployment::Server(target) => Ok(fixed::start(target.clone(), options, shutdown)),
        Deployment::Sentinel(target) => Ok(sentinel::start(target.clone(), options, shutdown)),
        Deployment::Cluster(target) => Err(Box::new(target.clone())),
    }
}
