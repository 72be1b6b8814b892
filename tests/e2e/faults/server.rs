//! Redis itself: restarted, emptied, made a replica, busy, full, locked down, with another clock.

use anyhow::{Result, ensure};
use harness::proxy::{Gate, Place};
use harness::{Agent, Client, RedisServer, Reply, eventually};

use super::{
    LONG, MEDIUM, assert_error, assert_held_by, credentials, holder, lock, lost, on, ready,
    release, stage, unready,
};

const RENEWALS_TOTAL: &str = "lockscope_agent_renewals_total";

/// Asserts that the next push reports the loss of `a`, whose key is missing.
async fn assert_lost(worker: &mut Client) -> Result<()> {
    assert_eq!(worker.push().await?, ["lock-lost", "a", "lock", "missing"]);
    Ok(())
}

/// Runs a command, which this Redis must not refuse.
async fn run(direct: &mut Client, words: &str) -> Result<()> {
    direct.call(words).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_restart_with_all_data_loses_nothing() -> Result<()> {
    let redis = RedisServer::with(&[("appendonly", "yes"), ("appendfsync", "always")]).await?;
    let (mut bench, _proxy) = on(redis, LONG).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    bench.redis.restart().await?;
    bench.direct = bench.redis.client().await?;
    let mut other = bench.session().await?;
    lock(&mut other, "LOCK b WAIT 20000").await?;
    bench.until_metric(RENEWALS_TOTAL, &[("outcome", "renewed")], 1.0).await;
    assert_held_by(&mut bench, "a", &first).await?;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_stale_hold_restored_from_old_data_is_removed() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    let old = holder(&lock(&mut worker, "LOCK a").await?)?;
    run(&mut bench.direct, "SAVE").await?;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    proxy.gate(Gate::Refuse);
    bench.redis.restart().await?;
    bench.direct = bench.redis.client().await?;
    assert_held_by(&mut bench, "a", &old).await?;
    proxy.gate(Gate::Open);
    let granted = holder(&lock(&mut worker, "LOCK a").await?)?;
    assert_held_by(&mut bench, "a", &granted).await?;
    Ok(())
}

#[tokio::test]
async fn the_agent_waits_for_a_redis_that_is_loading() -> Result<()> {
    // While it loads, it answers only after each kilobyte, which is a key: every 20 ms, for a minute.
    let slow = [
        ("key-load-delay", "20000"),
        ("loading-process-events-interval-bytes", "1024"),
        ("rdbcompression", "no"),
    ];
    let redis = RedisServer::with(&slow).await?;
    let (mut bench, _proxy) = on(redis, LONG).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    let value = "v".repeat(1_024);
    for i in 0..30 {
        let keys: Vec<String> = (0..100).map(|k| format!("k:{i}:{k} {value}")).collect();
        run(&mut bench.direct, &format!("MSET {}", keys.join(" "))).await?;
    }
    run(&mut bench.direct, "SAVE").await?;
    bench.redis.restart().await?;
    bench.direct = bench.redis.client().await?;
    unready(&bench.agent, "LOADING").await;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "LOADING");
    run(&mut bench.direct, "CONFIG SET key-load-delay 0").await?;
    lock(&mut worker, "LOCK b").await?;
    assert_held_by(&mut bench, "a", &first).await?;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_flushed_redis_is_detected_at_the_next_renewal_and_nothing_is_restored() -> Result<()> {
    let (mut bench, _proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    run(&mut bench.direct, "FLUSHALL").await?;
    assert_lost(&mut worker).await?;
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 0);
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "missing");
    Ok(())
}

#[tokio::test]
async fn missing_scripts_are_sent_again() -> Result<()> {
    // With this lease Redis has two seconds to answer, the most that the agent ever gives it.
    let (mut bench, _proxy) = stage(&["--lease", "30s"]).await?;
    let mut worker = bench.session().await?;
    let mut waiter = bench.session().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    run(&mut bench.direct, "SCRIPT FLUSH").await?;
    bench.until_metric(RENEWALS_TOTAL, &[("outcome", "renewed")], 1.0).await;
    assert_held_by(&mut bench, "a", &first).await?;
    waiter.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    run(&mut bench.direct, "SCRIPT FLUSH").await?;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert_eq!(waiter.reply().await?.field("holds")?, &Reply::Int(1));
    run(&mut bench.direct, "SCRIPT FLUSH").await?;
    assert_eq!(waiter.call("UNLOCK a").await?, Reply::Int(0));
    assert!(bench.is_free("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_key_overwritten_with_another_type_is_a_loss_and_not_changed() -> Result<()> {
    let (mut bench, _proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    run(&mut bench.direct, "SET a theirs").await?;
    assert_lost(&mut worker).await?;
    assert_error(&worker.call("LOCK a").await?, "WRONGTYPE", "a");
    assert_eq!(bench.direct.call("GET a").await?.text(), "theirs");
    Ok(())
}

#[tokio::test]
async fn a_role_that_changed_on_a_living_connection_verifies_every_hold() -> Result<()> {
    let (mut bench, _proxy) = stage(LONG).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    let kept = holder(&lock(&mut worker, "LOCK b").await?)?;
    // The server is a replica for a moment, so its data may be another server's; no connection is closed.
    run(&mut bench.direct, "DEL a").await?;
    run(&mut bench.direct, "REPLICAOF 127.0.0.1 1").await?;
    run(&mut bench.direct, "REPLICAOF NO ONE").await?;
    assert_lost(&mut worker).await?;
    assert_held_by(&mut bench, "b", &kept).await?;
    assert_eq!(lost(&bench.agent).await?, 1.0);
    Ok(())
}

/// Makes a master the replica of another server, and asserts that the agent follows the new master.
async fn demote(redis: RedisServer, other: RedisServer) -> Result<()> {
    let (mut bench, proxy) = on(redis, LONG).await?;
    let mut there = other.client().await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let kept = holder(&lock(&mut worker, "LOCK b").await?)?;
    other.follow(&bench.redis).await?;
    assert_eq!(bench.direct.call("WAIT 1 20000").await?, Reply::Int(1));
    // Every write that the replica has not received when it is promoted is lost.
    run(&mut there, "REPLICAOF NO ONE").await?;
    lock(&mut worker, "LOCK a").await?;
    run(&mut bench.direct, &format!("REPLICAOF 127.0.0.1 {}", other.port())).await?;
    // The old connections remain open, as behind a virtual address; only new ones lead to the new master.
    proxy.lead_to(Place::Port(other.port()));
    assert_lost(&mut worker).await?;
    bench.direct = there;
    assert_held_by(&mut bench, "b", &kept).await?;
    lock(&mut worker, "LOCK a WAIT 20000").await?;
    assert_eq!(bench.holders("a").await?.len(), 1, "the lock is acquired in the new master");
    assert_eq!(worker.call("UNLOCK b").await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn a_demoted_master_is_replaced_by_the_new_master() -> Result<()> {
    demote(RedisServer::start().await?, RedisServer::start().await?).await
}

#[tokio::test]
async fn a_demoted_master_that_is_old_is_replaced_by_the_new_master() -> Result<()> {
    demote(RedisServer::old(&[]).await?, RedisServer::old(&[]).await?).await
}

#[tokio::test]
async fn a_replica_is_not_used_for_locks() -> Result<()> {
    let (mut bench, _proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    run(&mut bench.direct, "REPLICAOF 127.0.0.1 1").await?;
    unready(&bench.agent, "is a replica").await;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "replica");
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    run(&mut bench.direct, "REPLICAOF NO ONE").await?;
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    assert_held_by(&mut bench, "a", &first).await?;
    ready(&bench.agent).await;
    Ok(())
}

#[tokio::test]
async fn a_clock_that_steps_verifies_every_hold() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    let kept = holder(&lock(&mut worker, "LOCK b").await?)?;
    // Simulates a step forward that passes the end of a key.
    run(&mut bench.direct, "DEL a").await?;
    proxy.shift_clock(3_600);
    assert_lost(&mut worker).await?;
    // A step back harms nothing.
    let renewed = bench.agent.metrics().await?.sum(RENEWALS_TOTAL, &[("outcome", "renewed")]);
    proxy.shift_clock(-3_600);
    bench.until_metric(RENEWALS_TOTAL, &[("outcome", "renewed")], renewed + 1.0).await;
    assert_held_by(&mut bench, "b", &kept).await?;
    assert_eq!(lost(&bench.agent).await?, 1.0);
    let log = bench.agent.process().log();
    assert!(log.contains("the Redis server has changed") && log.contains("clock"), "{log}");
    Ok(())
}

#[tokio::test]
async fn the_agent_waits_for_a_busy_script_on_the_same_connection() -> Result<()> {
    let (mut bench, _proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    run(&mut bench.direct, "CONFIG SET busy-reply-threshold 20").await?;
    let mut hog = bench.redis.client().await?;
    hog.send_bytes(b"EVAL \"while true do end\" 0\r\n").await?;
    eventually("the script to run", async || {
        let reply = bench.direct.call("PING").await?;
        ensure!(reply.is_error("BUSY"), "{reply}");
        Ok(())
    })
    .await;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "BUSY");
    let mut waiter = bench.session().await?;
    waiter.send("LOCK b").await?;
    bench.until_waiting("b", 1).await?;
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    run(&mut bench.direct, "SCRIPT KILL").await?;
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    assert_eq!(waiter.reply().await?.field("holds")?, &Reply::Int(1));
    assert_held_by(&mut bench, "a", &first).await?;
    Ok(())
}

#[tokio::test]
async fn permissions_may_be_revoked_and_restored() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    run(&mut direct, "ACL SETUSER default >secret").await?;
    let with_password = redis.url().replace("redis://", "redis://:secret@");
    let agent = Agent::at(&with_password, MEDIUM).await?;
    ready(&agent).await;
    let mut worker = agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    // Scripts are denied on an open connection, with NOPERM.
    run(&mut direct, "ACL SETUSER default -eval -evalsha").await?;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "NOPERM");
    unready(&agent, "NOPERM").await;
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    run(&mut direct, "ACL SETUSER default +eval +evalsha").await?;
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    // The password changes and every connection is closed, so no client can log in.
    run(&mut direct, "ACL SETUSER default resetpass >other").await?;
    run(&mut direct, "CLIENT KILL USER default SKIPME yes").await?;
    unready(&agent, "WRONGPASS").await;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "WRONGPASS");
    run(&mut direct, "ACL SETUSER default >secret").await?;
    ready(&agent).await;
    lock(&mut worker, "LOCK b WAIT 20000").await?;
    Ok(())
}

#[tokio::test]
async fn a_redis_at_its_client_limit_is_retried() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    run(&mut bench.direct, "CONFIG SET maxclients 1").await?;
    proxy.cut();
    unready(&bench.agent, "max number of clients").await;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "max number of clients");
    run(&mut bench.direct, "CONFIG SET maxclients 1000").await?;
    lock(&mut worker, "LOCK b WAIT 20000").await?;
    assert_held_by(&mut bench, "a", &first).await?;
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn the_agent_waits_for_a_redis_that_refuses_writes() -> Result<()> {
    let (mut bench, _proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let mut waiter = bench.session().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    run(&mut bench.direct, "CONFIG SET min-replicas-to-write 1").await?;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "NOREPLICAS");
    waiter.send("LOCK b").await?;
    bench.until_waiting("b", 1).await?;
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    run(&mut bench.direct, "CONFIG SET min-replicas-to-write 0").await?;
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    assert_eq!(waiter.reply().await?.field("holds")?, &Reply::Int(1));
    assert_held_by(&mut bench, "a", &first).await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_release_is_repeated_until_redis_accepts_it() -> Result<()> {
    let (mut bench, _proxy) = stage(LONG).await?;
    let kinds = ["lock", "fenced", "fair", "write", "read"];
    let mut workers = Vec::new();
    for kind in kinds {
        let mut worker = bench.session().await?;
        lock(&mut worker, &format!("LOCK {kind} KIND {kind}")).await?;
        workers.push(worker);
    }
    run(&mut bench.direct, "CONFIG SET min-replicas-to-write 1").await?;
    for (kind, worker) in kinds.iter().zip(&mut workers) {
        worker.send(&format!("UNLOCK {kind}")).await?;
    }
    for worker in &mut workers {
        let reply = worker.reply().await?;
        assert_error(&reply, "UNAVAILABLE", "is no longer yours");
        assert_error(&reply, "UNAVAILABLE", "NOREPLICAS");
    }
    for kind in kinds {
        assert!(!bench.is_free(kind).await?, "{kind}");
    }
    run(&mut bench.direct, "CONFIG SET min-replicas-to-write 0").await?;
    let other = Agent::with(&bench.redis, LONG).await?;
    let mut next = other.client3().await?;
    for kind in kinds {
        let alone = if kind == "read" { "write" } else { kind };
        lock(&mut next, &format!("LOCK {kind} KIND {alone} WAIT 20000")).await?;
    }
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn holds_survive_paused_writes() -> Result<()> {
    let (mut bench, _proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    run(&mut bench.direct, "CLIENT PAUSE 600000 WRITE").await?;
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    run(&mut bench.direct, "CLIENT UNPAUSE").await?;
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    assert_held_by(&mut bench, "a", &first).await?;
    release(&mut bench, &mut worker, "a").await?;
    assert!(bench.is_free("a").await?, "no delayed script acquires the lock again");
    Ok(())
}

#[tokio::test]
async fn an_eviction_policy_is_reported_when_it_is_set() -> Result<()> {
    let (mut bench, _proxy) = stage(MEDIUM).await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    lock(&mut worker, "LOCK a").await?;
    run(&mut bench.direct, "CONFIG SET maxmemory-policy volatile-ttl").await?;
    run(&mut bench.direct, "CONFIG SET maxmemory 100mb").await?;
    bench.until_metric("lockscope_agent_redis_evicts", &[], 1.0).await;
    // The agent sets the metric first.
    eventually("the policy in the log", async || {
        let log = bench.agent.process().log();
        ensure!(log.contains("volatile-ttl"), "{log}");
        Ok(())
    })
    .await;
    // The lock is the only key that may be evicted, and it is.
    run(&mut bench.direct, "CONFIG SET maxmemory 1").await?;
    let refused = bench.direct.call("SET k v").await?;
    assert!(refused.is_error("OOM"), "{refused}");
    assert!(bench.is_free("a").await?);
    let events = listener.call(&format!("EVENTS {ticket} WAIT 20000")).await?;
    assert_eq!(events.text(), "[[lost, a, lock, missing]]");
    Ok(())
}
