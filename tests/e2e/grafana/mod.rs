//! The contents of `grafana/` with a real Prometheus that scrapes real programs.

mod alerts;
mod healthy_load;
mod notifications;
mod panels;
mod problem_alerts;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::project::{path, text};
use harness::{process, programs};

/// The folder that contains the rules.
const FOLDER: &str = "grafana/prometheus";
/// The rules as shipped: one file for agents and one for dashboards, each complete.
const AGENT_RULES: &str = "lockscope-agent.rules.yml";
const DASHBOARD_RULES: &str = "lockscope-dashboard.rules.yml";

/// Returns one file of rules.
fn rules_in(file: &str) -> Result<String> {
    text(&format!("{FOLDER}/{file}"))
}

/// Returns the name of the unit tests of a file of rules.
fn unit_tests(file: &str) -> String {
    file.replace(".yml", ".test.yml")
}

/// Returns the rules of both files as one file.
fn rules() -> Result<String> {
    let dashboard = rules_in(DASHBOARD_RULES)?;
    let (_, groups) = dashboard.split_once("groups:\n").context("no groups")?;
    Ok(rules_in(AGENT_RULES)? + groups)
}

/// Runs a program in this folder.
fn succeeds(name: &str, folder: &Path, arguments: &[&str]) -> Result<()> {
    let program = process::on_path(name);
    let program = program.with_context(|| format!("there is no {name}: see `make deps`"))?;
    let output = Command::new(program).current_dir(folder).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} {arguments:?}: {said}");
    Ok(())
}

#[test]
fn promtool_accepts_the_rules_and_the_example() -> Result<()> {
    for file in [AGENT_RULES, DASHBOARD_RULES] {
        succeeds("promtool", &path(FOLDER), &["check", "rules", file])?;
    }
    succeeds("promtool", &path(FOLDER), &["check", "config", "prometheus.yml"])
}

#[test]
fn amtool_accepts_the_example_which_routes_by_severity() -> Result<()> {
    succeeds("amtool", &path(FOLDER), &["check-config", "alertmanager.yml"])?;
    for (severity, receiver) in [("critical", "pager"), ("warning", "tickets"), ("info", "log")] {
        let file = "--config.file=alertmanager.yml";
        let expected = format!("--verify.receivers={receiver}");
        let label = format!("severity={severity}");
        succeeds("amtool", &path(FOLDER), &["config", "routes", "test", file, &expected, &label])?;
    }
    Ok(())
}

/// An alert about what happened within 5 minutes ends 5 minutes after a single event.
#[test]
fn alerts_about_single_events_are_notified_before_they_end() -> Result<()> {
    let example = text("grafana/prometheus/alertmanager.yml")?;
    let seconds = |text: &str| -> Option<u64> {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        Some(number.parse::<u64>().ok()? * if unit == "m" { 60 } else { 1 })
    };
    let setting = |text: &str, name: &str| {
        let (_, rest) = text.split_once(name)?;
        seconds(rest.lines().next()?.trim())
    };
    let mut checked = 0;
    for rule in rules()?.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap_or_default();
        let recent = ["[5m])) > 0\n", "p99_5m\n"].iter().any(|end| rule.contains(end));
        if !recent || rule.contains("severity: critical") {
            continue;
        }
        let severity = if rule.contains("severity: info") { "'severity = info'" } else { name };
        let route = example.split("    - matchers: ").find(|route| {
            route.split('\n').next().is_some_and(|matchers| matchers.contains(severity))
        });
        let wait = setting(route.unwrap_or(&example), "group_wait: ").context("no group_wait")?;
        let lasts = setting(rule, "        for: ").unwrap_or(0);
        // A scrape and an evaluation are up to 15 s late.
        ensure!(lasts + wait + 30 < 300, "{name} is notified {wait} s after {lasts} s");
        checked += 1;
    }
    ensure!(checked > 5, "{checked} alerts");
    Ok(())
}

#[test]
fn alerts_pass_their_unit_tests() -> Result<()> {
    for file in [AGENT_RULES, DASHBOARD_RULES] {
        succeeds("promtool", &path(FOLDER), &["test", "rules", &unit_tests(file)])?;
    }
    Ok(())
}

/// The labels are those with which the alerts fire in their unit tests.
#[test]
fn suppressed_alerts_share_labels_with_their_cause() -> Result<()> {
    let example = text("grafana/prometheus/alertmanager.yml")?;
    let tests = rules_in(&unit_tests(AGENT_RULES))? + &rules_in(&unit_tests(DASHBOARD_RULES))?;
    let (_, inhibitions) = example.split_once("inhibit_rules:\n").context("no inhibitions")?;
    for inhibition in inhibitions.split("- source_matchers:").skip(1) {
        let labels = inhibition.split("equal: [").nth(1).context("no labels")?;
        let labels = labels.split(']').next().unwrap_or_default();
        let names = inhibition.split(|c: char| !c.is_ascii_alphanumeric());
        for name in names.filter(|word| word.starts_with("Lockscope")) {
            let alert = format!("alertname: {name}\n");
            let cases = tests.split(&alert).skip(1);
            let fired: Vec<_> = cases
                .filter_map(|case| case.split_once("exp_labels: {")?.1.split('}').next())
                .collect();
            assert!(!fired.is_empty(), "{name} does not fire in its tests");
            for label in labels.split(", ") {
                let label = format!("{label}: ");
                assert!(fired.iter().all(|labels| labels.contains(&label)), "{name}: {fired:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn each_file_of_rules_uses_only_its_own_program() -> Result<()> {
    let (agent, dashboard) = (rules_in(AGENT_RULES)?, rules_in(DASHBOARD_RULES)?);
    for (rules, other) in [(agent, "dashboard"), (dashboard, "agent")] {
        let job = format!("job=\"lockscope-{other}\"");
        let (_, rules) = rules.split_once("groups:\n").context("no groups")?;
        assert!(!rules.contains(&format!("lockscope_{other}_")) && !rules.contains(&job));
    }
    Ok(())
}

#[test]
fn links_of_alerts_are_set_as_documented() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let manual = text("docs/reference/alerts.md")?;
    let steps = manual.split("```").nth(1).and_then(|block| block.strip_prefix("sh\n"));
    let program = programs::path("lockscope-dashboard")?;
    let folder = program.parent().context("a folder")?.display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.current_dir(&scratch).env("PATH", format!("{folder}:{path}"));
    let output = shell.args(["-e", "-c", steps.context("no steps in alerts.md")?]).output()?;
    ensure!(output.status.success(), "{output:?}");
    let rendered = std::fs::read_to_string(scratch.path().join("lockscope.rules.yml"))?;
    let links = |key: &str| rendered.lines().filter(|line| line.contains(key)).count();
    let set = |base: &str| rendered.matches(base).count();
    assert_eq!(links("runbook_url: "), set("https://wiki.example.com/lockscope/runbooks/"));
    assert_eq!(links("dashboard_url: "), set("'https://locks.example.com/"));
    assert_eq!(links("alert: "), links("runbook_url: "));
    assert!(!rendered.contains("lockscope.example") && !rendered.contains("runbooks.example"));
    let of_both = |key: &str| -> Result<usize> {
        let files = [rules_in(AGENT_RULES)?, rules_in(DASHBOARD_RULES)?];
        Ok(files.iter().map(|file| file.matches(key).count()).sum())
    };
    assert_eq!(links("- alert: "), of_both("- alert: ")?);
    assert_eq!(links("- record: "), of_both("- record: ")?);
    Ok(())
}
