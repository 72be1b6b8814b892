//! The places for sessions: a maximum for each user, and a reserve for administrators.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::types::Share;

/// The places for sessions of all users.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Shared>);

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

/// The reason for which a user gets no place, with the maximum that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The user has as many sessions as one user may have.
    User(usize),
    /// No place is left that this user may have.
    All(usize),
}

impl Places {
    pub(super) fn new(max: usize, agent_uid: u32) -> Self {
        Self(Arc::new(Shared { max, agent_uid, taken: Mutex::default() }))
    }

    /// Returns a place for a session of `uid`.
    ///
    /// The places of one user, and those that are not reserved, are a [`Share`].
    ///
    /// # Errors
    /// Returns the maximum that is reached.
    pub(super) fn take(&self, uid: u32) -> Result<Place, Full> {
        let Shared { max, agent_uid, .. } = *self.0;
        let Share { of_user, in_all } = Share::of(max, uid == 0 || uid == agent_uid);
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.in_all >= in_all {
            return Err(Full::All(in_all));
        }
        if taken.users.get(&uid).is_some_and(|count| *count >= of_user) {
            return Err(Full::User(of_user));
        }
        taken.in_all += 1;
        *taken.users.entry(uid).or_default() += 1;
        Ok(Place { places: self.clone(), uid })
    }
}

/// The place of one session, free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn take_all(places: &Places, uid: u32) -> (Vec<Place>, Full) {
        let mut taken = Vec::new();
        loop {
            match places.take(uid) {
                Ok(place) => taken.push(place),
                Err(full) => return (taken, full),
            }
        }
    }

    #[test]
    fn a_user_leaves_places_to_others_and_all_users_leave_some_to_administrators() {
        let places = Places::new(32, AGENT);
        let (first, full) = take_all(&places, 1);
        assert_eq!((first.len(), full), (24, Full::User(24)));
        let (second, full) = take_all(&places, 2);
        assert_eq!((second.len(), full), (6, Full::All(30)));
        assert!(places.take(0).is_ok(), "root has a reserve");
        let (own, full) = take_all(&places, AGENT);
        assert_eq!((own.len(), full), (2, Full::All(32)));
        drop(own);
        drop(first);
        assert!(places.take(2).is_ok(), "places of ended sessions are free");
    }

    #[test]
    fn administrators_may_have_every_place() {
        for uid in [0, AGENT] {
            assert_eq!(take_all(&Places::new(20, AGENT), uid).0.len(), 20);
        }
    }

    #[test]
    fn a_small_limit_is_usable_by_every_user() {
        assert_eq!(take_all(&Places::new(1, AGENT), 7).0.len(), 1);
    }

    #[test]
    fn users_without_sessions_are_forgotten() {
        let places = Places::new(4, AGENT);
        drop(places.take(7));
        let taken = places.0.taken.lock().unwrap();
        assert!(taken.users.is_empty() && taken.in_all == 0, "{taken:?}");
    }
}
