//! The report: medians and spread over the rounds, and each target with its result.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::stats::quantile;

/// The condition of a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// The median is at most this.
    AtMost(f64),
    /// The median is at least this.
    AtLeast(f64),
}

/// One round of one row.
#[derive(Debug, Default)]
pub(crate) struct Round {
    figures: Vec<(String, &'static str, f64)>,
    targets: Vec<(&'static str, &'static str, f64, Bound)>,
}

impl Round {
    /// Adds a measurement: its subject, the figure with its unit, and the value.
    pub(crate) fn figure(&mut self, who: impl Into<String>, what: &'static str, value: f64) {
        self.figures.push((who.into(), what, value));
    }

    /// Adds a target: its description, the measurement, the value, and the bound that decides.
    pub(crate) fn target(
        &mut self,
        wanted: &'static str,
        measured: &'static str,
        value: f64,
        bound: Bound,
    ) {
        self.targets.push((wanted, measured, value, bound));
    }
}

/// A median with its spread.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        let median = quantile(&mut values, 0.5);
        Self { median, min: quantile(&mut values, 0.0), max: quantile(&mut values, 1.0) }
    }

    pub(crate) fn text(self) -> String {
        format!("{} ({}..{})", short(self.median), short(self.min), short(self.max))
    }

    fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// Formats a value with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// One row of the bench, over all its rounds.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    about: String,
    rounds: Vec<Round>,
}

impl Row {
    pub(crate) fn new(name: String, about: String, rounds: Vec<Round>) -> Self {
        Self { name, about, rounds }
    }

    /// Returns the measured programs and figures, in order of the rounds.
    fn figures(&self) -> Vec<(&str, &'static str, Spread)> {
        let mut keys: Vec<(&str, &'static str)> = Vec::new();
        for (who, what, _) in self.rounds.iter().flat_map(|round| &round.figures) {
            if !keys.contains(&(who, what)) {
                keys.push((who, what));
            }
        }
        let all = || self.rounds.iter().flat_map(|round| &round.figures);
        let values = |who: &str, what: &str| {
            all().filter(|f| f.0 == who && f.1 == what).map(|f| f.2).collect()
        };
        keys.iter().map(|(who, what)| (*who, *what, Spread::of(values(who, what)))).collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn targets(&self) -> Vec<(&'static str, &'static str, Spread, Bound)> {
        let Some(first) = self.rounds.first() else { return Vec::new() };
        let values = |wanted: &str| {
            let all = self.rounds.iter().flat_map(|round| &round.targets);
            all.filter(|t| t.0 == wanted).map(|t| t.2).collect()
        };
        let targets = first.targets.iter();
        targets
            .map(|(wanted, measured, _, bound)| {
                (*wanted, *measured, Spread::of(values(wanted)), *bound)
            })
            .collect()
    }

    /// Formats the row as text: a line for each subject, and a line for each target.
    pub(crate) fn text(&self) -> String {
        let mut out = format!("{}: {} ({} rounds)\n", self.name, self.about, self.rounds.len());
        let figures = self.figures();
        let mut whats: Vec<&str> = Vec::new();
        let mut whos: Vec<&str> = Vec::new();
        for (who, what, _) in &figures {
            if !whats.contains(what) {
                whats.push(what);
            }
            if !whos.contains(who) {
                whos.push(who);
            }
        }
        let mut lines =
            vec![std::iter::once("").chain(whats.iter().copied()).map(str::to_owned).collect()];
        for who in whos {
            let cell = |what: &&str| {
                let found = figures.iter().find(|figure| figure.0 == who && figure.1 == *what);
                found.map_or_else(String::new, |figure| figure.2.text())
            };
            lines.push(std::iter::once(who.to_owned()).chain(whats.iter().map(cell)).collect());
        }
        columns(&mut out, &lines);
        let mut lines = vec![];
        for (wanted, measured, spread, bound) in self.targets() {
            let verdict = if is_met(spread, bound) { "met" } else { "NOT MET" };
            lines.push(vec![
                format!("target: {wanted}"),
                format!("{measured} {}", spread.text()),
                verdict.to_owned(),
            ]);
        }
        columns(&mut out, &lines);
        out
    }

    /// Formats the row as JSON, for programs.
    pub(crate) fn json(&self) -> Value {
        let figures = self.figures();
        let figures = figures
            .iter()
            .map(|(who, what, spread)| json!({ "who": who, "what": what, "value": spread.json() }));
        let targets = self.targets();
        let targets = targets.iter().map(|(wanted, measured, spread, bound)| {
            json!({
                "target": wanted, "measured": measured, "value": spread.json(),
                "met": is_met(*spread, *bound),
            })
        });
        json!({
            "row": self.name, "about": self.about, "rounds": self.rounds.len(),
            "figures": figures.collect::<Vec<_>>(), "targets": targets.collect::<Vec<_>>(),
        })
    }
}

fn is_met(measured: Spread, bound: Bound) -> bool {
    match bound {
        Bound::AtMost(most) => measured.median <= most,
        Bound::AtLeast(least) => measured.median >= least,
    }
}

/// Writes lines in columns, each as wide as its widest cell.
pub(crate) fn columns(out: &mut String, lines: &[Vec<String>]) {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    for line in lines {
        let mut text = String::from(" ");
        for (cell, width) in line.iter().zip(&widths) {
            // Writing to a string cannot fail.
            write!(text, " {cell:<width$} ").unwrap_or_default();
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f64]) -> Row {
        let rounds = values.iter().map(|value| {
            let mut round = Round::default();
            round.figure("agent", "p50 µs", *value);
            round.target("at most 2", "so many", *value, Bound::AtMost(2.0));
            round.target("at least 3", "so many", *value, Bound::AtLeast(3.0));
            round
        });
        Row::new("name".to_owned(), "about".to_owned(), rounds.collect())
    }

    #[test]
    fn the_median_decides_and_the_spread_is_shown() {
        let row = row(&[1.0, 2.5, 2.0]);
        let text = row.text();
        assert!(text.contains("agent  2.00 (1.00..2.50)"), "{text}");
        let verdicts: Vec<_> = row.targets().iter().map(|t| is_met(t.2, t.3)).collect();
        assert_eq!(verdicts, [true, false]);
        let json = row.json();
        assert_eq!(json["targets"][0]["met"], true);
        assert_eq!(json["targets"][1]["met"], false);
        assert_eq!(json["figures"][0]["value"]["median"], 2.0);
    }
}
