//! Readings that show the end of a hold before its release message has arrived, since messages and readings use
//! different connections. Such a reading is stored until the message arrives, or would have arrived.

use redisson::Moment;
use redisson::shape::LockHash;

use super::ambiguous_release::{LATE, holders};
use super::ingest::{has_missed, reads_on};
use super::{Effect, Record, ScopeContext};
use crate::model::clients::Clients;
use crate::model::types::{Reading, Source, Stamp};

/// A reading that has not been applied yet.
#[derive(Debug)]
pub(super) struct EarlyReading {
    stamp: Stamp,
    source: Source,
    reading: Reading,
}

impl Record {
    /// Applies a reading, and before it one that has waited long enough for a release message. Stores the reading if it
    /// has to wait.
    pub fn read(
        &mut self,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
        (context, clients): (ScopeContext, &Clients),
        effects: &mut Vec<Effect>,
    ) {
        let early = self.releases.as_mut().and_then(|releases| releases.early.take());
        // Once the message has arrived, or an event has shown the change, the newer of the two readings is enough.
        let waits =
            |early: &EarlyReading| self.is_newer(early.stamp) && !self.has_reported_release();
        if let Some(early) = early.filter(waits) {
            if stamp.received.since(early.stamp.received) < LATE {
                return self.keep_early(early);
            }
            let EarlyReading { stamp, source, reading } = early;
            self.apply(stamp, source, &reading, (context, clients), effects);
        }
        if self.may_precede_message(stamp, reading, context) {
            self.keep_early(EarlyReading { stamp, source, reading: reading.clone() });
        } else {
            self.apply(stamp, source, reading, (context, clients), effects);
        }
    }

    /// Returns the instant at which a stored reading no longer has to wait.
    pub(super) fn early_until(&self) -> Option<Moment> {
        let early = self.releases.as_ref()?.early.as_ref()?;
        Some(early.stamp.received.moment() + LATE)
    }

    fn keep_early(&mut self, early: EarlyReading) {
        self.releases.get_or_insert_default().early = Some(early);
    }

    /// Returns whether a release was reported that no reading has confirmed yet.
    fn has_reported_release(&self) -> bool {
        let reported = |it: &super::Releases| it.unread.is_some() || it.ambiguous.is_some();
        self.releases.as_deref().is_some_and(reported)
    }

    /// Returns whether a reading shows the end of a hold whose release message may still arrive.
    fn may_precede_message(&self, stamp: Stamp, reading: &Reading, context: ScopeContext) -> bool {
        let hash = match reading {
            Reading::Lock { hash, .. } => Some(hash),
            Reading::Absent { .. } => None,
            Reading::Other(_) => return false,
        };
        self.confirmed
            && self.is_newer(stamp)
            && !context.has_restarted_since(self.stamp)
            && !has_missed(self.stamp, context)
            && !self.has_reported_release()
            && !self.has_expired(self.stamp, stamp)
            && self.lacks_hold(hash)
    }

    /// Returns whether a known hold is missing from this hash. A reader that leaves other readers sends no message, nor
    /// does a thread that writes no longer and continues to read, so these do not count.
    fn lacks_hold(&self, hash: Option<&LockHash>) -> bool {
        let Some(hash) = hash else { return self.is_held() };
        let shown = holders(hash);
        let mut awaited = self.holds.iter().filter(|hold| self.mode.is_none() || hold.id.write);
        awaited.any(|hold| {
            !reads_on(&hold.id, &shown) && shown.iter().all(|holder| holder.id != hold.id)
        })
    }
}
