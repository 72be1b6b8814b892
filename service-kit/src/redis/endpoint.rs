//! The place a connection goes to, which a resolver may change while the connection lives.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::DropGuard;

use super::deployment::{Deployment, SentinelTarget};
use super::error::ConnectError;
use super::fixed_address::{ConnectionGuard, FixedAddress};
use super::handshake::{self, Handshake};
use super::server_info::{Role, ServerInfo};
use super::target::{Address, Target};
use super::wire::Wire;

/// The result of resolving an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Destination {
    /// The resolver has no result yet.
    #[default]
    Unknown,
    /// There is no server to connect to, for this reason.
    Unavailable(String),
    /// The server's current address.
    Address(Address),
}

impl Destination {
    fn address(&self) -> Option<&Address> {
        match self {
            Self::Address(address) => Some(address),
            Self::Unknown | Self::Unavailable(_) => None,
        }
    }
}

/// The rules that a resolver sets for connections to its endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// The time that a connection waits for the resolver's first result.
    pub(super) first_result: Duration,
    /// The reason for leaving a connection when the address changes.
    pub(super) moved: &'static str,
    /// Rejects replicas.
    pub(super) master_only: bool,
}

/// The server that a connection has reached, until its endpoint leads to another one.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) address: Address,
    /// The connection's place at a fixed address.
    place: Option<ConnectionGuard>,
}

impl Route {
    /// Records what the connection has found about its server.
    pub(super) fn found(&self, info: &ServerInfo) {
        if let Some(place) = &self.place {
            place.found(info);
        }
    }
}

/// Credentials, and an address that a resolver keeps current: a fixed one, the master that sentinels report, or a
/// replica to read from.
#[derive(Clone)]
pub struct Endpoint {
    /// User, password, database and TLS settings. Its address counts only for a fixed server.
    login: Target,
    /// The sentinels that report the address.
    sentinels: Option<Arc<SentinelTarget>>,
    current: watch::Receiver<Destination>,
    /// Requests another check by the resolver soon.
    suspect: Arc<Notify>,
    rules: Rules,
    /// What connections find at a fixed address.
    fixed: Option<Arc<FixedAddress>>,
    _resolver: Option<Arc<DropGuard>>,
}

impl Endpoint {
    /// Creates an endpoint that a resolver task updates. The task ends when the last clone drops `resolver`.
    pub(super) fn resolved(
        login: Target,
        sentinels: Option<Arc<SentinelTarget>>,
        current: watch::Receiver<Destination>,
        suspect: Arc<Notify>,
        rules: Rules,
        resolver: Arc<DropGuard>,
    ) -> Self {
        Self { login, sentinels, current, suspect, rules, fixed: None, _resolver: Some(resolver) }
    }

    /// Adds the task that watches a fixed address, which ends when the last clone drops it.
    pub(super) fn watched(self, watcher: Arc<DropGuard>) -> Self {
        Self { _resolver: Some(watcher), ..self }
    }

    /// Returns the same server, or the same master by the same sentinels, with the credentials and the database of
    /// another URL. For a fixed server the URL's address counts too.
    #[must_use]
    pub fn with_credentials(&self, url: &Deployment) -> Self {
        match url {
            Deployment::Sentinel(url) if self.sentinels.is_some() => {
                Self { login: url.master.clone(), ..self.clone() }
            }
            Deployment::Server(target) if target.address() == self.login.address() => {
                Self { login: target.clone(), ..self.clone() }
            }
            Deployment::Server(target) => target.clone().into(),
            Deployment::Sentinel(_) | Deployment::Cluster(_) => self.clone(),
        }
    }

    /// Returns the same endpoint with another database.
    #[must_use]
    pub fn with_db(&self, db: u32) -> Self {
        Self { login: self.login.with_db(db), ..self.clone() }
    }

    /// Returns `true` if only masters are accepted, whose address may change.
    #[must_use]
    pub fn follows_master(&self) -> bool {
        self.rules.master_only
    }

    /// Returns the database.
    #[must_use]
    pub fn db(&self) -> u32 {
        self.login.db()
    }

    /// Returns the credentials, at an address that may be outdated.
    pub(super) fn login(&self) -> &Target {
        &self.login
    }

    pub(super) fn sentinels(&self) -> Option<&Arc<SentinelTarget>> {
        self.sentinels.as_ref()
    }

    /// Returns the destination and its changes.
    pub(super) fn destination(&self) -> watch::Receiver<Destination> {
        self.current.clone()
    }

    pub(super) fn suspicion(&self) -> Arc<Notify> {
        Arc::clone(&self.suspect)
    }

    /// Connects to the server. Stores its address in `tried`, even if that fails.
    ///
    /// # Errors
    ///
    /// Also [`ConnectError::Replica`] for a replica where only masters are accepted: sentinels may report one that has just
    /// been demoted.
    pub(super) async fn connect(
        &self,
        handshake: &Handshake,
        tried: &mut Option<Address>,
    ) -> Result<(Wire, ServerInfo, Route), ConnectError> {
        *tried = None;
        let target = self.resolve().await?;
        let address = tried.insert(target.address().clone()).clone();
        let (wire, info) = handshake::connect(&target, handshake).await?;
        let place = self.fixed.as_ref().map(|fixed| fixed.enter(&info));
        if self.rules.master_only && info.role == Some(Role::Replica) {
            return Err(ConnectError::Replica { address: address.to_string() });
        }
        Ok((wire, info, Route { address, place }))
    }

    /// Resolves the server to connect to.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoMaster`] when the resolver has no address.
    async fn resolve(&self) -> Result<Target, ConnectError> {
        let mut current = self.current.clone();
        let known = current.wait_for(|destination| *destination != Destination::Unknown);
        let destination = match timeout(self.rules.first_result, known).await {
            Ok(Ok(destination)) => destination.clone(),
            _ => Destination::Unknown,
        };
        match destination {
            Destination::Address(address) => Ok(self.login.at(address)),
            Destination::Unavailable(reason) => Err(ConnectError::NoMaster { reason }),
            Destination::Unknown => Err(ConnectError::NoMaster {
                reason: "no sentinel has reported the master yet".to_owned(),
            }),
        }
    }

    pub(super) fn fixed(&self) -> Option<&Arc<FixedAddress>> {
        self.fixed.as_ref()
    }

    /// Waits until a connection goes to the wrong server, and returns the reason. The server itself may not know: one that is
    /// cut off from the others continues as a master, and everything written there will be lost.
    pub(super) async fn left(&self, route: &Route) -> &'static str {
        match &route.place {
            Some(place) => place.left().await,
            None => self.changed_from(Some(&route.address)).await,
        }
        self.rules.moved
    }

    /// Waits before the next attempt to connect. Ends early when the address differs from the one tried last.
    pub(super) async fn pause(&self, pause: Duration, tried: Option<&Address>) {
        tokio::select! {
            () = sleep(pause) => {}
            () = self.changed_from(tried) => {}
        }
    }

    /// Waits until an address is known that differs from `address`.
    pub(super) async fn changed_from(&self, address: Option<&Address>) {
        let fixed = self.fixed.is_some();
        let mut current = self.current.clone();
        let differs = current.wait_for(|destination| {
            let current = destination.address();
            !fixed && current.is_some() && current != address
        });
        if differs.await.is_err() {
            // The resolver has stopped: the connection ends with its own stage.
            std::future::pending::<()>().await;
        }
    }

    /// Reports a sign that the server may have been replaced.
    pub(super) fn suspect(&self) {
        self.suspect.notify_one();
    }
}

/// A fixed server.
impl From<Target> for Endpoint {
    fn from(login: Target) -> Self {
        let (_, current) = watch::channel(Destination::Address(login.address().clone()));
        let rules = Rules {
            first_result: Duration::ZERO,
            moved: "another master was found at the address",
            master_only: false,
        };
        let suspect = Arc::default();
        let fixed = Some(Arc::new(FixedAddress::new(Arc::clone(&suspect))));
        Self { login, sentinels: None, current, suspect, rules, fixed, _resolver: None }
    }
}

/// As a URL with the password masked.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sentinels {
            None => self.login.fmt(f),
            Some(sentinels) => {
                SentinelTarget { master: self.login.clone(), ..SentinelTarget::clone(sentinels) }
                    .fmt(f)
            }
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current.borrow().clone();
        f.debug_struct("Endpoint")
            .field("url", &self.to_string())
            .field("current", &current)
            .finish_non_exhaustive()
    }
}
