//! When a lock is read next, and what is asked for then.

use std::time::Duration;

use redisson::Moment;
use redisson::shape::Holder;

use super::Record;
use crate::model::problem::{LEAK_GAP, overdue_below};
use crate::model::{Known, Still};

/// A lock that seems to be as it was is read as a whole each third time: each of its turns is as long as the longest time
/// between two readings of a held lock.
const WHOLE_EACH: u64 = 3;
const TURN_MICROS: u64 = 10_000_000;
/// How long a reading may have taken for telling when the lock runs out.
const SHARP: Duration = Duration::from_millis(50);
/// How long a token is good for before it is read again, where none was found.
const TOKEN_EACH: Duration = Duration::from_secs(60);

impl Record {
    /// When it should be read again after the newest reading, at the latest.
    #[must_use]
    pub fn next_read(&self) -> Moment {
        const AT_LEAST: Duration = Duration::from_secs(10);
        let Some(stamp) = self.stamp else { return self.free_since };
        /// Somebody waits: who is next, and since when, is worth knowing.
        const AWAITED: Duration = Duration::from_secs(2);
        let longest = if self.is_awaited() { AWAITED } else { Duration::MAX };
        let wait = if !self.is_held() {
            let free = stamp.received.since(self.free_since);
            (free / 4).clamp(Duration::from_secs(1), Duration::from_secs(30))
        } else {
            match (self.ttl, self.lease.lease()) {
                (None, _) if !self.confirmed => Duration::from_secs(60),
                (None, _) => LEAK_GAP,
                (Some(ttl), Some(lease)) if self.lease.rose() => {
                    let usual = (lease / 6).clamp(Duration::from_millis(250), AT_LEAST);
                    usual.min(self.until_overdue(lease, ttl)).min(past(ttl))
                }
                (Some(ttl), _) => past(ttl).min(AT_LEAST),
            }
        };
        stamp.received + wait.min(longest)
    }

    /// When to look again at a lock that is renewed: as soon as its renewal is overdue, then more often, and once
    /// shortly before it runs out, which tells a lease that ran out from a release.
    fn until_overdue(&self, lease: Duration, ttl: Duration) -> Duration {
        const OFTEN: Duration = Duration::from_secs(1);
        const BEFORE_END: Duration = Duration::from_millis(500);
        if !self.lease.renewed() {
            return Duration::MAX;
        }
        match ttl.checked_sub(overdue_below(lease)) {
            Some(left) => left + Duration::from_millis(5),
            None => match ttl.checked_sub(BEFORE_END) {
                Some(left) if !left.is_zero() => left.min(OFTEN),
                _ => past(ttl),
            },
        }
    }

    /// What it is known to have, so that it is asked for by name.
    #[must_use]
    pub fn known(&self, now: Moment) -> Known {
        let mode = self.mode.as_ref().map(|_| redisson::shape::MODE_FIELD.to_vec());
        let holders = self.holds.iter().map(|hold| hold.id.to_string().into_bytes());
        let fields =
            if self.is_held() { mode.into_iter().chain(holders).collect() } else { Vec::new() };
        let readers = self.holds.iter().filter(|hold| self.mode.is_some() && !hold.id.write);
        let readers = readers.map(|hold| (hold.id, hold.count));
        let left = self.rare.iter().flat_map(|rare| rare.left.iter().copied());
        let queue = self.rare.as_ref().and_then(|rare| rare.waiting.queue.as_ref());
        let stale = self.token_read.is_none_or(|read| now.since(read) >= TOKEN_EACH);
        Known {
            fields,
            readers: readers.chain(left).collect(),
            waiting: queue.iter().flat_map(|queue| &queue.front).map(|place| place.id).collect(),
            token: self.token.is_some() || stale,
            still: self.still(now),
        }
    }

    /// How it was read last, where it is a plain lock that nobody renews, nothing is odd about it, and it is not its turn to be
    /// read as a whole.
    fn still(&self, now: Moment) -> Option<Still> {
        let (stamp, ttl) = self.stamp.zip(self.ttl)?;
        let plain = self.mode.is_none() && !self.fair && self.token.is_none();
        let calm = self.rare.is_none() && self.problems.is_empty() && !self.lease.rose();
        let settled = self.confirmed && self.is_held() && self.released.is_none();
        let turn = now.as_micros() / TURN_MICROS + u64::from(self.id.name.slot());
        if !(plain && calm && settled && stamp.slack() <= SHARP) || turn.is_multiple_of(WHOLE_EACH)
        {
            return None;
        }
        let holders = self.holds.iter().map(|hold| Holder { id: hold.id, count: hold.count });
        Some(Still { holders: holders.collect(), ends: (stamp.sent + ttl, stamp.received + ttl) })
    }
}

/// Shortly after a time to live has run out.
fn past(ttl: Duration) -> Duration {
    ttl + Duration::from_millis(20)
}
