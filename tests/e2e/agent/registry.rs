//! The holder registry: entries that the agent publishes in Redis about itself and its holders.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, RedisServer, Worker, eventually, within};
use redisson::{HolderId, keys};
use serde_json::Value;

use super::{Bench, holder, lock};

/// Returns the key of the agent that has this holder, and the holder's number in it.
fn place(holder: &str) -> Result<(String, String)> {
    let id = HolderId::parse(holder.as_bytes()).context("a holder id")?;
    let number = holder.rsplit(':').next().context("it ends with its number")?.to_owned();
    Ok((String::from_utf8(keys::agent_holders(&id.client))?, number))
}

/// Waits until the entry of a holder satisfies a condition.
async fn until_entry(direct: &mut Client, holder: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
    let (key, number) = place(holder)?;
    eventually("the holder's new entry", async || {
        let note = direct.call(&format!("HGET {key} {number}")).await?;
        let note: Value = serde_json::from_slice(note.bytes()?)?;
        ensure!(is(&note), "{note}");
        Ok(())
    })
    .await;
    Ok(())
}

/// Waits for a holder's entry and returns it.
async fn published(direct: &mut Client, holder: &str) -> Result<Value> {
    let (key, number) = place(holder)?;
    let note = eventually("the holder to be published", async || {
        let note = direct.call(&format!("HGET {key} {number}")).await?;
        Ok(note.bytes()?.to_vec())
    })
    .await;
    Ok(serde_json::from_slice(&note)?)
}

#[tokio::test]
async fn a_holder_is_published() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    worker.call("CLIENT SETNAME billing").await?.ok()?;
    let held = holder(&lock(&mut worker, "LOCK a").await?)?;
    let note = published(&mut bench.direct, &held).await?;
    assert_eq!(note["pid"], std::process::id());
    assert_eq!(note["uid"], rustix::process::getuid().as_raw());
    let comm = std::fs::read_to_string("/proc/self/comm")?;
    assert_eq!(note["comm"], comm.trim_end());
    assert_eq!(note["client"], "billing");
    let session = worker.call("SESSION").await?.ok()?.field("id")?.text();
    assert_eq!(note["session"], session);
    assert_eq!(note["owner"], 0);
    for absent in ["cmdline", "until", "several"] {
        assert_eq!(note.get(absent), None, "{note}");
    }
    let since = note["since"].as_i64().context("a time")?;
    let now = bench.direct.call("TIME").await?.items()?[0].text().parse::<i64>()? * 1_000;
    assert!((now - 600_000..=now + 2_000).contains(&since), "{since} at {now}");

    let (key, _) = place(&held)?;
    let ttl = bench.direct.call(&format!("PTTL {key}")).await?.int()?;
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    // Waits are published as well.
    let mut waiter = bench.session().await?;
    waiter.send("LOCK a").await?;
    until_published(&mut bench.direct, &key, 2).await;
    assert_eq!(worker.call("UNLOCK a").await?.int()?, 0);
    let next = holder(&waiter.reply().await?)?;
    assert_ne!(next, held);
    until_published(&mut bench.direct, &key, 1).await;
    published(&mut bench.direct, &next).await?;
    drop(waiter);
    until_published(&mut bench.direct, &key, 0).await;
    Ok(())
}

/// Waits until the key has that many entries.
async fn until_published(direct: &mut Client, key: &str, count: i64) {
    eventually("all holds and waits to be published", async || {
        let published = direct.call(&format!("HLEN {key}")).await?.int()?;
        ensure!(published == count, "{published} of {count} are published");
        Ok(())
    })
    .await;
}

/// Returns the entries of that agent, without the entry of the holder.
async fn others(direct: &mut Client, held: &str, count: i64) -> Result<Vec<Value>> {
    let (key, number) = place(held)?;
    until_published(direct, &key, count + 1).await;
    let all = direct.call(&format!("HGETALL {key}")).await?.ok()?;
    let notes = all.items()?.chunks(2).filter(|note| note[0].text() != number);
    notes.map(|note| Ok(serde_json::from_slice(note[1].bytes()?)?)).collect()
}

#[tokio::test]
async fn the_purpose_of_a_wait_is_published() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut worker, mut waiter) = (bench.session().await?, bench.session().await?);
    let held = holder(&lock(&mut worker, "LOCK a OWNER 5").await?)?;
    assert_eq!(published(&mut bench.direct, &held).await?["owner"], 5);
    waiter.send("LOCK a WAIT 600000 OWNER 7").await?;
    let limited = &others(&mut bench.direct, &held, 1).await?[0];
    assert_eq!(limited["owner"], 7);
    assert_eq!(limited.get("several"), None);
    let whole = limited["until"].as_i64().zip(limited["since"].as_i64()).map(|(u, s)| u - s);
    // Both instants are published to the millisecond.
    assert!(whole.is_some_and(|whole| (599_998..=600_002).contains(&whole)), "{limited}");
    drop(waiter);
    // A worker that acquires several locks releases those that it has, rather than hold them during an endless wait.
    let mut several = bench.session().await?;
    several.send("MLOCK 2 a b").await?;
    eventually("its wait to be published", async || {
        let notes = others(&mut bench.direct, &held, 1).await?;
        // The entry of the wait that has ended may just have been removed.
        let note = notes.first().context("no entry yet")?;
        ensure!(note["several"] == true && note.get("until").is_none(), "{notes:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn the_agent_publishes_itself() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let held = holder(&lock(&mut worker, "LOCK a").await?)?;
    let client = HolderId::parse(held.as_bytes()).context("a holder id")?.client;
    let key = String::from_utf8(keys::agent(&client))?;
    let pid = bench.agent.pid().to_string();
    eventually("the agent to be published", async || {
        let about = bench.direct.call(&format!("HMGET {key} host pid version started")).await?;
        let about: Vec<String> = about.items()?.iter().map(harness::Reply::text).collect();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        ensure!(about[..3] == [host.trim(), &pid, env!("CARGO_PKG_VERSION")], "{about:?}");
        ensure!(about[3].parse::<u64>()? > 1_600_000_000_000, "{about:?}");
        Ok(())
    })
    .await;
    let ttl = bench.direct.call(&format!("PTTL {key}")).await?.int()?;
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    Ok(())
}

#[tokio::test]
async fn deleted_entries_are_published_again() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let held = holder(&lock(&mut worker, "LOCK a").await?)?;
    published(&mut bench.direct, &held).await?;
    let (key, _) = place(&held)?;
    bench.direct.call(&format!("DEL {key}")).await?.ok()?;
    published(&mut bench.direct, &held).await?;
    Ok(())
}

#[tokio::test]
async fn command_lines_are_published_only_if_configured() -> Result<()> {
    let mut bench = Bench::with(&["--publish-cmdline"]).await?;
    let (socket, folder) = (bench.agent.socket(), bench.agent.folder().to_owned());
    let mut worker = Worker::start(&socket, &folder, &["LOCK a", "ECHO token=1234"])?;
    worker.line().await?;
    let held = bench.holders("a").await?.remove(0).0;
    let note = published(&mut bench.direct, &held).await?;
    let cmdline = note["cmdline"].as_str().context("the command line is published")?;
    assert!(cmdline.contains("worker --socket"), "{cmdline}");
    assert!(!cmdline.contains("1234"), "{cmdline}");
    Ok(())
}

/// The registry only helps others, so its absence must not cost a worker its lock.
#[tokio::test]
async fn locks_work_if_redis_refuses_the_registry() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    let user = "ACL SETUSER narrow on >pw ~a ~redisson_* &* +@all";
    direct.call(user).await?.ok()?;
    let url = redis.url().replace("redis://", "redis://narrow:pw@");
    let mut agent = Agent::at(&url, &["--lease", "15s"]).await?;
    let mut worker = agent.client().await?;
    lock(&mut worker, "LOCK a").await?;
    eventually("a line in the agent's log", async || {
        let log = agent.process().log();
        ensure!(log.contains("Redis rejected the holder registry"), "{log}");
        Ok(())
    })
    .await;
    let renewed = [("outcome", "renewed")];
    let renewals =
        async || anyhow::Ok(agent.metrics().await?.sum("lockscope_agent_renewals_total", &renewed));
    let before = renewals().await?;
    eventually("renewals after that", async || {
        let now = renewals().await?;
        ensure!(now >= before + 2.0, "{now} after {before}");
        Ok(())
    })
    .await;
    assert_eq!(worker.call("UNLOCK a").await?.int()?, 0);
    assert_eq!(direct.call("KEYS lockscope:*").await?.items()?, []);
    Ok(())
}

#[tokio::test]
async fn the_waits_of_an_earlier_run_are_removed() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut worker, mut waiter) = (bench.session().await?, bench.session().await?);
    let held = holder(&lock(&mut worker, "LOCK a").await?)?;
    waiter.send("LOCK a").await?;
    let id = HolderId::parse(held.as_bytes()).context("a holder id")?;
    let key = String::from_utf8(keys::agent_waiters(&id.client))?;
    let direct = &mut bench.direct;
    eventually("the wait to be published", async || {
        ensure!(direct.call(&format!("EXISTS {key}")).await?.int()? == 1);
        Ok(())
    })
    .await;
    bench.agent.restart().await?;
    // Much earlier than at the end of its time to live.
    within(Duration::from_secs(40), "the removal of the wait", async || {
        ensure!(direct.call(&format!("EXISTS {key}")).await?.int()? == 0);
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn the_entry_of_a_hold_follows_its_worker() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let held = holder(&lock(&mut worker, "LOCK a").await?)?;
    assert_eq!(published(&mut bench.direct, &held).await?["client"], Value::Null);
    worker.call("CLIENT SETNAME billing").await?.ok()?;
    until_entry(&mut bench.direct, &held, |note| note["client"] == "billing").await
}

#[tokio::test]
async fn entries_that_redis_has_lost_are_written_again_over_a_new_connection() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let held = holder(&lock(&mut worker, "LOCK a").await?)?;
    let before = published(&mut bench.direct, &held).await?;
    // As after a failover to a replica that lacks the latest pass: there are as many entries as before.
    let (key, number) = place(&held)?;
    bench.direct.call(&format!("HDEL {key} {number}")).await?.ok()?;
    bench.direct.call(&format!("HSET {key} 7 {{}}")).await?.ok()?;
    bench.direct.call("CLIENT KILL TYPE normal SKIPME yes").await?.ok()?;
    assert_eq!(published(&mut bench.direct, &held).await?["session"], before["session"]);
    eventually("the other entry to be removed", async || {
        ensure!(bench.direct.call(&format!("HLEN {key}")).await?.int()? == 1);
        Ok(())
    })
    .await;
    Ok(())
}
