//! Readers of both sides are inside together, and a writer of either side is inside alone.

use anyhow::{Result, ensure};
use harness::client::encode;
use harness::{Client, Reply, eventually};

use super::bed::{JavaLock, Kind, READ, is_since, lock, unlock, version};
use super::exclusion::{LONG, Tally, sections, tally};
use super::{Bed, LEASE};

/// Before that Redisson's renewal of one reader kept dead ones alive (3.43 and older), or stopped for good where a
/// reader had entered twice (until 3.52).
const MARKERS_ARE_RENEWED_RIGHTLY_SINCE: u32 = 53;

fn write() -> Kind {
    Kind::of("write").expect("a word of the table")
}

/// The read and the write side by the first thread of client `a`.
fn sides(bed: &Bed) -> (JavaLock, JavaLock) {
    (bed.java(READ, "a"), bed.java(write(), "a"))
}

#[tokio::test]
async fn readers_of_both_sides_share_and_writers_wait_for_the_last() -> Result<()> {
    let mut bed = Bed::new().await?;
    let (reads, writes) = sides(&bed);
    let (mut reader, mut writer) = (bed.session().await?, bed.session().await?);
    for ours_leaves_last in [true, false] {
        reads.call("lock").await?;
        assert!(lock(&mut reader, READ, "a", "NOWAIT").await?);
        assert!(reads.on(2).is("tryLock").await?);
        assert_eq!(bed.holders("a").await?.len(), 3);
        assert!(!lock(&mut writer, write(), "a", "NOWAIT").await?);
        assert!(!writes.on(3).is("tryLock").await?);
        reads.on(2).call("unlock").await?;
        if ours_leaves_last {
            let waiting = writes.on(3).begin_wait().await?;
            reads.call("unlock").await?;
            assert!(!writes.on(4).is("tryLock").await?, "ours reads on");
            assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
            waiting.answer().await??;
            assert!(!lock(&mut reader, READ, "a", "NOWAIT").await?);
            writes.on(3).call("unlock").await?;
        } else {
            assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
            bed.begin_wait(&mut writer, write(), "a").await?;
            assert!(bed.holders("a").await?.len() == 1, "Java reads on");
            reads.call("unlock").await?;
            assert_eq!(writer.reply().await?.ok()?.field("holds")?.int()?, 1);
            assert!(!reads.on(2).is("tryLock").await?);
            assert_eq!(unlock(&mut writer, write(), "a").await?, 0);
        }
        bed.assert_nothing_left().await;
    }
    Ok(())
}

/// One message lets all of them in: Java's sleeping threads wake together, ours go in together.
#[tokio::test]
async fn all_readers_come_in_when_a_writer_leaves() -> Result<()> {
    let mut bed = Bed::new().await?;
    bed.open("b", "watchdog=600000").await?;
    let (reads, writes) = sides(&bed);
    let mut writer = bed.session().await?;
    for ours_writes in [true, false] {
        if ours_writes {
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
        let mut ours = Vec::new();
        for _ in 0..5 {
            let mut reader = bed.session().await?;
            reader.send_bytes(&encode(&READ.lock("a", ""))).await?;
            ours.push(reader);
        }
        // Behind a writer of their own agent ours need not listen.
        bed.until_listening(READ, "a", if ours_writes { 2 } else { 3 }).await;
        if ours_writes {
            assert_eq!(unlock(&mut writer, write(), "a").await?, 0);
        } else {
            writes.call("unlock").await?;
        }
        // Nobody leaves before all are inside.
        for reader in &mut ours {
            assert_ne!(reader.reply().await?.ok()?, Reply::Null);
        }
        let mut inside = Vec::new();
        for (waiting, reader) in javas {
            waiting.answer().await??;
            inside.push(reader);
        }
        assert_eq!(bed.holders("a").await?.len(), 13);
        for reader in inside {
            reader.call("unlock").await?;
        }
        drop(ours);
        bed.assert_nothing_left().await;
    }
    Ok(())
}

/// What each side says of the other's readers, on each level of re-entry and partial unlock.
#[tokio::test]
async fn each_side_tells_the_truth_about_the_others_readers() -> Result<()> {
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
        assert_eq!(reads.number("getHoldCount").await?, 0, "the count is the thread's own");
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
        // Beside it ours comes and goes, and takes nothing of Java's with it.
        assert!(lock(&mut reader, READ, "a", "NOWAIT").await?);
        assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
        reads.call("unlock").await?;
    }
    assert_eq!(reader.call("SHOW a").await?, Reply::Null);
    bed.assert_nothing_left().await;
    Ok(())
}

#[tokio::test]
async fn neither_side_releases_the_others_readers() -> Result<()> {
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
async fn java_forces_our_readers_out() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "6s"], "").await?;
    let (reads, writes) = sides(&bed);
    let mut reader = bed.agent.client3().await?;
    reader.call("SESSION PUSH on").await?.ok()?;
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

/// Who writes may read too, and gives the write side back while it reads on: readers come in then, writers do not.
#[tokio::test]
async fn a_writer_of_either_side_becomes_a_reader() -> Result<()> {
    let mut bed = Bed::new().await?;
    let (reads, writes) = sides(&bed);
    let mut worker = bed.session().await?;
    assert!(lock(&mut worker, write(), "a", "").await?);
    assert!(lock(&mut worker, READ, "a", "").await?);
    assert!(writes.is("isLocked").await?);
    // Before, Redisson's read side did not look for readers beside a writer.
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
    // Of this Redisson tells nobody; who asks comes in.
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

/// The longest reader's lease keeps writers out, whichever side has it, and not longer.
#[tokio::test]
async fn a_writer_comes_in_when_the_last_readers_lease_ends() -> Result<()> {
    let mut bed = Bed::with(&["--poll-max", LEASE], "").await?;
    let (reads, writes) = sides(&bed);
    let (mut reader, mut writer) = (bed.session().await?, bed.session().await?);
    reads.call("lock 1500 ms").await?;
    assert!(lock(&mut reader, READ, "a", "LEASE 500").await?);
    bed.begin_wait(&mut writer, write(), "a").await?;
    assert_ne!(writer.reply().await?.ok()?, Reply::Null);
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
async fn living_readers_are_kept_and_dead_ones_are_not() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "1500ms"], "watchdog=1500").await?;
    let (reads, writes) = sides(&bed);
    let mut reader = bed.session().await?;
    assert!(lock(&mut reader, READ, "a", "").await?);
    reads.call("lock").await?;
    let mut writer = bed.session().await?;
    assert!(!lock(&mut writer, write(), "a", "WAIT 4500").await?);
    assert!(!writes.on(2).is("tryLock").await?);
    assert_eq!(bed.holders("a").await?.len(), 2);
    // Java dies: ours alone is not kept company by its ghost.
    bed.open("b", "watchdog=1500").await?;
    bed.thread("a", 0).call("close").await?;
    eventually("the dead reader's marker to go", async || {
        let shown = reader.call("SHOW a").await?.ok()?;
        ensure!(!shown.field("warnings")?.items()?.is_empty(), "{shown}");
        Ok(())
    })
    .await;
    assert_eq!(unlock(&mut reader, READ, "a").await?, 0);
    assert!(lock(&mut writer, write(), "a", "NOWAIT").await?, "a dead reader keeps nobody out");
    assert_eq!(unlock(&mut writer, write(), "a").await?, 0);
    if !is_since(&version()?, MARKERS_ARE_RENEWED_RIGHTLY_SINCE) {
        return Ok(());
    }
    // The agent dies beside a living reader of Java's.
    let reads = reads.by(bed.thread("b", 1));
    assert!(lock(&mut reader, READ, "a", "").await?);
    reads.call("lock").await?;
    let waiting = writes.by(bed.thread("b", 2)).begin("lock")?;
    bed.agent.process().kill()?;
    eventually("our marker to go", async || {
        let markers = bed.direct.call("KEYS *rwlock_timeout*").await?.ok()?;
        ensure!(markers.items()?.len() == 1, "{markers}");
        Ok(())
    })
    .await;
    assert!(waiting.is_open(), "Java reads on");
    reads.call("unlock").await?;
    waiting.answer().await??;
    Ok(())
}

/// Reads the counter twice under the lock of a reader: nobody may write in between.
async fn readings(mut session: Client, mut direct: Client, many: usize) -> Result<()> {
    for _ in 0..many {
        ensure!(lock(&mut session, READ, "till", "").await?, "it waits for as long as it takes");
        let first = direct.call_args(&["GET", "counter"]).await?.ok()?;
        let second = direct.call_args(&["GET", "counter"]).await?.ok()?;
        ensure!(first == second, "{first} became {second} beside a reader");
        unlock(&mut session, READ, "till").await?;
    }
    Ok(())
}

/// Readers and writers, four Java threads of two clients and ten sessions of two agents, on one lock.
async fn mixed(writing: usize, reading: usize) -> Result<Tally> {
    let mut bed = Bed::with(&["--lease", "6s"], "watchdog=6000").await?;
    bed.open("b", "watchdog=6000").await?;
    let second =
        harness::Agent::with(&bed.redis, &["--lease", "6s", "--handover-max", "2"]).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for (client, thread, writes) in
        [("a", 1, true), ("a", 2, false), ("b", 1, true), ("b", 2, false)]
    {
        let thread = bed.thread(client, thread);
        let pending = if writes {
            JavaLock::new(thread, write(), "till").begin_sections(writing / 4, "counter")?
        } else {
            JavaLock::new(thread, READ, "till").begin_readings(reading / 4, "counter")?
        };
        tasks.spawn(async move {
            pending.answer_within(LONG).await??;
            Ok(())
        });
    }
    for n in 0..10 {
        let agent = if n % 2 == 0 { &bed.agent } else { &second };
        let (session, direct) = (agent.client().await?, bed.redis.client().await?);
        if n < 4 {
            tasks.spawn(sections(session, direct, write(), "till", "counter", writing / 8));
        } else {
            tasks.spawn(readings(session, direct, reading / 12));
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let tally = tally(&mut bed.direct, "counter").await?;
    bed.assert_nothing_left().await;
    Ok(tally)
}

#[tokio::test]
async fn ten_thousand_readings_and_sections_of_both_sides() -> Result<()> {
    let tally = mixed(2_000, 8_400).await?;
    assert_eq!(tally.total, 2_000);
    assert!(tally.turns >= 20, "one side waited for the other's end: {tally:?}");
    Ok(())
}

/// Readers and writers die at random, in the middle of their sections.
#[tokio::test]
async fn readers_killed_at_random() -> Result<()> {
    let mut bed = Bed::with(&[], "watchdog=5000").await?;
    let java_writes = bed.java(write(), "till").begin_sections(200, "counter")?;
    let java_reads = bed.java(READ, "till").on(2).begin_readings(200, "counter")?;
    let (session, direct) = (bed.agent.client().await?, bed.redis.client().await?);
    let ours = sections(session, direct, write(), "till", "counter", 200);
    let (session, direct) = (bed.agent.client().await?, bed.redis.client().await?);
    let reading = readings(session, direct, 200);
    let dying = async {
        for n in 0..100 {
            let mut session = bed.session().await?;
            let kind = if n % 2 == 0 { READ } else { write() };
            if n % 5 == 0 {
                session.send_bytes(&encode(&kind.lock("till", ""))).await?;
            } else {
                ensure!(lock(&mut session, kind, "till", "").await?, "its wait has no limit");
            }
        }
        anyhow::Ok(())
    };
    let (ours, reading, dying) = tokio::join!(ours, reading, dying);
    ours?;
    reading?;
    dying?;
    java_writes.answer_within(LONG).await??;
    java_reads.answer_within(LONG).await??;
    assert_eq!(tally(&mut bed.direct, "counter").await?.total, 400);
    bed.assert_nothing_left().await;
    Ok(())
}
