//! The watchdog, fixed leases, EXTEND.

use anyhow::{Result, ensure};
use harness::{Reply, eventually};

use super::{Bench, answered, assert_error, credentials, holder, lock};

const RENEWALS: &str = "lockscope_agent_renewals_total";
const RENEWED: [(&str, &str); 1] = [("outcome", "renewed")];

#[tokio::test]
async fn the_watchdog_keeps_a_hold_beyond_its_lease() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "12s"]).await?;
    let mut worker = bench.session().await?;
    let before = holder(&lock(&mut worker, "LOCK a").await?)?;
    // Renewals are a third of the lease apart, so four of them take longer than a lease.
    bench.until_metric(RENEWALS, &RENEWED, 4.0).await;
    assert_eq!(bench.holders("a").await?, [(before, "1".to_owned())]);
    let pttl = bench.pttl("a").await?;
    assert!((1..=12_000).contains(&pttl), "{pttl}");
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn a_thousand_holds_are_renewed_together() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    for i in 0..1_000 {
        worker.send(&format!("LOCK many:{i}")).await?;
    }
    for _ in 0..1_000 {
        worker.reply().await?.ok()?;
    }
    bench.until_metric(RENEWALS, &RENEWED, 3_500.0).await;
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 1_000);
    let lost = bench.agent.metrics().await?.sum("lockscope_agent_lost_holds_total", &[]);
    assert_eq!(lost, 0.0);
    drop(worker);
    eventually("all to be released", async || {
        let left = harness::redis::locks(&mut bench.direct).await?;
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_fixed_lease_expires_and_is_reported() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    let reply = lock(&mut worker, "LOCK a LEASE 5000").await?;
    assert!(reply.field("valid_ms")?.int()? <= 5_000);
    let events = listener.call(&format!("EVENTS {ticket} WAIT 20000")).await?;
    assert_eq!(events.text(), "[[lost, a, lock, expired]]", "no jeopardy before it");
    bench.until_free("a").await;
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "expired");
    let metrics = bench.agent.metrics().await?;
    assert_eq!(
        metrics.sum("lockscope_agent_lost_holds_total", &[]),
        0.0,
        "an expired lease is not a loss"
    );
    lock(&mut worker, "LOCK a").await?;
    Ok(())
}

#[tokio::test]
async fn an_overrun_lease_is_counted() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK orders:1 LEASE 100").await?;
    let overruns = "lockscope_agent_lease_overruns_total";
    bench.until_metric(overruns, &[("lock_group", "orders:*")], 1.0).await;
    lock(&mut worker, "LOCK orders:2 LEASE 60000").await?;
    worker.call("UNLOCK orders:2").await?.ok()?;
    assert_eq!(bench.agent.metrics().await?.sum(overruns, &[]), 1.0, "released in time");
    Ok(())
}

#[tokio::test]
async fn the_loss_of_a_hold_with_a_long_lease_is_reported_soon() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "2s"]).await?;
    for kind in ["lock", "fenced", "fair", "read", "write"] {
        let mut worker = bench.session().await?;
        let mut listener = bench.session().await?;
        let ticket = credentials(&mut worker).await?;
        lock(&mut worker, &format!("LOCK a KIND {kind} LEASE 3600000")).await?;
        let verified = [("outcome", "verified")];
        let before = bench.agent.metrics().await?.sum(RENEWALS, &verified);
        bench.until_metric(RENEWALS, &verified, before + 2.0).await;
        assert!(bench.pttl("a").await? > 3_500_000, "{kind}: verified, not renewed");
        bench.direct.call("FLUSHALL").await?.ok()?;
        let events = listener.call(&format!("EVENTS {ticket} WAIT 60000")).await?;
        assert_eq!(events.text(), format!("[[lost, a, {kind}, missing]]"));
    }
    Ok(())
}

#[tokio::test]
async fn a_partial_release_keeps_a_short_lease_short() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.session().await?;
    for kind in ["lock", "fenced", "fair", "read", "write"] {
        for _ in 0..2 {
            lock(&mut worker, &format!("LOCK {kind} KIND {kind} LEASE 30000")).await?;
        }
        assert_eq!(worker.call(&format!("UNLOCK {kind}")).await?, Reply::Int(1));
        let pttl = bench.pttl(kind).await?;
        assert!((1..=30_000).contains(&pttl), "{kind}: {pttl}");
    }
    Ok(())
}

#[tokio::test]
async fn every_grant_states_its_deadline_on_the_boot_clock() -> Result<()> {
    let bench = Bench::with(&["--lease", "10m"]).await?;
    let mut worker = bench.session().await?;
    let check = |map: &Reply| -> Result<i64> {
        let now = i64::try_from(service_kit::clock::boot_micros())? * 1_000;
        let (until, ms) = (map.field("valid_until_ns")?.int()?, map.field("valid_ms")?.int()?);
        let left = until - now;
        ensure!((1..=ms * 1_000_000 + 1_000_000).contains(&left), "{left} of {ms} ms");
        Ok(until)
    };
    let granted = check(&lock(&mut worker, "LOCK a").await?)?;
    assert_eq!(check(&worker.call("HOLDS").await?.items()?[0])?, granted);
    let listed = worker.call("LOCKS MATCH a").await?;
    assert_eq!(check(&listed.items()?[1].items()?[0])?, granted);
    let both = worker.call("MLOCK 2 b c").await?;
    both.items()?.iter().try_for_each(|map| check(map).map(drop))?;
    Ok(())
}

#[tokio::test]
async fn the_next_waiter_acquires_an_expired_lock() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let mut waiter = bench.session().await?;
    lock(&mut worker, "LOCK a LEASE 300").await?;
    let reply = lock(&mut waiter, "LOCK a").await?;
    assert_eq!(reply.field("holds")?, &Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn extend_sets_a_fixed_lease_and_restores_the_watchdog() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "12s"]).await?;
    let mut worker = bench.session().await?;
    assert_error(&worker.call("EXTEND a 5000").await?, "NOTHELD", "a");
    lock(&mut worker, "LOCK a").await?;
    let valid = answered(&mut worker, "EXTEND a 60000").await.int()?;
    assert!((50_000..=60_000).contains(&valid), "{valid}");
    assert!(bench.pttl("a").await? > 50_000);
    let valid = answered(&mut worker, "EXTEND a 0").await.int()?;
    assert!(valid <= 12_000, "the watchdog renews it again: {valid}");
    let renewed = bench.agent.metrics().await?.sum(RENEWALS, &RENEWED);
    bench.until_metric(RENEWALS, &RENEWED, renewed + 2.0).await;
    // The agent itself enforces a shorter lease: the one in Redis never shrinks while the lock is in use.
    let valid = worker.call("EXTEND a 200").await?.int()?;
    assert!(valid <= 200, "{valid}");
    bench.until_free("a").await;
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "expired");
    Ok(())
}

#[tokio::test]
async fn a_re_entry_never_shortens_the_lease() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a LEASE 60000").await?;
    let reply = lock(&mut worker, "LOCK a LEASE 1000").await?;
    assert_eq!(reply.field("holds")?, &Reply::Int(2));
    assert!(reply.field("valid_ms")?.int()? > 50_000);
    assert!(bench.pttl("a").await? > 50_000);
    worker.call("UNLOCK a").await?.ok()?;
    assert!(bench.pttl("a").await? > 50_000);
    Ok(())
}

#[tokio::test]
async fn a_removed_ttl_is_restored() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.direct.call("PERSIST a").await?.ok()?;
    eventually("the lease to be restored", async || {
        let pttl = bench.pttl("a").await?;
        ensure!(pttl > 0, "{pttl}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_changed_count_is_corrected() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    let holder = holder(&lock(&mut worker, "LOCK a").await?)?;
    bench.direct.call(&format!("HSET a {holder} 5")).await?.ok()?;
    eventually("the count to be corrected", async || {
        let holders = bench.holders("a").await?;
        ensure!(holders[0].1 == "1", "{holders:?}");
        Ok(())
    })
    .await;
    Ok(())
}
