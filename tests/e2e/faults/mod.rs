//! Real failures of Redis, of the path to it, of workers and of agents: those that faults.md lists.

mod clocks;
mod floods;
mod judge;
mod links;
mod managed;
mod replies;
mod server;
mod stalls;

use anyhow::{Result, ensure};
use harness::proxy::Place;
use harness::{Agent, Proxy, RedisServer, eventually};

use crate::agent::{Bench, assert_error, credentials, holder, lock};

/// The names that an agent gives its connections.
const COMMANDS: &str = "lockscope-agent";
const RENEWALS: &str = "lockscope-agent-renewals";
const MESSAGES: &str = "lockscope-agent-messages";

/// A lease that does not end within a test and for which no renewal is due.
const LONG: &[&str] = &["--lease", "10m"];
/// A lease that is long enough for a busy machine and short enough for a test to see it end.
const SHORT: &[&str] = &["--lease", "6s"];
/// A lease of which a busy machine has enough left, after a warning, to renew it in time.
const MEDIUM: &[&str] = &["--lease", "12s"];

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

/// Returns the number of holds that the agent has lost so far.
async fn lost(agent: &Agent) -> Result<f64> {
    Ok(agent.metrics().await?.sum("lockscope_agent_lost_holds_total", &[]))
}
