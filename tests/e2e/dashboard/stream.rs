//! The streams: JSON for programs, patches for pages.

use anyhow::{Context as _, Result, ensure};
use harness::http::EventStream;
use harness::process::memory;
use harness::{Foreign, eventually};
use serde_json::Value;

use super::{Bench, take};

/// Reads events until one fits.
async fn until(
    stream: &mut EventStream,
    what: &str,
    fits: impl Fn(&str, &Value) -> bool,
) -> Result<String> {
    for _ in 0..1_000 {
        let event = stream.next().await.with_context(|| format!("waiting for {what}"))?;
        let data = serde_json::from_str(&event.data).unwrap_or_default();
        if fits(&event.event, &data) {
            return Ok(event.id);
        }
    }
    anyhow::bail!("a thousand events without {what}")
}

#[tokio::test]
async fn a_program_gets_everything_then_what_changes() -> Result<()> {
    let bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("before").await?);
    bench.listed("before", |_| true).await;
    let mut stream = EventStream::open(bench.dashboard.port(), "/api/v1/stream").await?;
    let holds = |data: &Value, name: &str| data.to_string().contains(&format!("\"{name}\""));
    until(&mut stream, "the snapshot", |event, data| event == "snapshot" && holds(data, "before"))
        .await?;
    assert!(java.lock("later").await?);
    let id = until(&mut stream, "the new lock", |event, data| {
        event != "snapshot" && holds(data, "later")
    })
    .await?;
    assert!(!id.is_empty(), "so that it can be resumed");
    assert!(java.unlock("later").await?);
    until(&mut stream, "its release", |_, data| {
        holds(data, "later") && data.to_string().contains("\"free\"")
            || data["removed"].to_string().contains("later")
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn programs_that_read_nothing_share_the_changes_that_they_have_not_read() -> Result<()> {
    const LOCKS: usize = 300;
    const DEAF: u64 = 400;
    /// More than the buffers between the dashboard and a client can hold.
    const MUCH: usize = 12 << 20;
    let mut bench = Bench::with(&["--monitor", "off"]).await?;
    let names: Vec<String> = (0..LOCKS).map(|i| format!("{i}:{}", "x".repeat(400))).collect();
    for name in &names {
        take(&mut bench.direct, name).await?;
    }
    eventually("all locks in the list", async || {
        let list = bench.dashboard.json("/api/v1/locks?limit=1").await?;
        ensure!(list["total"] == LOCKS, "{list}");
        Ok(())
    })
    .await;
    let (port, pid) = (bench.dashboard.port(), bench.dashboard.process().pid());
    let mut quick = EventStream::open(port, "/api/v1/stream").await?;
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        deaf.push(EventStream::open(port, "/api/v1/stream").await?);
    }
    let (before, mut sent) = (memory(pid)?, 0);
    while sent < MUCH {
        for name in &names {
            bench
                .direct
                .call(&format!("PUBLISH redisson_lock__channel:{{{name}}} 0"))
                .await?
                .ok()?;
        }
        sent += quick.next().await?.data.len();
    }
    let each = memory(pid)?.saturating_sub(before) / DEAF;
    ensure!(each < 200 << 10, "{each} bytes for each stream that nobody reads");
    Ok(())
}

#[tokio::test]
async fn a_page_gets_patches_for_its_view_only() -> Result<()> {
    let bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    let path = "/live?path=%2F%3Ffilter%3Dorders%3A*";
    let mut stream = EventStream::open(bench.dashboard.port(), path).await?;
    assert!(java.lock("invoices:1").await?);
    assert!(java.lock("orders:1").await?);
    until(&mut stream, "the row", |event, data| {
        assert!(!data.to_string().contains("invoices:1"), "not of this view: {data}");
        event == "patch" && data.to_string().contains("orders:1")
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn streams_end_when_the_dashboard_does() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(EventStream::open(bench.dashboard.port(), "/api/v1/stream").await?);
    }
    bench.dashboard.process().terminate()?;
    let status = bench.dashboard.process().end().await;
    assert!(status.success(), "{status}");
    for mut stream in streams {
        while stream.next().await.is_ok() {}
    }
    Ok(())
}
