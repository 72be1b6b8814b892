//! The most recently seen locks: they show whether a command that names only a key concerns a lock.

use std::collections::HashMap;

use crate::{HolderId, LockName};

/// The capacity of each of the two generations.
const NAMES: usize = 8_192;

/// The last known state of a lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) db: u32,
    /// The only holder, or `None` if the lock is free or has several.
    pub(super) holder: Option<HolderId>,
    /// The end of the lease, in microseconds since 1970, if it was seen.
    pub(super) ends: Option<u64>,
}

/// The most recently seen lock names and their states, if known.
#[derive(Debug, Default)]
pub(super) struct KnownLocks {
    young: HashMap<LockName, Option<Known>>,
    old: HashMap<LockName, Option<Known>>,
}

impl KnownLocks {
    /// Records a lock and its state, if known.
    pub(super) fn record(&mut self, name: &LockName, state: Option<Known>) {
        if let Some(known) = self.young.get_mut(name) {
            *known = state;
            return;
        }
        if self.young.len() >= NAMES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name.clone(), state);
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        self.young.contains_key(name) || self.old.contains_key(name)
    }

    /// Returns the first known lock among `names`, or else the first one, which is the most likely.
    pub(super) fn most_likely(&self, mut names: Vec<LockName>) -> Option<LockName> {
        let known = names.iter().position(|name| self.contains(name.as_bytes())).unwrap_or(0);
        (known < names.len()).then(|| names.swap_remove(known))
    }

    /// Returns the last known state in a database.
    pub(super) fn state(&self, name: &[u8], db: u32) -> Option<Known> {
        let known = self.young.get(name).or_else(|| self.old.get(name))?;
        known.filter(|known| known.db == db)
    }

    /// Forgets the states but not the names, since changes may have been missed.
    pub(super) fn forget_states(&mut self) {
        self.young.values_mut().chain(self.old.values_mut()).for_each(|known| *known = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_locks_are_forgotten() {
        let mut known = KnownLocks::default();
        let name = |i: usize| LockName::new(i.to_string().into_bytes()).unwrap();
        for i in 0..3 * NAMES {
            known.record(&name(i), None);
            assert!(
                known.contains(name(i).as_bytes()) && known.contains(name(i / 2 * 2).as_bytes())
            );
        }
        assert!(known.young.len() <= NAMES && known.old.len() <= NAMES);
        assert!(!known.contains(b"0"));
    }
}
