//! KIND red: a majority of three or five independent servers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::proxy::{Flow, Place, Proxy, Way};
use harness::redis::locks;
use harness::{Agent, RedisServer, Reply, eventually};
use redisson::{HolderId, keys};

use super::{answered, assert_error, credentials, holder, lock, until_lost};

/// Gives each server of a busy machine the time to answer.
const PATIENT: [&str; 2] = ["--node-timeout", "2s"];

/// An agent with its own Redis, and the servers of its red locks.
pub(crate) struct Red {
    pub(crate) agent: Agent,
    pub(crate) servers: Vec<RedisServer>,
    main: RedisServer,
}

impl Red {
    pub(crate) async fn with(servers: usize, flags: &[&str]) -> Result<Self> {
        let main = RedisServer::start().await?;
        let mut started = Vec::new();
        for _ in 0..servers {
            started.push(RedisServer::start().await?);
        }
        let urls: Vec<_> = started.iter().map(RedisServer::url).collect();
        let agent = agent(&main, &urls, flags).await?;
        Ok(Self { agent, servers: started, main })
    }

    /// Returns the number of servers on which the name is held, without those that do not answer.
    pub(crate) async fn standing(&self, name: &str) -> Result<usize> {
        let mut standing = 0;
        for server in &self.servers {
            if let Ok(mut client) = server.client().await {
                let exists = client.call(&format!("EXISTS {name}")).await;
                standing += usize::from(exists.is_ok_and(|exists| exists == Reply::Int(1)));
            }
        }
        Ok(standing)
    }

    pub(crate) async fn until_standing(&self, name: &str, servers: usize) {
        eventually(&format!("the lock to be held on {servers} servers"), async || {
            let standing = self.standing(name).await?;
            ensure!(standing == servers, "{standing} of {servers}");
            Ok(())
        })
        .await;
    }
}

/// Starts an agent with these servers for its red locks; it has reached all of them.
pub(crate) async fn agent(main: &RedisServer, urls: &[String], flags: &[&str]) -> Result<Agent> {
    let mut all = flags.to_vec();
    for url in urls {
        all.extend(["--redlock-url", url]);
    }
    let agent = Agent::with(main, &all).await?;
    let nodes = urls.len() as f64 + 1.0;
    eventually("the agent to reach all servers", async || {
        let up = agent.metrics().await?.sum("lockscope_agent_redis_up", &[]);
        ensure!(up == nodes, "{up} of {nodes}");
        Ok(())
    })
    .await;
    Ok(agent)
}

#[tokio::test]
async fn a_red_lock_is_a_plain_lock_on_each_of_its_servers() -> Result<()> {
    let red = Red::with(3, &PATIENT).await?;
    let mut worker = red.agent.client().await?;
    let mut other = red.agent.client().await?;
    let held = lock(&mut worker, "LOCK a KIND red").await?;
    assert_eq!((held.field("kind")?.text().as_str(), held.field("token")?), ("red", &Reply::Null));
    red.until_standing("a", 3).await;
    for server in &red.servers {
        let fields = server.client().await?.call("HGETALL a").await?.text();
        assert_eq!(fields, format!("[{}, 1]", holder(&held)?));
    }
    assert_eq!(
        locks(&mut red.main.client().await?).await?,
        0,
        "the Redis of the other kinds does not have the lock"
    );
    assert_eq!(other.call("LOCK a KIND red NOWAIT").await?, Reply::Null);
    assert_error(&other.call("LOCK a NOWAIT").await?, "WRONGKIND", "red");
    assert_eq!(lock(&mut worker, "LOCK a KIND red").await?.field("holds")?, &Reply::Int(2));
    assert_eq!(worker.call("HOLDS").await?.items()?[0].field("kind")?.text(), "red");
    assert!(worker.call("EXTEND a 60000").await?.int()? > 50_000);
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(1));
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    red.until_standing("a", 0).await;
    lock(&mut other, "LOCK a").await?;
    Ok(())
}

#[tokio::test]
async fn show_and_the_registry_use_the_red_servers() -> Result<()> {
    let red = Red::with(3, &[]).await?;
    let (mut worker, mut other) = (red.agent.client().await?, red.agent.client().await?);
    assert_eq!(worker.call("SHOW a").await?, Reply::Null);
    lock(&mut worker, "LOCK plain").await?;
    let held = lock(&mut worker, "LOCK a KIND red LEASE 60000").await?;
    red.until_standing("a", 3).await;
    let shown = other.call("SHOW a").await?.ok()?;
    assert_eq!(shown.field("kind")?.text(), "red");
    let holders = shown.field("holders")?.items()?;
    assert_eq!(holders.len(), 1, "{shown}");
    assert_eq!(holders[0].field("holder")?, held.field("holder")?);
    assert_eq!(holders[0].field("pid")?.int()?, i64::from(std::process::id()));
    assert!((30_000..=60_000).contains(&shown.field("pttl_ms")?.int()?), "{shown}");
    assert_eq!(shown.field("warnings")?.items()?, []);
    for (server, started) in shown.field("servers")?.items()?.iter().zip(&red.servers) {
        assert!(server.field("server")?.text().starts_with(&started.url()), "{server}");
        assert_eq!(server.field("holders")?.items()?, [held.field("holder")?.clone()]);
        assert_eq!(server.field("trouble")?, &Reply::Null);
    }
    // A holder on a single server has no majority.
    red.servers[0].client().await?.call(&format!("HSET b {} 1", holder(&held)?)).await?.ok()?;
    let shown = other.call("SHOW b").await?.ok()?;
    assert_eq!(shown.field("pttl_ms")?, &Reply::Null);
    let warnings = shown.field("warnings")?.text();
    assert!(warnings.contains("1 of 3") && warnings.contains("no TTL"), "{warnings}");

    // A client that finds the holder on a server can look it up there.
    let id = HolderId::parse(holder(&held)?.as_bytes()).context("a holder id")?;
    let notes = String::from_utf8(keys::agent_holders(&id.client))?;
    for server in &red.servers {
        let mut direct = server.client().await?;
        let numbers = eventually("the note", async || {
            let numbers = direct.call(&format!("HKEYS {notes}")).await?.ok()?;
            ensure!(!numbers.items()?.is_empty(), "none");
            Ok(numbers)
        })
        .await;
        assert_eq!(
            numbers.text(),
            format!("[{}]", id.thread),
            "no other kind of lock is published there"
        );
        let agent = String::from_utf8(keys::agent(&id.client))?;
        direct.call(&format!("HGET {agent} pid")).await?.text().parse::<u32>()?;
    }
    worker.call("UNLOCK a").await?.ok()?;
    eventually("the entries to be removed", async || {
        for server in &red.servers {
            let entries = server.client().await?.call(&format!("EXISTS {notes}")).await?.int()?;
            ensure!(entries == 0, "{entries} entries");
        }
        Ok(())
    })
    .await;
    Ok(())
}

/// The validity counts from before the first request, so the reply time of the slowest server of the majority is deducted.
#[tokio::test]
async fn acquisition_time_is_deducted_from_validity() -> Result<()> {
    const SLOW: u64 = 300;
    let main = RedisServer::start().await?;
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(RedisServer::start().await?);
    }
    let mut urls = vec![servers[0].url()];
    let mut proxies = Vec::new();
    for server in &servers[1..] {
        let proxy = Proxy::tcp(Place::Port(server.port())).await?;
        urls.push(proxy.url());
        proxies.push(proxy);
    }
    let agent = agent(&main, &urls, &PATIENT).await?;
    for proxy in &proxies {
        let line = proxy.line("lockscope-agent").await;
        line.set(Way::Down, Flow::Delay(Duration::from_millis(SLOW)));
    }
    let mut worker = agent.client().await?;
    for command in ["LOCK a KIND red LEASE 10000", "LOCK a KIND red LEASE 10000"] {
        let valid = lock(&mut worker, command).await?.field("valid_ms")?.int()?;
        // One per cent and two milliseconds allow for the drift of the servers' clocks.
        let most = 10_000 - i64::try_from(SLOW)? - 102;
        assert!(valid <= most, "{valid} of {most}");
    }
    Ok(())
}

#[tokio::test]
async fn mlock_acquires_red_locks_too() -> Result<()> {
    let red = Red::with(3, &PATIENT).await?;
    let (mut one, mut two) = (red.agent.client().await?, red.agent.client().await?);
    lock(&mut one, "LOCK b KIND red").await?;
    assert_eq!(answered(&mut two, "MLOCK 2 a b KIND red WAIT 50").await, Reply::Null);
    assert_eq!(red.standing("a").await?, 0, "all or none");
    one.call("UNLOCK b").await?.ok()?;
    assert_eq!(two.call("MLOCK 2 a b KIND red").await?.items()?.len(), 2);
    red.until_standing("a", 3).await;
    assert_eq!(two.call("MUNLOCK 2 a b").await?.text(), "[0, 0]");
    red.until_standing("a", 0).await;
    Ok(())
}

#[tokio::test]
async fn a_minority_of_killed_servers_is_harmless() -> Result<()> {
    let mut red = Red::with(5, &["--lease", "9s", "--node-timeout", "2s"]).await?;
    let (mut worker, mut other) = (red.agent.client().await?, red.agent.client().await?);
    lock(&mut worker, "LOCK a KIND red").await?;
    red.until_standing("a", 5).await;
    red.servers[0].process().kill()?;
    red.servers[3].process().kill()?;
    // The lock is renewed and acquired by others as usual.
    let renewed = red.agent.metrics().await?.sum("lockscope_agent_renewals_total", &[]);
    eventually("renewals", async || {
        let now = red.agent.metrics().await?;
        let now = now.sum("lockscope_agent_renewals_total", &[("outcome", "renewed")]);
        ensure!(now >= renewed + 6.0, "{now}");
        Ok(())
    })
    .await;
    other.send("LOCK a KIND red").await?;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    other.reply().await?.ok()?;
    red.until_standing("a", 3).await;
    other.call("UNLOCK a").await?.ok()?;
    red.until_standing("a", 0).await;
    Ok(())
}

#[tokio::test]
async fn a_majority_of_killed_servers_is_reported_and_plain_locks_continue() -> Result<()> {
    let mut red = Red::with(3, &["--lease", "6s", "--node-timeout", "2s"]).await?;
    let (mut worker, mut listener) = (red.agent.client().await?, red.agent.client().await?);
    let ticket = credentials(&mut worker).await?;
    lock(&mut worker, "LOCK a KIND red").await?;
    let down: Vec<_> = [0, 1].map(|node| red.servers[node].url()).into();
    for node in [0, 1] {
        red.servers[node].process().kill()?;
    }
    let lost = until_lost(&mut listener, &ticket).await;
    assert_eq!(lost, "[lost, a, red, unconfirmed]");
    let refused = worker.call("LOCK b KIND red NOWAIT").await?;
    for url in down {
        assert_error(&refused, "UNAVAILABLE", &url);
    }
    assert!(!refused.error().unwrap_or_default().contains(&red.servers[2].url()), "{refused}");
    assert_eq!(red.standing("b").await?, 0);
    lock(&mut worker, "LOCK plain").await?;
    worker.call("UNLOCK plain").await?.ok()?;
    // A waiter is granted the lock once there is a majority again.
    worker.send("LOCK c KIND red").await?;
    red.servers[0].restart().await?;
    worker.reply().await?.ok()?;
    red.until_standing("c", 2).await;
    Ok(())
}

#[tokio::test]
async fn a_frozen_server_delays_nothing() -> Result<()> {
    let mut red = Red::with(3, &PATIENT).await?;
    red.servers[1].process().freeze().await?;
    let mut worker = red.agent.client().await?;
    // If each waited for the response time-out of two seconds, these would take minutes.
    let work = async {
        for _ in 0..50 {
            lock(&mut worker, "LOCK a KIND red NOWAIT").await?;
            worker.call("UNLOCK a").await?.ok()?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(90), work).await??;
    lock(&mut worker, "LOCK a KIND red").await?;
    red.servers[1].process().thaw()?;
    red.until_standing("a", 3).await;
    worker.call("UNLOCK a").await?.ok()?;
    red.until_standing("a", 0).await;
    Ok(())
}

#[tokio::test]
async fn a_server_that_restarts_empty_gets_the_hold_again() -> Result<()> {
    let mut red = Red::with(3, &["--lease", "10s"]).await?;
    let mut worker = red.agent.client().await?;
    lock(&mut worker, "LOCK a KIND red").await?;
    red.until_standing("a", 3).await;
    for node in 0..3 {
        red.servers[node].restart().await?;
        red.until_standing("a", 3).await;
    }
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0), "the lock was held all the time");
    red.until_standing("a", 0).await;
    Ok(())
}

#[tokio::test]
async fn a_majority_that_restarts_empty_is_a_loss() -> Result<()> {
    let mut red = Red::with(3, &["--lease", "10s"]).await?;
    let (mut worker, mut listener) = (red.agent.client().await?, red.agent.client().await?);
    let ticket = credentials(&mut worker).await?;
    lock(&mut worker, "LOCK a KIND red").await?;
    red.until_standing("a", 3).await;
    red.agent.process().freeze().await?;
    red.servers[0].restart().await?;
    red.servers[1].restart().await?;
    red.agent.process().thaw()?;
    assert_eq!(until_lost(&mut listener, &ticket).await, "[lost, a, red, missing]");
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "missing");
    red.until_standing("a", 0).await;
    Ok(())
}

#[tokio::test]
async fn two_agents_exclude_and_wake_each_other() -> Result<()> {
    let red = Red::with(3, &PATIENT).await?;
    let urls: Vec<_> = red.servers.iter().map(RedisServer::url).collect();
    let flags = [PATIENT.as_slice(), &["--poll-max", "1h"]].concat();
    let second = agent(&red.main, &urls, &flags).await?;
    let (mut one, mut two) = (red.agent.client().await?, second.client().await?);
    for _ in 0..5 {
        lock(&mut one, "LOCK a KIND red LEASE 600000").await?;
        assert_eq!(two.call("LOCK a KIND red NOWAIT").await?, Reply::Null);
        two.send("LOCK a KIND red").await?;
        eventually("subscriptions on all servers", async || {
            let mut listening = 0;
            for server in &red.servers {
                let count =
                    server.client().await?.call("PUBSUB NUMSUB redisson_lock__channel:{a}").await?;
                listening += count.items()?[1].int()?;
            }
            ensure!(listening == 3, "{listening} of 3");
            Ok(())
        })
        .await;
        one.call("UNLOCK a").await?.ok()?;
        // Without the messages, the waiter would sleep for most of that lease.
        let woken = two.reply().await?;
        assert_eq!(woken.field("kind")?.text(), "red");
        two.call("UNLOCK a").await?.ok()?;
    }
    drop(one);
    Ok(())
}

#[tokio::test]
async fn a_dead_workers_lock_is_free_on_all_servers() -> Result<()> {
    let red = Red::with(3, &[]).await?;
    let mut worker = red.agent.client().await?;
    lock(&mut worker, "LOCK a KIND red").await?;
    red.until_standing("a", 3).await;
    drop(worker);
    red.until_standing("a", 0).await;
    Ok(())
}

#[tokio::test]
async fn one_server_with_two_names_causes_a_warning() -> Result<()> {
    let main = RedisServer::start().await?;
    let (one, two) = (RedisServer::start().await?, RedisServer::start().await?);
    let again = one.url().replace("127.0.0.1", "localhost");
    ensure!(again != one.url(), "{again}");
    let mut agent = agent(&main, &[one.url(), two.url(), again], &[]).await?;
    eventually("a warning", async || {
        let log = agent.process().log();
        let warnings = log.matches("two red-lock addresses lead to one server").count();
        ensure!(warnings >= 1, "{log}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn an_agent_without_red_servers_names_the_missing_setting() -> Result<()> {
    let redis = RedisServer::start().await?;
    let agent = Agent::start(&redis).await?;
    let refused = agent.client().await?.call("LOCK a KIND red").await?;
    assert_error(&refused, "SYNTAX", "--redlock-url");
    Ok(())
}

#[tokio::test]
async fn a_forced_release_applies_to_all_servers() -> Result<()> {
    let red = Red::with(3, &[]).await?;
    let urls: Vec<_> = red.servers.iter().map(RedisServer::url).collect();
    let elsewhere = agent(&red.main, &urls, &["--poll-max", "1h"]).await?;
    let (mut worker, mut listener) = (red.agent.client().await?, red.agent.client().await?);
    let mut operator = elsewhere.client().await?;
    assert_eq!(operator.call("FORCE a").await?.int()?, 0, "it is free");
    let ticket = credentials(&mut worker).await?;
    let held = holder(&lock(&mut worker, "LOCK a KIND red LEASE 600000").await?)?;
    red.until_standing("a", 3).await;

    // If another holder has the lock, it is not released.
    let denied = operator.call("FORCE a HOLDER 00000000-0000-0000-0000-000000000000:1").await?;
    assert_error(&denied, "NOTHELD", &format!("is held by {held}, not by"));
    assert_eq!(red.standing("a").await?, 3);

    let mut waiter = elsewhere.client().await?;
    waiter.send("LOCK a KIND red").await?;
    eventually("the waiter to be counted", async || {
        let metrics = elsewhere.metrics().await?;
        ensure!(metrics.sum("lockscope_agent_waiters", &[]) == 1.0, "no waiter");
        Ok(())
    })
    .await;
    assert_eq!(operator.call(&format!("FORCE a HOLDER {held}")).await?.int()?, 1);
    assert_eq!(until_lost(&mut listener, &ticket).await, "[lost, a, red, forced]");
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "forced");
    let woken = waiter.reply().await?;
    assert_eq!(woken.field("kind")?.text(), "red");
    red.until_standing("a", 3).await;
    waiter.call("UNLOCK a").await?.ok()?;
    red.until_standing("a", 0).await;
    Ok(())
}

#[tokio::test]
async fn a_forced_release_replies_unavailable_if_too_few_servers_answer() -> Result<()> {
    let mut red = Red::with(3, &[]).await?;
    let (mut worker, mut operator) = (red.agent.client().await?, red.agent.client().await?);
    lock(&mut worker, "LOCK a KIND red").await?;
    red.until_standing("a", 3).await;
    red.servers[0].process().freeze().await?;
    assert_eq!(operator.call("FORCE a").await?.int()?, 1, "a majority is enough");
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "forced");
    red.servers[1].process().freeze().await?;
    assert_error(&operator.call("FORCE a").await?, "UNAVAILABLE", "2 of 3 servers");
    Ok(())
}

#[tokio::test]
async fn a_restarted_agent_reports_that_red_holds_did_not_outlive_it() -> Result<()> {
    let mut red = Red::with(3, &[]).await?;
    let mut worker = red.agent.client().await?;
    let session = worker.call("SESSION GRACE 60000").await?.ok()?;
    let ticket = format!("{} {}", session.field("id")?, session.field("secret")?);
    for name in ["a", "b"] {
        lock(&mut worker, &format!("LOCK {name} KIND red")).await?;
    }
    // The lock of the same name in the Redis of the other kinds is a different lock.
    let other = "HSET b 11111111-2222-3333-4444-555555555555:42 1";
    red.main.client().await?.call(other).await?.ok()?;
    red.agent.restart().await?;
    let mut worker = red.agent.client().await?;
    let resumed = worker.call(&format!("RESUME {ticket}")).await?.ok()?;
    assert_eq!(resumed.field("holds")?.items()?.len(), 0, "{resumed}");
    let ticket = format!("{} {}", resumed.field("id")?, resumed.field("secret")?);
    let events = worker.call(&format!("EVENTS {ticket}")).await?.text();
    assert_eq!(events, "[[lost, a, red, restarted], [lost, b, red, restarted]]");
    assert_error(&worker.call("UNLOCK a").await?, "LOST", "the agent was restarted");
    Ok(())
}

/// A journal with another boot id is what an agent finds after its host has rebooted.
#[tokio::test]
async fn the_red_locks_of_a_host_that_rebooted_are_free_at_once() -> Result<()> {
    // Nothing else would free them within the time of this test.
    let mut red = Red::with(3, &["--lease", "1h"]).await?;
    let mut worker = red.agent.client().await?;
    worker.call("SESSION GRACE 600000").await?.ok()?;
    lock(&mut worker, "LOCK a KIND red").await?;
    lock(&mut worker, "LOCK b KIND red LEASE 3600000").await?;
    for name in ["a", "b"] {
        red.until_standing(name, 3).await;
    }
    // A server that is down then is asked until it answers.
    red.servers[0].process().freeze().await?;
    red.agent.process().kill()?;
    let journal = red.agent.folder().join("state/journal");
    let written = std::fs::read_to_string(&journal)?;
    let (head, records) = written.split_once('\n').context("the journal has no first line")?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    ensure!(head.contains(boot.trim()), "{head}");
    std::fs::write(&journal, format!("{}\n{records}", head.replace(boot.trim(), "earlier")))?;
    red.agent.restart().await?;
    for server in [1, 2, 0] {
        if server == 0 {
            red.servers[0].process().thaw()?;
        }
        eventually("the server to release both locks", async || {
            let exists = red.servers[server].client().await?.call("EXISTS a b").await?;
            ensure!(exists == Reply::Int(0), "{exists}");
            Ok(())
        })
        .await;
    }
    let mut worker = red.agent.client().await?;
    lock(&mut worker, "LOCK a KIND red WAIT 60000").await?;
    Ok(())
}
