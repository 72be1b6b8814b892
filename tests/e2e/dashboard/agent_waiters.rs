//! Waiters of agents: counted and named without MONITOR.

use anyhow::{Result, ensure};
use harness::{Agent, Client, Foreign, eventually};
use serde_json::Value;

use super::Bench;
use super::browsing::listener;

/// Connects a worker and sends its first command.
async fn waiter(agent: &Agent, command: &str) -> Result<Client> {
    let mut waiter = agent.client().await?;
    waiter.send(command).await?;
    Ok(waiter)
}

/// Starts workers of that agent, which wait for a lock.
async fn waiters(agent: &Agent, count: usize) -> Result<Vec<Client>> {
    let mut waiters = Vec::new();
    for i in 0..count {
        let mut waiter = agent.client().await?;
        waiter.call(&format!("CLIENT SETNAME waiter-{i}")).await?.ok()?;
        waiter.send("LOCK orders:42").await?;
        waiters.push(waiter);
    }
    Ok(waiters)
}

fn counts(wanted: u64, exact: bool) -> impl Fn(&Value) -> bool {
    move |lock| lock["waiting"] == wanted && lock["waiters_exact"] == exact
}

#[tokio::test]
async fn workers_that_wait_at_agents_are_counted_exactly() -> Result<()> {
    let bench = Bench::with(&["--monitor", "off", "--scan-every", "1s"]).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("orders:42").await?, "taken");
    let one = Agent::start(&bench.redis).await?;
    let other = Agent::start(&bench.redis).await?;
    let mut at_one = waiters(&one, 10).await?;
    let lock = bench.listed("orders:42", counts(10, true)).await;
    let named = lock["waiters"].as_array().map(Vec::len).unwrap_or_default();
    ensure!(named == 8, "the first ones are named: {lock}");
    let lock =
        bench.listed("orders:42", |lock| lock["waiters"][0]["client"]["name"] == "waiter-0").await;
    ensure!(lock["waiters"][0]["since"]["exact"] == true, "{lock}");
    let at_other = waiters(&other, 3).await?;
    bench.listed("orders:42", counts(13, true)).await;

    // A client that is only subscribed may represent several threads.
    let listening = listener(&bench, "orders:42").await?;
    bench.listed("orders:42", counts(14, false)).await;
    drop(listening);
    bench.listed("orders:42", counts(13, true)).await;

    // The tree of waits shows them, and the waiters for their locks.
    let mut behind = waiter(&other, "LOCK cart:7").await?;
    behind.reply().await?.ok()?;
    behind.send("LOCK orders:42").await?;
    let mut last = waiter(&one, "LOCK cart:7").await?;
    eventually("the tree of waits", async || {
        let blockers = bench.dashboard.json("/api/v1/blockers").await?;
        let root = &blockers["blockers"][0];
        let depths: Vec<_> = root["tree"].as_array().into_iter().flatten().collect();
        let second = depths.get(1).map(|step| &step["lock"]["name"]);
        ensure!(root["blocks"] == 15 && second == Some(&"cart:7".into()), "{blockers}");
        Ok(())
    })
    .await;
    drop(behind);
    last.reply().await?.ok()?;

    // One of them acquires it; the rest then wait for a hold of their own agent.
    drop(at_other);
    bench.listed("orders:42", counts(10, true)).await;
    ensure!(java.unlock("orders:42").await?, "lost");
    at_one[0].reply().await?.ok()?;
    bench.listed("orders:42", counts(9, true)).await;
    drop(at_one);
    bench.until_not_listed("orders:42").await;
    Ok(())
}
