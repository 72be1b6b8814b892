//! Three ways in which a lock with a watchdog ends: its thread dies without unlocking it, its work takes longer than
//! its lease, and all goes well. One dashboard runs with MONITOR and one without.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Client, Dashboard, Foreign, RedisServer, eventually};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::problems;

/// A watchdog's lease, milliseconds. With Redisson's own, a renewal may be seconds late and is no problem.
const LEASE_MS: u64 = 30_000;

/// A watchdog that renews a lock every third of its lease until stopped, regardless of the thread that acquired it.
struct Watchdog {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

impl Watchdog {
    async fn start(redis: &RedisServer, holder: &str, lock: &'static str) -> Result<Self> {
        let mut client = Foreign::connect(redis).await?;
        (client.holder, client.lease_ms) = (holder.to_owned(), LEASE_MS);
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                ensure!(client.renew(lock).await?, "{lock} is lost");
                if timeout(Duration::from_millis(LEASE_MS / 3), &mut stopped).await.is_ok() {
                    return Ok(());
                }
            }
        });
        Ok(Self { stop, task })
    }

    /// Stops the watchdog. No renewal is under way afterwards.
    async fn stop(self) -> Result<()> {
        drop(self.stop);
        self.task.await?
    }
}

async fn lock_of(dashboard: &Dashboard, name: &str) -> Result<Value> {
    dashboard.json(&format!("/api/v1/lock?name={name}")).await
}

/// Returns the lock from this dashboard, once it `fits`.
async fn lock_when(dashboard: &Dashboard, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("`{name}` as it should be"), async || {
        let lock = lock_of(dashboard, name).await?;
        ensure!(fits(&lock), "{lock:#}");
        Ok(lock)
    })
    .await
}

/// Waits until these sources are on.
async fn sources_are_on(dashboard: &Dashboard, wanted: &[&str]) {
    eventually("sources to be on", async || {
        let sources = dashboard.json("/api/v1/sources").await?;
        let sources = sources["sources"].as_array().cloned().unwrap_or_default();
        for wanted in wanted {
            let on = |source: &Value| source["source"] == *wanted && source["state"] == "on";
            ensure!(sources.iter().any(on), "{sources:?}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn the_three_ends_of_a_watchdog_lock_are_distinguished() -> Result<()> {
    let bounded = [("client-output-buffer-limit", "normal 32mb 0 0")];
    let redis = RedisServer::with(&bounded).await?;
    let mut direct: Client = redis.client().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dashboard.toml");
    std::fs::write(&file, "[[lock]]\nmatch = \"dead\"\nstuck_after = \"6s\"\n")?;
    let config = ["--config", file.to_str().context("a path in UTF-8")?];
    let flags = |monitor| [&config[..], &["--monitor", monitor]].concat();
    let seeing = Dashboard::start(&redis.url(), &flags("on")).await?;
    let plain = Dashboard::start(&redis.url(), &flags("off")).await?;
    sources_are_on(&seeing, &["channels", "monitor"]).await;
    sources_are_on(&plain, &["channels"]).await;

    // Three threads of one service: one works normally, one dies while the watchdog of its process keeps renewing, and
    // one has a lease that is shorter than its work.
    let mut java = Foreign::connect(&redis).await?;
    let holder = java.holder.clone();
    java.lease_ms = LEASE_MS;
    assert!(java.lock("healthy").await? && java.lock("dead").await?);
    let healthy = Watchdog::start(&redis, &holder, "healthy").await?;
    let renews_on = Watchdog::start(&redis, &holder, "dead").await?;
    let mut brief = Foreign::connect(&redis).await?;
    assert!(brief.lock("short").await?);
    for dashboard in [&seeing, &plain] {
        lock_when(dashboard, "short", |lock| lock["state"] == "held").await;
    }
    // The lease is shortened as soon as both dashboards have seen the lock.
    direct.call("PEXPIRE short 300").await?.ok()?;
    for dashboard in [&seeing, &plain] {
        lock_when(dashboard, "short", |lock| lock["state"] == "free").await;
    }
    assert!(!brief.unlock("short").await?, "by now someone else could have it");
    let lock = lock_when(&seeing, "short", |lock| problems(lock) == ["expired"]).await;
    let problem = &lock["problems"][0];
    assert_eq!(problem["certainty"], "certain", "{lock:#}");
    let evidence = problem["evidence"].to_string();
    assert!(evidence.contains(&holder) && evidence.contains("tried to release"), "{evidence}");
    // Without MONITOR only the end of a fixed lease is visible, so no problem is reported.
    let lock = lock_of(&plain, "short").await?;
    assert!(problems(&lock).is_empty(), "{lock:#}");

    for dashboard in [&seeing, &plain] {
        // Each request reads its lock, so renewals of both are noticed at once.
        let (dead, healthy) = tokio::join!(
            lock_when(dashboard, "dead", |lock| problems(lock) == ["stuck"]),
            lock_when(dashboard, "healthy", |lock| lock["renewed"] == true),
        );
        let problem = &dead["problems"][0];
        assert_eq!(problem["certainty"], "certain", "{dead:#}");
        assert!(problem["advice"].to_string().contains("Thread.print"), "{problem:#}");
        assert_eq!(dead["state"], "held", "its time to live says nothing of its thread");
        assert!(problems(&healthy).is_empty(), "{healthy:#}");
    }
    healthy.stop().await?;
    assert!(java.unlock("healthy").await?);
    for dashboard in [&seeing, &plain] {
        let lock = lock_when(dashboard, "healthy", |lock| lock["state"] == "free").await;
        assert!(problems(&lock).is_empty(), "{lock:#}");
        eventually("one stuck lock in the metrics", async || {
            let metrics = dashboard.metrics().await?;
            let name = "lockscope_dashboard_problems_detected_total";
            let found = |problem| metrics.sum(name, &[("problem", problem)]);
            ensure!(found("stuck") == 1.0, "{}", found("stuck"));
            for never in ["deadlock", "leaked", "starving", "malformed", "orphan"] {
                ensure!(found(never) == 0.0, "{never}");
            }
            Ok(())
        })
        .await;
    }
    renews_on.stop().await?;
    Ok(())
}
