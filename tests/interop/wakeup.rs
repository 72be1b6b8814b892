//! Waiters of one side acquire the lock as soon as the other side releases it. Leases and polls are so long that a
//! waiter which was not woken would still sleep when the test gives up.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::select_all;
use harness::{PATIENCE, Reply};
use tokio::time::Instant;

use super::bed::{for_each_kind, lock, unlock};
use super::{Bed, Kind};

for_each_kind!(
    the_agents_release_wakes_java,
    a_workers_death_wakes_java,
    the_end_of_a_series_of_hand_overs_wakes_java,
    an_unlock_by_java_wakes_the_agents_waiter,
    a_force_unlock_by_java_wakes_the_agents_waiter,
    the_agents_release_wakes_a_java_thread_that_is_about_to_sleep,
    all_waiters_of_both_sides_acquire_the_lock,
);

mod cases {
    use super::*;

    pub(super) async fn the_agents_release_wakes_java(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let java = bed.java(kind, "a");
        let waiting = java.begin_wait().await?;
        assert!(waiting.is_open());
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        waiting.answer().await??;
        assert!(java.is("isHeldByCurrentThread").await?);
        assert!(
            !lock(&mut worker, kind, "a", "NOWAIT").await?,
            "now the agent's worker has to wait"
        );
        Ok(())
    }

    pub(super) async fn a_workers_death_wakes_java(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let java = bed.java(kind, "a");
        let waiting = java.begin_wait().await?;
        drop(worker);
        waiting.answer().await??;
        assert!(java.is("isHeldByCurrentThread").await?);
        Ok(())
    }

    /// The agent passes the lock among its own workers without release messages, but not forever.
    pub(super) async fn the_end_of_a_series_of_hand_overs_wakes_java(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let mut workers = Vec::new();
        for _ in 0..3 {
            let mut worker = bed.session().await?;
            worker.send_bytes(&harness::client::encode(&kind.lock("a", ""))).await?;
            workers.push(worker);
        }
        let mut holder = granted(&mut workers).await?;
        // The agent's waiters need no subscription: the holder's release notifies them.
        let waiting = bed.java(kind, "a").begin_wait().await?;
        // They acquire it again and again, so it is never free for long: only fairness lets Java acquire it.
        let mut turns = 0;
        let deadline = Instant::now() + PATIENCE;
        while waiting.is_open() {
            ensure!(Instant::now() < deadline, "Java did not get the lock in {turns} turns");
            let mut bytes = harness::client::encode(&kind.unlock("a"));
            bytes.extend(harness::client::encode(&kind.lock("a", "")));
            workers[holder].send_bytes(&bytes).await?;
            workers[holder].reply().await?.ok()?;
            turns += 1;
            // If Java holds the lock while the workers wait, Java has to release it first.
            tokio::select! {
                next = granted(&mut workers) => holder = next?,
                () = closed(&waiting) => break,
            }
        }
        waiting.answer().await??;
        assert!(bed.java(kind, "a").is("isHeldByCurrentThread").await?);
        Ok(())
    }

    /// Waits until one of the workers is granted the lock, and returns its index.
    async fn granted(workers: &mut [harness::Client]) -> Result<usize> {
        let replies = workers.iter_mut().map(|worker| Box::pin(worker.reply()));
        let (reply, index, _) = select_all(replies).await;
        assert_ne!(reply?.ok()?, Reply::Null);
        Ok(index)
    }

    async fn closed(waiting: &harness::jvm::Pending) {
        while waiting.is_open() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(super) async fn an_unlock_by_java_wakes_the_agents_waiter(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let mut worker = bed.session().await?;
        bed.begin_wait(&mut worker, kind, "a").await?;
        java.call("unlock").await?;
        let reply = worker.reply().await?.ok()?;
        assert_eq!(reply.field("holds")?, &Reply::Int(1));
        assert!(!java.is("tryLock").await?, "now Java has to wait");
        Ok(())
    }

    pub(super) async fn a_force_unlock_by_java_wakes_the_agents_waiter(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let mut worker = bed.session().await?;
        bed.begin_wait(&mut worker, kind, "a").await?;
        assert!(java.on(2).is("forceUnlock").await?);
        assert_eq!(worker.reply().await?.ok()?.field("holds")?, &Reply::Int(1));
        let thrown = java.thrown("unlock").await?;
        assert_eq!(thrown.class, "IllegalMonitorStateException");
        Ok(())
    }

    /// The message may arrive when a thread has been refused but does not sleep yet. Redisson's own message of a write
    /// lock is then lost on the thread, which sleeps for the reported lease: ten minutes.
    pub(super) async fn the_agents_release_wakes_a_java_thread_that_is_about_to_sleep(
        kind: Kind,
    ) -> Result<()> {
        let bed = Bed::new().await?;
        let (mut worker, java) = (bed.session().await?, bed.java(kind, "a"));
        let mut watch = bed.redis.client().await?;
        watch.call("MONITOR").await?.ok()?;
        let rounds = if kind.word == "write" { 400 } else { 50 };
        for round in 0..rounds {
            assert!(lock(&mut worker, kind, "a", "").await?);
            let (locked, unlocked) = (java.begin("lock")?, java.begin("unlock")?);
            // It has been refused and has subscribed; next it tries once more, then it sleeps.
            while !watch.reply().await?.text().to_ascii_uppercase().contains("\"SUBSCRIBE\"") {}
            let from = Instant::now();
            while from.elapsed() < Duration::from_micros(round % 40 * 25) {
                std::hint::spin_loop();
            }
            assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
            locked.answer().await??;
            unlocked.answer().await??;
        }
        Ok(())
    }

    /// One release wakes one thread of each client and one waiter of each agent; all others must acquire the lock later.
    pub(super) async fn all_waiters_of_both_sides_acquire_the_lock(kind: Kind) -> Result<()> {
        let (mut bed, settings) = Bed::crowded(kind).await?;
        bed.open("b", settings).await?;
        let mut first = bed.session().await?;
        assert!(lock(&mut first, kind, "a", "").await?);
        let (mut workers, mut javas) = (Vec::new(), Vec::new());
        for thread in 1..=4 {
            for client in ["a", "b"] {
                let java = bed.java(kind, "a").by(bed.thread(client, thread));
                // Both calls run in turn on one thread, so the test assumes no order of answers.
                javas.push((java.begin("lock")?, java.begin("unlock")?));
            }
            let mut worker = bed.session().await?;
            let mut bytes = harness::client::encode(&kind.lock("a", ""));
            bytes.extend(harness::client::encode(&kind.unlock("a")));
            worker.send_bytes(&bytes).await?;
            workers.push(worker);
        }
        bed.until_listening(kind, "a", if kind.is_fair() { 12 } else { 2 }).await;
        unlock(&mut first, kind, "a").await?;
        for worker in &mut workers {
            assert_ne!(worker.reply().await?.ok()?, Reply::Null);
            assert_eq!(worker.reply().await?.ok()?, Reply::Int(0));
        }
        for (locked, unlocked) in javas {
            locked.answer().await??;
            unlocked.answer().await??;
        }
        bed.assert_nothing_left().await;
        bed.until_listening(kind, "a", 0).await;
        Ok(())
    }
}
