//! Lost replies and late scripts. A script with an unknown outcome is sent again unchanged, and a copy that runs
//! late must be harmless.

use anyhow::{Result, ensure};
use harness::proxy::{Flow, Line, Way};
use harness::{Reply, eventually};

use super::{
    COMMANDS, LONG, RENEWALS, SHORT, assert_error, assert_held_by, hold_a_script, holder, lock,
    stage,
};

const DOUBTS: &str = "lockscope_agent_doubts_total";

#[tokio::test]
async fn a_grant_whose_reply_is_lost_is_made_once() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    proxy.line(COMMANDS).await.set(Way::Down, Flow::Swallow);
    let granted = lock(&mut worker, "LOCK a").await?;
    assert_eq!(granted.field("holds")?, &Reply::Int(1));
    assert_held_by(&mut bench, "a", &holder(&granted)?).await?;
    bench.until_metric(DOUBTS, &[("outcome", "applied")], 1.0).await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert!(bench.is_free("a").await?, "one release is enough");
    Ok(())
}

#[tokio::test]
async fn a_truncated_reply_counts_as_lost() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    for cut_after in [0, 1, 5] {
        proxy.line(COMMANDS).await.set(Way::Down, Flow::CutAfter(cut_after));
        let granted = lock(&mut worker, "LOCK a").await?;
        assert_held_by(&mut bench, "a", &holder(&granted)?).await?;
        assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
        assert!(bench.is_free("a").await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_late_acquire_changes_nothing_under_the_next_holder() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut first = bench.session().await?;
    let mut second = bench.session().await?;
    let stuck = proxy.line(COMMANDS).await;
    stuck.set(Way::Up, Flow::Hold);
    lock(&mut first, "LOCK a").await?;
    assert_eq!(first.call("UNLOCK a").await?, Reply::Int(0));
    let granted = holder(&lock(&mut second, "LOCK a").await?)?;
    deliver(&stuck).await;
    assert_held_by(&mut bench, "a", &granted).await?;
    assert_eq!(second.call("UNLOCK a").await?, Reply::Int(0));
    assert!(bench.is_free("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_late_acquire_of_a_free_lock_is_removed_by_the_next_attempt() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut first = bench.session().await?;
    let stuck = proxy.line(COMMANDS).await;
    stuck.set(Way::Up, Flow::Hold);
    let old = holder(&lock(&mut first, "LOCK a").await?)?;
    assert_eq!(first.call("UNLOCK a").await?, Reply::Int(0));
    assert!(bench.is_free("a").await?);
    deliver(&stuck).await;
    assert_held_by(&mut bench, "a", &old).await?;
    let mut second = bench.session().await?;
    let granted = holder(&lock(&mut second, "LOCK a").await?)?;
    assert_ne!(granted, old);
    assert_held_by(&mut bench, "a", &granted).await?;
    let late = bench.agent.metrics().await?.sum(DOUBTS, &[("outcome", "undone_late")]);
    assert_eq!(late, 1.0, "one copy was late");
    Ok(())
}

#[tokio::test]
async fn an_abandoned_acquire_is_undone() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    // The script runs, but its reply does not arrive in time.
    proxy.line(COMMANDS).await.set(Way::Down, Flow::Swallow);
    let reply = worker.call("LOCK a WAIT 500").await?;
    assert!(reply == Reply::Null || reply.is_error("UNAVAILABLE"), "{reply}");
    bench.until_free("a").await;
    lock(&mut worker, "LOCK a").await?;
    Ok(())
}

#[tokio::test]
async fn a_release_with_a_lost_reply_takes_effect() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    proxy.line(COMMANDS).await.set(Way::Down, Flow::Swallow);
    let reply = worker.call("UNLOCK a").await?;
    assert!(reply == Reply::Int(0) || reply.is_error("UNAVAILABLE"), "{reply}");
    bench.until_free("a").await;
    lock(&mut worker, "LOCK a").await?;
    assert_eq!(super::lost(&bench.agent).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_late_release_does_not_touch_the_next_holder() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut first = bench.session().await?;
    let mut second = bench.session().await?;
    lock(&mut first, "LOCK a").await?;
    let stuck = proxy.line(COMMANDS).await;
    stuck.set(Way::Up, Flow::Hold);
    let reply = first.call("UNLOCK a").await?;
    assert!(reply == Reply::Int(0) || reply.is_error("UNAVAILABLE"), "{reply}");
    let granted = holder(&lock(&mut second, "LOCK a").await?)?;
    deliver(&stuck).await;
    assert_held_by(&mut bench, "a", &granted).await?;
    Ok(())
}

#[tokio::test]
async fn a_late_renewal_extends_nothing_and_creates_nothing() -> Result<()> {
    // On a busy machine, the lease must not end while the renewals move to another connection.
    let (mut bench, proxy) = stage(&["--lease", "20s"]).await?;
    let mut first = bench.session().await?;
    let mut second = bench.session().await?;
    lock(&mut first, "LOCK a").await?;
    lock(&mut first, "LOCK b").await?;
    let stuck = hold_a_script(&proxy, RENEWALS).await?;
    // Renewals continue on another connection, so the held one is a copy.
    let renewed = "lockscope_agent_renewals_total";
    let before = bench.agent.metrics().await?.sum(renewed, &[("outcome", "renewed")]);
    bench.until_metric(renewed, &[("outcome", "renewed")], before + 2.0).await;
    assert_eq!(first.call("UNLOCK a").await?, Reply::Int(0));
    assert_eq!(first.call("UNLOCK b").await?, Reply::Int(0));
    let granted = holder(&lock(&mut second, "LOCK b LEASE 600000").await?)?;
    deliver(&stuck).await;
    assert!(bench.is_free("a").await?, "a renewal creates nothing");
    assert_held_by(&mut bench, "b", &granted).await?;
    Ok(())
}

#[tokio::test]
async fn a_hand_over_whose_reply_is_lost_is_made_once_and_its_late_copy_does_nothing() -> Result<()>
{
    for flow in [Flow::Swallow, Flow::Hold] {
        let (mut bench, proxy) = stage(LONG).await?;
        let mut first = bench.session().await?;
        let mut second = bench.session().await?;
        lock(&mut first, "LOCK a").await?;
        second.send("LOCK a").await?;
        bench.until_waiting("a", 1).await?;
        let stuck = proxy.line(COMMANDS).await;
        stuck.set(if flow == Flow::Hold { Way::Up } else { Way::Down }, flow);
        let reply = first.call("UNLOCK a").await?;
        assert!(reply == Reply::Int(0) || reply.is_error("UNAVAILABLE"), "{reply}");
        let granted = second.reply().await?;
        assert_eq!(granted.field("holds")?, &Reply::Int(1));
        let expected = [(holder(&granted)?, "1".to_owned())];
        eventually("Redis to have the second holder", async || {
            let holders = bench.holders("a").await?;
            ensure!(holders == expected, "{holders:?}");
            Ok(())
        })
        .await;
        assert_eq!(second.call("UNLOCK a").await?, Reply::Int(0));
        if flow == Flow::Hold {
            deliver(&stuck).await;
        }
        assert!(bench.is_free("a").await?);
        assert_eq!(super::lost(&bench.agent).await?, 0.0);
    }
    Ok(())
}

#[tokio::test]
async fn a_lock_missing_at_its_hand_over_is_lost_by_both_holders() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut first = bench.session().await?;
    let mut second = bench.session().await?;
    lock(&mut first, "LOCK a").await?;
    second.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    let stuck = proxy.line(COMMANDS).await;
    stuck.set(Way::Up, Flow::Hold);
    bench.direct.call("DEL a").await?.ok()?;
    first.send("UNLOCK a").await?;
    let granted = second.reply().await?.ok()?;
    assert_eq!(granted.field("holds")?, &Reply::Int(1), "before Redis has answered");
    stuck.set(Way::Up, Flow::Pass);
    assert_error(&first.reply().await?, "LOST", "a");
    eventually("the loss", async || {
        ensure!(super::lost(&bench.agent).await? == 2.0, "not yet");
        Ok(())
    })
    .await;
    assert_error(&second.call("UNLOCK a").await?, "LOST", "a");
    assert!(bench.is_free("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_re_entry_whose_reply_is_lost_leaves_no_count_behind() -> Result<()> {
    let (mut bench, proxy) = stage(SHORT).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a LEASE 60000").await?;
    proxy.line(COMMANDS).await.set(Way::Down, Flow::Swallow);
    assert_error(&worker.call("LOCK a LEASE 60000").await?, "UNAVAILABLE", "a");
    let rows = worker.call("HOLDS").await?.ok()?;
    assert_eq!(rows.items()?[0].field("holds")?, &Reply::Int(1));
    eventually("the count in Redis to be corrected", async || {
        let count = bench.holders("a").await?[0].1.clone();
        ensure!(count == "1", "{count}");
        Ok(())
    })
    .await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    assert!(bench.is_free("a").await?);
    Ok(())
}

/// Delivers the script that a connection has held, and waits until Redis has read all of it and the end of the connection.
async fn deliver(line: &Line) {
    assert!(line.is_holding_a_script(), "a script is held");
    line.set(Way::Up, Flow::Pass);
    eventually("the delayed bytes to arrive", async || {
        ensure!(!line.is_open(), "{} bytes are held", line.held(Way::Up));
        Ok(())
    })
    .await;
}
