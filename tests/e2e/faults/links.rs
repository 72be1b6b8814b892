//! Connections to Redis: partitioned, half-open, dropped, slow, refused, silent.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use harness::proxy::{Flow, Gate, Way};
use harness::{Reply, eventually};

use super::{
    COMMANDS, LONG, MEDIUM, MESSAGES, RENEWALS, SHORT, answered, assert_error, assert_held_by,
    holder, lock, lost, ready, stage, unready,
};

#[tokio::test]
async fn a_hold_in_jeopardy_survives_a_partition_shorter_than_its_lease() -> Result<()> {
    let (mut bench, proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    proxy.part();
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    proxy.heal();
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    assert_held_by(&mut bench, "a", &first).await?;
    ready(&bench.agent).await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_partition_longer_than_the_lease_is_reported_before_expiry() -> Result<()> {
    // The margin, a tenth of the lease at most, outlasts the stalls of a busy machine.
    let (mut bench, proxy) = stage(&["--lease", "18s", "--lost-margin", "1800ms"]).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    lock(&mut worker, "LOCK a").await?;
    proxy.part();
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    // On a separate connection, as its last call does not end.
    let mut observer = bench.redis.client().await?;
    let free = eventually("the lock to be free in Redis", async || {
        ensure!(observer.call("EXISTS a").await? == Reply::Int(0), "it is held");
        Ok(())
    });
    tokio::select! {
        // If this test has stalled and finds both, it cannot know which was first: the report is not to blame.
        biased;
        push = worker.push() => assert_eq!(push?, ["lock-lost", "a", "lock", "unconfirmed"]),
        () = free => bail!("the lock is free in Redis before its loss is reported"),
    }
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "unconfirmed");
    unready(&bench.agent, "no reply within").await;
    // Another client acquires the lock once its lease has ended in Redis; commands held back until then must not affect it.
    bench.until_free("a").await;
    let thief = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    bench.direct.call(&format!("HSET a {thief} 1")).await?.ok()?;
    bench.direct.call("PEXPIRE a 600000").await?.ok()?;
    proxy.heal();
    ready(&bench.agent).await;
    lock(&mut worker, "LOCK b").await?;
    assert_held_by(&mut bench, "a", thief).await?;
    assert_eq!(answered(&mut worker, "LOCK a NOWAIT").await, Reply::Null);
    Ok(())
}

#[tokio::test]
async fn half_open_connections_are_replaced() -> Result<()> {
    let (mut bench, proxy) = stage(SHORT).await?;
    let mut worker = bench.session().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    let dead = proxy.lines(None);
    for line in &dead {
        line.set(Way::Up, Flow::Swallow);
        line.set(Way::Down, Flow::Swallow);
    }
    lock(&mut worker, "LOCK b WAIT 20000").await?;
    // The other connections were idle: each must be found dead by its own keep-alive.
    eventually("all four connections to be replaced", async || {
        let open = dead.iter().filter(|line| line.is_open()).count();
        ensure!(open == 0 && proxy.lines(None).len() == 4, "{open} of the old ones are open");
        Ok(())
    })
    .await;
    assert_held_by(&mut bench, "a", &first).await?;
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_half_closed_connection_is_replaced() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    for way in [Way::Up, Way::Down] {
        for link in [COMMANDS, RENEWALS, MESSAGES] {
            let line = proxy.line(link).await;
            line.set(way, Flow::End);
            eventually("another connection", async || {
                ensure!(!line.is_open() && !proxy.lines(Some(link)).is_empty(), "{way:?} {link}");
                Ok(())
            })
            .await;
        }
        lock(&mut worker, "LOCK b WAIT 20000").await?;
        worker.call("UNLOCK b").await?.ok()?;
    }
    assert_held_by(&mut bench, "a", &first).await?;
    Ok(())
}

#[tokio::test]
async fn a_slow_connection_reduces_validity_only() -> Result<()> {
    const DELAY: Duration = Duration::from_millis(50);
    let (bench, proxy) = stage(LONG).await?;
    for line in proxy.lines(None) {
        line.set(Way::Up, Flow::Delay(DELAY));
        line.set(Way::Down, Flow::Delay(DELAY));
    }
    let mut first = bench.session().await?;
    let mut second = bench.session().await?;
    for _ in 0..3 {
        let granted = lock(&mut first, "LOCK a").await?;
        let valid = granted.field("valid_ms")?.int()?;
        assert!(valid <= 600_000 - 6_000 - 2 - 100, "{valid} ms: the round trip counts");
        second.send("LOCK a").await?;
        bench.until_waiting("a", 1).await?;
        assert_eq!(first.call("UNLOCK a").await?, Reply::Int(0));
        assert_eq!(second.reply().await?.field("holds")?, &Reply::Int(1));
        assert_eq!(second.call("UNLOCK a").await?, Reply::Int(0));
    }
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_redis_that_refuses_connections_is_retried() -> Result<()> {
    let (mut bench, proxy) = stage(MEDIUM).await?;
    let mut worker = bench.agent.client_with_pushes().await?;
    let first = holder(&lock(&mut worker, "LOCK a").await?)?;
    proxy.gate(Gate::Refuse);
    proxy.cut();
    assert_error(&worker.call("LOCK b NOWAIT").await?, "UNAVAILABLE", "b");
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    proxy.heal();
    assert_eq!(worker.push().await?, ["lock-safe", "a", "lock"]);
    assert_held_by(&mut bench, "a", &first).await?;
    Ok(())
}

#[tokio::test]
async fn a_waiter_acquires_soon_after_a_lost_release_message() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let foreign = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    let mut waiter = bench.session().await?;
    // In the first round the connection only stops receiving; in the second it is cut and opened again.
    for cut in [false, true] {
        bench.direct.call(&format!("HSET a {foreign} 1")).await?.ok()?;
        bench.direct.call("PEXPIRE a 600000").await?.ok()?;
        waiter.send("LOCK a").await?;
        until_subscribed(&mut bench, 2).await;
        let line = proxy.line(MESSAGES).await;
        if cut {
            proxy.gate(Gate::Refuse);
            line.cut();
            until_subscribed(&mut bench, 0).await;
        } else {
            line.set(Way::Down, Flow::Swallow);
        }
        bench.direct.call("DEL a").await?.ok()?;
        bench.direct.call("PUBLISH redisson_lock__channel:{a} 0").await?.ok()?;
        proxy.gate(Gate::Open);
        assert_eq!(waiter.reply().await?.field("holds")?, &Reply::Int(1));
        waiter.call("UNLOCK a").await?.ok()?;
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_subscriptions_are_restored_and_wake_their_waiters() -> Result<()> {
    const NAMES: usize = 1_000;
    let (mut bench, _proxy) = stage(LONG).await?;
    let foreign = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    for i in 0..NAMES {
        bench.direct.call(&format!("HSET n:{i} {foreign} 1")).await?.ok()?;
        bench.direct.call(&format!("PEXPIRE n:{i} 600000")).await?.ok()?;
    }
    let mut waiters = bench.session().await?;
    for i in 0..NAMES {
        waiters.send(&format!("LOCK n:{i} OWNER {i}")).await?;
    }
    until_subscribed(&mut bench, NAMES + 1).await;
    bench.direct.call("CLIENT KILL TYPE pubsub").await?.ok()?;
    // The locks are released while the agent is not subscribed.
    bench.direct.call("FLUSHALL").await?.ok()?;
    let mut granted = 0;
    while granted < NAMES {
        assert_eq!(waiters.reply().await?.field("holds")?, &Reply::Int(1));
        granted += 1;
    }
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 1_000);
    Ok(())
}

/// Waits until that many channels have a subscriber; one is the agent's own channel.
async fn until_subscribed(bench: &mut super::Bench, count: usize) {
    eventually("subscriptions", async || {
        let channels = bench.direct.call("PUBSUB CHANNELS *").await?.ok()?;
        let there = channels.items()?.len();
        ensure!(there == count, "{there} of {count}");
        Ok(())
    })
    .await;
}
