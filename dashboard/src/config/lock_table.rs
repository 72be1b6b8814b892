//! `[[lock]]`: the rules for locks of certain names.

use serde::Deserialize;
use service_kit::settings::HumanDuration;

use crate::model;

/// A row of `[[lock]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LockTable {
    #[serde(rename = "match")]
    pattern: String,
    stuck_after: Option<HumanDuration>,
    starving_after: Option<HumanDuration>,
    expected: Option<Expected>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Long,
}

/// Returns the rules of the rows in order, or an error that names the wrong row.
pub(super) fn rules(
    rows: Vec<LockTable>,
    usual: model::types::Rule,
    mistakes: &mut Vec<String>,
) -> Vec<model::types::LockRule> {
    let mut rules = Vec::new();
    for row in rows {
        let given = row.stuck_after.is_some() || row.starving_after.is_some();
        let rule = match (row.expected, given) {
            (Some(Expected::Long), false) => {
                model::types::Rule { stuck_after: None, starving_after: None }
            }
            (None, true) => model::types::Rule {
                stuck_after: row.stuck_after.map_or(usual.stuck_after, |after| Some(after.into())),
                starving_after: row
                    .starving_after
                    .map_or(usual.starving_after, |after| Some(after.into())),
            },
            _ => {
                mistakes.push(format!(
                    "[[lock]] `{}`: expected either `stuck_after` and `starving_after`, one or both, or `expected = \"long\"`",
                    row.pattern
                ));
                continue;
            }
        };
        rules.push(model::types::LockRule { pattern: row.pattern.into_bytes(), rule: rule.into() });
    }
    rules
}
