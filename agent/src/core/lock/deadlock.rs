//! Cycles among this agent's owners: each waits without a limit for a lock that the next one holds.

use redisson::LockName;

use crate::collections::HashSet;
use crate::core::Core;
use crate::core::ids::Owner;
use crate::protocol::command::Wait;

impl Core {
    /// Returns whether `owner` would wait for itself if it waited for `name` without a limit. Waits with a deadline
    /// break a cycle by themselves and do not count, nor do holds of a waiting MLOCK: it releases them. A reader waits
    /// behind a writer, and thus for everything that the writer waits for: all holders count, regardless of kind.
    pub(in crate::core) fn would_deadlock(&self, owner: Owner, name: &LockName) -> bool {
        // Nobody waits for an owner that holds nothing. This keeps each of many readers from visiting the holds of all
        // others.
        let Some(own) = self.sessions.get(&owner.connection) else { return false };
        if !own.holds.keys().any(|(holder, ..)| *holder == owner.owner) {
            return false;
        }
        let mut wanted = vec![name];
        let mut seen = HashSet::default();
        while let Some(name) = wanted.pop() {
            let Some(state) = self.locks.get(name).filter(|_| seen.insert(name)) else { continue };
            for hold in state.holds().filter_map(|number| self.leases.get(number)) {
                let Some(session) = self.sessions.get(&hold.owner.connection) else { continue };
                // Its MLOCK releases it rather than keep it while waiting.
                if hold.untold {
                    continue;
                }
                if hold.owner == owner {
                    return true;
                }
                if let Some(multi) = session.multi.get(&hold.owner.owner) {
                    wanted.extend(multi.awaited());
                    continue;
                }
                let wait = session.waits.get(&hold.owner.owner);
                let wait = wait.and_then(|number| self.locks.waiter(*number));
                wanted.extend(
                    wait.filter(|waiter| waiter.wait == Wait::Forever).map(|waiter| &waiter.name),
                );
            }
        }
        false
    }
}
