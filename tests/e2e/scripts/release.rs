//! `release`: removes the field, whatever its count, and notifies waiters.

use anyhow::Result;
use redisson::script::{Publish, ReleaseOutcome, parse_release};

use super::{Bench, keys, messages, name, ours, script, theirs};

#[tokio::test]
async fn frees_the_lock_and_notifies_waiters() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(b"redisson_lock__channel:{a}").await?;
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.renew(&lock, ours(1), 3, 300_000).await?;
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    assert_eq!(bench.release(&lock, ours(1)).await?, ReleaseOutcome::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0, "nothing is left behind");
    Ok(())
}

#[tokio::test]
async fn a_repeated_or_late_release_reports_the_state_and_notifies_nobody() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.release(&lock, ours(1)).await?;
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    assert_eq!(bench.release(&lock, ours(1)).await?, ReleaseOutcome::Missing);
    bench.acquire(&lock, ours(2), 300_000).await?;
    assert_eq!(bench.release(&lock, ours(1)).await?, ReleaseOutcome::Stolen);
    bench.assert_held(&lock, ours(2), 1, 240_000..=300_000).await?;
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn releasing_one_of_several_fields_publishes_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, theirs(), 300_000).await?;
    bench.client.call(&format!("HSET a {} 1", ours(1))).await?.ok()?;
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    assert_eq!(bench.release(&lock, ours(1)).await?, ReleaseOutcome::Released);
    bench.assert_held(&lock, theirs(), 1, 240_000..=300_000).await?;
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn leaves_other_keys_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (hash, other) = (ReleaseOutcome::Stolen, ReleaseOutcome::WrongType);
    bench
        .leaves_other_keys(&hash, &other, async |bench, lock| bench.release(lock, ours(1)).await)
        .await
}

#[tokio::test]
async fn both_publishing_commands_reach_both_kinds_of_subscribers() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut old = bench.subscriber(&keys::channel(&lock)).await?;
    let mut new = bench.redis.client().await?;
    new.call_args(&[b"SSUBSCRIBE".as_slice(), &keys::channel(&lock)]).await?.ok()?;
    bench.acquire(&lock, ours(1), 300_000).await?;
    let reply = bench.call(&script::release(&lock, &ours(1), Publish::Both)).await?;
    assert_eq!(parse_release(&reply)?, ReleaseOutcome::Released);
    assert_eq!(messages(&mut old).await?, ["0"]);
    let message = new.reply().await?;
    assert_eq!(message.items()?[0].text(), "smessage");
    assert_eq!(message.items()?[2].text(), "0");
    Ok(())
}
