//! The unsent bytes of all connections together, and of the connections of each user.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The unsent bytes of one user's connections above which those that have a backlog collect no more replies.
const MAX_OF_USER: usize = 32 * 1024 * 1024;
/// The same for the connections of all users.
const MAX_IN_ALL: usize = 128 * 1024 * 1024;
/// The unsent bytes up to which a connection is not affected by others.
pub(super) const BACKLOG: usize = 64 * 1024;

/// Counts the unsent bytes of the agent.
#[derive(Debug, Clone, Default)]
pub struct Unsent(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    in_all: AtomicUsize,
    users: Mutex<HashMap<u32, Weak<AtomicUsize>>>,
}

impl Unsent {
    /// Returns a share for a connection of that user.
    pub(super) fn share(&self, uid: u32) -> Share {
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = users.get(&uid).and_then(Weak::upgrade).unwrap_or_else(|| {
            users.retain(|_, user| user.strong_count() > 0);
            let new = Arc::default();
            users.insert(uid, Arc::downgrade(&new));
            new
        });
        Share { counts: Arc::clone(&self.0), of_user, own: 0 }
    }
}

/// The unsent bytes of one connection. Returned when dropped.
#[derive(Debug, Default)]
pub(super) struct Share {
    counts: Arc<Counts>,
    of_user: Arc<AtomicUsize>,
    own: usize,
}

impl Share {
    /// Sets the connection's number of unsent bytes.
    pub(super) fn set(&mut self, own: usize) {
        let before = std::mem::replace(&mut self.own, own);
        if own == before {
            return;
        }
        for count in [&self.counts.in_all, &*self.of_user] {
            // Its own bytes are part of each count, so neither wraps around.
            if own > before {
                count.fetch_add(own - before, Ordering::Relaxed);
            } else {
                count.fetch_sub(before - own, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether the connection has a backlog while its user, or all users together, have too many unsent bytes.
    pub(super) fn is_exhausted(&self) -> bool {
        self.own > BACKLOG
            && (self.of_user.load(Ordering::Relaxed) >= MAX_OF_USER
                || self.counts.in_all.load(Ordering::Relaxed) >= MAX_IN_ALL)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_with_a_backlog_wait_once_their_user_has_too_much() {
        let unsent = Unsent::default();
        let [mut slow, mut brisk, mut other] = [1, 1, 2].map(|uid| unsent.share(uid));
        brisk.set(BACKLOG);
        other.set(BACKLOG + 1);
        slow.set(MAX_OF_USER - BACKLOG - 1);
        assert!(!slow.is_exhausted());
        slow.set(MAX_OF_USER);
        assert!(slow.is_exhausted());
        assert!(!brisk.is_exhausted(), "it has no backlog");
        assert!(!other.is_exhausted(), "it is another user's");
        drop(slow);
        brisk.set(BACKLOG + 1);
        assert!(!brisk.is_exhausted(), "a closed connection has no unsent bytes");
    }

    #[test]
    fn all_users_together_have_a_limit() {
        let unsent = Unsent::default();
        let mut shares: Vec<Share> = (0..5).map(|uid| unsent.share(uid)).collect();
        for share in &mut shares {
            share.set(MAX_OF_USER - 1);
        }
        assert!(shares.iter().all(Share::is_exhausted));
        shares.truncate(3);
        assert!(!shares.iter().any(Share::is_exhausted));
        assert_eq!(unsent.0.in_all.load(Ordering::Relaxed), 3 * (MAX_OF_USER - 1));
        drop(unsent.share(9));
        let users = unsent.0.users.lock().unwrap();
        assert!(users.len() <= 4, "users without connections are forgotten: {users:?}");
    }
}
