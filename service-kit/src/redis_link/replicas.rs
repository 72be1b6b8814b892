//! A replica of a server to read from, as long as one is sound, and the server itself while none is.
//!
//! Nothing is read from a replica that the server does not name, that is cut off from it, or that is still being filled:
//! what such a one has may be of any age.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::DropGuard;

use super::aim::Aim;
use super::error::ConnectError;
use super::link::{Link, LinkOptions, LinkStatus};
use super::target::{Address, Target};
use crate::shutdown::Shutdown;

/// How often both sides are asked whether it is still so.
const LOOK: Duration = Duration::from_secs(1);
/// A replica tells its server each second how far it is. One that has not for so many seconds is behind by an unknown time.
const LAG: u64 = 5;
/// How long a connection waits for the first choice of all.
const FIRST: Duration = Duration::from_secs(2);

/// What is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadsFrom {
    /// A replica, at this address.
    Replica(Address),
    /// The server itself.
    Server {
        /// Why it is no replica.
        reason: String,
    },
}

/// Keeps to a sound replica of a server. Clones share it; it ends with the last of them, or with its stage of shutdown.
#[derive(Clone)]
pub struct Replicas {
    server: Box<Aim>,
    choice: watch::Receiver<Option<ReadsFrom>>,
    _stop_with_last_handle: Arc<DropGuard>,
}

impl Replicas {
    /// Starts to look for one. Returns at once. Not for a node of a cluster: its replica says of a key that is moving to
    /// another node that there is none.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(server: &Aim, options: &LinkOptions, shutdown: &Shutdown) -> Self {
        let stopped = shutdown.child_token();
        let (sender, choice) = watch::channel(None);
        let link = Link::start(server.clone(), options.clone(), shutdown);
        let chooser = Chooser {
            server: server.clone(),
            link,
            options: options.clone(),
            shutdown: shutdown.clone(),
            read: None,
            choice: sender,
        };
        let stop = stopped.clone().drop_guard();
        shutdown.spawn(format!("replicas of {server}"), async move {
            stopped.run_until_cancelled(chooser.run()).await;
        });
        Self { server: Box::new(server.clone()), choice, _stop_with_last_handle: Arc::new(stop) }
    }

    /// What is read from, and its changes; none before the first answer.
    #[must_use]
    pub fn choice(&self) -> watch::Receiver<Option<ReadsFrom>> {
        self.choice.clone()
    }

    /// The server whose replicas they are.
    pub(super) fn server(&self) -> &Aim {
        &self.server
    }

    /// The way to the same replica for who reaches the server by this one.
    #[must_use]
    pub fn of(&self, server: &Aim) -> Aim {
        Aim::Replica(self.seen_as(|_| server.clone()))
    }

    /// The same replica with another login or database.
    pub(super) fn seen_as(&self, change: impl FnOnce(&Aim) -> Aim) -> Self {
        Self { server: Box::new(change(&self.server)), ..self.clone() }
    }

    /// What to connect to.
    pub(super) async fn target(&self) -> Result<Target, ConnectError> {
        let mut choice = self.choice.clone();
        // Where no replica is known in time the server will do.
        let chosen = timeout(FIRST, choice.wait_for(Option::is_some)).await;
        let chosen = chosen.ok().and_then(Result::ok).and_then(|choice| choice.clone());
        match chosen {
            Some(ReadsFrom::Replica(address)) => Ok(self.server.login().at(address)),
            Some(ReadsFrom::Server { .. }) | None => Box::pin(self.server.target()).await,
        }
    }

    /// Waits until something else than this is read from.
    pub(super) async fn other_than(&self, address: Option<&Address>) {
        let mut choice = self.choice.clone();
        loop {
            let now = choice.borrow_and_update().clone();
            match &now {
                Some(ReadsFrom::Replica(chosen)) if Some(chosen) != address => return,
                Some(ReadsFrom::Server { .. }) => {
                    let target = Box::pin(self.server.target()).await;
                    if target.is_ok_and(|target| Some(target.address()) != address) {
                        return;
                    }
                }
                _ => {}
            }
            let at_server = matches!(now, Some(ReadsFrom::Server { .. }));
            tokio::select! {
                changed = choice.changed() => if changed.is_err() {
                    // Nobody looks any more: the connection ends with its own stage.
                    std::future::pending::<()>().await;
                },
                () = Box::pin(self.server.other_than(address)), if at_server => return,
            }
        }
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choice = self.choice.borrow().clone();
        f.debug_struct("Replicas").field("server", &self.server).field("choice", &choice).finish()
    }
}

struct Chooser {
    server: Aim,
    link: Link,
    options: LinkOptions,
    shutdown: Shutdown,
    /// The one that is read from.
    read: Option<(Address, Link)>,
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
            sleep(LOOK).await;
        }
    }

    async fn choose(&mut self) -> ReadsFrom {
        let followers = self.followers().await;
        let mut reasons = Vec::new();
        if let Some((address, link)) = self.read.take() {
            // A server that cannot be reached says nothing against it; one that is gone is missed by the replica too.
            let named = followers.as_ref().is_ok_and(|all| !all.contains(&address));
            match self.sound(&link).await {
                Ok(()) if !named => {
                    self.read = Some((address.clone(), link));
                    return ReadsFrom::Replica(address);
                }
                Ok(()) => reasons.push(format!("{address} follows it no more, or is behind")),
                Err(reason) => reasons.push(format!("{address}: {reason}")),
            }
        }
        let followers = match followers {
            Ok(followers) => followers,
            Err(reason) => return ReadsFrom::Server { reason },
        };
        for address in followers {
            let target = self.server.login().at(address.clone());
            let link = Link::start(target, self.options.clone(), &self.shutdown);
            match self.sound(&link).await {
                Ok(()) => {
                    self.read = Some((address.clone(), link));
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

    /// The replicas that the server knows to be up to date.
    async fn followers(&self) -> Result<Vec<Address>, String> {
        let info = self.info(&self.link).await?;
        let mut followers = followers(&info, self.server.login().uses_tls());
        followers.sort();
        Ok(followers)
    }

    /// Whether it may be read from.
    async fn sound(&self, link: &Link) -> Result<(), String> {
        let info = self.info(link).await?;
        soundness(&info)
    }

    async fn info(&self, link: &Link) -> Result<String, String> {
        let until = Instant::now() + self.options.connect_timeout;
        match timeout_at(until, link.up()).await {
            Ok(Some(_)) => {}
            Ok(None) => return Err("it is no longer asked".to_owned()),
            Err(_) => {
                return Err(match &link.state().borrow().status {
                    LinkStatus::Down { reason, .. } => reason.clone(),
                    LinkStatus::Up(_) => "no answer in time".to_owned(),
                });
            }
        }
        let mut question = cmd("INFO");
        match link.call(question.arg("replication").to_owned()).await {
            Ok(Value::BulkString(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Ok(_) => Err("an answer of no known form to INFO".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The replicas in INFO of a server that are online, and have said so lately.
fn followers(info: &str, tls: bool) -> Vec<Address> {
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

/// What INFO of a replica says against reading from it.
fn soundness(info: &str) -> Result<(), String> {
    let is = |line: &str| info.lines().any(|known| known.trim_end() == line);
    if !is("role:slave") && !is("role:replica") {
        Err("it is a replica no more".to_owned())
    } else if !is("master_link_status:up") {
        Err("it is cut off from its master".to_owned())
    } else if is("master_sync_in_progress:1") {
        Err("it is being filled".to_owned())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replicas_that_are_up_to_date_are_read_from() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:5\r\n\
            slave0:ip=10.0.0.7,port=6379,state=online,offset=14,lag=0\r\n\
            slave1:ip=10.0.0.8,port=6379,state=wait_bgsave,offset=0,lag=0\r\n\
            slave2:ip=::1,port=6380,state=online,offset=14,lag=5\r\n\
            slave3:ip=10.0.0.9,port=6379,state=online,offset=2,lag=6\r\n\
            slave4:ip=10.0.0.9,port=none,state=online,offset=2,lag=0\r\n\
            slave_priority:100\r\nmaster_failover_state:no-failover\r\n";
        let told: Vec<String> = followers(info, false).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["10.0.0.7:6379", "[::1]:6380"]);
        assert!(followers("role:master\r\nconnected_slaves:0\r\n", false).is_empty());
    }

    #[test]
    fn a_replica_that_is_cut_off_or_promoted_is_left() {
        let sound = "role:slave\r\nmaster_link_status:up\r\nmaster_sync_in_progress:0\r\n";
        assert_eq!(soundness(sound), Ok(()));
        for (from, to, reason) in [
            ("role:slave", "role:master", "a replica no more"),
            ("status:up", "status:down", "cut off"),
            ("in_progress:0", "in_progress:1", "being filled"),
        ] {
            let error = soundness(&sound.replace(from, to)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
