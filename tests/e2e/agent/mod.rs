//! The agent as a separate process, on a real Redis, with workers on its socket.

mod cluster;
mod commands;
mod death;
mod drain;
mod events;
mod fair;
mod fenced;
mod foreign;
mod grace;
mod http;
mod kinds;
mod leases;
mod locks;
mod lost;
mod multi;
mod neighbours;
mod outage;
mod partition;
mod policy;
mod protocol;
mod queue;
mod read_write;
mod red;
mod registry;
pub(crate) mod replicas;
mod sentinel;
mod sockets;
pub(crate) mod state_folder;
mod stopped;
mod two_agents;
mod upgrade;

pub(crate) use http::promtool;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, RedisServer, Reply, eventually};

/// A Redis, an agent that uses it, and a direct connection to that Redis, which bypasses the agent.
pub(crate) struct Bench {
    pub(crate) agent: Agent,
    pub(crate) redis: RedisServer,
    pub(crate) direct: Client,
}

impl Bench {
    /// Starts an agent without additional flags.
    pub(crate) async fn new() -> Result<Self> {
        Self::with(&[]).await
    }

    pub(crate) async fn with(flags: &[&str]) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let direct = redis.client().await?;
        Ok(Self { agent: Agent::with(&redis, flags).await?, redis, direct })
    }

    /// Starts another agent, with a separate state, on the same Redis.
    pub(crate) async fn another_agent(&self, flags: &[&str]) -> Result<Agent> {
        Agent::with(&self.redis, flags).await
    }

    pub(crate) async fn session(&self) -> Result<Client> {
        self.agent.client().await
    }

    /// Returns the holders in Redis, with their counts.
    pub(crate) async fn holders(&mut self, name: &str) -> Result<Vec<(String, String)>> {
        let reply = self.direct.call_args(&["HGETALL", name]).await?.ok()?;
        Ok(reply.items()?.chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect())
    }

    pub(crate) async fn pttl(&mut self, name: &str) -> Result<i64> {
        self.direct.call_args(&["PTTL", name]).await?.int()
    }

    pub(crate) async fn is_free(&mut self, name: &str) -> Result<bool> {
        Ok(self.pttl(name).await? == -2)
    }

    /// Waits until the lock does not exist in Redis.
    pub(crate) async fn until_free(&mut self, name: &str) {
        eventually("the lock to be free in Redis", async || {
            let holders = self.holders(name).await?;
            ensure!(holders.is_empty(), "{holders:?}");
            Ok(())
        })
        .await;
    }

    /// Waits until that many LOCK commands for this name wait in the agent.
    pub(crate) async fn until_waiting(&self, name: &str, count: usize) -> Result<()> {
        let mut client = self.session().await?;
        eventually("that many waiters", async || {
            let waiting = rows(&mut client, name).await?;
            let waiting = waiting.iter().filter(|row| row.state == "waiting").count();
            ensure!(waiting == count, "{waiting} of {count} wait");
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Waits until the agent's metric has at least this value.
    pub(crate) async fn until_metric(&self, metric: &str, labels: &[(&str, &str)], at_least: f64) {
        eventually(metric, async || {
            let value = self.agent.metrics().await?.sum(metric, labels);
            ensure!(value >= at_least, "{value} of {at_least}");
            Ok(())
        })
        .await;
    }
}

/// A row of LOCKS.
#[derive(Debug)]
struct Row {
    lock: String,
    state: String,
    whole: Reply,
}

/// Returns the rows of LOCKS with exactly this name.
async fn rows(client: &mut Client, name: &str) -> Result<Vec<Row>> {
    let reply = client.call_args(&["LOCKS", "MATCH", name, "COUNT", "1000"]).await?.ok()?;
    let rows = reply.items()?[1].items()?.iter();
    rows.map(|row| {
        let text = |key| anyhow::Ok(row.field(key)?.text());
        Ok(Row { lock: text("lock")?, state: text("state")?, whole: row.clone() })
    })
    .collect()
}

/// Acquires a free lock and returns the reply to LOCK.
pub(crate) async fn lock(client: &mut Client, command: &str) -> Result<Reply> {
    let reply = client.call(command).await?.ok()?;
    ensure!(reply != Reply::Null, "`{command}` was not granted");
    Ok(reply)
}

/// Repeats a command until Redis, on a busy machine, answers in time, and returns the reply.
pub(crate) async fn answered(client: &mut Client, command: &str) -> Reply {
    eventually("Redis to answer in time", async || {
        let reply = client.call(command).await?;
        ensure!(!reply.is_error("UNAVAILABLE"), "{reply}");
        Ok(reply)
    })
    .await
}

/// Checks the reply to the UNLOCK of a lock that was held once. The agent keeps trying if Redis answers late.
pub(crate) fn ensure_released(reply: &Reply) -> Result<()> {
    ensure!(*reply == Reply::Int(0) || reply.is_error("UNAVAILABLE"), "{reply}");
    Ok(())
}

/// Returns whether an event or a push with this first word is about a risk, as a stall of Redis or the agent causes it.
fn is_warning(word: &str) -> bool {
    ["jeopardy", "safe", "lock-jeopardy", "lock-safe"].contains(&word)
}

/// Returns the only event in a reply to EVENTS that is not a warning, if there is one. It must be the last.
pub(crate) fn news(events: &Reply) -> Result<Option<String>> {
    let warns = |event: &&Reply| event.items().is_ok_and(|words| is_warning(&words[0].text()));
    let mut news = events.items()?.iter().skip_while(warns);
    let found = news.next().map(Reply::text);
    assert!(news.next().is_none(), "{events}");
    Ok(found)
}

/// Returns the session's next event, except for warnings.
pub(crate) async fn until_lost(client: &mut Client, ticket: &str) -> String {
    eventually("a loss", async || {
        let events = client.call(&format!("EVENTS {ticket} WAIT 5000")).await?.ok()?;
        news(&events)?.with_context(|| format!("only {events}"))
    })
    .await
}

/// Returns the session's next push, except for warnings.
pub(crate) async fn pushed(client: &mut Client) -> Result<Vec<String>> {
    loop {
        let push = client.push().await?;
        if !is_warning(&push[0]) {
            return Ok(push);
        }
    }
}

/// Returns the holder in the reply to LOCK.
pub(crate) fn holder(reply: &Reply) -> Result<String> {
    Ok(reply.field("holder")?.text())
}

/// Returns the session's id and secret as two words.
pub(crate) async fn credentials(client: &mut Client) -> Result<String> {
    let reply = client.call("SESSION").await?.ok()?;
    Ok(format!("{} {}", reply.field("id")?, reply.field("secret")?))
}

/// Asserts that a reply is an error with this code whose message contains `named`.
#[track_caller]
pub(crate) fn assert_error(reply: &Reply, code: &str, named: &str) {
    assert!(reply.is_error(code), "expected -{code}, got {reply}");
    let sentence = reply.error().unwrap_or_default();
    assert!(sentence.contains(named), "`{named}` is not in: {sentence}");
    assert!(sentence.len() < 1_000, "an error is a sentence: {sentence}");
}
