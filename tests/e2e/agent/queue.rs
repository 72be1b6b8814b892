//! Waiting: the local queue, NOWAIT, WAIT, CANCEL.

use anyhow::{Result, ensure};
use harness::{Reply, eventually};

use super::{Bench, assert_error, credentials, holder, lock};

#[tokio::test]
async fn local_waiters_are_served_in_order() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut first = bench.session().await?;
    lock(&mut first, "LOCK a").await?;
    let mut queue = Vec::new();
    for i in 1..=8 {
        let mut waiter = bench.session().await?;
        waiter.send("LOCK a").await?;
        bench.until_waiting("a", i).await?;
        queue.push(waiter);
    }
    first.call("UNLOCK a").await?.ok()?;
    for i in 0..queue.len() {
        let reply = queue[i].reply().await?;
        // Redis shows exactly the waiter that was granted the lock, and those behind it still wait.
        assert_eq!(bench.holders("a").await?, [(holder(&reply)?, "1".to_owned())]);
        bench.until_waiting("a", queue.len() - i - 1).await?;
        queue[i].call("UNLOCK a").await?.ok()?;
    }
    assert!(bench.is_free("a").await?);
    Ok(())
}

#[tokio::test]
async fn the_lock_is_handed_over_between_local_holders() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut first = bench.session().await?;
    let mut second = bench.session().await?;
    let mut listener = bench.redis.client().await?;
    listener.call("SUBSCRIBE redisson_lock__channel:{a}").await?.ok()?;
    lock(&mut first, "LOCK a").await?;
    second.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    first.call("UNLOCK a").await?.ok()?;
    second.reply().await?.ok()?;
    assert_eq!(bench.agent.metrics().await?.sum("lockscope_agent_handovers_total", &[]), 1.0);
    second.call("UNLOCK a").await?.ok()?;
    let message = listener.reply().await?;
    assert_eq!(message.items()?[2].text(), "0");
    // Only that release published a message; a hand-over publishes none.
    bench.direct.call("PUBLISH redisson_lock__channel:{a} end").await?.ok()?;
    assert_eq!(listener.reply().await?.items()?[2].text(), "end");
    Ok(())
}

#[tokio::test]
async fn a_wait_that_times_out_replies_null() -> Result<()> {
    let bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    let mut old = bench.session().await?;
    let mut new = bench.agent.client3().await?;
    lock(&mut holder, "LOCK a").await?;
    for command in ["LOCK a NOWAIT", "LOCK a WAIT 0", "LOCK a WAIT 30"] {
        assert_eq!(old.call(command).await?, Reply::Null, "{command}");
        assert_eq!(new.call(command).await?, Reply::Null, "{command}");
    }
    holder.call("UNLOCK a").await?.ok()?;
    assert_eq!(lock(&mut old, "LOCK a NOWAIT").await?.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn nowait_never_overtakes_a_waiter() -> Result<()> {
    let bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    let mut waiter = bench.session().await?;
    let mut hasty = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    waiter.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    assert_eq!(hasty.call("LOCK a NOWAIT").await?, Reply::Null);
    holder.call("UNLOCK a").await?.ok()?;
    waiter.reply().await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_departing_waiter_unblocks_the_next() -> Result<()> {
    let bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    let mut brief = bench.session().await?;
    let mut leaving = bench.session().await?;
    let mut last = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    brief.send("LOCK a WAIT 12000").await?;
    bench.until_waiting("a", 1).await?;
    leaving.send("LOCK a").await?;
    bench.until_waiting("a", 2).await?;
    last.send("LOCK a").await?;
    bench.until_waiting("a", 3).await?;
    drop(leaving);
    assert_eq!(brief.reply().await?, Reply::Null);
    bench.until_waiting("a", 1).await?;
    holder.call("UNLOCK a").await?.ok()?;
    assert_eq!(last.reply().await?.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn cancel_ends_one_owners_wait() -> Result<()> {
    let bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    let mut waiter = bench.session().await?;
    let mut other = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    let ticket = credentials(&mut waiter).await?;
    waiter.send("LOCK a OWNER 1").await?;
    waiter.send("LOCK a OWNER 2").await?;
    bench.until_waiting("a", 2).await?;
    assert_eq!(other.call(&format!("CANCEL {ticket} OWNER 3")).await?, Reply::Int(0));
    let id = ticket.split(' ').next().unwrap_or_default();
    let guess = format!("CANCEL {id} {} OWNER 1", "0".repeat(32));
    assert_error(&other.call(&guess).await?, "SESSION", "secret");
    assert_eq!(other.call(&format!("CANCEL {ticket} OWNER 1")).await?, Reply::Int(1));
    assert_eq!(waiter.reply().await?, Reply::Null);
    bench.until_waiting("a", 1).await?;
    holder.call("UNLOCK a").await?.ok()?;
    assert_eq!(waiter.reply().await?.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn the_number_of_waits_is_bounded() -> Result<()> {
    let bench = Bench::with(&["--max-waiters", "3"]).await?;
    let mut holder = bench.session().await?;
    let mut waiter = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    for owner in 1..=3 {
        waiter.send(&format!("LOCK a OWNER {owner}")).await?;
    }
    bench.until_waiting("a", 3).await?;
    let mut other = bench.session().await?;
    assert_error(&other.call("LOCK a").await?, "LIMIT", "--max-waiters");
    drop(waiter);
    bench.until_waiting("a", 0).await?;
    other.send("LOCK a").await?;
    bench.until_waiting("a", 1).await
}

#[tokio::test]
async fn a_hundred_local_waiters_subscribe_once() -> Result<()> {
    let mut bench = Bench::new().await?;
    let java = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    bench.direct.call(&format!("HSET a {java} 1")).await?.ok()?;
    bench.direct.call("PEXPIRE a 60000").await?.ok()?;
    let mut waiter = bench.session().await?;
    for owner in 0..100 {
        waiter.send(&format!("LOCK a OWNER {owner}")).await?;
    }
    bench.until_waiting("a", 100).await?;
    eventually("the agent's subscription", async || {
        let numsub = bench.direct.call("PUBSUB NUMSUB redisson_lock__channel:{a}").await?;
        ensure!(numsub.items()?[1].int()? == 1, "{numsub}");
        Ok(())
    })
    .await;
    bench.direct.call("DEL a").await?.ok()?;
    bench.direct.call("PUBLISH redisson_lock__channel:{a} 0").await?.ok()?;
    for owner in 0..100 {
        waiter.send(&format!("UNLOCK a OWNER {owner}")).await?;
    }
    for _ in 0..100 {
        assert_eq!(waiter.reply().await?.field("holds")?, &Reply::Int(1));
    }
    for _ in 0..100 {
        assert_eq!(waiter.reply().await?, Reply::Int(0));
    }
    Ok(())
}
