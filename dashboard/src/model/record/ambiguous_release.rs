//! Release messages that may be about another lock: one of the same name in another database, since pub/sub has no
//! databases, or one whose name differs only by braces and therefore has the same channel. The next reading decides.

use std::time::Duration;

use redisson::Moment;
use redisson::shape::{Holder, LockHash};

use super::{Effect, Hold, Record};
use crate::clock::Time;
use crate::model::types::{Ending, Reading, Source, Stamp};

/// The longest time between a release and its message.
pub(super) const LATE: Duration = Duration::from_millis(250);
/// The maximum number of releases that one reading can prove.
const MOST: u32 = 1_000;

/// The ambiguous messages since the last reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct AmbiguousReleases {
    first: Time,
    last: Time,
    count: u32,
}

impl Record {
    /// Applies a message that may be about this lock or another one.
    pub fn possibly_released(&mut self, at: Time, effects: &mut Vec<Effect>) {
        match self.reading_since(at) {
            // The reading is newer.
            Some(stamp) if self.is_held() && self.has_gone_on(at, stamp) => {}
            None if self.is_held() && !self.is_released() => self.defer_release(at),
            _ => self.released(at, Source::Channels, Ending::Released, effects),
        }
    }

    /// Leaves it to the next reading whether a release at that instant has ended the holds.
    pub(super) fn defer_release(&mut self, at: Time) {
        let ambiguous = &mut self.releases.get_or_insert_default().ambiguous;
        let before = ambiguous.map_or(at, |ambiguous| ambiguous.first);
        let count = ambiguous.map_or(0, |ambiguous| ambiguous.count);
        let count = (count + 1).min(MOST);
        *ambiguous = Some(AmbiguousReleases { first: before, last: at, count });
    }

    /// Applies the messages before a reading, unless the reading shows that the holds have continued.
    pub(super) fn resolve_ambiguous_releases(
        &mut self,
        stamp: Stamp,
        reading: &Reading,
        effects: &mut Vec<Effect>,
    ) {
        let Some(releases) = &mut self.releases else { return };
        let Some(ambiguous) = releases.ambiguous.take_if(|it| stamp.sent >= it.first.moment())
        else {
            return;
        };
        let AmbiguousReleases { first, last, count } = ambiguous;
        if last.moment() > stamp.sent {
            releases.ambiguous = Some(AmbiguousReleases { first: last, last, count: 1 });
        }
        if self.is_released() || self.continues(first.moment(), stamp, reading) {
            return;
        }
        self.released(first, Source::Channels, Ending::Released, effects);
        let last = if last.moment() > stamp.sent { first } else { last };
        for _ in 1..count {
            self.released(last, Source::Channels, Ending::Released, effects);
        }
    }

    /// Returns whether a reading shows the known holds, and that none of them began after that instant.
    fn continues(&self, at: Moment, stamp: Stamp, reading: &Reading) -> bool {
        let Reading::Lock { hash, ttl, companions } = reading else { return false };
        let watched = self.watched_ttl(*ttl, companions);
        let shown = holders(hash);
        // An agent's number identifies a hold for good.
        let is_same_grant = |hold: &Hold| {
            hold.id.looks_like_agent() && shown.iter().any(|holder| holder.id == hold.id)
        };
        if self.is_held() && self.holds.iter().all(is_same_grant) {
            return true;
        }
        are_same(&self.holds, &shown)
            && (self.lease.goes_on(stamp.received.moment(), stamp.slack(), watched)
                || self.lease_began_before(at, stamp, *ttl))
    }

    /// Returns whether the holds in the newest reading began before that instant, which is older than the reading: their
    /// lease did, or has not been set again since, or by a watchdog.
    fn has_gone_on(&self, at: Time, stamp: Stamp) -> bool {
        let rose = self.rose.is_some_and(|rose| rose >= at.steady());
        self.lease_began_before(at.moment(), stamp, self.ttl) || !rose || self.lease.is_regular()
    }

    /// Returns whether a reading proves that the current lease began before that instant, by a renewal or with the
    /// hold. The first renewal may come at any time within a third of the lease.
    fn lease_began_before(&self, at: Moment, stamp: Stamp, ttl: Option<Duration>) -> bool {
        let lease = match self.lease.renewed() {
            true => self.lease.lease(),
            false => self.lease.least(stamp.received.moment(), ttl),
        };
        lease.zip(ttl).is_some_and(|(lease, ttl)| ttl + stamp.received.since(at) + LATE < lease)
    }
}

/// Returns whether a reading shows exactly these holds, with their counts.
pub(super) fn are_same(holds: &[Hold], holders: &[Holder]) -> bool {
    let shown =
        |hold: &Hold| holders.iter().any(|one| one.id == hold.id && one.count == hold.count);
    holders.len() == holds.len() && holds.iter().all(shown)
}

/// Returns the holders in a hash. Holders of unknown clients have stand-in ids.
pub(super) fn holders(hash: &LockHash) -> Vec<Holder> {
    let foreign = hash.foreign.iter();
    let foreign = foreign.map(|holder| Holder { id: holder.stand_in(), count: holder.count });
    hash.holders.iter().copied().chain(foreign).collect()
}
