//! The rows of open pages, rendered once for all of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Chrome, row};
use crate::clock;
use crate::model::types::LockView;
use crate::query::LockRow;
use crate::query::list::RowId;

/// Rendered rows of locks, shared by all pages. The number is bounded, and clones are cheap.
#[derive(Debug, Clone, Default)]
pub struct Fragments(Arc<Mutex<HashMap<Key, Fragment>>>);

/// The view's address, whether deployment and database are shown with the name, and the clock's setting.
type Key = (usize, bool, bool, i64);

#[derive(Debug)]
struct Fragment {
    /// Keeps the view's address, which is the key, from being used again.
    _lock: Arc<LockView>,
    id: Arc<str>,
    html: Arc<str>,
}

impl Fragments {
    /// The maximum number of rows retained: a few megabytes.
    const MAX: usize = 4_096;

    /// Returns a lock's row.
    pub(super) fn row(&self, lock: &LockRow, chrome: &Chrome) -> Result<LiveRow, askama::Error> {
        let (id, html) = self.rendered(lock, chrome)?;
        let (at, ttl) = lock.last_reading();
        Ok(LiveRow { id, html, ttl: Some((ttl, at.0)) })
    }

    /// Frees the memory of all rows.
    pub fn clear(&self) {
        *self.0.lock() = HashMap::new();
    }

    /// Returns a row's id and HTML.
    fn rendered(
        &self,
        lock: &LockRow,
        chrome: &Chrome,
    ) -> Result<(Arc<str>, Arc<str>), askama::Error> {
        let (deployment, db) = (chrome.several_deployments, chrome.several_dbs);
        let key = (Arc::as_ptr(lock).addr(), deployment, db, clock::set_by());
        if let Some(known) = self.0.lock().get(&key) {
            return Ok((Arc::clone(&known.id), Arc::clone(&known.html)));
        }
        let html: Arc<str> = row::live_row(lock, deployment, db)?.into();
        let id: Arc<str> = row::row_id(RowId::of_lock(&lock.id)).into();
        let mut kept = self.0.lock();
        if kept.len() >= Self::MAX {
            kept.clear();
        }
        let (row, shown) = (Arc::clone(&id), Arc::clone(&html));
        kept.insert(key, Fragment { _lock: Arc::clone(lock), id: row, html: shown });
        Ok((id, html))
    }
}

/// A row of a live table.
#[derive(Debug)]
pub struct LiveRow {
    pub(super) id: Arc<str>,
    /// The row's start tag, then each of its cells, on separate lines.
    pub(super) html: Arc<str>,
    /// The milliseconds to live as read, if the lock expires, and the instant of the read.
    pub(super) ttl: Option<(Option<u64>, u64)>,
}
