//! Where a connection is to lead: to one server, or to whichever is the master at the time.

use std::fmt;
use std::time::Duration;

use super::deployment::Deployment;
use super::error::ConnectError;
use super::sentinel::{Sentinel, SentinelOptions};
use super::server_info::{Role, ServerInfo};
use super::target::{Address, Target};
use crate::shutdown::Shutdown;

/// Where a connection is to lead, now and each time that it is made anew.
#[derive(Debug, Clone)]
pub enum Aim {
    /// To this server.
    Server(Target),
    /// To the master that sentinels name, and never to a replica.
    Master(Sentinel),
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
        }
    }

    /// Whether it leads to one server today and perhaps to another tomorrow.
    #[must_use]
    pub fn follows(&self) -> bool {
        matches!(self, Self::Master(_))
    }

    /// The server to connect to.
    pub(super) async fn target(&self) -> Result<Target, ConnectError> {
        match self {
            Self::Server(target) => Ok(target.clone()),
            Self::Master(sentinel) => {
                sentinel.master().await.map_err(|reason| ConnectError::NoMaster { reason })
            }
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
    /// was cut off from the others goes on as a master, and all that it is told will be lost.
    pub(super) async fn left(&self, address: &Address) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Master(sentinel) => sentinel.other_than(Some(address)).await,
        }
    }

    /// Rests before the next attempt to connect, where the one before was made to this address, or to none since no master
    /// was known. Another master ends the rest.
    pub(super) async fn rest(&self, pause: Duration, tried: Option<&Address>) {
        let other = async {
            match self {
                Self::Server(_) => std::future::pending().await,
                Self::Master(sentinel) => sentinel.other_than(tried).await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = other => {}
        }
    }

    /// Something is amiss with the server: it may not be the master any more.
    pub(super) fn doubt(&self) {
        if let Self::Master(sentinel) = self {
            sentinel.doubt();
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
        }
    }
}
