//! Locks that metrics name because of their problems. They are few, and only have lasting problems.

use std::collections::HashMap;
use std::sync::Arc;

use super::problems::{Problem, is_acknowledged};
use crate::clock::SteadyMillis;
use crate::model::types::{Certainty, LockId, ProblemKind};

/// The maximum number of locks named at a time, and of new ones in an hour.
const MAX_NAMED: usize = 50;
const MAX_NAMED_AN_HOUR: usize = 200;
/// The age of a problem from which its lock is named, and the time for which it stays named after the end.
const NAMED_AFTER_MS: u64 = 60_000;
const NAMED_FOR_MS: u64 = 300_000;
/// The longest name of a lock in a label, bytes.
const MAX_NAME: usize = 120;

/// The named locks. A row remains for a while after the problem has ended, so that graphs have no gaps.
#[derive(Debug, Default)]
pub(super) struct NamedLocks {
    rows: HashMap<(LockId, ProblemKind), Row>,
    hour: u64,
    new_this_hour: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) problem: ProblemKind,
    pub(super) certainty: Certainty,
    pub(super) deployment: Arc<str>,
    pub(super) group: Arc<str>,
    pub(super) name: String,
    pub(super) since: SteadyMillis,
    pub(super) acknowledged: bool,
    seen: SteadyMillis,
}

impl NamedLocks {
    /// Returns the rows to export now.
    pub(super) fn rows(&mut self, problems: Vec<Problem<'_>>, now: SteadyMillis) -> Vec<Row> {
        let hour = now.0 / 3_600_000;
        if self.hour != hour {
            self.hour = hour;
            self.new_this_hour = 0;
        }
        self.rows.retain(|_, row| now.millis_since(row.seen) < NAMED_FOR_MS);
        let mut candidates = problems;
        candidates.retain(|(_, problem)| now.millis_since(problem.since) >= NAMED_AFTER_MS);
        candidates.sort_unstable_by_key(|&(lock, problem)| {
            (is_acknowledged((lock, problem)), problem.problem, problem.since)
        });
        for (lock, problem) in candidates {
            let key = (lock.id.clone(), problem.problem);
            let row = Row {
                problem: problem.problem,
                certainty: problem.certainty,
                deployment: Arc::clone(&lock.id.deployment),
                group: Arc::clone(&lock.group),
                name: cut(&lock.id),
                since: problem.since,
                acknowledged: is_acknowledged((lock, problem)),
                seen: now,
            };
            if let Some(known) = self.rows.get_mut(&key) {
                *known = row;
            } else if self.new_this_hour < MAX_NAMED_AN_HOUR && self.make_room(row.acknowledged) {
                self.new_this_hour += 1;
                self.rows.insert(key, row);
            }
        }
        self.rows.values().cloned().collect()
    }

    /// Makes room for another row by replacing an acknowledged row with one that is not. Returns false if there is no
    /// room.
    fn make_room(&mut self, acknowledged: bool) -> bool {
        if self.rows.len() >= MAX_NAMED && !acknowledged {
            let given_up = self.rows.iter().find(|(_, row)| row.acknowledged);
            let given_up = given_up.map(|(key, _)| key.clone());
            given_up.map(|key| self.rows.remove(&key));
        }
        self.rows.len() < MAX_NAMED
    }
}

/// Returns a lock's name, shortened to fit a label.
fn cut(id: &LockId) -> String {
    let mut name = id.name.to_string();
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|i| name.is_char_boundary(*i));
    name.truncate(end.unwrap_or(0));
    name
}

#[cfg(test)]
mod tests {
    use super::super::problems::problems;
    use super::*;
    use crate::model::types::{LockView, ProblemView};
    use crate::query::fixtures::{self, leaked, lock};

    #[test]
    fn named_locks_are_few_and_stay_for_a_while() {
        let bad = |i: u64| {
            let problems = thin_vec::thin_vec![ProblemView { since: SteadyMillis(i), ..leaked() }];
            Arc::new(LockView { problems, ..lock(&format!("l:{i}")) })
        };
        let locks: Vec<_> = (0..100).map(bad).collect();
        let mut named = NamedLocks::default();
        assert!(
            named.rows(problems(locks.iter()), SteadyMillis(1_000)).is_empty(),
            "problems must last"
        );
        let rows = named.rows(problems(locks.iter()), SteadyMillis(70_000));
        assert_eq!(rows.len(), MAX_NAMED);
        assert!(rows.iter().all(|row| row.since.0 < MAX_NAMED as u64), "the oldest ones");
        assert_eq!(named.rows(problems([].iter()), SteadyMillis(100_000)).len(), MAX_NAMED);
        assert!(named.rows(problems([].iter()), SteadyMillis(400_000)).is_empty());
        for i in 0..10 {
            let locks: Vec<_> = (0..50).map(|n| bad(1_000 * (i + 1) + n)).collect();
            named.rows(problems(locks.iter()), SteadyMillis(400_000 + i * 301_000));
        }
        assert!(named.new_this_hour <= MAX_NAMED_AN_HOUR);
    }

    #[test]
    fn a_problem_that_is_not_acknowledged_takes_the_place_of_one_that_is() {
        let bad = |i: u64, acknowledged: bool| {
            let problem = if acknowledged { fixtures::acknowledged() } else { leaked() };
            let problems = thin_vec::thin_vec![ProblemView { since: SteadyMillis(i), ..problem }];
            Arc::new(LockView { problems, ..lock(&format!("l:{i}")) })
        };
        let mut named = NamedLocks::default();
        let known: Vec<_> = (0..60).map(|i| bad(i, true)).collect();
        assert_eq!(named.rows(problems(known.iter()), SteadyMillis(100_000)).len(), MAX_NAMED);
        let all: Vec<_> = known.into_iter().chain([bad(60, false), bad(61, false)]).collect();
        let rows = named.rows(problems(all.iter()), SteadyMillis(200_000));
        assert_eq!(rows.iter().filter(|row| !row.acknowledged).count(), 2);
        assert_eq!(rows.len(), MAX_NAMED);
        // The problem is acknowledged while its lock is named.
        let rows = named.rows(problems([bad(61, true)].iter()), SteadyMillis(201_000));
        assert_eq!(rows.iter().filter(|row| !row.acknowledged).count(), 1);
    }

    #[test]
    fn long_names_are_cut_and_printable() {
        let id =
            LockId { name: redisson::LockName::new(vec![b'\n'; 200]).unwrap(), ..lock("x").id };
        assert_eq!(cut(&id), "\\n".repeat(60));
    }
}
