//! The Redis of a run: one server, a master with its replica and sentinels, or a cluster.

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use harness::{Client, RedisCluster, RedisServer, Sentinels, eventually};

/// The kind of Redis that agents use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// One server that keeps its data.
    Single,
    /// A master, a replica and three sentinels.
    Sentinel,
    /// Three masters, each with a replica.
    Cluster,
}

const MASTERS: usize = 3;

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

    /// The number of servers, without sentinels.
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

    /// The places of the masters.
    pub(crate) async fn masters(&mut self) -> Result<Vec<usize>> {
        let mut masters = Vec::new();
        for place in 0..self.count() {
            if info(&mut self.client(place).await?).await?.contains("role:master") {
                masters.push(place);
            }
        }
        Ok(masters)
    }

    /// Runs a command on each master, and returns the lists that they reply with as one.
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

    /// Promotes the replica of the master at that place, which need not reply, and waits until that is known.
    pub(crate) async fn fail_over(&mut self, master: usize) -> Result<()> {
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
                // Each replica belongs to the master as many places before it or after it.
                let replica = (master + MASTERS) % (2 * MASTERS);
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

/// Returns whether a range of slots of `CLUSTER NODES` has that one.
fn holds(range: &str, slot: u16) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let bounds = (first.parse::<u16>(), last.parse::<u16>());
    matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&slot))
}

async fn info(client: &mut Client) -> Result<String> {
    Ok(client.call("INFO replication").await?.text())
}
