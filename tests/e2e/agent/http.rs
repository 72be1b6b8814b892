//! The HTTP server of the agent.

use anyhow::{Context as _, Result, ensure};
use harness::agent::Metrics;
use harness::process::on_path;
use harness::{Foreign, eventually, http, project};

use super::{Bench, lock};

#[tokio::test]
async fn metrics_are_valid_and_count_events() -> Result<()> {
    let bench = Bench::new().await?;
    let before = bench.agent.metrics().await?;
    for reason in ["unconfirmed", "missing", "stolen", "forced", "frozen", "drained", "restarted"] {
        let series = format!("lockscope_agent_lost_holds_total{{reason=\"{reason}\"}} 0");
        assert!(before.0.contains(&series), "{series} is there from the start");
    }
    let mut worker = bench.session().await?;
    for i in 0..5 {
        lock(&mut worker, &format!("LOCK orders:{i}")).await?;
    }
    lock(&mut worker, "LOCK orders:0").await?;
    let mut other = bench.session().await?;
    other.call("LOCK orders:0 NOWAIT").await?.ok()?;
    let metrics = bench.agent.metrics().await?;
    let acquisitions = "lockscope_agent_acquisitions_total";
    let group = ("lock_group", "orders:*");
    assert_eq!(metrics.sum(acquisitions, &[group, ("outcome", "acquired")]), 5.0);
    assert_eq!(metrics.sum(acquisitions, &[group, ("outcome", "reentered")]), 1.0);
    assert_eq!(metrics.sum(acquisitions, &[group, ("outcome", "busy")]), 1.0);
    assert_eq!(metrics.sum("lockscope_agent_holds", &[group]), 5.0);
    eventually("the session of the start check to end", async || {
        let sessions = bench.agent.metrics().await?.sum("lockscope_agent_sessions", &[]);
        ensure!(sessions == 2.0, "{sessions}");
        Ok(())
    })
    .await;
    let opened = |metrics: &Metrics| metrics.sum("lockscope_agent_sessions_opened_total", &[]);
    assert_eq!(opened(&metrics), opened(&before) + 2.0);
    assert_eq!(metrics.sum("lockscope_agent_redis_up", &[]), 1.0);
    let started = "lockscope_agent_oldest_hold_start_timestamp_seconds";
    assert!(metrics.sum(started, &[group]) > 1_600_000_000.0);
    assert!(metrics.sum("process_resident_memory_bytes", &[]) > 0.0);
    drop(worker);
    let ended = "lockscope_agent_hold_seconds_count";
    bench.until_metric(ended, &[("end", "disconnected")], 5.0).await;
    promtool(&bench.agent.metrics().await?.0)
}

/// Asserts that Prometheus' own tool finds no mistakes in these metrics.
pub(crate) fn promtool(metrics: &str) -> Result<()> {
    use std::io::Write as _;
    let promtool = on_path("promtool").context("no promtool: `make deps` installs it")?;
    let mut command = std::process::Command::new(promtool);
    command.args(["check", "metrics"]);
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("piped")?.write_all(metrics.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "promtool: {said}");
    Ok(())
}

#[tokio::test]
async fn names_never_create_unbounded_labels() -> Result<()> {
    let bench = Bench::with(&["--max-groups", "5"]).await?;
    let mut worker = bench.session().await?;
    for i in 0..200 {
        let letters = |n: u8| char::from(b'a' + n % 26);
        let name = format!("{}{}{}", letters(i), letters(i / 26), letters(i.wrapping_mul(7)));
        lock(&mut worker, &format!("LOCK {name}")).await?;
    }
    let metrics = bench.agent.metrics().await?;
    let series = metrics.0.lines().filter(|line| line.starts_with("lockscope_agent_holds{"));
    assert!(series.count() <= 6, "five groups and the rest");
    assert!(metrics.sum("lockscope_agent_holds", &[("lock_group", "overflow")]) > 0.0);
    assert!(metrics.sum("lockscope_agent_lock_groups", &[]) >= 100.0);
    Ok(())
}

/// The maximum number of series of one agent, regardless of the names of its locks.
const SERIES: usize = 10_000;

#[tokio::test]
async fn ten_thousand_names_stay_within_the_bound_on_series() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let letter = |n: u32| char::from(b'a' + u8::try_from(n % 26).unwrap_or(0));
    for batch in 0..100_u32 {
        let mut bytes = Vec::new();
        for i in batch * 100..(batch + 1) * 100 {
            let name: String = [i / 17_576, i / 676, i / 26, i].map(letter).iter().collect();
            let kind = ["lock", "fair", "fenced", "read", "write"][i as usize % 5];
            bytes.extend_from_slice(
                format!("LOCK {name} KIND {kind}\r\nUNLOCK {name}\r\n").as_bytes(),
            );
        }
        worker.send_bytes(&bytes).await?;
        for _ in 0..200 {
            worker.reply().await?.ok()?;
        }
    }
    let metrics = bench.agent.metrics().await?;
    assert_eq!(metrics.sum("lockscope_agent_lock_groups", &[]), 10_000.0);
    assert_eq!(metrics.sum("lockscope_agent_holds", &[]), 0.0);
    let series = metrics.0.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < SERIES, "{series}");
    documented_series("an agent", series)?;
    promtool(&metrics.0)
}

/// Asserts that metrics.md gives roughly the right number of series for 10,000 names.
fn documented_series(of: &str, series: usize) -> Result<()> {
    let text = project::text("docs/reference/metrics.md")?;
    let stated =
        text.split(&format!("{of} exports about ")).nth(1).context("it states no number")?;
    let stated: usize =
        stated.split_whitespace().next().unwrap_or_default().replace(',', "").parse()?;
    assert!(
        stated.abs_diff(series) < series / 10,
        "metrics.md states {stated} series, the agent has {series}"
    );
    Ok(())
}

#[tokio::test]
async fn sessions_are_listed_only_when_allowed() -> Result<()> {
    let bench = Bench::new().await?;
    let refused = http::get(bench.agent.http(), "/api/v1/locks").await?;
    assert_eq!(refused.status, 404);
    assert!(refused.body.contains("--http-sessions"), "{}", refused.body);
    let bench = Bench::with(&["--http-sessions"]).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    let listed = http::get(bench.agent.http(), "/api/v1/locks").await?.json()?;
    assert!(listed.to_string().contains("\"lock\":\"a\""), "{listed}");
    Ok(())
}

#[tokio::test]
async fn requests_for_other_host_names_are_refused() -> Result<()> {
    let bench = Bench::new().await?;
    let port = bench.agent.http();
    for path in ["/metrics", "/", "/readyz"] {
        let evil = http::request(port, "GET", path, &[("Host", "evil.example")], "").await?;
        assert!((400..500).contains(&evil.status), "{path}: {}", evil.status);
    }
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for name in ["localhost", &own] {
        let host = format!("{name}:{port}");
        let fine = http::request(port, "GET", "/metrics", &[("Host", &host)], "").await?;
        assert_eq!(fine.status, 200, "{host}");
    }
    assert_eq!(http::get(port, "/").await?.status, 200);
    assert_eq!(http::get(port, "/nothing").await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn foreign_holders_do_not_affect_our_metrics() -> Result<()> {
    let bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("a").await?);
    let mut worker = bench.session().await?;
    assert_eq!(worker.call("LOCK a NOWAIT").await?, harness::Reply::Null);
    let metrics = bench.agent.metrics().await?;
    assert_eq!(metrics.sum("lockscope_agent_holds", &[]), 0.0);
    assert_eq!(metrics.sum("lockscope_agent_waiters", &[]), 0.0, "it has left");
    Ok(())
}
