//! Assertions of Redisson's own lock tests, with one of the two holders in the agent.

use anyhow::Result;
use harness::{Reply, eventually};

use super::bed::{for_each_kind, is_since, lock, unlock, version};
use super::{Bed, Kind};

for_each_kind!(
    java_acquires_when_the_agents_lease_expires,
    the_agent_acquires_when_javas_lease_expires,
    a_closed_clients_lock_is_free_within_its_lease,
    a_killed_agents_lock_is_free_within_its_lease,
    try_lock_of_java_times_out_and_leaves_nothing,
    a_wait_of_the_agent_times_out_and_leaves_nothing,
    an_interrupt_does_not_end_javas_lock_call,
    an_interrupted_wait_of_java_leaves_nothing,
    a_partial_unlock_keeps_the_lease,
    a_java_client_with_one_subscription_acquires_all_its_locks,
);

mod cases {
    use super::*;

    pub(super) async fn java_acquires_when_the_agents_lease_expires(kind: Kind) -> Result<()> {
        let bed = Bed::with(&[], "").await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "LEASE 1000").await?);
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let reply = worker.call_args(&kind.unlock("a")).await?;
        assert!(reply.is_error("LOST"), "the lease has expired: {reply}");
        assert!(java.is("isHeldByCurrentThread").await?);
        Ok(())
    }

    pub(super) async fn the_agent_acquires_when_javas_lease_expires(kind: Kind) -> Result<()> {
        let mut bed = Bed::with(&["--poll-max", super::super::LEASE], "").await?;
        let java = bed.java(kind, "a");
        java.call("lock 1000 ms").await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        assert_eq!(java.thrown("unlock").await?.class, "IllegalMonitorStateException");
        assert_eq!(bed.holders("a").await?.len(), 1);
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        Ok(())
    }

    pub(super) async fn a_closed_clients_lock_is_free_within_its_lease(kind: Kind) -> Result<()> {
        let bed = Bed::with(&["--poll-max", super::super::LEASE], "").await?;
        bed.open("b", "watchdog=1500").await?;
        let java = bed.java(kind, "a").by(bed.thread("b", 1));
        java.call("lock").await?;
        bed.thread("b", 0).call("close").await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        Ok(())
    }

    pub(super) async fn a_killed_agents_lock_is_free_within_its_lease(kind: Kind) -> Result<()> {
        if kind.is_fair() && !is_since(&version()?, 32) {
            // In earlier versions a thread whose holder was renewed meanwhile sleeps until a message, which a dead
            // holder does not send.
            return Ok(());
        }
        let mut bed = Bed::with(&["--lease", "6s"], "").await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let waiting = bed.java(kind, "a").begin_wait().await?;
        bed.agent.process().kill()?;
        waiting.answer().await??;
        Ok(())
    }

    pub(super) async fn try_lock_of_java_times_out_and_leaves_nothing(kind: Kind) -> Result<()> {
        let mut bed = Bed::new().await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let java = bed.java(kind, "a");
        assert!(!java.is("tryLock 300 ms").await?);
        assert!(!java.is("tryLock 300 60000 ms").await?);
        bed.until_listening(kind, "a", 0).await;
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        bed.assert_nothing_left().await;
        Ok(())
    }

    pub(super) async fn a_wait_of_the_agent_times_out_and_leaves_nothing(kind: Kind) -> Result<()> {
        let mut bed = Bed::new().await?;
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let mut worker = bed.session().await?;
        assert!(!lock(&mut worker, kind, "a", "WAIT 2000").await?);
        java.call("unlock").await?;
        bed.assert_nothing_left().await;
        Ok(())
    }

    pub(super) async fn an_interrupt_does_not_end_javas_lock_call(kind: Kind) -> Result<()> {
        let bed = Bed::new().await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let java = bed.java(kind, "a");
        let waiting = java.begin_wait().await?;
        java.interrupt().await?;
        assert!(!java.on(2).is("tryLock 300 ms").await?);
        assert!(waiting.is_open(), "it still waits");
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        waiting.answer().await??;
        Ok(())
    }

    pub(super) async fn an_interrupted_wait_of_java_leaves_nothing(kind: Kind) -> Result<()> {
        if kind.is_fair() {
            // An interrupted wait of Redisson leaves its position in the queue: see `fair.rs`.
            return Ok(());
        }
        let mut bed = Bed::new().await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let java = bed.java(kind, "a");
        let waiting = java.begin("lockInterruptibly")?;
        java.until_asleep().await;
        java.interrupt().await?;
        let thrown = waiting.answer().await?.expect_err("it was interrupted");
        assert_eq!(thrown.class, "InterruptedException");
        bed.until_listening(kind, "a", 0).await;
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        bed.assert_nothing_left().await;
        assert!(lock(&mut worker, kind, "a", "NOWAIT").await?);
        Ok(())
    }

    /// A reentered hold with a lease, released one by one.
    pub(super) async fn a_partial_unlock_keeps_the_lease(kind: Kind) -> Result<()> {
        let mut bed = Bed::with(&[], "").await?;
        let mut worker = bed.session().await?;
        for _ in 0..3 {
            assert!(lock(&mut worker, kind, "a", "LEASE 3600000").await?);
        }
        for left in [2, 1] {
            assert_eq!(unlock(&mut worker, kind, "a").await?, left);
            let ttl = bed.java(kind, "a").number("remainTimeToLive").await?;
            assert!((3_000_000..=3_600_000).contains(&ttl), "{ttl}");
        }
        assert!(!bed.java(kind, "a").is("tryLock").await?);
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        assert!(bed.pttl("a").await? == -2);
        Ok(())
    }

    /// One client waits for many locks with one channel per connection and one connection for channels. Fair locks are
    /// left out: their waiters have a channel each, and Redisson's threads then block one another now and then.
    pub(super) async fn a_java_client_with_one_subscription_acquires_all_its_locks(
        kind: Kind,
    ) -> Result<()> {
        if kind.is_fair() {
            return Ok(());
        }
        let (mut bed, settings) = Bed::crowded(kind).await?;
        bed.open("b", &format!("{settings} subscriptions=1")).await?;
        let mut workers = Vec::new();
        let mut waiting = Vec::new();
        for n in 0..10 {
            let name = format!("lock-{n}");
            let mut worker = bed.session().await?;
            assert!(lock(&mut worker, kind, &name, "").await?);
            let java = bed.java(kind, &name).by(bed.thread("b", n));
            waiting.push((java.begin("lock")?, java.begin("unlock")?));
            workers.push((name, worker));
        }
        for (name, worker) in &mut workers {
            assert_eq!(unlock(worker, kind, name).await?, 0);
        }
        for (locked, unlocked) in waiting {
            locked.answer().await??;
            unlocked.answer().await??;
        }
        eventually("no subscription to be left", async || {
            let channels = bed.direct.call("PUBSUB CHANNELS redisson_*").await?;
            anyhow::ensure!(channels == Reply::Array(vec![]), "{channels}");
            Ok(())
        })
        .await;
        bed.assert_nothing_left().await;
        Ok(())
    }
}
