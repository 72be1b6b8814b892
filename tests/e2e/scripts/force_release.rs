//! `force_release`, `force_release_holder`, `remove_waiter`: operator actions on an expected state.

use std::time::Duration;

use anyhow::Result;
use redisson::script::{ExpectedLock, ExpectedTtl, ForceReleaseOutcome, Publish};
use redisson::shape::{Holder, LockHash};
use redisson::{HolderId, LockName};

use super::{Bench, keys, lease, messages, name, ours, queued, script, theirs};

fn holder(id: HolderId, count: i64) -> Holder {
    Holder { id, count }
}

fn hash(holders: &[Holder], mode: Option<&str>) -> LockHash {
    LockHash { holders: holders.to_vec(), mode: mode.map(Into::into), ..LockHash::default() }
}

impl Bench {
    /// Releases a whole lock, which is expected in this state.
    async fn force(&mut self, name: &LockName, hash: &LockHash) -> Result<ForceReleaseOutcome> {
        let seen = ExpectedLock { hash, ttl: ExpectedTtl::Any };
        self.forced(&script::force_release(name, seen, &[], Publish::Plain)).await
    }

    /// Releases the first hold of a lock, which is expected in this state.
    async fn force_first(
        &mut self,
        name: &LockName,
        hash: &LockHash,
    ) -> Result<ForceReleaseOutcome> {
        let seen = ExpectedLock { hash, ttl: ExpectedTtl::Any };
        let first = &hash.holders[0];
        self.forced(&script::force_release_holder(name, seen, first, Publish::Plain)).await
    }
}

#[tokio::test]
async fn frees_the_expected_lock_and_notifies_waiters_and_the_agent() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(1), 300_000).await?;
    bench.renew(&lock, ours(1), 2, 300_000).await?;
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    let mut agent = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    let seen = [holder(ours(1), 2)];
    assert_eq!(bench.force_release(&lock, &seen).await?, ForceReleaseOutcome::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    assert_eq!(messages(&mut agent).await?, [format!("{} a", ours(1))]);
    assert_eq!(bench.force_release(&lock, &seen).await?, ForceReleaseOutcome::Free);
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn never_releases_a_lock_that_has_changed() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, ours(2), 300_000).await?;
    let before = bench.dump().await?;
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    let mut agent = bench.subscriber(&keys::forced_channel(&ours(2).client)).await?;
    let alien =
        LockHash { unexpected: vec![b"colour".to_vec()], ..hash(&[holder(ours(2), 1)], None) };
    let others = [
        hash(&[holder(ours(1), 1)], None),
        hash(&[holder(ours(2), 2)], None),
        hash(&[holder(ours(2), 1), holder(theirs(), 1)], None),
        hash(&[holder(theirs(), 1)], None),
        hash(&[], None),
        // The lock has been acquired as another kind since.
        hash(&[holder(ours(2), 1)], Some("read")),
        alien,
    ];
    for seen in &others {
        assert_eq!(bench.force(&lock, seen).await?, ForceReleaseOutcome::Changed, "{seen:?}");
        if seen.holders.len() == 1 && seen.unexpected.is_empty() {
            assert_eq!(
                bench.force_first(&lock, seen).await?,
                ForceReleaseOutcome::Changed,
                "{seen:?}"
            );
        }
    }
    // The holder and count are the same, but the TTL cannot be that of the expected lock: it was acquired again.
    let held = hash(&[holder(ours(2), 1)], None);
    let minutes = |n: u64| Duration::from_secs(n * 60);
    let seen = |ttl| ExpectedLock { hash: &held, ttl };
    for wrong in [
        ExpectedTtl::Between(Duration::ZERO, minutes(3)),
        ExpectedTtl::Between(minutes(6), minutes(60)),
        ExpectedTtl::Endless,
    ] {
        for call in [
            script::force_release(&lock, seen(wrong), &[], Publish::Plain),
            script::force_release_holder(&lock, seen(wrong), &held.holders[0], Publish::Plain),
        ] {
            assert_eq!(bench.forced(&call).await?, ForceReleaseOutcome::Changed, "{wrong:?}");
        }
    }
    assert_eq!(bench.dump().await?, before);
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    assert_eq!(messages(&mut agent).await?, Vec::<String>::new());
    let right = seen(ExpectedTtl::Between(Duration::ZERO, minutes(5)));
    bench.client.call("PERSIST a").await?;
    let call = script::force_release(&lock, right, &[], Publish::Plain);
    assert_eq!(bench.forced(&call).await?, ForceReleaseOutcome::Changed, "it never expires now");
    let call = script::force_release(&lock, seen(ExpectedTtl::Endless), &[], Publish::Plain);
    assert_eq!(bench.forced(&call).await?, ForceReleaseOutcome::Released);
    Ok(())
}

#[tokio::test]
async fn a_malformed_lock_is_released_if_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.client.call(&format!("HSET a {} 1 {} 4 colour red", ours(1), theirs())).await?.ok()?;
    let mut first = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    let mut second = bench.subscriber(&keys::forced_channel(&theirs().client)).await?;
    let seen = LockHash {
        unexpected: vec![b"colour".to_vec()],
        ..hash(&[holder(theirs(), 4), holder(ours(1), 1)], None)
    };
    let seen = ExpectedLock { hash: &seen, ttl: ExpectedTtl::Any };
    let call = script::force_release(&lock, seen, &[], Publish::Both);
    assert_eq!(bench.forced(&call).await?, ForceReleaseOutcome::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(messages(&mut first).await?, [format!("{} a", ours(1))]);
    assert_eq!(messages(&mut second).await?, [format!("{} a", theirs())]);
    Ok(())
}

#[tokio::test]
async fn one_of_several_holders_is_released_alone() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.client.call(&format!("HSET a {} 1 {} 4", ours(1), theirs())).await?.ok()?;
    let mut agent = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
    let seen = hash(&[holder(ours(1), 1), holder(theirs(), 4)], None);
    assert_eq!(bench.force_first(&lock, &seen).await?, ForceReleaseOutcome::Released);
    assert_eq!(bench.fields(&lock).await?, [(theirs().to_string(), "4".to_owned())]);
    assert_eq!(messages(&mut agent).await?.len(), 1);
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new(), "it is not free yet");
    assert_eq!(bench.force_first(&lock, &seen).await?, ForceReleaseOutcome::Changed);
    assert_eq!(
        bench.force_first(&lock, &hash(&[holder(theirs(), 4)], None)).await?,
        ForceReleaseOutcome::Released
    );
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    assert_eq!(bench.force_first(&lock, &seen).await?, ForceReleaseOutcome::Free);
    Ok(())
}

#[tokio::test]
async fn leaves_other_keys_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let seen = hash(&[holder(ours(1), 1)], None);
    let (hash, other) = ([ForceReleaseOutcome::Changed; 2], [ForceReleaseOutcome::WrongType; 2]);
    bench
        .leaves_other_keys(&hash, &other, async |bench, lock| {
            Ok([bench.force(lock, &seen).await?, bench.force_first(lock, &seen).await?])
        })
        .await
}

#[tokio::test]
async fn a_read_write_lock_is_deleted_with_its_markers() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    let mut agent = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    for n in [1, 2] {
        bench.call(&script::acquire_read(&lock, &ours(n), lease(300_000), None)).await?;
    }
    bench.renew_read(&lock, ours(2), 2, 300_000).await?;
    let seen = [holder(ours(1), 1), holder(ours(2), 2)];
    let mode = Some("read");
    assert_eq!(bench.force(&lock, &hash(&seen[..1], mode)).await?, ForceReleaseOutcome::Changed);
    assert_eq!(bench.force(&lock, &hash(&seen, mode)).await?, ForceReleaseOutcome::Released);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    assert_eq!(messages(&mut waiter).await?, ["1", "00"]);
    assert_eq!(messages(&mut agent).await?.len(), 2);

    let writer = HolderId { write: true, ..ours(3) };
    bench.call(&script::acquire_write(&lock, &writer, lease(300_000))).await?;
    let seen = hash(&[holder(writer, 1)], Some("write"));
    assert_eq!(bench.force(&lock, &seen).await?, ForceReleaseOutcome::Released);
    assert_eq!(messages(&mut waiter).await?, ["1", "00"]);
    Ok(())
}

#[tokio::test]
async fn an_account_that_may_not_remove_markers_releases_the_lock_all_the_same() -> Result<()> {
    for mode in [None, Some("read")] {
        let mut bench = Bench::new().await?;
        let lock = name("a");
        let mut agent = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
        match mode {
            None => drop(bench.acquire(&lock, ours(1), 300_000).await?),
            Some(_) => {
                bench.call(&script::acquire_read(&lock, &ours(1), lease(300_000), None)).await?;
            }
        }
        bench.client.call("ACL SETUSER default resetkeys ~a ~redisson_*").await?.ok()?;
        let seen = hash(&[holder(ours(1), 1)], mode);
        assert_eq!(bench.force(&lock, &seen).await?, ForceReleaseOutcome::Released, "{mode:?}");
        assert_eq!(bench.client.call("EXISTS a").await?.int()?, 0);
        assert_eq!(messages(&mut agent).await?, [format!("{} a", ours(1))], "{mode:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_is_released_with_its_markers_and_the_last_frees_the_lock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    let mut agent = bench.subscriber(&keys::forced_channel(&ours(1).client)).await?;
    bench.call(&script::acquire_read(&lock, &ours(1), lease(3_600_000), None)).await?;
    bench.renew_read(&lock, ours(1), 2, 3_600_000).await?;
    bench.call(&script::acquire_read(&lock, &ours(2), lease(300_000), None)).await?;
    let both = hash(&[holder(ours(1), 2), holder(ours(2), 1)], Some("read"));
    assert_eq!(bench.force_first(&lock, &both).await?, ForceReleaseOutcome::Released);
    let left = bench.pttl(&lock).await?;
    assert!((1..=300_000).contains(&left), "the lease is that of who is left: {left}");
    assert_eq!(bench.client.call("KEYS {a}*").await?.items()?.len(), 1, "one marker is left");
    assert_eq!(messages(&mut agent).await?, [format!("{} a", ours(1))]);
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    let last = hash(&[holder(ours(2), 1)], Some("read"));
    assert_eq!(bench.force_first(&lock, &last).await?, ForceReleaseOutcome::Released);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    Ok(())
}

#[tokio::test]
async fn a_released_writer_keeps_its_own_read_holds() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let writer = HolderId { write: true, ..ours(1) };
    bench.call(&script::acquire_write(&lock, &writer, lease(300_000))).await?;
    bench.call(&script::acquire_read(&lock, &ours(1), lease(300_000), Some(&writer))).await?;
    let mut waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    let seen = hash(&[holder(writer, 1), holder(ours(1), 1)], Some("write"));
    assert_eq!(bench.force_first(&lock, &seen).await?, ForceReleaseOutcome::Released);
    let fields = [(ours(1).to_string(), "1".to_owned()), ("mode".to_owned(), "read".to_owned())];
    assert_eq!(bench.fields(&lock).await?, fields);
    assert_eq!(messages(&mut waiter).await?, ["1", "00"]);
    Ok(())
}

#[tokio::test]
async fn the_living_head_of_a_fair_queue_is_notified() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.call(&queued(&lock, theirs(), 300_000, ours(0))).await?;
    bench.client.call("RPUSH redisson_lock_queue:{a} someone-dead").await?;
    bench.call(&queued(&lock, ours(1), 300_000, ours(0))).await?;
    let mut head = bench.subscriber(&keys::fair_channel(&lock, &ours(1))).await?;
    let seen = [holder(theirs(), 1)];
    assert_eq!(bench.force_release(&lock, &seen).await?, ForceReleaseOutcome::Released);
    assert_eq!(messages(&mut head).await?, ["0"]);
    assert_eq!(bench.client.call("LLEN redisson_lock_queue:{a}").await?.int()?, 1);
    Ok(())
}

#[tokio::test]
async fn a_dead_waiter_is_removed_and_the_next_one_notified() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let place = |n, deadline| script::remove_waiter(&lock, &ours(n), deadline, Publish::Plain);
    bench.call(&queued(&lock, theirs(), 3_600_000, ours(0))).await?;
    bench.call(&queued(&lock, ours(1), 300_000, ours(0))).await?;
    bench.call(&queued(&lock, ours(2), 300_000, ours(0))).await?;
    let deadline = async |bench: &mut Bench, waiter: HolderId| -> Result<Option<u64>> {
        let score = format!("ZSCORE redisson_lock_timeout:{{a}} {waiter}");
        Ok(bench.client.call(&score).await?.text().parse().ok())
    };
    let alive = deadline(&mut bench, ours(1)).await?;
    assert_eq!(bench.forced(&place(1, alive)).await?, ForceReleaseOutcome::Changed, "it is alive");
    let dead = format!("ZADD redisson_lock_timeout:{{a}} 1000 {}", ours(1));
    bench.client.call(&dead).await?.ok()?;
    assert_eq!(
        bench.forced(&place(1, alive)).await?,
        ForceReleaseOutcome::Changed,
        "another deadline"
    );
    assert_eq!(
        bench.forced(&place(1, None)).await?,
        ForceReleaseOutcome::Changed,
        "another deadline"
    );
    let mut next = bench.subscriber(&keys::fair_channel(&lock, &ours(2))).await?;
    assert_eq!(bench.forced(&place(1, Some(1_000))).await?, ForceReleaseOutcome::Released);
    assert_eq!(bench.forced(&place(1, Some(1_000))).await?, ForceReleaseOutcome::Free);
    assert_eq!(messages(&mut next).await?, Vec::<String>::new(), "the lock is held");

    // A waiter without a deadline permanently stops Redisson's own cleanup.
    bench.client.call(&format!("LPUSH redisson_lock_queue:{{a}} {}", ours(3))).await?.ok()?;
    bench.client.call("DEL a").await?.ok()?;
    assert_eq!(bench.forced(&place(3, None)).await?, ForceReleaseOutcome::Released);
    assert_eq!(
        messages(&mut next).await?,
        ["0"],
        "the lock is free, so the next waiter is notified"
    );
    assert_eq!(bench.client.call("LLEN redisson_lock_queue:{a}").await?.int()?, 1);
    bench.client.call("SET redisson_lock_queue:{b} x").await?.ok()?;
    let other = script::remove_waiter(&name("b"), &ours(1), None, Publish::Plain);
    assert_eq!(bench.forced(&other).await?, ForceReleaseOutcome::WrongType);
    Ok(())
}
