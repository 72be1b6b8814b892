//! The limit of file descriptors is exhausted.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Client, eventually};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::time::timeout;

use super::Crowd;

fn limit_files(pid: u32, most: u64) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(most), maximum })?;
    Ok(())
}

#[tokio::test]
async fn without_descriptors_new_connections_wait_and_the_others_go_on() -> Result<()> {
    let crowd = Crowd::new(&["--lease", "12s"]).await?;
    let mut worker = crowd.agent.client().await?;
    worker.call("LOCK a").await?.ok()?;
    // Simulates a process that has used up its descriptors: standard input, output and error are the first three.
    limit_files(crowd.agent.pid(), 3)?;
    let mut newcomer = Client::unix(&crowd.agent.socket()).await?;
    newcomer.send("PING").await?;
    eventually("the failure to be told", async || {
        let log = std::fs::read_to_string(crowd.agent.folder().join("agent.log"))?;
        let tries = log.matches("accept failed").count();
        ensure!(tries >= 3, "{tries} times");
        Ok(())
    })
    .await;
    for _ in 0..100 {
        worker.call("LOCK b").await?.ok()?;
        worker.call("UNLOCK b").await?.ok()?;
    }
    // The lock is renewed on an existing connection of the agent.
    let (mut direct, mut last) = (crowd.redis.client().await?, i64::MAX);
    eventually("a renewal", async || {
        let left = direct.call("PTTL a").await?.int()?;
        let before = std::mem::replace(&mut last, left);
        ensure!(left > before, "{left} ms are left");
        Ok(())
    })
    .await;
    let early = timeout(Duration::from_millis(1), newcomer.reply()).await;
    ensure!(early.is_err(), "it was served without a descriptor");
    limit_files(crowd.agent.pid(), 1_000)?;
    ensure!(newcomer.reply().await?.text() == "PONG");
    // The agent did not spin: the pause between two tries grows to a second.
    let log = std::fs::read_to_string(crowd.agent.folder().join("agent.log"))?;
    let tries = log.matches("accept failed").count();
    ensure!(tries < 100, "{tries} tries");
    let failures = crowd.figure("lockscope_agent_accept_failures_total", &[]).await?;
    ensure!(failures == tries as f64, "{failures} counted, {tries} told");
    crowd.nothing_is_lost().await?;
    Ok(())
}
