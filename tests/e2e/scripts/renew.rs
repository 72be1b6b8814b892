//! `renew`: reentry, partial release, extension and renewal.

use anyhow::Result;
use redisson::script::{MAX_BATCH, MissingMarkers, RenewOutcome, parse_renew};

use super::{Bench, full, lease, name, ours, script, theirs};

#[tokio::test]
async fn renews_an_existing_hold_at_the_given_count() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    for count in [2, 3, 3, 2, 1] {
        assert_eq!(bench.renew(&lock, ours(1), count, 600_000).await?, RenewOutcome::Renewed);
        bench.assert_held(&lock, ours(1), count, 540_000..=600_000).await?;
    }
    Ok(())
}

#[tokio::test]
async fn never_shortens_a_lease_and_adds_a_missing_one() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 3_600_000).await?;
    bench.renew(&lock, ours(1), 1, 60_000).await?;
    bench.assert_held(&lock, ours(1), 1, 3_000_000..=3_600_000).await?;
    bench.renew(&lock, ours(1), 2, 60_000).await?;
    bench.assert_held(&lock, ours(1), 2, 3_000_000..=3_600_000).await?;
    bench.client.call("PERSIST a").await?;
    bench.renew(&lock, ours(1), 2, 60_000).await?;
    bench.assert_held(&lock, ours(1), 2, 1..=60_000).await
}

#[tokio::test]
async fn without_a_lease_it_verifies_and_sets_the_count_but_no_expiry() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, shared) = (name("a"), name("b"));
    let renew = |count| script::renew([(&lock, ours(1))], count, None);
    assert_eq!(parse_renew(&bench.call(&renew(1)).await?, 1)?, [RenewOutcome::Missing]);
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.call(&renew(1)).await?;
    let before = bench.dump().await?;
    for count in [2, 1] {
        full::fill(&mut bench).await?;
        assert_eq!(parse_renew(&bench.call(&renew(count)).await?, 1)?, [RenewOutcome::Renewed]);
        bench.client.call("CONFIG SET maxmemory 0").await?.ok()?;
        bench.assert_held(&lock, ours(1), count, 1..=300_000).await?;
    }
    assert_eq!(bench.dump().await?, before);
    bench.client.call("PERSIST a").await?;
    bench.call(&renew(2)).await?;
    assert_eq!(bench.client.call("PTTL a").await?.int()?, -1, "a key without an expiry stays so");

    bench.call(&script::acquire_read(&shared, &ours(1), lease(300_000), None)).await?;
    bench.renew_read(&shared, ours(1), 3, 300_000).await?;
    for count in [3, 2] {
        let verify = script::renew_read([(&shared, ours(1))], count, None, MissingMarkers::Report);
        assert_eq!(parse_renew(&bench.call(&verify).await?, 1)?, [RenewOutcome::Renewed]);
        assert!((1..=300_000).contains(&bench.client.call("PTTL b").await?.int()?));
        let markers = bench.client.call("KEYS *rwlock_timeout*").await?.items()?.len();
        assert_eq!(markers, usize::try_from(count)?);
    }
    Ok(())
}

#[tokio::test]
async fn corrects_a_wrong_count() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    for odd in ["17", "0", "-3", "many", ""] {
        bench.client.call("DEL a").await?;
        let holder = ours(1).to_string();
        bench.client.call_args(&["HSET", "a", &holder, odd]).await?.ok()?;
        assert_eq!(bench.renew(&lock, ours(1), 2, 300_000).await?, RenewOutcome::Renewed, "{odd}");
        bench.assert_held(&lock, ours(1), 2, 240_000..=300_000).await?;
    }
    Ok(())
}

#[tokio::test]
async fn creates_no_hold() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.renew(&lock, ours(1), 2, 300_000).await?, RenewOutcome::Missing);
    bench.assert_free(&lock).await?;
    bench.acquire(&lock, ours(2), 300_000).await?;
    let before = bench.dump().await?;
    assert_eq!(
        bench.renew(&lock, ours(1), 1, 3_600_000).await?,
        RenewOutcome::Stolen,
        "a later grant of ours"
    );
    assert_eq!(bench.dump().await?, before);
    bench.assert_held(&lock, ours(2), 1, 240_000..=300_000).await
}

#[tokio::test]
async fn leaves_other_keys_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (hash, other) = (RenewOutcome::Stolen, RenewOutcome::WrongType);
    bench
        .leaves_other_keys(&hash, &other, async |bench, lock| {
            bench.renew(lock, ours(1), 1, 300_000).await
        })
        .await
}

#[tokio::test]
async fn a_batch_reports_each_hold_independently() -> Result<()> {
    let mut bench = Bench::new().await?;
    let names: Vec<_> = (0..MAX_BATCH).map(|i| name(&format!("lock:{i}"))).collect();
    let mut wanted = Vec::new();
    for (i, lock) in names.iter().enumerate() {
        let number = i64::try_from(i)?;
        wanted.push(match i % 4 {
            0 => {
                bench.acquire(lock, ours(number), 300_000).await?;
                RenewOutcome::Renewed
            }
            1 => RenewOutcome::Missing,
            2 => {
                bench.acquire(lock, theirs(), 300_000).await?;
                RenewOutcome::Stolen
            }
            _ => {
                bench.client.call(&format!("SET lock:{i} x")).await?.ok()?;
                RenewOutcome::WrongType
            }
        });
    }
    let holds = (0_i64..).zip(&names).map(|(i, lock)| (lock, ours(i)));
    let reply = bench.call(&script::renew(holds, 2, Some(lease(3_600_000)))).await?;
    assert_eq!(parse_renew(&reply, names.len())?, wanted);
    for (i, lock) in names.iter().enumerate() {
        match wanted[i] {
            RenewOutcome::Renewed | RenewOutcome::MarkersMissing => {
                bench.assert_held(lock, ours(i64::try_from(i)?), 2, 3_000_000..=3_600_000).await?;
            }
            RenewOutcome::Missing => bench.assert_free(lock).await?,
            RenewOutcome::Stolen => bench.assert_held(lock, theirs(), 1, 180_000..=300_000).await?,
            RenewOutcome::WrongType => assert_eq!(bench.pttl(lock).await?, -1),
        }
    }
    Ok(())
}
