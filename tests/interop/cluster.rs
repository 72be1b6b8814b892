//! Redisson's `useClusterServers` and the agent on one Redis Cluster. Leases and polls are so long that only a message
//! can wake a waiter: by PUBLISH for Redisson before 3.22, by SPUBLISH for later versions.

use std::sync::Arc;

use anyhow::{Result, ensure};
use harness::client::encode;
use harness::{Agent, Client, Jvm, RedisCluster, eventually};

use super::Kind;
use super::bed::{
    JavaLock, KINDS, LEASE, kinds, lock, open_at, other_version, shared, unlock, version,
};

/// A cluster of three masters, an agent and one Redisson client.
struct ClusterBed {
    agent: Agent,
    jvm: Arc<Jvm>,
    client: String,
    cluster: RedisCluster,
}

impl ClusterBed {
    async fn new() -> Result<Self> {
        let cluster = RedisCluster::start(3, 0).await?;
        let agent = Agent::in_cluster(&cluster, &["--lease", LEASE, "--poll-max", LEASE]).await?;
        let jvm = shared()?;
        // Tests share the JVM, so the client's name is unique to this bed.
        let client = format!("{}:a", agent.http());
        open_at(&jvm, &client, &cluster.url(), "watchdog=600000").await?;
        Ok(Self { agent, jvm, client, cluster })
    }

    fn java(&self, kind: Kind, name: &str) -> JavaLock {
        JavaLock::new(self.jvm.thread(&self.client, 1), kind, name)
    }

    /// Waits until both kinds of subscription to the lock's releases exist, as the agent's waiters have them.
    async fn until_subscribed_to(&self, node: usize, channel: &str) -> Result<()> {
        let mut direct = self.cluster.client(node).await?;
        eventually("the agent's waiter to subscribe", async || {
            for verb in ["CHANNELS", "SHARDCHANNELS"] {
                let found = direct.call_args(&["PUBSUB", verb, channel]).await?.ok()?;
                ensure!(!found.items()?.is_empty(), "no subscriber: {verb} {channel}");
            }
            Ok(())
        })
        .await;
        Ok(())
    }
}

/// Closes the client, or it would look for its cluster for as long as other tests run.
impl Drop for ClusterBed {
    fn drop(&mut self) {
        self.jvm.print_log();
        drop(self.jvm.thread(&self.client, 0).begin("close"));
    }
}

#[tokio::test]
async fn each_side_excludes_and_wakes_the_other_on_every_node() -> Result<()> {
    let bed = ClusterBed::new().await?;
    for kind in kinds()? {
        for (node, name) in bed.cluster.names(&format!("{}:", kind.word)).iter().enumerate() {
            let java = bed.java(kind, name);
            let mut worker: Client = bed.agent.client().await?;
            // Java waits for the agent.
            assert!(lock(&mut worker, kind, name, "").await?);
            assert!(!java.is("tryLock").await?, "the agent holds the {} lock", kind.word);
            let waiting = java.begin_wait().await?;
            assert_eq!(unlock(&mut worker, kind, name).await?, 0);
            waiting.answer().await??;
            // The agent waits for Java.
            assert!(
                !lock(&mut worker, kind, name, "NOWAIT").await?,
                "Java holds the {} lock",
                kind.word
            );
            worker.send_bytes(&encode(&kind.lock(name, ""))).await?;
            bed.until_subscribed_to(node, &kind.channel(name)).await?;
            java.call("unlock").await?;
            worker.reply().await?.ok()?;
            assert!(!java.is("isHeldByCurrentThread").await?);
            assert_eq!(unlock(&mut worker, kind, name).await?, 0);
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_agent_and_two_versions_of_redisson_wake_each_other() -> Result<()> {
    let bed = ClusterBed::new().await?;
    let (one, other) = (version()?, other_version()?);
    let jvm = Jvm::start(&other)?;
    open_at(&jvm, "other", &bed.cluster.url(), "watchdog=600000").await?;
    let kind = KINDS[0];
    let name = &bed.cluster.names("both:")[1];
    let other_java = JavaLock::new(jvm.thread("other", 1), kind, name);
    let mut worker = bed.agent.client().await?;
    for (java, version) in [(&bed.java(kind, name), one), (&other_java, other)] {
        assert!(lock(&mut worker, kind, name, "").await?);
        let waiting = java.begin_wait().await?;
        assert_eq!(unlock(&mut worker, kind, name).await?, 0, "{version} waits");
        waiting.answer().await??;
        worker.send_bytes(&encode(&kind.lock(name, ""))).await?;
        bed.until_subscribed_to(1, &kind.channel(name)).await?;
        java.call("unlock").await?;
        worker.reply().await?.ok()?;
        assert_eq!(unlock(&mut worker, kind, name).await?, 0);
    }
    Ok(())
}
