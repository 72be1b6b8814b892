//! The tables of locks that are asked for, and the lists behind those that are open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::clock::SteadyMillis;
use crate::model::actor::Hub;
use crate::query::kept::Kept;
use crate::query::page::{Query, Rows};
use crate::views::{Order, Sort};

/// Tables that are kept while the picture stays the same.
const MAX_TABLES: usize = 512;
/// How long a table is good whose filter depends on the clock, milliseconds.
const MOVING_MS: u64 = 1_000;

/// A list that is kept in order while somebody has this.
pub(super) type List = Arc<Mutex<Kept>>;

/// Of what a list is: its filter as written, and its order.
type ListKey = (String, Sort, Order);

/// The latest tables, and the lists that are kept.
#[derive(Debug, Default)]
pub(super) struct Tables {
    tables: Mutex<HashMap<TableKey, Table>>,
    lists: Mutex<HashMap<ListKey, Weak<Mutex<Kept>>>>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TableKey {
    list: ListKey,
    cursor: Option<String>,
    limit: usize,
}

#[derive(Debug)]
struct Table {
    seq: u64,
    at: SteadyMillis,
    rows: Arc<Rows>,
}

impl Tables {
    /// The list of a filter in an order, kept from now on.
    pub(super) fn keep(&self, filter: &str, sort: Sort, order: Order) -> List {
        let key = (filter.to_owned(), sort, order);
        let mut lists = lock(&self.lists);
        if let Some(list) = lists.get(&key).and_then(Weak::upgrade) {
            return list;
        }
        lists.retain(|_, list| list.strong_count() > 0);
        let list = List::default();
        lists.insert(key, Arc::downgrade(&list));
        list
    }

    /// The rows of a query, whose page begins at `cursor`: the same for all who ask for the same, and the very same while
    /// nothing of them changes.
    pub(super) fn rows(&self, hub: &Hub, cursor: Option<String>, query: &Query) -> Arc<Rows> {
        let (snapshot, now) = (hub.snapshot(), SteadyMillis::now());
        let list = (query.text.clone(), query.sort, query.order);
        let key = TableKey { list, cursor, limit: query.limit };
        let moves = query.filter.moves();
        let good = |table: &&Table| {
            table.seq == snapshot.seq && !(moves && now.0 >= table.at.0.saturating_add(MOVING_MS))
        };
        if let Some(table) = lock(&self.tables).get(&key).filter(good) {
            return Arc::clone(&table.rows);
        }
        let list = lock(&self.lists).get(&key.list).and_then(Weak::upgrade);
        let (seq, rows) = match list {
            Some(list) => {
                let mut list = lock(&list);
                let news = list.seq().and_then(|seq| hub.since(seq));
                list.follow(query, &snapshot, news.as_deref(), now);
                (list.seq().unwrap_or(snapshot.seq), list.rows(query))
            }
            None => (snapshot.seq, query.rows(&snapshot, now)),
        };
        let mut tables = lock(&self.tables);
        let before = tables.get(&key).filter(|table| table.rows.is_same(&rows));
        let rows = before.map_or_else(|| Arc::new(rows), |table| Arc::clone(&table.rows));
        if tables.len() >= MAX_TABLES && before.is_none() {
            tables.clear();
        }
        tables.insert(key, Table { seq, at: now, rows: Arc::clone(&rows) });
        rows
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
