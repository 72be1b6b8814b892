//! The limit of file descriptors is exhausted.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, Process};
use harness::redis::random_port;
use harness::{Client, RedisServer, dashboard, eventually, http};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

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

#[tokio::test]
async fn a_dashboard_opens_as_many_files_as_its_hard_limit_permits() -> Result<()> {
    let redis = RedisServer::start().await?;
    let folder = tempfile::tempdir()?;
    let flags = ["--no-history".to_owned()];
    let port = random_port();
    let inner = dashboard::command(&redis.url(), port, &flags)?;
    let mut limited = process::command(Path::new("prlimit"));
    limited.arg("--nofile=32:").arg(inner.get_program()).args(inner.get_args());
    let log = folder.path().join("dashboard.log");
    let mut process = Process::spawn("lockscope-dashboard", limited, &log, None)?;
    eventually("the dashboard to serve", async || {
        ensure!(http::get(port, "/healthz").await?.status == 200);
        Ok(())
    })
    .await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        streams.push(stream);
    }
    ensure!(http::get(port, "/healthz").await?.status == 200);
    // Without a descriptor left it does not fill its log: the pause between two tries grows to a second.
    limit_files(process.pid(), 3)?;
    let begun = Instant::now();
    let waiting = TcpStream::connect(("127.0.0.1", port)).await?;
    eventually("five tries", async || {
        let tries = process.log().matches("cannot accept an HTTP connection").count();
        ensure!(tries >= 5, "{tries} tries");
        Ok(())
    })
    .await;
    // 100, 200, 400 and 800 ms.
    ensure!(begun.elapsed() >= Duration::from_millis(1_500), "{:?}", begun.elapsed());
    drop(waiting);
    process.kill()
}
