//! Cycles among this agent's owners: each waits, for as long as it takes, for a lock that the next one holds.

use redisson::LockName;

use super::Core;
use super::session::Owner;
use crate::command::Wait;

impl Core {
    /// Whether `owner`, were it to wait for `name` without end, would wait for itself. Waits with a deadline break a
    /// cycle by themselves and do not count. A plain lock has one holder and an owner at most one wait, so the
    /// question follows a single path, no longer than there are waiters.
    pub(super) fn would_deadlock(&self, owner: Owner, name: &LockName) -> bool {
        let mut wanted = name;
        for _ in 0..=self.waiters.len() {
            let Some(hold) = self.names.get(wanted).and_then(|n| n.hold) else { return false };
            let Some(hold) = self.holds.get(&hold) else { return false };
            if hold.owner == owner {
                return true;
            }
            let wait = self
                .sessions
                .get(&hold.owner.session)
                .and_then(|session| session.waits.get(&hold.owner.owner))
                .and_then(|number| self.waiters.get(number));
            match wait {
                Some(waiter) if waiter.wait == Wait::Forever => wanted = &waiter.name,
                _ => return false,
            }
        }
        false
    }
}
