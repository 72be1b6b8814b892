//! Workers that do not read their replies and pushes.

use anyhow::{Result, ensure};
use harness::{Client, eventually};

use super::{Crowd, all, send_all};

#[tokio::test]
async fn a_client_that_does_not_read_uses_bounded_memory_and_delays_no_other() -> Result<()> {
    const DEAF: usize = 30;
    let crowd = Crowd::new(&[]).await?;
    let mut worker = crowd.agent.client().await?;
    let locks: Vec<String> = (0..5_000).map(|i| format!("LOCK heard:{i}")).collect();
    all(&mut worker, &locks).await?;
    let before = crowd.memory()?;
    // A page of a thousand rows is about 200 KB; each client requests two hundred.
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        let mut client: Client = crowd.agent.client().await?;
        send_all(&mut client, &vec!["LOCKS COUNT 1000".to_owned(); 200]).await?;
        deaf.push(client);
    }
    eventually("their buffers to be full", async || {
        let asked = crowd.figure("lockscope_agent_commands_total", &[("command", "locks")]).await?;
        worker.call("PING").await?.ok()?;
        let more = crowd.figure("lockscope_agent_commands_total", &[("command", "locks")]).await?;
        ensure!(asked > 0.0 && more == asked, "{more} pages, and counting");
        Ok(())
    })
    .await;
    let each = (crowd.memory()?.saturating_sub(before)) / DEAF as u64;
    ensure!(each < 12 << 20, "{each} bytes for each who does not read");
    for i in 0..100 {
        ensure!(worker.call(&format!("UNLOCK heard:{i}")).await?.int()? == 0);
    }
    // A client that starts to read gets everything.
    for _ in 0..200 {
        let page = deaf[0].reply().await?.ok()?;
        ensure!(!page.items()?[1].items()?.is_empty(), "an empty page");
    }
    drop(deaf);
    crowd.until_figure("lockscope_agent_sessions", 1.0).await;
    crowd.nothing_is_lost().await?;
    Ok(())
}

#[tokio::test]
async fn pushes_that_nobody_reads_are_dropped_and_counted() -> Result<()> {
    let crowd = Crowd::new(&["--lease", "6s"]).await?;
    let mut deaf = crowd.agent.client3().await?;
    deaf.call("SESSION PUSH on DEADLINES on").await?.ok()?;
    // Long names soon fill the agent's buffer for a reader.
    let (tail, mut renewed) = ("x".repeat(500), 0);
    let locks: Vec<String> = (0..2_000).map(|i| format!("LOCK {i}:{tail}")).collect();
    for reply in all(&mut deaf, &locks).await? {
        ensure!(reply.field("holds")?.int()? == 1, "{reply}");
    }
    let before = crowd.memory()?;
    eventually("pushes to be dropped", async || {
        let figures = crowd.agent.metrics().await?;
        let dropped = figures.sum("lockscope_agent_events_dropped_total", &[]);
        ensure!(dropped >= 1_000.0, "{dropped}");
        // Each renewal is one event, which is dropped at most once.
        let renewals = figures.sum("lockscope_agent_renewals_total", &[]);
        assert!(dropped < renewals, "{dropped} of {renewals} events");
        Ok(())
    })
    .await;
    let grown = crowd.memory()?.saturating_sub(before);
    ensure!(grown < 16 << 20, "{grown} bytes for one who does not read");
    let mut other = crowd.agent.client().await?;
    other.call("LOCK other").await?.ok()?;
    crowd.nothing_is_lost().await?;
    // A client that starts to read gets complete events, and then the reply.
    deaf.send("PING").await?;
    ensure!(deaf.reply().await?.text() == "PONG");
    while deaf.pushes() > 0 {
        let event = deaf.push().await?;
        ensure!(event[0] == "lock-valid" && event[1].ends_with(&tail), "{event:?}");
        renewed += 1;
    }
    ensure!(renewed > 1_000, "{renewed} events came");
    Ok(())
}
