//! The clients that are connected to the server. The list is bounded, since each client in it costs the server time.
//!
//! MONITOR shows the address of a holder's client; this source checks whether any client is still connected from there. It also
//! reads the holder registry, in which agents publish their holders.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use service_kit::redis::{CallError, Link, ServerError};
use tokio::time::Instant;

use super::agents::Agents;
use super::client_list::{MAX_CLIENTS, client_list, field};
use super::connection::{pause_until, wait_until_up};
use super::scope::Scope;
use super::shards::Shards;
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::Time;
use crate::model::actor::ModelHandle;
use crate::model::types::{Connections, Observation};
use crate::sources::view::SourceState;

/// The interval at which the list of clients is read.
const INTERVAL: Duration = Duration::from_secs(15);
/// The interval at which the holder registry is read. Agents write it about as often.
const AGENTS_INTERVAL: Duration = Duration::from_secs(2);

/// The identity source of one server.
#[derive(Debug)]
pub struct Identity {
    pub scopes: Vec<Scope>,
    pub link: Link,
    /// The readers of the holder registry, one for each database.
    pub(super) agents: Vec<Agents>,
    pub model: ModelHandle,
    /// Receives the list of clients, to count dashboards among subscribers.
    pub shards: Shards,
    /// The server's share of the deployment's locks.
    pub(super) share: SlotShare,
    pub status: Arc<SourceStatus>,
}

impl Identity {
    /// Runs until the connection is given up.
    pub async fn run(mut self) {
        let mut connected = (SourceState::On, String::new());
        let mut clients_due = Instant::now();
        loop {
            if wait_until_up(&self.link, &self.status).await.is_none() {
                return;
            }
            if Instant::now() >= clients_due {
                connected = self.report_clients().await;
                if connected.0 != SourceState::Down {
                    clients_due = Instant::now() + INTERVAL;
                }
            }
            let denied = self.report_agents().await;
            let details = [connected.1.as_str(), denied.as_deref().unwrap_or_default()];
            let details: Vec<&str> = details.into_iter().filter(|text| !text.is_empty()).collect();
            self.status.set(connected.0, details.join("; "));
            if connected.0 == SourceState::On {
                self.status.succeeded();
            }
            pause_until(&self.link, &self.status, Instant::now() + AGENTS_INTERVAL).await;
        }
    }

    /// Reports the connected clients to the model. Returns the source's state, with details.
    async fn report_clients(&self) -> (SourceState, String) {
        let connections = match self.connections().await {
            Ok(Some(connections)) => connections,
            Ok(None) => {
                let details = format!(
                    "more than {MAX_CLIENTS} clients are connected: listing them would delay other clients"
                );
                return (SourceState::Paused, details);
            }
            Err(CallError::Refused(refused)) if !refused.is_transient() => {
                return (SourceState::Denied, refused.to_string());
            }
            Err(error) => return (SourceState::Down, error.to_string()),
        };
        // A client that is only connected to another node is alive too.
        if let Some(connections) = self.share.connected(connections) {
            let at = Time::now();
            for scope in &self.scopes {
                let seen = Observation::Connected { connections: connections.clone(), at };
                self.model.observe(scope.id, seen).await;
            }
        }
        (SourceState::On, String::new())
    }

    /// Reports the holder registry to the model. Returns a reason if it may not be read.
    async fn report_agents(&mut self) -> Option<String> {
        let mut denied = None;
        for agents in &mut self.agents {
            if let Some(refused) = refusal(agents.look_up().await) {
                denied = Some(format!("the holder registry of the agents is not read: {refused}"));
            }
            if let Some(refused) = refusal(agents.read_waiters().await) {
                // If the rest of the registry is not readable either, this is already reported.
                denied.get_or_insert_with(|| {
                    format!("the waiters of the agents are not read: {refused}")
                });
            }
        }
        denied
    }

    /// Returns the connections of all clients, or `None` if there are too many to list.
    async fn connections(&self) -> Result<Option<Connections>, CallError> {
        let Some(list) = client_list(&self.link).await? else { return Ok(None) };
        self.shards.count_dashboards(&list);
        Ok(Some(connections(&list)))
    }
}

/// Returns Redis' refusal. A connection reports its loss itself, and the next round follows soon.
fn refusal(read: Result<(), CallError>) -> Option<ServerError> {
    match read {
        Err(CallError::Refused(refused)) => Some(refused),
        _ => None,
    }
}

/// Returns the connections in a list of clients.
fn connections(list: &str) -> Connections {
    let mut connections = Connections::default();
    for line in list.lines() {
        let field = |name| field(line, name);
        let Some(address) = field("addr").and_then(|addr| addr.parse::<SocketAddr>().ok()) else {
            continue;
        };
        connections.addresses.insert(address.ip());
        if let Some(name) = field("name").filter(|name| !name.is_empty()) {
            let age = field("age").and_then(|age| age.parse().ok()).unwrap_or_default();
            connections.names.insert(address, (name.into(), Duration::from_secs(age)));
        }
    }
    connections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_an_address_and_perhaps_a_name() {
        let list = "id=3 addr=10.0.0.7:5123 laddr=10.0.0.1:6379 fd=8 name=addr=9.9.9.9:1 age=7 db=0\n\
                    id=4 addr=[fd00::7]:80 laddr=x name= db=0\n\
                    id=5 addr=/run/redis.sock:0 laddr=/run/redis.sock:0 name=local\nrubbish\n";
        let connections = connections(list);
        let expected = ["10.0.0.7", "fd00::7"].map(|ip| ip.parse().unwrap());
        assert_eq!(connections.addresses, expected.into());
        let named = ("addr=9.9.9.9:1".into(), Duration::from_secs(7));
        assert_eq!(connections.names, [("10.0.0.7:5123".parse().unwrap(), named)].into());
    }
}
