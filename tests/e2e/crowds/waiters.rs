//! A hundred thousand waiters for one name, and ten thousand names with a waiter each.

use anyhow::{Result, ensure};
use harness::{Client, Reply, eventually};

use super::{Crowd, PIPELINE, all, send_all};

const SESSIONS: usize = 100;

/// Returns the number of scripts that Redis has run.
async fn scripts(direct: &mut Client) -> Result<i64> {
    let told = direct.call("INFO commandstats").await?.text();
    let calls = told.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = calls.and_then(|rest| rest.split(',').next()).unwrap_or("0");
    Ok(calls.parse()?)
}

#[tokio::test]
async fn a_hundred_thousand_wait_for_one_lock() -> Result<()> {
    const WAITERS: usize = SESSIONS * PIPELINE;
    let crowd = Crowd::new(&["--max-waiters", "100000", "--lease", "10m"]).await?;
    let mut holder = crowd.agent.client().await?;
    holder.call("LOCK one").await?.ok()?;
    let mut direct = crowd.redis.client().await?;
    let (idle, asked) = (crowd.memory()?, scripts(&mut direct).await?);
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let mut client = crowd.agent.client().await?;
        let locks: Vec<String> = (0..PIPELINE).map(|i| format!("LOCK one OWNER {i}")).collect();
        send_all(&mut client, &locks).await?;
        sessions.push(client);
        // Commands that several clients send at once are served in turn, but those of the first client must be served first.
        if sessions.len() == 1 {
            crowd.until_figure("lockscope_agent_waiters", PIPELINE as f64).await;
        }
    }
    crowd.until_figure("lockscope_agent_waiters", WAITERS as f64).await;
    let each = (crowd.memory()? - idle) / WAITERS as u64;
    ensure!(each < 1 << 10, "{each} bytes a waiter");
    let one_more = holder.call("LOCK two").await?;
    ensure!(one_more.is_error("LIMIT"), "{one_more}");
    // No waiter has queried Redis: the agent knows that the lock is held.
    let asked = scripts(&mut direct).await? - asked;
    ensure!(asked == 0, "{asked} scripts for those who wait");
    // The first hundred are granted the lock, in order of arrival.
    let mut first = sessions.remove(0);
    holder.call("UNLOCK one").await?.ok()?;
    for owner in 0..100 {
        let held = first.reply().await?.ok()?;
        ensure!(held.field("holds")?.int()? == 1, "{held}");
        first.send(&format!("UNLOCK one OWNER {owner}")).await?;
    }
    // Half of the sessions end, from the middle of the queue; then all others.
    let rest = sessions.split_off(SESSIONS / 2);
    drop(sessions);
    // A waiter of the first session holds the lock now.
    let left = rest.len() * PIPELINE + PIPELINE - 101;
    crowd.until_figure("lockscope_agent_waiters", left as f64).await;
    crowd.nothing_is_lost().await?;
    drop((first, rest));
    crowd.until_figure("lockscope_agent_waiters", 0.0).await;
    crowd.until_keys(0).await?;
    Ok(())
}

#[tokio::test]
async fn ten_thousand_names_are_waited_for() -> Result<()> {
    const NAMES: usize = 10_000;
    let crowd = Crowd::new(&[]).await?;
    // No agent knows this holder, so each name needs a subscription.
    let mut direct = crowd.redis.client().await?;
    let foreign = "285475da-9152-4c83-822a-67ee2f116a79:1";
    let mut takes = Vec::new();
    for i in 0..NAMES {
        takes.push(format!("HSET name:{i} {foreign} 1"));
        takes.push(format!("PEXPIRE name:{i} 600000"));
    }
    all(&mut direct, &takes).await?;
    let locks: Vec<String> = (0..NAMES).map(|i| format!("LOCK name:{i} OWNER {i}")).collect();
    let mut waiting: Vec<Client> = Vec::new();
    for some in locks.chunks(PIPELINE) {
        let mut client = crowd.agent.client().await?;
        send_all(&mut client, some).await?;
        waiting.push(client);
    }
    crowd.until_figure("lockscope_agent_waiters", NAMES as f64).await;
    eventually("each name to be listened to", async || {
        let channels = direct.call("PUBSUB CHANNELS redisson_lock__channel:*").await?;
        let channels = channels.items()?.len();
        ensure!(channels == NAMES, "{channels} channels");
        Ok(())
    })
    .await;
    // The locks are released as Redisson does it, one after the other; each is granted to its waiter.
    let mut releases = Vec::new();
    for i in 0..NAMES {
        releases.push(format!("DEL name:{i}"));
        releases.push(format!("PUBLISH redisson_lock__channel:{{name:{i}}} 0"));
    }
    all(&mut direct, &releases).await?;
    for client in &mut waiting {
        for _ in 0..PIPELINE {
            let held = client.reply().await?.ok()?;
            ensure!(held != Reply::Null && held.field("holds")?.int()? == 1, "{held}");
        }
    }
    crowd.until_figure("lockscope_agent_subscriptions", 0.0).await;
    crowd.nothing_is_lost().await?;
    drop(waiting);
    crowd.until_keys(0).await?;
    Ok(())
}
