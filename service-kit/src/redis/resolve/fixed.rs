//! The watcher of a fixed address, such as the name of a managed service's primary.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::resolver::{ResolverOptions, spawn};
use crate::redis::endpoint::Endpoint;
use crate::redis::fixed_address::FixedAddress;
use crate::redis::handshake::{self, Handshake};
use crate::redis::server_info::Role;
use crate::redis::target::{Address, Target};
use crate::shutdown::Shutdown;

/// The interval between lookups of the name.
const INTERVAL: Duration = Duration::from_secs(5);
/// The minimum time between two checks, however often connections break.
const LEAST: Duration = Duration::from_secs(1);

/// Starts to watch the address. The task ends with the last clone of the endpoint, or with its stage of shutdown.
pub(super) fn start(login: Target, options: ResolverOptions, shutdown: &Shutdown) -> Endpoint {
    let endpoint = Endpoint::from(login.clone());
    let Some(address) = endpoint.fixed() else { return endpoint };
    let name = format!("address of {login}");
    let watcher = Watcher {
        login,
        handshake: options.handshake(),
        address: Arc::clone(address),
        suspect: endpoint.suspicion(),
    };
    let stop = spawn(name, watcher.run(), shutdown);
    endpoint.watched(stop)
}

struct Watcher {
    login: Target,
    handshake: Handshake,
    address: Arc<FixedAddress>,
    suspect: Arc<Notify>,
}

impl Watcher {
    async fn run(self) {
        loop {
            tokio::select! {
                () = sleep(INTERVAL) => {}
                () = self.suspect.notified() => sleep(LEAST).await,
            }
            let now = self.lookup().await;
            if self.address.is_in_doubt(&now) {
                self.probe(&now).await;
            }
        }
    }

    /// Connects once more to find out which server is at the address now.
    async fn probe(&self, now: &[IpAddr]) {
        let info = match handshake::connect(&self.login, &self.handshake).await {
            Ok((_wire, info)) if info.role != Some(Role::Replica) => info,
            // The known server is better than none.
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(redis.target = %self.login, %error, "no other server at the address yet");
                return;
            }
        };
        let before = self.address.probed(&info, now);
        if !before.is_empty() {
            tracing::warn!(
                redis.target = %self.login, ?before, ?now,
                "the name leads to another server: leaving the old one"
            );
        }
    }

    /// Returns the addresses of the name; none if it is an address itself, or cannot be looked up now.
    async fn lookup(&self) -> Vec<IpAddr> {
        let Address::Tcp { host, port, .. } = self.login.address() else { return Vec::new() };
        if host.parse::<IpAddr>().is_ok() {
            return Vec::new();
        }
        let found = timeout(self.handshake.connect_timeout, lookup_host((host.as_str(), *port)));
        let Ok(Ok(found)) = found.await else { return Vec::new() };
        found.map(|address| address.ip()).collect()
    }
}
