//! Settings of the core.

use std::time::Duration;

use redisson::{Lease, script};

use crate::core::lease::frozen::Frozen;
use crate::core::red::RedSettings;

/// What the core is set to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The lease of watched holds; renewed each third of it.
    pub lease: Lease,
    /// How long before its validity ends a hold is called lost.
    pub lost_margin: Duration,
    /// How many hand-overs in a row while others wait elsewhere.
    pub handover_max: u32,
    /// How long hand-overs may go on while others wait elsewhere.
    pub handover_max_time: Duration,
    /// The longest a waiter sleeps before it looks again, whatever it was told.
    pub poll_max: Duration,
    /// How many waits at a time.
    pub max_waiters: usize,
    /// The longest grace that a session may ask for; zero where none may.
    pub max_grace: Duration,
    /// How many sessions may have grace at a time, connected or not.
    pub max_graced: usize,
    /// Whether LOCK is refused until the session has asked for its id.
    pub require_session: bool,
    /// How long a worker waits for an answer that only Redis can give.
    pub response_timeout: Duration,
    /// How releases are published; [`Core::set_publish`] changes it.
    pub publish: script::Publish,
    /// Whether keys have slots, as in a cluster: those of one script must share theirs.
    pub slots: bool,
    /// How long a dead worker's lock is kept from others.
    pub lock_delay: Duration,
    /// What becomes of the holds of a stopped worker.
    pub frozen: Frozen,
    /// How many replicas must have a grant before it is told.
    pub min_replicas: u32,
    /// The independent servers of red locks, where there are any.
    pub red: Option<RedSettings>,
}
