//! The lost holds that a session is reminded of when it uses their names.

use std::collections::VecDeque;

use redisson::LockName;

use crate::collections::HashMap;
use crate::types::End;

/// The maximum number of lost holds that a session is reminded of; the oldest are forgotten first.
const REMEMBERED_LOSSES: usize = 1024;
/// The number of outdated entries that are kept regardless of the number of losses.
const FEW_OUTDATED: usize = 16;

type Key = (i64, LockName);

/// Losses by owner and name.
#[derive(Debug, Default)]
pub(in crate::core) struct Losses {
    /// Each with the number of its entry in `order`.
    ends: HashMap<Key, (End, u64)>,
    /// The oldest first. An entry whose number is not in `ends` is outdated.
    order: VecDeque<(u64, Key)>,
    /// The number of the next entry.
    next: u64,
}

impl Losses {
    pub(in crate::core) fn get(&self, owner: i64, name: &LockName) -> Option<End> {
        self.ends.get(&(owner, name.clone())).map(|(end, _)| *end)
    }

    pub(super) fn forget(&mut self, owner: i64, name: &LockName) {
        if !self.ends.is_empty() && self.ends.remove(&(owner, name.clone())).is_some() {
            self.drop_outdated();
        }
    }

    pub(super) fn remember(&mut self, owner: i64, name: LockName, end: End) {
        let (key, entry) = ((owner, name), self.next);
        self.next += 1;
        self.ends.insert(key.clone(), (end, entry));
        self.order.push_back((entry, key));
        while self.ends.len() > REMEMBERED_LOSSES
            && let Some((entry, oldest)) = self.order.pop_front()
        {
            if self.ends.get(&oldest).is_some_and(|(_, current)| *current == entry) {
                self.ends.remove(&oldest);
            }
        }
        self.drop_outdated();
    }

    /// Drops the outdated entries once they outnumber the others, so that each is passed over about once.
    fn drop_outdated(&mut self) {
        if self.order.len() > 2 * self.ends.len() + FEW_OUTDATED {
            let ends = &self.ends;
            self.order
                .retain(|(entry, key)| ends.get(key).is_some_and(|(_, current)| current == entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> LockName {
        LockName::new(format!("x{number}").as_bytes()).unwrap()
    }

    #[test]
    fn repeated_losses_of_one_lock_are_each_remembered() {
        let mut losses = Losses::default();
        for _ in 0..3 * REMEMBERED_LOSSES {
            losses.forget(7, &name(1));
            losses.remember(7, name(1), End::Missing);
            assert_eq!(losses.get(7, &name(1)), Some(End::Missing));
            assert!(losses.order.len() <= 2 + FEW_OUTDATED);
        }
        losses.forget(7, &name(1));
        assert_eq!(losses.get(7, &name(1)), None);
    }

    #[test]
    fn the_oldest_losses_are_forgotten_first() {
        let mut losses = Losses::default();
        (0..REMEMBERED_LOSSES).for_each(|number| losses.remember(7, name(number), End::Missing));
        // This one is the latest now.
        losses.remember(7, name(0), End::Stolen);
        losses.remember(7, name(REMEMBERED_LOSSES), End::Missing);
        assert_eq!(losses.get(7, &name(0)), Some(End::Stolen));
        assert_eq!(losses.get(7, &name(1)), None);
        assert_eq!(losses.get(7, &name(2)), Some(End::Missing));
        assert_eq!(losses.get(8, &name(2)), None, "another owner's");
        assert_eq!(losses.ends.len(), REMEMBERED_LOSSES);
    }
}
