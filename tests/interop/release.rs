//! Forced releases on the dashboard: the other side's waiters wake, and the loss is reported to the holder.
//! Leases are so long that nothing else can have woken them. Also releases by Redisson that Redis refuses.

use anyhow::{Context as _, Result, ensure};
use harness::{Dashboard, Reply, eventually};

use super::bed::{FAIR, READ, for_each_kind, lock};
use super::{Bed, Kind};

for_each_kind!(
    a_forced_release_of_the_agents_hold_wakes_java,
    a_forced_release_of_javas_hold_wakes_the_agent
);

async fn dashboard(bed: &Bed) -> Result<Dashboard> {
    Dashboard::start(&bed.redis.url(), &["--allow-release", "--insecure", "--monitor", "off"]).await
}

/// Releases the lock `a`, or one of its holders.
async fn release(dashboard: &Dashboard, target: &str) -> Result<()> {
    let outcome = dashboard.release("a", target).await?;
    ensure!(outcome["outcome"] == "released", "{outcome}");
    Ok(())
}

mod cases {
    use super::*;

    pub(super) async fn a_forced_release_of_the_agents_hold_wakes_java(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let dashboard = dashboard(&bed).await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let java = bed.java(kind, "a");
        let waiting = java.begin_wait().await?;
        release(&dashboard, "lock").await?;
        waiting.answer().await??;
        assert!(java.is("isHeldByCurrentThread").await?);
        let lost = worker.call_args(&kind.unlock("a")).await?;
        assert!(lost.is_error("LOST") && lost.text().contains("forced"), "{lost}");
        Ok(())
    }

    pub(super) async fn a_forced_release_of_javas_hold_wakes_the_agent(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let dashboard = dashboard(&bed).await?;
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let mut worker = bed.session().await?;
        bed.begin_wait(&mut worker, kind, "a").await?;
        let another = java.on(2).begin_wait().await?;
        release(&dashboard, "lock").await?;
        // One message wakes both: the quicker one acquires the lock, and the other one gets it after the release.
        {
            let reply = worker.reply();
            tokio::pin!(reply);
            tokio::select! {
                grant = &mut reply => drop(grant?.ok()?),
                answer = another.answer() => {
                    answer??;
                    java.on(2).call("unlock").await?;
                    reply.await?.ok()?;
                }
            }
        }
        assert_eq!(java.thrown("unlock").await?.class, "IllegalMonitorStateException");
        Ok(())
    }
}

#[tokio::test]
async fn a_forced_release_of_a_fair_lock_wakes_the_first_waiter() -> Result<()> {
    let mut bed = Bed::new().await?;
    let dashboard = dashboard(&bed).await?;
    let java = bed.java(FAIR, "a");
    java.call("lock").await?;
    let first = java.on(2).begin_wait().await?;
    let mut second = bed.session().await?;
    second.send_bytes(&harness::client::encode(&FAIR.lock("a", ""))).await?;
    let queue = "redisson_lock_queue:{a}";
    eventually("two waiters in the queue", async || {
        ensure!(bed.direct.call_args(&["LLEN", queue]).await?.int()? == 2, "not yet");
        Ok(())
    })
    .await;
    release(&dashboard, "lock").await?;
    first.answer().await??;
    assert_eq!(
        bed.direct.call_args(&["LLEN", queue]).await?.int()?,
        1,
        "the second waiter is still in the queue"
    );
    release(&dashboard, "lock").await?;
    assert_ne!(second.reply().await?.ok()?, Reply::Null, "the agent's waiter is granted the lock");
    Ok(())
}

#[tokio::test]
async fn a_forced_release_of_the_last_reader_wakes_a_writer() -> Result<()> {
    let bed = Bed::new().await?;
    let dashboard = dashboard(&bed).await?;
    let java = bed.java(READ, "a");
    java.call("lock").await?;
    let mut worker = bed.session().await?;
    assert!(lock(&mut worker, READ, "a", "").await?);
    let reader = format!("{}:{}", bed.id, java.thread_id().await?);
    release(&dashboard, &format!("holder:{reader}")).await?;
    let thrown = java.thrown("unlock").await?;
    assert_eq!(thrown.class, "IllegalMonitorStateException");
    let write = Kind::of("write").context("a kind of that name")?;
    let waiting = bed.java(write, "a").on(2).begin_wait().await?;
    assert!(waiting.is_open(), "the agent's reader still holds the lock");
    release(&dashboard, "lock").await?;
    waiting.answer().await??;
    let lost = worker.call_args(&READ.unlock("a")).await?;
    assert!(lost.is_error("LOST") && lost.text().contains("forced"), "{lost}");
    Ok(())
}

#[tokio::test]
async fn java_cannot_release_while_redis_is_full() -> Result<()> {
    let mut bed = Bed::with(&[], "watchdog=10000").await?;
    let plain = Kind::of("lock").context("a kind of that name")?;
    let java = bed.java(plain, "a");
    java.call("lock").await?;
    bed.direct.call("CONFIG SET maxmemory 1").await?.ok()?;
    let thrown = java.thrown("unlock").await?;
    assert_eq!(thrown.class, "RedisOutOfMemoryException", "{thrown}");
    assert_eq!(bed.holders("a").await?.len(), 1, "it is still held");
    eventually("the end of its lease", async || {
        let holders = bed.holders("a").await?;
        ensure!(holders.is_empty(), "{holders:?}");
        Ok(())
    })
    .await;
    Ok(())
}
