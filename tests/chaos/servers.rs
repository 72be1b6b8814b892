//! The Redis of a run: one server, a master with its replica and sentinels, or a cluster.

use anyhow::{Context as _, Result, bail, ensure};
use harness::{Client, Proxy, RedisCluster, RedisServer, Sentinels, eventually};

/// The kind of Redis that agents use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One server that keeps its data.
    Single,
    /// A master, a replica and three sentinels.
    Sentinel,
    /// Three masters, each with a replica.
    Cluster,
}

const MASTERS: usize = 3;
/// The user and password, in a cluster, of the agent that a partition leaves with an old master.
const USER: &str = "first";

#[derive(Debug)]
pub(crate) enum Servers {
    Single(RedisServer),
    Sentinel(Sentinels),
    Cluster(RedisCluster),
}

impl Servers {
    pub(crate) async fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::Single => {
                let persistent = [("appendonly", "yes"), ("appendfsync", "always")];
                Self::Single(RedisServer::with(&persistent).await?)
            }
            Kind::Sentinel => Self::Sentinel(Sentinels::start(3).await?),
            Kind::Cluster => Self::Cluster(RedisCluster::start(3, MASTERS).await?),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Single(_) => Kind::Single,
            Self::Sentinel(_) => Kind::Sentinel,
            Self::Cluster(_) => Kind::Cluster,
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Returns the number of servers, without sentinels.
    fn count(&self) -> usize {
        match self {
            Self::Single(_) => 1,
            Self::Sentinel(_) => 2,
            Self::Cluster(_) => 2 * MASTERS,
        }
    }

    pub(crate) fn node(&mut self, place: usize) -> &mut RedisServer {
        match self {
            Self::Single(server) => server,
            Self::Sentinel(sentinels) => sentinels.node(place),
            Self::Cluster(cluster) => cluster.node(place),
        }
    }

    async fn client(&mut self, place: usize) -> Result<Client> {
        self.node(place).client().await
    }

    /// Returns the places of the masters.
    pub(crate) async fn masters(&mut self) -> Result<Vec<usize>> {
        let mut masters = Vec::new();
        for place in 0..self.count() {
            if info(&mut self.client(place).await?).await?.contains("role:master") {
                masters.push(place);
            }
        }
        Ok(masters)
    }

    /// Runs a command on each master, and returns their lists as one.
    pub(crate) async fn each(&mut self, command: &str) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for place in self.masters().await? {
            let reply = self.client(place).await?.call(command).await?.ok()?;
            all.extend(reply.items().unwrap_or_default().iter().map(ToString::to_string));
        }
        Ok(all)
    }

    /// Waits until each master has a replica that follows it, so that the next failover finds one.
    pub(crate) async fn settle(&mut self) -> Result<()> {
        if self.kind() == Kind::Single {
            return Ok(());
        }
        eventually("each master to have a replica", async || {
            let masters = self.masters().await?;
            ensure!(2 * masters.len() == self.count(), "masters: {masters:?}");
            for place in 0..self.count() {
                let wanted =
                    if masters.contains(&place) { "state=online" } else { "link_status:up" };
                let info = info(&mut self.client(place).await?).await?;
                ensure!(info.contains(wanted), "server {place}: {info}");
            }
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Promotes the replica of the master at that place, which need not reply, and waits until the change is known.
    pub(crate) async fn fail_over(&mut self, master: usize) -> Result<()> {
        let replica = self.replica_of(master);
        match self {
            Self::Single(_) => bail!("a single server has no replica"),
            Self::Sentinel(sentinels) => {
                let old = sentinels.node(master).port().to_string();
                let mut client = sentinels.sentinel(0).await?;
                eventually("the replica to be promoted", async || {
                    let about = client.call("SENTINEL MASTER mymaster").await?.ok()?;
                    if about.field("port")?.text() != old {
                        return Ok(());
                    }
                    client.call("SENTINEL FAILOVER mymaster").await?;
                    bail!("the master is {}", about.field("flags")?)
                })
                .await;
                Ok(())
            }
            Self::Cluster(cluster) => {
                let mut client = cluster.client(replica).await?;
                client.call("CLUSTER FAILOVER TAKEOVER").await?.ok()?;
                eventually("the replica to be promoted", async || {
                    let info = info(&mut client).await?;
                    ensure!(info.contains("role:master"), "{info}");
                    Ok(())
                })
                .await;
                Ok(())
            }
        }
    }

    /// Returns the URL for the agent on the side of a master that is cut off. In a cluster that agent has a separate
    /// user.
    pub(crate) fn url_on_that_side(&self, ways: &[Proxy]) -> String {
        let places = ways.iter().map(|way| way.url().replace("redis://", ""));
        match self {
            Self::Single(_) => ways.first().map_or_else(|| self.url(), Proxy::url),
            Self::Sentinel(_) => {
                format!("redis+sentinel://{}/mymaster", places.collect::<Vec<_>>().join(","))
            }
            Self::Cluster(_) => self.url().replace("://", &format!("://{USER}:{USER}@")),
        }
    }

    /// Returns the ports that this agent reaches through proxies: that of a single server, or those of the sentinels.
    pub(crate) fn public_ports(&self) -> Result<Vec<u16>> {
        match self {
            Self::Single(server) => Ok(vec![server.port()]),
            Self::Sentinel(sentinels) => {
                let hosts = sentinels.hosts();
                let ports = hosts.split(',').filter_map(|host| host.rsplit(':').next());
                ports.map(|port| Ok(port.parse()?)).collect()
            }
            Self::Cluster(_) => Ok(Vec::new()),
        }
    }

    /// Creates the user of that agent, which a server loses when it restarts.
    pub(crate) async fn admit(&mut self) -> Result<()> {
        if self.kind() == Kind::Cluster {
            for place in 0..self.count() {
                let user = format!("ACL SETUSER {USER} on >{USER} ~* &* +@all");
                self.client(place).await?.call(&user).await?.ok()?;
            }
        }
        Ok(())
    }

    /// Returns the place of a master's replica.
    fn replica_of(&self, master: usize) -> usize {
        (master + self.count() / 2) % self.count()
    }

    /// Cuts the network between a master and its replica, and between the master and everything that could demote it.
    pub(crate) async fn isolate(&mut self, master: usize) -> Result<()> {
        let mut old = self.client(master).await?;
        match self {
            Self::Single(_) => bail!("a single server has no replica"),
            Self::Sentinel(_) => {
                old.call("ACL SETUSER default -slaveof -replicaof").await?.ok()?;
            }
            Self::Cluster(_) => {
                old.call("CONFIG SET cluster-require-full-coverage no").await?.ok()?;
                for place in (0..self.count()).filter(|&place| place != master) {
                    let mut other = self.client(place).await?;
                    let id = other.call("CLUSTER MYID").await?.ok()?.text();
                    old.call(&format!("CLUSTER FORGET {id}")).await?.ok()?;
                    other.call(&format!("ACL SETUSER {USER} off")).await?.ok()?;
                    other.call(&format!("CLIENT KILL USER {USER}")).await?.ok()?;
                }
            }
        }
        let mut replica = self.client(self.replica_of(master)).await?;
        // The replica cannot reconnect to its master.
        replica.call("CONFIG SET masterauth nonsense").await?.ok()?;
        replica.call("CLIENT KILL TYPE master").await?.ok()?;
        Ok(())
    }

    /// Reverses [`Self::isolate`].
    pub(crate) async fn rejoin(&mut self, master: usize) -> Result<()> {
        let mut replica = self.client(self.replica_of(master)).await?;
        replica.call_args(&["CONFIG", "SET", "masterauth", ""]).await?.ok()?;
        let mut old = self.client(master).await?;
        match self {
            Self::Single(_) => bail!("a single server has no replica"),
            Self::Sentinel(_) => {
                old.call("ACL SETUSER default +slaveof +replicaof").await?.ok()?;
            }
            Self::Cluster(_) => {
                self.admit().await?;
                for place in (0..self.count()).filter(|&place| place != master) {
                    let port = self.node(place).port();
                    old.call(&format!("CLUSTER MEET 127.0.0.1 {port}")).await?.ok()?;
                }
            }
        }
        Ok(())
    }

    /// Moves a lock's slot from its master to the next one.
    pub(crate) async fn move_slot(&mut self, lock: &str) -> Result<()> {
        let masters = self.masters().await?;
        let Self::Cluster(cluster) = self else { bail!("only a cluster has slots") };
        let slot = redisson::slot(lock.as_bytes());
        let mut from = None;
        for &place in &masters {
            let nodes = cluster.client(place).await?.call("CLUSTER NODES").await?.text();
            let own = nodes.lines().find(|line| line.contains("myself")).context("myself")?;
            if own.split(' ').skip(8).any(|range| holds(range, slot)) {
                from = Some(place);
            }
        }
        let from = from.context("no master has the slot")?;
        let at = masters.iter().position(|&place| place == from).context("no such master")?;
        let to = masters[(at + 1) % masters.len()];
        cluster.begin_move(slot, from, to).await?;
        // Scripts create keys on either side until the slot has moved.
        eventually("the slot to be empty", async || {
            cluster.move_keys(slot, from, to).await?;
            cluster.end_move(slot, from, to).await
        })
        .await;
        Ok(())
    }
}

/// Returns whether a range of slots of `CLUSTER NODES` contains that slot.
fn holds(range: &str, slot: u16) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let bounds = (first.parse::<u16>(), last.parse::<u16>());
    matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&slot))
}

async fn info(client: &mut Client) -> Result<String> {
    Ok(client.call("INFO replication").await?.text())
}
