//! The connection to the server that has the agent's own keys.

use redis::{Pipeline, Value};
use service_kit::redis::{Address, CallError, Cluster, Link, LinkOptions, ServerError};
use service_kit::shutdown::Shutdown;

use crate::runtime::Backend;

/// A connection to a server, or to the node of a cluster that currently has the slot of the keys.
pub(super) enum NodeLink {
    Server(Link),
    Cluster(Box<SlotLink>),
}

/// A connection: the node of a cluster, and the number of the connection to it.
pub(super) type ConnectionNumber = (Option<Address>, u64);

pub(super) struct SlotLink {
    cluster: Cluster,
    slot: u16,
    options: LinkOptions,
    shutdown: Shutdown,
    /// The link to the last known owner of the slot.
    link: Option<(Address, Link)>,
}

impl NodeLink {
    pub(super) fn new(
        backend: Backend,
        options: LinkOptions,
        slot: u16,
        shutdown: &Shutdown,
    ) -> Self {
        match backend {
            Backend::Server(endpoint) => Self::Server(Link::start(
                endpoint,
                LinkOptions { alone: true, ..options },
                shutdown,
            )),
            Backend::Cluster(cluster) => {
                let shutdown = shutdown.clone();
                Self::Cluster(Box::new(SlotLink { cluster, slot, options, shutdown, link: None }))
            }
        }
    }

    /// Waits until the link is connected; false once it has shut down.
    pub(super) async fn wait_until_up(&mut self) -> bool {
        match self {
            Self::Server(link) => link.up().await.is_some(),
            Self::Cluster(link) => link.wait_until_up().await,
        }
    }

    /// Returns the connection that was made last.
    pub(super) fn connection(&self) -> Option<ConnectionNumber> {
        let (address, link) = match self {
            Self::Server(link) => (None, link),
            Self::Cluster(slot_link) => {
                slot_link.link.as_ref().map(|(address, link)| (Some(address.clone()), link))?
            }
        };
        Some((address, link.state().borrow().generation))
    }

    pub(super) async fn pipeline(
        &self,
        pipeline: Pipeline,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        let link = match self {
            Self::Server(link) => Some(link),
            Self::Cluster(slot_link) => slot_link.link.as_ref().map(|(_, link)| link),
        };
        match link {
            Some(link) => link.pipeline(pipeline).await,
            None => Err(CallError::Unsent { reason: "no node serves the slot".to_owned() }),
        }
    }

    /// Returns whether an error only means that another node has the slot, or will have it soon.
    pub(super) fn is_redirect(&self, error: &ServerError) -> bool {
        let Self::Cluster(link) = self else { return false };
        let redirect = error.redirect().is_some() || error.is_transient();
        if redirect {
            link.cluster.refresh();
        }
        redirect
    }
}

impl SlotLink {
    async fn wait_until_up(&mut self) -> bool {
        let mut state = self.cluster.state();
        loop {
            let owner = state.borrow_and_update().slots.owner(self.slot).cloned();
            if self.link.as_ref().map(|(address, _)| address) != owner.as_ref() {
                self.link = owner.map(|address| {
                    let target = self.cluster.target().node(address.clone());
                    (address, Link::start(target, self.options.clone(), &self.shutdown))
                });
            }
            let up = async {
                match &self.link {
                    Some((_, link)) => link.up().await.is_some(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                up = up => return up,
                changed = state.changed() => if changed.is_err() { return false },
            }
        }
    }
}
