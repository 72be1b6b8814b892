//! The connection to whoever has the agent's own keys.

use redis::{Pipeline, Value};
use service_kit::redis::{Address, CallError, Cluster, Link, LinkOptions, ServerError};
use service_kit::shutdown::Shutdown;

use crate::runtime::Main;

/// A connection to one server, or to the node of a cluster that has the keys' slot at the time.
pub(super) enum Way {
    Server(Link),
    Cluster(Box<ToOwner>),
}

pub(super) struct ToOwner {
    cluster: Cluster,
    /// The slot of the keys.
    slot: u16,
    options: LinkOptions,
    stage: Shutdown,
    /// The node that has it, as far as is known.
    link: Option<(Address, Link)>,
}

impl Way {
    pub(super) fn new(place: Main, options: LinkOptions, slot: u16, stage: &Shutdown) -> Self {
        match place {
            Main::Server(endpoint) => {
                Self::Server(Link::start(endpoint, LinkOptions { alone: true, ..options }, stage))
            }
            Main::Cluster(cluster) => {
                let stage = stage.clone();
                Self::Cluster(Box::new(ToOwner { cluster, slot, options, stage, link: None }))
            }
        }
    }

    /// Waits until it leads somewhere; false once it never will again.
    pub(super) async fn up(&mut self) -> bool {
        match self {
            Self::Server(link) => link.up().await.is_some(),
            Self::Cluster(owner) => owner.up().await,
        }
    }

    pub(super) async fn pipeline(
        &self,
        pipeline: Pipeline,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        let link = match self {
            Self::Server(link) => Some(link),
            Self::Cluster(owner) => owner.link.as_ref().map(|(_, link)| link),
        };
        match link {
            Some(link) => link.pipeline(pipeline).await,
            None => Err(CallError::Unsent { reason: "no node has the slot".to_owned() }),
        }
    }

    /// Whether a refusal only tells that another node has the slot, or will have it soon.
    pub(super) fn leads_elsewhere(&self, refusal: &ServerError) -> bool {
        let Self::Cluster(owner) = self else { return false };
        let elsewhere = refusal.redirect().is_some() || refusal.is_transient();
        if elsewhere {
            owner.cluster.refresh();
        }
        elsewhere
    }
}

impl ToOwner {
    async fn up(&mut self) -> bool {
        let mut state = self.cluster.state();
        loop {
            let owner = state.borrow_and_update().slots.owner(self.slot).cloned();
            if self.link.as_ref().map(|(address, _)| address) != owner.as_ref() {
                self.link = owner.map(|address| {
                    let target = self.cluster.target().node(address.clone());
                    (address, Link::start(target, self.options.clone(), &self.stage))
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
