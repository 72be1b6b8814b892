//! Permits for sessions: a maximum for each user, and a reserve for administrators.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::collections::HashMap;
use crate::types::Share;

/// The permits for sessions of all users.
#[derive(Debug, Clone)]
pub(super) struct Permits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: usize,
    /// The user of the agent, who is an administrator like root.
    agent_uid: u32,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    in_all: usize,
    users: HashMap<u32, usize>,
}

/// The reason why a user gets no permit, with the maximum that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The user has as many sessions as one user may have.
    User(usize),
    /// No permit is left that this user may have.
    All(usize),
}

impl Permits {
    pub(super) fn new(max: usize, agent_uid: u32) -> Self {
        Self(Arc::new(Shared { max, agent_uid, taken: Mutex::default() }))
    }

    /// Returns a permit for a session of `uid`.
    ///
    /// The permits of one user, and those that are not reserved, are a [`Share`].
    ///
    /// # Errors
    /// Returns the maximum that is reached.
    pub(super) fn take(&self, uid: u32) -> Result<Permit, Full> {
        let Shared { max, agent_uid, .. } = *self.0;
        let Share { of_user, in_all } = Share::of(max, uid == 0 || uid == agent_uid);
        let mut taken = self.0.taken.lock();
        if taken.in_all >= in_all {
            return Err(Full::All(in_all));
        }
        if taken.users.get(&uid).is_some_and(|count| *count >= of_user) {
            return Err(Full::User(of_user));
        }
        taken.in_all += 1;
        *taken.users.entry(uid).or_default() += 1;
        Ok(Permit { permits: self.clone(), uid })
    }
}

/// The permit of one session, which is free again when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    permits: Permits,
    uid: u32,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.0.taken.lock();
        taken.in_all -= 1;
        if let Some(count) = taken.users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.users.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: u32 = 500;

    fn take_all(permits: &Permits, uid: u32) -> (Vec<Permit>, Full) {
        let mut taken = Vec::new();
        loop {
            match permits.take(uid) {
                Ok(permit) => taken.push(permit),
                Err(full) => return (taken, full),
            }
        }
    }

    #[test]
    fn a_user_leaves_places_to_others_and_all_users_leave_some_to_administrators() {
        let permits = Permits::new(32, AGENT);
        let (first, full) = take_all(&permits, 1);
        assert_eq!((first.len(), full), (24, Full::User(24)));
        let (second, full) = take_all(&permits, 2);
        assert_eq!((second.len(), full), (6, Full::All(30)));
        assert!(permits.take(0).is_ok(), "root has a reserve");
        let (own, full) = take_all(&permits, AGENT);
        assert_eq!((own.len(), full), (2, Full::All(32)));
        drop(own);
        drop(first);
        assert!(permits.take(2).is_ok(), "permits of ended sessions are free");
    }

    #[test]
    fn administrators_may_have_every_place() {
        for uid in [0, AGENT] {
            assert_eq!(take_all(&Permits::new(20, AGENT), uid).0.len(), 20);
        }
    }

    #[test]
    fn a_small_limit_is_usable_by_every_user() {
        assert_eq!(take_all(&Permits::new(1, AGENT), 7).0.len(), 1);
    }

    #[test]
    fn users_without_sessions_are_forgotten() {
        let permits = Permits::new(4, AGENT);
        drop(permits.take(7));
        let taken = permits.0.taken.lock();
        assert!(taken.users.is_empty() && taken.in_all == 0, "{taken:?}");
    }
}
