//! The choice of the locks that a source follows individually: a bounded number, and the same ones for as long as
//! possible.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::types::{LockId, LockView, Snapshot, Walk};

/// The maximum number of locks that are looked at in one round, in addition to those with problems or waiters. If
/// there are more, a round continues where the last one stopped.
const VISITED: usize = 20_000;

/// The locks chosen so far.
#[derive(Debug, Default)]
pub(super) struct Choice {
    chosen: HashSet<LockId>,
    walk: Walk,
}

impl Choice {
    /// Chooses at most `most` of the wanted locks: first those with problems, then those with waiters, then those chosen
    /// before.
    pub(super) fn update<'a>(
        &mut self,
        snapshot: &'a Snapshot,
        most: usize,
        is_wanted: impl Fn(&LockView) -> bool,
    ) -> Vec<&'a Arc<LockView>> {
        let mut notable: Vec<_> = snapshot.notable().filter(|lock| is_wanted(lock)).collect();
        notable.sort_by_key(|lock| {
            (lock.problems.is_empty(), !lock.is_awaited(), !self.chosen.contains(&lock.id))
        });
        let before = std::mem::take(&mut self.chosen);
        let mut locks = Vec::new();
        let mut add = |lock: &'a Arc<LockView>| {
            if locks.len() < most && self.chosen.insert(lock.id.clone()) {
                locks.push(lock);
            }
            locks.len() < most
        };
        let known = before.iter().filter_map(|id| snapshot.get(id));
        let has_room =
            notable.into_iter().chain(known.filter(|lock| is_wanted(lock))).all(&mut add);
        if has_room {
            let visited = snapshot.visit(&mut self.walk, VISITED).flatten();
            visited.filter(|lock| is_wanted(lock)).all(add);
        }
        locks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::fixtures::{leaked, lock};

    #[test]
    fn the_choice_is_bounded_and_stable_and_prefers_locks_with_problems() {
        let mut snapshot = Snapshot::empty();
        for i in 0..50 {
            snapshot.put(Arc::new(lock(&format!("lock:{i}"))));
        }
        let mut choice = Choice::default();
        let ids = |locks: Vec<&Arc<LockView>>| -> HashSet<LockId> {
            locks.into_iter().map(|lock| lock.id.clone()).collect()
        };
        let first = ids(choice.update(&snapshot, 10, |_| true));
        assert_eq!(first.len(), 10);
        assert_eq!(ids(choice.update(&snapshot, 10, |_| true)), first);
        let mut with_problem = lock("new");
        with_problem.problems.push(leaked());
        let with_problem = Arc::new(with_problem);
        snapshot.put(Arc::clone(&with_problem));
        let second = ids(choice.update(&snapshot, 10, |_| true));
        assert!(second.contains(&with_problem.id));
        assert_eq!(second.intersection(&first).count(), 9);
        let one = lock("lock:7").id;
        assert_eq!(ids(choice.update(&snapshot, 10, |lock| lock.id == one)), [one].into());
    }

    #[test]
    fn a_choice_among_many_goes_on_in_the_next_round() {
        let mut snapshot = Snapshot::empty();
        for i in 0..VISITED * 5 / 2 {
            snapshot.put(Arc::new(lock(&format!("lock:{i}"))));
        }
        let wanted: HashSet<LockId> =
            (0..50).map(|i| lock(&format!("lock:{}", i * 1_000)).id).collect();
        let mut choice = Choice::default();
        let mut update = || choice.update(&snapshot, 100, |lock| wanted.contains(&lock.id)).len();
        let rounds = [update(), update(), update()];
        assert!(rounds[0] < rounds[1] && rounds[1] < rounds[2], "{rounds:?}");
        assert_eq!(rounds[2], wanted.len());
    }
}
