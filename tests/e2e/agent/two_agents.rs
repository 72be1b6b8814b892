//! Two agents on one Redis, as on two hosts.

use anyhow::Result;
use harness::{Agent, Client, Reply};

use super::{Bench, ensure_released, holder, lock};

#[tokio::test]
async fn two_agents_exclude_and_wake_waiters_of_each_other() -> Result<()> {
    let mut bench = Bench::with(&["--poll-max", "10m", "--lease", "10m"]).await?;
    let there = Agent::with(&bench.redis, &["--poll-max", "10m", "--lease", "10m"]).await?;
    let mut here = bench.session().await?;
    let mut worker = there.client().await?;
    let first = holder(&lock(&mut here, "LOCK a").await?)?;
    assert_eq!(worker.call("LOCK a NOWAIT").await?, Reply::Null);
    worker.send("LOCK a").await?;
    harness::eventually("the other agent's subscription", async || {
        let numsub = bench.direct.call("PUBSUB NUMSUB redisson_lock__channel:{a}").await?;
        anyhow::ensure!(numsub.items()?[1].int()? == 1, "{numsub}");
        Ok(())
    })
    .await;
    here.call("UNLOCK a").await?.ok()?;
    let second = holder(&worker.reply().await?.ok()?)?;
    assert_ne!(first.split(':').next(), second.split(':').next(), "two agents, two uuids");
    assert_eq!(bench.holders("a").await?, [(second, "1".to_owned())]);
    Ok(())
}

/// Acquires and releases the lock until the rounds are over, and counts its turns in Redis, where an overlap would show.
async fn turns(mut client: Client, mut direct: Client, rounds: i64) -> Result<u32> {
    let mut mine = 0;
    loop {
        lock(&mut client, "LOCK hot").await?;
        let inside = direct.call("INCR inside").await?.int()?;
        assert_eq!(inside, 1, "two workers hold the lock at once");
        let round = direct.call("INCR round").await?.int()?;
        direct.call("DECR inside").await?.ok()?;
        ensure_released(&client.call("UNLOCK hot").await?)?;
        if round >= rounds {
            return Ok(mine);
        }
        mine += 1;
    }
}

#[tokio::test]
async fn two_agents_share_a_lock_fairly_and_exclusively() -> Result<()> {
    let bench = Bench::new().await?;
    let there = Agent::start(&bench.redis).await?;
    let mut tasks = Vec::new();
    for agent in [&bench.agent, &there] {
        for _ in 0..3 {
            let (client, direct) = (agent.client().await?, bench.redis.client().await?);
            tasks.push(tokio::spawn(turns(client, direct, 4_000)));
        }
    }
    let mut counts = Vec::new();
    for task in tasks {
        counts.push(task.await??);
    }
    let (here, other) = (counts[..3].iter().sum::<u32>(), counts[3..].iter().sum::<u32>());
    let all = here + other;
    for side in [here, other] {
        assert!(side * 100 / all >= 20, "one side has {side} of {all} turns: {counts:?}");
    }
    let yields = bench.agent.metrics().await?.sum("lockscope_agent_yields_total", &[]);
    assert!(yields > 0.0, "the agent yields the lock to other clients");
    Ok(())
}
