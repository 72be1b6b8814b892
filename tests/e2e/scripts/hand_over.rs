//! `hand_over`: from one holder of an agent to another, with the lock held at every instant.

use anyhow::Result;
use harness::Reply;
use redisson::script::HandOverOutcome;

use super::{Bench, keys, messages, name, ours, theirs};

const ALONE: HandOverOutcome = HandOverOutcome::Passed { subscribers: Some(0), token: None };

#[tokio::test]
async fn hands_over_at_count_one_without_a_message() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.renew(&lock, ours(1), 7, 300_000).await?;
    let passed = bench.hand_over(&lock, ours(1), ours(2), 1_200_000).await?;
    assert_eq!(
        passed,
        HandOverOutcome::Passed { subscribers: Some(1), token: None },
        "the waiter is counted"
    );
    bench.assert_held(&lock, ours(2), 1, 900_000..=1_200_000).await?;
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_repeated_hand_over_passes_once() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 300_000).await?, ALONE);
    bench.renew(&lock, ours(2), 3, 300_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 300_000).await?, ALONE);
    bench.assert_held(&lock, ours(2), 3, 240_000..=300_000).await
}

#[tokio::test]
async fn a_late_hand_over_changes_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 300_000).await?, HandOverOutcome::Missing);
    bench.assert_free(&lock).await?;
    bench.acquire(&lock, theirs(), 300_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 3_600_000).await?, HandOverOutcome::Stolen);
    bench.assert_held(&lock, theirs(), 1, 240_000..=300_000).await?;
    // The lock has passed from 2 to 3 in the meantime: the late first hand-over finds neither of its holders.
    bench.client.call("DEL a").await?;
    bench.acquire(&lock, ours(3), 300_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 3_600_000).await?, HandOverOutcome::Stolen);
    bench.assert_held(&lock, ours(3), 1, 240_000..=300_000).await
}

#[tokio::test]
async fn leaves_other_keys_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (hash, other) = (HandOverOutcome::Stolen, HandOverOutcome::WrongType);
    bench
        .leaves_other_keys(&hash, &other, async |bench, lock| {
            bench.hand_over(lock, ours(1), ours(2), 300_000).await
        })
        .await
}

#[tokio::test]
async fn hands_over_without_permission_to_count_subscribers() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    let user = "ACL SETUSER agent on nopass ~* &* +@all -pubsub";
    bench.client.call(user).await?.ok()?;
    bench.client.call("AUTH agent any").await?.ok()?;
    let passed = bench.hand_over(&lock, ours(1), ours(2), 300_000).await?;
    assert_eq!(passed, HandOverOutcome::Passed { subscribers: None, token: None });
    bench.assert_held(&lock, ours(2), 1, 240_000..=300_000).await
}

#[tokio::test]
async fn the_new_holder_gets_its_own_lease() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 3_600_000).await?;
    bench.hand_over(&lock, ours(1), ours(2), 300_000).await?;
    let pttl = bench.pttl(&lock).await?;
    assert!(pttl > 240_000, "the new holder has its whole lease, {pttl} ms");
    Ok(())
}

#[tokio::test]
async fn the_lock_is_held_at_every_instant() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    // MONITOR shows the commands of the script in order: the key must not disappear in between.
    let mut monitor = bench.redis.client().await?;
    monitor.call("MONITOR").await?.ok()?;
    bench.hand_over(&lock, ours(1), ours(2), 300_000).await?;
    bench.client.call("PING").await?;
    let mut writes = Vec::new();
    loop {
        let Reply::Simple(line) = monitor.reply().await? else { panic!("a line") };
        if line.ends_with("\"PING\"") {
            break;
        }
        if line.contains(" lua]") {
            let command = line.split('"').nth(1).unwrap_or_default();
            if matches!(command, "PEXPIRE" | "HSET" | "HDEL" | "DEL") {
                writes.push(command.to_owned());
            }
        }
    }
    assert_eq!(writes, ["PEXPIRE", "HSET", "HDEL"]);
    Ok(())
}
