//! The databases that sources read.

use std::sync::Arc;

use redisson::LockName;

use crate::model::types::{LockId, LockView, ScopeId};

/// One database of one deployment.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The index of the database in the model.
    pub id: ScopeId,
    pub deployment: Arc<str>,
    pub db: u32,
}

impl Scope {
    pub(super) fn id_of(&self, name: &LockName) -> LockId {
        LockId { deployment: Arc::clone(&self.deployment), db: self.db, name: name.clone() }
    }

    /// Returns whether a lock is in this database.
    pub(super) fn has(&self, lock: &LockView) -> bool {
        self.deployment == lock.id.deployment && self.db == lock.id.db
    }
}
