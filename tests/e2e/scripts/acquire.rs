//! `acquire`: the only script that creates a plain lock.

use anyhow::Result;
use redisson::script::{AcquireOutcome, ReleaseOutcome};

use super::{Bench, GRANTED, keys, name, ours, theirs};

#[tokio::test]
async fn grants_a_free_lock_with_its_lease() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("orders:42");
    assert_eq!(bench.acquire(&lock, ours(1), 300_000).await?, GRANTED);
    bench.assert_held(&lock, ours(1), 1, 240_000..=300_000).await?;
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 1, "no companion key");
    Ok(())
}

#[tokio::test]
async fn a_repeated_acquire_grants_once() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    assert_eq!(bench.acquire(&lock, ours(1), 300_000).await?, GRANTED);
    bench.assert_held(&lock, ours(1), 1, 240_000..=300_000).await?;
    Ok(())
}

#[tokio::test]
async fn a_repeated_acquire_does_not_shorten_the_lease() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 3_600_000).await?;
    assert_eq!(bench.acquire(&lock, ours(1), 60_000).await?, GRANTED);
    bench.assert_held(&lock, ours(1), 1, 3_000_000..=3_600_000).await?;
    bench.client.call("PERSIST a").await?;
    assert_eq!(bench.acquire(&lock, ours(1), 60_000).await?, GRANTED);
    bench.assert_held(&lock, ours(1), 1, 1..=60_000).await?;
    Ok(())
}

#[tokio::test]
async fn a_refusal_names_the_holder_and_the_ttl() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, theirs(), 300_000).await?;
    let before = bench.dump().await?;
    let AcquireOutcome::Held { pttl_ms: Some(ms), holders } =
        bench.acquire(&lock, ours(1), 3_600_000).await?
    else {
        panic!("held by another")
    };
    assert_eq!(holders, [theirs()]);
    assert!((240_000..=300_000).contains(&ms), "{ms}");
    assert_eq!(bench.dump().await?, before);
    bench.client.call("PERSIST a").await?;
    let held = AcquireOutcome::Held { pttl_ms: None, holders: vec![theirs()] };
    assert_eq!(bench.acquire(&lock, ours(1), 3_600_000).await?, held, "no TTL is said as such");
    Ok(())
}

#[tokio::test]
async fn a_late_acquire_leaves_a_later_grant_alone() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.release(&lock, ours(1)).await?;
    bench.acquire(&lock, ours(2), 300_000).await?;
    let late = bench.acquire(&lock, ours(1), 3_600_000).await?;
    assert!(matches!(late, AcquireOutcome::Held { ref holders, .. } if *holders == [ours(2)]));
    bench.assert_held(&lock, ours(2), 1, 240_000..=300_000).await?;
    Ok(())
}

#[tokio::test]
async fn a_late_acquire_on_a_free_lock_leaves_a_hold_that_one_release_removes() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.release(&lock, ours(1)).await?;
    assert_eq!(bench.acquire(&lock, ours(1), 300_000).await?, GRANTED);
    assert_eq!(bench.release(&lock, ours(1)).await?, ReleaseOutcome::Released);
    bench.assert_free(&lock).await
}

#[tokio::test]
async fn keys_other_than_a_plain_lock_are_reported_and_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let locks = bench.other_keys().await?;
    let before = bench.dump().await?;
    let mut reply = Vec::new();
    for lock in &locks {
        reply.push(bench.acquire(&name(lock), ours(1), 300_000).await?);
    }
    assert_eq!(
        reply,
        [
            AcquireOutcome::WrongType("string".to_owned()),
            AcquireOutcome::WrongType("list".to_owned()),
            AcquireOutcome::WrongType("zset".to_owned()),
            AcquireOutcome::WrongType("hash with other fields".to_owned()),
            AcquireOutcome::WrongKind("read".to_owned()),
            AcquireOutcome::WrongKind("write".to_owned()),
        ]
    );
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn hashes_with_many_fields_are_reported_without_being_read() -> Result<()> {
    let mut bench = Bench::new().await?;
    let fields: String = (0..5_000).map(|n| format!(" field{n} {n}")).collect();
    bench.client.call(&format!("HSET big{fields}")).await?.ok()?;
    let readers: String = (0..20).map(|n| format!(" {}", ours(n)) + " 1").collect();
    bench.client.call(&format!("HSET crowd mode read{readers}")).await?.ok()?;
    let before = bench.dump().await?;
    let big = bench.acquire(&name("big"), ours(1), 300_000).await?;
    assert_eq!(big, AcquireOutcome::WrongType("hash with other fields".to_owned()));
    let crowd = bench.acquire(&name("crowd"), ours(99), 300_000).await?;
    assert_eq!(crowd, AcquireOutcome::WrongKind("read".to_owned()));
    assert!(!bench.ran("hkeys").await?, "fields that were counted first are not read");
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_holder_next_to_an_unexpected_field_still_holds() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.client.call(&format!("HSET a {} 1 colour red", theirs())).await?.ok()?;
    let held = AcquireOutcome::Held { pttl_ms: None, holders: vec![theirs()] };
    assert_eq!(bench.acquire(&name("a"), ours(1), 300_000).await?, held);
    Ok(())
}

#[tokio::test]
async fn a_long_mode_is_not_returned() -> Result<()> {
    let mut bench = Bench::new().await?;
    let long = "x".repeat(100_000);
    bench.client.call(&format!("HSET a mode {long} {} 1", theirs())).await?.ok()?;
    let reply = bench.acquire(&name("a"), ours(1), 300_000).await?;
    assert_eq!(reply, AcquireOutcome::WrongKind("read".to_owned()));
    Ok(())
}

/// Puts a waiter at the head of a fair lock's queue, with a deadline `from_now` milliseconds away.
async fn queue_up(bench: &mut Bench, lock: &str, from_now: i64) -> Result<()> {
    let lock = name(lock);
    let time = bench.client.call("TIME").await?;
    let seconds: i64 = time.items()?[0].text().parse()?;
    let deadline = (seconds * 1000 + from_now).to_string();
    let waiter = theirs().to_string();
    let (queue, deadlines) = (keys::queue(&lock), keys::deadlines(&lock));
    bench.client.call_args(&[b"RPUSH".as_slice(), &queue, waiter.as_bytes()]).await?.ok()?;
    let zadd = [b"ZADD".as_slice(), &deadlines, deadline.as_bytes(), waiter.as_bytes()];
    bench.client.call_args(&zadd).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_living_fair_head_blocks_and_a_dead_one_does_not() -> Result<()> {
    let mut bench = Bench::new().await?;
    for (lock, held) in [("free", false), ("held", true)] {
        queue_up(&mut bench, lock, 60_000).await?;
        if held {
            bench.client.call(&format!("HSET {lock} {} 1", theirs())).await?.ok()?;
        }
        let before = bench.dump().await?;
        let reply = bench.acquire(&name(lock), ours(1), 300_000).await?;
        assert_eq!(reply, AcquireOutcome::WrongKind("fair".to_owned()), "{lock}");
        assert_eq!(bench.dump().await?, before, "{lock}");
    }
    queue_up(&mut bench, "passed", -60_000).await?;
    assert_eq!(bench.acquire(&name("passed"), ours(1), 300_000).await?, GRANTED);
    bench.assert_held(&name("passed"), ours(1), 1, 240_000..=300_000).await
}

#[tokio::test]
async fn malformed_queues_neither_block_nor_break() -> Result<()> {
    let mut bench = Bench::new().await?;
    let makes = [
        ("no-deadlines", format!("RPUSH redisson_lock_queue:{{no-deadlines}} {}", theirs())),
        ("string", "SET redisson_lock_queue:{string} x".to_owned()),
        ("set", "SADD redisson_lock_queue:{set} x".to_owned()),
    ];
    for (lock, make) in makes {
        bench.client.call(&make).await?.ok()?;
        assert_eq!(bench.acquire(&name(lock), ours(1), 300_000).await?, GRANTED, "{lock}");
    }
    let deadlines = "SET redisson_lock_timeout:{odd-deadlines} x";
    bench.client.call(deadlines).await?.ok()?;
    bench.client.call("RPUSH redisson_lock_queue:{odd-deadlines} x").await?.ok()?;
    let lock = name("odd-deadlines");
    assert_eq!(bench.acquire(&lock, ours(1), 300_000).await?, GRANTED);
    Ok(())
}
