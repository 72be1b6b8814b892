//! Connections for releases. A server has a permanent connection. In a cluster, each release uses a new connection to
//! the master that serves the lock's slot, and follows redirects.

use std::time::Duration;

use redis::Value;
use redisson::script::{Call, Publish};
use redisson::{LockName, slot};
use service_kit::redis::{
    Address, CallError, Cluster, ClusterTarget, Link, LinkOptions, LinkStatus,
};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

use super::REPLY_TIMEOUT;
use crate::redis::{CLIENT_NAME, TIMEOUT, resolver_options};

/// The maximum number of redirects that one script follows, since nodes that disagree may redirect in circles.
const MAX_REDIRECTS: usize = 3;
/// The time for which a script is retried while its slot moves: its keys are then on two nodes, so that neither runs
/// it. Most slots move within moments. It is shorter than the wait of a request for the outcome.
const MOVING_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval of these retries.
const MOVING_INTERVAL: Duration = Duration::from_millis(100);

/// The connection for releases of one database.
#[derive(Debug)]
pub(super) enum Route {
    /// A connection to the database's server.
    Server(Link),
    /// Connections to the nodes of a cluster.
    Cluster(Nodes),
}

/// The nodes of a cluster.
#[derive(Debug)]
pub(super) struct Nodes {
    cluster: Cluster,
    shutdown: Shutdown,
}

impl Nodes {
    pub(super) fn new(target: ClusterTarget, shutdown: &Shutdown) -> Self {
        let cluster = Cluster::start(target, resolver_options(REPLY_TIMEOUT), shutdown);
        Self { cluster, shutdown: shutdown.clone() }
    }

    /// Connects to a node.
    async fn link(&self, address: &Address) -> Result<Link, CallError> {
        let target = self.cluster.target().node(address.clone());
        let link = Link::start(target, options(), &self.shutdown);
        let up = tokio::time::timeout(REPLY_TIMEOUT, link.up()).await;
        if up.ok().flatten().is_some() {
            return Ok(link);
        }
        self.cluster.refresh();
        let status = link.state().borrow().status.clone();
        Err(unsent(match status {
            LinkStatus::Down { reason, .. } => format!("{address}: {reason}"),
            LinkStatus::Up(_) => format!("{address} did not answer in time"),
        }))
    }

    async fn send(
        &self,
        name: &LockName,
        make: impl Fn(Publish) -> Call,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + MOVING_TIMEOUT;
        loop {
            match self.send_once(name, &make).await {
                Err(CallError::Refused(error)) if error.is_split() && Instant::now() < until => {
                    tokio::time::sleep(MOVING_INTERVAL).await;
                }
                sent => return sent,
            }
        }
    }

    async fn send_once(
        &self,
        name: &LockName,
        make: impl Fn(Publish) -> Call,
    ) -> Result<Value, CallError> {
        let slot = slot(name.as_bytes());
        let owner = {
            let state = self.cluster.state();
            let state = state.borrow();
            state.slots.owner(slot).cloned().ok_or_else(|| {
                let trouble =
                    state.trouble.as_deref().unwrap_or("the cluster has not answered yet");
                unsent(format!("no known node serves slot {slot}: {trouble}"))
            })
        };
        let mut address = owner?;
        let mut asking = false;
        for _ in 0..=MAX_REDIRECTS {
            let link = self.link(&address).await?;
            let call = make(publish(&link));
            let (source, sha) = (call.script.source, call.script.sha());
            let (keys, args) = (call.keys.iter(), call.args.iter());
            let sent = link.script(source, sha, keys, args, asking).await;
            let redirect = match &sent {
                Err(CallError::Refused(error)) => error.redirect(),
                _ => None,
            };
            let Some(redirect) = redirect else { return sent };
            self.cluster.refresh();
            asking = redirect.ask;
            address = self.cluster.address(&redirect.host, redirect.port, &address);
        }
        Err(unsent("the nodes of the cluster disagree about the owner of the slot".to_owned()))
    }
}

impl Route {
    /// Sends the script for that lock. `make` builds it for the server's kind of pub/sub.
    pub(super) async fn send(
        &self,
        name: &LockName,
        make: impl Fn(Publish) -> Call,
    ) -> Result<Value, CallError> {
        match self {
            Self::Server(link) => {
                // The link may be reconnecting. If it is not connected in time, sending reports the reason.
                tokio::time::timeout(REPLY_TIMEOUT, link.up()).await.ok();
                let call = make(publish(link));
                let (source, sha) = (call.script.source, call.script.sha());
                link.script(source, sha, call.keys.iter(), call.args.iter(), false).await
            }
            Self::Cluster(nodes) => nodes.send(name, make).await,
        }
    }
}

/// Returns the channels on which to publish. Since Redis 7, a cluster has sharded channels, and Redisson may use either
/// kind.
fn publish(link: &Link) -> Publish {
    match &link.state().borrow().status {
        LinkStatus::Up(info) if info.has_shards() => Publish::Both,
        LinkStatus::Up(_) | LinkStatus::Down { .. } => Publish::Plain,
    }
}

/// Returns the options of connections for releases.
pub(super) fn options() -> LinkOptions {
    LinkOptions {
        response_timeout: REPLY_TIMEOUT,
        connect_timeout: TIMEOUT,
        writable: true,
        ..LinkOptions::new(CLIENT_NAME)
    }
}

fn unsent(reason: String) -> CallError {
    CallError::Unsent { reason }
}
