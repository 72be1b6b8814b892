//! Where a connection is to lead: to one server, to whichever is the master at the time, or to a replica of either.

use std::fmt;
use std::time::Duration;

use super::deployment::Deployment;
use super::error::ConnectError;
use super::replicas::Replicas;
use super::sentinel::{Sentinel, SentinelOptions};
use super::server_info::{Role, ServerInfo};
use super::target::{Address, Target};
use crate::shutdown::Shutdown;

/// Why a connection is left where sentinels are asked.
const REPLACED: &str = "the sentinels name another master";
/// Why a connection for reading is left.
const ELSEWHERE: &str = "another server is to be read from";

/// Where a connection is to lead, now and each time that it is made anew.
#[derive(Debug, Clone)]
pub enum Aim {
    /// To this server.
    Server(Target),
    /// To the master that sentinels name, and never to a replica.
    Master(Sentinel),
    /// To a replica of such a server where one is sound, for reading.
    Replica(Replicas),
}

impl Aim {
    /// At a deployment of one server at a time, whose sentinels are asked from now on; none where it is a cluster.
    ///
    /// # Panics
    ///
    /// With sentinels outside of a tokio runtime.
    #[must_use]
    pub fn at(
        deployment: &Deployment,
        options: SentinelOptions,
        shutdown: &Shutdown,
    ) -> Option<Self> {
        match deployment {
            Deployment::Server(target) => Some(Self::Server(target.clone())),
            Deployment::Sentinel(target) => {
                Some(Self::Master(Sentinel::start(target.clone(), options, shutdown)))
            }
            Deployment::Cluster(_) => None,
        }
    }

    /// The same, with the login and the database of another way to the same deployment.
    #[must_use]
    pub fn seen_as(&self, way: &Deployment) -> Self {
        match (self, way) {
            (Self::Master(sentinel), Deployment::Sentinel(way)) => {
                Self::Master(sentinel.seen_as(|_| way.master.clone()))
            }
            (Self::Replica(replicas), way) => {
                Self::Replica(replicas.seen_as(|server| server.seen_as(way)))
            }
            (_, Deployment::Server(target)) => Self::Server(target.clone()),
            _ => self.clone(),
        }
    }

    /// The same with another database.
    #[must_use]
    pub fn with_db(&self, db: u32) -> Self {
        match self {
            Self::Server(target) => Self::Server(target.with_db(db)),
            Self::Master(sentinel) => Self::Master(sentinel.seen_as(|target| target.with_db(db))),
            Self::Replica(replicas) => Self::Replica(replicas.seen_as(|server| server.with_db(db))),
        }
    }

    /// Whether it leads to one server today and perhaps to another tomorrow.
    #[must_use]
    pub fn follows(&self) -> bool {
        matches!(self, Self::Master(_))
    }

    /// How to log in, at an address that may be another's.
    pub(super) fn login(&self) -> Target {
        match self {
            Self::Server(target) => target.clone(),
            Self::Master(sentinel) => sentinel.target().master.clone(),
            Self::Replica(replicas) => replicas.server().login(),
        }
    }

    /// The server to connect to.
    pub(super) async fn target(&self) -> Result<Target, ConnectError> {
        match self {
            Self::Server(target) => Ok(target.clone()),
            Self::Master(sentinel) => {
                sentinel.master().await.map_err(|reason| ConnectError::NoMaster { reason })
            }
            Self::Replica(replicas) => replicas.target().await,
        }
    }

    /// Whether that server will do as far as this is concerned: sentinels may name one that is the master no more.
    pub(super) fn check(&self, target: &Target, info: &ServerInfo) -> Result<(), ConnectError> {
        if self.follows() && info.role == Some(Role::Replica) {
            return Err(ConnectError::Replica { address: target.address().to_string() });
        }
        Ok(())
    }

    /// Waits until a connection to this address leads to the wrong server, whatever that one says of itself: one that
    /// was cut off from the others goes on as a master, and all that it is told will be lost. Says why it is wrong.
    pub(super) async fn left(&self, address: &Address) -> &'static str {
        self.other_than(Some(address)).await;
        match self {
            Self::Server(_) | Self::Master(_) => REPLACED,
            Self::Replica(_) => ELSEWHERE,
        }
    }

    /// Rests before the next attempt to connect, where the one before was made to this address, or to none since no master
    /// was known. Another server to connect to ends the rest.
    pub(super) async fn rest(&self, pause: Duration, tried: Option<&Address>) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.other_than(tried) => {}
        }
    }

    pub(super) async fn other_than(&self, address: Option<&Address>) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Master(sentinel) => sentinel.other_than(address).await,
            Self::Replica(replicas) => replicas.other_than(address).await,
        }
    }

    /// Something is amiss with the server: it may not be the master any more.
    pub(super) fn doubt(&self) {
        match self {
            Self::Server(_) => {}
            Self::Master(sentinel) => sentinel.doubt(),
            Self::Replica(replicas) => replicas.server().doubt(),
        }
    }
}

impl From<Target> for Aim {
    fn from(target: Target) -> Self {
        Self::Server(target)
    }
}

impl From<Sentinel> for Aim {
    fn from(sentinel: Sentinel) -> Self {
        Self::Master(sentinel)
    }
}

/// As a URL, the password masked.
impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(target) => target.fmt(f),
            Self::Master(sentinel) => sentinel.target().fmt(f),
            Self::Replica(replicas) => replicas.server().fmt(f),
        }
    }
}
