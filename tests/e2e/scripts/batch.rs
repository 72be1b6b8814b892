//! `batch`: each acquire and release either does what its own script does, or nothing.

use anyhow::Result;
use redisson::HolderId;
use redisson::script::{Call, Publish, Value, parse_batch, unannounced};

use super::full::fill;
use super::{Bench, keys, lease, messages, name, ours, script, theirs};

fn acquire(lock: &str, holder: HolderId) -> Call {
    script::acquire(&name(lock), &holder, lease(300_000))
}

fn release(lock: &str, holder: HolderId) -> Call {
    script::release(&name(lock), &holder, Publish::Plain)
}

impl Bench {
    /// Returns for each call whether it was carried out.
    async fn batch(&mut self, calls: &[Call]) -> Result<Vec<bool>> {
        let reply = self.call(&script::batch(calls)).await?;
        let replies = parse_batch(&reply, calls.len())?;
        let done = Value::Array(vec![Value::Int(1)]);
        assert!(replies.iter().flatten().all(|reply| *reply == done), "{replies:?}");
        Ok(replies.iter().map(Option::is_some).collect())
    }
}

#[tokio::test]
async fn free_locks_are_acquired_and_holds_released_in_order() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut waiter = bench.subscriber(&keys::channel(&name("a"))).await?;
    let done =
        bench.batch(&[acquire("a", ours(1)), acquire("b", ours(2)), release("a", ours(1))]).await?;
    assert_eq!(done, [true; 3]);
    bench.assert_free(&name("a")).await?;
    bench.assert_held(&name("b"), ours(2), 1, 240_000..=300_000).await?;
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    let done = bench.batch(&[release("b", ours(2)), acquire("b", ours(3))]).await?;
    assert_eq!(done, [true; 2]);
    bench.assert_held(&name("b"), ours(3), 1, 240_000..=300_000).await
}

#[tokio::test]
async fn nothing_is_done_for_a_lock_that_is_taken_or_not_held() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.acquire(&name("a"), theirs(), 300_000).await?;
    bench.acquire(&name("twice"), ours(1), 3_600_000).await?;
    bench.client.call(&format!("HSET a {} 1", ours(9))).await?.ok()?;
    let mut others = bench.subscriber(&keys::channel(&name("a"))).await?;
    let done = bench
        .batch(&[
            acquire("a", ours(1)),
            acquire("twice", ours(1)),
            release("a", ours(2)),
            release("gone", ours(3)),
            release("a", ours(9)),
            acquire("b", ours(4)),
        ])
        .await?;
    assert_eq!(done, [false, false, false, false, true, true]);
    bench.assert_held(&name("a"), theirs(), 1, 240_000..=300_000).await?;
    bench.assert_held(&name("twice"), ours(1), 1, 3_540_000..=3_600_000).await?;
    bench.assert_held(&name("b"), ours(4), 1, 240_000..=300_000).await?;
    assert_eq!(messages(&mut others).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_fair_queue_and_other_keys_are_left_alone() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.client.call("RPUSH redisson_lock_queue:{fair} someone").await?.ok()?;
    let locks = bench.other_keys().await?;
    let before = bench.dump().await?;
    let all = locks.into_iter().chain(["fair"]);
    let calls: Vec<_> =
        all.flat_map(|lock| [acquire(lock, ours(1)), release(lock, ours(2))]).collect();
    assert_eq!(bench.batch(&calls).await?, vec![false; calls.len()]);
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn each_release_whose_message_is_refused_says_so() -> Result<()> {
    let mut bench = Bench::new().await?;
    for lock in ["a", "b"] {
        bench.acquire(&name(lock), ours(1), 300_000).await?;
    }
    bench.client.call("ACL SETUSER default resetchannels").await?.ok()?;
    let calls = [
        release("a", ours(1)),
        release("gone", ours(1)),
        acquire("c", ours(2)),
        release("b", ours(1)),
    ];
    let replies = parse_batch(&bench.call(&script::batch(&calls)).await?, calls.len())?;
    let errors = replies.iter().map(|reply| reply.as_ref().map(unannounced));
    let refused =
        errors.map(|error| error.map(|error| error.is_some_and(|error| error.contains("channel"))));
    assert_eq!(refused.collect::<Vec<_>>(), [Some(true), None, Some(false), Some(true)]);
    for lock in ["a", "b"] {
        bench.assert_free(&name(lock)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_full_redis_does_nothing_of_it_or_all() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.acquire(&name("a"), ours(1), 300_000).await?;
    fill(&mut bench).await?;
    let before = bench.dump().await?;
    let calls = [acquire("b", ours(2)), release("a", ours(1))];
    let refused = bench.batch(&calls).await.unwrap_err().to_string();
    assert!(refused.starts_with("OOM"), "{refused}");
    assert_eq!(bench.dump().await?, before);
    let [acquire, release] = calls;
    assert_eq!(bench.batch(&[release, acquire]).await?, [true; 2]);
    bench.assert_free(&name("a")).await?;
    bench.assert_held(&name("b"), ours(2), 1, 240_000..=300_000).await
}
