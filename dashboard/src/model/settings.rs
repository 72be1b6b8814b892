//! What the model is told by the settings.

use std::time::Duration;

/// What the settings say.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The most locks that are kept, all databases together.
    pub max_locks: usize,
    /// The most reads of known locks a second in one database.
    pub poll_rate: u32,
    /// From what age on a renewed hold is stuck.
    pub stuck_after: Duration,
    /// What holds for locks of certain names instead; the first that matches counts.
    pub rules: Vec<LockRule>,
    /// Names that are never looked at.
    pub ignore: Vec<Vec<u8>>,
}

/// What holds for locks whose names match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRule {
    /// A name in which `*` stands for anything.
    pub pattern: Vec<u8>,
    /// From what age on a renewed hold is stuck; none: it is expected to be long.
    pub stuck_after: Option<Duration>,
}
