//! Processes that freeze or die: workers, agents, Redis.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use harness::proxy::{Flow, Place, Way};
use harness::redis::random_port;
use harness::{Agent, Client, PATIENCE, Proxy, RedisServer, Reply, Worker, agent, eventually};
use tokio::time::Instant;

use super::{
    COMMANDS, SHORT, answered, assert_error, assert_held_by, ensure_released, holder, lock, lost,
    pushed, ready, release, stage,
};

const SLEEPS: &str = "lockscope_agent_sleeps_total";

/// Starts the agent of another host on the same Redis.
async fn neighbour(bench: &super::Bench) -> Result<Agent> {
    let agent = Agent::at(&bench.redis.url(), SHORT).await?;
    ready(&agent).await;
    Ok(agent)
}

#[tokio::test]
async fn an_agent_that_slept_through_its_leases_reports_losses_before_serving() -> Result<()> {
    let (mut bench, _proxy) = stage(SHORT).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    lock(&mut worker, "LOCK b").await?;
    let other = neighbour(&bench).await?;
    let mut thief = other.client().await?;
    thief.send("LOCK a").await?;
    bench.agent.process().freeze().await?;
    // These commands are waiting for the agent when it resumes.
    for command in ["HOLDS", "LOCK a NOWAIT", "UNLOCK b"] {
        worker.send(command).await?;
    }
    let other_holder = holder(&thief.reply().await?)?;
    bench.until_free("b").await;
    bench.agent.process().thaw()?;
    assert_eq!(worker.reply().await?, Reply::Array(vec![]), "no hold is left");
    let mut refused = worker.reply().await?;
    assert_error(&worker.reply().await?, "LOST", "unconfirmed");
    if refused.is_error("UNAVAILABLE") {
        // Redis has answered too late.
        refused = answered(&mut worker, "LOCK a NOWAIT").await;
    }
    assert_eq!(refused, Reply::Null, "another client holds the lock");
    let mut losses = [worker.push().await?, worker.push().await?];
    losses.sort();
    for (push, name) in losses.iter().zip(["a", "b"]) {
        assert_eq!(*push, ["lock-lost", name, "lock", "unconfirmed"]);
    }
    assert_held_by(&mut bench, "a", &other_holder).await?;
    bench.until_metric(SLEEPS, &[], 1.0).await;
    release(&mut bench, &mut thief, "a").await?;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_slept_for_less_than_its_leases_verifies_every_hold() -> Result<()> {
    let (mut bench, _proxy) = stage(&["--lease", "20s"]).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    // This lock is never renewed, so only the verification can find that it is gone.
    lock(&mut worker, "LOCK a LEASE 600000").await?;
    let kept = holder(&lock(&mut worker, "LOCK b").await?)?;
    bench.agent.process().freeze().await?;
    bench.direct.call("DEL a").await?.ok()?;
    // It sleeps for more than a third of the lease, of which about two thirds are left at first, or more.
    let at_first = bench.pttl("b").await?;
    eventually("the lease of b to run down", async || {
        let left = bench.pttl("b").await?;
        ensure!(left <= at_first - 7_500, "{left} of {at_first} ms are left");
        Ok(())
    })
    .await;
    bench.agent.process().thaw()?;
    assert_eq!(pushed(&mut worker).await?, ["lock-lost", "a", "lock", "missing"]);
    bench.until_metric(SLEEPS, &[], 1.0).await;
    assert_held_by(&mut bench, "b", &kept).await?;
    assert_eq!(lost(&bench.agent).await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn a_grant_buffered_in_a_stopped_agent_is_not_delivered() -> Result<()> {
    // With this lease the agent gives Redis two seconds to answer, its maximum, before it asks again.
    let (mut bench, proxy) = stage(&["--lease", "30s"]).await?;
    let other = neighbour(&bench).await?;
    let mut worker = bench.session().await?;
    let mut thief = other.client().await?;
    let line = proxy.line(COMMANDS).await;
    line.set(Way::Down, Flow::Hold);
    worker.send("LOCK a LEASE 12000").await?;
    // Redis has granted the lock, and the agent is frozen before it receives the reply.
    line.until_held(Way::Down).await;
    bench.agent.process().freeze().await?;
    let stale = bench.holders("a").await?;
    line.set(Way::Down, Flow::Pass);
    thief.send("LOCK a").await?;
    let other_holder = holder(&thief.reply().await?)?;
    bench.agent.process().thaw()?;
    bench.until_waiting("a", 1).await?;
    assert_held_by(&mut bench, "a", &other_holder).await?;
    ensure_released(&thief.call("UNLOCK a").await?)?;
    let granted = holder(&worker.reply().await?)?;
    assert!(stale.iter().all(|(stale, _)| *stale != granted), "the worker gets a new grant");
    assert_held_by(&mut bench, "a", &granted).await?;
    Ok(())
}

#[tokio::test]
async fn a_killed_agents_locks_are_free_after_their_lease_and_never_before() -> Result<()> {
    // The agent must be back before this lease ends.
    let (mut bench, _proxy) = stage(&["--lease", "12s"]).await?;
    let other = neighbour(&bench).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let mut waiter = other.client().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    waiter.send("LOCK a").await?;
    bench.agent.process().kill()?;
    assert!(worker.until_closed().await?.is_empty(), "its worker sees the end of the connection");
    // The same agent returns under the same name: it does not assume any holds.
    bench.agent.restart().await?;
    ready(&bench.agent).await;
    assert_held_by(&mut bench, "a", &first).await?;
    let mut again = bench.session().await?;
    assert_eq!(answered(&mut again, "LOCK a NOWAIT").await, Reply::Null);
    let other_holder = holder(&waiter.reply().await?)?;
    assert_held_by(&mut bench, "a", &other_holder).await?;
    let client = |holder: &str| holder.split(':').next().map(str::to_owned);
    let fresh = holder(&lock(&mut again, "LOCK b").await?)?;
    assert_eq!(client(&fresh), client(&first), "the same agent");
    assert_ne!(fresh, first, "a number never used before");
    Ok(())
}

#[tokio::test]
async fn a_stopped_worker_keeps_its_lock_and_can_continue() -> Result<()> {
    let (mut bench, _proxy) = stage(SHORT).await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::start(&socket, &folder, &["LOCK a", "LOCK b"])?;
    worker.line().await?;
    worker.line().await?;
    let held = bench.holders("a").await?;
    worker.process().freeze().await?;
    let renewed = "lockscope_agent_renewals_total";
    bench.until_metric(renewed, &[("outcome", "renewed")], 6.0).await;
    assert_eq!(bench.holders("a").await?, held);
    worker.process().thaw()?;
    worker.process().kill()?;
    bench.until_free("a").await;
    bench.until_free("b").await;
    Ok(())
}

#[tokio::test]
async fn a_dropped_agent_connection_releases_its_workers_locks() -> Result<()> {
    let (mut bench, _to_redis) = stage(SHORT).await?;
    let near = bench.agent.folder().join("near.sock");
    let proxy = Proxy::unix(&near, Place::Socket(bench.agent.socket()))?;
    let mut worker = Client::unix(&near).await?;
    let mut waiter = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    waiter.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    // The reply to the last command is cut in the middle.
    for line in proxy.lines(None) {
        line.set(Way::Down, Flow::CutAfter(10));
    }
    worker.send("LOCK b").await?;
    assert!(worker.reply().await.is_err(), "half a reply is not a reply");
    assert_eq!(waiter.reply().await?.field("holds")?, &Reply::Int(1));
    bench.until_free("b").await;
    Ok(())
}

#[tokio::test]
async fn every_hold_ends_in_time_if_redis_freezes() -> Result<()> {
    let (mut bench, _proxy) = stage(SHORT).await?;
    let mut workers = Vec::new();
    for i in 0..20 {
        let mut worker = bench.agent.client_with_pushes().await?;
        lock(&mut worker, &format!("LOCK n:{i}")).await?;
        workers.push(worker);
    }
    bench.redis.process().freeze().await?;
    for worker in &mut workers {
        assert_eq!(worker.push().await?[0], "lock-jeopardy");
    }
    for worker in &mut workers {
        assert_eq!(worker.push().await?[3], "unconfirmed");
    }
    bench.redis.process().thaw()?;
    for (i, worker) in workers.iter_mut().enumerate() {
        lock(worker, &format!("LOCK n:{i}")).await?;
    }
    assert_eq!(lost(&bench.agent).await?, 20.0);
    // No command from the time of the freeze affects the current holds.
    for (i, worker) in workers.iter_mut().enumerate() {
        release(&mut bench, worker, &format!("n:{i}")).await?;
    }
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_service_manager_that_hangs_delays_no_lock() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    let other = UnixDatagram::unbound()?;
    other.set_nonblocking(true)?;
    // Its queue has no room for what the agent sends.
    while other.send_to(b"STATUS=busy", &path).is_ok() {}
    let redis = RedisServer::start().await?;
    let path = path.to_str().context("the path is UTF-8")?;
    let environment = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "200000")];
    let agent = Agent::in_environment(&redis, &[], &environment).await?;
    lock(&mut agent.client().await?, "LOCK a").await?;
    manager.set_read_timeout(Some(PATIENCE))?;
    let mut text = [0; 256];
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let length = manager.recv(&mut text)?;
        if text[..length] == *b"READY=1\n" {
            return Ok(());
        }
    }
    bail!("READY was not repeated within {PATIENCE:?}")
}

#[tokio::test]
async fn a_log_that_nobody_reads_delays_no_lock() -> Result<()> {
    let redis = RedisServer::start().await?;
    let folder = tempfile::tempdir()?;
    let (_unread, log) = std::io::pipe()?;
    let start = || -> Result<Child> {
        let mut command = agent::command(folder.path(), &redis.url(), random_port(), &[])?;
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command.stderr(log.try_clone()?).spawn()?)
    };
    let mut process = start()?;
    let socket = folder.path().join("agent.sock");
    let mut worker = eventually("the agent to listen", async || {
        // Its port may have been taken meanwhile.
        if process.try_wait()?.is_some() {
            process = start()?;
        }
        Client::unix(&socket).await
    })
    .await;
    // Each forced release is logged: together they are more than a pipe holds.
    for _ in 0..400 {
        lock(&mut worker, "LOCK a").await?;
        assert_eq!(worker.call("FORCE a").await?, Reply::Int(1));
    }
    process.kill()?;
    process.wait()?;
    Ok(())
}
