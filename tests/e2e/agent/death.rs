//! Workers that die or disconnect while they hold a lock or wait for one.

use anyhow::{Context as _, Result, ensure};
use harness::{Reply, Worker, eventually};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{Bench, lock};

#[tokio::test]
async fn a_killed_workers_lock_is_free() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = Worker::start(
        &bench.agent.socket(),
        bench.agent.folder(),
        &["LOCK a", "LOCK a", "LOCK b", "LOCK c LEASE 600000"],
    )?;
    for _ in 0..4 {
        worker.line().await?;
    }
    worker.process().kill()?;
    for name in ["a", "b", "c"] {
        bench.until_free(name).await;
    }
    let metrics = bench.agent.metrics().await?;
    let ended = metrics.sum("lockscope_agent_hold_seconds_count", &[("end", "disconnected")]);
    assert_eq!(ended, 3.0);
    Ok(())
}

#[tokio::test]
async fn a_killed_workers_lock_is_granted_to_the_next_waiter() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = Worker::start(&bench.agent.socket(), bench.agent.folder(), &["LOCK a"])?;
    worker.line().await?;
    let mut waiter = bench.session().await?;
    waiter.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    worker.process().kill()?;
    let reply = waiter.reply().await?;
    assert_eq!(reply.field("holds")?, &Reply::Int(1));
    let expected = [(reply.field("holder")?.text(), "1".to_owned())];
    eventually("Redis to have the next holder", async || {
        let holders = bench.holders("a").await?;
        ensure!(holders == expected, "{holders:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_killed_waiter_leaves_no_trace() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    let mut worker = Worker::start(&bench.agent.socket(), bench.agent.folder(), &["LOCK a"])?;
    bench.until_waiting("a", 1).await?;
    worker.process().kill()?;
    bench.until_waiting("a", 0).await?;
    holder.call("UNLOCK a").await?.ok()?;
    assert!(bench.is_free("a").await?, "the killed waiter does not acquire the lock");
    Ok(())
}

#[tokio::test]
async fn a_child_that_inherits_the_socket_does_not_keep_the_lock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::with_inheriting_child(&socket, &folder, &["LOCK a"])?;
    let child: i32 = worker.line().await?.parse()?;
    let child = Pid::from_raw(child).context("a pid")?;
    worker.line().await?;
    worker.process().kill()?;
    bench.until_free("a").await;
    test_kill_process(child).context("the child is alive, and its copy of the socket is open")?;
    kill_process(child, Signal::KILL)?;
    Ok(())
}

#[tokio::test]
async fn a_session_that_closes_while_blocked_ends_at_once() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK b OWNER 1").await?;
    worker.send("LOCK a OWNER 2").await?;
    bench.until_waiting("a", 1).await?;
    drop(worker);
    bench.until_free("b").await;
    bench.until_waiting("a", 0).await
}

#[tokio::test]
async fn a_half_closed_session_is_served_to_its_end() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    worker.send_bytes(b"LOCK a\r\nLOCK a\r\nPING\r\n").await?;
    worker.half_close().await?;
    let replies = worker.until_closed().await?;
    assert_eq!(replies.len(), 3, "{replies:?}");
    assert_eq!(replies[1].field("holds")?, &Reply::Int(2));
    assert_eq!(replies[2].text(), "PONG");
    bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn only_the_locks_of_closed_sessions_are_released() -> Result<()> {
    let bench = Bench::new().await?;
    // Each worker acquires a lock and a third of them stay connected: these keep their locks, all others become free.
    let mut staying = Vec::new();
    for i in 0..300 {
        let mut worker = bench.session().await?;
        lock(&mut worker, &format!("LOCK s:{i}")).await?;
        if i % 3 == 0 {
            staying.push(worker);
        }
    }
    let mut direct = bench.redis.client().await?;
    eventually("the others' locks to be free", async || {
        let left = harness::redis::locks(&mut direct).await?;
        ensure!(left == 100, "{left}");
        Ok(())
    })
    .await;
    let sessions = bench.agent.metrics().await?.sum("lockscope_agent_sessions", &[]);
    assert_eq!(sessions, 100.0);
    Ok(())
}
