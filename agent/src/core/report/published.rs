//! Changes that bring the holder registry in Redis up to date.

use std::time::Duration;

use redisson::{Kind, LockName, Moment};

use crate::core::Core;
use crate::core::ids::Owner;
use crate::core::report::{HolderInfo, PublishDiff, PublishedPage};
use crate::core::units::millis;
use crate::protocol::command::Wait;
use crate::types::Number;

/// The maximum number of holds and waits compared for one answer.
const LOOKED_AT: usize = 1_000;

/// A hold or wait of this agent.
struct Row<'a> {
    number: Number,
    lock: &'a LockName,
    owner: Owner,
    /// The time since the grant, or since the wait began.
    age: Duration,
    waits: bool,
    /// The time left of a wait with a limit.
    left: Option<Duration>,
}

impl Core {
    /// Compares a page of the registry with the holds and waits. The caller continues after `next` until it is `None`.
    #[must_use]
    pub fn diff_published(&self, published: &PublishedPage) -> PublishDiff {
        // One more than is compared shows that there are more.
        let mut here = self.rows(published, LOOKED_AT + 1);
        let all = here.len() <= LOOKED_AT;
        here.truncate(LOOKED_AT);
        let until = match here.last() {
            Some(row) if !all => row.number,
            _ => published.until,
        };
        let gone = published
            .numbers
            .iter()
            .copied()
            .take_while(|number| *number <= until)
            .filter(|number| here.binary_search_by_key(number, |row| row.number).is_err())
            .collect();
        let is_due = |row: &&Row<'_>| {
            let is_in = |numbers: &[Number]| numbers.binary_search(&row.number).is_ok();
            row.age >= published.min_age
                && (!is_in(&published.numbers)
                    || is_in(&published.stale)
                    || self.changed_at(row.owner) >= published.changed_since
                    || (is_in(&published.transient) && !row.waits && !self.is_multi(row.owner)))
        };
        let due = here.iter().filter(is_due).map(|row| self.holder_info(row)).collect();
        PublishDiff { gone, due, next: (until < Number::MAX).then_some(until) }
    }

    /// Returns the first holds and waits of a page, in the order of their numbers: at least `most` of them, if there are
    /// as many.
    fn rows(&self, published: &PublishedPage, most: usize) -> Vec<Row<'_>> {
        let range = published.after.saturating_add(1)..=published.until;
        let is_published = |kind: Kind| !published.red || kind == Kind::Red;
        let holds = self.leases.range(range.clone()).filter(|hold| is_published(hold.kind));
        let holds = holds.map(|hold| Row {
            number: hold.number,
            lock: &hold.name,
            owner: hold.owner,
            age: self.now.since(hold.granted),
            waits: false,
            left: None,
        });
        let waits = self.locks.waiters(range.clone());
        let waits = waits.filter(|(id, waiter)| waiter.number == *id && is_published(waiter.kind));
        let renumbered = self.locks.renumbered();
        let renumbered = renumbered
            .filter(|(number, waiter)| range.contains(number) && is_published(waiter.kind));
        let waits = waits.take(most).chain(renumbered).map(|(number, waiter)| {
            let age = self.now.since(waiter.since);
            let left = match waiter.wait {
                Wait::Forever => None,
                Wait::AtMost(most) => Some(most.saturating_sub(age)),
            };
            Row { number, lock: &waiter.name, owner: waiter.owner, age, waits: true, left }
        });
        let mut rows: Vec<_> = holds.take(most).chain(waits).collect();
        rows.sort_unstable_by_key(|row| row.number);
        rows
    }

    fn holder_info(&self, row: &Row<'_>) -> HolderInfo {
        let worker = self.worker(row.number, row.owner.connection);
        let several = self.is_multi(row.owner);
        HolderInfo {
            number: row.number,
            lock: row.lock.clone(),
            session: worker.session,
            pid: worker.peer.pid,
            uid: worker.peer.uid,
            comm: worker.peer.comm,
            client: worker.client,
            age_ms: millis(row.age),
            owner: row.owner.owner,
            several,
            transient: row.waits || several,
            left_ms: row.left.map(millis),
        }
    }

    /// Returns the instant at which the process or the name of an owner's worker last changed.
    fn changed_at(&self, owner: Owner) -> Moment {
        self.sessions.get(&owner.connection).map_or_else(Moment::default, |session| session.changed)
    }

    /// Returns whether an owner acquires, or releases, several locks at once.
    fn is_multi(&self, owner: Owner) -> bool {
        let session = self.sessions.get(&owner.connection);
        session.is_some_and(|session| session.multi.contains_key(&owner.owner))
    }
}
