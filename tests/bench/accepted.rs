//! The ratios that were accepted last, in `accepted.json`: a change must not make one worse unnoticed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::report::{Bound, Row, Spread};

/// The accepted ratios: of each row, by its targets.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Accepted(BTreeMap<String, BTreeMap<String, Spread>>);

impl Accepted {
    pub(crate) fn read() -> Result<Self> {
        let path = path();
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    pub(crate) fn write(&self) -> Result<()> {
        let path = path();
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(&path, text + "\n").with_context(|| path.display().to_string())
    }

    /// Replaces the ratios of one row.
    pub(crate) fn accept(&mut self, row: &Row) {
        let ratios = row.targets().into_iter();
        let ratios = ratios.map(|(wanted, _, spread, _)| (wanted.to_owned(), spread));
        self.0.insert(row.name().to_owned(), ratios.collect());
    }

    /// Returns a sentence for each target that is worse than what was accepted, in each of its rounds.
    pub(crate) fn worse(&self, row: &Row) -> Vec<String> {
        let Some(accepted) = self.0.get(row.name()) else { return Vec::new() };
        let mut worse = Vec::new();
        for (wanted, measured, now, bound) in row.targets() {
            let Some(then) = accepted.get(wanted) else { continue };
            let beyond = match bound {
                Bound::AtMost(_) => now.min > then.max,
                Bound::AtLeast(_) => now.max < then.min,
            };
            if beyond {
                let (now, then) = (now.text(), then.text());
                let row = row.name();
                worse.push(format!("{row}, {wanted}: {measured} {now}, accepted {then}"));
            }
        }
        worse
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/accepted.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Round;

    fn row(values: &[f64]) -> Row {
        let rounds = values.iter().map(|value| {
            let mut round = Round::default();
            round.target("short", "ms", *value, Bound::AtMost(1.0));
            round.target("many", "of them", *value, Bound::AtLeast(1.0));
            round
        });
        Row::new("row".to_owned(), String::new(), rounds.collect())
    }

    #[test]
    fn a_ratio_is_worse_if_no_round_reaches_the_accepted_ones() {
        let mut accepted = Accepted::default();
        accepted.accept(&row(&[1.0, 2.0, 3.0]));
        assert_eq!(accepted.worse(&row(&[2.9, 4.0, 5.0])), Vec::<String>::new());
        assert_eq!(accepted.worse(&row(&[3.5, 4.0, 5.0])).len(), 1);
        let worse = accepted.worse(&row(&[0.5, 0.6, 0.7]));
        assert_eq!(worse, ["row, many: of them 0.60 (0.50..0.70), accepted 2.00 (1.00..3.00)"]);
    }

    #[test]
    fn the_accepted_ratios_can_be_read() {
        Accepted::read().expect("the file is part of the repository");
    }
}
