//! The locks seen last, within bounds: by them an order that names nothing but a key is known to be about a lock.

use std::collections::HashMap;

use crate::{HolderId, LockName};

/// How many names each of the two generations keeps.
const NAMES: usize = 8_192;

/// Names and who held them, the newest some thousands.
#[derive(Debug, Default)]
pub(super) struct KnownLocks {
    young: HashMap<LockName, Option<HolderId>>,
    old: HashMap<LockName, Option<HolderId>>,
}

impl KnownLocks {
    /// The lock was seen; who holds it alone as far as is known.
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

    /// The one that was seen of some locks with one channel, else the likeliest, which is the first.
    pub(super) fn likeliest(&self, mut names: Vec<LockName>) -> Option<LockName> {
        let known = names.iter().position(|name| self.contains(name.as_bytes())).unwrap_or(0);
        (known < names.len()).then(|| names.swap_remove(known))
    }

    /// Who held it when it was last seen.
    pub(super) fn holder(&self, name: &[u8]) -> Option<HolderId> {
        *self.young.get(name).or_else(|| self.old.get(name))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_is_forgotten() {
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
