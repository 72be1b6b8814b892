//! Every panel has data and uses documented metrics only.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use harness::{PATIENCE, Prometheus, eventually, http, within};
use serde_json::Value;

use super::{rules, succeeds, text};
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

/// Returns the queries of the panels of all boards, each with its place.
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

/// Returns the queries of the variables of all boards, each with its place. Their values are those of a label.
fn variables() -> Result<Vec<(String, String)>> {
    let mut queries = Vec::new();
    for name in BOARDS {
        let board = board(name)?;
        for variable in board["templating"]["list"].as_array().into_iter().flatten() {
            let place = format!("{name}: ${}", variable["name"]);
            let Some(query) = variable["query"]["query"].as_str() else { continue };
            let (series, label) = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "))
                .with_context(|| format!("{place}: {query}"))?;
            // Without the series that do not have the label.
            let query =
                format!("count by ({label}) ({series}) unless count by ({label}) (vector(1))");
            queries.push((place, query));
        }
    }
    ensure!(queries.len() > 2 * BOARDS.len(), "{queries:?}");
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
    for (_, query) in queries()?.into_iter().chain(variables()?) {
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

/// Other programs have metrics of these names too, and `All` must not mean them.
#[test]
fn panels_of_processes_are_limited_to_the_scrape_jobs_of_the_programs() -> Result<()> {
    let mut found = 0;
    for name in BOARDS {
        let board = board(name)?;
        let is_limited = board["templating"]["list"].as_array().into_iter().flatten().any(|it| {
            it["name"] == "job" && it["includeAll"] == true && it.get("allValue").is_none()
        });
        for panel in panels(&board) {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().unwrap_or_default();
                if query.contains("process_") || query.contains("tokio_") {
                    ensure!(is_limited && query.contains("job=~\"$job\""), "{name}: {query}");
                    found += 1;
                }
            }
        }
    }
    ensure!(found > 3, "{found} queries");
    Ok(())
}

/// A board, one of its panels, and the labels and the value of the only sample that it shows, if any.
type Shown<'a> = (&'a str, &'a str, Option<(&'a str, f64)>);

/// Verifies what panels show after a minute with these series.
fn verify(series: &[(&str, f64)], results: &[Shown<'_>]) -> Result<()> {
    let mut test = "tests:\n  - interval: 5s\n    input_series:\n".to_owned();
    for (series, value) in series {
        test.push_str(&format!("      - {{series: '{series}', values: '{value}x12'}}\n"));
    }
    test.push_str("    promql_expr_test:\n");
    for (name, title, result) in results {
        let board = board(name)?;
        let panel = panels(&board).into_iter().find(|panel| panel["title"] == *title);
        let query =
            panel.and_then(|panel| panel["targets"][0]["expr"].as_str()).context("a query")?;
        let sample = result.map_or_else(String::new, |(labels, value)| {
            format!("{{labels: '{labels}', value: {value}}}")
        });
        let query = filled(query);
        test.push_str(&format!(
            "      - {{expr: '{query}', eval_time: 1m, exp_samples: [{sample}]}}\n"
        ));
    }
    run(&test)
}

/// Runs a unit test of queries.
fn run(test: &str) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    std::fs::write(scratch.path().join("panels.yml"), test)?;
    succeeds("promtool", scratch.path(), &["test", "rules", "panels.yml"])
}

#[test]
fn losses_are_marked_even_if_prometheus_scrapes_once_a_minute() -> Result<()> {
    let mut test = "tests:\n  - interval: 1m\n    input_series:\n".to_owned();
    for reason in ["missing", "forced"] {
        let labels = format!("job=\"j\",instance=\"a\",lock_group=\"g\",reason=\"{reason}\"");
        let series = format!("lockscope_agent_locks_lost_total{{{labels}}}");
        test.push_str(&format!("      - {{series: '{series}', values: '0 0 1 1'}}\n"));
    }
    test.push_str("    promql_expr_test:\n");
    for name in BOARDS {
        let board = board(name)?;
        let annotations = board["annotations"]["list"].as_array().context("annotations")?;
        ensure!(annotations.len() == 2, "{name}: {annotations:?}");
        for annotation in annotations {
            let query = filled(annotation["expr"].as_str().context("a query")?);
            test.push_str(&format!(
                "      - {{expr: 'count({query})', eval_time: 2m30s, exp_samples: [{{value: 1}}]}}\n"
            ));
        }
    }
    run(&test)
}

#[test]
fn two_dashboards_of_one_redis_are_not_added_up() -> Result<()> {
    let state = |instance: &str| {
        format!(
            "lockscope_dashboard_source_state{{instance=\"{instance}\",deployment=\"main\",node=\"r:6379\",\
             source=\"scan\",state=\"on\"}}"
        )
    };
    let (one, two) = (state("d"), state("e"));
    let of_event = "instance=\"d\",source=\"poll\",event=\"renewed\"";
    let events = format!("lockscope_dashboard_events_total{{{of_event}}}");
    verify(
        &[(&one, 1.0), (&two, 1.0), (&events, 7.0)],
        &[
            (
                "overview",
                "Dashboards: state of the sources",
                Some(("{source=\"scan\",state=\"on\"}", 1.0)),
            ),
            ("overview", "Observed events", Some((&format!("{{{of_event}}}"), 0.0))),
        ],
    )
}

#[test]
fn a_problem_of_which_only_one_of_two_dashboards_is_certain_counts_once() -> Result<()> {
    let problem = |instance: &str, certainty: &str| {
        format!(
            "lockscope_dashboard_problems{{instance=\"{instance}\",deployment=\"main\",problem=\"leaked\",\
             certainty=\"{certainty}\",lock_group=\"g\",acknowledged=\"false\"}}"
        )
    };
    let (one, two) = (problem("d", "certain"), problem("e", "suspected"));
    verify(&[(&one, 1.0), (&two, 1.0)], &[("overview", "Problems", Some(("{}", 1.0)))])
}

#[test]
fn problems_count_once_for_two_dashboards_whether_they_are_acknowledged_or_not() -> Result<()> {
    let problem = |instance: &str, acknowledged: bool| {
        format!(
            "lockscope_dashboard_problems{{instance=\"{instance}\",deployment=\"main\",problem=\"stuck\",\
             certainty=\"certain\",lock_group=\"g\",acknowledged=\"{acknowledged}\"}}"
        )
    };
    let series = [problem("d", false), problem("d", true), problem("e", false), problem("e", true)];
    let series = [(&*series[0], 2.0), (&*series[1], 3.0), (&*series[2], 2.0), (&*series[3], 3.0)];
    let of_kind = "{problem=\"stuck\",certainty=\"certain\"}";
    let of_group = "{deployment=\"main\",problem=\"stuck\",certainty=\"certain\",lock_group=\"g\"}";
    verify(
        &series,
        &[
            ("overview", "Problems", Some(("{}", 2.0))),
            ("overview", "Problems by kind", Some((of_kind, 5.0))),
            ("locks", "Problems", Some((of_group, 5.0))),
            ("locks", "Acknowledged problems", Some((of_group, 3.0))),
        ],
    )
}

#[test]
fn a_figure_is_0_only_if_somebody_looks() -> Result<()> {
    let figures =
        ["Holds at risk", "Problems", "Agents without Redis", "Programs down", "Oldest wait"];
    let all = |value: Option<f64>| figures.map(|it| ("overview", it, value.map(|it| ("{}", it))));
    verify(&[], &all(None))?;
    let blind = [("lockscope_dashboard_redis_up{deployment=\"main\",node=\"r:6379\"}", 0.0)];
    verify(&blind, &[("overview", "Problems", None)])?;
    verify(
        &[
            ("lockscope_dashboard_redis_up{deployment=\"main\",node=\"r:6379\"}", 1.0),
            (
                "lockscope_agent_redis_up{job=\"lockscope-agent\",instance=\"a\",node=\"r:6379\"}",
                1.0,
            ),
            ("lockscope_agent_jeopardy_holds{job=\"lockscope-agent\",instance=\"a\"}", 0.0),
            ("lockscope_agent_build_info{job=\"lockscope-agent\",instance=\"a\"}", 1.0),
            ("up{job=\"lockscope-agent\",instance=\"a\"}", 1.0),
        ],
        &all(Some(0.0)),
    )?;
    // An agent of a cluster or with red locks has several servers.
    let node = |node| {
        format!(
            "lockscope_agent_redis_up{{job=\"lockscope-agent\",instance=\"a\",node=\"{node}\"}}"
        )
    };
    let (one, two) = (node("r:6379"), node("s:6379"));
    verify(
        &[(&one, 0.0), (&two, 0.0)],
        &[("overview", "Agents without Redis", Some(("{}", 1.0)))],
    )?;
    // An agent that has reached no node of its cluster has no server; the other agent is healthy.
    let slots = "lockscope_agent_unserved_slots{job=\"lockscope-agent\",instance=\"b\",deployment=\"main\"}";
    verify(
        &[(&one, 1.0), (slots, 16384.0)],
        &[("overview", "Agents without Redis", Some(("{}", 1.0)))],
    )?;
    for name in BOARDS {
        let board = board(name)?;
        let blank = |panel: &&Value| panel["fieldConfig"]["defaults"]["noValue"] == "0";
        assert_eq!(panels(&board).into_iter().find(blank), None, "{name}");
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
    wanted.extend(variables()?);
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
