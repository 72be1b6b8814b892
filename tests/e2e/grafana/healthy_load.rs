//! A quarter of an hour of healthy load raises no alert.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::{
    Agent, Client, Dashboard, Foreign, Prometheus, RedisServer, Reply, eventually, within,
};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::alerts::{SCRAPES, fired};
use super::rules;

/// If this variable is set, nothing is accelerated: `make soak`.
const SOAK: &str = "LOCKSCOPE_SOAK";
/// The acceleration if the variable is not set.
const FASTER: u32 = 20;
const QUARTER: Duration = Duration::from_secs(15 * 60);

/// Returns the rules for a time that passes faster by that factor: with shorter windows, durations, and limits of the
/// oldest wait. The limit of usual waits stays: the workers are no faster.
fn accelerated(rules: &str, by: u32) -> Result<String> {
    let shorter = |duration: &str| -> Result<String> {
        let unit = if duration.ends_with('m') { 60_000 } else { 1_000 };
        let count: u32 = duration
            .get(..duration.len() - 1)
            .unwrap_or_default()
            .parse()
            .with_context(|| duration.to_owned())?;
        Ok(format!("{}ms", count * unit / by))
    };
    let mut out = String::new();
    for line in rules.lines() {
        let mut line = line.to_owned();
        if let Some((before, duration)) =
            line.split_once("for: ").filter(|(b, _)| b.trim().is_empty())
        {
            line = format!("{before}for: {}", shorter(duration)?);
        }
        for window in ["1m", "5m", "10m"] {
            line = line.replace(&format!("[{window}]"), &format!("[{}]", shorter(window)?));
            line =
                line.replace(&format!("offset {window}"), &format!("offset {}", shorter(window)?));
        }
        line = line.replace(") > 300", &format!(") > {}", 300 / by));
        out.push_str(&line);
        out.push('\n');
    }
    Ok(out)
}

/// Works under these locks in turn: `inside` milliseconds under each, and `outside` milliseconds between them.
async fn work(socket: PathBuf, locks: Vec<String>, inside: u64, outside: u64) -> Result<()> {
    let mut client = Client::unix(&socket).await?;
    for lock in locks.iter().cycle() {
        let granted = client.call(&format!("LOCK {lock} WAIT 20000")).await?.ok()?;
        ensure!(granted != Reply::Null, "no {lock} within 20 s");
        sleep(Duration::from_millis(inside)).await;
        let name = lock.split(' ').next().unwrap_or_default();
        client.call(&format!("UNLOCK {name}")).await?.ok()?;
        sleep(Duration::from_millis(outside)).await;
    }
    bail!("no locks")
}

/// Tries now and then to acquire a lock, which is often held.
async fn look_in(socket: PathBuf) -> Result<()> {
    let mut client = Client::unix(&socket).await?;
    loop {
        if client.call("LOCK orders:1 NOWAIT").await?.ok()? != Reply::Null {
            client.call("UNLOCK orders:1").await?.ok()?;
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Connects, acquires a lock and disconnects without a release, as a program does that ends.
async fn come_and_go(socket: PathBuf) -> Result<()> {
    for visit in 0.. {
        let mut client = Client::unix(&socket).await?;
        client.call(&format!("LOCK visit:{visit} LEASE 60000")).await?.ok()?;
        sleep(Duration::from_millis(700)).await;
    }
    Ok(())
}

/// Simulates a Java service that works for two minutes at a time and renews its lock meanwhile.
async fn foreign(mut service: Foreign) -> Result<()> {
    loop {
        ensure!(service.lock("settlement").await?, "it is taken");
        for _ in 0..12 {
            sleep(Duration::from_secs(10)).await;
            ensure!(service.renew("settlement").await?, "it is gone");
        }
        service.unlock("settlement").await?;
        sleep(Duration::from_secs(1)).await;
    }
}

/// Starts the usual load of workers.
fn load(agents: &[Agent; 2], service: Foreign) -> JoinSet<Result<()>> {
    let socket = |i: usize| agents[i % 2].socket();
    let mut crowd = JoinSet::new();
    for worker in 0..6 {
        let orders = (0..20).map(|i| format!("orders:{}", (i * 7 + worker * 3) % 20));
        crowd.spawn(work(socket(worker), orders.collect(), 20, 60));
    }
    for (i, lock) in ["sku:4711", "sku:4711", "sku:4711", "seat:1 KIND fair", "seat:1 KIND fair"]
        .into_iter()
        .chain(["catalog KIND read", "catalog KIND read", "catalog KIND write"])
        .chain(["export KIND fenced", "export KIND fenced"])
        .enumerate()
    {
        crowd.spawn(work(socket(i), vec![lock.to_owned()], 10, 40));
    }
    crowd.spawn(work(socket(0), vec!["report".to_owned()], 120_000, 1_000));
    crowd.spawn(work(socket(1), vec!["mail LEASE 60000".to_owned()], 500, 500));
    crowd.spawn(look_in(socket(0)));
    crowd.spawn(come_and_go(socket(1)));
    crowd.spawn(foreign(service));
    crowd
}

/// Returns the time by this Prometheus' clock, in seconds.
async fn time(prometheus: &Prometheus) -> Result<f64> {
    let rows = prometheus.query("vector(time())").await?;
    let text = rows.first().and_then(|row| row["value"][1].as_str()).context("no time")?;
    Ok(text.parse()?)
}

/// Prints the figures of the run.
#[expect(clippy::print_stdout, reason = "`make soak` prints its figures")]
async fn report(prometheus: &Prometheus, seconds: f64, fired: usize) -> Result<()> {
    println!(
        "seconds: {seconds:.0}\nrules: {}\nalerts fired: {fired}",
        prometheus.rules().await?.len()
    );
    for (what, query) in [
        ("samples scraped", "sum(sum_over_time(scrape_samples_scraped[1h]))"),
        ("acquisitions", "sum(lockscope_agent_acquisitions_total{outcome=\"acquired\"})"),
        (
            "attempts without the lock",
            "sum(lockscope_agent_acquisitions_total{outcome!=\"acquired\"})",
        ),
        ("renewals", "sum(lockscope_agent_renewals_total{outcome=\"renewed\"})"),
        (
            "alerts that were pending",
            "count(count by (alertname) (max_over_time(ALERTS{alertstate=\"pending\"}[1h])))",
        ),
        ("most locks at a time", "max(max_over_time(sum(lockscope:locks:max)[1h:15s]))"),
    ] {
        let rows = prometheus.query(query).await?;
        let value = rows.first().and_then(|row| row["value"][1].as_str()).unwrap_or("0");
        println!("{what}: {value}");
    }
    Ok(())
}

#[tokio::test]
async fn a_healthy_quarter_of_an_hour_raises_no_alert() -> Result<()> {
    let soaked = std::env::var_os(SOAK).is_some();
    let (by, interval) = if soaked { (1, 15) } else { (FASTER, 1) };
    let redis = RedisServer::start().await?;
    // Thresholds that are fractions of a lease are not accelerated, so the lease must be long enough for a busy machine.
    let lease: &[&str] = if soaked { &[] } else { &["--lease", "60s"] };
    let mut agents = [Agent::with(&redis, lease).await?, Agent::with(&redis, lease).await?];
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    let jobs = [
        ("lockscope-agent", agents.each_ref().map(Agent::http).to_vec()),
        ("lockscope-dashboard", vec![dashboard.port()]),
    ];
    let rules = accelerated(&rules()?, by)?;
    let prometheus = Prometheus::every(Duration::from_secs(interval), &jobs, &rules).await?;
    let begin = time(&prometheus).await?;
    let mut crowd = load(&agents, Foreign::connect(&redis).await?);

    let stretch = QUARTER / by;
    within(stretch * 2 + Duration::from_secs(60), "a quarter of an hour", async || {
        if let Some(ended) = crowd.try_join_next() {
            panic!("a worker ended: {ended:?}");
        }
        let passed = time(&prometheus).await? - begin;
        ensure!(passed > stretch.as_secs_f64(), "{passed} s");
        Ok(())
    })
    .await;
    let mut woken = fired(&prometheus).await?;
    if !soaked {
        // A scrape has only a second, which is too little for a busy machine now and then.
        woken.retain(|alert| !SCRAPES.contains(&alert.as_str()));
    }
    report(&prometheus, time(&prometheus).await? - begin, woken.len()).await?;
    assert!(woken.is_empty(), "nothing was wrong: {woken:?}");

    // There was no alert because nothing was wrong, not because the rules saw nothing.
    let broken: Vec<_> = prometheus.rules().await?;
    assert!(broken.len() > 30 && broken.iter().all(|rule| rule["health"] == "ok"), "{broken:?}");
    for (seen, at_least) in [
        ("count(up == 1)", 3.0),
        ("sum(lockscope_agent_acquisitions_total{outcome=\"acquired\"})", 500.0),
        ("sum(lockscope_agent_renewals_total{outcome=\"renewed\"})", 1.0),
        ("count(lock_group:lockscope_agent_wait_seconds:p99_5m)", 5.0),
        ("count(lock_group:lockscope_agent_timeouts:ratio_rate5m)", 5.0),
        ("count(lockscope:locks:max)", 2.0),
        ("count(lockscope_dashboard_problems_detected_total)", 5.0),
    ] {
        eventually(seen, async || {
            let rows = prometheus.query(seen).await?;
            let value = rows.first().and_then(|row| row["value"][1].as_str()).unwrap_or("0");
            ensure!(value.parse::<f64>()? >= at_least, "{value}");
            Ok(())
        })
        .await;
    }
    crowd.shutdown().await;
    agents[1].process().kill()?;
    let patience = harness::PATIENCE + Duration::from_secs(120) / by;
    within(patience, "LockscopeAgentDown", async || {
        let fired = fired(&prometheus).await?;
        ensure!(fired.contains("LockscopeAgentDown"), "{fired:?}");
        Ok(())
    })
    .await;
    Ok(())
}

#[test]
fn accelerated_rules_differ_in_times_only() -> Result<()> {
    let rules = rules()?;
    let faster = accelerated(&rules, FASTER)?;
    let slow = |line: &str| {
        let ends = line.trim().strip_prefix("for: ").is_some_and(|time| !time.ends_with("ms"));
        let times = ["[5m]", "[10m]", "offset 1m", "offset 5m", ") > 300"];
        ends || times.iter().any(|time| line.contains(time))
    };
    assert!(rules.lines().filter(|line| slow(line)).count() > 25, "it knows the rules no more");
    let left: Vec<_> = faster.lines().filter(|line| slow(line)).collect();
    assert!(left.is_empty(), "{left:?}");
    for time in ["[15000ms]", "[30000ms]", "offset 3000ms", "for: 750ms", "for: 15000ms", ") > 15"]
    {
        assert!(faster.contains(time), "{time} is not in\n{faster}");
    }
    assert_eq!(rules.lines().count(), faster.lines().count());
    Ok(())
}
