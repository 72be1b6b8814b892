//! The list of problems, with one row for each.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::Filter;
use super::list::{Listed, Position, Published, Rank, RowId};
use crate::clock::SteadyMillis;
use crate::model::types::{Certainty, LockId, LockView, ProblemKind, ProblemView};
use crate::schema::schema_of;

/// A problem with the lock that has it.
#[derive(Debug, Clone)]
pub struct ProblemRow {
    pub lock: Arc<LockView>,
    /// The index of the problem in the lock's problems.
    index: usize,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ProblemOfLock)]
struct ProblemJson<'a> {
    lock: &'a LockId,
    #[serde(flatten)]
    problem: &'a ProblemView,
}

schema_of!(ProblemRow => ProblemJson<'_>);

impl ProblemRow {
    #[must_use]
    pub fn problem(&self) -> &ProblemView {
        &self.lock.problems[self.index]
    }
}

impl Serialize for ProblemRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ProblemJson { lock: &self.lock.id, problem: self.problem() }.serialize(serializer)
    }
}

/// Returns the rank by severity: acknowledged problems last, certain before suspected ones, then the worst first, then
/// by age.
pub(super) fn severity(
    acknowledged: bool,
    certainty: Certainty,
    problem: ProblemKind,
    since: SteadyMillis,
) -> Rank {
    let (acknowledged, suspected) =
        (u64::from(acknowledged), u64::from(certainty == Certainty::Suspected));
    ((acknowledged << 33) | (suspected << 32) | problem as u64, since.0)
}

impl Listed for ProblemRow {
    type Schema = Self;
    const NAME: &'static str = "problems";
    const SORTS: &'static [&'static str] = &["severity", "age", "name"];

    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self> {
        let troubled = published.snapshot.notable().filter(|lock| !lock.problems.is_empty());
        troubled
            .filter(|lock| filter.matches(lock, now))
            .flat_map(|lock| {
                (0..lock.problems.len()).map(|index| Self { lock: Arc::clone(lock), index })
            })
            .collect()
    }

    fn id(&self) -> RowId<'_> {
        RowId { problem: self.problem().problem.as_str(), ..RowId::of_lock(&self.lock.id) }
    }

    fn position(&self, sort: &str) -> Position<'_> {
        let problem = self.problem();
        let rank = match sort {
            "age" => (problem.since.0, 0),
            "name" => (0, 0),
            _ => {
                let acknowledged = problem.acknowledged.is_some();
                severity(acknowledged, problem.certainty, problem.problem, problem.since)
            }
        };
        Position { rank, text: b"", id: self.id() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::fixtures::{acknowledged, leaked, lock, published};
    use thin_vec::thin_vec;

    #[test]
    fn acknowledged_problems_leave_the_top() {
        let with = |name, problem| LockView { problems: thin_vec![problem], ..lock(name) };
        let published = published([with("a", acknowledged()), with("b", leaked())]);
        let rows = ProblemRow::all(&published, &Filter::default(), SteadyMillis(2_000_000));
        let rank = |name: &str| {
            let row = rows.iter().find(|row| row.lock.id.name.as_str() == Some(name));
            row.unwrap().position("severity").rank
        };
        assert!(rank("b") < rank("a"));
    }
}
