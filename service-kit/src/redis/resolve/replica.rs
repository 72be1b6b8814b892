//! The resolver of replicas to read from, with the server itself as the fallback.
//!
//! It chooses only replicas that their server lists, that are connected to it, and that are not loading its data: others
//! may be out of date by any amount.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::DropGuard;

use super::resolver::spawn;
use crate::redis::endpoint::{Destination, Endpoint, Rules};
use crate::redis::link::{Link, LinkOptions, LinkStatus};
use crate::redis::target::Address;
use crate::shutdown::Shutdown;

/// The interval between two checks of the server and its replica.
const CHECK: Duration = Duration::from_secs(1);
/// The age of its latest acknowledgement, in seconds, beyond which a replica is behind by an unknown time. Replicas
/// acknowledge each second.
const LAG: u64 = 5;
/// The time after which connections go to the server while there is no first choice.
const FIRST: Duration = Duration::from_secs(2);

const RULES: Rules = Rules {
    first_result: Duration::from_secs(3),
    moved: "another server is to be read from",
    master_only: false,
};

/// The server that is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadsFrom {
    /// A replica, at this address.
    Replica(Address),
    /// The server itself.
    Server {
        /// The reason why it is not a replica.
        reason: String,
    },
}

/// A choice of a replica. It is renewed until the last endpoint made of it is dropped, or until its stage of shutdown.
#[derive(Debug)]
pub struct Replicas {
    choice: watch::Receiver<Option<ReadsFrom>>,
    shutdown: Shutdown,
    stop: Arc<DropGuard>,
}

impl Replicas {
    /// Starts to choose between the replicas of `server`, which may not be a node of a cluster: a replica there reports
    /// a key that is moving to another node as missing.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(server: &Endpoint, options: &LinkOptions, shutdown: &Shutdown) -> Self {
        let (sender, choice) = watch::channel(None);
        let chooser = Chooser {
            server: server.clone(),
            link: Link::start(server.clone(), options.clone(), shutdown),
            options: options.clone(),
            shutdown: shutdown.clone(),
            current: None,
            candidates: HashMap::new(),
            choice: sender,
        };
        let stop = spawn(format!("replicas of {server}"), chooser.run(), shutdown);
        Self { choice, shutdown: shutdown.clone(), stop }
    }

    /// The choice and its changes; `None` before the first one.
    #[must_use]
    pub fn choice(&self) -> watch::Receiver<Option<ReadsFrom>> {
        self.choice.clone()
    }

    /// The endpoint of the chosen replica, with the credentials of `server`, or of `server` itself while no replica is
    /// chosen.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn endpoint(&self, server: &Endpoint) -> Endpoint {
        let (sender, current) = watch::channel(Destination::Unknown);
        let follow = follow(self.choice.clone(), server.destination(), sender);
        self.shutdown.spawn(format!("reading from {server}"), follow);
        let (login, sentinels) = (server.login().clone(), server.sentinels().cloned());
        let stop = Arc::clone(&self.stop);
        Endpoint::resolved(login, sentinels, current, server.suspicion(), RULES, stop)
    }
}

/// Publishes the chosen replica, or else the server's own destination, until nobody needs it.
async fn follow(
    mut choice: watch::Receiver<Option<ReadsFrom>>,
    mut server: watch::Receiver<Destination>,
    current: watch::Sender<Destination>,
) {
    let fallback = Instant::now() + FIRST;
    // Only a live sender has changes to wait for: a fixed server has none.
    let mut server_changes = true;
    loop {
        let chosen = choice.borrow_and_update().clone();
        let is_first = chosen.is_none() && Instant::now() < fallback;
        let destination = match chosen {
            Some(ReadsFrom::Replica(address)) => Destination::Address(address),
            None if is_first => Destination::Unknown,
            Some(ReadsFrom::Server { .. }) | None => server.borrow_and_update().clone(),
        };
        current.send_if_modified(|current| {
            let changed = *current != destination;
            *current = destination;
            changed
        });
        tokio::select! {
            () = current.closed() => return,
            changed = choice.changed() => if changed.is_err() { return },
            changed = server.changed(), if server_changes => server_changes = changed.is_ok(),
            () = tokio::time::sleep_until(fallback), if is_first => {}
        }
    }
}

struct Chooser {
    server: Endpoint,
    link: Link,
    options: LinkOptions,
    shutdown: Shutdown,
    /// The replica that is read from.
    current: Option<(Address, Link)>,
    /// The connections to the listed replicas while there is no choice.
    candidates: HashMap<Address, Link>,
    choice: watch::Sender<Option<ReadsFrom>>,
}

impl Chooser {
    async fn run(mut self) {
        loop {
            let chosen = self.choose().await;
            let is_new = self.choice.borrow().as_ref() != Some(&chosen);
            if is_new {
                match &chosen {
                    ReadsFrom::Replica(address) => {
                        tracing::info!(redis.target = %self.server, replica = %address, "reading from a replica");
                    }
                    ReadsFrom::Server { reason } => {
                        tracing::warn!(redis.target = %self.server, reason, "reading from the server, not from a replica");
                    }
                }
                self.choice.send_replace(Some(chosen));
            }
            sleep(CHECK).await;
        }
    }

    async fn choose(&mut self) -> ReadsFrom {
        let listed = self.listed_replicas().await;
        let mut reasons = Vec::new();
        if let Some((address, link)) = self.current.take() {
            // An unreachable server is no reason to leave its replica; the replica would notice a dead server itself.
            let unlisted = listed.as_ref().is_ok_and(|all| !all.contains(&address));
            match self.check(&link).await {
                Ok(()) if !unlisted => {
                    self.current = Some((address.clone(), link));
                    return ReadsFrom::Replica(address);
                }
                Ok(()) => reasons.push(format!("{address} no longer follows it, or lags behind")),
                Err(reason) => reasons.push(format!("{address}: {reason}")),
            }
        }
        let listed = match listed {
            Ok(listed) => listed,
            Err(reason) => return ReadsFrom::Server { reason },
        };
        self.candidates.retain(|address, _| listed.contains(address));
        for address in listed {
            let start = || {
                let target = self.server.login().at(address.clone());
                Link::start(target, self.options.clone(), &self.shutdown)
            };
            let link = self.candidates.entry(address.clone()).or_insert_with(start).clone();
            match self.check(&link).await {
                Ok(()) => {
                    self.candidates.clear();
                    self.current = Some((address.clone(), link));
                    return ReadsFrom::Replica(address);
                }
                Err(reason) => reasons.push(format!("{address}: {reason}")),
            }
        }
        reasons.sort();
        reasons.dedup();
        let reason = match reasons.as_slice() {
            [] => "no replica follows it".to_owned(),
            _ => reasons.join("; "),
        };
        ReadsFrom::Server { reason }
    }

    /// The replicas that the server lists as up to date.
    async fn listed_replicas(&self) -> Result<Vec<Address>, String> {
        let info = self.info(&self.link).await?;
        let mut listed = up_to_date_replicas(&info, self.server.login().uses_tls());
        listed.sort();
        Ok(listed)
    }

    /// Checks whether a replica may be read from.
    async fn check(&self, link: &Link) -> Result<(), String> {
        check_replica(&self.info(link).await?)
    }

    async fn info(&self, link: &Link) -> Result<String, String> {
        let until = Instant::now() + self.options.connect_timeout;
        match timeout_at(until, link.up()).await {
            Ok(Some(_)) => {}
            Ok(None) => return Err("the connection is stopped".to_owned()),
            Err(_) => {
                return Err(match &link.state().borrow().status {
                    LinkStatus::Down { reason, .. } => reason.clone(),
                    LinkStatus::Up(_) => "no reply in time".to_owned(),
                });
            }
        }
        let mut info = cmd("INFO");
        match link.call(info.arg("replication").to_owned()).await {
            Ok(Value::BulkString(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Ok(_) => Err("unexpected reply to INFO".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The replicas in a server's INFO that are online and have acknowledged recently.
fn up_to_date_replicas(info: &str, tls: bool) -> Vec<Address> {
    let lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    lines
        .filter(|(key, _)| {
            let number = key.strip_prefix("slave").or_else(|| key.strip_prefix("replica"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
        .filter_map(|(_, value)| {
            let field = |name: &str| {
                let fields = value.split(',').filter_map(|field| field.split_once('='));
                fields.clone().find(|(key, _)| *key == name).map(|(_, value)| value)
            };
            let up_to_date = field("state")? == "online"
                && field("lag").is_some_and(|lag| lag.parse().is_ok_and(|lag: u64| lag <= LAG));
            let address = Address::Tcp {
                host: field("ip")?.to_owned(),
                port: field("port")?.parse().ok()?,
                tls,
            };
            up_to_date.then_some(address)
        })
        .collect()
}

/// Checks a replica's INFO.
///
/// # Errors
///
/// The reason not to read from it.
fn check_replica(info: &str) -> Result<(), String> {
    let is = |line: &str| info.lines().any(|known| known.trim_end() == line);
    if !is("role:slave") && !is("role:replica") {
        Err("it is no longer a replica".to_owned())
    } else if !is("master_link_status:up") {
        Err("it is disconnected from its master".to_owned())
    } else if is("master_sync_in_progress:1") {
        Err("it is loading its master's data".to_owned())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replicas_that_are_up_to_date_are_listed() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:5\r\n\
            slave0:ip=10.0.0.7,port=6379,state=online,offset=14,lag=0\r\n\
            slave1:ip=10.0.0.8,port=6379,state=wait_bgsave,offset=0,lag=0\r\n\
            slave2:ip=::1,port=6380,state=online,offset=14,lag=5\r\n\
            slave3:ip=10.0.0.9,port=6379,state=online,offset=2,lag=6\r\n\
            slave4:ip=10.0.0.9,port=none,state=online,offset=2,lag=0\r\n\
            slave_priority:100\r\nmaster_failover_state:no-failover\r\n";
        let listed: Vec<String> =
            up_to_date_replicas(info, false).iter().map(ToString::to_string).collect();
        assert_eq!(listed, ["10.0.0.7:6379", "[::1]:6380"]);
        assert!(up_to_date_replicas("role:master\r\nconnected_slaves:0\r\n", false).is_empty());
    }

    #[test]
    fn a_disconnected_promoted_or_loading_replica_is_rejected() {
        let healthy = "role:slave\r\nmaster_link_status:up\r\nmaster_sync_in_progress:0\r\n";
        assert_eq!(check_replica(healthy), Ok(()));
        for (from, to, reason) in [
            ("role:slave", "role:master", "no longer a replica"),
            ("status:up", "status:down", "disconnected"),
            ("in_progress:0", "in_progress:1", "loading"),
        ] {
            let error = check_replica(&healthy.replace(from, to)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
