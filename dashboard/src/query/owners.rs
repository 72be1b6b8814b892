//! The clients that hold locks or wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::Filter;
use super::list::{Listed, Position, Published, RowId};
use crate::clock::SteadyMillis;
use crate::model::types::{ClientView, LockView, Since};

/// A client with its holds and waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Owner)]
pub struct OwnerRow {
    pub deployment: Arc<str>,
    /// The client's uuid, or the whole holder id if that contains none.
    pub id: String,
    /// The number of its holds. Each reader of a lock counts.
    pub holds: usize,
    /// The number of its holds of locks with problems.
    pub with_problems: usize,
    /// The number of locks that it waits for, as far as waiters are known by name.
    pub waits: usize,
    /// The beginning of its oldest hold; null if it only waits.
    pub oldest: Option<Since>,
    /// Its process, if one of its holds shows it; a verified one takes precedence.
    pub client: Option<ClientView>,
}

/// Returns the client's uuid in a holder id, or the whole id if it contains none.
#[must_use]
pub fn client_of(id: &str) -> &str {
    match id.split_once(':') {
        // A uuid in the usual form.
        Some((uuid, _)) if uuid.len() == 36 => uuid,
        _ => id,
    }
}

impl OwnerRow {
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

    /// Adds the hold at that index of the lock's holders.
    pub fn add(&mut self, lock: &LockView, holder: usize) {
        let holder = &lock.holders[holder];
        self.holds += 1;
        self.with_problems += usize::from(!lock.problems.is_empty());
        if self.oldest.is_none_or(|oldest| holder.since.at < oldest.at) {
            self.oldest = Some(holder.since);
        }
        let is_verified =
            |client: Option<&ClientView>| client.is_some_and(|it| it.verified == Some(true));
        let client = holder.client.as_deref();
        if self.client.is_none() || (is_verified(client) && !is_verified(self.client.as_ref())) {
            self.client = client.cloned();
        }
    }
}

impl Listed for OwnerRow {
    type Schema = Self;
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
    fn holds_and_waits_of_a_client_are_added_up() {
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
