//! Recent releases of fields that would stay in Redis for long: a server that takes over may not know about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson::{Kind, Lease, LockName, Moment};

use crate::core::Core;
use crate::core::ops::verb::Ending;
use crate::types::Number;

/// The time for which a release is remembered. A replica lacks the last moments; a server that restarts from a snapshot
/// may lack an hour.
const REMEMBERED_FOR: Duration = Duration::from_secs(3_600);
/// The maximum number of releases that are remembered.
const MAX_REMEMBERED: usize = 4_096;
/// The longest lease that is simply left to expire.
const SHORT: Duration = Duration::from_secs(60);

/// The latest releases of long leases, and of write holds whose owners still read. Each has a number, which is higher for
/// later ones.
#[derive(Debug, Default)]
pub(in crate::core) struct LongReleases {
    released: BTreeMap<u64, LongRelease>,
    by_name: BTreeSet<(LockName, u64)>,
    next: u64,
}

#[derive(Debug, Clone)]
struct LongRelease {
    at: Moment,
    name: LockName,
    kind: Kind,
    number: Number,
    lease: Lease,
}

impl LongReleases {
    /// Remembers a release, or a hand-over, if the lock's lease was long.
    pub(in crate::core) fn add(&mut self, now: Moment, ending: &Ending) {
        if ending.longest.duration() > SHORT {
            self.remember(now, ending);
        }
    }

    /// Remembers a release, or a hand-over.
    pub(in crate::core) fn remember(&mut self, now: Moment, ending: &Ending) {
        if self.released.len() >= MAX_REMEMBERED {
            // A busy lock makes room for itself, so that others are not forgotten.
            let all = (ending.name.clone(), 0)..=(ending.name.clone(), u64::MAX);
            let same = self.by_name.range(all).next().map(|(_, number)| *number);
            self.forget(same.or_else(|| self.oldest()));
        }
        let Ending { name, kind, number, longest, .. } = ending;
        let (name, kind, number, lease) = (name.clone(), *kind, *number, *longest);
        self.by_name.insert((name.clone(), self.next));
        self.released.insert(self.next, LongRelease { at: now, name, kind, number, lease });
        self.next += 1;
    }

    fn oldest(&self) -> Option<u64> {
        self.released.keys().next().copied()
    }

    fn forget(&mut self, number: Option<u64>) {
        if let Some((number, released)) = number.and_then(|n| self.released.remove_entry(&n)) {
            self.by_name.remove(&(released.name, number));
        }
    }

    /// Returns the remembered releases, oldest first.
    fn of_late(&mut self, now: Moment) -> Vec<LongRelease> {
        let old = |released: &LongRelease| now.since(released.at) > REMEMBERED_FOR;
        while self.released.values().next().is_some_and(old) {
            self.forget(self.oldest());
        }
        self.released.values().cloned().collect()
    }
}

impl Core {
    /// Repeats the remembered releases on a server that may not know about them.
    pub(in crate::core) fn repeat_long_releases(&mut self) {
        for LongRelease { name, kind, number, lease, .. } in self.long_releases.of_late(self.now) {
            self.undo(&name, kind, number, lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use service_kit::trace::TraceParent;

    use super::*;
    use crate::types::End;

    fn ending(lock: &str, number: Number) -> Ending {
        Ending {
            name: LockName::new(lock.as_bytes()).unwrap(),
            kind: Kind::Lock,
            number,
            end: End::Released,
            reply_to: None,
            valid_until: Moment::default(),
            longest: Lease::new(SHORT * 2).unwrap(),
            shortened: false,
            nodes: Vec::new(),
            trace_parent: TraceParent::default(),
            claimed_forced: false,
        }
    }

    #[test]
    fn a_busy_lock_makes_room_for_itself() {
        let (mut releases, now) = (LongReleases::default(), Moment::from_micros(1));
        let most = i64::try_from(MAX_REMEMBERED).unwrap();
        (0..most - 2).for_each(|n| releases.add(now, &ending(&format!("quiet{n}"), n)));
        (most..most + 10).for_each(|n| releases.add(now, &ending("busy", n)));
        let late = releases.of_late(now);
        let numbers: Vec<_> = late.iter().map(|released| released.number).collect();
        let expected: Vec<_> = (0..most - 2).chain([most + 8, most + 9]).collect();
        assert_eq!(numbers, expected);
        releases.add(now, &ending("another", -1));
        assert_eq!(releases.of_late(now)[0].number, 1, "the oldest makes room for another lock");
        let later = now + REMEMBERED_FOR + Duration::from_micros(1);
        releases.add(later, &ending("late", -2));
        assert_eq!(releases.of_late(later).len(), 1);
        assert_eq!(releases.by_name.len(), 1);
    }
}
