//! The metrics of both programs: they match metrics.md and are served while Redis is frozen.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use harness::agent::Metrics;
use harness::{Agent, Dashboard, RedisServer, eventually, http, project};

use crate::agent::replicas::{granted, replica};

/// The documented or exported properties of a metric.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct About {
    /// Empty if the page leaves the kind to readers who know such metrics.
    kind: String,
    labels: BTreeSet<String>,
    /// The values of the [`NAMED`] labels that are exported, or all that the row mentions.
    values: BTreeSet<String>,
}

/// The labels whose values the page lists.
const NAMED: [&str; 5] = ["outcome", "reason", "end", "ending", "batch"];

type Figures = BTreeMap<String, About>;

/// Returns the metrics in a part of docs/reference/metrics.md.
fn documented(part: &str) -> Result<Figures> {
    let text = project::text("docs/reference/metrics.md")?;
    let part = text.split("\n## ").find_map(|text| text.strip_prefix(part)).context("no part")?;
    let mut figures = Figures::new();
    for row in part.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let words = |cell: &str| -> BTreeSet<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        for name in words(cells[0]) {
            let about = About {
                kind: cells[1].to_owned(),
                labels: words(cells[2]),
                values: words(cells[3]),
            };
            figures.insert(name, about);
        }
    }
    // A row that names another metric includes the values of that metric.
    let all = figures.clone();
    for about in figures.values_mut() {
        let named: Vec<_> = about.values.iter().filter_map(|value| all.get(value)).collect();
        about.values.extend(named.into_iter().flat_map(|named| named.values.clone()));
    }
    Ok(figures)
}

/// Returns the labels of a series with their values, as written in Prometheus' text format.
fn labels(series: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = series.split_once('{').map_or("", |(_, labels)| labels);
    while let Some((name, value)) = rest.split_once("=\"") {
        // A quote within a value has a backslash before it.
        let mut escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (value, after) = value.split_at(end.unwrap_or(value.len()));
        labels.insert(name.trim_start_matches(',').to_owned(), value.to_owned());
        rest = after.get(1..).unwrap_or_default();
    }
    labels
}

/// Returns the metrics that a program exports.
fn exported(metrics: &Metrics) -> Figures {
    let mut figures = Figures::new();
    let mut name = "";
    for line in metrics.0.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (family, kind) = family.split_once(' ').unwrap_or_default();
            name = family;
            figures.insert(name.to_owned(), About { kind: kind.to_owned(), ..About::default() });
        } else if !line.starts_with('#')
            && let Some(about) = figures.get_mut(name)
        {
            for (label, value) in labels(line).into_iter().filter(|(label, _)| label != "le") {
                about.values.extend(NAMED.contains(&&*label).then_some(value));
                about.labels.insert(label);
            }
        }
    }
    figures
}

/// Returns an error that describes any difference.
fn compare(documented: &Figures, metrics: &Metrics) -> Result<()> {
    let exported = exported(metrics);
    let absent: Vec<_> = documented.keys().filter(|name| !exported.contains_key(*name)).collect();
    ensure!(absent.is_empty(), "documented and not exported: {absent:?}");
    for (name, about) in &exported {
        let row = documented.get(name).with_context(|| format!("{name} is not documented"))?;
        ensure!(row.kind.is_empty() || row.kind == about.kind, "{name}: {about:?}, said {row:?}");
        ensure!(row.labels == about.labels, "{name}: {about:?}, said {row:?}");
        let unsaid: Vec<_> = about.values.difference(&row.values).collect();
        ensure!(unsaid.is_empty(), "{name}: values that are not documented: {unsaid:?}");
    }
    Ok(())
}

/// Starts an agent with every feature that has separate metrics, and its other servers: the replica that confirms its
/// grants, and those of red locks.
async fn with_all_features(redis: &RedisServer) -> Result<(Agent, Vec<RedisServer>)> {
    let mut others = vec![replica(redis).await?];
    for _ in 0..3 {
        others.push(RedisServer::start().await?);
    }
    let urls: Vec<_> = others.iter().skip(1).map(RedisServer::url).collect();
    let mut flags: Vec<&str> = urls.iter().flat_map(|url| ["--redlock-url", url]).collect();
    flags.extend(["--min-replicas", "1"]);
    Ok((Agent::with(redis, &flags).await?, others))
}

async fn ok(client: &mut harness::Client, words: &str) -> Result<()> {
    client.call(words).await?.ok().with_context(|| words.to_owned())?;
    Ok(())
}

#[tokio::test]
async fn documented_and_exported_metrics_and_labels_match() -> Result<()> {
    let bound = [("client-output-buffer-limit", "normal 64mb 0 0")];
    let redis = RedisServer::with(&bound).await?;
    let (agent, _others) = with_all_features(&redis).await?;
    let flags = ["--monitor", "on", "--allow-release", "--insecure", "--scan-every", "1s"];
    let dashboard = Dashboard::start(&redis.url(), &flags).await?;

    let (mut worker, mut waiter) = (agent.client().await?, agent.client().await?);
    for words in ["LOCK orders:1", "LOCK a", "UNLOCK a", "LOCK r KIND red"] {
        granted(&mut worker, words).await;
    }
    waiter.send("LOCK orders:1").await?;
    let both = documented("Both")?;
    let mut wanted = documented("Agent")?;
    // Only of clusters: the test of the alert about slots waits for this, and for the dashboard's.
    wanted.remove("lockscope_agent_unserved_slots").context("it is a row")?;
    wanted.extend(both.clone());
    eventually("the agent to export all that is documented", async || {
        compare(&wanted, &agent.metrics().await?)
    })
    .await;

    // A lock that leaks, once the dashboard knows it as a lock, and that has a waiter elsewhere.
    let (mut direct, mut elsewhere) = (redis.client().await?, redis.client().await?);
    ok(&mut elsewhere, "SUBSCRIBE redisson_lock__channel:{orders:1}").await?;
    eventually("the dashboard to know the lock", async || {
        let list = dashboard.json("/api/v1/locks").await?;
        let known =
            list["locks"].as_array().is_some_and(|l| l.iter().any(|l| l["name"] == "orders:1"));
        ensure!(known, "{list}");
        Ok(())
    })
    .await;
    let mut wanted = documented("Dashboard")?;
    // A problem must last for a minute before it appears here: the test of the panels waits for that.
    wanted.remove("lockscope_dashboard_problem_since_timestamp_seconds").context("it is a row")?;
    wanted.remove("lockscope_dashboard_unserved_slots").context("it is a row")?;
    wanted.extend(both);
    eventually("the dashboard to export all that is documented", async || {
        // Each renewal of the agent sets the time to live again.
        ok(&mut direct, "PERSIST orders:1").await?;
        compare(&wanted, &dashboard.metrics().await?)
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn ungrouped_counters_start_at_0() -> Result<()> {
    let redis = RedisServer::start().await?;
    let (agent, _others) = with_all_features(&redis).await?;
    let fresh = agent.metrics().await?;
    let there = exported(&fresh);
    for (name, about) in documented("Agent")? {
        let wanted = about.kind == "counter" && !about.labels.contains("lock_group");
        assert!(!wanted || there.contains_key(&name), "{name} is not there from the start");
    }
    // All of their outcomes exist from the start: use of the agent adds no series to these.
    let series = |metrics: &Metrics| {
        let lines = metrics.0.lines();
        let lines = lines.filter(|line| {
            ["commands_total", "red_votes_total", "redis_errors_total", "sessions_rejected_total"]
                .iter()
                .any(|name| line.starts_with(&format!("lockscope_agent_{name}{{")))
        });
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect::<BTreeSet<_>>()
    };
    let mut worker = agent.client().await?;
    for words in ["LOCK a KIND fair", "LOCK a KIND fair", "UNLOCK a", "PING", "HOLDS", "LOCKS"] {
        granted(&mut worker, words).await;
    }
    for wrong in ["UNLOCK b", "nonsense", "SHOW", "EXTEND b 1000"] {
        assert!(worker.call(wrong).await?.error().is_some(), "{wrong}");
    }
    let used = agent.metrics().await?;
    assert_eq!(series(&fresh), series(&used));
    let outcomes = |kind: &str| {
        let kind = format!("kind=\"{kind}\"");
        let lines = used.0.lines().filter(|l| l.starts_with("lockscope_agent_acquisitions_total{"));
        lines.filter(|line| line.contains(&kind)).count()
    };
    assert_eq!((outcomes("lock"), outcomes("fair"), outcomes("read")), (7, 7, 0), "{}", used.0);
    Ok(())
}

#[tokio::test]
async fn metrics_are_served_while_redis_is_frozen() -> Result<()> {
    let mut redis = RedisServer::start().await?;
    let agent = Agent::with(&redis, &["--lease", "10m"]).await?;
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    let mut worker = agent.client().await?;
    ok(&mut worker, "LOCK report").await?;
    const LOCKS: &str = "lockscope_dashboard_locks{";
    eventually("the dashboard to count the lock", async || {
        ensure!(dashboard.metrics().await?.0.contains(LOCKS), "no locks yet");
        Ok(())
    })
    .await;
    redis.process().freeze().await?;
    let down = [("source", "poll"), ("state", "down")];
    eventually("both to say that Redis is out of reach", async || {
        let (ours, theirs) = (agent.metrics().await?, dashboard.metrics().await?);
        ensure!(ours.sum("lockscope_agent_redis_up", &[]) == 0.0, "{}", ours.0);
        ensure!(theirs.sum("lockscope_dashboard_redis_up", &[]) == 0.0, "{}", theirs.0);
        ensure!(theirs.sum("lockscope_dashboard_source_state", &down) == 1.0, "{}", theirs.0);
        Ok(())
    })
    .await;
    // Metrics that the agent knows itself are still exported; those that the dashboard cannot read are absent, not 0.
    let ours = agent.metrics().await?;
    assert_eq!(ours.sum("lockscope_agent_holds", &[]), 1.0);
    assert!(ours.sum("lockscope_agent_oldest_hold_start_timestamp_seconds", &[]) > 0.0);
    assert_eq!(ours.sum("lockscope_agent_lost_holds_total", &[]), 0.0);
    let theirs = dashboard.metrics().await?;
    for absent in [LOCKS, "lockscope_dashboard_holders{", "lockscope_dashboard_problems{"] {
        assert!(!theirs.0.contains(absent), "{absent}: {}", theirs.0);
    }
    // Many scrapes while another LOCK hangs on Redis: none of them waits for it.
    worker.send("LOCK other").await?;
    for port in [agent.http(), dashboard.port()] {
        for _ in 0..50 {
            assert_eq!(http::get(port, "/metrics").await?.status, 200);
        }
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", redis.process().pid()))?;
    assert!(stat.contains(") T "), "Redis stood still all the time: {stat}");
    redis.process().thaw()?;
    worker.reply().await?.ok()?;
    eventually("both to see again", async || {
        let up = agent.metrics().await?.sum("lockscope_agent_redis_up", &[]);
        ensure!(up == 1.0, "the agent does not");
        ensure!(dashboard.metrics().await?.0.contains(LOCKS), "the dashboard does not");
        Ok(())
    })
    .await;
    Ok(())
}
