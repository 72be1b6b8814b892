//! What reading teaches of a server beyond its locks.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::SteadyMillis;

/// What was learnt of one server with one account. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ServerFacts(Arc<Facts>);

#[derive(Debug, Default)]
struct Facts {
    companions_denied: Mutex<Option<String>>,
    ahead_ms: AtomicI64,
    redirected: AtomicBool,
}

impl ServerFacts {
    /// Whether the account may look at queues, tokens and markers, as far as is known.
    #[must_use]
    pub fn may_read_companions(&self) -> bool {
        self.companions_denied().is_none()
    }

    /// Why it may not.
    #[must_use]
    pub fn companions_denied(&self) -> Option<String> {
        self.0.companions_denied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It may not.
    pub fn deny_companions(&self, why: &str) {
        *self.0.companions_denied.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(why.to_owned());
    }

    /// A new connection: what was denied may be allowed now.
    pub fn forget_denials(&self) {
        *self.0.companions_denied.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Another node of its cluster has a key that it was asked for, or is about to.
    pub fn note_redirect(&self) {
        self.0.redirected.store(true, Ordering::Relaxed);
    }

    /// Whether that has happened since the last call.
    pub fn met_redirect(&self) -> bool {
        self.0.redirected.swap(false, Ordering::Relaxed)
    }

    /// How far its clock is ahead of ours, in milliseconds; behind where negative.
    pub fn set_ahead(&self, ms: i64) {
        self.0.ahead_ms.store(ms, Ordering::Relaxed);
    }

    /// The server's clock now, in epoch milliseconds, as far as is known.
    #[must_use]
    pub fn clock(&self) -> u64 {
        SteadyMillis::now().0.saturating_add_signed(self.0.ahead_ms.load(Ordering::Relaxed))
    }
}
