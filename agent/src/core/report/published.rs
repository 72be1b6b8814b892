//! Changes that bring the holder registry in Redis up to date.

use redisson::{Kind, Moment, millis};

use crate::core::Core;
use crate::core::ids::Owner;
use crate::core::report::list::Entry;
use crate::core::report::{HolderInfo, PublishDiff, PublishedPage};
use crate::protocol::command::Wait;
use crate::types::Number;

/// The maximum number of holds and waits compared for one answer.
const LOOKED_AT: usize = 1_000;

impl Core {
    /// Compares a page of the registry with the holds and waits. The caller continues after `next` until it is `None`.
    #[must_use]
    pub fn diff_published(&self, published: &PublishedPage) -> PublishDiff {
        // One more than is compared shows that there are more.
        let mut here = self.entries(published, LOOKED_AT + 1);
        let all = here.len() <= LOOKED_AT;
        here.truncate(LOOKED_AT);
        let until = match here.last() {
            Some(entry) if !all => entry.number,
            _ => published.until,
        };
        let gone = published
            .numbers
            .iter()
            .copied()
            .take_while(|number| *number <= until)
            .filter(|number| here.binary_search_by_key(number, |entry| entry.number).is_err())
            .collect();
        let is_due = |entry: &&Entry<'_>| {
            let is_in = |numbers: &[Number]| numbers.binary_search(&entry.number).is_ok();
            self.now.since(entry.since) >= published.min_age
                && (!is_in(&published.numbers)
                    || is_in(&published.stale)
                    || self.changed_at(entry.owner) >= published.changed_since
                    || (is_in(&published.transient) && !self.is_transient(entry)))
        };
        let due = here.iter().filter(is_due).map(|entry| self.holder_info(entry)).collect();
        PublishDiff { gone, due, next: (until < Number::MAX).then_some(until) }
    }

    /// Returns the first holds and waits of a page, in the order of their numbers: at least `most` of them, if there are
    /// as many.
    fn entries(&self, published: &PublishedPage, most: usize) -> Vec<Entry<'_>> {
        let range = published.after.saturating_add(1)..=published.until;
        let is_published = |kind: Kind| !published.red || kind == Kind::Red;
        let holds = self.leases.range(range.clone()).filter(|hold| is_published(hold.kind));
        let waits = self.locks.waiters(range.clone());
        let waits = waits.filter(|(id, waiter)| waiter.number == *id && is_published(waiter.kind));
        let renumbered = self.locks.renumbered();
        let renumbered = renumbered
            .filter(|(number, waiter)| range.contains(number) && is_published(waiter.kind));
        let waits = waits.take(most).chain(renumbered).map(Entry::from);
        let mut entries: Vec<_> = holds.take(most).map(Entry::from).chain(waits).collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        entries
    }

    fn holder_info(&self, entry: &Entry<'_>) -> HolderInfo {
        let worker = self.worker(entry.number, entry.owner.connection);
        let age = self.now.since(entry.since);
        HolderInfo {
            number: entry.number,
            lock: entry.name.clone(),
            session: worker.session,
            pid: worker.peer.pid,
            uid: worker.peer.uid,
            comm: worker.peer.comm,
            client: worker.client,
            age_ms: millis(age),
            owner: entry.owner.owner,
            several: self.is_multi(entry.owner),
            transient: self.is_transient(entry),
            left_ms: match entry.wait {
                Some(Wait::AtMost(most)) => Some(millis(most.saturating_sub(age))),
                Some(Wait::Forever) | None => None,
            },
        }
    }

    /// Returns the instant at which the process or the name of an owner's worker last changed.
    fn changed_at(&self, owner: Owner) -> Moment {
        self.sessions.get(&owner.connection).map_or_else(Moment::default, |session| session.changed)
    }

    /// Returns whether it is [transient](HolderInfo::transient).
    fn is_transient(&self, entry: &Entry<'_>) -> bool {
        entry.hold.is_none() || self.is_multi(entry.owner)
    }

    /// Returns whether an owner acquires, or releases, several locks at once.
    fn is_multi(&self, owner: Owner) -> bool {
        let session = self.sessions.get(&owner.connection);
        session.is_some_and(|session| session.multi.contains_key(&owner.owner))
    }
}
