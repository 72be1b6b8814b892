//! `RedissonMultiLock` and MLOCK on the same names: several locks at once, all or none.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::client::encode;
use harness::jvm::{Pending, Thread};
use harness::{Client, Reply, eventually};

use super::Bed;
use super::bed::{kinds, lock};
use super::sections::{Crowd, Dying, Guard, LONG, tally};

/// Java's multi-lock of these names, in this order.
struct MultiLock {
    thread: Thread,
    guard: Guard,
}

impl MultiLock {
    fn new(thread: Thread, names: &[&str]) -> Self {
        Self { thread, guard: Guard::several(names) }
    }

    fn begin(&self, call: &str) -> Result<Pending> {
        self.guard.begin(&self.thread, call)
    }

    async fn call(&self, call: &str) -> Result<String> {
        Ok(self.begin(call)?.answer().await??)
    }
}

async fn holders(bed: &mut Bed) -> Result<usize> {
    let mut all = 0;
    for name in ["a", "b", "c"] {
        all += bed.holders(name).await?.len();
    }
    Ok(all)
}

/// Sends an MLOCK to the agent; returns false if the wait timed out.
async fn mlock(session: &mut Client, words: &str) -> Result<bool> {
    Ok(session.call(&format!("MLOCK {words}")).await?.ok()? != Reply::Null)
}

#[tokio::test]
async fn a_multi_lock_and_an_mlock_exclude_each_other() -> Result<()> {
    let mut bed = Bed::with(&[], "").await?;
    let mut worker = bed.session().await?;
    // Java acquires them in the order of its list, which may differ from the agent's order.
    let java = MultiLock::new(bed.thread("a", 1), &["c", "a", "b"]);
    java.call("lock").await?;
    assert!(!mlock(&mut worker, "3 a b c NOWAIT").await?);
    assert!(!mlock(&mut worker, "2 b d NOWAIT").await?);
    for name in ["a", "b", "c"] {
        assert!(!lock(&mut worker, kinds()?[0], name, "NOWAIT").await?);
    }
    assert_eq!(bed.direct.call("EXISTS d").await?.int()?, 0, "all or none");
    worker.send("MLOCK 3 a b c").await?;
    java.call("unlock").await?;
    assert_ne!(worker.reply().await?.ok()?, Reply::Null);
    assert_eq!(holders(&mut bed).await?, 3);
    assert_eq!(java.call("tryLock").await?, "false");
    assert_eq!(MultiLock::new(bed.thread("a", 2), &["d", "b"]).call("tryLock").await?, "false");
    assert_eq!(bed.direct.call("EXISTS d").await?.int()?, 0, "all or none");
    let waiting = java.begin("lock")?;
    worker.call("MUNLOCK 3 a b c").await?.ok()?;
    waiting.answer().await??;
    assert_eq!(holders(&mut bed).await?, 3);
    java.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// A holder of one member blocks both sides from the whole set, and neither waiting side holds a member for long.
#[tokio::test]
async fn a_held_member_blocks_the_multi_lock_and_the_mlock() -> Result<()> {
    let mut bed = Bed::with(&[], "").await?;
    let single = bed.java(kinds()?[0], "c");
    single.call("lock").await?;
    let java = MultiLock::new(bed.thread("a", 2), &["a", "b", "c"]);
    let waiting = java.begin("lock")?;
    let mut worker = bed.session().await?;
    worker.send("MLOCK 3 a b c").await?;
    // Others can acquire the free members while these two wait.
    let mut other = bed.session().await?;
    assert!(mlock(&mut other, "2 a b").await?);
    assert!(waiting.is_open());
    other.call("MUNLOCK 2 a b").await?.ok()?;
    single.call("unlock").await?;
    // Both acquire all of them, in either order.
    let agents = async {
        ensure!(worker.reply().await?.ok()? != Reply::Null, "a wait without a limit has ended");
        worker.call("MUNLOCK 3 a b c").await?.ok()
    };
    let javas = async {
        waiting.answer_within(LONG).await??;
        java.call("unlock").await
    };
    let (agents, javas) = tokio::join!(agents, javas);
    agents?;
    javas?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// The locks that a killed session held and waited for become free.
#[tokio::test]
async fn the_locks_of_closed_sessions_with_mlocks_are_free() -> Result<()> {
    let mut bed = Bed::with(&["--lease", super::LEASE], "").await?;
    let java = MultiLock::new(bed.thread("a", 1), &["c", "b", "a"]);
    let (mut holder, mut waiter) = (bed.session().await?, bed.session().await?);
    assert!(mlock(&mut holder, "3 a b c").await?);
    waiter.send_bytes(&encode(&["MLOCK", "3", "a", "b", "c"])).await?;
    let waiting = java.begin("lock")?;
    drop(waiter);
    drop(holder);
    waiting.answer_within(LONG).await??;
    java.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// Runs that many sections of each side: one Java thread for each of these orders of acquiring the locks, and as many
/// sessions of the agent. Other workers may die meanwhile.
async fn mixed(orders: &[[&str; 3]], each_side: usize, dying: bool) -> Result<()> {
    let mut bed = Bed::with(&[], "").await?;
    let (mut crowd, each) = (Crowd::default(), each_side / orders.len());
    for (thread, names) in (1..).zip(orders) {
        let (guard, threads) = (Guard::several(names), [bed.thread("a", thread)]);
        let counter = (&bed.redis, "counter");
        crowd.add(&guard, counter, (&threads, each), (&[&bed.agent], 1, each)).await?;
    }
    let mut at_least = 2 * orders.len() * each;
    if dying {
        let clients = vec![("mortal".to_owned(), &bed.redis)];
        let (agent, counters, guard) = (&bed.agent, &bed.redis, Guard::several(&orders[0]));
        let (counter, key, queues, reads) = ("counter", "a", false, false);
        let dying = Dying { agent, guard, counters, counter, clients, key, queues, reads };
        let (done, written) = tokio::join!(crowd.done(), dying.all(2));
        done?;
        at_least += written?;
    } else {
        tokio::time::timeout(LONG, crowd.done()).await??;
    }
    let tally = tally(&mut bed.direct, "counter").await?;
    ensure!(tally.total >= at_least, "{tally:?}, at least {at_least} of them ended");
    ensure!(tally.total == at_least || dying, "{tally:?}");
    bed.assert_nothing_left().await;
    Ok(())
}

#[tokio::test]
async fn both_sides_exclude_each_other_in_ten_thousand_sections() -> Result<()> {
    mixed(&[["a", "b", "c"]; 5], 5_000, false).await
}

/// Sessions, processes and JVMs die while they hold some or all of the locks.
#[tokio::test]
async fn both_sides_exclude_each_other_while_workers_are_killed() -> Result<()> {
    mixed(&[["a", "b", "c"]; 5], 5_000, true).await
}

/// Each side may hold what the other waits for: both release their members after some seconds, and the sections continue.
#[tokio::test]
async fn both_sides_make_progress_in_opposite_orders_of_acquiring() -> Result<()> {
    mixed(&[["c", "b", "a"]], 5, false).await
}

/// Each lock gets the requested lease, and all of them end together.
#[tokio::test]
async fn the_leases_of_all_members_end_together() -> Result<()> {
    let mut bed = Bed::with(&[], "").await?;
    let java = MultiLock::new(bed.thread("a", 1), &["a", "b"]);
    assert_eq!(java.call("tryLock 60000 10000 ms").await?, "true");
    let mut worker = bed.session().await?;
    assert!(!mlock(&mut worker, "2 a b NOWAIT").await?);
    assert!(mlock(&mut worker, "2 a b WAIT 60000 LEASE 3000").await?);
    assert_eq!(java.call("tryLock 20000 60000 ms").await?, "true");
    eventually("the leases of both", async || {
        for name in ["a", "b"] {
            let left = Duration::from_millis(bed.pttl(name).await?.try_into()?);
            ensure!(left > Duration::from_secs(40), "{name} has {left:?}");
        }
        Ok(())
    })
    .await;
    java.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}
