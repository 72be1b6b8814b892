//! Recent releases of long leases: a server that takes over may not know about them.

use std::collections::VecDeque;
use std::time::Duration;

use redisson::{Kind, Lease, LockName, Moment};

use crate::core::Core;
use crate::core::ops::verb::Ending;
use crate::types::Number;

/// The time for which a release is remembered. A replica lacks the last moments; a server that restarts from a snapshot
/// may lack an hour.
const REMEMBERED_FOR: Duration = Duration::from_secs(3_600);
/// The most releases that are remembered.
const MAX_REMEMBERED: usize = 4_096;
/// The longest lease that is simply left to expire.
const SHORT: Duration = Duration::from_secs(60);

/// The latest releases of long leases, oldest first.
#[derive(Debug, Default)]
pub(in crate::core) struct LongReleases(VecDeque<LongRelease>);

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
        if ending.longest.duration() <= SHORT {
            return;
        }
        if self.0.len() >= MAX_REMEMBERED {
            // A busy lock makes room for itself, so that others are not forgotten.
            let same = self.0.iter().position(|released| released.name == ending.name);
            self.0.remove(same.unwrap_or(0));
        }
        let Ending { name, kind, number, longest, .. } = ending;
        let (name, kind, number, lease) = (name.clone(), *kind, *number, *longest);
        self.0.push_back(LongRelease { at: now, name, kind, number, lease });
    }

    /// Returns the remembered releases.
    fn of_late(&mut self, now: Moment) -> Vec<LongRelease> {
        self.0.retain(|released| now.since(released.at) <= REMEMBERED_FOR);
        self.0.iter().cloned().collect()
    }
}

impl Core {
    /// Repeats the recent releases of long leases on a server that may not know about them.
    pub(in crate::core) fn repeat_long_releases(&mut self) {
        for LongRelease { name, kind, number, lease, .. } in self.long_releases.of_late(self.now) {
            self.undo(&name, kind, number, lease);
        }
    }
}
