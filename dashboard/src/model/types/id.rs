//! Names of scopes and locks.

use std::sync::Arc;

use redisson::LockName;

/// One database of one deployment: an index into the model's scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub usize);

/// A lock's full identity, since several databases of several deployments may have locks of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId {
    pub deployment: Arc<str>,
    pub db: u32,
    /// The name of the lock, which is its key.
    pub name: LockName,
}
