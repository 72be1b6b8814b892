//! `hand_over`: from one holder of ours to another, with the lock held at each instant.

use anyhow::Result;
use harness::Reply;
use redisson::script::HandOverOutcome;

use super::{Bench, keys, messages, name, ours, strangers, theirs};

const ALONE: HandOverOutcome = HandOverOutcome::Passed { subscribers: Some(0), token: None };

#[tokio::test]
async fn passes_the_lock_at_count_one_without_a_message() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    bench.acquire(&lock, ours(1), 5_000).await?;
    bench.keep(&lock, ours(1), 7, 5_000).await?;
    let passed = bench.hand_over(&lock, ours(1), ours(2), 20_000).await?;
    assert_eq!(
        passed,
        HandOverOutcome::Passed { subscribers: Some(1), token: None },
        "the waiter is counted"
    );
    bench.assert_held(&lock, ours(2), 1, 15_000..=20_000).await?;
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn repeated_it_passes_once() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 5_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 5_000).await?, ALONE);
    bench.keep(&lock, ours(2), 3, 5_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 5_000).await?, ALONE);
    bench.assert_held(&lock, ours(2), 3, 4_000..=5_000).await
}

#[tokio::test]
async fn late_it_changes_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 5_000).await?, HandOverOutcome::Missing);
    bench.assert_free(&lock).await?;
    bench.acquire(&lock, theirs(), 5_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 60_000).await?, HandOverOutcome::Stolen);
    bench.assert_held(&lock, theirs(), 1, 4_000..=5_000).await?;
    // Passed on from 2 to 3 meanwhile: the first hand-over, late, finds neither of its two.
    bench.client.call("DEL a").await?;
    bench.acquire(&lock, ours(3), 5_000).await?;
    assert_eq!(bench.hand_over(&lock, ours(1), ours(2), 60_000).await?, HandOverOutcome::Stolen);
    bench.assert_held(&lock, ours(3), 1, 4_000..=5_000).await
}

#[tokio::test]
async fn leaves_what_is_no_lock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let locks = strangers(&mut bench.client, "x").await?;
    let before = bench.dump().await?;
    for lock in &locks {
        let passed = bench.hand_over(&name(lock), ours(1), ours(2), 5_000).await?;
        let is_hash = bench.client.call(&format!("TYPE {lock}")).await?.text() == "hash";
        assert_eq!(
            passed,
            if is_hash { HandOverOutcome::Stolen } else { HandOverOutcome::WrongType }
        );
    }
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn without_the_right_to_count_subscribers_it_still_passes() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 5_000).await?;
    let user = "ACL SETUSER agent on nopass ~* &* +@all -pubsub";
    bench.client.call(user).await?.ok()?;
    bench.client.call("AUTH agent any").await?.ok()?;
    let passed = bench.hand_over(&lock, ours(1), ours(2), 5_000).await?;
    assert_eq!(passed, HandOverOutcome::Passed { subscribers: None, token: None });
    bench.assert_held(&lock, ours(2), 1, 4_000..=5_000).await
}

#[tokio::test]
async fn an_expiry_is_replaced_not_shortened_below_its_own_lease() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 60_000).await?;
    bench.hand_over(&lock, ours(1), ours(2), 5_000).await?;
    let pttl = bench.pttl(&lock).await?;
    assert!(pttl > 4_000, "the new holder has its whole lease, {pttl} ms");
    Ok(())
}

#[tokio::test]
async fn at_each_instant_somebody_holds() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 5_000).await?;
    // MONITOR shows what the script itself runs, in order: the key must not vanish in between.
    let mut monitor = bench.redis.client().await?;
    monitor.call("MONITOR").await?.ok()?;
    bench.hand_over(&lock, ours(1), ours(2), 5_000).await?;
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
