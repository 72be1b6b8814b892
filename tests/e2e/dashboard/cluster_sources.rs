//! The sources of a dashboard on a Redis Cluster: MONITOR and notifications of every master, TLS, an old Redis.

use anyhow::{Result, ensure};
use harness::{Agent, Dashboard, RedisCluster, Reply, eventually};
use serde_json::Value;

use super::cluster::{addresses, until};
use super::{held, lock, problems, take};
use crate::secure::certificate;

/// Returns whether a lock was seen by this source.
fn from(lock: &Value, source: &str) -> bool {
    lock["sources"].as_array().is_some_and(|all| all.contains(&source.into()))
}

#[tokio::test]
async fn monitor_and_notifications_cover_the_locks_of_each_master() -> Result<()> {
    let mut cluster = RedisCluster::start(2, 0).await?;
    let all = addresses(&mut cluster, &[0, 1]);
    for place in 0..2 {
        let mut direct = cluster.client(place).await?;
        let bound = ["CONFIG", "SET", "client-output-buffer-limit", "normal 32mb 0 0"];
        direct.call_args(&bound).await?.ok()?;
        direct.call("CONFIG SET notify-keyspace-events KA").await?.ok()?;
    }
    let dashboard = Dashboard::start(&cluster.url(), &["--monitor", "on"]).await?;
    for source in ["monitor", "keyspace"] {
        until(&dashboard, source, "on", &all).await;
    }
    // The lease is short enough to be renewed during the test, and long enough for a machine that stalls.
    let ours = Agent::in_cluster(&cluster, &["--lease", "15s"]).await?;
    let theirs = Agent::in_cluster(&cluster, &["--lease", "15s"]).await?;
    let (mut worker, mut waiter) = (ours.client().await?, theirs.client().await?);
    for (place, name) in cluster.names("told:").iter().enumerate() {
        worker.call(&format!("LOCK {name}")).await?.ok()?;
        let seen = lock(&dashboard, name, |lock| {
            held(lock) && from(lock, "monitor") && from(lock, "keyspace")
        });
        let holder = seen.await["holders"][0]["id"].clone();
        // Only MONITOR shows the names of waiters for a lock that is not fair.
        waiter.send(&format!("LOCK {name}")).await?;
        lock(&dashboard, name, |lock| lock["waiters"][0]["id"].is_string()).await;
        eventually("a renewal to be seen", async || {
            let seen = dashboard.json(&format!("/api/v1/lock?name={name}")).await?;
            ensure!(seen["renewed"] == true && seen["holders"][0]["id"] == holder, "{seen}");
            Ok(())
        })
        .await;
        assert_eq!(worker.call(&format!("UNLOCK {name}")).await?, Reply::Int(0));
        waiter.reply().await?.ok()?;
        let next =
            lock(&dashboard, name, |lock| held(lock) && lock["holders"][0]["id"] != holder).await;
        assert_eq!(
            (&next["past"][0]["ended"], problems(&next)),
            (&"released".into(), vec![]),
            "{next}"
        );
        let metrics = dashboard.metrics().await?;
        let lines = [("node", &*all[place]), ("outcome", "lock")];
        assert!(metrics.sum("lockscope_dashboard_monitor_lines_total", &lines) > 0.0);
        assert_eq!(waiter.call(&format!("UNLOCK {name}")).await?, Reply::Int(0));
        lock(&dashboard, name, |lock| lock["state"] == "free").await;
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_is_read_over_tls() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (cert, key) = certificate(folder.path())?;
    let cluster = RedisCluster::with_tls(2, &cert, &key).await?;
    let flags = ["--redis-ca-file", &*cert, "--monitor", "off", "--allow-release", "--insecure"];
    let dashboard = Dashboard::start(&cluster.url(), &flags).await?;
    for (place, name) in cluster.names("tls:").iter().enumerate() {
        take(&mut cluster.client(place).await?, name).await?;
        lock(&dashboard, name, held).await;
        let done = dashboard.release(name, "lock").await?;
        assert_eq!(done["outcome"], "released", "{done}");
    }
    // A dashboard without the authority does not trust the servers, and reports that.
    let stranger = Dashboard::start(&cluster.url(), &["--monitor", "off"]).await?;
    eventually("it to be told why", async || {
        let sources = stranger.json("/api/v1/sources").await?;
        let why = sources["servers"][0]["down"]["reason"].to_string();
        ensure!(why.to_lowercase().contains("certificate"), "{sources}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn an_old_cluster_lacks_only_sharded_channels() -> Result<()> {
    let mut cluster = RedisCluster::old().await?;
    let all = addresses(&mut cluster, &[0]);
    let flags = ["--monitor", "off", "--allow-release", "--insecure"];
    let dashboard = Dashboard::start(&cluster.url(), &flags).await?;
    for source in ["scan", "poll", "channels", "subscribers", "identity"] {
        until(&dashboard, source, "on", &all).await;
    }
    let ours = Agent::in_cluster(&cluster, &["--lease", "10m"]).await?;
    let theirs = Agent::in_cluster(&cluster, &["--lease", "10m"]).await?;
    let (mut worker, mut waiter) = (ours.client().await?, theirs.client().await?);
    worker.call("LOCK a").await?.ok()?;
    waiter.send("LOCK a").await?;
    let seen = lock(&dashboard, "a", |lock| held(lock) && lock["waiting"] == 1).await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    waiter.reply().await?.ok()?;
    let next = |lock: &Value| held(lock) && lock["holders"][0]["id"] != seen["holders"][0]["id"];
    let next = lock(&dashboard, "a", next).await;
    assert!(from(&next, "channels"), "its release was heard: {next}");
    let done = dashboard.release("a", "lock").await?;
    assert_eq!(done["outcome"], "released", "{done}");
    assert_eq!(cluster.client(0).await?.call("EXISTS a").await?.text(), "0");
    Ok(())
}
