//! MLOCK and MUNLOCK: several locks at once, all or none.

use anyhow::{Result, ensure};
use harness::{Agent, Client, Reply, Worker, eventually};
use tokio::task::JoinSet;

use super::{Bench, answered, assert_error, credentials, lock};

/// Returns this field of each map in the reply to MLOCK, as text.
fn fields(reply: &Reply, key: &str) -> Result<Vec<String>> {
    reply.items()?.iter().map(|map| Ok(map.field(key)?.text())).collect()
}

fn ints(numbers: &[i64]) -> Reply {
    Reply::Array(numbers.iter().map(|n| Reply::Int(*n)).collect())
}

#[tokio::test]
async fn mlock_acquires_all_locks_or_none() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.agent.client3().await?);
    let reply = lock(&mut one, "MLOCK 3 c a b").await?;
    assert_eq!(fields(&reply, "lock")?, ["c", "a", "b"], "in the order of the names");
    for (name, holder) in ["c", "a", "b"].iter().zip(fields(&reply, "holder")?) {
        assert_eq!(bench.holders(name).await?, [(holder, "1".to_owned())]);
    }
    assert_eq!(two.call("MLOCK 2 0 b NOWAIT").await?, Reply::Null);
    assert!(bench.is_free("0").await?, "null is sent after the release");
    assert_eq!(answered(&mut two, "MLOCK 2 0 b WAIT 50").await, Reply::Null);
    assert!(bench.is_free("0").await?);
    two.send("MLOCK 2 0 b").await?;
    bench.until_waiting("b", 1).await?;
    assert_eq!(one.call("MUNLOCK 3 a b c").await?, ints(&[0, 0, 0]));
    assert_eq!(fields(&two.reply().await?, "holds")?, ["1", "1"]);
    assert_eq!(two.call("MUNLOCK 2 b 0").await?, ints(&[0, 0]));
    for name in ["0", "a", "b", "c"] {
        assert!(bench.is_free(name).await?, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn mistakes_are_reported_and_nothing_is_acquired() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.session().await?);
    lock(&mut one, "LOCK z KIND fair").await?;
    assert_error(&two.call("MLOCK 2 a z").await?, "WRONGKIND", "`z`");
    bench.direct.call("SET text x").await?.ok()?;
    assert_error(&two.call("MLOCK 2 a text").await?, "WRONGTYPE", "`text`");
    assert_error(&two.call("MLOCK 2 a a").await?, "SYNTAX", "`a` appears twice");
    assert_error(&two.call("MLOCK 65 a").await?, "LIMIT", "from 1 to 64");
    assert_error(&two.call("MUNLOCK 2 a b").await?, "NOTHELD", "`a`");
    assert_error(&two.call("MLOCK 2 a b IN other").await?, "SESSION", "`a`");
    assert!(bench.is_free("a").await?);
    // A lock that is not held does not prevent the release of the others.
    lock(&mut two, "MLOCK 2 a b").await?;
    assert_error(&two.call("MUNLOCK 3 a c b").await?, "NOTHELD", "`c`");
    assert!(bench.is_free("a").await? && bench.is_free("b").await?);
    // A command that leaves open which hold it is about releases nothing.
    for command in ["LOCK both KIND write", "LOCK both KIND read", "LOCK a"] {
        lock(&mut two, command).await?;
    }
    assert_error(&two.call("MUNLOCK 2 a both").await?, "SYNTAX", "`both` is held twice");
    assert!(!bench.is_free("a").await?);
    assert_error(&two.call("MUNLOCK 2 a both KIND read").await?, "NOTHELD", "`a`");
    assert_eq!(two.call("UNLOCK both").await?, Reply::Int(0), "the read side is released");
    Ok(())
}

#[tokio::test]
async fn a_waiting_mlock_can_be_cancelled() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.session().await?);
    lock(&mut one, "LOCK b").await?;
    let ticket = credentials(&mut two).await?;
    two.send("MLOCK 2 a b OWNER 5").await?;
    bench.until_waiting("b", 1).await?;
    assert_eq!(one.call(&format!("CANCEL {ticket} OWNER 5")).await?, Reply::Int(1));
    assert_eq!(two.reply().await?, Reply::Null);
    assert!(bench.is_free("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_worker_that_dies_during_or_after_an_mlock_leaves_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut one = bench.session().await?;
    lock(&mut one, "LOCK b").await?;
    let folder = bench.agent.folder().to_owned();
    let mut waits = Worker::start(&bench.agent.socket(), &folder, &["MLOCK 3 a b c"])?;
    bench.until_waiting("b", 1).await?;
    let mut next = bench.session().await?;
    next.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    waits.process().kill()?;
    next.reply().await?.ok()?;
    bench.until_waiting("b", 0).await?;
    one.call("UNLOCK b").await?.ok()?;
    assert!(bench.is_free("b").await? && bench.is_free("c").await?);
    let mut holds = Worker::start(&bench.agent.socket(), &folder, &["MLOCK 2 b c"])?;
    holds.line().await?;
    holds.process().kill()?;
    bench.until_free("b").await;
    bench.until_free("c").await;
    Ok(())
}

#[tokio::test]
async fn a_foreign_holder_with_the_opposite_order_does_not_deadlock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let other = Agent::start(&bench.redis).await?;
    let (mut one, mut two) = (bench.session().await?, other.client().await?);
    lock(&mut two, "LOCK b").await?;
    one.send("MLOCK 2 a b").await?;
    eventually("the first lock to be acquired", async || {
        ensure!(!bench.is_free("a").await?);
        Ok(())
    })
    .await;
    // With two agents, neither sees the cycle.
    lock(&mut two, "LOCK a").await?;
    two.call("UNLOCK a").await?.ok()?;
    two.call("UNLOCK b").await?.ok()?;
    assert_eq!(fields(&one.reply().await?, "holds")?, ["1", "1"]);
    Ok(())
}

/// Acquires both locks many times, and counts under them by a read and then a write.
async fn count(mut worker: Client, mut redis: Client, names: &'static str) -> Result<()> {
    for _ in 0..15 {
        lock(&mut worker, &format!("MLOCK 2 {names}")).await?;
        let seen = redis.call("GET counter").await?;
        let seen = if seen == Reply::Null { 0 } else { seen.text().parse::<u64>()? };
        redis.call(&format!("SET counter {}", seen + 1)).await?.ok()?;
        worker.call(&format!("MUNLOCK 2 {names}")).await?.ok()?;
    }
    Ok(())
}

#[tokio::test]
async fn opposite_orders_on_two_agents_never_deadlock() -> Result<()> {
    let mut bench = Bench::new().await?;
    let other = Agent::start(&bench.redis).await?;
    let mut workers = JoinSet::new();
    for names in ["a b", "b a", "b c", "c a"] {
        for agent in [&bench.agent, &other] {
            workers.spawn(count(agent.client().await?, bench.redis.client().await?, names));
        }
    }
    // Any two of the four lists share a lock, so each section excludes all others.
    let all = tokio::time::timeout(harness::PATIENCE, async {
        while let Some(done) = workers.join_next().await {
            done??;
        }
        anyhow::Ok(())
    });
    all.await??;
    assert_eq!(bench.direct.call("GET counter").await?.text(), "120");
    for name in ["a", "b", "c"] {
        assert!(bench.is_free(name).await?, "{name}");
    }
    Ok(())
}
