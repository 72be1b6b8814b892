//! Files of the dashboard on a mount that hangs.

use anyhow::{Result, ensure};
use harness::process::Process;
use harness::{Dashboard, RedisServer, dashboard, eventually, http};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::process::Signal;

#[tokio::test]
async fn a_token_file_that_cannot_be_read_delays_neither_answers_nor_the_end() -> Result<()> {
    let (redis, folder) = (RedisServer::start().await?, tempfile::tempdir()?);
    let path = folder.path().join("tokens");
    std::fs::write(&path, "0123456789abcdef0123,anna\n")?;
    let tokens = path.to_str().expect("the path is UTF-8");
    let mut dashboard = Dashboard::start(&redis.url(), &["--auth-token-file", tokens]).await?;
    // Nothing is written to this pipe.
    std::fs::remove_file(&path)?;
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    dashboard.process().signal(Signal::HUP)?;
    let mut writer = None;
    eventually("the dashboard to read its tokens", async || {
        // Without a reader, this fails.
        writer = Some(open(&path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty())?);
        Ok(())
    })
    .await;
    for _ in 0..20 {
        let reply = http::get(dashboard.port(), "/healthz").await?;
        ensure!(reply.status == 200, "{}", reply.body);
    }
    dashboard.process().terminate()?;
    let status = dashboard.process().end().await;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Opening a named pipe blocks, like a file on a mount that does not answer.
#[tokio::test]
async fn a_history_that_does_not_open_is_reported_and_does_not_delay_the_end() -> Result<()> {
    let (redis, folder) = (RedisServer::start().await?, tempfile::tempdir()?);
    mknodat(CWD, folder.path().join("history.db"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let path = folder.path().to_str().expect("the path is UTF-8");
    let flags = ["--history-dir", path].map(str::to_owned);
    let command = dashboard::command(&redis.url(), 0, &flags)?;
    let log = folder.path().join("dashboard.log");
    let mut process = Process::spawn("lockscope-dashboard", command, &log, None)?;
    eventually("the dashboard to report that it waits", async || {
        let log = process.log();
        ensure!(log.contains("still opening the history") && log.contains(path), "{log}");
        Ok(())
    })
    .await;
    process.terminate()?;
    let status = process.end().await;
    ensure!(status.success(), "{status}");
    Ok(())
}
