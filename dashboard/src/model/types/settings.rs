//! The model's settings.

use std::sync::Arc;
use std::time::Duration;

/// The maximum number of possible locks that are followed in one database if no other source has reported them.
const MAX_POSSIBLE: usize = 2_000;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The maximum number of locks that are retained, in all databases together.
    pub max_locks: usize,
    /// The maximum number of reads of known locks a second in one database, or `None` for the result of
    /// [`Settings::reads_a_second`].
    pub poll_rate: Option<u32>,
    /// The rule for all locks without a match in `rules`.
    pub usual: Arc<Rule>,
    /// Rules for locks of certain names; the first match applies.
    pub rules: Vec<LockRule>,
    /// Globs of names that are ignored.
    pub ignore: Vec<Vec<u8>>,
    /// Groups of deployments that share red locks.
    pub groups: Vec<Group>,
}

/// The reads of known locks a second in one database, if nothing else is set and this is enough to read each lock once
/// in [`ROUND_SECONDS`].
const USUAL_POLL_RATE: u32 = 2_000;
/// The longest round through all known locks.
const ROUND_SECONDS: usize = 120;
/// The maximum number of reads a second, regardless of the number of known locks.
const MOST_READS: usize = 100_000;

impl Settings {
    /// Returns the most reads a second for this number of known locks in one database.
    #[must_use]
    pub fn reads_a_second(&self, known: usize) -> u32 {
        let needed = u32::try_from((known / ROUND_SECONDS).min(MOST_READS)).unwrap_or(u32::MAX);
        self.poll_rate.unwrap_or_else(|| needed.max(USUAL_POLL_RATE))
    }

    /// Returns the most possible locks of one database. Any more than that are an application's hashes rather than
    /// leaked locks, and must not displace confirmed locks.
    #[must_use]
    pub fn max_possible(&self) -> usize {
        (self.max_locks / 4).clamp(1, MAX_POSSIBLE)
    }
}

/// Limits beyond which a lock has a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The age from which a renewed hold is stuck, or `None` if long holds are expected.
    pub stuck_after: Option<Duration>,
    /// The wait from which a waiter starves, or `None` if long waits are expected.
    pub starving_after: Option<Duration>,
}

/// Independent servers that share red locks. A majority of them decides who holds a lock.
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
    pub rule: Arc<Rule>,
}
