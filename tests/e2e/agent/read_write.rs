//! KIND read and write: readers together, a writer alone.

use anyhow::{Result, ensure};
use harness::{Client, Reply, eventually};

use super::{Bench, assert_error, credentials, holder, lock, until_lost};

const FOREIGN: &str = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
const MARKERS: &str = "{a}:0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47:rwlock_timeout";

impl Bench {
    async fn sessions<const N: usize>(&self) -> Result<[Client; N]> {
        let mut sessions = Vec::new();
        for _ in 0..N {
            sessions.push(self.session().await?);
        }
        Ok(sessions.try_into().unwrap_or_else(|_| unreachable!("N of them")))
    }

    async fn mode(&mut self, name: &str) -> Result<String> {
        Ok(self.direct.call(&format!("HGET {name} mode")).await?.text())
    }
}

#[tokio::test]
async fn readers_share_and_a_writer_waits_for_the_last() -> Result<()> {
    let mut bench = Bench::new().await?;
    let [mut one, mut two, mut writer] = bench.sessions().await?;
    let reply = lock(&mut one, "LOCK a KIND read").await?;
    assert_eq!(reply.field("kind")?.text(), "read");
    let marker = format!("{{a}}:{}:rwlock_timeout:1", holder(&reply)?);
    let left = bench.direct.call(&format!("PTTL {marker}")).await?.int()?;
    assert!((20_000..=30_000).contains(&left), "{left}");
    lock(&mut two, "LOCK a KIND read NOWAIT").await?;
    assert_eq!(writer.call("LOCK a KIND write NOWAIT").await?, Reply::Null);
    assert_eq!(bench.mode("a").await?, "read");
    writer.send("LOCK a KIND write").await?;
    bench.until_waiting("a", 1).await?;
    one.call("UNLOCK a").await?.ok()?;
    bench.until_waiting("a", 1).await?;
    assert_eq!(two.call("UNLOCK a KIND read").await?, Reply::Int(0));
    let held = writer.reply().await?;
    assert!(holder(&held)?.ends_with(":write"), "{held}");
    assert_eq!(bench.mode("a").await?, "write");
    assert_eq!(one.call("LOCK a KIND read NOWAIT").await?, Reply::Null);
    writer.call("UNLOCK a").await?.ok()?;
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 0, "nothing is left");
    Ok(())
}

#[tokio::test]
async fn readers_at_the_front_enter_together_and_readers_behind_a_writer_wait() -> Result<()> {
    let mut bench = Bench::new().await?;
    let [mut first, mut second, mut late] = bench.sessions().await?;
    lock(&mut first, "LOCK a KIND write").await?;
    let mut readers = Vec::new();
    for n in 1..=5 {
        let mut reader = bench.session().await?;
        reader.send("LOCK a KIND read").await?;
        bench.until_waiting("a", n).await?;
        readers.push(reader);
    }
    second.send("LOCK a KIND write").await?;
    bench.until_waiting("a", 6).await?;
    late.send("LOCK a KIND read").await?;
    bench.until_waiting("a", 7).await?;
    first.call("UNLOCK a").await?.ok()?;
    for reader in &mut readers {
        reader.reply().await?.ok()?;
    }
    assert_eq!(bench.holders("a").await?.len(), 6, "five readers and the mode");
    bench.until_waiting("a", 2).await?;
    assert_eq!(readers[0].call("LOCK a KIND read NOWAIT").await?.field("holds")?.int()?, 2);
    // The death of a worker counts as a release.
    for mut reader in readers.drain(1..) {
        reader.call("UNLOCK a").await?.ok()?;
    }
    drop(readers);
    second.reply().await?.ok()?;
    bench.until_waiting("a", 1).await?;
    second.call("UNLOCK a").await?.ok()?;
    late.reply().await?.ok()?;
    late.call("UNLOCK a").await?.ok()?;
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 0);
    Ok(())
}

#[tokio::test]
async fn the_write_side_is_handed_over() -> Result<()> {
    let mut bench = Bench::new().await?;
    let [mut one, mut two] = bench.sessions().await?;
    lock(&mut one, "LOCK a KIND write").await?;
    two.send("LOCK a KIND write").await?;
    bench.until_waiting("a", 1).await?;
    one.call("UNLOCK a").await?.ok()?;
    let held = holder(&two.reply().await?)?;
    assert!(bench.holders("a").await?.contains(&(held, "1".to_owned())));
    assert_eq!(bench.agent.metrics().await?.sum("lockscope_agent_handovers_total", &[]), 1.0);
    Ok(())
}

#[tokio::test]
async fn a_writer_may_read_and_keep_reading() -> Result<()> {
    let mut bench = Bench::new().await?;
    let [mut worker, mut writer, mut reader] = bench.sessions().await?;
    let write = lock(&mut worker, "LOCK a KIND write").await?;
    writer.send("LOCK a KIND write").await?;
    bench.until_waiting("a", 1).await?;
    let read = lock(&mut worker, "LOCK a KIND read").await?;
    assert_ne!(holder(&read)?, holder(&write)?, "the read hold is a separate grant");
    assert_error(&worker.call("UNLOCK a").await?, "SYNTAX", "KIND read or KIND write");
    assert_error(&worker.call("EXTEND a 5000").await?, "SYNTAX", "a");
    assert_eq!(worker.call("HOLDS").await?.items()?.len(), 2);
    assert_eq!(lock(&mut worker, "LOCK a KIND write").await?.field("holds")?.int()?, 2);
    for left in [1, 0] {
        assert_eq!(worker.call("UNLOCK a KIND write").await?, Reply::Int(left));
    }
    assert_eq!(bench.mode("a").await?, "read", "downgraded");
    assert_eq!(reader.call("LOCK a KIND read NOWAIT").await?, Reply::Null, "a writer is before it");
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    writer.reply().await?.ok()?;
    writer.call("UNLOCK a").await?.ok()?;
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_self_deadlock_is_reported_at_once() -> Result<()> {
    let bench = Bench::new().await?;
    let [mut one, mut two, mut three] = bench.sessions().await?;
    lock(&mut one, "LOCK a KIND read").await?;
    for wait in ["", " WAIT 60000"] {
        let reply = one.call(&format!("LOCK a KIND write{wait}")).await?;
        assert_error(&reply, "DEADLOCK", "for reading");
    }
    let reply = one.call("LOCK a KIND write NOWAIT").await?;
    assert_eq!(reply, Reply::Null, "NOWAIT cannot cause a deadlock");
    // One of several readers waits for the writer that waits for all of them.
    lock(&mut two, "LOCK a KIND read").await?;
    lock(&mut three, "LOCK b KIND write").await?;
    three.send("LOCK a KIND write").await?;
    bench.until_waiting("a", 1).await?;
    assert_error(&two.call("LOCK b KIND read").await?, "DEADLOCK", "b");
    two.call("UNLOCK a").await?.ok()?;
    one.call("UNLOCK a").await?.ok()?;
    three.reply().await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn kinds_do_not_mix_under_one_name() -> Result<()> {
    let mut bench = Bench::new().await?;
    let [mut one, mut two] = bench.sessions().await?;
    lock(&mut one, "LOCK a KIND read").await?;
    for command in ["LOCK a", "LOCK a KIND fenced NOWAIT"] {
        assert_error(&two.call(command).await?, "WRONGKIND", "read-write");
        assert_error(&one.call(command).await?, "WRONGKIND", "read-write");
    }
    assert_error(&one.call("UNLOCK a KIND write").await?, "NOTHELD", "as write");
    // Redis has a hold that this agent does not know.
    bench.direct.call(&format!("HSET b {FOREIGN} 1")).await?.ok()?;
    assert_error(&two.call("LOCK b KIND read").await?, "WRONGKIND", "b");
    assert_error(&two.call("LOCK b KIND write NOWAIT").await?, "WRONGKIND", "b");
    one.call("UNLOCK a").await?.ok()?;
    lock(&mut two, "LOCK a").await?;
    Ok(())
}

#[tokio::test]
async fn foreign_readers_and_writers_wake_the_agents_waiters() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "10m"]).await?;
    let [mut writer, mut reader] = bench.sessions().await?;
    bench.direct.call(&format!("HSET a mode read {FOREIGN} 1")).await?.ok()?;
    bench.direct.call("PEXPIRE a 600000").await?.ok()?;
    bench.direct.call(&format!("SET {MARKERS}:1 1 PX 600000")).await?.ok()?;
    lock(&mut reader, "LOCK a KIND read").await?;
    reader.call("UNLOCK a").await?.ok()?;
    assert_eq!(bench.holders("a").await?.len(), 2, "the other reader stays");
    writer.send("LOCK a KIND write").await?;
    bench.until_metric("lockscope_agent_subscriptions", &[], 1.0).await;
    bench.direct.call(&format!("HDEL a {FOREIGN} mode")).await?.ok()?;
    eventually("the writer to acquire the lock", async || {
        // The agent may not have subscribed yet, so the message is repeated until it arrives.
        bench.direct.call("PUBLISH redisson_rwlock:{a} 0").await?.ok()?;
        ensure!(!bench.holders("a").await?.is_empty(), "not yet");
        Ok(())
    })
    .await;
    writer.reply().await?.ok()?;
    writer.call("UNLOCK a").await?.ok()?;

    bench.direct.call(&format!("HSET a mode write {FOREIGN}:write 1")).await?.ok()?;
    bench.direct.call("PEXPIRE a 600000").await?.ok()?;
    reader.send("LOCK a KIND read").await?;
    bench.until_metric("lockscope_agent_subscriptions", &[], 1.0).await;
    bench.direct.call("DEL a").await?.ok()?;
    eventually("the reader to acquire the lock", async || {
        bench.direct.call("PUBLISH redisson_rwlock:{a} 1").await?.ok()?;
        ensure!(!bench.holders("a").await?.is_empty(), "not yet");
        Ok(())
    })
    .await;
    reader.reply().await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn both_sides_are_renewed_with_their_markers_and_a_loss_is_reported() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "9s"]).await?;
    let [mut one, mut writer] = bench.sessions().await?;
    let session = credentials(&mut one).await?;
    let read = lock(&mut one, "LOCK a KIND read").await?;
    lock(&mut one, "LOCK a KIND read").await?;
    lock(&mut writer, "LOCK b KIND write").await?;
    bench.until_metric("lockscope_agent_renewals_total", &[("outcome", "renewed")], 8.0).await;
    let marker = format!("{{a}}:{}:rwlock_timeout:2", holder(&read)?);
    let left = bench.direct.call(&format!("PTTL {marker}")).await?.int()?;
    assert!((1..=9_000).contains(&left), "{left}");
    assert_eq!(bench.mode("b").await?, "write");
    bench.direct.call(&format!("DEL {marker}")).await?.ok()?;
    eventually("a marker that was evicted to be restored", async || {
        let exists = bench.direct.call(&format!("EXISTS {marker}")).await?;
        ensure!(exists == Reply::Int(1), "{exists:?}");
        Ok(())
    })
    .await;
    assert_eq!(one.call("UNLOCK a").await?, Reply::Int(1));
    eventually("the marker of the second entry to be removed", async || {
        let exists = bench.direct.call(&format!("EXISTS {marker}")).await?;
        ensure!(exists == Reply::Int(0), "{exists:?}");
        Ok(())
    })
    .await;

    bench.direct.call("DEL a").await?.ok()?;
    assert_eq!(until_lost(&mut one, &session).await, "[lost, a, read, missing]");
    assert_error(&one.call("UNLOCK a").await?, "LOST", "missing");
    Ok(())
}

#[tokio::test]
async fn show_and_listings_include_read_write_locks() -> Result<()> {
    let mut bench = Bench::new().await?;
    let [mut one, mut two] = bench.sessions().await?;
    let held = holder(&lock(&mut one, "LOCK a KIND read").await?)?;
    bench.direct.call(&format!("HSET a {FOREIGN} 1")).await?.ok()?;
    let shown = two.call("SHOW a").await?;
    assert_eq!(shown.field("kind")?.text(), "read");
    for row in shown.field("holders")?.items()? {
        let alive = row.field("holder")?.text() == held;
        assert_eq!(row.field("alive")?.int()?, i64::from(alive), "{shown}");
    }
    assert!(shown.field("warnings")?.text().contains("lease has run out"), "{shown}");
    one.call("UNLOCK a").await?.ok()?;
    assert!(bench.is_free("a").await?, "the dead reader is removed with the last living one");

    lock(&mut one, "LOCK a KIND write").await?;
    let rows = super::rows(&mut two, "a").await?;
    assert_eq!(rows[0].whole.field("kind")?.text(), "write");
    assert!(rows[0].whole.field("holder")?.text().ends_with(":write"));
    let metrics = bench.agent.metrics().await?;
    assert_eq!(metrics.sum("lockscope_agent_holds", &[("kind", "write")]), 1.0);
    assert_eq!(metrics.sum("lockscope_agent_holds", &[("kind", "read")]), 0.0);
    Ok(())
}

#[tokio::test]
async fn the_hold_count_of_a_reader_is_bounded() -> Result<()> {
    let bench = Bench::new().await?;
    let [mut one] = bench.sessions().await?;
    for count in 1..=100 {
        assert_eq!(lock(&mut one, "LOCK a KIND read").await?.field("holds")?.int()?, count);
    }
    assert_error(&one.call("LOCK a KIND read").await?, "LIMIT", "100");
    Ok(())
}
