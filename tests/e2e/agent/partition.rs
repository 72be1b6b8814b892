//! `--min-replicas` while the network is cut between an old master, with an agent on its side, and a promoted replica.

use std::cell::Cell;

use anyhow::{Context as _, Result, bail, ensure};
use harness::proxy::{Place, Proxy};
use harness::{Agent, Client, RedisCluster, Reply, Sentinels, eventually, http};
use service_kit::clock::boot_micros;

use super::replicas::granted;
use crate::secure::documented_users;

const LEASE: [&str; 2] = ["--lease", "18s"];
/// The margin, a tenth of the lease at most, outlasts the stalls of a busy machine between a loss and the next grant.
const REPLICATED: [&str; 6] = ["--lease", "18s", "--lost-margin", "1800ms", "--min-replicas", "1"];

/// Returns the time of the clock that deadlines of grants use, in nanoseconds.
fn boot_nanos() -> Result<i64> {
    Ok(i64::try_from(boot_micros())? * 1_000)
}

/// A worker on the old master's side that holds a lock, and one on the other side that waits for it.
struct Rivals {
    name: String,
    worker: Client,
    rival: Client,
    /// A connection to the old master.
    old: Client,
    /// The latest instant until which the worker's hold is valid, as last reported to it.
    valid_until: i64,
}

impl Rivals {
    async fn new(a: &Agent, b: &Agent, old: Client, name: &str) -> Result<Self> {
        let mut worker = a.client3().await?;
        worker.call("SESSION PUSH on DEADLINES on").await?.ok()?;
        let grant = granted(&mut worker, &format!("LOCK {name}")).await;
        let valid_until = grant.field("valid_until_ns")?.int()?;
        let mut rival = b.client().await?;
        rival.send(&format!("LOCK {name} WAIT 120000")).await?;
        eventually("the rival to wait", async || {
            let waiters = b.metrics().await?.sum("lockscope_agent_waiters", &[]);
            ensure!(waiters == 1.0, "{waiters} wait");
            Ok(())
        })
        .await;
        Ok(Self { name: name.to_owned(), worker, rival, old, valid_until })
    }

    /// Checks that the worker is warned, and loses its hold before the rival is granted the lock.
    async fn never_rely_on_the_lock_together(mut self) -> Result<()> {
        let Self { name, worker, rival, old, valid_until } = &mut self;
        let rival_holds = Cell::new(false);
        let loss = async {
            let mut warned = false;
            loop {
                let push = worker.push().await?;
                let until = |at: usize| anyhow::Ok(push.get(at).context("no instant")?.parse()?);
                let valid = push[0] != "lock-lost";
                ensure!(!(valid && rival_holds.get()), "both workers rely on the lock: {push:?}");
                match push[0].as_str() {
                    "lock-valid" => *valid_until = until(4)?,
                    "lock-jeopardy" => {
                        *valid_until = until(4)?;
                        warned = true;
                        // A third of the confirmed lease is left, but the lock in Redis has been renewed since.
                        let left = old.call(&format!("PTTL {name}")).await?.int()?;
                        ensure!(left > 7_000, "renewals are delayed: {left} ms are left");
                    }
                    "lock-safe" => warned = false,
                    "lock-lost" => {
                        ensure!(warned, "a loss without a warning");
                        ensure!(push[3] == "unconfirmed", "{push:?}");
                        return boot_nanos();
                    }
                    _ => bail!("{push:?}"),
                }
            }
        };
        let grant = async {
            rival.reply().await?.ok()?;
            rival_holds.set(true);
            boot_nanos()
        };
        let (lost, granted) = tokio::try_join!(loss, grant)?;
        ensure!(*valid_until < granted, "granted {} ns too early", *valid_until - granted);
        ensure!(lost < granted, "the loss is reported {} ns after the grant", lost - granted);
        Ok(())
    }
}

async fn until_ready(agent: &Agent) {
    eventually("the agent to be ready", async || {
        let ready = http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_next_to_a_cut_off_master_loses_its_lock_before_a_promoted_replica_grants_it()
-> Result<()> {
    let sentinels = Sentinels::start(3).await?;
    let mut ways = Vec::new();
    for host in sentinels.hosts().split(',') {
        let port = host.rsplit(':').next().context("a port")?.parse()?;
        ways.push(Proxy::tcp(Place::Port(port)).await?);
    }
    let hosts = ways.iter().map(|way| way.url().replace("redis://", ""));
    let url = format!("redis+sentinel://{}/mymaster", hosts.collect::<Vec<_>>().join(","));
    let (a, b) = (Agent::at(&url, &REPLICATED).await?, Agent::at(&sentinels.url(), &LEASE).await?);
    until_ready(&a).await;
    until_ready(&b).await;
    let rivals = Rivals::new(&a, &b, sentinels.client(0).await?, "x").await?;

    // The old master keeps only the agent next to it; the replica and the sentinels are out of reach.
    ways.iter().for_each(Proxy::part);
    sentinels.keep_as_master().await?;
    sentinels.cut_off("x").await?;
    sentinels.fail_over().await?;
    rivals.never_rely_on_the_lock_together().await
}

#[tokio::test]
async fn a_worker_next_to_a_cut_off_node_loses_its_lock_before_a_promoted_replica_grants_it()
-> Result<()> {
    let cluster = RedisCluster::start(3, 1).await?;
    let mut nodes = Vec::new();
    for index in 0..4 {
        let mut node = cluster.client(index).await?;
        documented_users(&mut node, false).await?;
        nodes.push(node);
    }
    let url = cluster.url().replace("://", "://lockscope-agent:agent-password@");
    let (a, b) = (Agent::at(&url, &REPLICATED).await?, Agent::in_cluster(&cluster, &LEASE).await?);
    until_ready(&a).await;
    until_ready(&b).await;
    // Only the first node has a replica, the last one.
    let name = cluster.names("cut-off:").remove(0);
    let rivals = Rivals::new(&a, &b, cluster.client(0).await?, &name).await?;

    // The first node no longer knows any other node, so it does not learn what they agree on.
    nodes[0].call("CONFIG SET cluster-require-full-coverage no").await?.ok()?;
    for index in 1..4 {
        let id = nodes[index].call("CLUSTER MYID").await?.text();
        nodes[0].call(&format!("CLUSTER FORGET {id}")).await?.ok()?;
    }
    for node in &mut nodes[1..] {
        node.call("ACL DELUSER lockscope-agent").await?.ok()?;
    }
    let replica = &mut nodes[3];
    replica.call("CONFIG SET masterauth nonsense").await?.ok()?;
    replica.call("CLIENT KILL TYPE master").await?.ok()?;
    eventually("the replica to be promoted", async || {
        replica.call("CLUSTER FAILOVER TAKEOVER").await?;
        let role = replica.call("ROLE").await?.ok()?;
        ensure!(role.items()?.first().map(Reply::text).as_deref() == Some("master"), "{role}");
        Ok(())
    })
    .await;
    rivals.never_rely_on_the_lock_together().await
}
