//! Stopped workers, and the lock delay after a worker's death.

use anyhow::{Result, ensure};
use harness::{Worker, eventually};

use super::{Bench, lock, rows};

#[tokio::test]
async fn a_stopped_worker_is_shown_and_keeps_its_lock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::start(&socket, &folder, &["LOCK a"])?;
    worker.line().await?;
    let before = bench.holders("a").await?;
    worker.process().freeze().await?;
    bench.until_metric("lockscope_agent_frozen_sessions", &[], 1.0).await;
    let mut operator = bench.session().await?;
    let row = rows(&mut operator, "a").await?.remove(0);
    assert_eq!((row.state.as_str(), row.whole.field("frozen")?.int()?), ("held", 1));
    worker.process().thaw()?;
    eventually("no session to be frozen any more", async || {
        let metrics = bench.agent.metrics().await?;
        ensure!(metrics.sum("lockscope_agent_frozen_sessions", &[]) == 0.0);
        Ok(())
    })
    .await;
    assert_eq!(bench.holders("a").await?, before);
    Ok(())
}

#[tokio::test]
async fn a_stopped_workers_lock_lapses_if_configured() -> Result<()> {
    let bench = Bench::with(&["--lease", "9s", "--frozen", "lapse"]).await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::start(&socket, &folder, &["LOCK a", "LOCK b"])?;
    worker.line().await?;
    worker.line().await?;
    let mut next = bench.session().await?;
    next.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    worker.process().freeze().await?;
    // Nothing releases the lock: it becomes available only at the end of its lease.
    next.reply().await?.ok()?;
    let lost = [("reason", "frozen")];
    bench.until_metric("lockscope_agent_lost_holds_total", &lost, 2.0).await;
    worker.process().thaw()
}

#[tokio::test]
async fn a_killed_workers_lock_stays_held_for_the_lock_delay() -> Result<()> {
    let bench = Bench::with(&["--lock-delay", "2s"]).await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::start(&socket, &folder, &["LOCK a"])?;
    worker.line().await?;
    let mut next = bench.session().await?;
    let killed = tokio::time::Instant::now();
    worker.process().kill()?;
    lock(&mut next, "LOCK a").await?;
    let waited = killed.elapsed();
    ensure!(waited.as_secs() >= 2, "granted after {waited:?}");
    Ok(())
}

#[tokio::test]
async fn a_lock_in_its_lock_delay_is_listed_and_can_be_force_released() -> Result<()> {
    let mut bench = Bench::with(&["--lock-delay", "1h"]).await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::start(&socket, &folder, &["LOCK a", "LOCK b"])?;
    worker.line().await?;
    worker.line().await?;
    let pid = worker.process().pid();
    worker.process().kill()?;
    bench.until_metric("lockscope_agent_delayed_holds", &[], 2.0).await;
    let mut operator = bench.session().await?;
    let row = rows(&mut operator, "a").await?.remove(0);
    assert_eq!(row.state, "delayed");
    assert_eq!(row.whole.field("pid")?.int()?, i64::from(pid), "the process of the killed worker");
    assert_eq!(operator.call("FORCE a").await?.int()?, 1);
    bench.until_free("a").await;
    assert!(!bench.is_free("b").await?);
    // A session that ends by QUIT is not affected.
    lock(&mut operator, "LOCK c").await?;
    operator.call("QUIT").await?.ok()?;
    bench.until_free("c").await;
    let metrics = bench.agent.metrics().await?;
    assert_eq!(metrics.sum("lockscope_agent_lost_holds_total", &[]), 0.0, "no hold is lost");
    Ok(())
}
