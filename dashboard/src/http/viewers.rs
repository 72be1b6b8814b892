//! The locks that visitors look at now. They are read more often.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::model::actor::ModelHandle;
use crate::model::types::LockId;
use crate::query::{LockRow, Rows};

/// The interval at which changes are sent to the model.
const REPORT_INTERVAL: Duration = Duration::from_millis(300);

/// The locks that one stream shows.
#[derive(Debug, Clone)]
pub enum Viewed {
    Rows(Arc<Rows<LockRow>>),
    Lock(LockId),
    /// The stream shows no lock in particular.
    Nothing,
}

/// The locks of all viewers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Viewers(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    next: u64,
    changed: bool,
    viewed: HashMap<u64, Viewed>,
}

/// One stream's entry among the viewers, which is removed when dropped.
#[derive(Debug)]
pub struct Viewer {
    id: u64,
    all: Viewers,
}

impl Viewers {
    /// Adds a viewer, which looks at nothing yet.
    #[must_use]
    pub fn enter(&self) -> Viewer {
        let mut all = self.0.lock();
        all.next += 1;
        Viewer { id: all.next, all: self.clone() }
    }

    /// Reports to the model, forever.
    pub async fn run(self, model: ModelHandle) {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            if let Some(ids) = self.changed() {
                model.set_viewed(ids).await;
            }
        }
    }

    /// Returns every viewed lock once, if these locks have changed.
    fn changed(&self) -> Option<Vec<LockId>> {
        let viewed: Vec<Viewed> = {
            let mut all = self.0.lock();
            if !std::mem::take(&mut all.changed) {
                return None;
            }
            all.viewed.values().cloned().collect()
        };
        let mut tables = HashSet::new();
        let mut ids = HashSet::new();
        for viewed in viewed {
            match viewed {
                Viewed::Rows(rows) if tables.insert(Arc::as_ptr(&rows)) => {
                    ids.extend(rows.rows.iter().map(|lock| lock.id.clone()));
                }
                Viewed::Rows(_) | Viewed::Nothing => {}
                Viewed::Lock(id) => {
                    ids.insert(id);
                }
            }
        }
        Some(ids.into_iter().collect())
    }
}

impl Viewer {
    /// Sets the locks that this viewer looks at from now on.
    pub fn look(&self, viewed: Viewed) {
        let mut all = self.all.0.lock();
        let same = match (all.viewed.get(&self.id), &viewed) {
            (Some(Viewed::Rows(old)), Viewed::Rows(new)) => Arc::ptr_eq(old, new),
            (Some(Viewed::Lock(old)), Viewed::Lock(new)) => old == new,
            (Some(Viewed::Nothing) | None, Viewed::Nothing) => true,
            _ => false,
        };
        if !same {
            all.viewed.insert(self.id, viewed);
            all.changed = true;
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        all.changed |= all.viewed.remove(&self.id).is_some();
    }
}
