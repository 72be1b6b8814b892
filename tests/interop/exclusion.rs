//! Mutual exclusion of every kind, also when holders die: see `sections.rs`.

use anyhow::{Context as _, Result, ensure};
use harness::Agent;

use super::bed::{kinds, lock, unlock, version};
use super::sections::{Crowd, Dying, Guard, tally};
use super::{Bed, Kind};

/// The number of sections of four Java threads on two clients, and of ten sessions on two agents.
const EACH_SIDE: usize = 5_000;

/// Runs ten thousand sections of both sides on one lock, while that many JVMs and other workers die.
async fn mixed(kind: Kind, dying: Option<usize>) -> Result<()> {
    // Positions of dead waiters in a fair queue last for the lease that the lock had when they joined.
    let (flags, settings) = match (kind.is_fair(), dying) {
        (true, Some(_)) => (["--lease", "6s"].as_slice(), "watchdog=6000"),
        _ => ([].as_slice(), ""),
    };
    let mut bed = Bed::with(flags, settings).await?;
    bed.open("b", settings).await?;
    // The first agent has the default settings; the second one yields to others far sooner.
    let second = Agent::with(&bed.redis, &[flags, &["--handover-max", "2"]].concat()).await?;
    let (guard, agents) = (Guard::one(kind, "till"), [&bed.agent, &second]);
    let threads = [("a", 1), ("a", 2), ("b", 1), ("b", 2)];
    let threads = threads.map(|(client, thread)| bed.thread(client, thread));
    guard.warm_up(&threads).await?;
    let mut crowd = Crowd::default();
    let counter = (&bed.redis, "counter");
    crowd.add(&guard, counter, (&threads, EACH_SIDE / 4), (&agents, 10, EACH_SIDE / 10)).await?;
    let mut at_least = 2 * EACH_SIDE;
    if let Some(jvms) = dying {
        let clients = vec![("mortal".to_owned(), &bed.redis)];
        let (agent, counters, counter, key) = (&bed.agent, &bed.redis, "counter", "till");
        let (queues, reads) = (kind.is_fair(), false);
        let dying = Dying { agent, guard, counters, counter, clients, key, queues, reads };
        let (done, written) = tokio::join!(crowd.done(), dying.all(jvms));
        done?;
        at_least += written?;
    } else {
        crowd.done().await?;
    }
    let tally = tally(&mut bed.direct, "counter").await?;
    ensure!(tally.total >= at_least, "{tally:?}, at least {at_least} of them ended");
    ensure!(tally.total == at_least || dying.is_some_and(|jvms| jvms > 0), "{tally:?}");
    ensure!(tally.turns >= 20, "one side waited until the other was done: {tally:?}");
    if kind.is_fair() {
        // Positions of a dead JVM stay until another client finds them expired.
        let mut session = bed.session().await?;
        ensure!(lock(&mut session, kind, "till", "").await?, "a wait without a limit has ended");
        unlock(&mut session, kind, "till").await?;
    }
    bed.assert_nothing_left().await;
    Ok(())
}

#[tokio::test]
async fn both_sides_exclude_each_other_in_ten_thousand_sections() -> Result<()> {
    for kind in kinds()? {
        mixed(kind, None).await.with_context(|| kind.word)?;
    }
    Ok(())
}

/// The kinds of process killed while others continue: workers and sessions of the agent, and whole JVMs.
#[tokio::test]
async fn both_sides_exclude_each_other_while_workers_are_killed() -> Result<()> {
    for kind in kinds()? {
        let jvms = if super::fair::jvms_may_die(kind, &version()?) { 2 } else { 0 };
        mixed(kind, Some(jvms)).await.with_context(|| kind.word)?;
    }
    Ok(())
}
