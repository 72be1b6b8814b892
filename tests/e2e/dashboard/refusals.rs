//! A server that replies to the dashboard but denies it reads.

use anyhow::{Context as _, Result, ensure};
use harness::{Client, Dashboard, RedisServer, eventually};
use serde_json::Value;

use super::{find, held, lock, take};

const UP: &str = "lockscope_dashboard_redis_up";
const LOCKS: &str = "lockscope_dashboard_locks";

/// Grants rights to the dashboard's account, or revokes them.
async fn set_rights(direct: &mut Client, rights: &str) -> Result<()> {
    direct.call(&format!("ACL SETUSER observer {rights}")).await?.ok()?;
    Ok(())
}

/// Returns the number of commands that the server has denied.
async fn denials(direct: &mut Client) -> Result<u64> {
    let info = direct.call("INFO errorstats").await?.text();
    let count = info.lines().find_map(|line| line.strip_prefix("errorstat_NOPERM:count="));
    Ok(count.context("no denial")?.trim().parse()?)
}

/// Waits until two more reads are denied, and checks that the lock stays unknown.
async fn stays_unknown(dashboard: &Dashboard, direct: &mut Client) -> Result<()> {
    let before = denials(direct).await?;
    eventually("further denials", async || {
        let list = dashboard.json("/api/v1/locks").await?;
        let is_unknown = find(&list, "orders:1").is_some_and(|lock| lock["state"] == "unknown");
        assert!(is_unknown, "{list}");
        let now = denials(direct).await?;
        ensure!(now >= before + 2, "{now} after {before}");
        Ok(())
    })
    .await;
    Ok(())
}

async fn until_up(dashboard: &Dashboard, up: f64) {
    eventually(&format!("{UP} to be {up}"), async || {
        let metrics = dashboard.metrics().await?;
        ensure!((metrics.sum(UP, &[]) - up).abs() < 0.5, "it is {}", metrics.sum(UP, &[]));
        ensure!((metrics.sum(LOCKS, &[]) - up).abs() < 0.5, "{LOCKS}: {}", metrics.sum(LOCKS, &[]));
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_held_lock_is_unknown_while_the_account_may_not_read_it() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    set_rights(&mut direct, "on >secret ~* &* +@all").await?;
    take(&mut direct, "orders:1").await?;
    let url = format!("redis://observer:secret@127.0.0.1:{}", redis.port());
    let dashboard = Dashboard::start(&url, &["--monitor", "off"]).await?;
    lock(&dashboard, "orders:1", held).await;
    until_up(&dashboard, 1.0).await;

    set_rights(&mut direct, "-hlen -hmget -pttl").await?;
    lock(&dashboard, "orders:1", |lock: &Value| lock["state"] == "unknown").await;
    until_up(&dashboard, 0.0).await;
    // Further attempts to read the lock change nothing.
    stays_unknown(&dashboard, &mut direct).await?;
    let sources = dashboard.json("/api/v1/sources").await?;
    let mut rows = sources["sources"].as_array().into_iter().flatten();
    let poll = rows.find(|row| row["source"] == "poll").cloned().unwrap_or_default();
    ensure!(poll["state"] == "denied" && poll["detail"].to_string().contains("NOPERM"), "{poll}");

    // Without `hmget` a reading remains incomplete.
    set_rights(&mut direct, "+hlen +pttl").await?;
    stays_unknown(&dashboard, &mut direct).await?;

    set_rights(&mut direct, "+hmget").await?;
    lock(&dashboard, "orders:1", held).await;
    until_up(&dashboard, 1.0).await;

    // The server reports this refusal as EXECABORT.
    set_rights(&mut direct, "-exec").await?;
    lock(&dashboard, "orders:1", |lock: &Value| lock["state"] == "unknown").await;
    until_up(&dashboard, 0.0).await;
    Ok(())
}
