//! Lost holds are detected, reported with the reason and never restored silently.

use anyhow::{Result, ensure};
use harness::{Reply, eventually};

use super::{Bench, assert_error, credentials, lock, until_lost};

const LOST: &str = "lockscope_agent_lost_holds_total";

#[tokio::test]
async fn a_hold_deleted_from_redis_is_missing() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    lock(&mut worker, "LOCK a").await?;
    bench.direct.call("DEL a").await?.ok()?;
    assert_eq!(until_lost(&mut listener, &ticket).await, "[lost, a, lock, missing]");
    assert!(bench.is_free("a").await?, "the hold is never restored");
    assert_eq!(worker.call("HOLDS").await?, Reply::Array(vec![]));
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "missing");
    assert_error(&worker.call("EXTEND a 5000").await?, "LOST", "a");
    let metrics = bench.agent.metrics().await?;
    assert_eq!(metrics.sum(LOST, &[("reason", "missing")]), 1.0);
    // Renewals of another lock continue; those of the lost one do not.
    lock(&mut worker, "LOCK b").await?;
    let renewed = metrics.sum("lockscope_agent_renewals_total", &[("outcome", "renewed")]);
    let metric = "lockscope_agent_renewals_total";
    bench.until_metric(metric, &[("outcome", "renewed")], renewed + 2.0).await;
    assert!(bench.is_free("a").await?);
    let again = lock(&mut worker, "LOCK a").await?;
    assert_eq!(again.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn a_hold_taken_by_another_client_is_stolen() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    lock(&mut worker, "LOCK a").await?;
    let thief = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    bench.direct.call("MULTI").await?.ok()?;
    bench.direct.call("DEL a").await?.ok()?;
    bench.direct.call(&format!("HSET a {thief} 1")).await?.ok()?;
    bench.direct.call("PEXPIRE a 60000").await?.ok()?;
    bench.direct.call("EXEC").await?.ok()?;
    assert_eq!(until_lost(&mut listener, &ticket).await, "[lost, a, lock, stolen]");
    assert_eq!(
        bench.holders("a").await?,
        [(thief.to_owned(), "1".to_owned())],
        "the new holder is not affected"
    );
    assert!(bench.pttl("a").await? > 50_000);
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "stolen");
    Ok(())
}

#[tokio::test]
async fn commands_that_ask_redis_report_a_lost_hold_and_do_not_restore_it() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    for (again, name) in
        [("LOCK a LEASE 60000", "a"), ("UNLOCK b KIND read", "b"), ("EXTEND c 60000", "c")]
    {
        let kind = if name == "b" { " KIND read" } else { "" };
        lock(&mut worker, &format!("LOCK {name} LEASE 60000{kind}")).await?;
        lock(&mut worker, &format!("LOCK {name} LEASE 60000{kind}")).await?;
        bench.direct.call(&format!("DEL {name}")).await?.ok()?;
        assert_error(&worker.call(again).await?, "LOST", name);
        assert!(bench.is_free(name).await?, "{again} has restored the hold");
        assert_error(&worker.call(&format!("UNLOCK {name}")).await?, "LOST", name);
    }
    Ok(())
}

#[tokio::test]
async fn a_deferred_count_finds_a_lost_hold_soon_and_does_not_restore_it() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    for (again, name) in [("LOCK a", "a"), ("UNLOCK b", "b")] {
        lock(&mut worker, &format!("LOCK {name}")).await?;
        lock(&mut worker, &format!("LOCK {name}")).await?;
        // The renewal that writes this count would find the loss before the next command.
        eventually("the count in Redis", async || {
            let holders = bench.holders(name).await?;
            ensure!(holders.len() == 1 && holders[0].1 == "2", "{holders:?}");
            Ok(())
        })
        .await;
        bench.direct.call(&format!("DEL {name}")).await?.ok()?;
        worker.call(again).await?.ok()?;
        let events = listener.call(&format!("EVENTS {ticket} WAIT 20000")).await?;
        assert_eq!(events.text(), format!("[[lost, {name}, lock, missing]]"));
        assert!(bench.is_free(name).await?, "{again} has restored the hold");
        assert_error(&worker.call(&format!("UNLOCK {name}")).await?, "LOST", name);
    }
    Ok(())
}

#[tokio::test]
async fn a_release_of_a_lost_hold_reports_the_loss() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.direct.call("DEL a").await?.ok()?;
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "missing");
    lock(&mut worker, "LOCK b").await?;
    bench.direct.call("DEL b").await?.ok()?;
    bench.direct.call("HSET b 0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47 1").await?.ok()?;
    assert_error(&worker.call("UNLOCK b").await?, "LOST", "stolen");
    assert_eq!(bench.holders("b").await?.len(), 1, "the other holder is not affected");
    Ok(())
}

#[tokio::test]
async fn a_waiter_behind_a_lost_hold_acquires_it_normally() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    let mut waiter = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    waiter.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    bench.direct.call("DEL a").await?.ok()?;
    let reply = waiter.reply().await?;
    assert_eq!(reply.field("holds")?, &Reply::Int(1));
    let holder = reply.field("holder")?.text();
    assert_eq!(bench.holders("a").await?, [(holder, "1".to_owned())]);
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "missing");
    Ok(())
}

/// Returns the channel of forced releases of a holder's agent, once the agent is subscribed to it.
async fn forced_channel(bench: &mut Bench, holder: &str) -> String {
    let uuid = holder.split(':').next().unwrap_or_default();
    let channel = format!("lockscope:forced:{{{uuid}}}");
    eventually("the agent's subscription", async || {
        let numsub = bench.direct.call_args(&["PUBSUB", "NUMSUB", &channel]).await?;
        ensure!(numsub.items()?[1].int()? == 1, "{numsub}");
        Ok(())
    })
    .await;
    channel
}

#[tokio::test]
async fn a_forced_release_message_alone_does_not_end_a_hold() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.session().await?;
    let holder = lock(&mut worker, "LOCK a").await?.field("holder")?.text();
    let channel = forced_channel(&mut bench, &holder).await;
    bench.direct.call_args(&["PUBLISH", &channel, &format!("{holder} a")]).await?.ok()?;
    // The agent has checked in Redis, long before a renewal was due.
    bench.until_metric("lockscope_agent_renewals_total", &[("outcome", "renewed")], 1.0).await;
    assert_eq!(bench.holders("a").await?, [(holder, "1".to_owned())]);
    assert_eq!(bench.agent.metrics().await?.sum(LOST, &[]), 0.0);
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn a_forced_release_is_reported_at_once() -> Result<()> {
    // The lease is so long that no renewal can notice the loss.
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    let holder = lock(&mut worker, "LOCK a").await?.field("holder")?.text();
    let channel = forced_channel(&mut bench, &holder).await;
    bench.direct.call("DEL a").await?.ok()?;
    let receivers = bench.direct.call_args(&["PUBLISH", &channel, &format!("{holder} a")]).await?;
    assert_eq!(receivers, Reply::Int(1), "the agent is subscribed");
    let events = listener.call(&format!("EVENTS {ticket} WAIT 20000")).await?;
    assert_eq!(events.text(), "[[lost, a, lock, forced]]");
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "forced");
    Ok(())
}
