//! Locks with waiters now or within the last hour.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::Filter;
use super::list::{Listed, Position, Published, RowId, descending};
use crate::clock::SteadyMillis;
use crate::model::contention::{LockTally, Tally};
use crate::model::types::{LockId, LockView, Since};
use crate::schema::schema_of;

/// A lock with waiters now or within the last hour.
#[derive(Debug, Clone)]
pub struct ContentionRow {
    pub id: LockId,
    /// The current state of the lock, or `None` if only its counts are left.
    pub lock: Option<Arc<LockView>>,
    /// The counts of the last hour, which may all be zero.
    pub last_hour: Tally,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Contention)]
struct ContentionJson<'a> {
    lock: &'a LockId,
    /// The minimum number of waiters.
    waiting: u64,
    /// True if `waiting` counts all waiters.
    waiters_exact: bool,
    /// The beginning of the longest wait; null if no waiter is known by name.
    longest_wait_since: Option<Since>,
    /// Null while the lock is free.
    held_since: Option<Since>,
    last_hour: &'a Tally,
}

schema_of!(ContentionRow => ContentionJson<'_>);

impl ContentionRow {
    fn new(id: &LockId, lock: Option<&Arc<LockView>>, tally: Option<&LockTally>) -> Self {
        Self {
            id: id.clone(),
            lock: lock.cloned(),
            last_hour: tally.map(|tally| tally.tally.clone()).unwrap_or_default(),
        }
    }

    /// Returns the minimum number of waiters.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.lock.as_ref().map_or(0, |lock| lock.waiting)
    }

    /// Returns true if [`Self::waiting`] counts all waiters.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.lock.as_ref().is_none_or(|lock| lock.waiters_exact)
    }

    /// Returns the beginning of the longest wait, or `None` if no waiter is known by name.
    #[must_use]
    pub fn longest_wait(&self) -> Option<Since> {
        self.lock.as_ref()?.longest_wait()
    }

    /// Returns the beginning of the longest current hold, or `None` while the lock is free.
    #[must_use]
    pub fn held_since(&self) -> Option<Since> {
        self.lock.as_ref()?.held_since()
    }
}

impl Serialize for ContentionRow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ContentionJson {
            lock: &self.id,
            waiting: self.waiting(),
            waiters_exact: self.is_exact(),
            longest_wait_since: self.longest_wait(),
            held_since: self.held_since(),
            last_hour: &self.last_hour,
        }
        .serialize(serializer)
    }
}

fn was_contended(tally: &Tally) -> bool {
    tally.waiting_ms > 0 || tally.waits.count() > 0
}

impl Listed for ContentionRow {
    type Schema = Self;
    const NAME: &'static str = "contention";
    const SORTS: &'static [&'static str] = &["waited", "waiting", "wait", "taken", "hold", "name"];
    const GROUPS: bool = true;

    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self> {
        let Published { snapshot, contention } = published;
        let mut tallies: HashMap<&LockId, &LockTally> = contention
            .locks
            .iter()
            .filter(|tally| was_contended(&tally.tally))
            .map(|tally| (&tally.lock, tally))
            .collect();
        let mut rows = Vec::new();
        for lock in snapshot.notable().filter(|lock| lock.is_awaited()) {
            let tally = tallies.remove(&lock.id);
            if filter.fits(lock, now) {
                rows.push(Self::new(&lock.id, Some(lock), tally));
            }
        }
        for (id, tally) in tallies {
            let lock = snapshot.get(id);
            // A filter cannot match locks for which only counts are left.
            if lock.map_or(filter.is_empty(), |lock| filter.fits(lock, now)) {
                rows.push(Self::new(id, lock, Some(tally)));
            }
        }
        rows
    }

    fn id(&self) -> RowId<'_> {
        RowId::of_lock(&self.id)
    }

    fn position(&self, sort: &str) -> Position<'_> {
        let wait = self.longest_wait().map_or(u64::MAX, |since| since.at.0);
        let waited = descending(self.last_hour.waited_ms());
        let rank = match sort {
            "waiting" => (descending(self.waiting()), wait),
            "wait" => (wait, waited),
            "taken" => (descending(self.last_hour.acquisitions), waited),
            "hold" => (descending(self.last_hour.longest_hold_ms().unwrap_or(0)), waited),
            "name" => (0, 0),
            _ => (waited, descending(self.waiting())),
        };
        Position { rank, text: b"", id: Listed::id(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::contention::Contention;
    use crate::model::types::{Snapshot, WaiterView};
    use crate::query::fixtures::lock;

    fn tally(name: &str, waiting_ms: u64) -> LockTally {
        LockTally {
            lock: lock(name).id,
            lock_group: "g".into(),
            tally: Tally { waiting_ms, acquisitions: 5, ..Tally::default() },
        }
    }

    #[test]
    fn the_longest_awaited_locks_come_first() {
        let mut snapshot = Snapshot::empty();
        let waiter = |at| WaiterView {
            id: "w".into(),
            since: Since { at: SteadyMillis(at), exact: true },
            attempts: Some(1),
            client: None,
        };
        let waiters = [waiter(9), waiter(4)].into_iter().collect();
        snapshot.put(Arc::new(LockView { waiting: 3, waiters, ..lock("busy") }));
        snapshot.put(Arc::new(lock("before")));
        snapshot.put(Arc::new(lock("calm")));
        let locks = vec![tally("before", 900), tally("forgotten", 500), tally("calm", 0)];
        let contention = Contention { locks, ..Contention::default() };
        let published =
            Published { snapshot: Arc::new(snapshot), contention: Arc::new(contention) };
        let list = |filter: &str, sort: &str| {
            let filter = Filter::parse(filter).unwrap();
            let mut rows = ContentionRow::all(&published, &filter, SteadyMillis(2_000_000));
            rows.sort_by(|a, b| a.position(sort).cmp(&b.position(sort)));
            rows.into_iter().map(|row| row.id.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(list("", "waited"), ["before", "forgotten", "busy"]);
        assert_eq!(list("", "waiting")[0], "busy");
        assert_eq!(list("", "wait")[0], "busy");
        assert_eq!(list("b", "waited"), ["before", "busy"]);
        let busy = ContentionRow::all(&published, &Filter::parse("busy").unwrap(), SteadyMillis(9));
        assert_eq!(busy[0].longest_wait().map(|since| since.at), Some(SteadyMillis(4)));
    }
}
