//! The agent on a master that sentinels name: planned and unplanned failovers, the locks that are lost with them, and
//! the messages if the sentinels are of no use.

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, RedisServer, Reply, Sentinels, eventually, http};

use super::{holder, lock};
use crate::secure::{certificate, documented_users, refused, sentinel_user};

/// A lease that no test waits for: only another master or a message causes a change.
const ENDLESS: [&str; 4] = ["--lease", "10m", "--poll-max", "10m"];

/// The name of the agent's connection to a sentinel.
const SENTINEL_CONNECTION: &str = "lockscope-agent-sentinel";

/// Starts an agent whose first sentinel address has no server, and waits until it serves.
async fn start(sentinels: &Sentinels, flags: &[&str]) -> Result<Agent> {
    let url = sentinels.url().replace("://", "://127.0.0.1:1,");
    let agent = Agent::at(&url, &[ENDLESS.as_slice(), flags].concat()).await?;
    until_ready(&agent).await;
    Ok(agent)
}

async fn until_ready(agent: &Agent) {
    eventually("the agent to reach the master", async || {
        let ready = http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    })
    .await;
}

/// Returns the holder that a server shows.
async fn shown(direct: &mut Client, name: &str) -> Result<Vec<String>> {
    Ok(direct.call_args(&["HKEYS", name]).await?.ok()?.items()?.iter().map(Reply::text).collect())
}

/// Waits until a server has a subscriber to a lock's releases.
async fn until_subscribed_to(direct: &mut Client, name: &str) {
    let question = format!("PUBSUB NUMSUB redisson_lock__channel:{{{name}}}");
    eventually("the waiter's subscription", async || {
        let found = direct.call(&question).await?.ok()?;
        ensure!(found.items()?[1].int()? == 1, "{found}");
        Ok(())
    })
    .await;
}

/// Waits until the agent has noticed that many changes of the master.
async fn until_changed(agent: &Agent, times: f64) {
    eventually("the agent to follow", async || {
        let metrics = agent.metrics().await?;
        let changes = metrics.sum("lockscope_agent_master_changes_total", &[]);
        ensure!(changes == times, "{changes}");
        let up = metrics.sum("lockscope_agent_redis_up", &[]);
        ensure!(up == 1.0, "redis_up is {up}");
        Ok(())
    })
    .await;
}

/// Waits until no agent is connected to a server.
async fn until_left(direct: &mut Client) {
    eventually("the agent to leave the old master", async || {
        let list = direct.call("CLIENT LIST").await?.text();
        ensure!(!list.contains("name=lockscope-agent"), "{list}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_failover_is_followed_although_the_old_master_continues() -> Result<()> {
    let sentinels = Sentinels::start(3).await?;
    let agent = start(&sentinels, &[]).await?;
    let mut worker = agent.client_with_pushes().await?;
    let held = holder(&lock(&mut worker, "LOCK kept").await?)?;
    let mut waiter = agent.client().await?;
    let mut old = sentinels.client(0).await?;
    let java = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    old.call(&format!("HSET theirs {java} 1")).await?.ok()?;
    waiter.send("LOCK theirs").await?;
    until_subscribed_to(&mut old, "theirs").await;
    sentinels.until_replicated("theirs").await?;
    sentinels.cut_off("kept").await?;
    lock(&mut worker, "LOCK lost").await?;
    sentinels.keep_as_master().await?;

    sentinels.fail_over().await?;
    until_changed(&agent, 1.0).await;
    assert_eq!(worker.push().await?, ["lock-lost", "lost", "lock", "missing"]);
    until_left(&mut old).await;
    let mut new = sentinels.client(1).await?;
    // The new master serves everything: existing holds, new locks, and waiters that a release wakes.
    assert_eq!(shown(&mut new, "kept").await?, [held.as_str()]);
    let taken = holder(&lock(&mut worker, "LOCK taken").await?)?;
    assert_eq!(shown(&mut new, "taken").await?, [taken]);
    assert_eq!(shown(&mut old, "taken").await?, [""; 0]);
    assert_eq!(worker.call("UNLOCK kept").await?, Reply::Int(0));
    assert_eq!(shown(&mut new, "kept").await?, [""; 0]);
    assert_eq!(shown(&mut old, "kept").await?, [held.as_str()], "the old master was not asked");
    until_subscribed_to(&mut new, "theirs").await;
    new.call("DEL theirs").await?.ok()?;
    new.call("PUBLISH redisson_lock__channel:{theirs} 0").await?.ok()?;
    let next = holder(&waiter.reply().await?.ok()?)?;
    assert_eq!(shown(&mut new, "theirs").await?, [next]);
    assert_eq!(worker.pushes(), 0, "nothing else was lost");
    let role = old.call("ROLE").await?.ok()?;
    assert_eq!(role.items()?[0].text(), "master", "the old master has remained a master");
    Ok(())
}

#[tokio::test]
async fn the_replica_of_a_killed_master_is_used_after_the_failover() -> Result<()> {
    let mut sentinels = Sentinels::start(1).await?;
    let agent = start(&sentinels, &[]).await?;
    let mut worker = agent.client_with_pushes().await?;
    let held = holder(&lock(&mut worker, "LOCK kept").await?)?;
    let mut waiter = agent.client().await?;
    waiter.send("LOCK kept").await?;
    sentinels.until_replicated("kept").await?;
    sentinels.node(0).process().kill()?;
    eventually("the agent to report that there is no master", async || {
        let ready = http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 503, "{}", ready.body);
        Ok(())
    })
    .await;
    sentinels.enable_failover().await?;
    sentinels.fail_over().await?;
    until_changed(&agent, 1.0).await;
    until_ready(&agent).await;
    let mut new = sentinels.client(1).await?;
    assert_eq!(shown(&mut new, "kept").await?, [held.as_str()]);
    assert_eq!(worker.call("UNLOCK kept").await?, Reply::Int(0));
    let next = holder(&waiter.reply().await?.ok()?)?;
    assert_eq!(shown(&mut new, "kept").await?, [next]);
    assert_eq!(worker.pushes(), 0, "nothing was lost");

    // The old master returns as a master, before the sentinels make it a replica.
    sentinels.node(0).restart().await?;
    let taken = holder(&lock(&mut worker, "LOCK taken").await?)?;
    assert_eq!(shown(&mut new, "taken").await?, [taken]);
    // The sentinels close its connections when they do so.
    let list = eventually("the old master to answer", async || {
        Ok(sentinels.client(0).await?.call("CLIENT LIST").await?.ok()?.text())
    })
    .await;
    assert!(!list.contains("name=lockscope-agent"), "{list}");
    Ok(())
}

#[tokio::test]
async fn missing_sentinels_are_harmless_while_others_answer() -> Result<()> {
    let mut sentinels = Sentinels::start(3).await?;
    let agent = start(&sentinels, &[]).await?;
    let mut worker = agent.client().await?;
    lock(&mut worker, "LOCK kept").await?;
    sentinels.until_replicated("kept").await?;
    // The agent may or may not be subscribed to one of these two.
    sentinels.sentinel_process(1).kill()?;
    sentinels.sentinel_process(2).kill()?;
    let mut left = sentinels.sentinel(0).await?;
    eventually("a subscription to the remaining sentinel", async || {
        let list = left.call("CLIENT LIST").await?.text();
        let subscribed = list.lines().any(|row| {
            row.contains(&format!("name={SENTINEL_CONNECTION}")) && row.contains(" sub=1 ")
        });
        ensure!(subscribed, "{list}");
        Ok(())
    })
    .await;
    sentinels.fail_over().await?;
    until_changed(&agent, 1.0).await;
    sentinels.sentinel_process(0).kill()?;
    lock(&mut worker, "LOCK taken").await?;
    let mut new = sentinels.client(1).await?;
    // A broken connection is opened again to the latest known master.
    new.call("CLIENT KILL TYPE normal SKIPME yes").await?.ok()?;
    until_ready(&agent).await;
    lock(&mut worker, "LOCK again").await?;
    assert_eq!(worker.call("UNLOCK kept").await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn sentinels_that_refuse_the_subscription_are_not_logged_at_each_attempt() -> Result<()> {
    let sentinels = Sentinels::start(3).await?;
    for place in 0..3 {
        let mut sentinel = sentinels.sentinel(place).await?;
        sentinel.call("ACL SETUSER default -subscribe").await?.ok()?;
    }
    let mut agent = Agent::at(&sentinels.url(), &ENDLESS).await?;
    until_ready(&agent).await;
    for place in 0..3 {
        let mut sentinel = sentinels.sentinel(place).await?;
        eventually("three attempts to subscribe", async || {
            let log = sentinel.call("ACL LOG").await?.ok()?;
            let refused = log.items()?.first().context("nothing was refused")?;
            ensure!(refused.items()?[1].int()? >= 3, "{refused}");
            Ok(())
        })
        .await;
    }
    let log = agent.process().log();
    let logged = log.matches("lost the subscription to a sentinel").count();
    // One line for each, and a few more if an answer was late on a busy machine.
    ensure!(logged < 9, "{log}");
    Ok(())
}

#[tokio::test]
async fn a_wrong_url_is_explained() -> Result<()> {
    let sentinels = Sentinels::start(1).await?;
    let plain = RedisServer::start().await?;
    sentinels.mistake("stale").await?;
    let hosts = sentinels.hosts();
    for (url, said) in [
        (
            format!("redis+sentinel://{hosts}/nonsense"),
            format!("sentinel {hosts}: unknown master `nonsense`"),
        ),
        (
            format!("redis+sentinel://{hosts}/stale"),
            format!("{} is a replica", sentinels.address(1)),
        ),
        (plain.url().replace("://", "+sentinel://") + "/mymaster", "not a sentinel".to_owned()),
        ("redis+sentinel://127.0.0.1:1/mymaster".to_owned(), "cannot reach 127.0.0.1:1".to_owned()),
        (
            format!(
                "redis+sentinel://{hosts}/mymaster?sentinel_username=u&sentinel_password=hunter2"
            ),
            "WRONGPASS".to_owned(),
        ),
    ] {
        let mut agent = Agent::at(&url, &[]).await?;
        eventually("the agent to report why it is not ready", async || {
            let ready = http::get(agent.http(), "/readyz").await?;
            ensure!(ready.status == 503 && ready.body.contains(&said), "{}", ready.body);
            Ok(())
        })
        .await;
        let refused = agent.client().await?.call("LOCK a NOWAIT").await?;
        assert!(refused.is_error("UNAVAILABLE"), "{refused}");
        let log = agent.process().log();
        assert!(!log.contains("hunter2"), "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn the_documented_users_suffice() -> Result<()> {
    let sentinels = Sentinels::start(1).await?;
    for node in 0..2 {
        documented_users(&mut sentinels.client(node).await?, false).await?;
    }
    let mut sentinel = sentinels.sentinel(0).await?;
    sentinel_user(&mut sentinel).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("sentinel-password");
    std::fs::write(&file, "sentinel-password\n")?;
    let url = sentinels.url().replace("://", "://lockscope-agent:agent-password@");
    let url = format!("{url}?sentinel_username=lockscope-sentinel");
    let file = file.display().to_string();
    let agent =
        Agent::at(&url, &[ENDLESS.as_slice(), &["--sentinel-password-file", &file]].concat())
            .await?;
    until_ready(&agent).await;
    let mut worker = agent.client().await?;
    lock(&mut worker, "LOCK kept").await?;
    sentinels.until_replicated("kept").await?;
    eventually("a subscription to the sentinel", async || {
        let list = sentinel.call("CLIENT LIST").await?.text();
        let connection = list.lines().find(|row| {
            row.contains(&format!("name={SENTINEL_CONNECTION}")) && row.contains(" sub=1 ")
        });
        ensure!(connection.is_some_and(|row| row.contains("user=lockscope-sentinel")), "{list}");
        Ok(())
    })
    .await;
    sentinels.fail_over().await?;
    until_changed(&agent, 1.0).await;
    assert_eq!(worker.call("UNLOCK kept").await?, Reply::Int(0));
    assert_eq!(refused(&mut sentinel).await?, Vec::<String>::new());
    assert_eq!(refused(&mut sentinels.client(1).await?).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn sentinels_and_master_are_reached_by_tls() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (cert, key) = certificate(folder.path())?;
    let sentinels = Sentinels::with_tls(&cert, &key).await?;
    let agent = start(&sentinels, &["--redis-ca-file", &cert]).await?;
    let mut worker = agent.client().await?;
    let held = holder(&lock(&mut worker, "LOCK a").await?)?;
    assert_eq!(shown(&mut sentinels.client(0).await?, "a").await?, [held]);
    // An agent that does not know the authority does not trust the sentinels.
    let stranger = Agent::at(&sentinels.url(), &[]).await?;
    let reply = stranger.client().await?.call("LOCK b NOWAIT").await?;
    assert!(reply.is_error("UNAVAILABLE"), "{reply}");
    Ok(())
}
