//! The clients that hold locks or wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::Filter;
use super::list::{Listed, Position, Published, RowId};
use crate::clock::SteadyMillis;
use crate::model::types::{ClientView, LockView, Since};

/// A client with all that it holds and waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OwnerRow {
    pub deployment: Arc<str>,
    /// Its uuid; the whole field where that is none.
    pub id: String,
    /// How many holds it has, each reader of a lock being one.
    pub holds: usize,
    /// How many of them are of locks with problems.
    pub with_problems: usize,
    /// For how many locks it waits, as far as waiters are known by name.
    pub waits: usize,
    /// Since when it has had the oldest of its holds; none where it only waits.
    pub oldest: Option<Since>,
    /// Its process, as of one of its holds for which it is known.
    pub client: Option<ClientView>,
}

/// The part of a holder's id that names its client; the whole of it where it has none.
#[must_use]
pub fn client_of(id: &str) -> &str {
    match id.split_once(':') {
        // A uuid in the usual form.
        Some((uuid, _)) if uuid.len() == 36 => uuid,
        _ => id,
    }
}

impl OwnerRow {
    /// One that has nothing yet.
    #[must_use]
    pub fn new(deployment: &Arc<str>, id: &str) -> Self {
        Self {
            deployment: Arc::clone(deployment),
            id: id.to_owned(),
            holds: 0,
            with_problems: 0,
            waits: 0,
            oldest: None,
            client: None,
        }
    }

    /// Adds a hold: the one of that number among the holders of the lock.
    pub fn add(&mut self, lock: &LockView, holder: usize) {
        let holder = &lock.holders[holder];
        self.holds += 1;
        self.with_problems += usize::from(!lock.problems.is_empty());
        if self.oldest.is_none_or(|oldest| holder.since.at < oldest.at) {
            self.oldest = Some(holder.since);
        }
        if self.client.is_none() {
            self.client = holder.client.as_deref().cloned();
        }
    }
}

impl Listed for OwnerRow {
    const NAME: &'static str = "owners";
    const SORTS: &'static [&'static str] = &["holds", "problems", "age", "waits", "id"];

    fn all(published: &Published, filter: &Filter, now: SteadyMillis) -> Vec<Self> {
        let mut rows: BTreeMap<(&str, &str), Self> = BTreeMap::new();
        for lock in published.snapshot.locks().filter(|lock| filter.matches(lock, now)) {
            let deployment = &lock.id.deployment;
            for (i, holder) in lock.holders.iter().enumerate() {
                let id = client_of(&holder.id);
                let row = rows.entry((&**deployment, id));
                row.or_insert_with(|| Self::new(deployment, id)).add(lock, i);
            }
            for waiter in &lock.waiters {
                let id = client_of(&waiter.id);
                let row = rows.entry((&**deployment, id));
                row.or_insert_with(|| Self::new(deployment, id)).waits += 1;
            }
        }
        rows.into_values().collect()
    }

    fn id(&self) -> RowId<'_> {
        RowId { name: self.id.as_bytes(), deployment: &self.deployment, db: 0, problem: "" }
    }

    fn position(&self, sort: &str) -> Position<'_> {
        let most = |n: usize| u64::MAX - n as u64;
        let oldest = self.oldest.map_or(u64::MAX, |oldest| oldest.at.0);
        let rank = match sort {
            "problems" => (most(self.with_problems), most(self.holds)),
            "age" => (oldest, 0),
            "waits" => (most(self.waits), most(self.holds)),
            "id" => (0, 0),
            _ => (most(self.holds), oldest),
        };
        Position { rank, text: b"", id: Listed::id(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::{Snapshot, WaiterView};
    use crate::query::fixtures::lock;

    #[test]
    fn what_a_client_holds_and_waits_for_is_added_up() {
        let mut snapshot = Snapshot::empty();
        let mut awaited = lock("awaited");
        let mine = client_of(&awaited.holders[0].id).to_owned();
        let theirs = "aaaaaaaa-9152-4c83-822a-67ee2f116a79";
        awaited.waiters.push(WaiterView {
            id: format!("{theirs}:7").into(),
            since: Since { at: SteadyMillis(1), exact: true },
            attempts: None,
            client: None,
        });
        let mut old = lock("old");
        old.holders[0].since = Since { at: SteadyMillis(5), exact: false };
        snapshot.put(Arc::new(awaited));
        snapshot.put(Arc::new(old));
        let published = Published { snapshot: Arc::new(snapshot), contention: Arc::default() };
        let rows = OwnerRow::all(&published, &Filter::default(), SteadyMillis(2_000_000));
        let of = |id: &str| rows.iter().find(|row| row.id == id).unwrap();
        assert_eq!((of(&mine).holds, of(&mine).waits), (2, 0));
        assert_eq!(of(&mine).oldest, Some(Since { at: SteadyMillis(5), exact: false }));
        assert_eq!((of(theirs).holds, of(theirs).waits, of(theirs).oldest), (0, 1, None));
        assert!(of(&mine).position("holds") < of(theirs).position("holds"));
        assert!(of(theirs).position("waits") < of(&mine).position("waits"));
    }

    #[test]
    fn a_holder_without_a_uuid_is_its_own_client() {
        assert_eq!(client_of("odd"), "odd");
        assert_eq!(client_of("a:b"), "a:b");
        let uuid = "285475da-9152-4c83-822a-67ee2f116a79";
        assert_eq!(client_of(&format!("{uuid}:52:write")), uuid);
    }
}
