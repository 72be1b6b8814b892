//! Settings of the core for tests of other features.

use std::time::Duration;

use redisson::Lease;
use redisson::script::Publish;

use crate::core::{Frozen, Limits, Settings};

pub(in crate::core) fn settings() -> Settings {
    Settings {
        lease: Lease::new(Duration::from_secs(30)).expect("a lease within bounds"),
        lost_margin: Duration::from_millis(500),
        handover_max: 32,
        handover_max_time: Duration::from_millis(100),
        poll_max: Duration::from_secs(5),
        limits: Limits { max_waiters: 1000, max_locks: 1_000_000 },
        max_grace: Duration::from_secs(600),
        max_graced: 100,
        require_session: false,
        response_timeout: Duration::from_secs(2),
        publish: Publish::Plain,
        slots: false,
        lock_delay: Duration::ZERO,
        frozen: Frozen::Keep,
        min_replicas: 0,
        red: None,
    }
}
