//! Settings of the core.

use std::time::Duration;

use redisson::{Lease, script};

use crate::core::lease::frozen::Frozen;
use crate::core::red::RedSettings;

/// The settings of the core.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The lease of watched holds; renewed each third of it.
    pub lease: Lease,
    /// The time before the end of its validity at which a hold is reported as lost.
    pub lost_margin: Duration,
    /// The most hand-overs in a row while others wait elsewhere.
    pub handover_max: u32,
    /// The longest time of hand-overs while others wait elsewhere.
    pub handover_max_time: Duration,
    /// The longest sleep of a waiter between attempts.
    pub poll_max: Duration,
    /// The most waiters at a time.
    pub max_waiters: usize,
    /// The longest grace that a session may ask for; zero where none may.
    pub max_grace: Duration,
    /// The most sessions with grace at a time, connected or not.
    pub max_graced: usize,
    /// LOCK is refused until the session has requested its id.
    pub require_session: bool,
    /// The longest wait of a worker for an answer that only Redis can give.
    pub response_timeout: Duration,
    /// The way releases are published; [`Core::set_publish`](super::Core::set_publish) changes it.
    pub publish: script::Publish,
    /// Keys have slots, as in a cluster: those of one script must share theirs.
    pub slots: bool,
    /// The time for which a dead worker's lock stays unavailable.
    pub lock_delay: Duration,
    /// The treatment of the holds of a stopped worker.
    pub frozen: Frozen,
    /// The number of replicas that must have a grant before it is reported.
    pub min_replicas: u32,
    /// The independent servers of red locks, if any.
    pub red: Option<RedSettings>,
}
