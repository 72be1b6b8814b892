//! Read-write locks: a hash with a mode, and a marker for each read hold.

use anyhow::Result;
use redisson::script::{
    AcquireOutcome, HandOverOutcome, MissingMarkers, Publish, ReleaseOutcome, RenewOutcome,
    parse_acquire, parse_hand_over, parse_release, parse_renew,
};
use redisson::{HolderId, LockName};

use super::{Bench, GRANTED, full, keys, lease, messages, name, ours, script, theirs};

/// Returns the id of a write hold.
fn writer(who: HolderId) -> HolderId {
    HolderId { write: true, ..who }
}

fn field(who: HolderId, count: u32) -> (String, String) {
    (who.to_string(), count.to_string())
}

fn mode(word: &str) -> (String, String) {
    ("mode".to_owned(), word.to_owned())
}

impl Bench {
    async fn read(&mut self, lock: &LockName, who: HolderId, ms: u64) -> Result<AcquireOutcome> {
        Ok(parse_acquire(&self.call(&script::acquire_read(lock, &who, lease(ms), None)).await?)?)
    }

    async fn read_under(
        &mut self,
        lock: &LockName,
        who: HolderId,
        own: HolderId,
    ) -> Result<AcquireOutcome> {
        let call = script::acquire_read(lock, &who, lease(300_000), Some(&writer(own)));
        Ok(parse_acquire(&self.call(&call).await?)?)
    }

    async fn write(&mut self, lock: &LockName, who: HolderId, ms: u64) -> Result<AcquireOutcome> {
        let call = script::acquire_write(lock, &writer(who), lease(ms));
        Ok(parse_acquire(&self.call(&call).await?)?)
    }

    async fn release_read(&mut self, lock: &LockName, who: HolderId) -> Result<ReleaseOutcome> {
        Ok(parse_release(&self.call(&script::release_read(lock, &who, Publish::Plain)).await?)?)
    }

    async fn release_write(&mut self, lock: &LockName, who: HolderId) -> Result<ReleaseOutcome> {
        let call = script::release_write(lock, &writer(who), Publish::Plain);
        Ok(parse_release(&self.call(&call).await?)?)
    }

    /// Returns the TTLs of a reader's markers, up to the first missing one.
    async fn markers(&mut self, lock: &LockName, who: HolderId) -> Result<Vec<i64>> {
        let prefix = String::from_utf8(keys::read_marker_prefix(lock, &who))?;
        let mut left = Vec::new();
        loop {
            let pttl =
                self.client.call(&format!("PTTL {prefix}:{}", left.len() + 1)).await?.int()?;
            if pttl == -2 {
                return Ok(left);
            }
            left.push(pttl);
        }
    }

    /// Adds a reader of `a` as Redisson writes it: a field, and markers with the given TTLs.
    async fn foreign_reader(&mut self, who: HolderId, markers: &[u64]) -> Result<()> {
        let count = markers.len().max(1);
        self.client.call(&format!("HSET a mode read {who} {count}")).await?.ok()?;
        for (i, ms) in markers.iter().enumerate() {
            let marker = format!("{{a}}:{who}:rwlock_timeout:{}", i + 1);
            self.client.call(&format!("SET {marker} 1 PX {ms}")).await?.ok()?;
            if self.pttl(&name("a")).await? < i64::try_from(*ms)? {
                self.client.call(&format!("PEXPIRE a {ms}")).await?.ok()?;
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn readers_share_the_lock_each_with_a_marker() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.read(&lock, ours(1), 3_600_000).await?, GRANTED);
    assert_eq!(bench.read(&lock, ours(2), 300_000).await?, GRANTED);
    assert_eq!(bench.read(&lock, ours(2), 300_000).await?, GRANTED, "sent twice");
    let mut fields = vec![field(ours(1), 1), field(ours(2), 1), mode("read")];
    fields.sort();
    assert_eq!(bench.fields(&lock).await?, fields);
    assert!(bench.pttl(&lock).await? > 3_000_000, "the shorter lease cuts nothing");
    assert!(matches!(bench.markers(&lock, ours(2)).await?[..], [240_000..=300_000]));
    assert!(matches!(bench.markers(&lock, ours(1)).await?[..], [3_000_000..=3_600_000]));
    bench.read(&lock, ours(1), 300_000).await?;
    assert!(
        matches!(bench.markers(&lock, ours(1)).await?[..], [3_000_000..=3_600_000]),
        "nor sent twice"
    );
    let AcquireOutcome::Held { holders, .. } = bench.write(&lock, ours(3), 300_000).await? else {
        panic!("readers are inside")
    };
    assert_eq!(holders.len(), 2, "they are named");
    Ok(())
}

#[tokio::test]
async fn a_writer_excludes_everyone_else() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.write(&lock, ours(1), 300_000).await?, GRANTED);
    assert_eq!(bench.write(&lock, ours(1), 300_000).await?, GRANTED, "sent twice");
    let before = bench.dump().await?;
    for refused in [
        bench.write(&lock, ours(2), 3_600_000).await?,
        bench.read(&lock, ours(2), 3_600_000).await?,
        bench.read_under(&lock, ours(2), ours(3)).await?,
    ] {
        let AcquireOutcome::Held { pttl_ms: Some(240_000..=300_000), holders } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(holders, [writer(ours(1))]);
    }
    assert_eq!(bench.dump().await?, before);
    assert_eq!(bench.fields(&lock).await?, [field(writer(ours(1)), 1), mode("write")]);
    assert_eq!(bench.renew(&lock, writer(ours(1)), 2, 540_000).await?, RenewOutcome::Renewed);
    let pttl = bench.pttl(&lock).await?;
    assert!((480_000..=540_000).contains(&pttl), "no lease is added to another: {pttl}");
    Ok(())
}

#[tokio::test]
async fn a_writer_may_read_and_downgrade() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    bench.write(&lock, ours(1), 3_600_000).await?;
    assert_eq!(bench.read_under(&lock, ours(2), ours(1)).await?, GRANTED);
    assert_eq!(bench.release_read(&lock, ours(2)).await?, ReleaseOutcome::Released);
    assert!(bench.pttl(&lock).await? > 3_000_000, "a reader that goes cuts no writer's lease");
    assert!(bench.markers(&lock, ours(2)).await?.is_empty());
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());

    assert_eq!(bench.read_under(&lock, ours(3), ours(1)).await?, GRANTED);
    assert_eq!(bench.release_write(&lock, ours(1)).await?, ReleaseOutcome::Released);
    assert_eq!(messages(&mut waiter).await?, ["1", "00"], "other readers may come in now");
    assert_eq!(bench.fields(&lock).await?, [field(ours(3), 1), mode("read")]);
    assert_eq!(bench.read_under(&lock, ours(3), ours(1)).await?, GRANTED, "a late copy");
    assert_eq!(bench.read(&lock, theirs(), 300_000).await?, GRANTED);
    bench.release_read(&lock, theirs()).await?;
    assert_eq!(bench.release_read(&lock, ours(3)).await?, ReleaseOutcome::Released);
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    Ok(())
}

/// A reader without a live marker does not block others after the writer releases.
#[tokio::test]
async fn a_dead_reader_disappears_with_the_writer() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    bench.write(&lock, ours(1), 3_600_000).await?;
    bench.read_under(&lock, ours(2), ours(1)).await?;
    let marker = format!("{}:1", String::from_utf8(keys::read_marker_prefix(&lock, &ours(2)))?);
    bench.client.call(&format!("DEL {marker}")).await?.ok()?;
    assert_eq!(bench.release_write(&lock, ours(1)).await?, ReleaseOutcome::Released);
    assert_eq!(messages(&mut waiter).await?, ["1", "00"]);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);

    // The remaining lease is that of the reader, not of the writer.
    bench.write(&lock, ours(1), 3_600_000).await?;
    bench.read_under(&lock, ours(2), ours(1)).await?;
    bench.read_under(&lock, ours(3), ours(1)).await?;
    bench.client.call(&format!("DEL {marker}")).await?.ok()?;
    assert_eq!(bench.release_write(&lock, ours(1)).await?, ReleaseOutcome::Released);
    assert!((180_000..=300_000).contains(&bench.pttl(&lock).await?));
    assert_eq!(bench.release_read(&lock, ours(3)).await?, ReleaseOutcome::Released);
    bench.assert_free(&lock).await?;
    Ok(())
}

#[tokio::test]
async fn counts_and_markers_change_together() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.read(&lock, ours(1), 3_600_000).await?;
    assert_eq!(bench.renew_read(&lock, ours(1), 3, 300_000).await?, RenewOutcome::Renewed);
    assert!(matches!(
        bench.markers(&lock, ours(1)).await?[..],
        [3_000_000..=3_600_000, 240_000..=300_000, 240_000..=300_000]
    ));
    assert!(bench.pttl(&lock).await? > 3_000_000);
    bench.renew_read(&lock, ours(1), 2, 300_000).await?;
    assert_eq!(bench.markers(&lock, ours(1)).await?.len(), 2);
    assert_eq!(bench.fields(&lock).await?, [field(ours(1), 2), mode("read")]);
    // A marker that lasts longer, one without a TTL, one that was evicted, and a lock without a TTL.
    let marker = |n: u32| format!("{{a}}:{}:rwlock_timeout:{n}", ours(1));
    bench.renew_read(&lock, ours(1), 3, 300_000).await?;
    bench.client.call(&format!("PEXPIRE {} 3600000", marker(1))).await?;
    bench.client.call(&format!("PERSIST {}", marker(2))).await?;
    bench.client.call(&format!("DEL {}", marker(3))).await?;
    bench.client.call("PERSIST a").await?;
    let without = bench.renew_read_with(&lock, ours(1), 3, 480_000, MissingMarkers::Report).await?;
    assert_eq!(without, RenewOutcome::MarkersMissing);
    assert!(matches!(
        bench.markers(&lock, ours(1)).await?[..],
        [3_000_000..=3_600_000, 420_000..=480_000]
    ));
    assert!((420_000..=480_000).contains(&bench.pttl(&lock).await?));
    assert_eq!(bench.renew_read(&lock, ours(1), 3, 480_000).await?, RenewOutcome::Renewed);
    assert!(matches!(
        bench.markers(&lock, ours(1)).await?[..],
        [3_000_000..=3_600_000, 420_000..=480_000, 420_000..=480_000]
    ));
    let complete =
        bench.renew_read_with(&lock, ours(1), 3, 540_000, MissingMarkers::Report).await?;
    assert_eq!(complete, RenewOutcome::Renewed);
    assert!(matches!(
        bench.markers(&lock, ours(1)).await?[..],
        [3_000_000..=3_600_000, 480_000..=540_000, 480_000..=540_000]
    ));
    assert_eq!(bench.release_read(&lock, ours(1)).await?, ReleaseOutcome::Released);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0, "nothing is left");
    Ok(())
}

/// Redisson's renewal of a reader sets the expiry of the lock, and until 4.3.1 of all markers, to that of the reader.
#[tokio::test]
async fn a_verification_gives_back_the_lease_that_another_reader_has_shortened() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let marker = format!("{{a}}:{}:rwlock_timeout:1", ours(1));
    bench.read(&lock, ours(1), 600_000).await?;
    let verify =
        |missing| script::verify_read([(&lock, ours(1), Some(lease(500_000)))], 1, missing);
    let report = verify(MissingMarkers::Report);
    assert_eq!(parse_renew(&bench.call(&report).await?, 1)?, [RenewOutcome::Renewed]);
    assert!(bench.pttl(&lock).await? > 550_000, "no lease is shortened");
    for key in ["a", &marker] {
        bench.client.call(&format!("PEXPIRE {key} 30000")).await?.ok()?;
    }
    assert_eq!(parse_renew(&bench.call(&report).await?, 1)?, [RenewOutcome::Renewed]);
    assert!((450_000..=500_000).contains(&bench.pttl(&lock).await?));
    assert!(matches!(bench.markers(&lock, ours(1)).await?[..], [450_000..=500_000]));
    bench.client.call(&format!("DEL {marker}")).await?.ok()?;
    assert_eq!(parse_renew(&bench.call(&report).await?, 1)?, [RenewOutcome::MarkersMissing]);
    let restore = verify(MissingMarkers::Restore);
    full::fill(&mut bench).await?;
    assert_eq!(parse_renew(&bench.call(&restore).await?, 1)?, [RenewOutcome::Renewed]);
    assert!(matches!(bench.markers(&lock, ours(1)).await?[..], [450_000..=500_000]));
    bench.client.call("CONFIG SET maxmemory 0").await?.ok()?;
    bench.client.call("PERSIST a").await?.ok()?;
    bench.call(&report).await?;
    assert_eq!(bench.pttl(&lock).await?, -1, "a lock without an expiry stays so");
    Ok(())
}

#[tokio::test]
async fn late_copies_change_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let missing = (
        bench.renew_read(&lock, ours(1), 2, 300_000).await?,
        bench.release_read(&lock, ours(1)).await?,
        bench.release_write(&lock, ours(1)).await?,
    );
    assert_eq!(missing, (RenewOutcome::Missing, ReleaseOutcome::Missing, ReleaseOutcome::Missing));
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    bench.read(&lock, theirs(), 300_000).await?;
    let before = bench.dump().await?;
    let stolen = (
        bench.renew_read(&lock, ours(1), 2, 3_600_000).await?,
        bench.release_read(&lock, ours(1)).await?,
        bench.release_write(&lock, ours(1)).await?,
    );
    assert_eq!(stolen, (RenewOutcome::Stolen, ReleaseOutcome::Stolen, ReleaseOutcome::Stolen));
    assert_eq!(bench.dump().await?, before);
    assert!(bench.pttl(&lock).await? <= 300_000);
    Ok(())
}

#[tokio::test]
async fn the_lease_is_limited_to_the_longest_living_reader() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.foreign_reader(theirs(), &[540_000, 1_200_000]).await?;
    bench.read(&lock, ours(1), 3_600_000).await?;
    bench.release_read(&lock, ours(1)).await?;
    let pttl = bench.pttl(&lock).await?;
    assert!((1_140_000..=1_200_000).contains(&pttl), "{pttl}");
    Ok(())
}

#[tokio::test]
async fn dead_readers_disappear_with_the_last_living_one() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    bench.foreign_reader(theirs(), &[]).await?;
    bench.read(&lock, ours(1), 3_600_000).await?;
    bench.read(&lock, ours(2), 3_600_000).await?;
    bench.release_read(&lock, ours(1)).await?;
    assert_eq!(messages(&mut waiter).await?, Vec::<String>::new());
    assert_eq!(bench.release_read(&lock, ours(2)).await?, ReleaseOutcome::Released);
    bench.assert_free(&lock).await?;
    assert_eq!(messages(&mut waiter).await?, ["0"]);
    Ok(())
}

#[tokio::test]
async fn a_crowd_of_readers_is_not_searched() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let crowd: String = (100..500).map(|n| format!(" {} 1", ours(n))).collect();
    bench.client.call(&format!("HSET a mode read{crowd}")).await?.ok()?;
    bench.read(&lock, ours(1), 3_600_000).await?;
    bench.release_read(&lock, ours(1)).await?;
    assert!(bench.pttl(&lock).await? > 3_000_000);
    let AcquireOutcome::Held { holders, .. } = bench.write(&lock, ours(1), 3_600_000).await? else {
        panic!("they are inside")
    };
    assert!(holders.is_empty() && !bench.ran("hkeys").await?);
    Ok(())
}

#[tokio::test]
async fn the_write_side_is_handed_over() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let _waiter = bench.subscriber(&keys::read_write_channel(&lock)).await?;
    bench.write(&lock, ours(1), 300_000).await?;
    let call = script::hand_over(&lock, &writer(ours(1)), &writer(ours(2)), lease(1_200_000));
    let passed = HandOverOutcome::Passed { subscribers: Some(1), token: None };
    for _ in 0..2 {
        assert_eq!(parse_hand_over(&bench.call(&call).await?)?, passed);
        assert_eq!(bench.fields(&lock).await?, [field(writer(ours(2)), 1), mode("write")]);
    }
    assert!(bench.pttl(&lock).await? > 900_000);
    Ok(())
}

#[tokio::test]
async fn keys_other_than_a_read_write_lock_are_reported_and_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    let locks = bench.other_keys().await?;
    bench.client.call(&format!("HSET x.plain {} 1", theirs())).await?.ok()?;
    bench.client.call("HSET x.settings mode dark size 5").await?.ok()?;
    let before = bench.dump().await?;
    for lock in locks.into_iter().take(4).chain(["x.settings"]) {
        for reply in [
            bench.read(&name(lock), ours(1), 300_000).await?,
            bench.write(&name(lock), ours(1), 300_000).await?,
        ] {
            assert!(matches!(reply, AcquireOutcome::WrongType(_)), "{lock} {reply:?}");
        }
    }
    let plain = AcquireOutcome::WrongKind("lock".to_owned());
    assert_eq!(bench.read(&name("x.plain"), ours(1), 300_000).await?, plain);
    assert_eq!(bench.write(&name("x.plain"), ours(1), 300_000).await?, plain);
    for lock in ["x.string", "x.list", "x.zset"] {
        let lock = name(lock);
        assert_eq!(bench.renew_read(&lock, ours(1), 1, 300_000).await?, RenewOutcome::WrongType);
        assert_eq!(bench.release_read(&lock, ours(1)).await?, ReleaseOutcome::WrongType);
        assert_eq!(bench.release_write(&lock, ours(1)).await?, ReleaseOutcome::WrongType);
    }
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_fair_lock_with_a_queue_is_not_a_read_write_lock() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.client.call(&format!("RPUSH redisson_lock_queue:{{a}} {}", theirs())).await?.ok()?;
    let add = format!("ZADD redisson_lock_timeout:{{a}} 9000000000000 {}", theirs());
    bench.client.call(&add).await?.ok()?;
    let before = bench.dump().await?;
    let fair = AcquireOutcome::WrongKind("fair".to_owned());
    assert_eq!(bench.read(&name("a"), ours(1), 300_000).await?, fair);
    assert_eq!(bench.write(&name("a"), ours(1), 300_000).await?, fair);
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_full_redis_refuses_acquiring_and_accepts_releasing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (lock, other) = (name("a"), name("b"));
    bench.write(&lock, ours(1), 300_000).await?;
    bench.read_under(&lock, ours(2), ours(1)).await?;
    full::fill(&mut bench).await?;
    for refused in
        [bench.read(&other, ours(3), 300_000).await, bench.write(&other, ours(3), 300_000).await]
    {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("OOM"), "{refused}");
    }
    bench.assert_free(&other).await?;
    assert_eq!(bench.renew_read(&lock, ours(2), 3, 540_000).await?, RenewOutcome::Renewed);
    assert_eq!(bench.markers(&lock, ours(2)).await?.len(), 3);
    assert_eq!(bench.release_write(&lock, ours(1)).await?, ReleaseOutcome::Released, "a downgrade");
    assert_eq!(bench.fields(&lock).await?, [field(ours(2), 3), mode("read")]);
    assert_eq!(bench.release_read(&lock, ours(2)).await?, ReleaseOutcome::Released);
    assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0);
    Ok(())
}
