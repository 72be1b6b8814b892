//! The state of a lock as seen by the side that does not hold it.

use anyhow::Result;
use harness::{Reply, eventually};

use super::bed::{for_each_kind, lock, unlock};
use super::{Bed, Kind};

for_each_kind!(
    java_reports_the_agents_hold_correctly,
    the_agent_reports_javas_hold_correctly,
    java_re_enters_its_hold_while_the_agent_waits,
    java_cannot_unlock_the_agents_hold,
    the_agent_cannot_unlock_javas_hold,
    force_unlock_by_java_is_reported_as_a_loss,
    both_watchdogs_keep_holds_beyond_their_leases,
);

mod cases {
    use super::*;

    pub(super) async fn java_reports_the_agents_hold_correctly(kind: Kind) -> Result<()> {
        let bed = Bed::with(&["--lease", "60s"], "").await?;
        let java = bed.java(kind, "a");
        assert!(!java.is("isLocked").await?);
        assert_eq!(java.number("remainTimeToLive").await?, -2);
        let mut worker = bed.session().await?;
        for holds in 1..=3 {
            let reply = worker.call_args(&kind.lock("a", "")).await?.ok()?;
            assert_eq!(reply.field("holds")?.int()?, holds);
        }
        for left in (0..3).rev() {
            assert!(java.is("isLocked").await?);
            assert!(!java.is("isHeldByCurrentThread").await?);
            assert_eq!(java.number("getHoldCount").await?, 0, "the count is that of the thread");
            let left_ms = java.number("remainTimeToLive").await?;
            assert!((1..=60_000).contains(&left_ms), "{left_ms}");
            assert!(!java.is("tryLock").await?);
            assert_eq!(unlock(&mut worker, kind, "a").await?, left);
        }
        assert!(!java.is("isLocked").await?);
        assert_eq!(java.number("remainTimeToLive").await?, -2);
        assert!(java.is("tryLock").await?);
        Ok(())
    }

    pub(super) async fn the_agent_reports_javas_hold_correctly(kind: Kind) -> Result<()> {
        let bed = Bed::with(&[], "").await?;
        let java = bed.java(kind, "a");
        let holder = kind.field(&bed.id, &java.thread_id().await?);
        let mut worker = bed.session().await?;
        assert_eq!(worker.call("SHOW a").await?, Reply::Null);
        java.call("lock").await?;
        java.call("lock 3600000 ms").await?;
        for count in [2, 1] {
            let shown = worker.call("SHOW a").await?.ok()?;
            assert_eq!(shown.field("kind")?.text(), kind.shown);
            let holders = shown.field("holders")?.text();
            assert!(holders.contains(&holder), "{holders} has no {holder}");
            assert!(holders.contains(&count.to_string()), "{shown}");
            let pttl = shown.field("pttl_ms")?.int()?;
            // Redisson's write side adds a reentry's lease to what is left.
            assert!((1..=3_630_000).contains(&pttl), "{pttl}");
            assert_eq!(shown.field("warnings")?.items()?, [], "{shown}");
            assert!(!lock(&mut worker, kind, "a", "NOWAIT").await?);
            assert!(java.is(&format!("isHeldByThread {}", java.thread_id().await?)).await?);
            assert_eq!(java.number("getHoldCount").await?, count);
            java.call("unlock").await?;
        }
        assert_eq!(worker.call("SHOW a").await?, Reply::Null);
        assert!(lock(&mut worker, kind, "a", "NOWAIT").await?);
        Ok(())
    }

    pub(super) async fn java_re_enters_its_hold_while_the_agent_waits(kind: Kind) -> Result<()> {
        let mut bed = Bed::new().await?;
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let mut worker = bed.session().await?;
        bed.begin_wait(&mut worker, kind, "a").await?;
        assert!(java.is("tryLock").await?);
        assert!(!java.on(2).is("tryLock").await?, "another thread is a different owner");
        java.call("unlock").await?;
        assert_eq!(java.number("getHoldCount").await?, 1);
        assert_eq!(bed.holders("a").await?.len(), 1);
        java.call("unlock").await?;
        assert_eq!(worker.reply().await?.ok()?.field("holds")?, &Reply::Int(1));
        Ok(())
    }

    pub(super) async fn java_cannot_unlock_the_agents_hold(kind: Kind) -> Result<()> {
        let mut bed = Bed::with(&[], "").await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let held = bed.holders("a").await?;
        let thrown = bed.java(kind, "a").thrown("unlock").await?;
        assert_eq!(thrown.class, "IllegalMonitorStateException");
        assert_eq!(bed.holders("a").await?, held);
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        Ok(())
    }

    pub(super) async fn the_agent_cannot_unlock_javas_hold(kind: Kind) -> Result<()> {
        let mut bed = Bed::with(&[], "").await?;
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let held = bed.holders("a").await?;
        let mut worker = bed.session().await?;
        let reply = worker.call_args(&kind.unlock("a")).await?;
        assert!(reply.is_error("NOTHELD"), "{reply}");
        assert_eq!(bed.holders("a").await?, held);
        java.call("unlock").await?;
        Ok(())
    }

    /// The loss is reported to the worker by the next renewal at the latest, and the hold is never restored.
    pub(super) async fn force_unlock_by_java_is_reported_as_a_loss(kind: Kind) -> Result<()> {
        let mut bed = Bed::with(&["--lease", "6s"], "").await?;
        let mut worker = bed.agent.client_with_pushes().await?;
        assert!(lock(&mut worker, kind, "a", "").await?);
        let java = bed.java(kind, "a");
        assert!(java.is("forceUnlock").await?);
        assert!(!java.is("forceUnlock").await?, "there is nothing left to release");
        java.call("lock").await?;
        let lost = worker.push().await?;
        assert_eq!(lost[..3], ["lock-lost", "a", kind.word]);
        assert!(["missing", "stolen"].contains(&lost[3].as_str()), "{lost:?}");
        let reply = worker.call_args(&kind.unlock("a")).await?;
        assert!(reply.is_error("LOST"), "{reply}");
        let holder = kind.field(&bed.id, &java.thread_id().await?);
        eventually("Java to be the only holder", async || {
            let holders = bed.holders("a").await?;
            anyhow::ensure!(holders == [(holder.clone(), "1".to_owned())], "{holders:?}");
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Both watchdogs keep locks alive for several leases, each side's lock against a waiter of the other.
    pub(super) async fn both_watchdogs_keep_holds_beyond_their_leases(kind: Kind) -> Result<()> {
        let mut bed = Bed::with(&["--lease", "12s"], "watchdog=12000").await?;
        let java = bed.java(kind, "java");
        java.call("lock").await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "agent", "").await?);
        // Neither side acquires the other's lock before two leases are over.
        let waiter = bed.java(kind, "agent").on(2);
        let (agents, javas) = tokio::join!(
            lock(&mut worker, kind, "java", "WAIT 25000"),
            waiter.is("tryLock 25000 ms"),
        );
        assert!(!agents?, "the agent acquired Java's lock");
        assert!(!javas?, "Java acquired the agent's lock");
        assert!(java.is("isHeldByCurrentThread").await?);
        assert_eq!(unlock(&mut worker, kind, "agent").await?, 0);
        java.call("unlock").await?;
        bed.assert_nothing_left().await;
        Ok(())
    }
}
