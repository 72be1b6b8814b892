//! Waiters of agents: counted and named without MONITOR.

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, Foreign, RedisServer, eventually};
use serde_json::Value;

use super::Bench;
use super::browsing::listener;

/// Connects a worker and sends its first command.
async fn waiter(agent: &Agent, command: &str) -> Result<Client> {
    let mut waiter = agent.client().await?;
    waiter.send(command).await?;
    Ok(waiter)
}

/// Waits until this many workers of the agent wait for the lock: one that comes later is granted it after them.
async fn queued(agent: &Agent, lock: &str, count: usize) -> Result<()> {
    let mut other = agent.client().await?;
    eventually("the queue", async || {
        let rows = other.call(&format!("LOCKS MATCH {lock}")).await?.ok()?.text();
        ensure!(rows.matches("waiting").count() == count, "{rows}");
        Ok(())
    })
    .await;
    Ok(())
}

/// Starts workers of that agent, which wait for a lock in this order.
async fn waiters(agent: &Agent, count: usize) -> Result<Vec<Client>> {
    let mut waiters = Vec::new();
    for i in 0..count {
        let mut waiter = agent.client().await?;
        waiter.call(&format!("CLIENT SETNAME waiter-{i}")).await?.ok()?;
        waiter.send("LOCK orders:42").await?;
        waiters.push(waiter);
        queued(agent, "orders:42", waiters.len()).await?;
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

#[tokio::test]
async fn workers_that_wait_for_a_red_lock_are_seen_on_its_servers() -> Result<()> {
    let bench = Bench::with(&["--monitor", "off", "--scan-every", "1s"]).await?;
    let (main, second, third) =
        (RedisServer::start().await?, RedisServer::start().await?, RedisServer::start().await?);
    let urls = [bench.redis.url(), second.url(), third.url()];
    let flags: Vec<&str> = urls.iter().flat_map(|url| ["--redlock-url", url]).collect();
    let agent = Agent::with(&main, &flags).await?;
    let mut holder = agent.client().await?;
    holder.call("LOCK orders:42 KIND red").await?.ok()?;
    let mut queue = Vec::new();
    for _ in 0..5 {
        queue.push(waiter(&agent, "LOCK orders:42 KIND red").await?);
        queued(&agent, "orders:42", queue.len()).await?;
    }
    // The servers of red locks hear of no other kind, and the main Redis hears of no red lock.
    holder.call("LOCK plain").await?.ok()?;
    queue.push(waiter(&agent, "LOCK plain").await?);
    bench.listed("orders:42", counts(5, true)).await;
    let pid = u64::from(std::process::id());
    let lock = bench.listed("orders:42", |lock| lock["waiters"][4]["client"]["pid"] == pid).await;
    let key = format!("lockscope:waiters:{{{}}}", agent_of(&lock)?);
    eventually("the waiters to be published on all servers", async || {
        for (server, name) in [
            (&bench.redis, "orders:42"),
            (&second, "orders:42"),
            (&third, "orders:42"),
            (&main, "plain"),
        ] {
            let value = server.client().await?.call(&format!("GET {key}")).await?.text();
            let value: Value = serde_json::from_str(&value)?;
            let locks = value["locks"].as_array().map(Vec::as_slice).unwrap_or_default();
            ensure!(matches!(locks, [one] if one["lock"] == name), "{name}: {value}");
        }
        Ok(())
    })
    .await;
    holder.call("UNLOCK orders:42").await?.ok()?;
    queue[0].reply().await?.ok()?;
    bench.listed("orders:42", counts(4, true)).await;
    Ok(())
}

/// Returns the uuid of the agent that holds the lock.
fn agent_of(lock: &Value) -> Result<&str> {
    let id = lock["holders"][0]["id"].as_str().unwrap_or_default();
    id.split_once(':').map(|(uuid, _)| uuid).context("no holder")
}
