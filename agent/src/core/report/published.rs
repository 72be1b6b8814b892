//! Changes that bring the holder registry in Redis up to date.

use redisson::Kind;

use crate::core::Core;
use crate::core::report::{HolderInfo, PublishDiff, PublishedPage};
use crate::core::units::millis;
use crate::protocol::command::Wait;
use crate::types::Number;

/// The most holds and waits compared for one answer.
const LOOKED_AT: usize = 1_000;

impl Core {
    /// Compares a page of the registry with the holds and waits. The caller continues after `next` until it is `None`.
    #[must_use]
    pub fn diff_published(&self, published: &PublishedPage) -> PublishDiff {
        let range = published.after.saturating_add(1)..=published.until;
        let is_published = |kind: Kind| !published.red || kind == Kind::Red;
        let holds = self.leases.range(range.clone()).filter(|hold| is_published(hold.kind));
        let holds = holds.map(|hold| {
            let age = self.now.since(hold.granted);
            (hold.number, &hold.name, hold.owner, age, None)
        });
        let waits = self.locks.waiters(range).filter(|(_, waiter)| is_published(waiter.kind));
        let waits = waits.map(|(number, waiter)| {
            let age = self.now.since(waiter.since);
            let left = match waiter.wait {
                Wait::Forever => None,
                Wait::AtMost(most) => Some(most.saturating_sub(age)),
            };
            (number, &waiter.name, waiter.owner, age, left)
        });
        // One more than is compared shows that there are more.
        let most = LOOKED_AT + 1;
        let mut here: Vec<_> = holds.take(most).chain(waits.take(most)).collect();
        here.sort_unstable_by_key(|(number, ..)| *number);
        let all = here.len() <= LOOKED_AT;
        here.truncate(LOOKED_AT);
        let until = match here.last() {
            Some((number, ..)) if !all => *number,
            _ => published.until,
        };
        let gone = published
            .numbers
            .iter()
            .copied()
            .take_while(|number| *number <= until)
            .filter(|number| here.binary_search_by_key(number, |(here, ..)| *here).is_err())
            .collect();
        let due = here
            .into_iter()
            .filter(|(number, _, _, age, _)| {
                *age >= published.min_age
                    && (published.numbers.binary_search(number).is_err()
                        || published.stale.binary_search(number).is_ok())
            })
            .map(|(number, lock, owner, age, left)| {
                let worker = self.worker(number, owner.connection);
                let session = self.sessions.get(&owner.connection);
                HolderInfo {
                    number,
                    lock: lock.clone(),
                    session: worker.session,
                    pid: worker.peer.pid,
                    uid: worker.peer.uid,
                    comm: worker.peer.comm,
                    client: worker.client,
                    age_ms: millis(age),
                    owner: owner.owner,
                    several: session.is_some_and(|s| s.multi.contains_key(&owner.owner)),
                    left_ms: left.map(millis),
                }
            })
            .collect();
        PublishDiff { gone, due, next: (until < Number::MAX).then_some(until) }
    }
}
