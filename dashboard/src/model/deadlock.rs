//! Deadlocks: cycles of owners that wait for one another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, HolderId, LockName, Moment};

use crate::model::types::{HolderIdentity, WaitView};

/// An owner that may hold one lock and wait for another under different ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A thread of a client, on either side of a lock.
    Thread(ClientId, i64),
    /// A task of an agent's worker, as the agent publishes it: each of its holds and waits has a different number.
    Task(ClientId, Arc<str>, i64),
}

impl Owner {
    /// Returns the owner behind an id.
    #[must_use]
    pub fn of(id: HolderId, identity: Option<&HolderIdentity>) -> Self {
        match identity.and_then(HolderIdentity::task) {
            Some((session, owner)) => Self::Task(id.client, session.into(), owner),
            None => Self::Thread(id.client, id.thread),
        }
    }
}

/// A wait of one owner for a lock that another holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub waiter: HolderId,
    pub waiting: Owner,
    /// The lock, by its scope's index and its name.
    pub lock: (usize, LockName),
    pub holder: HolderId,
    pub holding: Owner,
    /// A description of the waiter's process and host, if known.
    pub process: Option<String>,
    /// The last instant at which the waiter was seen to wait.
    pub confirmed: Moment,
    /// The latest instant at which the wait can have begun.
    pub begun: Moment,
    /// The latest instant at which the hold can have begun.
    pub held_from: Moment,
    /// The time after which a wait without another sign may have ended unnoticed, or `None` if its end is always
    /// noticed.
    pub doubted_for: Option<Duration>,
    /// True if the wait is known to be limited in time.
    pub limited: bool,
    /// True if an entry that is only claimed ties the hold or the wait to its owner.
    pub claimed: bool,
}

impl Wait {
    /// Returns whether it is known whose wait it is, and it has no time limit that is known.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !self.limited && !self.claimed
    }

    /// Returns whether both are the same wait, regardless of the observation times.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.waiter == other.waiter && self.lock == other.lock && self.holder == other.holder
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// The waits of the cycle, each for a lock that the next one's waiter holds. The smallest owner is first.
    pub waits: Vec<Wait>,
    /// The waits for display, which the model fills in because it knows the scopes.
    pub views: Arc<[WaitView]>,
    /// True if one of the locks cannot be read now, so that its wait may have ended.
    pub unread: bool,
}

impl Cycle {
    /// Returns whether the waits are known to coincide: each was seen after the newest hold of the cycle had begun, and
    /// after the newest wait where the end of a wait may go unnoticed.
    #[must_use]
    pub fn is_confirmed(&self, now: Moment) -> bool {
        let newest_hold = self.waits.iter().map(|wait| wait.held_from).max();
        let newest_wait = self.waits.iter().map(|wait| wait.begun).max();
        let lasts = |wait: &Wait| {
            let unseen = newest_wait.filter(|newest| wait.confirmed < *newest);
            unseen.zip(wait.doubted_for).is_none_or(|(newest, time)| now.since(newest) > time)
        };
        self.waits.iter().all(|wait| Some(wait.confirmed) > newest_hold && lasts(wait))
    }

    /// Returns whether it is known to last until someone ends it.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.waits.iter().all(Wait::is_certain) && !self.unread
    }

    /// Returns whether one of the waits is limited in time.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.waits.iter().any(|wait| wait.limited)
    }

    /// Returns whether both are the same cycle, regardless of the observation times.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.unread == other.unread
            && self.waits.len() == other.waits.len()
            && self.waits.iter().zip(&other.waits).all(|(one, other)| one.is_same(other))
    }
}

/// Returns the cycles among these waits. A wait that is part of several appears in one of them.
#[must_use]
pub fn cycles<'w>(waits: impl IntoIterator<Item = &'w Wait>) -> Vec<Cycle> {
    let waits: Vec<&Wait> = waits.into_iter().collect();
    let mut by_owner: HashMap<&Owner, Vec<usize>> = HashMap::new();
    for (i, wait) in waits.iter().enumerate() {
        by_owner.entry(&wait.waiting).or_default().push(i);
    }
    let mut owners: Vec<&Owner> = by_owner.keys().copied().collect();
    owners.sort_unstable();
    let mut done: HashMap<&Owner, bool> = HashMap::new();
    let mut found = Vec::new();
    for start in owners {
        if done.contains_key(start) {
            continue;
        }
        // The stack is explicit, since a chain of waiters can be long. It has the owners from `start` to here, each
        // with the number of its waits tried so far.
        let mut path: Vec<(&Owner, usize)> = vec![(start, 0)];
        done.insert(start, false);
        while let Some((owner, tried)) = path.last_mut() {
            let next = by_owner.get(owner).and_then(|waits| waits.get(*tried)).copied();
            *tried += 1;
            let Some(wait) = next else {
                done.insert(owner, true);
                path.pop();
                continue;
            };
            let holder = &waits[wait].holding;
            match done.get(holder) {
                Some(false) => {
                    let from = path.iter().position(|(owner, _)| *owner == holder).unwrap_or(0);
                    let taken = path[from..].iter().filter_map(|(owner, tried)| {
                        by_owner.get(owner).and_then(|waits| waits.get(tried - 1)).copied()
                    });
                    found.push(cycle(taken.map(|i| Wait::clone(waits[i])).collect()));
                }
                None if by_owner.contains_key(holder) => {
                    done.insert(holder, false);
                    path.push((holder, 0));
                }
                Some(true) | None => {}
            }
        }
    }
    found
}

fn cycle(mut waits: Vec<Wait>) -> Cycle {
    let first = waits.iter().enumerate().min_by_key(|(_, wait)| &wait.waiting);
    let first = first.map_or(0, |(i, _)| i);
    waits.rotate_left(first);
    Cycle { waits, views: Arc::default(), unread: false }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(thread: i64) -> HolderId {
        HolderId::new(ClientId::from_random([7; 16]), thread)
    }

    /// Returns a wait for a lock of this holder.
    pub(in crate::model) fn wait_for(waiter: HolderId, holder: HolderId) -> Wait {
        let name = format!("held by {}", holder.thread);
        let at = Moment::from_micros;
        Wait {
            waiter,
            waiting: Owner::of(waiter, None),
            lock: (0, LockName::new(name.into_bytes()).unwrap()),
            holder,
            holding: Owner::of(holder, None),
            process: None,
            confirmed: at(20),
            begun: at(15),
            held_from: at(10),
            doubted_for: None,
            limited: false,
            claimed: false,
        }
    }

    fn wait(waiter: i64, holder: i64) -> Wait {
        wait_for(id(waiter), id(holder))
    }

    fn found(waits: &[(i64, i64)]) -> Vec<Vec<i64>> {
        let waits: Vec<Wait> = waits.iter().map(|(a, b)| wait(*a, *b)).collect();
        let threads = |cycle: &Cycle| cycle.waits.iter().map(|wait| wait.waiter.thread).collect();
        cycles(&waits).iter().map(threads).collect()
    }

    #[test]
    fn cycles_are_found() {
        assert!(found(&[(1, 2), (2, 3), (1, 3), (4, 1)]).is_empty());
        assert_eq!(found(&[(2, 1), (1, 2)]), [[1, 2]]);
        assert_eq!(found(&[(9, 2), (3, 1), (2, 3), (1, 2)]), [[1, 2, 3]]);
        assert_eq!(found(&[(1, 1)]), [[1]], "a reader that wants to write waits for itself");
        assert_eq!(found(&[(1, 2), (2, 1), (3, 4), (4, 3)]).len(), 2);
        let writer = HolderId { write: true, ..id(2) };
        let waits = [wait(1, 2), Wait { waiter: writer, ..wait(2, 1) }];
        assert_eq!(cycles(&waits).len(), 1, "the same thread, whichever side it takes");
    }

    #[test]
    fn a_cycle_is_confirmed_by_waits_after_its_newest_hold() {
        let at = Moment::from_micros;
        let mut waits = vec![wait(1, 2), wait(2, 1)];
        let is_confirmed = |waits: &[Wait]| cycles(waits)[0].is_confirmed(at(30));
        assert!(is_confirmed(&waits));
        waits[0].held_from = at(20);
        assert!(!is_confirmed(&waits));
        waits[1].confirmed = at(21);
        assert!(!is_confirmed(&waits));
        waits[0].confirmed = at(21);
        assert!(is_confirmed(&waits));
        // The wait may have ended before the other began.
        waits[1].begun = at(25);
        assert!(is_confirmed(&waits), "its end would have been noticed");
        waits[0].doubted_for = Some(Duration::from_micros(5));
        assert!(!is_confirmed(&waits));
        assert!(cycles(&waits)[0].is_confirmed(at(31)), "nothing else will tell");
        waits[0].doubted_for = Some(Duration::MAX);
        assert!(!is_confirmed(&waits));
        waits[0].confirmed = at(25);
        assert!(is_confirmed(&waits));
    }

    proptest! {
        #[test]
        fn a_cycle_is_found_if_and_only_if_there_is_one(
            edges in prop::collection::vec((0_i64..8, 0_i64..8), 0..14),
        ) {
            let mut reach = [[false; 8]; 8];
            for (from, to) in &edges {
                reach[usize::try_from(*from).unwrap()][usize::try_from(*to).unwrap()] = true;
            }
            for k in 0..8 {
                for i in 0..8 {
                    for j in 0..8 {
                        reach[i][j] |= reach[i][k] && reach[k][j];
                    }
                }
            }
            let found = found(&edges);
            prop_assert_eq!(!found.is_empty(), (0..8).any(|i| reach[i][i]));
            for cycle in found {
                for (i, from) in cycle.iter().enumerate() {
                    let to = cycle[(i + 1) % cycle.len()];
                    prop_assert!(edges.contains(&(*from, to)));
                }
            }
        }
    }
}
