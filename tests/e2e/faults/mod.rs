//! Real failures of Redis, of the path to it, of workers and of agents: those that faults.md lists.

mod clocks;
mod floods;
mod judge;
mod links;
mod managed;
mod replies;
mod server;
mod stalls;

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use harness::proxy::{Flow, Line, Place, Way};
use harness::{Agent, Client, Proxy, RedisServer, Reply, eventually};

use crate::agent::{
    Bench, answered, assert_error, credentials, ensure_released, holder, lock, pushed,
};

/// The names that an agent gives its connections.
const COMMANDS: &str = "lockscope-agent";
const RENEWALS: &str = "lockscope-agent-renewals";
const MESSAGES: &str = "lockscope-agent-messages";

/// The maximum number of connections that are held in turn until one of them holds a script.
const MAX_LINES: usize = 100;

/// A lease that does not end within a test and for which no renewal is due.
const LONG: &[&str] = &["--lease", "10m"];
/// A lease that is long enough for a busy machine and short enough for a test to see it end.
const SHORT: &[&str] = &["--lease", "6s"];
/// A lease with six seconds between a renewal and the warning without it, and between that and the loss: a busy machine
/// may stall for so long.
const MEDIUM: &[&str] = &["--lease", "20s"];

/// Starts a Redis, an agent that reaches it through a proxy, and the proxy.
async fn stage(flags: &[&str]) -> Result<(Bench, Proxy)> {
    on(RedisServer::start().await?, flags).await
}

/// Like [`stage`], with this Redis.
async fn on(redis: RedisServer, flags: &[&str]) -> Result<(Bench, Proxy)> {
    let proxy = Proxy::tcp(Place::Port(redis.port())).await?;
    let agent = Agent::at(&proxy.url(), flags).await?;
    ready(&agent).await;
    for link in [COMMANDS, RENEWALS, MESSAGES] {
        proxy.line(link).await;
    }
    let direct = redis.client().await?;
    Ok((Bench { agent, redis, direct }, proxy))
}

/// Waits until an agent reports that it is ready.
async fn ready(agent: &Agent) {
    eventually("the agent to be ready", async || {
        let ready = harness::http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    })
    .await;
}

/// Waits until an agent reports that it is not ready, with `reason` among its reasons.
async fn unready(agent: &Agent, reason: &str) {
    eventually("the agent not to be ready", async || {
        let ready = harness::http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 503 && ready.body.contains(reason), "{}", ready.body);
        Ok(())
    })
    .await;
}

/// Asserts that this is the only holder in Redis, with a hold count of one.
async fn assert_held_by(bench: &mut Bench, name: &str, holder: &str) -> Result<()> {
    let holders = bench.holders(name).await?;
    assert_eq!(holders, [(holder.to_owned(), "1".to_owned())], "{name}");
    Ok(())
}

/// Releases a lock that is held once and for which nobody waits. The agent keeps trying if Redis answers late; after 0
/// the lock is free.
async fn release(bench: &mut Bench, worker: &mut Client, name: &str) -> Result<()> {
    let reply = worker.call(&format!("UNLOCK {name}")).await?;
    ensure_released(&reply)?;
    if reply == Reply::Int(0) {
        assert!(bench.is_free(name).await?, "{name} is released");
    }
    bench.until_free(name).await;
    Ok(())
}

/// Holds a script on its way over a connection of that name, and returns the connection. The agent may also close one
/// for another reason, and sends nothing over it any more.
async fn hold_a_script(proxy: &Proxy, name: &str) -> Result<Arc<Line>> {
    for _ in 0..MAX_LINES {
        let line = proxy.line(name).await;
        line.set(Way::Up, Flow::HoldFrom("EVALSHA"));
        let held = eventually("a script, or another line", async || {
            // A connection may have held another script before.
            let held = line.held(Way::Up) > 0 && line.is_holding_a_script();
            let newest = proxy.line(name).await;
            ensure!(held || !Arc::ptr_eq(&line, &newest), "neither");
            Ok(held)
        })
        .await;
        if held {
            return Ok(line);
        }
        line.cut();
    }
    bail!("none of {MAX_LINES} lines held a script")
}

/// Returns the number of holds that the agent has lost so far.
async fn lost(agent: &Agent) -> Result<f64> {
    Ok(agent.metrics().await?.sum("lockscope_agent_lost_holds_total", &[]))
}
