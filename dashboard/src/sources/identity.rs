//! Who is connected to the server, asked within bounds: listing clients takes the server's time, each of them.
//!
//! MONITOR tells from which address a holder's client comes; whether anybody is connected from there still is what is
//! asked here.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use service_kit::redis_link::{CallError, Link};
use tokio::time::Instant;

use super::status::SourceStatus;
use super::{Scope, rest};
use crate::model::Observation;
use crate::model::actor::{ModelHandle, now, wall};
use crate::model::view::SourceState;

/// How often.
const EACH: Duration = Duration::from_secs(15);
/// The most clients that are listed: a thousand take the server two milliseconds.
const MAX_CLIENTS: u64 = 1_000;

/// What asks of one deployment's server who is connected.
#[derive(Debug)]
pub struct Identity {
    /// Its databases.
    pub scopes: Vec<Scope>,
    /// A connection to it.
    pub link: Link,
    /// Where findings go.
    pub model: ModelHandle,
    /// How it fares.
    pub status: Arc<SourceStatus>,
}

impl Identity {
    /// Asks for ever.
    pub async fn run(self) {
        loop {
            if self.link.up().await.is_none() {
                return;
            }
            match self.ask().await {
                Ok(None) => self.status.set(
                    SourceState::Paused,
                    format!("more than {MAX_CLIENTS} clients are connected: listing them would hold up the others"),
                ),
                Ok(Some(addresses)) => {
                    let (at, wall) = (now(), wall());
                    for scope in &self.scopes {
                        let addresses = addresses.clone();
                        let seen = Observation::Connected { addresses, at, wall };
                        self.model.see(scope.id, seen).await;
                    }
                    self.status.set(SourceState::On, "");
                    self.status.succeeded();
                }
                Err(CallError::Refused(refused)) if !refused.is_transient() => {
                    self.status.set(SourceState::Denied, refused.to_string());
                }
                Err(error) => self.status.set(SourceState::Down, error.to_string()),
            }
            rest(&self.link, &self.status, Instant::now() + EACH).await;
        }
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
        Ok(Some(addresses(&text(&self.link.call(list).await?))))
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
