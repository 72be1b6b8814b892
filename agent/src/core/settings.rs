//! Settings of the core.

use std::time::Duration;

use redisson::{Lease, script};

/// The settings of the core.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The lease of watched holds; renewed every third of it.
    pub lease: Lease,
    /// The time before the end of its validity at which a hold is reported as lost.
    pub lost_margin: Duration,
    /// The maximum number of consecutive hand-overs while others wait elsewhere.
    pub handover_max: u32,
    /// The longest time of consecutive hand-overs while others wait elsewhere.
    pub handover_max_time: Duration,
    /// The longest sleep of a waiter between attempts.
    pub poll_max: Duration,
    pub limits: Limits,
    /// The longest grace that a session may request; zero disables grace.
    pub max_grace: Duration,
    /// The maximum number of sessions with grace at a time, connected or not.
    pub max_graced: usize,
    /// LOCK is refused until the session has requested its id.
    pub require_session: bool,
    /// The longest wait of a worker for an answer that only Redis can give, unless the agent itself is held up.
    pub response_timeout: Duration,
    /// The way to publish releases; [`Core::set_publish`](super::Core::set_publish) changes it.
    pub publish: script::Publish,
    /// True if keys have slots, as in a cluster: all keys of one script must then share a slot.
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

/// The limits on locks at a time. A user who is not an administrator may have a share of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of commands that wait for locks.
    pub max_waiters: usize,
    /// The maximum number of locks that are held or awaited.
    pub max_locks: usize,
}

/// The treatment of the holds of a stopped worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Frozen {
    /// They are renewed like all others: a stopped worker may continue.
    #[default]
    Keep,
    /// They are not renewed while it is stopped, so they are lost if that lasts for longer than a lease.
    Lapse,
}

/// The independent servers of red locks.
#[derive(Debug, Clone)]
pub struct RedSettings {
    /// The name of each in errors and logs: its address, without secrets. An odd number, at least three.
    pub nodes: Vec<String>,
    /// The time that an attempt waits for a node.
    pub node_timeout: Duration,
}
