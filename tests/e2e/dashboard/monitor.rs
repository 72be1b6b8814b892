//! The memory that unread MONITOR output uses in a Redis with default settings, and the return of MONITOR after a crash of Redis.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::proxy::{Place, Proxy};
use harness::{Client, Dashboard, RedisServer, eventually, within};
use serde_json::Value;

/// The default hard limit of a subscriber's output.
const LIMIT: u64 = 32 << 20;

/// Returns the connection that uses MONITOR, as a line of CLIENT LIST.
async fn reader(direct: &mut Client) -> Result<Option<String>> {
    let clients = direct.call("CLIENT LIST").await?.text();
    Ok(clients.lines().find(|client| client.contains("flags=O")).map(str::to_owned))
}

fn unread(reader: &str) -> Result<u64> {
    let memory = reader.split(' ').find_map(|field| field.strip_prefix("omem="));
    Ok(memory.context("no omem")?.parse()?)
}

/// Sends commands of 1 MB until Redis has disconnected the reader. Returns the most memory that its unread output used.
async fn fill(direct: &mut Client) -> Result<u64> {
    let large = "x".repeat(1_000_000);
    let mut most = 0;
    // The kernel and a proxy buffer some of it too.
    for _ in 0..2_000 {
        let Some(reader) = reader(direct).await? else { return Ok(most) };
        most = most.max(unread(&reader)?);
        direct.call_args(&["SET", "large", &large]).await?.ok()?;
    }
    bail!("{most} bytes are unread, and the reader is still there")
}

async fn open(direct: &mut Client) -> String {
    eventually("MONITOR to be on", async || reader(direct).await?.context("it is off")).await
}

#[tokio::test]
async fn a_frozen_dashboard_costs_a_stock_redis_32_mib_at_most() -> Result<()> {
    for redis in [RedisServer::start().await?, RedisServer::old(&[]).await?] {
        frozen(&redis).await?;
    }
    Ok(())
}

async fn frozen(redis: &RedisServer) -> Result<()> {
    let mut direct = redis.client().await?;
    // In automatic mode the load would be another reason to close it.
    let mut dashboard = Dashboard::start(&redis.url(), &["--monitor", "on"]).await?;
    let opened = open(&mut direct).await;
    ensure!(opened.contains("flags=OP"), "it is no subscriber: {opened}");

    dashboard.process().freeze().await?;
    let most = fill(&mut direct).await?;
    ensure!((8 << 20..=LIMIT).contains(&most), "its unread output took {most} bytes");

    // The dashboard notices, and does not reconnect at once.
    dashboard.process().thaw()?;
    eventually("the dashboard to report it", async || {
        let sources = dashboard.json("/api/v1/sources").await?.to_string();
        ensure!(sources.contains("read too slowly for the server's limit"), "{sources}");
        Ok(())
    })
    .await;
    ensure!(reader(&mut direct).await?.is_none(), "it came back at once");
    Ok(())
}

#[tokio::test]
async fn a_network_that_swallows_everything_costs_a_stock_redis_32_mib_at_most() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    let proxy = Proxy::tcp(Place::Port(redis.port())).await?;
    let _dashboard = Dashboard::start(&proxy.url(), &[]).await?;
    open(&mut direct).await;

    proxy.part();
    let most = fill(&mut direct).await?;
    ensure!((8 << 20..=LIMIT).contains(&most), "its unread output took {most} bytes");
    Ok(())
}

/// Returns the row of MONITOR among the sources.
async fn source(dashboard: &Dashboard) -> Result<Value> {
    let sources = dashboard.json("/api/v1/sources").await?;
    let mut rows = sources["sources"].as_array().into_iter().flatten();
    rows.find(|row| row["source"] == "monitor").cloned().context("MONITOR is not listed")
}

#[tokio::test]
async fn monitor_is_on_again_soon_after_redis_has_crashed() -> Result<()> {
    for mode in ["on", "auto"] {
        let mut redis = RedisServer::start().await?;
        let dashboard = Dashboard::start(&redis.url(), &["--monitor", mode]).await?;
        open(&mut redis.client().await?).await;
        // After the second crash the pause must not have grown.
        for _ in 0..2 {
            redis.process().kill()?;
            eventually("the dashboard to notice", async || {
                let source = source(&dashboard).await?;
                ensure!(source["state"] != "on", "{source}");
                Ok(())
            })
            .await;
            redis.restart().await?;
            let mut direct = redis.client().await?;
            // This is less than the shortest pause.
            within(Duration::from_secs(45), "MONITOR to be on", async || {
                let source = source(&dashboard).await?;
                let detail = source["detail"].to_string();
                if detail.contains("slow") || detail.contains("tried again in") {
                    panic!("it is paused: {source}");
                }
                reader(&mut direct).await?.with_context(|| source.to_string())
            })
            .await;
        }
    }
    Ok(())
}
