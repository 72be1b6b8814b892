//! The settings and the task that every resolver has.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::DropGuard;

use crate::redis::handshake::Handshake;
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
    pub(super) fn handshake(self) -> Handshake {
        Handshake::plain(self.name, self.connect_timeout, self.response_timeout)
    }
}

/// Spawns a resolver's task, which ends with the last clone of the guard, or with its stage of shutdown.
pub(super) fn spawn(
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
