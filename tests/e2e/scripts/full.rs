//! A full Redis without eviction: acquiring is refused and leaves nothing behind, releasing works.

use anyhow::Result;
use redisson::script::{HandOverOutcome, ReleaseOutcome, RenewOutcome};

use super::{Bench, keys, messages, name, ours};

/// Makes Redis refuse every command that may need memory.
pub(super) async fn fill(bench: &mut Bench) -> Result<()> {
    bench.client.call("CONFIG SET maxmemory-policy noeviction").await?.ok()?;
    bench.client.call("CONFIG SET maxmemory 1").await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn acquiring_is_refused_and_leaves_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    fill(&mut bench).await?;
    let lock = name("a");
    let refused = bench.acquire(&lock, ours(1), 300_000).await.unwrap_err().to_string();
    assert!(refused.starts_with("OOM"), "{refused}");
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    Ok(())
}

#[tokio::test]
async fn renewing_and_lowering_the_count_work() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (long, short) = (name("long"), name("short"));
    for (lock, ms) in [(&long, 3_600_000), (&short, 300_000)] {
        bench.acquire(lock, ours(1), ms).await?;
        bench.renew(lock, ours(1), 3, ms).await?;
    }
    fill(&mut bench).await?;
    assert_eq!(bench.renew(&long, ours(1), 3, 300_000).await?, RenewOutcome::Renewed);
    assert_eq!(bench.renew(&long, ours(1), 2, 300_000).await?, RenewOutcome::Renewed);
    bench.assert_held(&long, ours(1), 2, 3_000_000..=3_600_000).await?;
    assert_eq!(bench.renew(&short, ours(1), 2, 3_600_000).await?, RenewOutcome::Renewed);
    bench.assert_held(&short, ours(1), 2, 3_000_000..=3_600_000).await
}

#[tokio::test]
async fn a_hold_without_a_ttl_is_renewed_too() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.client.call("PERSIST a").await?;
    fill(&mut bench).await?;
    assert_eq!(bench.renew(&lock, ours(1), 2, 300_000).await?, RenewOutcome::Renewed);
    bench.assert_held(&lock, ours(1), 2, 240_000..=300_000).await
}

#[tokio::test]
async fn releasing_and_notifying_work() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    bench.acquire(&lock, ours(1), 300_000).await?;
    fill(&mut bench).await?;
    assert_eq!(bench.release(&lock, ours(1)).await?, ReleaseOutcome::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    Ok(())
}

#[tokio::test]
async fn handing_over_works() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    fill(&mut bench).await?;
    let passed = bench.hand_over(&lock, ours(1), ours(2), 1_200_000).await?;
    assert_eq!(passed, HandOverOutcome::Passed { subscribers: Some(0), token: None });
    bench.assert_held(&lock, ours(2), 1, 900_000..=1_200_000).await
}

#[tokio::test]
async fn an_operator_can_release() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    fill(&mut bench).await?;
    let seen = [redisson::shape::Holder { id: ours(1), count: 1 }];
    bench.force_release(&lock, &seen).await?;
    bench.assert_free(&lock).await
}
