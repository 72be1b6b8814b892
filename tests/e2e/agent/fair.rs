//! KIND fair: one queue in Redis for all clients.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Agent, Client, Reply, eventually};

use super::{Bench, answered, assert_error, credentials, holder, lock};

const QUEUE: &str = "redisson_lock_queue:{a}";
const DEADLINES: &str = "redisson_lock_timeout:{a}";
const FOREIGN: &str = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";

impl Bench {
    async fn queue_entries(&mut self) -> Result<Vec<String>> {
        let queue_entries = self.direct.call(&format!("LRANGE {QUEUE} 0 -1")).await?.ok()?;
        Ok(queue_entries.items()?.iter().map(Reply::text).collect())
    }

    async fn until_queue(&mut self, count: usize) {
        eventually(&format!("{count} entries in the queue"), async || {
            let queue_entries = self.queue_entries().await?;
            ensure!(queue_entries.len() == count, "{queue_entries:?}");
            Ok(())
        })
        .await;
    }

    /// Adds a waiter of another client whose entry in the queue is valid for `ms` milliseconds.
    async fn foreign_entry(&mut self, ms: i64) -> Result<()> {
        let time = self.direct.call("TIME").await?;
        let part = |i: usize| anyhow::Ok(time.items()?[i].text().parse::<i64>()?);
        let at = part(0)? * 1_000 + part(1)? / 1_000 + ms;
        self.direct.call(&format!("RPUSH {QUEUE} {FOREIGN}")).await?.ok()?;
        self.direct.call(&format!("ZADD {DEADLINES} {at} {FOREIGN}")).await?.ok()?;
        Ok(())
    }

    async fn nothing_is_left(&mut self) {
        eventually("nothing to be left in Redis", async || {
            let keys = self.direct.call("KEYS *").await?.text();
            ensure!(harness::redis::locks(&mut self.direct).await? == 0, "{keys}");
            Ok(())
        })
        .await;
    }

    async fn fair_waiter_of_session(&mut self, length: usize) -> Result<Client> {
        let mut waiter = self.session().await?;
        waiter.send("LOCK a KIND fair").await?;
        self.until_queue(length).await;
        Ok(waiter)
    }

    async fn fair_waiter(&mut self, agent: &Agent, length: usize) -> Result<Client> {
        let mut waiter = agent.client().await?;
        waiter.send("LOCK a KIND fair").await?;
        self.until_queue(length).await;
        Ok(waiter)
    }
}

#[tokio::test]
async fn waiters_of_two_agents_are_served_in_one_order() -> Result<()> {
    // No agent polls again within this test: each waiter is notified of its turn.
    let flags = ["--poll-max", "10m", "--lease", "10m"];
    let mut bench = Bench::with(&flags).await?;
    let other = Agent::with(&bench.redis, &flags).await?;
    let mut first = bench.session().await?;
    let held = lock(&mut first, "LOCK a KIND fair").await?;
    assert_eq!(held.field("kind")?.text(), "fair");
    // In Redis it is a plain lock until another waits for it.
    assert_eq!(first.call("SHOW a").await?.field("kind")?.text(), "fair");
    assert_eq!(bench.holders("a").await?, [(holder(&held)?, "1".to_owned())]);
    assert_eq!(lock(&mut first, "LOCK a KIND fair NOWAIT").await?.field("holds")?.int()?, 2);
    first.call("UNLOCK a").await?.ok()?;
    let mut waiters = Vec::new();
    for n in 0..6 {
        let mut waiter = if n % 2 == 0 { other.client().await? } else { bench.session().await? };
        waiter.send("LOCK a KIND fair").await?;
        bench.until_queue(n + 1).await;
        waiters.push(waiter);
    }
    assert_eq!(first.call("LOCK a KIND fair NOWAIT").await?.field("holds")?.int()?, 2);
    first.call("UNLOCK a").await?.ok()?;
    let shown = first.call("SHOW a").await?;
    assert_eq!(
        (shown.field("kind")?.text().as_str(), shown.field("queue")?.items()?.len()),
        ("fair", 6)
    );
    let queue_entries = bench.queue_entries().await?;
    first.call("UNLOCK a").await?.ok()?;
    for (waiter, entry) in waiters.iter_mut().zip(queue_entries) {
        assert_eq!(
            holder(&waiter.reply().await?)?,
            entry,
            "the hold has the number of the queue entry"
        );
        waiter.call("UNLOCK a").await?.ok()?;
    }
    bench.nothing_is_left().await;
    let metrics = bench.agent.metrics().await?;
    assert_eq!(metrics.sum("lockscope_agent_subscriptions", &[]), 0.0);
    assert_eq!(metrics.sum("lockscope_agent_handovers_total", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn a_departed_waiter_leaves_no_queue_entry() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "10m", "--lease", "10m"]).await?;
    let mut first = bench.session().await?;
    lock(&mut first, "LOCK a KIND fair").await?;
    assert_eq!(first.call("LOCK a KIND fair NOWAIT OWNER 5").await?, Reply::Null);
    assert_eq!(bench.queue_entries().await?.len(), 0, "NOWAIT does not queue");
    let mut impatient = bench.session().await?;
    assert_eq!(answered(&mut impatient, "LOCK a KIND fair WAIT 100").await, Reply::Null);
    bench.until_queue(0).await;

    let mut cancelled = bench.session().await?;
    let session = credentials(&mut cancelled).await?;
    cancelled.send("LOCK a KIND fair").await?;
    bench.until_queue(1).await;
    let mut dying = bench.session().await?;
    dying.send("LOCK a KIND fair").await?;
    bench.until_queue(2).await;
    let mut last = bench.session().await?;
    last.send("LOCK a KIND fair").await?;
    bench.until_queue(3).await;
    assert_eq!(impatient.call(&format!("CANCEL {session}")).await?, Reply::Int(1));
    assert_eq!(cancelled.reply().await?, Reply::Null);
    drop(dying);
    bench.until_queue(1).await;
    assert_eq!(bench.direct.call(&format!("ZCARD {DEADLINES}")).await?, Reply::Int(1));
    drop(first);
    last.reply().await?.ok()?;
    last.call("UNLOCK a").await?.ok()?;
    bench.nothing_is_left().await;
    Ok(())
}

#[tokio::test]
async fn the_next_waiter_is_woken_when_the_head_leaves() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "10m", "--lease", "10m"]).await?;
    bench.foreign_entry(600_000).await?;
    let mut one = bench.session().await?;
    one.send("LOCK a KIND fair").await?;
    bench.until_queue(2).await;
    bench.until_metric("lockscope_agent_subscriptions", &[], 1.0).await;
    let mut two = bench.session().await?;
    two.send("LOCK a KIND fair").await?;
    bench.until_queue(3).await;
    bench.until_metric("lockscope_agent_subscriptions", &[], 2.0).await;
    assert!(bench.is_free("a").await?, "it is the foreign waiter's turn");
    // The foreign waiter gives up as Redisson does: without a message.
    bench.direct.call(&format!("LREM {QUEUE} 0 {FOREIGN}")).await?;
    bench.direct.call(&format!("ZREM {DEADLINES} {FOREIGN}")).await?;
    drop(one);
    two.reply().await?.ok()?;
    two.call("UNLOCK a").await?.ok()?;
    bench.nothing_is_left().await;
    Ok(())
}

#[tokio::test]
async fn a_dead_head_blocks_the_queue_only_until_its_deadline() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "10m"]).await?;
    bench.foreign_entry(12_000).await?;
    let mut one = bench.session().await?;
    assert_eq!(one.call("LOCK a KIND fair NOWAIT").await?, Reply::Null);
    assert_error(&one.call("LOCK a").await?, "WRONGKIND", "fair");
    one.call("LOCK a KIND fair").await?.ok()?;
    assert_eq!(bench.queue_entries().await?, Vec::<String>::new());
    one.call("UNLOCK a").await?.ok()?;
    bench.nothing_is_left().await;
    Ok(())
}

#[tokio::test]
async fn a_living_waiter_extends_its_deadline() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "100ms"]).await?;
    let mut first = bench.session().await?;
    lock(&mut first, "LOCK a KIND fair").await?;
    let mut waiter = bench.session().await?;
    waiter.send("LOCK a KIND fair").await?;
    bench.until_queue(1).await;
    let entry = bench.queue_entries().await?.remove(0);
    let deadline = async |direct: &mut Client| -> Result<i64> {
        Ok(direct.call(&format!("ZSCORE {DEADLINES} {entry}")).await?.text().parse()?)
    };
    // Simulates a waiter that has not been seen for a long time.
    bench.direct.call(&format!("ZADD {DEADLINES} XX 1000 {entry}")).await?.ok()?;
    eventually("the deadline to be extended", async || {
        let at = deadline(&mut bench.direct).await?;
        ensure!(at > 1_000_000, "{at}");
        Ok(())
    })
    .await;
    // Another client removed the waiter as dead, so it joins the queue again.
    bench.direct.call(&format!("DEL {QUEUE} {DEADLINES}")).await?.ok()?;
    bench.until_queue(1).await;
    assert_eq!(bench.queue_entries().await?, [entry]);
    first.call("UNLOCK a").await?.ok()?;
    waiter.reply().await?.ok()?;
    waiter.call("UNLOCK a").await?.ok()?;
    bench.nothing_is_left().await;
    Ok(())
}

#[tokio::test]
async fn many_fair_workers_exclude_each_other_and_leave_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let other = Agent::start(&bench.redis).await?;
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..12 {
        let mut worker = if n % 2 == 0 { bench.session().await? } else { other.client().await? };
        let mut redis = bench.redis.client().await?;
        crowd.spawn(async move {
            for _ in 0..10 {
                lock(&mut worker, "LOCK a KIND fair").await?;
                // Reads, then writes: if two workers held the lock, one count would be lost.
                let count = redis.call("GET count").await?.text().parse().unwrap_or(0);
                redis.call(&format!("SET count {}", count + 1)).await?.ok()?;
                worker.call("UNLOCK a").await?.ok()?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(worker) = crowd.join_next().await {
        worker??;
    }
    assert_eq!(bench.direct.call("GET count").await?.text(), "120");
    bench.direct.call("DEL count").await?;
    bench.nothing_is_left().await;
    Ok(())
}

#[tokio::test]
async fn waiters_keep_their_order_after_broken_connections() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "200ms"]).await?;
    let mut first = bench.session().await?;
    lock(&mut first, "LOCK a KIND fair").await?;
    let agent = Agent::with(&bench.redis, &["--poll-max", "200ms"]).await?;
    let mut one = bench.fair_waiter(&agent, 1).await?;
    let mut two = bench.fair_waiter(&agent, 2).await?;
    let queue_entries = bench.queue_entries().await?;
    bench.direct.call("CLIENT KILL TYPE normal SKIPME yes").await?.ok()?;
    bench.direct.call("CLIENT KILL TYPE pubsub").await?.ok()?;
    first.call("UNLOCK a").await?.ok()?;
    assert_eq!(holder(&one.reply().await?)?, queue_entries[0]);
    one.call("UNLOCK a").await?.ok()?;
    assert_eq!(holder(&two.reply().await?)?, queue_entries[1]);
    two.call("UNLOCK a").await?.ok()?;
    bench.nothing_is_left().await;
    Ok(())
}

/// Adds `count` waiters of [`OTHER_AGENT`], whose entries are valid for another hour.
async fn dead_agents_waiters(bench: &mut Bench, count: i64) -> Result<()> {
    let time = bench.direct.call("TIME").await?;
    let at = time.items()?[0].text().parse::<i64>()? * 1000 + 3_600_000;
    for number in 0..count {
        let waiter = format!("{OTHER_AGENT}:{}", 1_900_000_000_000_000_000 + number);
        bench.direct.call(&format!("RPUSH {QUEUE} {waiter}")).await?.ok()?;
        bench.direct.call(&format!("ZADD {DEADLINES} {at} {waiter}")).await?.ok()?;
    }
    Ok(())
}

const OTHER_AGENT: &str = "1f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f";

#[tokio::test]
async fn force_frees_a_lock_whose_queue_begins_with_a_vanished_agents_waiters() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "10m", "--lease", "10m"]).await?;
    let mut operator = bench.session().await?;
    dead_agents_waiters(&mut bench, 3).await?;
    bench.foreign_entry(600_000).await?;
    let reply = operator.call("FORCE a REPORT").await?;
    assert_eq!(reply.field("waiters")?.int()?, 0, "an agent that never published may be alive");
    let entry = format!("lockscope:agent:{{{OTHER_AGENT}}}");
    bench.direct.call(&format!("SET {entry}:trace x")).await?.ok()?;
    bench.direct.call(&format!("HSET {entry} host h")).await?.ok()?;
    assert_eq!(operator.call("FORCE a").await?, Reply::Int(0), "it publishes, so it lives");
    assert_eq!(bench.queue_entries().await?.len(), 4);
    bench.direct.call(&format!("DEL {entry}")).await?.ok()?;
    let reply = operator.call("FORCE a REPORT").await?;
    assert_eq!((reply.field("holders")?.int()?, reply.field("waiters")?.int()?), (0, 3));
    assert_eq!(
        bench.queue_entries().await?,
        [FOREIGN],
        "a Redisson client's waiter keeps its entry"
    );
    let log = bench.agent.process().log();
    assert!(log.contains("dead_waiters=3") || log.contains("\"lock.dead_waiters\":3"), "{log}");
    // The lock is held; the living waiter behind the dead ones is granted it.
    bench.direct.call(&format!("DEL {QUEUE} {DEADLINES}")).await?.ok()?;
    let mut holder = bench.session().await?;
    lock(&mut holder, "LOCK a KIND fair").await?;
    dead_agents_waiters(&mut bench, 2).await?;
    let mut waiter = bench.fair_waiter_of_session(3).await?;
    let reply = operator.call("FORCE a REPORT").await?;
    assert_eq!((reply.field("holders")?.int()?, reply.field("waiters")?.int()?), (1, 2));
    waiter.reply().await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_waiter_removes_the_waiters_of_a_vanished_agent_ahead_of_it() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "10m", "--lease", "10m"]).await?;
    let entry = format!("lockscope:agent:{{{OTHER_AGENT}}}");
    bench.direct.call(&format!("SET {entry}:trace x")).await?.ok()?;
    dead_agents_waiters(&mut bench, 50).await?;
    let begun = tokio::time::Instant::now();
    let mut waiter = bench.fair_waiter_of_session(51).await?;
    waiter.reply().await?.ok()?;
    assert!(begun.elapsed() >= Duration::from_secs(30), "its entry may be published again");
    let log = bench.agent.process().log();
    assert!(log.contains("removed the waiters of a vanished agent"), "{log}");
    Ok(())
}
