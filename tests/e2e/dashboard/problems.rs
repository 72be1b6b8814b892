//! `leaked` and `stuck`: raised once certain, with evidence, and withdrawn.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Agent, Dashboard, Foreign, RedisServer, eventually, http};
use serde_json::Value;
use tokio::time::Instant;

use super::{Bench, find, problems};

#[tokio::test]
async fn a_confirmed_lock_without_a_time_to_live_is_leaked() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("a").await?);
    assert!(java.lock("healthy").await?);
    bench.listed("a", |_| true).await;
    bench.direct.call("PERSIST a").await?.ok()?;
    let lock = bench.listed("a", |lock| problems(lock) == ["leaked"]).await;
    let problem = &lock["problems"][0];
    assert_eq!(problem["certainty"], "certain");
    assert_eq!(lock["ttl_ms"], Value::Null);
    assert!(problem["evidence"].as_array().is_some_and(|evidence| !evidence.is_empty()));
    assert!(problem["advice"].as_str().is_some_and(|advice| !advice.is_empty()));
    let first = bench.dashboard.json("/api/v1/locks").await?;
    assert_eq!(first["locks"][0]["name"], "a", "problems come first");
    let metric = "lockscope_dashboard_problems";
    let labels = [("problem", "leaked"), ("certainty", "certain")];
    assert_eq!(bench.dashboard.metrics().await?.sum(metric, &labels), 1.0);
    bench.direct.call("PEXPIRE a 60000").await?.ok()?;
    bench.listed("a", |lock| problems(lock).is_empty()).await;
    assert!(problems(&bench.listed("healthy", |_| true).await).is_empty());
    Ok(())
}

#[tokio::test]
async fn a_lock_that_leaked_before_the_start_is_suspected_then_proved_by_a_listener() -> Result<()>
{
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    let holder = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:53";
    direct.call(&format!("HSET leaked:2 {holder} 1")).await?.ok()?;
    let bench = Bench::on(redis, &["--monitor", "off"]).await?;
    let lock = bench.listed("leaked:2", |lock| problems(lock) == ["leaked"]).await;
    assert_eq!(lock["confirmed"], false);
    assert_eq!(lock["problems"][0]["certainty"], "suspected");
    let page = http::get(bench.dashboard.port(), "/").await?.body;
    assert!(page.contains("leaked:2") && !page.contains("No lock is held"), "{page}");
    let mut listener = bench.redis.client().await?;
    listener.call("SUBSCRIBE redisson_lock__channel:{leaked:2}").await?.ok()?;
    let proved = |lock: &Value| lock["problems"][0]["certainty"] == "certain";
    let lock = bench.listed("leaked:2", proved).await;
    assert_eq!((&lock["confirmed"], &lock["waiting"]), (&Value::Bool(true), &Value::from(1)));
    Ok(())
}

#[tokio::test]
async fn a_problem_survives_a_restart_without_a_setting() -> Result<()> {
    let mut bench = Bench::with(&["--monitor", "off"]).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    java.lock("a").await?;
    bench.listed("a", |_| true).await;
    bench.direct.call("PERSIST a").await?.ok()?;
    let certain = |lock: &Value| lock["problems"][0]["certainty"] == "certain";
    let before = bench.listed("a", certain).await;
    bench.dashboard.process().terminate()?;
    bench.dashboard.process().end().await;
    let folder = bench.dashboard.folder().join("lockscope-dashboard");
    assert_eq!(std::fs::read_dir(&folder)?.count(), 1, "one folder for this Redis");
    bench.dashboard.restart().await?;
    let after = bench.listed("a", certain).await;
    assert_eq!(after["problems"][0]["since"], before["problems"][0]["since"]);
    let log = bench.dashboard.process().log();
    assert!(log.contains("history stored") && log.contains("lockscope-dashboard"), "{log}");
    Ok(())
}

#[tokio::test]
async fn an_expired_hold_of_a_free_lock_survives_a_restart() -> Result<()> {
    let mut bench = Bench::with(&["--monitor", "off"]).await?;
    let mut agent = Agent::with(&bench.redis, &["--lease", "9s"]).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK a").await?.ok()?;
    bench.listed("a", |lock| lock["renewed"] == true).await;
    agent.process().kill()?;
    let expired = |lock: &Value| problems(lock) == ["expired"];
    let before = bench.listed("a", expired).await;
    bench.dashboard.process().terminate()?;
    bench.dashboard.process().end().await;
    bench.dashboard.restart().await?;
    let after = bench.listed("a", expired).await;
    assert_eq!(after["problems"][0]["since"], before["problems"][0]["since"]);
    // The first scan has ended and reports nothing else.
    eventually("a pass over all keys", async || {
        let sources = bench.dashboard.json("/api/v1/sources").await?;
        let mut rows = sources["sources"].as_array().into_iter().flatten();
        let scan = rows.find(|row| row["source"] == "scan").cloned().unwrap_or_default();
        ensure!(scan["detail"].to_string().contains(" keys in "), "{scan}");
        Ok(())
    })
    .await;
    bench.listed("a", expired).await;
    let events = bench.dashboard.json("/api/v1/events?from=-1h&name=a").await?;
    let mut rows = events["events"].as_array().into_iter().flatten();
    let ends = |row: &Value| row["event"] == "cleared" && row.to_string().contains("expired");
    ensure!(!rows.any(ends), "{events}");
    Ok(())
}

#[tokio::test]
async fn a_lock_that_is_renewed_and_held_too_long_is_stuck() -> Result<()> {
    let bench = Bench::with(&["--stuck-after", "2s"]).await?;
    let agent = Agent::with(&bench.redis, &["--lease", "18s"]).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK a").await?.ok()?;
    // Held for as long, but not renewed: this lock will expire.
    worker.call("LOCK fixed LEASE 600000").await?.ok()?;
    // Unlike the list, each request for one lock reads it, so renewals are noticed at once.
    let stuck = |lock: &Value| problems(lock) == ["stuck"];
    let lock = super::lock(&bench.dashboard, "a", stuck).await;
    assert_eq!(lock["problems"][0]["certainty"], "certain");
    bench.listed("a", stuck).await;
    assert_eq!(lock["renewed"], true);
    assert!(problems(&bench.listed("fixed", |_| true).await).is_empty());
    // On a busy machine the list may show another hold only once it is stuck, too.
    eventually("another hold to be listed in time", async || {
        // Its hold may have been lost on the way.
        worker.call("UNLOCK a").await?;
        bench.until_not_listed("a").await;
        let since = Instant::now();
        worker.call("LOCK a").await?.ok()?;
        let again = bench.listed("a", |_| true).await;
        ensure!(since.elapsed() < Duration::from_secs(2), "it is as old as the first one");
        assert!(problems(&again).is_empty(), "another hold has an age of its own: {again}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_deadlock_across_two_agents_is_detected() -> Result<()> {
    let bench = Bench::new().await?;
    let agents = [Agent::start(&bench.redis).await?, Agent::start(&bench.redis).await?];
    // Each agent sees only its own half of the deadlock.
    for (pair, limit, certainty) in
        [("limited", " WAIT 600000", "suspected"), ("endless", "", "certain")]
    {
        let mut workers = [agents[0].client().await?, agents[1].client().await?];
        for (worker, lock) in workers.iter_mut().zip(["1", "2"]) {
            worker.call(&format!("LOCK {pair}:{lock} KIND fair")).await?.ok()?;
        }
        workers[0].send(&format!("LOCK {pair}:2 KIND fair{limit}")).await?;
        workers[1].send(&format!("LOCK {pair}:1 KIND fair")).await?;
        let deadlock = |lock: &Value| {
            let problems = lock["problems"].as_array().into_iter().flatten();
            problems.into_iter().find(|problem| problem["problem"] == "deadlock").cloned()
        };
        for lock in ["1", "2"] {
            let lock =
                bench.listed(&format!("{pair}:{lock}"), |lock| deadlock(lock).is_some()).await;
            let found = deadlock(&lock).unwrap_or_default();
            assert_eq!(found["certainty"], certainty, "{found}");
            assert_eq!(found["cycle"].as_array().map(Vec::len), Some(2), "{found}");
            let process = format!("process {} ", std::process::id());
            assert!(found["evidence"][0]["text"].to_string().contains(&process), "{found}");
        }
    }
    Ok(())
}

/// Returns the last success of each source of a dashboard.
async fn successes(dashboard: &Dashboard) -> Result<Vec<(String, String)>> {
    let sources = dashboard.json("/api/v1/sources").await?;
    let sources = sources["sources"].as_array().cloned().unwrap_or_default();
    let text = |source: &Value, field: &str| source[field].as_str().unwrap_or_default().to_owned();
    Ok(sources.iter().map(|s| (text(s, "source"), text(s, "last_success"))).collect())
}

#[tokio::test]
async fn two_dashboards_ignore_each_other() -> Result<()> {
    let options =
        [("client-output-buffer-limit", "normal 64mb 0 0"), ("notify-keyspace-events", "KA")];
    let redis = RedisServer::with(&options).await?;
    // A late renewal would be a problem.
    let agent = Agent::with(&redis, &["--lease", "10m"]).await?;
    let mut worker = agent.client().await?;
    let names = ["plain", "fair", "read"];
    worker.call("LOCK plain").await?.ok()?;
    worker.call("LOCK fair KIND fair").await?.ok()?;
    worker.call("LOCK read KIND read").await?.ok()?;
    let mut service = Foreign::connect(&redis).await?;
    service.lease_ms = 600_000;
    assert!(service.lock("foreign").await?);
    // Anything that was mistaken for a waiter would soon be reported as starving.
    let flags = ["--monitor", "on", "--starving-after", "1s"];
    let dashboards = [
        Dashboard::start(&redis.url(), &flags).await?,
        Dashboard::start(&redis.url(), &flags).await?,
    ];
    for dashboard in &dashboards {
        let mut seen: Vec<Vec<(String, String)>> = Vec::new();
        eventually("every source to have looked a few times beside the other's", async || {
            let list = dashboard.json("/api/v1/locks?limit=100").await?;
            for name in names.iter().chain(&["foreign"]) {
                let lock = find(&list, name).cloned().unwrap_or_default();
                ensure!(lock["holders"].as_array().map(Vec::len) == Some(1), "{name}: {list}");
                assert!(lock["waiting"] == 0 && problems(&lock).is_empty(), "{lock}");
            }
            assert_eq!(list["locks"].as_array().map(Vec::len), Some(4), "{list}");
            seen.push(successes(dashboard).await?);
            for source in ["poll", "subscribers", "monitor", "identity", "keyspace", "channels"] {
                let times = seen.iter().flatten().filter(|(of, _)| of == source);
                let times: std::collections::BTreeSet<_> = times.map(|(_, at)| at).collect();
                ensure!(times.len() > 3, "{source}: {times:?}");
            }
            Ok(())
        })
        .await;
        let metrics = dashboard.metrics().await?;
        assert_eq!(metrics.sum("lockscope_dashboard_problems_detected_total", &[]), 0.0);
    }
    // Both dashboards count a real waiter on another host.
    let elsewhere = Agent::start(&redis).await?;
    let mut waiter = elsewhere.client().await?;
    waiter.send("LOCK plain").await?;
    for dashboard in &dashboards {
        eventually("the waiter", async || {
            let list = dashboard.json("/api/v1/locks?limit=100").await?;
            let lock = find(&list, "plain").cloned().unwrap_or_default();
            ensure!(lock["waiting"] == 1, "{lock}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test]
async fn a_hold_that_overran_its_own_lease_has_run_out() -> Result<()> {
    let bench = Bench::new().await?;
    let agent = Agent::start(&bench.redis).await?;
    let (mut worker, mut waiter) = (agent.client().await?, agent.client().await?);
    let kinds = ["lock", "fair", "write", "read", "fenced"];
    for kind in kinds {
        // One of several readers is known to have expired only once its marker has been read.
        let ms = if kind == "read" { 18_000 } else { 12_000 };
        worker.call(&format!("LOCK {kind} KIND {kind} LEASE {ms} OWNER 1")).await?.ok()?;
        worker.call(&format!("LOCK next:{kind} KIND {kind} LEASE {ms} OWNER 1")).await?.ok()?;
    }
    for (owner, kind) in kinds.into_iter().enumerate() {
        waiter.send(&format!("LOCK next:{kind} KIND {kind} OWNER {owner}")).await?;
    }
    for name in kinds.into_iter().flat_map(|kind| [kind.to_owned(), format!("next:{kind}")]) {
        let ended = |lock: &Value| lock["past"].as_array().is_some_and(|past| !past.is_empty());
        let seen = super::lock(&bench.dashboard, &name, ended).await;
        assert_eq!(seen["past"][0]["ended"], "ran_out", "{seen}");
    }
    Ok(())
}
