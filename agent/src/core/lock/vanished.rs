//! The agents ahead of fair waiters, and the time since which their entries in Redis have been missing.
//!
//! An evicted entry is missing until its agent publishes it again.

use std::collections::BTreeMap;
use std::time::Duration;

use redisson::{ClientId, Moment};

/// The time between two checks of an agent; fair waiters try again every five seconds.
const PAUSE: Duration = Duration::from_secs(4);
/// The time for which an entry must be missing: longer than a living agent takes to publish it again, which it does at least
/// every twenty seconds if Redis answers.
const ABSENCE: Duration = Duration::from_secs(30);
/// The time after which an agent that was not checked again is forgotten: its entry may have been there meanwhile.
const RETENTION: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Check {
    at: Moment,
    /// The first of the consecutive checks that missed the entry.
    missing_since: Option<Moment>,
}

impl Check {
    /// Returns whether the agent's entry has been missing for [`ABSENCE`].
    fn has_vanished(&self) -> bool {
        self.missing_since.is_some_and(|since| self.at.since(since) >= ABSENCE)
    }
}

#[derive(Debug, Default)]
pub(in crate::core) struct VanishedAgents(BTreeMap<ClientId, Check>);

impl VanishedAgents {
    /// Begins a check of an agent, unless it was checked recently. Returns whether it begins. An agent that has vanished is
    /// checked at once for each lock in whose queue it is ahead.
    pub(in crate::core) fn begin_check(&mut self, agent: ClientId, now: Moment) -> bool {
        self.0.retain(|_, check| now.since(check.at) < RETENTION);
        let wait = |check: &Check| now.since(check.at) < PAUSE && !check.has_vanished();
        if self.0.get(&agent).is_some_and(wait) {
            return false;
        }
        self.0.entry(agent).or_insert(Check { at: now, missing_since: None }).at = now;
        true
    }

    /// Applies a check. Returns whether the agent's entry has been missing in all checks for [`ABSENCE`].
    pub(in crate::core) fn on_checked(
        &mut self,
        agent: ClientId,
        missing: bool,
        now: Moment,
    ) -> bool {
        let before = self.0.get(&agent).and_then(|check| check.missing_since);
        let missing_since = missing.then(|| before.unwrap_or(now));
        let check = Check { at: now, missing_since };
        self.0.insert(agent, check);
        check.has_vanished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_has_vanished_if_all_checks_of_half_a_minute_miss_its_entry() {
        let agent = ClientId::from_random([1; 16]);
        let mut agents = VanishedAgents::default();
        let mut check = |seconds: u64, missing| {
            let now = Moment::from_micros(seconds * 1_000_000);
            agents.begin_check(agent, now).then(|| agents.on_checked(agent, missing, now))
        };
        assert_eq!(check(0, true), Some(false));
        assert_eq!(check(3, true), None, "too early to check again");
        assert_eq!(check(5, false), Some(false));
        for seconds in (10..40).step_by(5) {
            assert_eq!(check(seconds, true), Some(false), "{seconds} s");
        }
        assert_eq!(check(40, true), Some(true));
        assert_eq!(check(41, true), Some(true), "it is also ahead in another queue");
        assert_eq!(check(45, false), Some(false), "it is there again");
        assert_eq!(check(50, true), Some(false));
        for seconds in (115..145).step_by(5) {
            assert_eq!(check(seconds, true), Some(false), "the previous check is too old");
        }
        assert_eq!(check(145, true), Some(true));
        assert_eq!(check(175, true), Some(false), "it may have been there meanwhile");
    }
}
