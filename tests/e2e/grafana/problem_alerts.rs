//! Alerts on late renewals, on what agents refuse, and on the findings of dashboards.

use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::{Context as _, Result, ensure};
use harness::{Client, Dashboard, Foreign, PATIENCE, Prometheus, RedisServer, eventually, within};
use rustix::process::Signal;

use super::alerts::{LOST, Watched, fired, hurried, lock};
use super::{DASHBOARD_RULES, rules_in};

const DETECTED: &str = "lockscope_dashboard_problems_detected_total";

/// Returns the remaining validity of the session's only hold, in milliseconds.
async fn valid_ms(worker: &mut Client) -> Result<i64> {
    let holds = worker.call("HOLDS").await?.ok()?;
    holds.items()?.first().context("it holds nothing any more")?.field("valid_ms")?.int()
}

/// Returns how often the dashboard has detected this problem of a group.
async fn detected(watched: &Watched, problem: &str, group: &str) -> Result<f64> {
    let metrics = watched.dashboard.metrics().await?;
    Ok(metrics.sum(DETECTED, &[("problem", problem), ("lock_group", group)]))
}

#[tokio::test]
async fn late_renewals_alert() -> Result<()> {
    let mut watched = Watched::with_lease("20s").await?;
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "report:1").await?;
    watched.until_scraped(DETECTED, "report:*").await;
    eventually("a renewal, by which the dashboard knows the lease", async || {
        let seen = watched.dashboard.json("/api/v1/lock?name=report:1").await?;
        ensure!(seen["renewed"] == true, "{seen}");
        Ok(())
    })
    .await;
    // The renewal is due at 13.3 s, and overdue below 9 s: the dashboard and then the agent have this time.
    watched.agent.process().freeze().await?;
    eventually("the dashboard to find the renewal overdue", async || {
        let found = detected(&watched, "renewal_overdue", "report:*").await?;
        ensure!(found > 0.0, "not yet");
        Ok(())
    })
    .await;
    watched.agent.process().thaw()?;
    watched.has_fired("LockscopeRenewalOverdue").await;
    watched.has_fired("LockscopeRenewalsLate").await;
    Ok(())
}

#[tokio::test]
async fn nearly_missed_renewals_alert() -> Result<()> {
    let mut watched = Watched::with_lease("20s").await?;
    // Below 3.3 s, a sixth of the lease. A machine that is too slow loses the lock and tries with another one.
    let mut tries = 0;
    within(2 * PATIENCE, "a renewal in the nick of time", async || {
        tries += 1;
        let mut worker = watched.agent.client().await?;
        lock(&mut worker, &format!("close:{tries}")).await?;
        watched.redis.process().freeze().await?;
        eventually("it to be low or lost", async || {
            let left = valid_ms(&mut worker).await;
            ensure!(left.as_ref().map_or(true, |left| *left <= 3_000), "{left:?}");
            Ok(())
        })
        .await;
        watched.redis.process().thaw()?;
        eventually("it to be renewed or lost", async || {
            let left = valid_ms(&mut worker).await;
            ensure!(left.as_ref().map_or(true, |left| *left > 4_000), "{left:?}");
            Ok(())
        })
        .await;
        valid_ms(&mut worker).await?;
        Ok(())
    })
    .await;
    watched.has_fired("LockscopeRenewalMarginLow").await;
    Ok(())
}

#[tokio::test]
async fn problems_found_by_dashboards_alert() -> Result<()> {
    let watched = Watched::with_lease("60s").await?;
    let mut direct = watched.redis.client().await?;

    // Leftovers of a fair lock.
    let dead = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    direct.call(&format!("RPUSH redisson_lock_queue:{{left:1}} {dead}")).await?.ok()?;
    direct.call(&format!("ZADD redisson_lock_timeout:{{left:1}} 1000 {dead}")).await?.ok()?;
    // A hold in the name of a live agent that does not know it.
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "kept:1").await?;
    let holder = direct.call("HGETALL kept:1").await?.ok()?.items()?[0].text();
    let (agent, number) = holder.split_once(':').context("a holder has two parts")?;
    let number = number.parse::<i64>()? + 1_000_000;
    direct.call(&format!("HSET nobodys:1 {agent}:{number} 1")).await?.ok()?;
    direct.call("PEXPIRE nobodys:1 600000").await?.ok()?;

    // Two threads of another service, each holding the lock that the other one waits for in the queue.
    for (thread, lock, other) in [(47, "row:1", "row:2"), (48, "row:2", "row:1")] {
        let mut service = Foreign::connect(&watched.redis).await?;
        service.holder = format!("7c1d2e3f-5a43-4f9f-8d11-6a2b3c4d5e6f:{thread}");
        assert!(service.lock(lock).await?);
        let holder = &service.holder;
        direct.call(&format!("RPUSH redisson_lock_queue:{{{other}}} {holder}")).await?.ok()?;
        let timeouts = format!("ZADD redisson_lock_timeout:{{{other}}} 9000000000000 {holder}");
        direct.call(&timeouts).await?.ok()?;
    }

    // A hold of a client with its own watchdog, which stops renewing it.
    let mut service = Foreign::connect(&watched.redis).await?;
    service.lease_ms = 3_000;
    assert!(service.lock("settlement:1").await?);
    // The dashboard finds an expiry only if it has read the lock within a second before: a machine that is too slow for
    // that begins again.
    within(2 * PATIENCE, "the expiry to be found", async || {
        eventually("the dashboard to know that it is renewed", async || {
            let left = direct.call("PTTL settlement:1").await?.int()?;
            // The renewal may be too late as well.
            if left < 2_000 && !service.renew("settlement:1").await? {
                ensure!(service.lock("settlement:1").await?, "someone has it");
            }
            let seen = watched.dashboard.json("/api/v1/lock?name=settlement:1").await?;
            ensure!(seen["renewed"] == true, "{seen}");
            Ok(())
        })
        .await;
        watched.until_scraped(DETECTED, "settlement:*").await;
        eventually("the dashboard to see its end", async || {
            let seen = watched.dashboard.json("/api/v1/lock?name=settlement:1").await;
            ensure!(seen.as_ref().map_or(true, |seen| seen["state"] != "held"), "{seen:?}");
            Ok(())
        })
        .await;
        let found = detected(&watched, "expired", "settlement:*").await?;
        ensure!(found > 0.0, "it was not seen shortly before its end");
        Ok(())
    })
    .await;

    // A lock with a hold count that no client writes.
    let mut odd = Foreign::connect(&watched.redis).await?;
    assert!(odd.lock("odd:1").await?);
    watched.until_scraped(DETECTED, "odd:*").await;
    direct.call(&format!("HSET odd:1 {} 0", odd.holder)).await?.ok()?;

    let deadlock = watched.fires("LockscopeDeadlock").await;
    assert_eq!(
        (&deadlock["lock_group"], &deadlock["severity"]),
        (&"row:*".into(), &"critical".into())
    );
    let starving = watched.fires("LockscopeStarving").await;
    assert_eq!(starving["lock_group"], "row:*");
    // This alert resolves again soon.
    watched.has_fired("LockscopeExpired").await;
    let malformed = watched.fires("LockscopeMalformed").await;
    assert_eq!(malformed["lock_group"], "odd:*");
    // Leftovers must exist for a minute, and a holder must be missing for half a minute.
    for (alert, group) in [("LockscopeLeakSuspected", "nobodys:*"), ("LockscopeOrphan", "left:*")] {
        let labels = within(2 * PATIENCE, alert, async || {
            let firing = watched.prometheus.firing().await?;
            let ours = firing.iter().find(|labels| labels["alertname"] == alert).cloned();
            ours.with_context(|| format!("firing: {firing:?}"))
        })
        .await;
        assert_eq!(labels["lock_group"], group);
    }
    Ok(())
}

#[tokio::test]
async fn leases_that_run_out_alert() -> Result<()> {
    const ENDED: &str = "lockscope_dashboard_holds_ended_total";
    let watched = Watched::with_lease("60s").await?;
    let mut direct = watched.redis.client().await?;
    let mut service = Foreign::connect(&watched.redis).await?;
    let ended = async |ending: &str| {
        let metrics = watched.dashboard.metrics().await?;
        anyhow::Ok(metrics.sum(ENDED, &[("lock_group", "batch:*"), ("ending", ending)]))
    };
    // The release message proves that it is a lock.
    let mut released = 0.0;
    within(2 * PATIENCE, "a release to be counted", async || {
        if direct.call("EXISTS batch:1").await?.int()? == 0 {
            service.lease_ms = 60_000;
            ensure!(service.lock("batch:1").await?, "someone has it");
        }
        let seen = watched.dashboard.json("/api/v1/lock?name=batch:1").await?;
        ensure!(seen["state"] == "held", "{seen}");
        watched.until_scraped(ENDED, "batch:*").await;
        service.unlock("batch:1").await?;
        eventually("it to be counted", async || {
            let now = ended("released").await?;
            ensure!(now > released, "{now} so far");
            Ok(())
        })
        .await;
        released = ended("released").await?;
        Ok(())
    })
    .await;
    service.lease_ms = 3_000;
    let enough = ended("ran_out").await? + 6.0;
    within(2 * PATIENCE, "six leases to run out", async || {
        // The lease of a hold that the dashboard has not read may have run out.
        if direct.call("EXISTS batch:1").await?.int()? == 0 {
            ensure!(service.lock("batch:1").await?, "someone has it");
        }
        // The dashboard reads a lock that it is asked for.
        let seen = watched.dashboard.json("/api/v1/lock?name=batch:1").await?;
        ensure!(seen["state"] == "held", "{seen}");
        eventually("the dashboard to see its end", async || {
            let seen = watched.dashboard.json("/api/v1/lock?name=batch:1").await?;
            ensure!(seen["state"] != "held", "{seen}");
            Ok(())
        })
        .await;
        let now = ended("ran_out").await?;
        ensure!(now >= enough, "{now} of {enough}");
        Ok(())
    })
    .await;
    let alert = watched.fires("LockscopeLeasesRunOut").await;
    assert_eq!(alert["lock_group"], "batch:*");
    let page = harness::http::get(watched.dashboard.port(), "/lock?name=batch:1").await?;
    assert!(page.body.contains("does the work outlast its lease?"), "{}", page.body);
    Ok(())
}

#[tokio::test]
async fn a_stolen_lock_alerts() -> Result<()> {
    let watched = Watched::start().await?;
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "stolen:1").await?;
    watched.until_scraped(LOST, "stolen:*").await;
    let mut direct = watched.redis.client().await?;
    let thief = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], ARGV[1], '1')
        return redis.call('PEXPIRE', KEYS[1], '600000')";
    let holder = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    direct.call_args(&["EVAL", thief, "1", "stolen:1", holder]).await?.ok()?;
    let lost = watched.fires("LockscopeLockLost").await;
    assert_eq!((&lost["lock_group"], &lost["reason"]), (&"stolen:*".into(), &"stolen".into()));
    Ok(())
}

#[tokio::test]
async fn workers_and_policies_that_an_agent_refuses_alert() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "[[allow]]\nnames = [\"*\"]\n")?;
    let flags = ["--max-sessions", "1", "--policy", &policy.display().to_string()];
    let mut watched = Watched::with(&flags).await?;
    let socket = watched.agent.socket();
    let workers = [UnixStream::connect(&socket)?, UnixStream::connect(&socket)?];
    watched.fires("LockscopeWorkersRefused").await;
    drop(workers);
    std::fs::write(&policy, "[[allow]]\nnames = 1\n")?;
    watched.agent.process().signal(Signal::HUP)?;
    watched.fires("LockscopePolicyRefused").await;
    let other = watched.agent.folder().join("other.sock");
    let _other = UnixListener::bind(&other)?;
    std::fs::rename(&other, &socket)?;
    watched.fires("LockscopeSocketMissing").await;
    Ok(())
}

#[tokio::test]
async fn locks_that_a_dashboard_does_not_keep_alert() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    for name in ["a", "b", "c"] {
        let holder = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
        direct.call_args(&["HSET", name, holder, "1"]).await?.ok()?;
        direct.call_args(&["PEXPIRE", name, "600000"]).await?.ok()?;
    }
    let dashboard = Dashboard::start(&redis.url(), &["--max-locks", "1"]).await?;
    let jobs = [("lockscope-dashboard", vec![dashboard.port()])];
    let prometheus = Prometheus::start(&jobs, &hurried(&rules_in(DASHBOARD_RULES)?)).await?;
    eventually("LockscopeLocksNotKept", async || {
        let fired = fired(&prometheus).await?;
        ensure!(fired.contains("LockscopeLocksNotKept"), "{fired:?}");
        Ok(())
    })
    .await;
    Ok(())
}
