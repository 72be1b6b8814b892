//! Who is connected to the server, asked within bounds: listing clients takes the server's time, each of them.
//!
//! MONITOR tells from which address a holder's client comes; whether anybody is connected from there still is what is
//! asked here. Agents tell of their holders themselves, in keys that are read here too.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use service_kit::redis::{CallError, Link};
use tokio::time::Instant;

use super::agents::Agents;
use super::connection::{rest, up};
use super::scope::Scope;
use super::shards::Shards;
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::{SteadyMillis, now};
use crate::model::actor::ModelHandle;
use crate::model::types::Observation;
use crate::sources::view::SourceState;

const EACH: Duration = Duration::from_secs(15);
/// How often agents' holders are asked about; agents write about as often.
const AGENTS_EACH: Duration = Duration::from_secs(2);
/// The most clients that are listed: a thousand take the server two milliseconds.
const MAX_CLIENTS: u64 = 1_000;

/// What asks of one deployment's server who is connected, and what agents tell.
#[derive(Debug)]
pub struct Identity {
    pub scopes: Vec<Scope>,
    /// A connection to it.
    pub link: Link,
    /// What reads, in each database, what agents tell.
    pub(super) agents: Vec<Agents>,
    /// Where findings go.
    pub model: ModelHandle,
    /// Who of those connected is a dashboard that listens.
    pub shards: Shards,
    /// Which of the deployment's locks the server has.
    pub(super) share: SlotShare,
    /// How it fares.
    pub status: Arc<SourceStatus>,
}

impl Identity {
    /// Asks for ever.
    pub async fn run(mut self) {
        let mut connected = (SourceState::On, String::new());
        let mut clients_due = Instant::now();
        loop {
            if up(&self.link, &self.status).await.is_none() {
                return;
            }
            if Instant::now() >= clients_due {
                connected = self.ask_for_clients().await;
                if connected.0 != SourceState::Down {
                    clients_due = Instant::now() + EACH;
                }
            }
            let untold = self.ask_about_agents().await;
            let details = [connected.1.as_str(), untold.as_deref().unwrap_or_default()];
            let details: Vec<&str> = details.into_iter().filter(|text| !text.is_empty()).collect();
            self.status.set(connected.0, details.join("; "));
            if connected.0 == SourceState::On {
                self.status.succeeded();
            }
            rest(&self.link, &self.status, Instant::now() + AGENTS_EACH).await;
        }
    }

    /// Tells the model who is connected. Says how that went.
    async fn ask_for_clients(&self) -> (SourceState, String) {
        match self.ask().await {
            Ok(None) => (
                SourceState::Paused,
                format!(
                    "more than {MAX_CLIENTS} clients are connected: listing them would hold up the others"
                ),
            ),
            Ok(Some(addresses)) => {
                // Who is connected to another node only lives all the same.
                let Some(addresses) = self.share.connected(addresses) else {
                    return (SourceState::On, String::new());
                };
                let (at, steady) = (now(), SteadyMillis::now());
                for scope in &self.scopes {
                    let addresses = addresses.clone();
                    let seen = Observation::Connected { addresses, at, steady };
                    self.model.see(scope.id, seen).await;
                }
                (SourceState::On, String::new())
            }
            Err(CallError::Refused(refused)) if !refused.is_transient() => {
                (SourceState::Denied, refused.to_string())
            }
            Err(error) => (SourceState::Down, error.to_string()),
        }
    }

    /// Tells the model what agents tell. Says why, where that cannot be read.
    async fn ask_about_agents(&mut self) -> Option<String> {
        let mut untold = None;
        for agents in &mut self.agents {
            match agents.ask().await {
                Ok(None) => {}
                Ok(Some(refused)) => {
                    untold =
                        Some(format!("what agents tell of their holders is not read: {refused}"));
                }
                // The connection's own state tells of that; the next round is soon.
                Err(error) => tracing::debug!(%error, "what agents tell was not read"),
            }
        }
        untold
    }

    /// The addresses that somebody is connected from; none where there are too many to ask.
    async fn ask(&self) -> Result<Option<HashSet<IpAddr>>, CallError> {
        let mut info = cmd("INFO");
        info.arg("clients");
        let count = text(&self.link.call(info).await?).lines().find_map(|line| {
            line.strip_prefix("connected_clients:")
                .and_then(|count| count.trim().parse::<u64>().ok())
        });
        if count.is_none_or(|count| count > MAX_CLIENTS) {
            return Ok(None);
        }
        let mut list = cmd("CLIENT");
        list.arg("LIST");
        let list = text(&self.link.call(list).await?);
        self.shards.note_clients(&list);
        Ok(Some(addresses(&list)))
    }
}

fn text(reply: &Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

/// The addresses in a list of clients, a line each. A name may have no blanks, so that it cannot pass for an address.
fn addresses(list: &str) -> HashSet<IpAddr> {
    let address = |line: &str| {
        let field = line.split(' ').find_map(|field| field.strip_prefix("addr="))?;
        field.parse::<SocketAddr>().ok().map(|address| address.ip())
    };
    list.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_clients() {
        let list = "id=3 addr=10.0.0.7:5123 laddr=10.0.0.1:6379 fd=8 name=addr=9.9.9.9:1 db=0\n\
                    id=4 addr=[fd00::7]:80 laddr=x name= db=0\n\
                    id=5 addr=/run/redis.sock:0 laddr=/run/redis.sock:0\nrubbish\n";
        let expected = ["10.0.0.7", "fd00::7"].map(|ip| ip.parse().unwrap());
        assert_eq!(addresses(list), expected.into());
    }
}
