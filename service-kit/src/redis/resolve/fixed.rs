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
/// The least time between two checks, however often connections break.
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
        addresses: Vec::new(),
    };
    let stop = spawn(name, watcher.run(), shutdown);
    endpoint.watched(stop)
}

struct Watcher {
    login: Target,
    handshake: Handshake,
    address: Arc<FixedAddress>,
    suspect: Arc<Notify>,
    /// The addresses of the name at which the server was, sorted; none for an address without a name.
    addresses: Vec<IpAddr>,
}

impl Watcher {
    async fn run(mut self) {
        self.addresses = self.lookup().await;
        loop {
            tokio::select! {
                () = sleep(INTERVAL) => {}
                () = self.suspect.notified() => sleep(LEAST).await,
            }
            let addresses = self.lookup().await;
            let elsewhere = is_elsewhere(&self.addresses, &addresses);
            if elsewhere || self.address.is_demoted() {
                self.probe(elsewhere, addresses).await;
            } else if !addresses.is_empty() {
                self.addresses = addresses;
            }
        }
    }

    /// Connects once more to find out which server is at the address now.
    async fn probe(&mut self, elsewhere: bool, addresses: Vec<IpAddr>) {
        let info = match handshake::connect(&self.login, &self.handshake).await {
            Ok((_wire, info)) if info.role != Some(Role::Replica) => info,
            // The known server is better than none.
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(redis.target = %self.login, %error, "no other server at the address yet");
                return;
            }
        };
        if elsewhere && self.address.found_elsewhere(&info) {
            tracing::warn!(
                redis.target = %self.login, before = ?self.addresses, now = ?addresses,
                "the name leads to another server: leaving the old one"
            );
        } else {
            self.address.found(&info, None);
        }
        if !addresses.is_empty() {
            self.addresses = addresses;
        }
    }

    /// Returns the addresses of the name, sorted; none if it is an address itself, or cannot be looked up now.
    async fn lookup(&self) -> Vec<IpAddr> {
        let Address::Tcp { host, port, .. } = self.login.address() else { return Vec::new() };
        if host.parse::<IpAddr>().is_ok() {
            return Vec::new();
        }
        let found = timeout(self.handshake.connect_timeout, lookup_host((host.as_str(), *port)));
        let Ok(Ok(found)) = found.await else { return Vec::new() };
        let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

/// Returns whether a name has none of its former addresses.
fn is_elsewhere(before: &[IpAddr], now: &[IpAddr]) -> bool {
    !before.is_empty() && !now.is_empty() && !now.iter().any(|address| before.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_elsewhere_once_it_has_none_of_its_addresses() {
        let [a, b, c] = [1, 2, 3].map(|n| IpAddr::from([10, 0, 0, n]));
        assert!(is_elsewhere(&[a], &[b]) && is_elsewhere(&[a, b], &[c]));
        assert!(!is_elsewhere(&[a], &[a, b]) && !is_elsewhere(&[a, b], &[b]));
        assert!(!is_elsewhere(&[a], &[]), "a lookup that fails is no news");
        assert!(!is_elsewhere(&[], &[a]));
    }
}
