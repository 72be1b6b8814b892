//! Compares two builds in one run: measures the programs of another commit and our own in turn, round by round.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use serde_json::Value;
use tokio::process::Command;

use crate::report::{self, Spread};
use crate::rows::{Name, Options};

/// The variable that names the folder of the programs to measure.
const PROGRAMS: &str = "LOCKSCOPE_TEST_PROGRAMS";

/// The figures of one build in each round, by subject and figure.
type Figures = BTreeMap<(String, String), Vec<f64>>;

/// Measures one row with the programs in `base` and with our own, and returns the ratios as a table.
///
/// The order changes from round to round, so that a machine that grows slower favours neither.
pub(crate) async fn row(name: Name, base: &Path, options: Options) -> Result<String> {
    let (mut before, mut after) = (Figures::new(), Figures::new());
    for round in 0..options.rounds {
        let ours = round % 2 == 1;
        for ours in [ours, !ours] {
            let figures = if ours { &mut after } else { &mut before };
            let programs = if ours { None } else { Some(base) };
            let document = measure(name, programs, options).await;
            let who = if ours { "our own programs" } else { "the base" };
            for (key, value) in read(&document.context(who)?)? {
                figures.entry(key).or_default().push(value);
            }
        }
    }
    let row = name.to_possible_value().context("no row is hidden")?;
    Ok(table(row.get_name(), options.rounds, &before, &after))
}

/// Measures one round of a row in a separate process.
async fn measure(name: Name, programs: Option<&Path>, options: Options) -> Result<Value> {
    let row = name.to_possible_value().context("no row is hidden")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--json", "--no-peers", "--rounds", "1", "--seconds"]);
    command.arg(options.time.as_secs_f64().to_string()).arg(row.get_name());
    if let Some(folder) = programs {
        command.env(PROGRAMS, folder);
    }
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = command.output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", row.get_name());
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the figures of a document, without those of bare limits.
fn read(document: &Value) -> Result<Vec<((String, String), f64)>> {
    let row = document.get(0).context("no row was measured")?;
    let list = |name: &str| row[name].as_array().cloned().unwrap_or_default();
    let figures = list("figures").into_iter().map(|figure| (figure["who"].clone(), figure));
    let targets = list("targets").into_iter().map(|target| (target["target"].clone(), target));
    let mut values = Vec::new();
    for (who, figure) in figures.chain(targets) {
        let who = who.as_str().context("no name")?.to_owned();
        let what = figure.get("what").or_else(|| figure.get("measured"));
        let what = what.and_then(Value::as_str).context("no unit")?.to_owned();
        let value = figure["value"]["median"].as_f64().context("no value")?;
        if !who.starts_with("bare ") {
            values.push(((who, what), value));
        }
    }
    Ok(values)
}

fn table(row: &str, rounds: usize, before: &Figures, after: &Figures) -> String {
    let mut out = format!("{row}: this build compared with the base ({rounds} rounds)\n");
    let head = ["", "", "base", "this build", "ratio", ""];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for ((who, what), values) in after {
        let Some(others) = before.get(&(who.clone(), what.clone())) else { continue };
        let pairs = values.iter().zip(others).filter(|(_, other)| **other != 0.0);
        let ratios: Vec<f64> = pairs.map(|(value, other)| value / other).collect();
        if ratios.is_empty() {
            continue;
        }
        let ratio = Spread::of(ratios);
        // With fewer rounds, chance alone puts all of them on one side too often.
        let changed = rounds >= 3 && (ratio.min > 1.0 || ratio.max < 1.0);
        lines.push(vec![
            who.clone(),
            what.clone(),
            Spread::of(others.clone()).text(),
            Spread::of(values.clone()).text(),
            ratio.text(),
            if changed { "changed".to_owned() } else { String::new() },
        ]);
    }
    report::columns(&mut out, &lines);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures(values: &[f64]) -> Figures {
        let mut figures = Figures::new();
        for value in values {
            let value = json!({ "median": value });
            let row = json!([{
                "figures": [
                    { "who": "bare echo", "what": "p50 µs", "value": { "median": 1.0 } },
                    { "who": "agent", "what": "p50 µs", "value": value },
                ],
                "targets": [],
            }]);
            for (key, value) in read(&row).expect("it is complete") {
                figures.entry(key).or_default().push(value);
            }
        }
        figures
    }

    #[test]
    fn only_a_change_in_each_round_counts() {
        let base = figures(&[10.0, 20.0, 40.0]);
        let text = table("row", 3, &base, &figures(&[11.0, 23.0, 45.0]));
        assert!(text.contains("(1.10..1.15)") && text.contains("changed"), "{text}");
        let text = table("row", 3, &base, &figures(&[9.0, 23.0, 45.0]));
        assert!(!text.contains("changed"), "{text}");
        assert!(!text.contains("echo"), "{text}");
    }
}
