//! Crowds: as many sessions, holds and waiters as one agent is designed for, all at once, and workers that do not read.
//!
//! The tests run one at a time, since each is load enough for a small machine.

mod descriptors;
mod holds;
mod sessions;
mod slow;
mod waiters;

use anyhow::{Context as _, Result, ensure};
use harness::client::encode;
use harness::process::memory;
use harness::{Agent, Client, RedisServer, Reply, eventually, redis};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Mutex, MutexGuard};

/// The number of commands sent before replies are read: just below the limit of a session.
const PIPELINE: usize = 1_000;

/// An agent with its own Redis for a crowd. Only one test of crowds runs at a time.
struct Crowd {
    agent: Agent,
    redis: RedisServer,
    _alone: MutexGuard<'static, ()>,
}

impl Crowd {
    async fn new(flags: &[&str]) -> Result<Self> {
        static ALONE: Mutex<()> = Mutex::const_new(());
        let alone = ALONE.lock().await;
        let redis = RedisServer::start().await?;
        let agent = Agent::with(&redis, flags).await?;
        Ok(Self { agent, redis, _alone: alone })
    }

    async fn figure(&self, metric: &str, labels: &[(&str, &str)]) -> Result<f64> {
        Ok(self.agent.metrics().await?.sum(metric, labels))
    }

    async fn until_figure(&self, metric: &str, is: f64) {
        eventually(metric, async || {
            let value = self.figure(metric, &[]).await?;
            ensure!((value - is).abs() < 0.5, "{value}, not {is}");
            Ok(())
        })
        .await;
    }

    /// Waits until Redis has that many keys besides those of the holder registry.
    async fn until_keys(&self, count: i64) -> Result<()> {
        let mut direct = self.redis.client().await?;
        eventually("that many keys in Redis", async || {
            // Listing all keys takes long, so they are counted first.
            let keys = direct.call("DBSIZE").await?.int()?;
            // The other keys: the agent, its trace, and the holders that it publishes.
            ensure!((count..=count + 3).contains(&keys), "{keys}, not {count}");
            let keys = i64::try_from(redis::locks(&mut direct).await?)?;
            ensure!(keys == count, "{keys}, not {count}");
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Checks that no hold was lost or is in danger.
    async fn nothing_is_lost(&self) -> Result<()> {
        for metric in ["lockscope_agent_lost_holds_total", "lockscope_agent_jeopardy_holds"] {
            let value = self.figure(metric, &[]).await?;
            ensure!(value == 0.0, "{metric} {value}");
        }
        Ok(())
    }

    /// Returns the agent's memory in bytes.
    fn memory(&self) -> Result<u64> {
        memory(self.agent.pid())
    }
}

/// Sends commands, many at a time, and returns their replies.
async fn all(client: &mut Client, commands: &[String]) -> Result<Vec<Reply>> {
    let mut replies = Vec::with_capacity(commands.len());
    for some in commands.chunks(PIPELINE) {
        send_all(client, some).await?;
        for command in some {
            replies.push(client.reply().await.with_context(|| command.clone())?);
        }
    }
    Ok(replies)
}

/// Sends commands at once.
async fn send_all(client: &mut Client, commands: &[String]) -> Result<()> {
    let words = |command: &String| encode(&command.split(' ').collect::<Vec<_>>());
    client.send_bytes(&commands.iter().flat_map(words).collect::<Vec<u8>>()).await
}

/// Raises the limit of open files of this process as far as allowed.
fn open_files(needed: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let most = limit.maximum.unwrap_or(u64::MAX);
    ensure!(
        most >= needed,
        "{needed} files must be open at once, the limit is {most} (ulimit -Hn)"
    );
    Ok(())
}
