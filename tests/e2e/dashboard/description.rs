//! Compares the API with its description, by a program that generates requests from the description: valid and invalid
//! ones, the same in each run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Foreign, Process, process, within};

use super::{Bench, problems};

/// The time limit of the program's requests, including the start of an interpreter on a busy machine.
const LONG: Duration = Duration::from_secs(900);
/// The number of valid requests that the program generates for each operation, and of invalid ones, in addition to the
/// examples and the bounds of each parameter.
const OF_EACH: &str = "12";

#[tokio::test]
async fn every_response_matches_the_description() -> Result<()> {
    let history = tempfile::tempdir()?;
    let folder = history.path().to_str().context("a path in UTF-8")?;
    // No release succeeds, because the token for the observed state cannot be guessed.
    let mut bench =
        Bench::with(&["--history-dir", folder, "--allow-release", "--insecure"]).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    // The examples of the description are about these locks and their problem.
    for name in ["orders:42", "orders:43", "other"] {
        assert!(java.lock(name).await?);
        bench.listed(name, |_| true).await;
    }
    bench.direct.call("PERSIST orders:42").await?.ok()?;
    bench.listed("orders:42", |lock| problems(lock) == ["leaked"]).await;

    let scratch = tempfile::tempdir()?;
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/dashboard/schemathesis.toml");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/.venv/bin/schemathesis");
    ensure!(program.exists(), "no {}: `make deps` installs it", program.display());
    let mut command = process::command(&program);
    command.arg("--config-file").arg(settings).args(["--no-color", "run"]);
    command.arg(bench.dashboard.url("/api/v1/openapi.json"));
    // A stream has no end, so it has separate tests.
    command.args(["--exclude-path", "/api/v1/stream"]);
    command.args(["--phases", "examples,coverage,fuzzing"]);
    command.args(["--seed", "42", "--max-examples", OF_EACH]);
    command.args(["--workers", "1", "--request-timeout", "30"]);
    command.args(["--generation-database", "none", "--suppress-health-check", "all"]);
    command.current_dir(scratch.path());
    let mut asks = Process::spawn("schemathesis", command, &scratch.path().join("log"), None)?;
    let status = within(LONG, "its end", async || asks.ended()?.context("it still asks")).await;
    assert!(status.success(), "{status}:\n{}", asks.log());

    // The requests were not only refused.
    let metrics = bench.dashboard.metrics().await?;
    let answered = |route: &str, status: &str| {
        metrics
            .sum("lockscope_dashboard_http_requests_total", &[("route", route), ("status", status)])
    };
    for route in ["locks", "lock", "owners", "problems", "contention", "events", "sources"] {
        let route = format!("/api/v1/{route}");
        assert!(answered(&route, "200") > 0.0, "{route}");
    }
    assert!(answered("/api/v1/release", "200") > 0.0, "what could be released was told");
    assert!(answered("/api/v1/acknowledge", "200") > 0.0, "a problem was taken in hand");
    Ok(())
}
