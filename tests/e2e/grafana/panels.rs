//! Every panel has data and uses documented metrics only.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use harness::{PATIENCE, Prometheus, eventually, http, within};
use serde_json::Value;

use super::{rules, text};
use crate::demo::Demo;

const BOARDS: [&str; 3] = ["overview", "agents", "locks"];

fn board(name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&text(&format!("grafana/dashboards/{name}.json"))?)?)
}

/// Returns the panels that have a query.
fn panels(board: &Value) -> Vec<&Value> {
    let panels = board["panels"].as_array().map(Vec::as_slice).unwrap_or_default();
    panels.iter().filter(|panel| panel["type"] != "row").collect()
}

/// Returns a query as Grafana sends it, with all its variables at their defaults.
fn filled(query: &str) -> String {
    ["$job", "$instance", "$deployment", "$lock_group"]
        .iter()
        .fold(query.replace("$__rate_interval", "10s"), |query, variable| {
            query.replace(variable, ".*")
        })
}

/// Returns the queries of all boards: those of panels, annotations and variables, each with its place.
fn queries() -> Result<Vec<(String, String)>> {
    let mut queries = Vec::new();
    for name in BOARDS {
        let board = board(name)?;
        for panel in panels(&board) {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().unwrap_or_default();
                queries.push((format!("{name}: {}", panel["title"]), query.to_owned()));
            }
        }
    }
    Ok(queries)
}

/// Returns the names of our metrics in a text, without the suffixes of histograms.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| {
            word.starts_with("lockscope_agent_") || word.starts_with("lockscope_dashboard_")
        })
        .map(|word| {
            let ends = ["_bucket", "_count", "_sum"];
            let bare = ends.iter().find_map(|end| word.strip_suffix(end));
            bare.unwrap_or(word).to_owned()
        })
        .collect()
}

#[test]
fn boards_and_rules_use_exactly_the_documented_metrics() -> Result<()> {
    let documented = names(&text("docs/reference/metrics.md")?);
    let mut used = BTreeSet::new();
    for (_, query) in queries()? {
        used.extend(names(&query));
    }
    let rules = rules()?;
    // Recorded metrics have names with colons; the metrics from which they are computed are in their expressions.
    used.extend(
        rules.lines().filter(|line| !line.contains(':') || line.contains("expr:")).flat_map(names),
    );
    let unknown: Vec<_> = used.difference(&documented).collect();
    assert!(unknown.is_empty(), "not in metrics.md: {unknown:?}");
    let unused: Vec<_> = documented.difference(&used).collect();
    assert!(unused.is_empty(), "on no board and in no rule: {unused:?}");
    Ok(())
}

#[test]
fn panels_have_descriptions() -> Result<()> {
    let mut uids = BTreeSet::new();
    for name in BOARDS {
        let board = board(name)?;
        let uid = board["uid"].as_str().unwrap_or_default();
        assert!(uids.insert(uid.to_owned()) && uid.starts_with("lockscope-"), "{name}: {uid}");
        let mut ids = BTreeSet::new();
        for panel in panels(&board) {
            let title = panel["title"].as_str().unwrap_or_default();
            assert!(ids.insert(panel["id"].to_string()), "{name}: two panels {}", panel["id"]);
            assert!(!title.is_empty(), "{name}: a panel without a title");
            let described = panel["description"].as_str().unwrap_or_default();
            assert!(described.len() > 10, "{name}: {title} has no description");
            let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
            assert!(!unit.is_empty(), "{name}: {title} has no unit");
            for target in panel["targets"].as_array().into_iter().flatten() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{name}: {title}");
                let query = target["expr"].as_str().unwrap_or_default();
                let counts = query.contains("_total{") || query.contains("_bucket{");
                assert!(
                    !counts || query.contains("rate(") || query.contains("increase("),
                    "{query}"
                );
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_panel_has_data() -> Result<()> {
    let demo = Demo::start().await?;
    let jobs =
        [("lockscope-agent", demo.agents.clone()), ("lockscope-dashboard", vec![demo.dashboard])];
    let prometheus = Prometheus::start(&jobs, &rules()?).await?;
    let mut wanted = queries()?;
    // The demo's Redis has no replicas that could confirm a grant.
    wanted.retain(|(_, query)| !query.contains("lockscope_agent_replica"));
    assert!(wanted.len() > 50, "{} queries", wanted.len());
    // A lock is stuck after 20 s in the demo, and named in metrics after another minute.
    within(2 * PATIENCE, "data in every panel", async || {
        let mut missing = Vec::new();
        for (place, query) in wanted.drain(..) {
            let rows = prometheus.query(&filled(&query)).await?;
            let numbers = rows.iter().filter(|row| row["value"][1] != "NaN").count();
            if numbers == 0 {
                missing.push((place, query));
            }
        }
        wanted = missing;
        let places: Vec<_> = wanted.iter().map(|(place, _)| place).collect();
        ensure!(wanted.is_empty(), "no data yet: {places:?}");
        Ok(())
    })
    .await;
    // This problem is the last that the demo shows.
    eventually("an orphan", async || {
        let found = http::get(demo.dashboard, "/api/v1/problems?limit=100").await?.json()?;
        let found = found["problems"].as_array().cloned().unwrap_or_default();
        let orphan = found.iter().find(|problem| problem["problem"] == "orphan");
        ensure!(orphan.is_some_and(|p| p["lock"]["name"] == "orphan:mail-merge"), "{found:#?}");
        Ok(())
    })
    .await;
    Ok(())
}
