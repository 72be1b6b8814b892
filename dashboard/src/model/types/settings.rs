//! The model's settings.

use std::sync::Arc;
use std::time::Duration;

/// The most possible locks that are followed in one database without anything that points them out.
const MAX_POSSIBLE: usize = 2_000;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The most locks that are retained, in all databases together.
    pub max_locks: usize,
    /// The most reads of known locks a second in one database.
    pub poll_rate: u32,
    /// The rule for all locks but those of `rules`.
    pub usual: Rule,
    /// Rules for locks of certain names; the first match applies.
    pub rules: Vec<LockRule>,
    /// Globs of names that are ignored.
    pub ignore: Vec<Vec<u8>>,
    /// Groups of deployments that share red locks.
    pub groups: Vec<Group>,
}

impl Settings {
    /// Returns the most possible locks of one database. More of them than that are an application's hashes rather than
    /// leaked locks, and must not take the room of confirmed locks.
    #[must_use]
    pub fn max_possible(&self) -> usize {
        (self.max_locks / 4).clamp(1, MAX_POSSIBLE)
    }
}

/// Limits beyond which a lock has a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The age from which a renewed hold is stuck; none: long holds are expected.
    pub stuck_after: Option<Duration>,
    /// The wait from which a waiter starves; none: long waits are expected.
    pub starving_after: Option<Duration>,
}

/// Independent servers that share red locks: a majority of them decides who has a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: Arc<str>,
    pub deployments: Vec<Arc<str>>,
}

/// The rule for locks whose names match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRule {
    /// A name in which `*` matches anything.
    pub pattern: Vec<u8>,
    pub rule: Rule,
}
