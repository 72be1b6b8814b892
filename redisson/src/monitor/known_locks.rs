//! The most recently seen locks: they show whether a command that names only a key concerns a lock.

use std::collections::HashMap;

use crate::{HolderId, LockName};

/// The capacity of each of the two generations.
const NAMES: usize = 8_192;

/// The most recently seen lock names and their holders.
#[derive(Debug, Default)]
pub(super) struct KnownLocks {
    young: HashMap<LockName, Option<HolderId>>,
    old: HashMap<LockName, Option<HolderId>>,
}

impl KnownLocks {
    /// Records a lock and its only holder, if known.
    pub(super) fn record(&mut self, name: &LockName, holder: Option<HolderId>) {
        if let Some(known) = self.young.get_mut(name) {
            *known = holder;
            return;
        }
        if self.young.len() >= NAMES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name.clone(), holder);
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        self.young.contains_key(name) || self.old.contains_key(name)
    }

    /// Returns the first known lock among `names`, or else the first one, which is the most likely.
    pub(super) fn most_likely(&self, mut names: Vec<LockName>) -> Option<LockName> {
        let known = names.iter().position(|name| self.contains(name.as_bytes())).unwrap_or(0);
        (known < names.len()).then(|| names.swap_remove(known))
    }

    /// Returns the last known holder.
    pub(super) fn holder(&self, name: &[u8]) -> Option<HolderId> {
        *self.young.get(name).or_else(|| self.old.get(name))?
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
