//! Alerts fire for the faults they are named after, with the right labels, and stay silent otherwise.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use harness::{
    Agent, Client, Dashboard, Prometheus, RedisCluster, RedisServer, Worker, eventually,
};
use serde_json::Value;
use tokio::task::JoinSet;

use super::{AGENT_RULES, DASHBOARD_RULES, rules, rules_in, text};

/// The metric of lost locks.
pub(super) const LOST: &str = "lockscope_agent_locks_lost_total";

/// Returns the rules with every window and duration shortened, so that seconds suffice instead of minutes.
pub(super) fn hurried(rules: &str) -> String {
    let mut out = String::new();
    for line in rules.lines() {
        let line = match line.split_once("for: ") {
            Some((before, _)) if before.trim().is_empty() => format!("{before}for: 2s"),
            _ => line
                .replace("[5m]", "[15s]")
                .replace("[2m]", "[15s]")
                .replace("[10m]", "[15s]")
                .replace("offset 5m", "offset 15s")
                .replace("offset 10m", "offset 15s")
                .replace("offset 1m", "offset 3s")
                .replace("< 300", "< 15"),
        };
        out.push_str(
            &line
                .replace("p99_5m > 30", "p99_5m > 1")
                .replace("> 300", "> 5")
                .replace("outage) > 100", "outage) > 20"),
        );
        out.push('\n');
    }
    out
}

/// The alerts on programs that do not answer a scrape.
pub(super) const SCRAPES: [&str; 2] = ["LockscopeAgentDown", "LockscopeDashboardDown"];

/// A Redis, an agent, a dashboard, and a Prometheus that watches them with hurried rules.
pub(super) struct Watched {
    pub(super) redis: RedisServer,
    pub(super) agent: Agent,
    pub(super) dashboard: Dashboard,
    pub(super) prometheus: Prometheus,
}

impl Watched {
    pub(super) async fn start() -> Result<Self> {
        Self::with_lease("12s").await
    }

    pub(super) async fn with_lease(lease: &str) -> Result<Self> {
        Self::with(&["--lease", lease]).await
    }

    /// Starts everything, with these flags for the agent.
    pub(super) async fn with(flags: &[&str]) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let agent = Agent::with(&redis, flags).await?;
        let flags = ["--stuck-after", "3s", "--starving-after", "3s", "--scan-every", "1s"];
        let dashboard = Dashboard::start(&redis.url(), &flags).await?;
        let jobs = [
            ("lockscope-agent", vec![agent.http()]),
            ("lockscope-dashboard", vec![dashboard.port()]),
        ];
        let prometheus = Prometheus::start(&jobs, &hurried(&rules()?)).await?;
        let watched = Self { redis, agent, dashboard, prometheus };
        eventually("both programs to be scraped", async || {
            let up = watched.prometheus.query("sum(up)").await?;
            ensure!(up.iter().any(|row| row["value"][1] == "2"), "{up:?}");
            Ok(())
        })
        .await;
        Ok(watched)
    }

    /// Waits until this alert fires, and returns its labels.
    pub(super) async fn fires(&self, alert: &str) -> Value {
        eventually(alert, async || {
            let firing = self.prometheus.firing().await?;
            let ours = firing.iter().find(|labels| labels["alertname"] == alert).cloned();
            ours.ok_or_else(|| anyhow::anyhow!("firing: {firing:?}"))
        })
        .await
    }

    /// Waits until this alert fires or has fired, however briefly.
    pub(super) async fn has_fired(&self, alert: &str) {
        eventually(alert, async || {
            let fired = fired(&self.prometheus).await?;
            ensure!(fired.contains(alert), "fired so far: {fired:?}");
            Ok(())
        })
        .await;
    }

    /// Waits until Prometheus has scraped this group, so that the first event shows as an increase.
    pub(super) async fn until_scraped(&self, metric: &str, group: &str) {
        let query = format!("{metric}{{lock_group=\"{group}\"}}");
        eventually("the group to be scraped", async || {
            ensure!(!self.prometheus.query(&query).await?.is_empty(), "not yet");
            Ok(())
        })
        .await;
    }

    /// Returns the alerts that fire now.
    pub(super) async fn firing(&self) -> Result<BTreeSet<String>> {
        let firing = self.prometheus.firing().await?;
        Ok(firing
            .iter()
            .filter_map(|labels| Some(labels["alertname"].as_str()?.to_owned()))
            .collect())
    }
}

/// Returns the alerts that have fired at any time since this Prometheus started.
pub(super) async fn fired(prometheus: &Prometheus) -> Result<BTreeSet<String>> {
    let ever = "count by (alertname) (count_over_time(ALERTS{alertstate=\"firing\"}[1d]))";
    let rows = prometheus.query(ever).await?;
    Ok(rows
        .iter()
        .filter_map(|row| Some(row["metric"]["alertname"].as_str()?.to_owned()))
        .collect())
}

pub(super) async fn lock(client: &mut Client, name: &str) -> Result<()> {
    client.call(&format!("LOCK {name}")).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_lost_lock_alerts() -> Result<()> {
    let watched = Watched::start().await?;
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "orders:1").await?;
    watched.until_scraped(LOST, "orders:*").await;
    let mut direct = watched.redis.client().await?;
    direct.call("DEL orders:1").await?.ok()?;
    let labels = watched.fires("LockscopeLockLost").await;
    assert_eq!(labels["lock_group"], "orders:*");
    assert_eq!(labels["reason"], "missing");
    assert_eq!(labels["severity"], "critical");
    Ok(())
}

#[tokio::test]
async fn a_lock_lost_before_the_first_scrape_alerts() -> Result<()> {
    let redis = RedisServer::start().await?;
    // With a short lease a stall of Redis or of the agent would be the reason of the loss, or raise an alert of its own.
    let agent = Agent::with(&redis, &["--lease", "12s"]).await?;
    let mut worker = agent.client().await?;
    lock(&mut worker, "orders:1").await?;
    redis.client().await?.call("DEL orders:1").await?.ok()?;
    eventually("the agent to count the loss", async || {
        let lost = agent.metrics().await?;
        let lost = lost.0.lines().find(|line| {
            line.starts_with(LOST) && line.contains("missing") && line.ends_with(" 1")
        });
        ensure!(lost.is_some(), "not yet");
        Ok(())
    })
    .await;
    // The windows are those shipped: the agent has started within five minutes, and this alert fires without delay.
    let jobs = [("lockscope-agent", vec![agent.http()])];
    let prometheus = Prometheus::start(&jobs, &rules_in(AGENT_RULES)?).await?;
    let firing = eventually("LockscopeLockLost", async || {
        let firing = prometheus.firing().await?;
        ensure!(!firing.is_empty(), "nothing fires");
        Ok(firing)
    })
    .await;
    assert_eq!(firing.len(), 1, "{firing:?}");
    assert_eq!(firing[0]["alertname"], "LockscopeLockLost");
    assert_eq!(
        (&firing[0]["lock_group"], &firing[0]["reason"]),
        (&"orders:*".into(), &"missing".into())
    );
    Ok(())
}

#[tokio::test]
async fn missing_replicas_alert() -> Result<()> {
    let watched = Watched::with(&["--min-replicas", "1"]).await?;
    let mut worker = watched.agent.client().await?;
    eventually("LockscopeReplicasMissing", async || {
        let refused = worker.call("LOCK orders:1 NOWAIT").await?;
        ensure!(refused.is_error("UNAVAILABLE"), "{refused}");
        let firing = watched.firing().await?;
        ensure!(firing.contains("LockscopeReplicasMissing"), "firing: {firing:?}");
        ensure!(firing.len() == 1, "it is no other alert's business: {firing:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_redis_that_refuses_scripts_alerts() -> Result<()> {
    let watched = Watched::start().await?;
    let mut worker = watched.agent.client().await?;
    let mut direct = watched.redis.client().await?;
    direct.call("CONFIG SET maxmemory 1").await?.ok()?;
    worker.send("LOCK orders:1").await?;
    let labels = watched.fires("LockscopeRedisRefuses").await;
    assert_eq!((&labels["error"], &labels["severity"]), (&"OOM".into(), &"critical".into()));
    let firing = watched.firing().await?;
    assert!(!firing.contains("LockscopeAgentRedisDown"), "it replies: {firing:?}");
    // The wait is long for this reason, and the alert about waits would fire by now.
    let waits = "time() - min(lockscope_agent_oldest_wait_start_timestamp_seconds) > 12";
    eventually("the worker to wait long", async || {
        ensure!(!watched.prometheus.query(waits).await?.is_empty(), "not yet");
        Ok(())
    })
    .await;
    let fired = fired(&watched.prometheus).await?;
    assert!(!fired.contains("LockscopeOldestWait"), "one cause, one alert: {fired:?}");
    direct.call("CONFIG SET maxmemory 0").await?.ok()?;
    worker.reply().await?.ok()?;
    eventually("it is over", async || {
        let firing = watched.firing().await?;
        ensure!(!firing.contains("LockscopeRedisRefuses"), "{firing:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn slots_that_no_node_serves_alert_in_both_programs() -> Result<()> {
    let cluster = RedisCluster::start(3, 0).await?;
    for place in 0..3 {
        let mut node = cluster.client(place).await?;
        node.call("CONFIG SET cluster-require-full-coverage no").await?.ok()?;
    }
    let agent = Agent::in_cluster(&cluster, &[]).await?;
    let dashboard = Dashboard::start(&cluster.url(), &["--monitor", "off"]).await?;
    let jobs =
        [("lockscope-agent", vec![agent.http()]), ("lockscope-dashboard", vec![dashboard.port()])];
    let prometheus = Prometheus::start(&jobs, &hurried(&rules()?)).await?;
    let name = cluster.names("unserved:").remove(0);
    let slot = redisson::slot(name.as_bytes());
    for place in 0..3 {
        cluster.client(place).await?.call(&format!("CLUSTER DELSLOTS {slot}")).await?.ok()?;
    }
    let mut worker = agent.client().await?;
    worker.send(&format!("LOCK {name}")).await?;
    eventually("LockscopeSlotsUnserved and LockscopeBlind", async || {
        let firing = prometheus.firing().await?;
        let deployment = |alert: &str| {
            let ours = firing.iter().find(|labels| labels["alertname"] == alert);
            ours.map(|labels| labels["deployment"].clone())
        };
        let both = ["LockscopeSlotsUnserved", "LockscopeBlind"].map(deployment);
        ensure!(both == [Some("default".into()), Some("default".into())], "{firing:?}");
        Ok(())
    })
    .await;
    for (metric, metrics) in [
        ("lockscope_agent_unserved_slots", agent.metrics().await?),
        ("lockscope_dashboard_unserved_slots", dashboard.metrics().await?),
    ] {
        assert_eq!(metrics.sum(metric, &[("deployment", "default")]), 1.0);
    }
    let sources = dashboard.json("/api/v1/sources").await?;
    let said = sources["limits"].to_string();
    assert!(said.contains("1 slot of the cluster is served by no node"), "{said}");
    let page = harness::http::get(dashboard.port(), "/overview").await?.body;
    assert!(page.contains("A cluster is only partly visible"), "{page}");
    cluster.client(0).await?.call(&format!("CLUSTER ADDSLOTS {slot}")).await?.ok()?;
    worker.reply().await?.ok()?;
    eventually("it is over", async || {
        let firing = prometheus.firing().await?;
        let both = ["LockscopeSlotsUnserved", "LockscopeBlind"];
        let fires = |labels: &Value| both.iter().any(|alert| labels["alertname"] == *alert);
        ensure!(!firing.iter().any(fires), "{firing:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_alerts() -> Result<()> {
    let watched = Watched::start().await?;
    let mut worker = watched.agent.client().await?;
    // The journal cannot be written, because a folder is in the way.
    std::fs::create_dir(watched.agent.folder().join("state/.journal.new"))?;
    let refused = worker.call("SESSION GRACE 30000").await?;
    assert!(refused.is_error("UNAVAILABLE"), "{refused}");
    let labels = watched.fires("LockscopeJournalFails").await;
    assert_eq!(labels["severity"], "warning");
    Ok(())
}

#[tokio::test]
async fn a_history_that_cannot_be_written_alerts() -> Result<()> {
    let redis = RedisServer::start().await?;
    let outside = tempfile::tempdir()?;
    let history = outside.path().join("history");
    let folder = history.display().to_string();
    let dashboard = Dashboard::start(&redis.url(), &["--history-dir", &folder]).await?;
    let jobs = [("lockscope-dashboard", vec![dashboard.port()])];
    let prometheus = Prometheus::start(&jobs, &hurried(&rules_in(DASHBOARD_RULES)?)).await?;
    let limits = async || {
        Ok::<_, anyhow::Error>(dashboard.json("/api/v1/sources").await?["limits"].to_string())
    };
    std::fs::remove_dir_all(&history)?;
    eventually("the history to be there again", async || {
        ensure!(history.join("history.db").exists(), "not yet");
        Ok(())
    })
    .await;
    eventually("no limit", async || {
        let said = limits().await?;
        ensure!(!said.contains("history"), "{said}");
        Ok(())
    })
    .await;
    eventually("a file in the way", async || {
        // The dashboard may create the folder again in between.
        std::fs::remove_dir_all(&history).ok();
        Ok(std::fs::write(&history, "")?)
    })
    .await;
    eventually("LockscopeHistoryFails", async || {
        let fired = fired(&prometheus).await?;
        ensure!(fired.contains("LockscopeHistoryFails"), "{fired:?}");
        Ok(())
    })
    .await;
    let said = limits().await?;
    assert!(said.contains("The history cannot be written: its file was removed"), "{said}");
    std::fs::remove_file(&history)?;
    eventually("no limit", async || {
        let said = limits().await?;
        ensure!(!said.contains("history"), "{said}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn servers_of_red_locks_alert_apart_from_the_main_redis() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut servers =
        [RedisServer::start().await?, RedisServer::start().await?, RedisServer::start().await?];
    let urls = servers.each_ref().map(RedisServer::url);
    let flags: Vec<&str> = urls.iter().flat_map(|url| ["--redlock-url", url]).collect();
    let agent = Agent::with(&redis, &flags).await?;
    let jobs = [("lockscope-agent", vec![agent.http()])];
    let prometheus = Prometheus::start(&jobs, &hurried(&rules_in(AGENT_RULES)?)).await?;
    for (server, alert) in
        servers.iter_mut().zip(["LockscopeRedServerDown", "LockscopeRedMajorityDown"])
    {
        let before = fired(&prometheus).await?;
        assert!(!before.contains(alert), "{before:?}");
        server.process().freeze().await?;
        eventually(alert, async || {
            let fired = fired(&prometheus).await?;
            ensure!(fired.contains(alert), "{fired:?}");
            Ok(())
        })
        .await;
    }
    let fired = fired(&prometheus).await?;
    assert!(!fired.contains("LockscopeAgentRedisDown"), "{fired:?}");
    Ok(())
}

#[tokio::test]
async fn a_frozen_redis_alerts_before_and_after_locks_are_lost() -> Result<()> {
    // A hold is in danger for less than a third of the lease, and a scrape must see it.
    let mut watched = Watched::with_lease("24s").await?;
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "report:7").await?;
    watched.until_scraped(LOST, "report:*").await;
    watched.redis.process().freeze().await?;
    watched.has_fired("LockscopeJeopardy").await;
    watched.fires("LockscopeRenewalErrors").await;
    let down = watched.fires("LockscopeAgentRedisDown").await;
    assert_eq!(down["severity"], "critical");
    let lost = watched.fires("LockscopeLockLost").await;
    assert_eq!(lost["reason"], "unconfirmed");
    watched.fires("LockscopeBlind").await;
    watched.redis.process().thaw()?;
    eventually("it is over", async || {
        let firing = watched.firing().await?;
        let gone =
            ["LockscopeAgentRedisDown", "LockscopeJeopardy", "LockscopeBlind", "LockscopeLockLost"];
        ensure!(gone.iter().all(|alert| !firing.contains(*alert)), "{firing:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn stuck_and_leaked_locks_alert_separately() -> Result<()> {
    let watched = Watched::start().await?;
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "stuck:1").await?;
    let mut direct = watched.redis.client().await?;
    let holder = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    direct.call(&format!("HSET leak:1 {holder} 1")).await?.ok()?;
    eventually("the dashboard to hear of it", async || {
        let heard = direct.call("PUBLISH redisson_lock__channel:{leak:1} 0").await?.int()?;
        ensure!(heard > 0, "nobody has subscribed");
        Ok(())
    })
    .await;
    let stuck = watched.fires("LockscopeStuck").await;
    assert_eq!(stuck["lock_group"], "stuck:*");
    // A lock without TTL and with a holder is only a candidate until traffic proves that it is a lock.
    let leaked = watched.fires("LockscopeLeaked").await;
    assert_eq!(
        (&leaked["lock_group"], &leaked["severity"]),
        (&"leak:*".into(), &"critical".into())
    );
    Ok(())
}

#[tokio::test]
async fn contention_and_timeouts_alert() -> Result<()> {
    let watched = Watched::start().await?;
    let mut holder = watched.agent.client().await?;
    lock(&mut holder, "sku:1").await?;
    let mut crowd = Vec::new();
    for _ in 0..30 {
        let mut waiter = watched.agent.client().await?;
        waiter.send("LOCK sku:1").await?;
        crowd.push(waiter);
    }
    let labels = watched.fires("LockscopeWaitersCrowd").await;
    assert_eq!(labels["lock_group"], "sku:*");
    watched.fires("LockscopeOldestWait").await;
    let mut hasty = watched.agent.client().await?;
    eventually("LockscopeAcquireTimeouts", async || {
        for _ in 0..5 {
            hasty.call("LOCK sku:1 WAIT 1").await?;
        }
        let firing = watched.firing().await?;
        ensure!(firing.contains("LockscopeAcquireTimeouts"), "{firing:?}");
        Ok(())
    })
    .await;
    // All waiters are granted the lock in the end, one after the other; only then are their waits known. Requests that
    // arrived at the same time have no order.
    drop(holder);
    let mut served = JoinSet::new();
    for mut waiter in crowd {
        served.spawn(async move { waiter.reply().await?.ok() });
    }
    while let Some(reply) = served.join_next().await {
        reply??;
    }
    let labels = watched.fires("LockscopeWaitsLong").await;
    assert_eq!(labels["lock_group"], "sku:*");
    Ok(())
}

#[tokio::test]
async fn monitor_left_on_alerts() -> Result<()> {
    let redis = RedisServer::start().await?;
    let flags = ["--monitor", "on", "--monitor-unbounded"];
    let dashboard = Dashboard::start(&redis.url(), &flags).await?;
    let jobs = [("lockscope-dashboard", vec![dashboard.port()])];
    let prometheus = Prometheus::start(&jobs, &hurried(&rules_in(DASHBOARD_RULES)?)).await?;
    let labels = eventually("LockscopeMonitorOn", async || {
        let firing = prometheus.firing().await?;
        let ours = firing.iter().find(|labels| labels["alertname"] == "LockscopeMonitorOn");
        ours.cloned().ok_or_else(|| anyhow::anyhow!("firing: {firing:?}"))
    })
    .await;
    assert_eq!((&labels["outcome"], &labels["severity"]), (&"unbounded".into(), &"warning".into()));
    let fired = fired(&prometheus).await?;
    assert!(!fired.contains("LockscopeAgentsAbsent"), "nobody runs an agent: {fired:?}");
    Ok(())
}

#[tokio::test]
async fn a_stopped_worker_alerts() -> Result<()> {
    let watched = Watched::start().await?;
    let agent = &watched.agent;
    let mut worker = Worker::start(&agent.socket(), agent.folder(), &["LOCK orders:1"])?;
    worker.line().await?;
    worker.process().freeze().await?;
    let frozen = watched.fires("LockscopeWorkerFrozen").await;
    assert_eq!(frozen["severity"], "warning");
    // The lock is found and freed as the runbook says.
    let mut looking = agent.client().await?;
    let rows = looking.call("LOCKS").await?.ok()?;
    let row = rows.items()?[1].items()?[0].clone();
    let shown = (row.field("frozen")?.int()?, row.field("pid")?.int()?);
    assert_eq!(shown, (1, worker.process().pid().into()), "{row}");
    worker.process().kill()?;
    eventually("the lock to be free", async || {
        let taken = looking.call("LOCK orders:1 NOWAIT").await?.ok()?;
        ensure!(taken != harness::Reply::Null, "not yet");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_forced_release_alerts() -> Result<()> {
    // A renewal that runs just after the script finds the lock missing, and none is due for 20 s.
    let watched = Watched::with_lease("60s").await?;
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "orders:9").await?;
    watched.until_scraped(LOST, "orders:*").await;
    let mut direct = watched.redis.client().await?;
    let holder = direct.call("HGETALL orders:9").await?.ok()?.items()?[0].text();
    let agent = holder.split(':').next().unwrap_or_default();
    // The commands of the dashboard's script.
    let forced = "redis.call('DEL', KEYS[1]) return redis.call('PUBLISH', ARGV[1], ARGV[2])";
    let channel = format!("lockscope:forced:{{{agent}}}");
    let message = format!("{holder} orders:9");
    direct.call_args(&["EVAL", forced, "1", "orders:9", &channel, &message]).await?.ok()?;
    let labels = watched.fires("LockscopeForceReleased").await;
    assert_eq!((&labels["lock_group"], &labels["severity"]), (&"orders:*".into(), &"info".into()));
    let firing = watched.firing().await?;
    assert!(!firing.contains("LockscopeLockLost"), "it was meant to be: {firing:?}");
    Ok(())
}

#[tokio::test]
async fn a_frozen_agent_is_down_and_then_reports_it() -> Result<()> {
    let mut watched = Watched::start().await?;
    let mut worker = watched.agent.client().await?;
    lock(&mut worker, "orders:1").await?;
    watched.until_scraped(LOST, "orders:*").await;
    watched.agent.process().freeze().await?;
    let down = watched.fires("LockscopeAgentDown").await;
    assert_eq!(down["severity"], "critical");
    // Longer than the lease, and than the windows of the rules: no scrape is left from which they could count.
    eventually("the last scrape before the freeze to be old", async || {
        let scrapes = "count_over_time(lockscope_agent_sleeps_total[15s])";
        let scrapes = watched.prometheus.query(scrapes).await?;
        ensure!(scrapes.is_empty(), "{scrapes:?}");
        Ok(())
    })
    .await;
    watched.agent.process().thaw()?;
    watched.has_fired("LockscopeAgentSlept").await;
    watched.has_fired("LockscopeLockLost").await;
    watched.dashboard.process().kill()?;
    let down = watched.fires("LockscopeDashboardDown").await;
    assert_eq!(down["severity"], "critical");
    Ok(())
}

#[tokio::test]
async fn an_evicting_redis_alerts() -> Result<()> {
    let redis =
        RedisServer::with(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]).await?;
    let agent = Agent::with(&redis, &[]).await?;
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    for (job, port, file) in [
        ("lockscope-agent", agent.http(), AGENT_RULES),
        ("lockscope-dashboard", dashboard.port(), DASHBOARD_RULES),
    ] {
        let prometheus =
            Prometheus::start(&[(job, vec![port])], &hurried(&rules_in(file)?)).await?;
        eventually("LockscopeRedisEvicts", async || {
            let fired = fired(&prometheus).await?;
            ensure!(fired.contains("LockscopeRedisEvicts"), "{fired:?}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test]
async fn a_redis_that_refuses_writes_alerts() -> Result<()> {
    let redis = RedisServer::start().await?;
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    let jobs = [("lockscope-dashboard", vec![dashboard.port()])];
    let prometheus = Prometheus::start(&jobs, &hurried(&rules_in(DASHBOARD_RULES)?)).await?;
    redis.client().await?.call("CONFIG SET maxmemory 1").await?.ok()?;
    eventually("LockscopeWritesRefused", async || {
        let fired = fired(&prometheus).await?;
        ensure!(fired.contains("LockscopeWritesRefused"), "{fired:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn agents_on_different_servers_alert() -> Result<()> {
    let servers = [RedisServer::start().await?, RedisServer::start().await?];
    let shop = ["--deployment", "shop"];
    let agents = [
        Agent::with(&servers[0], &shop).await?,
        Agent::with(&servers[1], &shop).await?,
        // Workers of this agent share nothing with those of the others.
        Agent::with(&servers[1], &["--deployment", "other"]).await?,
    ];
    let ports = agents.iter().map(Agent::http).collect();
    let rules = hurried(&rules_in(AGENT_RULES)?);
    let prometheus = Prometheus::start(&[("lockscope-agent", ports)], &rules).await?;
    eventually("LockscopeAgentsSplit", async || {
        let fired = fired(&prometheus).await?;
        ensure!(fired.contains("LockscopeAgentsSplit"), "{fired:?}");
        Ok(())
    })
    .await;
    let servers =
        "count by (deployment) (count by (deployment, run_id) (lockscope_agent_redis_server_info))";
    // An agent whose last scrape has failed is missing.
    eventually("two servers and one", async || {
        let counts = prometheus.query(servers).await?;
        let count = |name: &str| {
            let found = counts.iter().find(|series| series["metric"]["deployment"] == name);
            found.map(|series| series["value"][1].clone())
        };
        let expected = (Some(Value::from("2")), Some(Value::from("1")));
        ensure!((count("shop"), count("other")) == expected, "{counts:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn absent_programs_alert() -> Result<()> {
    let prometheus = Prometheus::start(&[], &hurried(&rules()?)).await?;
    eventually("LockscopeAgentsAbsent and LockscopeDashboardsAbsent", async || {
        let fired = fired(&prometheus).await?;
        let absent = ["LockscopeAgentsAbsent", "LockscopeDashboardsAbsent"];
        ensure!(absent.iter().all(|alert| fired.contains(*alert)), "{fired:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[test]
fn every_alert_has_its_row_and_its_runbook() -> Result<()> {
    let table = text("docs/reference/alerts.md")?;
    let files = [("agent", rules_in(AGENT_RULES)?), ("dashboard", rules_in(DASHBOARD_RULES)?)];
    let alerts = files
        .iter()
        .flat_map(|(of, rules)| rules.split("- alert: ").skip(1).map(move |alert| (*of, alert)));
    let alerts: Vec<(&str, &str)> = alerts.collect();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| Lockscope"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let files = |row: &Vec<&str>| if row[1] == "both" { 2 } else { 1 };
    let expected = rows.iter().map(files).sum::<usize>();
    assert_eq!(alerts.len(), expected, "alerts and rows of alerts.md");
    for (of, alert) in alerts {
        let name = alert.lines().next().unwrap_or_default();
        let value = |key: &str| {
            let line = alert.lines().find_map(|line| line.trim().strip_prefix(key));
            line.map(str::trim)
        };
        let row = rows.iter().find(|row| row[0] == name);
        let row = row.unwrap_or_else(|| panic!("{name} is not in alerts.md"));
        assert!([of, "both"].contains(&row[1]), "{name} is in the rules for the {of}");
        assert_eq!(value("labels: {severity:"), Some(&*format!("{}}}", row[2])), "{name}");
        assert_eq!(value("for:").unwrap_or("–"), row[4], "{name}");
        let runbook = value("runbook_url:").and_then(|url| url.rsplit('/').next());
        let runbook = runbook.unwrap_or_default();
        assert!(row[5].contains(&format!("(../runbooks/{runbook})")), "{name}: {runbook}");
        assert!(
            text(&format!("docs/runbooks/{runbook}"))?.contains(name),
            "{runbook} names no {name}"
        );
        let tests = [include_str!("alerts.rs"), include_str!("problem_alerts.rs")].concat();
        assert!(tests.contains(name), "no test waits for {name} to fire");
        for key in ["summary:", "description:"] {
            assert!(value(key).is_some_and(|text| text.len() > 10), "{name} has no {key}");
        }
    }
    Ok(())
}
