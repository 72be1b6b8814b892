//! Settings of Redisson that services use, and their effects on the agent.

use anyhow::Result;

use super::bed::{for_each_kind, is_since, lock, unlock, version};
use super::{Bed, Kind};

for_each_kind!(
    redissons_codec_makes_no_difference,
    each_side_keeps_its_hold_with_a_different_lease,
    a_name_mapper_changes_the_name,
    the_default_name_mapper_changes_nothing,
);

mod cases {
    use super::*;

    pub(super) async fn redissons_codec_makes_no_difference(kind: Kind) -> Result<()> {
        let mut bed = Bed::new().await?;
        bed.open("java", "watchdog=600000 codec=java").await?;
        bed.open("string", "watchdog=600000 codec=string").await?;
        let mut worker = bed.session().await?;
        for client in ["a", "java", "string"] {
            let java = bed.java(kind, "a").by(bed.thread(client, 1));
            assert!(lock(&mut worker, kind, "a", "NOWAIT").await?);
            assert!(!java.is("tryLock").await?);
            let waiting = java.begin_wait().await?;
            assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
            waiting.answer().await??;
            assert!(!lock(&mut worker, kind, "a", "NOWAIT").await?);
            java.call("unlock").await?;
        }
        bed.assert_nothing_left().await;
        Ok(())
    }

    /// The leases of both sides differ widely; each side renews its hold for as long as it wants.
    pub(super) async fn each_side_keeps_its_hold_with_a_different_lease(kind: Kind) -> Result<()> {
        let mut bed = Bed::with(&["--lease", super::super::LEASE], "watchdog=12000").await?;
        let java = bed.java(kind, "a");
        java.call("lock").await?;
        let ttl = bed.pttl("a").await?;
        assert!((1..=12_000).contains(&ttl), "{ttl}");
        let mut worker = bed.session().await?;
        assert!(!lock(&mut worker, kind, "a", "WAIT 18000").await?, "Java renews its hold");
        java.call("unlock").await?;
        // An attempt of the wait that has just ended may still be under way.
        assert!(lock(&mut worker, kind, "a", "WAIT 60000").await?);
        assert!(java.number("remainTimeToLive").await? > 500_000, "the lease is the agent's now");
        assert!(!java.is("tryLock 1800 ms").await?);
        Ok(())
    }

    pub(super) async fn a_name_mapper_changes_the_name(kind: Kind) -> Result<()> {
        let version = version()?;
        if kind.is_fair() && !is_since(&version, 52) {
            // Earlier versions map the lock's name, but not those of its queue and its deadlines.
            return Ok(());
        }
        // In earlier versions the sides of a read-write lock map the name that the lock has already mapped.
        let twice = kind.word == "write" && !is_since(&version, 23);
        let mapped = if twice { "shop:shop:a" } else { "shop:a" };
        let bed = Bed::new().await?;
        bed.open("shop", "watchdog=600000 prefix=shop:").await?;
        let java = bed.java(kind, "a").by(bed.thread("shop", 1));
        java.call("lock").await?;
        let mut worker = bed.session().await?;
        assert!(lock(&mut worker, kind, "a", "NOWAIT").await?, "the mapped name is another lock");
        assert!(!lock(&mut worker, kind, mapped, "NOWAIT").await?);
        bed.begin_wait(&mut worker, kind, mapped).await?;
        java.call("unlock").await?;
        assert_eq!(worker.reply().await?.ok()?.field("holds")?.int()?, 1);
        let waiting = java.begin_wait().await?;
        assert_eq!(unlock(&mut worker, kind, mapped).await?, 0);
        waiting.answer().await??;
        Ok(())
    }

    pub(super) async fn the_default_name_mapper_changes_nothing(kind: Kind) -> Result<()> {
        let mut bed = Bed::new().await?;
        bed.java(kind, "orders:42").call("lock").await?;
        assert_eq!(bed.direct.call("EXISTS orders:42").await?.int()?, 1);
        Ok(())
    }
}
