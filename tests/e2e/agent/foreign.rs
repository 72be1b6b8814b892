//! Locks held by other clients, such as a Java service with Redisson.

use anyhow::Result;
use harness::{Foreign, Reply};

use super::{Bench, lock};

#[tokio::test]
async fn a_foreign_release_message_wakes_the_waiter() -> Result<()> {
    // Neither the lease nor the poll interval ends before the test gives up.
    let mut bench = Bench::with(&["--poll-max", "10m"]).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("a").await?);
    let mut worker = bench.session().await?;
    worker.send("LOCK a").await?;
    until_subscribed(&mut bench).await?;
    assert!(java.unlock("a").await?);
    let reply = worker.reply().await?;
    assert_eq!(reply.field("holds")?, &Reply::Int(1));
    assert!(!java.lock("a").await?, "now the foreign client has to wait");
    Ok(())
}

#[tokio::test]
async fn the_waiter_sleeps_until_the_foreign_lease_expires() -> Result<()> {
    let bench = Bench::with(&["--poll-max", "10m"]).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    java.lease_ms = 700;
    assert!(java.lock("a").await?);
    let mut worker = bench.session().await?;
    let reply = lock(&mut worker, "LOCK a").await?;
    assert_eq!(reply.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn a_foreign_lock_without_a_ttl_is_polled() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "200ms"]).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("a").await?);
    bench.direct.call("PERSIST a").await?.ok()?;
    let mut worker = bench.session().await?;
    worker.send("LOCK a").await?;
    until_subscribed(&mut bench).await?;
    // Deleted by hand: no release message is sent.
    bench.direct.call("DEL a").await?.ok()?;
    assert_eq!(worker.reply().await?.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn the_waiter_sleeps_again_if_the_foreign_holder_renews() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    java.lease_ms = 12_000;
    assert!(java.lock("a").await?);
    let mut worker = bench.session().await?;
    worker.send("LOCK a").await?;
    until_subscribed(&mut bench).await?;
    java.lease_ms = 600_000;
    assert!(java.renew("a").await?);
    // The waiter wakes at the end of the lease that it knew, finds a longer one, and sleeps again.
    bench.until_metric("lockscope_agent_redis_seconds_count", &[("script", "acquire")], 3.0).await;
    bench.until_waiting("a", 1).await?;
    assert!(java.unlock("a").await?);
    assert_eq!(worker.reply().await?.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn the_agents_release_is_published_to_foreign_waiters() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    let mut listener = bench.redis.client().await?;
    listener.call("SUBSCRIBE redisson_lock__channel:{a}").await?.ok()?;
    assert!(!java.lock("a").await?);
    worker.call("UNLOCK a").await?.ok()?;
    assert_eq!(listener.reply().await?.items()?[2].text(), "0");
    assert!(java.lock("a").await?);
    assert!(java.lock("a").await?, "the foreign client reenters its hold");
    Ok(())
}

#[tokio::test]
async fn foreign_attempts_are_rejected_while_the_agent_holds_the_lock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    lock(&mut worker, "LOCK a").await?;
    assert!(!java.lock("a").await?);
    assert!(!java.unlock("a").await?, "the foreign client cannot release the agent's hold");
    assert_eq!(bench.holders("a").await?.len(), 1);
    Ok(())
}

/// Waits until the agent listens to the release messages of `a`.
async fn until_subscribed(bench: &mut Bench) -> Result<()> {
    harness::eventually("the agent's subscription", async || {
        let numsub = bench.direct.call("PUBSUB NUMSUB redisson_lock__channel:{a}").await?;
        anyhow::ensure!(numsub.items()?[1].int()? == 1, "{numsub}");
        Ok(())
    })
    .await;
    Ok(())
}
