//! The contents of `grafana/` with a real Prometheus that scrapes real programs.

mod alerts;
mod healthy_load;
mod panels;
mod problem_alerts;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::process;

/// The rules as they are shipped.
const RULES: &str = "grafana/prometheus/lockscope.rules.yml";

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

fn text(file: &str) -> Result<String> {
    std::fs::read_to_string(path(file)).with_context(|| format!("cannot read {file}"))
}

/// Runs promtool in the folder of the rules.
fn promtool(arguments: &[&str]) -> Result<()> {
    let program = process::on_path("promtool").context("there is no promtool: see `make deps`")?;
    let folder = path(RULES).with_file_name("");
    let output = Command::new(program).current_dir(folder).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "promtool {arguments:?}: {said}");
    Ok(())
}

#[test]
fn promtool_accepts_the_rules_and_the_example() -> Result<()> {
    promtool(&["check", "rules", "lockscope.rules.yml"])?;
    promtool(&["check", "config", "prometheus.yml"])
}

#[test]
fn alerts_pass_their_unit_tests() -> Result<()> {
    promtool(&["test", "rules", "lockscope.rules.test.yml"])
}
