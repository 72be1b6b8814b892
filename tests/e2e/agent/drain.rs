//! SIGTERM: nothing is released under a living worker.

use anyhow::Result;
use harness::Reply;

use super::{Bench, assert_error, lock};

#[tokio::test]
async fn an_idle_agent_exits_at_once_and_removes_its_socket() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.agent.process().terminate()?;
    let status = bench.agent.process().end().await;
    assert!(status.success(), "{status}");
    assert!(!bench.agent.socket().exists());
    Ok(())
}

#[tokio::test]
async fn a_draining_agent_grants_nothing_and_waits_for_its_workers() -> Result<()> {
    let mut bench = Bench::with(&["--drain-timeout", "10m"]).await?;
    let mut worker = bench.session().await?;
    let mut waiter = bench.session().await?;
    let mut idle = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    waiter.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    bench.agent.process().terminate()?;
    assert_error(&waiter.reply().await?, "DRAINING", "a");
    assert_error(&idle.call("LOCK b").await?, "DRAINING", "b");
    assert_eq!(bench.holders("a").await?.len(), 1, "still held");
    assert!(bench.session().await.is_err(), "no new sessions");
    let ready = harness::http::get(bench.agent.http(), "/readyz").await;
    assert!(ready.is_err() || ready.is_ok_and(|ready| ready.status == 503));
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0), "it may finish");
    let status = bench.agent.process().end().await;
    assert!(status.success(), "{status}");
    assert!(bench.is_free("a").await?);
    Ok(())
}

#[tokio::test]
async fn holds_that_remain_at_the_end_of_a_drain_expire_with_their_lease() -> Result<()> {
    let mut bench = Bench::with(&["--drain-timeout", "300ms", "--lease", "10m"]).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.agent.process().terminate()?;
    assert_eq!(worker.push().await?, ["lock-lost", "a", "lock", "drained"]);
    let status = bench.agent.process().end().await;
    assert!(status.success(), "{status}");
    assert_eq!(bench.holders("a").await?.len(), 1, "a living worker's hold is not released");
    assert!(bench.pttl("a").await? > 0, "its lease runs out");
    Ok(())
}

#[tokio::test]
async fn the_hold_of_a_worker_that_disconnects_during_a_drain_is_released() -> Result<()> {
    let mut bench = Bench::with(&["--drain-timeout", "10m"]).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.agent.process().terminate()?;
    drop(worker);
    let status = bench.agent.process().end().await;
    assert!(status.success(), "{status}");
    assert!(bench.is_free("a").await?);
    Ok(())
}
