//! Redis frozen, killed, restarted empty, or absent from the start.

use anyhow::{Result, ensure};
use harness::{Agent, Client, RedisServer, Reply, eventually};

use super::{Bench, assert_error, holder, lock};

/// A third of it passes between jeopardy and loss. An agent that stalls for so long reports the loss alone.
const LEASE: [&str; 2] = ["--lease", "12s"];
const LEASE_MS: i64 = 12_000;

/// Asserts that the next pushes report the jeopardy of `a` and then its loss, in this order. A stall before the outage
/// may have caused another jeopardy, which has ended.
async fn assert_jeopardy_then_loss(worker: &mut Client) -> Result<()> {
    let lost = loop {
        let warning = worker.push().await?;
        assert_eq!(warning[..3], ["lock-jeopardy", "a", "lock"]);
        let left: i64 = warning[3].parse()?;
        assert!(left > 0 && left <= LEASE_MS / 3, "{left} ms are left of {LEASE_MS}");
        let next = worker.push().await?;
        if next != ["lock-safe", "a", "lock"] {
            break next;
        }
    };
    assert_eq!(lost, ["lock-lost", "a", "lock", "unconfirmed"]);
    Ok(())
}

#[tokio::test]
async fn a_frozen_redis_causes_jeopardy_then_loss_and_then_works_again() -> Result<()> {
    let mut bench = Bench::with(&LEASE).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    bench.redis.process().freeze().await?;
    assert_jeopardy_then_loss(&mut worker).await?;
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "unconfirmed");
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "b");
    assert_eq!(worker.call("PING").await?.text(), "PONG", "the agent still replies");
    bench.redis.process().thaw()?;
    bench.until_free("a").await;
    let reply = lock(&mut worker, "LOCK a").await?;
    assert_ne!(holder(&reply)?, first, "a new grant, not the lost one");
    assert_eq!(bench.holders("a").await?.len(), 1);
    let metrics = bench.agent.metrics().await?;
    let lost = metrics.sum("lockscope_agent_lost_holds_total", &[("reason", "unconfirmed")]);
    assert_eq!(lost, 1.0);
    Ok(())
}

#[tokio::test]
async fn a_hold_in_jeopardy_survives_a_short_freeze_of_redis() -> Result<()> {
    // A hold in jeopardy has a third of it left, in which the test must act and the agent must renew.
    let mut bench = Bench::with(&["--lease", "24s"]).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    bench.redis.process().freeze().await?;
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    bench.redis.process().thaw()?;
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    // Renewals use a separate connection; the connection of the commands may recover later.
    eventually("Redis to answer workers again", async || worker.call("SHOW a").await?.ok()).await;
    assert_eq!(bench.holders("a").await?, [(first, "1".to_owned())]);
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn a_killed_redis_causes_jeopardy_and_then_loss() -> Result<()> {
    let mut bench = Bench::with(&LEASE).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.redis.process().kill()?;
    assert_jeopardy_then_loss(&mut worker).await?;
    bench.redis.restart().await?;
    let reply = lock(&mut worker, "LOCK a").await?;
    assert_eq!(reply.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn a_restart_without_data_is_detected_at_once() -> Result<()> {
    // The lease is so long that no renewal can notice the loss.
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    lock(&mut worker, "LOCK b LEASE 600000").await?;
    bench.redis.restart().await?;
    bench.direct = bench.redis.client().await?;
    let mut lost = [worker.push().await?, worker.push().await?];
    lost.sort();
    let loss = |name: &str| ["lock-lost", name, "lock", "missing"].map(str::to_owned).to_vec();
    assert_eq!(lost, [loss("a"), loss("b")]);
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 0, "no lock is restored");
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "missing");
    lock(&mut worker, "LOCK a").await?;
    Ok(())
}

#[tokio::test]
async fn a_waiter_keeps_its_position_during_an_outage() -> Result<()> {
    let mut bench = Bench::with(&LEASE).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    let mut waiters = Vec::new();
    for i in 1..=3 {
        let mut waiter = bench.session().await?;
        waiter.send("LOCK a").await?;
        bench.until_waiting("a", i).await?;
        waiters.push(waiter);
    }
    let mut brief = bench.session().await?;
    brief.send("LOCK a WAIT 15000").await?;
    bench.until_waiting("a", 4).await?;
    bench.redis.process().freeze().await?;
    assert_jeopardy_then_loss(&mut worker).await?;
    let brief_reply = brief.reply().await?;
    assert!(brief_reply.is_error("UNAVAILABLE") || brief_reply == Reply::Null, "{brief_reply}");
    bench.redis.process().thaw()?;
    for waiter in &mut waiters {
        let reply = waiter.reply().await?;
        assert_eq!(bench.holders("a").await?, [(holder(&reply)?, "1".to_owned())]);
        waiter.call("UNLOCK a").await?.ok()?;
    }
    Ok(())
}

#[tokio::test]
async fn an_unlock_during_an_outage_ends_the_hold_and_is_completed_later() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.redis.process().freeze().await?;
    assert_error(&worker.call("UNLOCK a").await?, "UNAVAILABLE", "a");
    assert_eq!(worker.call("HOLDS").await?, Reply::Array(vec![]), "the hold has ended");
    bench.redis.process().thaw()?;
    bench.until_free("a").await;
    let lost = bench.agent.metrics().await?.sum("lockscope_agent_lost_holds_total", &[]);
    assert_eq!(lost, 0.0);
    Ok(())
}

#[tokio::test]
async fn the_hold_of_a_worker_that_dies_in_an_outage_is_released_after_it() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.redis.process().freeze().await?;
    drop(worker);
    let mut reader = bench.session().await?;
    eventually("the agent to notice", async || {
        let left = super::rows(&mut reader, "a").await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await;
    bench.redis.process().thaw()?;
    bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn a_redis_that_starts_late_is_used() -> Result<()> {
    let mut redis = RedisServer::start().await?;
    redis.process().kill()?;
    let agent = Agent::at(&redis.url(), &[]).await?;
    let mut hasty = agent.client().await?;
    assert_error(&hasty.call("LOCK a NOWAIT").await?, "UNAVAILABLE", "a");
    assert_error(&hasty.call("LOCK a WAIT 300").await?, "UNAVAILABLE", "a");
    assert_error(&hasty.call("SHOW a").await?, "UNAVAILABLE", "a");
    let ready = harness::http::get(agent.http(), "/readyz").await?;
    assert_eq!(ready.status, 503, "{}", ready.body);
    let health = harness::http::get(agent.http(), "/healthz").await?;
    assert_eq!(health.status, 200);
    let mut patient = agent.client().await?;
    patient.send("LOCK a").await?;
    redis.restart().await?;
    assert_eq!(patient.reply().await?.field("holds")?, &Reply::Int(1));
    eventually("the agent to be ready", async || {
        let ready = harness::http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_full_redis_refuses_locks_and_still_releases() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "30s"]).await?;
    let mut worker = bench.session().await?;
    let mut waiter = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    lock(&mut worker, "LOCK a").await?;
    bench.direct.call("CONFIG SET maxmemory-policy noeviction").await?.ok()?;
    bench.direct.call("CONFIG SET maxmemory 1").await?.ok()?;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "OOM");
    assert_error(&worker.call("LOCK b WAIT 1000").await?, "UNAVAILABLE", "OOM");
    waiter.send("LOCK b").await?;
    bench.until_waiting("b", 1).await?;
    let (renewals, renewed) = ("lockscope_agent_renewals_total", [("outcome", "renewed")]);
    let before = bench.agent.metrics().await?.sum(renewals, &renewed);
    bench.until_metric(renewals, &renewed, before + 1.0).await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(1));
    eventually("the count in Redis", async || {
        let holders = bench.holders("a").await?;
        ensure!(holders[0].1 == "1", "{holders:?}");
        Ok(())
    })
    .await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert!(bench.is_free("a").await?);
    bench.direct.call("CONFIG SET maxmemory 0").await?.ok()?;
    assert_eq!(
        waiter.reply().await?.field("holds")?,
        &Reply::Int(1),
        "the waiter has kept its position"
    );
    Ok(())
}

#[tokio::test]
async fn an_evicting_redis_is_reported() -> Result<()> {
    let redis =
        RedisServer::with(&[("maxmemory-policy", "allkeys-lru"), ("maxmemory", "100mb")]).await?;
    let mut agent = Agent::with(&redis, &[]).await?;
    eventually("the figure", async || {
        let metrics = agent.metrics().await?;
        ensure!(metrics.sum("lockscope_agent_redis_evicts", &[]) == 1.0);
        Ok(())
    })
    .await;
    assert!(agent.process().log().contains("allkeys-lru"), "a warning names the policy");
    Ok(())
}

#[tokio::test]
async fn repeatedly_dropped_connections_lose_nothing() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "30s"]).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    for round in 1..=10 {
        for kind in ["normal", "pubsub"] {
            bench.direct.call(&format!("CLIENT KILL TYPE {kind} SKIPME yes")).await?.ok()?;
        }
        let name = format!("LOCK b WAIT 20000 OWNER {round}");
        lock(&mut worker, &name).await?;
        assert_eq!(worker.call(&format!("UNLOCK b OWNER {round}")).await?, Reply::Int(0));
    }
    bench.until_metric("lockscope_agent_renewals_total", &[("outcome", "renewed")], 1.0).await;
    assert_eq!(bench.holders("a").await?, [(first, "1".to_owned())]);
    // On a busy machine the worker may have been warned, but it must not have lost anything.
    while worker.pushes() > 0 {
        assert_ne!(worker.push().await?[0], "lock-lost");
    }
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    Ok(())
}
