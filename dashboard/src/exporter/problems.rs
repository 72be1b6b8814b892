//! The current problems, each once.

use std::collections::HashMap;
use std::sync::Arc;

use redisson::LockName;

use crate::clock::SteadyMillis;
use crate::model::types::{Certainty, LockView, ProblemKind, ProblemView};

/// A lock and one of its problems.
pub(super) type Problem<'s> = (&'s Arc<LockView>, &'s ProblemView);

/// Returns the problems of these locks. One that a red lock has on several servers counts on one of them.
pub(super) fn problems<'s>(locks: impl Iterator<Item = &'s Arc<LockView>>) -> Vec<Problem<'s>> {
    let mut all = Vec::new();
    let mut red: HashMap<(&str, u32, &LockName, ProblemKind), Problem<'s>> = HashMap::new();
    for lock in locks {
        for problem in &lock.problems {
            let Some(servers) = &lock.red else {
                all.push((lock, problem));
                continue;
            };
            let key = (&*servers.group, lock.id.db, &lock.id.name, problem.problem);
            let chosen = red.entry(key).or_insert((lock, problem));
            if rank((lock, problem)) < rank(*chosen) {
                *chosen = (lock, problem);
            }
        }
    }
    all.extend(red.into_values());
    all
}

/// Returns whether nobody needs to be told of a problem: it is acknowledged, or so is a problem of the same lock that
/// makes its waiters starve.
pub(super) fn is_acknowledged((lock, problem): Problem<'_>) -> bool {
    use ProblemKind::{Deadlock, Leaked, Starving, Stuck};
    let is_cause = |it: &ProblemView| matches!(it.problem, Deadlock | Leaked | Stuck);
    let mut causes = lock.problems.iter().filter(|it| problem.problem == Starving && is_cause(it));
    problem.acknowledged.is_some() || causes.any(|cause| cause.acknowledged.is_some())
}

/// Returns the order in which servers are chosen: one whose problem is open, certain and old represents the others.
fn rank<'s>((lock, problem): Problem<'s>) -> (bool, Certainty, SteadyMillis, &'s str) {
    (is_acknowledged((lock, problem)), problem.certainty, problem.since, &lock.id.deployment)
}

#[cfg(test)]
mod tests {
    use thin_vec::thin_vec;

    use super::*;
    use crate::model::types::{LockId, RedView};
    use crate::query::fixtures::{acknowledged, leaked, lock};

    #[test]
    fn waiters_that_starve_behind_an_acknowledged_problem_are_acknowledged_too() {
        let starving = || ProblemView { problem: ProblemKind::Starving, ..leaked() };
        let counted = |of| {
            let locks = [Arc::new(LockView { problems: of, ..lock("l") })];
            problems(locks.iter()).into_iter().map(is_acknowledged).collect::<Vec<_>>()
        };
        assert_eq!(counted(thin_vec![leaked(), starving()]), [false, false]);
        assert_eq!(counted(thin_vec![acknowledged(), starving()]), [true, true]);
        let late = ProblemView { problem: ProblemKind::RenewalOverdue, ..acknowledged() };
        assert_eq!(counted(thin_vec![late, starving()]), [true, false], "not the cause");
        let starves = ProblemView { problem: ProblemKind::Starving, ..acknowledged() };
        assert_eq!(counted(thin_vec![leaked(), starves]), [false, true]);
    }

    #[test]
    fn a_problem_of_a_red_lock_counts_on_one_of_its_servers() {
        let on = |deployment: &str, since, group: Option<&str>, problem: ProblemView| {
            let view = lock("l");
            let red = group.map(|group| {
                let (held, unread) = (Vec::new(), Vec::new());
                Box::new(RedView { group: group.into(), held, unread, of: 3 })
            });
            let id = LockId { deployment: deployment.into(), ..view.id.clone() };
            let problem = ProblemView { since: SteadyMillis(since), ..problem };
            Arc::new(LockView { id, red, problems: thin_vec![problem], ..view })
        };
        let suspected = ProblemView { certainty: Certainty::Suspected, ..leaked() };
        let locks = [
            on("a", 1, Some("red"), acknowledged()),
            on("b", 2, Some("red"), suspected),
            on("c", 4, Some("red"), leaked()),
            on("d", 3, Some("red"), leaked()),
            on("e", 9, Some("other"), leaked()),
            on("f", 9, None, leaked()),
            on("g", 9, None, leaked()),
        ];
        let mut counted: Vec<&str> =
            problems(locks.iter()).iter().map(|(lock, _)| &*lock.id.deployment).collect();
        counted.sort_unstable();
        assert_eq!(counted, ["d", "e", "f", "g"]);
    }
}
