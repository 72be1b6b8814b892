//! What the model is told by the settings.

use std::sync::Arc;

use super::problem::Rule;

/// What the settings say.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The most locks that are kept, all databases together.
    pub max_locks: usize,
    /// The most reads of known locks a second in one database.
    pub poll_rate: u32,
    /// What holds for all locks but those named below.
    pub usual: Rule,
    /// What holds for locks of certain names instead; the first that matches counts.
    pub rules: Vec<LockRule>,
    /// Names that are never looked at.
    pub ignore: Vec<Vec<u8>>,
    /// Deployments over which red locks are spread.
    pub groups: Vec<Group>,
}

/// Independent servers that keep red locks together: whoever has a majority of them has the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: Arc<str>,
    pub deployments: Vec<Arc<str>>,
}

/// What holds for locks whose names match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRule {
    /// A name in which `*` stands for anything.
    pub pattern: Vec<u8>,
    /// What holds for them.
    pub rule: Rule,
}
