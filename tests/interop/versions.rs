//! Two versions of Redisson and the agent on one name, as in a fleet that is being upgraded.

use std::time::Duration;

use anyhow::Result;
use harness::{Jvm, RedisServer};

use super::bed::{JavaLock, for_each_kind, lock, open, other_version, unlock};
use super::sections::{Crowd, Guard, tally};
use super::{Bed, Kind};

for_each_kind!(
    two_versions_of_redisson_and_the_agent_acquire_in_turn,
    two_versions_of_redisson_and_the_agent_exclude_each_other
);

mod cases {
    use super::*;

    async fn other(redis: &RedisServer, settings: &str) -> Result<(std::sync::Arc<Jvm>, String)> {
        let jvm = Jvm::start(&other_version()?)?;
        let id = open(&jvm, "other", redis, settings).await?;
        Ok((jvm, id))
    }

    /// Each waits for the one before, with leases too long to wait for their end.
    pub(super) async fn two_versions_of_redisson_and_the_agent_acquire_in_turn(
        kind: Kind,
    ) -> Result<()> {
        if !kind.is_in(&other_version()?) {
            return Ok(());
        }
        let (mut bed, settings) = Bed::crowded(kind).await?;
        let (jvm, id) = other(&bed.redis, settings).await?;
        let java = bed.java(kind, "a");
        let other_java = JavaLock::new(jvm.thread("other", 1), kind, "a");
        let mut worker = bed.session().await?;
        for _ in 0..3 {
            assert!(lock(&mut worker, kind, "a", "NOWAIT").await?);
            let (first, second) = (java.begin_wait().await?, other_java.begin_wait().await?);
            assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
            let one_is_granted = async {
                while first.is_open() && second.is_open() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(harness::PATIENCE, one_is_granted).await?;
            let held = bed.holders("a").await?;
            assert_eq!(held.len(), 1, "{held:?}");
            let (holder, next) = if held[0].0.starts_with(&id) {
                (&other_java, &java)
            } else {
                (&java, &other_java)
            };
            holder.call("unlock").await?;
            first.answer().await??;
            second.answer().await??;
            bed.begin_wait(&mut worker, kind, "a").await?;
            next.call("unlock").await?;
            assert_eq!(worker.reply().await?.ok()?.field("holds")?.int()?, 1);
            assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        }
        bed.assert_nothing_left().await;
        Ok(())
    }

    pub(super) async fn two_versions_of_redisson_and_the_agent_exclude_each_other(
        kind: Kind,
    ) -> Result<()> {
        if !kind.is_in(&other_version()?) {
            return Ok(());
        }
        let mut bed = Bed::with(&[], "").await?;
        // Leases are half a minute: a Java thread that misses a release of a write lock sleeps for that long.
        let (jvm, _) = other(&bed.redis, "").await?;
        let threads = [1, 2].map(|n| [bed.thread("a", n), jvm.thread("other", n)]).concat();
        let (guard, agents) = (Guard::one(kind, "till"), [&bed.agent]);
        let mut crowd = Crowd::default();
        crowd.add(&guard, (&bed.redis, "counter"), (&threads, 200), (&agents, 1, 200)).await?;
        crowd.done().await?;
        let tally = tally(&mut bed.direct, "counter").await?;
        assert_eq!(tally.total, 1_000);
        bed.assert_nothing_left().await;
        Ok(())
    }
}
