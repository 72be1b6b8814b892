//! The agent, the Redis and the library of a scenario.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, RedisServer, eventually, within};
use serde_json::Value;

use super::Library;
use super::driver::Driver;

/// A lease that does not end within a scenario.
pub(super) const LONG: &str = "2m";
/// A lease that is long enough for a busy machine and short enough for a test to see it end.
pub(super) const SHORT: &str = "6s";
/// A limit below the grace of a minute that the agent gives a broken connection: locks that end earlier were released.
pub(super) const BEFORE_GRACE: Duration = Duration::from_secs(45);

pub(super) struct Stage {
    pub(super) redis: RedisServer,
    pub(super) agent: Agent,
    /// A connection to Redis, and another worker of the agent.
    pub(super) direct: Client,
    pub(super) other: Client,
    pub(super) driver: Driver,
}

impl Stage {
    pub(super) async fn new(library: &Library) -> Result<Self> {
        Self::with(library, &["--lease", LONG]).await
    }

    pub(super) async fn with(library: &Library, flags: &[&str]) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let agent = Agent::with(&redis, flags).await?;
        let driver = Driver::start(library, &agent.socket())?;
        let (direct, other) = (redis.client().await?, agent.client().await?);
        Ok(Self { redis, agent, direct, other, driver })
    }

    /// Starts a driver that reaches the agent through another socket.
    pub(super) fn connect(&mut self, library: &Library, socket: &Path) -> Result<()> {
        self.driver = Driver::start(library, socket)?;
        Ok(())
    }

    pub(super) async fn holder(&mut self, name: &str) -> Result<String> {
        Ok(self.direct.call(&format!("HKEYS {name}")).await?.ok()?.text())
    }

    pub(super) async fn is_free(&mut self, name: &str) -> Result<bool> {
        Ok(self.direct.call(&format!("EXISTS {name}")).await?.int()? == 0)
    }

    pub(super) async fn freed(&mut self, name: &str) {
        eventually("the lock to be free", async || {
            ensure!(self.is_free(name).await?, "it is held");
            Ok(())
        })
        .await;
    }

    /// Waits until the lock is released, which must not be due to the end of a grace.
    pub(super) async fn released(&mut self, name: &str) {
        within(BEFORE_GRACE, "the lock to be released", async || {
            ensure!(self.is_free(name).await?, "it is held");
            Ok(())
        })
        .await;
    }

    pub(super) async fn waits(&mut self, name: &str, expected: bool) {
        eventually("the number of waiters", async || {
            let rows = self.other.call(&format!("LOCKS MATCH {name}")).await?.ok()?.text();
            ensure!(rows.contains("waiting") == expected, "{rows}");
            Ok(())
        })
        .await;
    }

    /// Has the agent drain until it is restarted. It leaves holds with grace to its successor at once, but waits for the end of a
    /// hold without.
    pub(super) async fn drain(&mut self) -> Result<()> {
        self.other_has("LOCK keeper").await?;
        self.agent.process().terminate()?;
        eventually("the agent to drain", async || {
            let reply = self.other.call("LOCK other NOWAIT").await?.text();
            ensure!(reply.contains("DRAINING"), "{reply}");
            Ok(())
        })
        .await;
        Ok(())
    }

    pub(super) async fn other_has(&mut self, command: &str) -> Result<()> {
        self.other.call(command).await?.ok()?;
        Ok(())
    }
}

pub(super) fn number(answer: &Value, field: &str) -> Result<i64> {
    answer[field].as_i64().with_context(|| format!("no number {field}: {answer}"))
}
