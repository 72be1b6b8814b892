//! One queue for both sides: waiters are served in order of arrival, even if others give up or die.

use anyhow::{Context as _, Result, ensure};
use harness::client::encode;
use harness::jvm::Pending;
use harness::{Client, Reply, eventually};

use super::bed::{FAIR, is_since, lock, unlock, version};
use super::{Bed, JavaLock, Kind};

const QUEUE: &str = "redisson_lock_queue:{a}";
const DEADLINES: &str = "redisson_lock_timeout:{a}";

/// Earlier versions count a dead waiter of Redisson as alive for five minutes, whatever their settings.
const WAIT_CAN_BE_SET_SINCE: u32 = 46;

/// A waiter of either side in the queue.
enum Waiter {
    Java(JavaLock, Pending),
    Agent(Client),
}

impl Waiter {
    /// Joins the end of the queue.
    async fn join(bed: &mut Bed, position: u32) -> Result<Self> {
        let waiter = if position.is_multiple_of(2) {
            let java = bed.java(FAIR, "a").on(position + 1);
            let waiting = java.begin("lock")?;
            Self::Java(java, waiting)
        } else {
            Self::Agent(begin(bed, "").await?)
        };
        until_queued(bed, position as usize + 1).await;
        Ok(waiter)
    }

    /// Waits for its turn, then releases.
    async fn take_turn(self) -> Result<()> {
        match self {
            Self::Java(java, waiting) => {
                waiting.answer().await??;
                java.call("unlock").await?;
            }
            Self::Agent(mut session) => {
                ensure!(
                    session.reply().await?.ok()? != Reply::Null,
                    "a wait without a limit has ended"
                );
                unlock(&mut session, FAIR, "a").await?;
            }
        }
        Ok(())
    }
}

/// Returns a session that has sent its LOCK.
async fn begin(bed: &Bed, more: &str) -> Result<Client> {
    let mut session = bed.session().await?;
    session.send_bytes(&encode(&FAIR.lock("a", more))).await?;
    Ok(session)
}

async fn queue(bed: &mut Bed) -> Result<Vec<String>> {
    let reply = bed.direct.call_args(&["LRANGE", QUEUE, "0", "-1"]).await?.ok()?;
    Ok(reply.items()?.iter().map(Reply::text).collect())
}

async fn until_queued(bed: &mut Bed, count: usize) {
    eventually(&format!("{count} waiters in the queue"), async || {
        let queue = queue(bed).await?;
        ensure!(queue.len() == count, "{queue:?}");
        Ok(())
    })
    .await;
}

/// Returns the deadlines in the order of the queue, in milliseconds from now by Redis's clock.
async fn deadlines(bed: &mut Bed) -> Result<Vec<i64>> {
    let time = bed.direct.call("TIME").await?.ok()?;
    let seconds: i64 = time.items()?[0].text().parse()?;
    let mut left = Vec::new();
    for waiter in queue(bed).await? {
        let score = bed.direct.call_args(&["ZSCORE", DEADLINES, &waiter]).await?.ok()?.text();
        left.push(score.parse::<i64>()? - seconds * 1000);
    }
    Ok(left)
}

#[tokio::test]
async fn waiters_of_both_sides_acquire_in_the_order_of_one_queue() -> Result<()> {
    let mut bed = Bed::new().await?;
    let mut holder = bed.session().await?;
    assert!(lock(&mut holder, FAIR, "a", "").await?);
    let mut waiters = Vec::new();
    for position in 0..8 {
        waiters.push(Waiter::join(&mut bed, position).await?);
    }
    let order = queue(&mut bed).await?;
    for (position, id) in order.iter().enumerate() {
        assert_eq!(id.starts_with(&bed.id), position % 2 == 0, "{order:?}");
    }
    unlock(&mut holder, FAIR, "a").await?;
    for (position, waiter) in waiters.into_iter().enumerate() {
        let held = eventually("the next waiter to hold the lock", async || {
            let held = bed.holders("a").await?;
            let held = held.first().context("nobody holds it")?.0.clone();
            ensure!(held == order[position], "{held} holds it, {position} of {order:?} is next");
            Ok(held)
        });
        // The holder keeps the lock until the test tells it to release.
        let (held, waiter) = match waiter {
            Waiter::Java(java, waiting) => {
                waiting.answer().await??;
                (held.await, Waiter::Java(java.clone(), java.begin("isLocked")?))
            }
            waiter @ Waiter::Agent(_) => (held.await, waiter),
        };
        assert_eq!(held, order[position]);
        waiter.take_turn().await?;
    }
    bed.assert_nothing_left().await;
    Ok(())
}

#[tokio::test]
async fn waiters_that_give_up_or_die_leave_the_queue() -> Result<()> {
    let mut bed = Bed::new().await?;
    let mut holder = bed.session().await?;
    assert!(lock(&mut holder, FAIR, "a", "").await?);
    let first = begin(&bed, "").await?;
    until_queued(&mut bed, 1).await;
    let java = bed.java(FAIR, "a");
    let second = java.begin("lock")?;
    until_queued(&mut bed, 2).await;
    // Waiters at the end give up; no other position changes.
    let before = queue(&mut bed).await?;
    assert!(!lock(&mut bed.session().await?, FAIR, "a", "WAIT 3000").await?);
    assert!(!java.on(2).is("tryLock 200 60000 ms").await?);
    assert!(!lock(&mut bed.session().await?, FAIR, "a", "NOWAIT").await?);
    assert!(!java.on(2).is("tryLock").await?);
    until_queued(&mut bed, 2).await;
    assert_eq!(queue(&mut bed).await?, before);
    // The waiter at the head dies.
    drop(first);
    until_queued(&mut bed, 1).await;
    unlock(&mut holder, FAIR, "a").await?;
    second.answer().await??;
    java.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// The lock is free and the head of the queue leaves without a release message: the next waiter is notified.
#[tokio::test]
async fn java_is_notified_when_the_agents_first_waiter_leaves_a_free_lock() -> Result<()> {
    let mut bed = Bed::with(&["--lease", super::LEASE], "watchdog=600000").await?;
    let java = bed.java(FAIR, "a");
    java.call("lock").await?;
    let waiter = begin(&bed, "").await?;
    until_queued(&mut bed, 1).await;
    let waiting = java.on(2).begin("lock")?;
    until_queued(&mut bed, 2).await;
    // The deletion sends no message.
    bed.direct.call("DEL a").await?.int()?;
    drop(waiter);
    waiting.answer().await??;
    java.on(2).call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// Waiters that join and leave do not change the deadlines of those that stay.
#[tokio::test]
async fn waiters_that_come_and_go_do_not_shift_the_deadlines_of_others() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "60s"], "watchdog=60000").await?;
    let mut holder = bed.session().await?;
    assert!(lock(&mut holder, FAIR, "a", "").await?);
    let java = bed.java(FAIR, "a");
    let waiting = java.begin("lock")?;
    until_queued(&mut bed, 1).await;
    let waiter = begin(&bed, "").await?;
    until_queued(&mut bed, 2).await;
    for _ in 0..5 {
        // A busy Redis may not answer within so short a wait.
        let reply = eventually("a wait that Redis answers in time", async || {
            let reply = bed.session().await?.call_args(&FAIR.lock("a", "WAIT 50")).await?;
            ensure!(!reply.is_error("UNAVAILABLE"), "{reply}");
            Ok(reply)
        });
        assert_eq!(reply.await, Reply::Null);
        assert!(!java.on(2).is("tryLock 50 60000 ms").await?);
    }
    until_queued(&mut bed, 2).await;
    let left = deadlines(&mut bed).await?;
    // The holder's lease and each waiter's own wait, with a second for rounding, less the time that has passed.
    assert!((300_000..=361_000).contains(&left[0]), "{left:?}");
    assert!((left[0] + 14_000..=left[0] + 16_000).contains(&left[1]), "{left:?}");
    unlock(&mut holder, FAIR, "a").await?;
    Waiter::Java(java, waiting).take_turn().await?;
    Waiter::Agent(waiter).take_turn().await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// Redisson moves all deadlines earlier by the whole wait of a waiter that gets the lock, five minutes, however long it waited.
#[tokio::test]
async fn an_agents_waiter_keeps_its_turn_when_redisson_grants_the_lock_after_a_long_hold()
-> Result<()> {
    let mut bed = Bed::with(&["--lease", "6s"], "").await?;
    let mut holder = bed.session().await?;
    assert!(lock(&mut holder, FAIR, "a", "").await?);
    let mut waiters = Vec::new();
    for position in 0..3 {
        waiters.push(Waiter::join(&mut bed, position).await?);
    }
    let order = queue(&mut bed).await?;
    eventually("the hold to last longer than the agent's share of the deadlines", async || {
        let left = deadlines(&mut bed).await?[0];
        ensure!(left < 300_000 - 16_000, "{left} ms until the first deadline");
        Ok(())
    })
    .await;
    unlock(&mut holder, FAIR, "a").await?;
    for (waiter, id) in waiters.into_iter().zip(order) {
        let held = eventually("the next waiter to hold the lock", async || {
            let held = bed.holders("a").await?;
            Ok(held.first().context("nobody holds it")?.0.clone())
        });
        assert_eq!(held.await, id);
        waiter.take_turn().await?;
    }
    bed.assert_nothing_left().await;
    Ok(())
}

/// The position of a closed client stays in the queue until its deadline, and no longer.
#[tokio::test]
async fn a_dead_java_waiter_at_the_head_is_skipped_after_its_deadline() -> Result<()> {
    if !is_since(&version()?, WAIT_CAN_BE_SET_SINCE) {
        return Ok(());
    }
    let mut bed = Bed::with(&[], "").await?;
    bed.open("b", "watchdog=6000 fairwait=5000").await?;
    let java = bed.java(FAIR, "a").by(bed.thread("b", 1));
    java.call("lock").await?;
    let dead = java.on(2).begin_wait().await?;
    until_queued(&mut bed, 1).await;
    let mut waiter = begin(&bed, "").await?;
    until_queued(&mut bed, 2).await;
    let waiting = bed.java(FAIR, "a").begin("lock")?;
    until_queued(&mut bed, 3).await;
    drop(dead);
    bed.thread("b", 0).call("close").await?;
    assert_ne!(waiter.reply().await?.ok()?, Reply::Null);
    unlock(&mut waiter, FAIR, "a").await?;
    waiting.answer().await??;
    bed.java(FAIR, "a").call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// The position of a killed agent's worker stays until its deadline, and no longer.
#[tokio::test]
async fn a_dead_agents_waiter_at_the_head_is_skipped_after_its_deadline() -> Result<()> {
    let mut bed = Bed::with(&["--lease", "6s"], "").await?;
    let mut holder = bed.session().await?;
    assert!(lock(&mut holder, FAIR, "a", "").await?);
    let dead = begin(&bed, "").await?;
    until_queued(&mut bed, 1).await;
    let java = bed.java(FAIR, "a");
    let waiting = java.begin("lock")?;
    until_queued(&mut bed, 2).await;
    bed.agent.process().kill()?;
    drop(dead);
    waiting.answer().await??;
    java.call("unlock").await?;
    bed.assert_nothing_left().await;
    Ok(())
}

/// Redisson's `lockInterruptibly` leaves its position in the queue, which blocks all others until its deadline, not
/// forever.
#[tokio::test]
async fn an_interrupted_threads_position_is_skipped_after_its_deadline() -> Result<()> {
    if !is_since(&version()?, WAIT_CAN_BE_SET_SINCE) {
        return Ok(());
    }
    let mut bed = Bed::with(&["--lease", "6s"], "").await?;
    bed.open("b", "fairwait=1000").await?;
    let mut holder = bed.session().await?;
    assert!(lock(&mut holder, FAIR, "a", "").await?);
    let java = bed.java(FAIR, "a").by(bed.thread("b", 1));
    let waiting = java.begin("lockInterruptibly")?;
    java.until_asleep().await;
    java.interrupt().await?;
    let thrown = waiting.answer().await?.expect_err("it was interrupted");
    assert_eq!(thrown.class, "InterruptedException");
    until_queued(&mut bed, 1).await;
    unlock(&mut holder, FAIR, "a").await?;
    assert!(lock(&mut bed.session().await?, FAIR, "a", "").await?);
    bed.assert_nothing_left().await;
    Ok(())
}

/// Returns whether dying waiters of this kind are tested: fair locks only in versions with a configurable wait, see
/// [`WAIT_CAN_BE_SET_SINCE`].
pub(crate) fn jvms_may_die(kind: Kind, version: &str) -> bool {
    !kind.is_fair() || is_since(version, WAIT_CAN_BE_SET_SINCE)
}
