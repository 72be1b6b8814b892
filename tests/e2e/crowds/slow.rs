//! Workers that do not read what they are told.

use anyhow::{Result, ensure};
use harness::{Client, within};

use super::{Crowd, LONG, all, send_all};

#[tokio::test]
async fn who_does_not_read_costs_bounded_memory_and_nobody_else_waits() -> Result<()> {
    const DEAF: usize = 30;
    let crowd = Crowd::new(&[]).await?;
    let mut worker = crowd.agent.client().await?;
    let locks: Vec<String> = (0..5_000).map(|i| format!("LOCK heard:{i}")).collect();
    all(&mut worker, &locks).await?;
    let before = crowd.memory()?;
    // A page of a thousand rows is some 200 KB; two hundred are asked for by each.
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        let mut client: Client = crowd.agent.client().await?;
        send_all(&mut client, &vec!["LOCKS COUNT 1000".to_owned(); 200]).await?;
        deaf.push(client);
    }
    within(LONG, "their buffers to be full", async || {
        let asked = crowd.figure("lockscope_agent_commands_total", &[("command", "locks")]).await?;
        worker.call("PING").await?.ok()?;
        let more = crowd.figure("lockscope_agent_commands_total", &[("command", "locks")]).await?;
        ensure!(asked > 0.0 && more == asked, "{more} pages and going on");
        Ok(())
    })
    .await;
    let each = (crowd.memory()?.saturating_sub(before)) / DEAF as u64;
    ensure!(each < 12 << 20, "{each} bytes for each who does not read");
    for i in 0..100 {
        ensure!(worker.call(&format!("UNLOCK heard:{i}")).await?.int()? == 0);
    }
    // Who reads after all gets everything.
    for _ in 0..200 {
        let page = deaf[0].reply().await?.ok()?;
        ensure!(!page.items()?[1].items()?.is_empty(), "an empty page");
    }
    drop(deaf);
    crowd.until_figure("lockscope_agent_sessions", &[], 1.0).await;
    crowd.nothing_is_lost().await?;
    Ok(())
}
