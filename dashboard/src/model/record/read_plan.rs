//! The next reading of a lock: its time and its contents.

use std::time::Duration;

use redisson::Moment;
use redisson::shape::Holder;

use super::Record;
use crate::model::problem::{LEAK_GAP, overdue_below, stuck_limit};
use crate::model::types::{KnownParts, LastReading};

/// One of this many readings of an unchanged lock is a full one, about as often as its token is read. Turns are as long
/// as the longest time between two readings of a held lock.
const FULL_READ_TURNS: u64 = 6;
const TURN_MICROS: u64 = 10_000_000;
/// The longest reading from which a lock's expiry may be inferred.
const MAX_SLACK: Duration = Duration::from_millis(50);
/// The time before the end of a lease at which a lock is read.
const BEFORE_END: Duration = Duration::from_millis(500);
/// The interval at which a lock without a token is checked for one.
const TOKEN_INTERVAL: Duration = Duration::from_secs(60);

impl Record {
    /// Returns the latest instant for the next reading.
    #[must_use]
    pub fn next_read(&self) -> Moment {
        const AT_LEAST: Duration = Duration::from_secs(10);
        let Some(stamp) = self.stamp else { return self.free_since };
        if let Some(until) = self.early_until() {
            return until;
        }
        /// Locks with waiters are read more often, for the order and the beginnings of the waits.
        const AWAITED: Duration = Duration::from_secs(2);
        let longest = if self.is_awaited() { AWAITED } else { Duration::MAX };
        let wait = if !self.is_held() {
            let free = stamp.received.since(self.free_since);
            (free / 4).clamp(Duration::from_secs(1), Duration::from_secs(30))
        } else {
            match (self.ttl, self.lease.lease()) {
                (None, _) if !self.confirmed && self.has_problems() => Duration::from_secs(60),
                (None, _) => LEAK_GAP,
                (Some(ttl), Some(lease)) if self.lease.rose() => {
                    // Close enough to see each renewal, and until a watchdog is recognized, closer.
                    let interval = if self.lease.is_punctual() { lease / 4 } else { lease / 6 };
                    let usual = interval.clamp(Duration::from_millis(250), AT_LEAST);
                    usual.min(self.until_overdue(lease, ttl)).min(near_end(ttl))
                }
                (Some(ttl), _) => near_end(ttl).min(AT_LEAST),
            }
        };
        stamp.received.moment() + wait.min(longest)
    }

    /// Returns the time until the next reading of a renewed lock: as soon as its renewal is overdue, then more often.
    fn until_overdue(&self, lease: Duration, ttl: Duration) -> Duration {
        const OFTEN: Duration = Duration::from_secs(1);
        if !self.lease.renewed() {
            return Duration::MAX;
        }
        match ttl.checked_sub(overdue_below(lease)) {
            Some(left) => left + Duration::from_millis(5),
            None => OFTEN,
        }
    }

    /// Returns whether some readings in quick succession are needed to decide if the lock is stuck: it is old enough,
    /// and was set again, but its readings do not show yet whether a watchdog did that.
    #[must_use]
    pub fn needs_close_reads(&self) -> bool {
        if !self.is_held() || !self.lease.rose() || self.lease.renewed() {
            return false;
        }
        let typical = self.hold_history.as_ref().and_then(|history| history.p99());
        let age = self.stamp.map(|stamp| stamp.received.since(self.unchanged_since));
        stuck_limit(&self.rule, typical).is_some_and(|(limit, _)| age > Some(limit))
    }

    /// Returns its known parts, which the next reading requests by name.
    #[must_use]
    pub fn known(&self, now: Moment) -> KnownParts {
        let mode = self.mode.as_ref().map(|_| redisson::shape::MODE_FIELD.to_vec());
        let holders =
            self.holds.iter().map(|hold| self.field_of(hold.id).text().into_owned().into_bytes());
        let fields =
            if self.is_held() { mode.into_iter().chain(holders).collect() } else { Vec::new() };
        let readers = self.holds.iter().filter(|hold| self.mode.is_some() && !hold.id.write);
        let readers = readers.map(|hold| (hold.id, hold.count));
        let orphaned = self.cold.iter().flat_map(|cold| cold.orphaned_readers.iter().copied());
        let queue = self.cold.as_ref().and_then(|cold| cold.waiting.queue.as_ref());
        let stale = self.token_read.is_none_or(|read| now.since(read) >= TOKEN_INTERVAL);
        KnownParts {
            fields,
            settled: !self.is_released(),
            readers: readers.chain(orphaned).collect(),
            waiting: queue.iter().flat_map(|queue| &queue.front).map(|entry| entry.id).collect(),
            token: self.token.is_some() || stale,
            fenced: self.token.is_some(),
            revalidate: self.last_reading(now),
        }
    }

    /// Returns the last reading if it is enough to revalidate it: the lock is plain, is not renewed and has no anomaly,
    /// and a full reading is not due.
    fn last_reading(&self, now: Moment) -> Option<LastReading> {
        let (stamp, ttl) = self.stamp.zip(self.ttl)?;
        let [hold] = self.holds.as_slice() else { return None };
        let plain = self.mode.is_none() && !self.fair && self.token.is_none();
        let calm = self.cold.is_none() && self.problems.is_empty() && !self.lease.rose();
        let settled = self.confirmed && self.is_held() && !self.is_released();
        let turn = now.as_micros() / TURN_MICROS + u64::from(self.id.name.slot());
        if !(plain && calm && settled && stamp.slack() <= MAX_SLACK)
            || turn.is_multiple_of(FULL_READ_TURNS)
        {
            return None;
        }
        Some(LastReading {
            holder: Holder { id: hold.id, count: hold.count },
            expires: (stamp.sent + ttl, stamp.received.moment() + ttl),
        })
    }
}

/// Returns the time until shortly before the end of a time to live, or else until shortly after it. Two such readings
/// distinguish an expired lease from a release.
fn near_end(ttl: Duration) -> Duration {
    ttl.checked_sub(BEFORE_END).filter(|left| !left.is_zero()).unwrap_or_else(|| past(ttl))
}

/// Returns the time until shortly after the end of a time to live.
fn past(ttl: Duration) -> Duration {
    ttl + Duration::from_millis(20)
}
