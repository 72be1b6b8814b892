//! Read locks: readers of both sides hold the lock together, and a writer of either side holds it alone.

use anyhow::{Result, ensure};
use harness::client::encode;
use harness::{Reply, eventually};

use super::bed::{JavaLock, Kind, READ, is_since, lock, unlock, version};
use super::sections::{Crowd, Dying, Guard, readings, tally};
use super::{Bed, LEASE};

/// In earlier versions Redisson's renewal of one reader kept dead ones alive (3.43 and older), or stopped for good when
/// a reader had entered twice (until 3.52).
const MARKERS_ARE_RENEWED_CORRECTLY_SINCE: u32 = 53;

fn write() -> Kind {
    Kind::of("write").expect("a word of the table")
}

/// Returns the read and the write side, used by the first thread of client `a`.
fn sides(bed: &Bed) -> (JavaLock, JavaLock) {
    (bed.java(READ, "a"), bed.java(write(), "a"))
}

#[tokio::test]
async fn readers_of_both_sides_share_the_lock_and_writers_wait_for_the_last() -> Result<()> {
    let mut bed = Bed::new().await?;
    let (reads, writes) = sides(&bed);
    let (mut reader, mut writer) = (bed.session().await?, bed.session().await?);
    for agents_reader_is_last in [true, false] {
        reads.call("lock").await?;
        assert!(lock(&mut reader, READ, "a", "NOWAIT").await?);
        assert!(reads.on(2).is("tryLock").await?);
        assert_eq!(bed.holders("a").await?.len(), 3);
        assert!(!lock(&mut writer, write(), "a", "NOWAIT").await?);
        assert!(!writes.on(3).is("tryLock").await?);
        reads.on(2).call("unlock").await?;
        if agents_reader_is_last {
            let waiting = writes.on(3).begin_wait().await?;
            reads.call("unlock").await?;
            assert!(!writes.on(4).is("tryLock").await?, "the agent's reader still holds the lock");
            assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
            waiting.answer().await??;
            assert!(!lock(&mut reader, READ, "a", "NOWAIT").await?);
            writes.on(3).call("unlock").await?;
        } else {
            assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
            bed.begin_wait(&mut writer, write(), "a").await?;
            assert!(bed.holders("a").await?.len() == 1, "Java's reader still holds the lock");
            reads.call("unlock").await?;
            assert_eq!(writer.reply().await?.ok()?.field("holds")?.int()?, 1);
            assert!(!reads.on(2).is("tryLock").await?);
            assert_eq!(unlock(&mut writer, write(), "a").await?, 0);
        }
        bed.assert_nothing_left().await;
    }
    Ok(())
}

/// One message admits all readers: Java's sleeping threads wake together, and the agent's readers acquire together.
#[tokio::test]
async fn all_waiting_readers_of_both_sides_acquire_when_a_writer_releases() -> Result<()> {
    let mut bed = Bed::new().await?;
    bed.open("b", "watchdog=600000").await?;
    let (reads, writes) = sides(&bed);
    let mut writer = bed.session().await?;
    for agent_writes in [true, false] {
        if agent_writes {
            assert!(lock(&mut writer, write(), "a", "").await?);
        } else {
            writes.call("lock").await?;
        }
        let mut javas = Vec::new();
        for thread in 2..6 {
            for client in ["a", "b"] {
                let reader = reads.by(bed.thread(client, thread));
                javas.push((reader.begin_wait().await?, reader));
            }
        }
        let mut readers = Vec::new();
        for _ in 0..5 {
            let mut reader = bed.session().await?;
            reader.send_bytes(&encode(&READ.lock("a", ""))).await?;
            readers.push(reader);
        }
        // Waiters behind a writer of their own agent need no subscription.
        bed.until_listening(READ, "a", if agent_writes { 2 } else { 3 }).await;
        if agent_writes {
            assert_eq!(unlock(&mut writer, write(), "a").await?, 0);
        } else {
            writes.call("unlock").await?;
        }
        // No reader releases before all hold the lock.
        for reader in &mut readers {
            assert_ne!(reader.reply().await?.ok()?, Reply::Null);
        }
        let mut holding = Vec::new();
        for (waiting, reader) in javas {
            waiting.answer().await??;
            holding.push(reader);
        }
        assert_eq!(bed.holders("a").await?.len(), 13);
        for reader in holding {
            reader.call("unlock").await?;
        }
        drop(readers);
        bed.assert_nothing_left().await;
    }
    Ok(())
}

/// Each side's view of the other side's readers at each level of reentry and partial unlock.
#[tokio::test]
async fn each_side_reports_the_others_readers_correctly() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "60s"], "").await?;
    let (reads, writes) = sides(&bed);
    let mut reader = bed.session().await?;
    assert!(!reads.is("isLocked").await?);
    for holds in 1..=3 {
        let grant = reader.call_args(&READ.lock("a", "")).await?.ok()?;
        assert_eq!(grant.field("holds")?.int()?, holds);
    }
    for left in (0..3).rev() {
        assert!(reads.is("isLocked").await?);
        assert!(!writes.is("isLocked").await?);
        assert!(!reads.is("isHeldByCurrentThread").await?);
        assert_eq!(reads.number("getHoldCount").await?, 0, "the count is that of the thread");
        let ms = reads.number("remainTimeToLive").await?;
        assert!((1..=60_000).contains(&ms), "{ms}");
        assert!(!writes.is("tryLock").await?);
        assert_eq!(unlock(&mut reader, READ, "a").await?, left);
    }
    assert!(!reads.is("isLocked").await?);
    assert_eq!(reads.number("remainTimeToLive").await?, -2);

    let holder = READ.field(&bed.id, &reads.thread_id().await?);
    reads.call("lock").await?;
    reads.call("lock").await?;
    for count in [2, 1] {
        let shown = reader.call("SHOW a").await?.ok()?;
        assert_eq!(shown.field("kind")?.text(), "read");
        let holders = shown.field("holders")?.text();
        assert!(holders.contains(&holder) && holders.contains(&count.to_string()), "{shown}");
        assert_eq!(shown.field("warnings")?.items()?, [], "{shown}");
        assert_eq!(reads.number("getHoldCount").await?, count);
        assert!(reads.is(&format!("isHeldByThread {}", reads.thread_id().await?)).await?);
        assert!(!lock(&mut reader, write(), "a", "NOWAIT").await?);
        // The agent's reader acquires and releases without any effect on Java's hold.
        assert!(lock(&mut reader, READ, "a", "NOWAIT").await?);
        assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
        reads.call("unlock").await?;
    }
    assert_eq!(reader.call("SHOW a").await?, Reply::Null);
    bed.assert_nothing_left().await;
    Ok(())
}

#[tokio::test]
async fn neither_side_can_release_the_others_readers() -> Result<()> {
    let mut bed = Bed::with(&[], "").await?;
    let (reads, _) = sides(&bed);
    let mut reader = bed.session().await?;
    assert!(lock(&mut reader, READ, "a", "").await?);
    let held = bed.holders("a").await?;
    assert_eq!(reads.thrown("unlock").await?.class, "IllegalMonitorStateException");
    assert_eq!(bed.holders("a").await?, held);
    assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
    reads.call("lock").await?;
    let held = bed.holders("a").await?;
    let reply = reader.call_args(&READ.unlock("a")).await?;
    assert!(reply.is_error("NOTHELD"), "{reply}");
    assert_eq!(bed.holders("a").await?, held);
    reads.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// The read side's `forceUnlock` ends readers, the write side's does not.
#[tokio::test]
async fn force_unlock_of_the_read_side_ends_the_agents_readers() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "6s"], "").await?;
    let (reads, writes) = sides(&bed);
    let mut reader = bed.agent.client_with_pushes().await?;
    assert!(lock(&mut reader, READ, "a", "").await?);
    assert!(!writes.is("forceUnlock").await?);
    assert!(reads.is("forceUnlock").await?);
    writes.call("lock").await?;
    let lost = reader.push().await?;
    assert_eq!(lost[..3], ["lock-lost", "a", "read"]);
    let reply = reader.call_args(&READ.unlock("a")).await?;
    assert!(reply.is_error("LOST"), "{reply}");
    assert!(writes.is("isHeldByCurrentThread").await?);
    writes.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// A writer may also read and then downgrade: other readers may acquire the lock, writers may not.
#[tokio::test]
async fn a_writer_of_either_side_can_downgrade_to_a_reader() -> Result<()> {
    let mut bed = Bed::new().await?;
    let (reads, writes) = sides(&bed);
    let mut worker = bed.session().await?;
    assert!(lock(&mut worker, write(), "a", "").await?);
    assert!(lock(&mut worker, READ, "a", "").await?);
    assert!(writes.is("isLocked").await?);
    // Earlier, Redisson's read side did not look for readers while there was a writer.
    if is_since(&version()?, 24) {
        assert!(reads.is("isLocked").await?);
    }
    let waiting = reads.on(2).begin_wait().await?;
    assert_eq!(unlock(&mut worker, write(), "a").await?, 0);
    waiting.answer().await??;
    assert!(!writes.on(3).is("tryLock").await?);
    reads.on(2).call("unlock").await?;
    let waiting = writes.on(3).begin_wait().await?;
    assert_eq!(unlock(&mut worker, READ, "a").await?, 0);
    waiting.answer().await??;
    writes.on(3).call("unlock").await?;

    writes.call("lock").await?;
    assert!(reads.is("tryLock").await?);
    assert!(!lock(&mut worker, READ, "a", "NOWAIT").await?);
    writes.call("unlock").await?;
    // Redisson sends no message of this, but a new attempt succeeds.
    assert!(lock(&mut worker, READ, "a", "NOWAIT").await?);
    let mut writer = bed.session().await?;
    assert!(!lock(&mut writer, write(), "a", "NOWAIT").await?);
    assert_eq!(unlock(&mut worker, READ, "a").await?, 0);
    bed.begin_wait(&mut writer, write(), "a").await?;
    reads.call("unlock").await?;
    assert_eq!(writer.reply().await?.ok()?.field("holds")?.int()?, 1);
    assert_eq!(unlock(&mut writer, write(), "a").await?, 0);
    bed.assert_nothing_left().await;
    Ok(())
}

/// Writers wait for the longest lease of a reader of either side, and no longer.
#[tokio::test]
async fn a_writer_acquires_when_the_last_readers_lease_expires() -> Result<()> {
    let mut bed = Bed::with(&["--poll-max", LEASE], "").await?;
    let (reads, writes) = sides(&bed);
    let (mut reader, mut writer) = (bed.session().await?, bed.session().await?);
    reads.call("lock 1500 ms").await?;
    assert!(lock(&mut reader, READ, "a", "LEASE 500").await?);
    writer.send("LOCK a KIND write").await?;
    assert_ne!(writer.reply().await?.ok()?, Reply::Null);
    let fields = bed.direct.call("HLEN a").await?;
    assert_eq!(fields, Reply::Int(2), "the mode and the writer, and no reader");
    assert!(unlock(&mut writer, write(), "a").await? == 0);
    assert!(lock(&mut reader, READ, "a", "LEASE 1500").await?);
    reads.on(2).call("lock 500 ms").await?;
    writes.call("lock").await?;
    writes.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// Both watchdogs renew readers of one lock for several leases; a dead client's readers stay for one lease at most.
#[tokio::test]
async fn living_readers_are_renewed_and_dead_ones_expire() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "9s"], "watchdog=9000").await?;
    let (reads, writes) = sides(&bed);
    let mut reader = bed.session().await?;
    assert!(lock(&mut reader, READ, "a", "").await?);
    reads.call("lock").await?;
    let mut writer = bed.session().await?;
    assert!(!lock(&mut writer, write(), "a", "WAIT 19000").await?);
    assert!(!writes.on(2).is("tryLock").await?);
    assert_eq!(bed.holders("a").await?.len(), 2);
    // Java dies: the agent's reader alone must not keep Java's dead reader alive.
    bed.open("b", "watchdog=9000").await?;
    bed.thread("a", 0).call("close").await?;
    eventually("the dead reader's marker to expire", async || {
        let shown = reader.call("SHOW a").await?.ok()?;
        ensure!(!shown.field("warnings")?.items()?.is_empty(), "{shown}");
        Ok(())
    })
    .await;
    assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
    assert!(
        lock(&mut writer, write(), "a", "NOWAIT").await?,
        "a dead reader does not exclude writers"
    );
    assert_eq!(unlock(&mut writer, write(), "a").await?, 0);
    if !is_since(&version()?, MARKERS_ARE_RENEWED_CORRECTLY_SINCE) {
        return Ok(());
    }
    // The agent dies while Java has a living reader.
    let reads = reads.by(bed.thread("b", 1));
    assert!(lock(&mut reader, READ, "a", "").await?);
    reads.call("lock").await?;
    let waiting = writes.by(bed.thread("b", 2)).begin("lock")?;
    bed.agent.process().kill()?;
    eventually("the marker of the agent's reader to expire", async || {
        let markers = bed.direct.call("KEYS *rwlock_timeout*").await?.ok()?;
        ensure!(markers.items()?.len() == 1, "{markers}");
        Ok(())
    })
    .await;
    assert!(waiting.is_open(), "Java's reader still holds the lock");
    reads.call("unlock").await?;
    waiting.answer().await??;
    Ok(())
}

/// Redisson's renewal of a reader sets the expiry of the lock, and until 4.3.1 of all markers, to its own lease.
#[tokio::test]
async fn a_readers_long_lease_survives_the_renewals_of_a_java_reader() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "15s"], "watchdog=15000").await?;
    let reads = bed.java(READ, "a");
    let mut reader = bed.session().await?;
    assert!(lock(&mut reader, READ, "a", "LEASE 600000").await?);
    reads.call("lock").await?;
    eventually("Java to shorten the expiry", async || {
        let left = bed.direct.call("PTTL a").await?.int()?;
        ensure!(left <= 15_000, "{left}");
        Ok(())
    })
    .await;
    reads.call("unlock").await?;
    eventually("the agent to give the lease back", async || {
        let markers = bed.direct.call("KEYS *rwlock_timeout*").await?.ok()?;
        let marker = markers.items()?.first().map(Reply::text).unwrap_or_default();
        for key in ["a", &marker] {
            let left = bed.direct.call(&format!("PTTL {key}")).await?.int()?;
            ensure!(left > 400_000, "{key}: {left}");
        }
        Ok(())
    })
    .await;
    assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
    bed.assert_nothing_left().await;
    Ok(())
}

/// Runs that many sections of writers and readings of readers on one lock: four Java threads of two clients and ten
/// sessions of two agents. Other workers may die meanwhile.
async fn mixed(writing: usize, reading: usize, dying: bool) -> Result<()> {
    let lease = ["--lease", "15s"];
    let mut bed = Bed::with(&lease, "watchdog=15000").await?;
    bed.open("b", "watchdog=15000").await?;
    let second =
        harness::Agent::with(&bed.redis, &[lease, ["--handover-max", "2"]].concat()).await?;
    let (writes, reads) = (Guard::one(write(), "till"), Guard::one(READ, "till"));
    let (agents, counter) = ([&bed.agent, &second], "counter");
    let mut crowd = Crowd::default();
    let writers = [bed.thread("a", 1), bed.thread("b", 1)];
    writes.warm_up(&writers).await?;
    crowd
        .add(&writes, (&bed.redis, counter), (&writers, writing / 4), (&agents, 4, writing / 8))
        .await?;
    for reader in [bed.thread("a", 2), bed.thread("b", 2)] {
        crowd.await_java(reads.begin_readings(&reader, reading / 4, counter)?);
    }
    for n in 0..6 {
        let (session, direct) = (agents[n % 2].client().await?, bed.redis.client().await?);
        crowd.spawn(readings(session, direct, reads.clone(), counter.to_owned(), reading / 12));
    }
    let mut at_least = writing;
    if dying {
        let (agent, counters) = (&bed.agent, &bed.redis);
        let dying = |guard, reads| {
            let clients = vec![("mortal".to_owned(), counters)];
            let (key, queues) = ("till", false);
            Dying { agent, guard, counters, counter, clients, key, queues, reads }
        };
        // In earlier versions a living reader's renewals keep dead ones alive.
        let readers = usize::from(is_since(&version()?, MARKERS_ARE_RENEWED_CORRECTLY_SINCE));
        let (writers, dying) = (dying(writes, false), dying(reads, true));
        let (done, written, read) = tokio::join!(crowd.done(), writers.all(1), dying.all(readers));
        done?;
        read?;
        at_least += written?;
    } else {
        crowd.done().await?;
    }
    let tally = tally(&mut bed.direct, counter).await?;
    ensure!(tally.total >= at_least, "{tally:?}, at least {at_least} of them ended");
    ensure!(tally.total == at_least || dying, "{tally:?}");
    ensure!(tally.turns >= 20, "one side waited until the other was done: {tally:?}");
    bed.assert_nothing_left().await;
    Ok(())
}

#[tokio::test]
async fn readers_and_writers_exclude_each_other_in_ten_thousand_readings() -> Result<()> {
    mixed(2_400, 10_800, false).await
}

/// Readers and writers die in the middle of their sections.
#[tokio::test]
async fn readers_and_writers_exclude_each_other_while_some_are_killed() -> Result<()> {
    mixed(2_400, 10_800, true).await
}
