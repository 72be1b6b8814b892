//! The dashboard as a separate process, on a Redis where an agent and other clients hold locks.

mod agent_waiters;
mod browser;
mod browsing;
mod calm;
mod clock;
mod cluster;
mod cluster_sources;
mod description;
mod discovery;
mod doctor;
mod forms;
mod hanging_files;
mod history;
mod layout;
mod lists;
mod live_pages;
mod lock_then;
mod monitor;
mod pages;
mod problems;
mod refusals;
mod replica;
mod sentinel;
mod signing;
mod stream;
mod trace;
mod visitors;
mod watchdog;

use anyhow::{Result, ensure};
use harness::{Client, Dashboard, RedisServer, eventually};
use serde_json::Value;

/// A Redisson client's thread.
const HOLDER: &str = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";

/// A Redis, a dashboard that observes it, and a connection to that Redis.
struct Bench {
    dashboard: Dashboard,
    redis: RedisServer,
    direct: Client,
}

impl Bench {
    async fn new() -> Result<Self> {
        Self::with(&[]).await
    }

    async fn with(flags: &[&str]) -> Result<Self> {
        Self::on(RedisServer::start().await?, flags).await
    }

    async fn on(redis: RedisServer, flags: &[&str]) -> Result<Self> {
        let direct = redis.client().await?;
        Ok(Self { dashboard: Dashboard::start(&redis.url(), flags).await?, redis, direct })
    }

    /// Returns the lock of this name in the list, once it is there and `fits`.
    async fn listed(&self, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("`{name}` in the list"), async || {
            let list = self.dashboard.json("/api/v1/locks?limit=100").await?;
            let lock = find(&list, name).cloned();
            ensure!(lock.as_ref().is_some_and(&fits), "{}", lock.unwrap_or(list));
            Ok(lock.unwrap_or_default())
        })
        .await
    }

    /// Waits until the list has no lock of this name.
    async fn until_not_listed(&self, name: &str) {
        eventually(&format!("`{name}` to leave the list"), async || {
            let list = self.dashboard.json("/api/v1/locks?limit=100").await?;
            ensure!(find(&list, name).is_none(), "{list}");
            Ok(())
        })
        .await;
    }
}

/// Returns the lock of this name in a list.
fn find<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list["locks"].as_array()?.iter().find(|lock| lock["name"] == name)
}

/// Returns the names of a lock's problems.
pub(crate) fn problems(lock: &Value) -> Vec<String> {
    let problems = lock["problems"].as_array().into_iter().flatten();
    problems.map(|problem| problem["problem"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Acquires a lock as Redisson does, for longer than any test lasts.
pub(crate) async fn take(direct: &mut Client, name: &str) -> Result<()> {
    direct.call(&format!("HINCRBY {name} {HOLDER} 1")).await?.ok()?;
    direct.call(&format!("PEXPIRE {name} 3600000")).await?.ok()?;
    Ok(())
}

/// Returns the lock as the API reports it, once it `fits`.
pub(crate) async fn lock(
    dashboard: &Dashboard,
    name: &str,
    fits: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&format!("`{name}` to be as it should"), async || {
        let lock = dashboard.json(&format!("/api/v1/lock?name={name}")).await?;
        ensure!(fits(&lock), "{lock}");
        Ok(lock)
    })
    .await
}

pub(crate) fn held(lock: &Value) -> bool {
    lock["state"] == "held" && lock["confirmed"] == true
}
