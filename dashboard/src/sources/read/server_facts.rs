//! Facts about a server that are learned from reading its locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::Mutex;

use crate::clock::SteadyMillis;

/// Facts about one server and one Redis user. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ServerFacts(Arc<Facts>);

#[derive(Debug, Default)]
struct Facts {
    companions_denied: Mutex<Option<String>>,
    checks_at_once_denied: AtomicBool,
    ahead_ms: AtomicI64,
    redirected: AtomicBool,
}

impl ServerFacts {
    /// Returns whether the Redis user may read companion keys, as far as known.
    #[must_use]
    pub fn may_read_companions(&self) -> bool {
        self.companions_denied().is_none()
    }

    /// Returns the refusal, if the Redis user may not read companion keys.
    #[must_use]
    pub fn companions_denied(&self) -> Option<String> {
        self.0.companions_denied.lock().clone()
    }

    pub fn deny_companions(&self, why: &str) {
        *self.0.companions_denied.lock() = Some(why.to_owned());
    }

    /// Returns whether one command may look for the queues of many locks, as far as known.
    #[must_use]
    pub fn may_check_at_once(&self) -> bool {
        !self.0.checks_at_once_denied.load(Ordering::Relaxed)
    }

    pub fn deny_checks_at_once(&self) {
        self.0.checks_at_once_denied.store(true, Ordering::Relaxed);
    }

    /// Forgets refusals, since a new connection may have more rights.
    pub fn forget_denials(&self) {
        *self.0.companions_denied.lock() = None;
        self.0.checks_at_once_denied.store(false, Ordering::Relaxed);
    }

    /// Records a redirect to another node of the server's cluster.
    pub fn record_redirect(&self) {
        self.0.redirected.store(true, Ordering::Relaxed);
    }

    /// Returns whether there was a redirect since the last call.
    pub fn take_redirected(&self) -> bool {
        self.0.redirected.swap(false, Ordering::Relaxed)
    }

    /// Sets the milliseconds by which the server's clock is ahead of ours, negative if it is behind.
    pub fn set_ahead(&self, ms: i64) {
        self.0.ahead_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the server's current time in milliseconds since 1970, as far as known.
    #[must_use]
    pub fn clock(&self) -> u64 {
        SteadyMillis::now().0.saturating_add_signed(self.0.ahead_ms.load(Ordering::Relaxed))
    }
}
