//! The locks that each user holds or waits for, and the limits on them: the policy's, and a share of the agent's.

use redisson::LockName;

use crate::collections::HashMap;
use crate::core::settings::Limits;
use crate::policy::{Denial, Policy};
use crate::protocol::command::LockRequest;
use crate::types::{Limit, Peer};

/// The limits, and the holds and waits of each user that has any.
#[derive(Debug)]
pub(in crate::core) struct Quota {
    policy: Option<Policy>,
    limits: Limits,
    all: Counts,
    users: HashMap<u32, Counts>,
}

/// The locks that are held or awaited.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    holds: usize,
    waits: usize,
}

impl Counts {
    fn locks(self) -> usize {
        self.holds + self.waits
    }
}

impl Quota {
    pub(super) fn new(limits: Limits) -> Self {
        Self { policy: None, limits, all: Counts::default(), users: HashMap::default() }
    }

    pub(super) fn set_policy(&mut self, policy: Option<Policy>) {
        self.policy = policy;
    }

    pub(super) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    pub(super) fn add_hold(&mut self, uid: u32) {
        self.change(uid, |counts| counts.holds += 1);
    }

    pub(super) fn remove_hold(&mut self, uid: u32) {
        self.change(uid, |counts| counts.holds = counts.holds.saturating_sub(1));
    }

    pub(super) fn add_wait(&mut self, uid: u32) {
        self.change(uid, |counts| counts.waits += 1);
    }

    pub(super) fn remove_wait(&mut self, uid: u32) {
        self.change(uid, |counts| counts.waits = counts.waits.saturating_sub(1));
    }

    fn change(&mut self, uid: u32, change: impl Fn(&mut Counts)) {
        change(&mut self.all);
        let counts = self.users.entry(uid).or_default();
        change(counts);
        if counts.locks() == 0 {
            self.users.remove(&uid);
        }
    }

    fn of(&self, uid: u32) -> Counts {
        self.users.get(&uid).copied().unwrap_or_default()
    }

    /// Returns the policy's denial of a LOCK, if any. `before` is the number of locks that the same command acquires
    /// first.
    pub(super) fn denial(
        &self,
        peer: &Peer,
        request: &LockRequest,
        before: usize,
    ) -> Option<Denial> {
        let policy = self.policy.as_ref()?;
        policy.check(peer, request, self.of(peer.uid).locks() + before).err()
    }

    /// Returns the policy's denial of a look at a lock, if any.
    pub(super) fn look_denial(&self, peer: &Peer, name: &LockName) -> Option<Denial> {
        self.policy.as_ref()?.check_look(peer, name).err()
    }

    /// Returns a sentence about the limit that prevents a user from acquiring another lock, if there is one. `before`
    /// is the number of locks that the same command acquires first.
    pub(super) fn exhausted(&self, peer: &Peer, before: usize) -> Option<String> {
        let own = self.of(peer.uid);
        let Limits { max_waiters, max_locks } = self.limits;
        let waits = Limit {
            setting: "--max-waiters",
            max: max_waiters,
            what: ["command waits for a lock", "commands wait for locks"],
        };
        let locks = Limit {
            setting: "--max-locks",
            max: max_locks,
            what: ["lock is held, awaited or requested", "locks are held, awaited or requested"],
        };
        waits
            .reached(peer, self.all.waits, own.waits)
            .or_else(|| locks.reached(peer, self.all.locks() + before, own.locks() + before))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.all == Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_waiters: 4, max_locks: 16 };

    fn user(uid: u32) -> Peer {
        Peer { uid, ..Peer::default() }
    }

    #[test]
    fn holds_and_waits_count_together_against_the_locks() {
        let mut quota = Quota::new(LIMITS);
        let (one, other) = (user(4_000_000_001), user(4_000_000_002));
        quota.add_wait(one.uid);
        for held in 0..11 {
            assert_eq!(quota.exhausted(&one, 10 - held), None);
            let reason = quota.exhausted(&one, 11 - held).expect("12 locks count already");
            assert!(reason.contains("12 locks are held, awaited or requested"), "{reason}");
            quota.add_hold(one.uid);
        }
        let reason = quota.exhausted(&one, 0).expect("one user may have 12 of 16");
        assert!(
            reason.contains("12 locks are held, awaited or requested already for user 4000000001"),
            "{reason}"
        );
        for _ in 0..3 {
            assert_eq!(quota.exhausted(&other, 0), None);
            quota.add_hold(other.uid);
        }
        let reason = quota.exhausted(&other, 0).expect("the last one is reserved");
        assert!(reason.contains("--max-locks is 16, with 1 reserved"), "{reason}");
        assert_eq!(quota.exhausted(&user(0), 0), None);
        quota.remove_hold(one.uid);
        assert_eq!(quota.exhausted(&one, 0), None);
    }

    #[test]
    fn the_sentence_about_a_limit_of_one_has_the_singular() {
        let mut quota = Quota::new(Limits { max_waiters: 1, ..LIMITS });
        quota.add_wait(0);
        let reason = quota.exhausted(&user(0), 0).expect("one waits");
        assert_eq!(reason, "1 command waits for a lock already (--max-waiters is 1)");
    }
}
