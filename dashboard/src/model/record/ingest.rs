//! Applies readings and messages to a lock's record.

use std::sync::Arc;
use std::time::Duration;

use redisson::shape::{Holder, LockHash};
use redisson::{HolderId, Moment, keys};

use super::{Effect, Hold, Mode, Record, ScopeContext, ambiguous_release};
use crate::clock::{SteadyMillis, Time, millis};
use crate::model::contention::Count;
use crate::model::lease::Step;
use crate::model::problem::{APART, Expired};
use crate::model::types::{
    ArchiveEntry, Certainty, EndCause, Ending, LockEvent, Marker, PastHold, QueueEntry, Reading,
    Since, Source, Stamp,
};
use crate::model::waiting::Waiting;

/// The largest uncertainty at which a hold's beginning counts as exact.
pub(super) const EXACT: Duration = Duration::from_secs(1);
/// The maximum time left at the last reading for a lease to count as expired rather than released.
const NEAR_END: Duration = Duration::from_secs(1);
/// The maximum time left at a reading that finds the lock gone, for its lease to count as expired.
const RUN_OUT: Duration = Duration::from_millis(200);
/// The maximum number of readers whose markers are read after the lock has vanished.
const MAX_ORPHANED_READERS: usize = 16;
/// The largest hold count for which the markers of a reader of an earlier run are read.
const RESTORED_COUNT: i64 = 4;

impl Record {
    /// Applies a reading that shows the lock held, with its time to live and the one that shows renewals.
    pub(super) fn read_held(
        &mut self,
        stamp: Stamp,
        source: Source,
        hash: &LockHash,
        (ttl, watched): (Option<Duration>, Option<Duration>),
        context: ScopeContext,
        effects: &mut Vec<Effect>,
    ) {
        let last = self.stamp.replace(stamp);
        let released = self.take_released(stamp.sent);
        let before = if released.is_some() { Vec::new() } else { std::mem::take(&mut self.holds) };
        // A release after this reading has ended the hold that it shows.
        let over = self.releases.as_ref().and_then(|releases| releases.unread);
        // A hold not seen before began after the newest sign that it did not exist.
        let window = released
            .or_else(|| last.map(|last| last.sent))
            .or(context.pass_began)
            .map(|earliest| stamp.received.since(earliest));
        let since =
            Since { at: stamp.steady(), exact: window.is_some_and(|window| window <= EXACT) };
        self.add_stand_ins(hash);
        let holders = ambiguous_release::holders(hash);
        let moved = released.is_some() || !ambiguous_release::are_same(&before, &holders);
        // True if an earlier run observed all of the holds.
        let mut resumed = last.is_none();
        // Of a hash that only looked like a lock, an earlier run has stored the problems without the holds.
        let before_known = released.is_some()
            || last.is_some()
            || self.hold_history.as_ref().is_some_and(|history| !history.restored.is_empty());
        let mut holds = Vec::with_capacity(holders.len());
        for holder in &holders {
            let known = before.iter().find(|hold| hold.id == holder.id);
            holds.push(match (known, over) {
                (Some(hold), _) => self.go_on(*hold, holder.count, stamp, source, effects),
                (None, Some(at)) => self.begin_over(*holder, since, stamp, at, effects),
                (None, None) => {
                    let (hold, known_before) =
                        self.begin(*holder, since, window, stamp, source, effects);
                    resumed &= known_before;
                    hold
                }
            });
        }
        self.holds = holds;
        for gone in before.iter().filter(|hold| !holders.iter().any(|h| h.id == hold.id)) {
            let is_kept =
                |hold: &Hold| hold.first < stamp.sent && hold.id.is_read_side_of(&gone.id);
            if reads_on(&gone.id, &holders) || self.holds.iter().any(is_kept) {
                let what = LockEvent::Released(Some(self.field_of(gone.id)));
                self.end_with(*gone, stamp.received, source, what, effects);
            } else {
                self.end_replaced(*gone, last, stamp, source, context, effects);
            }
        }
        self.drop_stand_ins();
        if self.confirmed && over.is_none() {
            self.archive_begun(effects);
        }
        if moved && before_known && !resumed {
            self.end_restored_of_hold(stamp.steady(), effects);
        }
        let mode = hash.mode.as_deref().map(Mode::new);
        self.dirty |= self.mode != mode;
        self.mode = mode;
        self.check_shape(hash, context);
        self.drop_signs_against_holders(stamp);
        self.end_waits_of_holders(stamp, source, effects);
        let was_renewed = self.lease.renewed();
        if moved || last.is_none() {
            self.restart_lease(stamp, watched, window, resumed);
        } else {
            self.read_lease(last, stamp, watched);
        }
        if self.lease.renewed() && !was_renewed {
            let lease = self.lease.lease().map_or(0, millis);
            self.event(stamp.steady(), source, LockEvent::Renewed(lease), effects);
        }
        self.dirty |= self.lease.renewed() != was_renewed;
        self.store_ttl(ttl, stamp);
    }

    /// Stores the time to live, and the first of the readings that show none.
    fn store_ttl(&mut self, ttl: Option<Duration>, stamp: Stamp) {
        self.dirty |= self.ttl.is_some() != ttl.is_some();
        self.ttl = ttl;
        match ttl {
            Some(_) => self.no_ttl_since = None,
            None => drop(self.no_ttl_since.get_or_insert_with(|| Box::new(stamp))),
        }
    }

    /// Returns a known hold with the hold count in this reading.
    fn go_on(
        &mut self,
        hold: Hold,
        count: i64,
        stamp: Stamp,
        source: Source,
        effects: &mut Vec<Effect>,
    ) -> Hold {
        if hold.count != count {
            let what = LockEvent::Reentered(self.field_of(hold.id), hold.count, count);
            self.event(stamp.steady(), source, what, effects);
        }
        Hold { count, ..hold }
    }

    /// Returns a hold that this reading is the first to show, and that a release at `at` has ended since.
    fn begin_over(
        &mut self,
        holder: Holder,
        since: Since,
        stamp: Stamp,
        at: Time,
        effects: &mut Vec<Effect>,
    ) -> Hold {
        let mut hold = Hold::new(holder, since, stamp);
        hold.since.at = hold.since.at.min(at.steady());
        self.end(hold, at, Ending::Released, effects);
        hold
    }

    /// Drops the signs that are disproved by a reading that shows the lock held.
    fn drop_signs_against_holders(&mut self, stamp: Stamp) {
        let Some(cold) = &mut self.cold else { return };
        cold.orphan_since = None;
        cold.orphaned_readers.clear();
        cold.taken.take_if(|(_, at)| at.moment() <= stamp.sent);
    }

    /// Removes the lock's holders from its waiters, since their waits are over.
    fn end_waits_of_holders(&mut self, stamp: Stamp, source: Source, effects: &mut Vec<Effect>) {
        let Some(cold) = &mut self.cold else { return };
        let ids: Vec<HolderId> = self.holds.iter().map(|hold| hold.id).collect();
        // A reader that wants to write waits for itself: its queue entry is the write side's.
        for waiter in cold.waiting.remove(&ids) {
            self.waited(waiter, Some(stamp.steady()), source, effects);
        }
    }

    /// Begins the lease of holds that this reading is the first to show. `resumed` is true if an earlier run observed
    /// all of them.
    fn restart_lease(
        &mut self,
        stamp: Stamp,
        watched: Option<Duration>,
        window: Option<Duration>,
        resumed: bool,
    ) {
        let restored = self.restored_unchanged_since(stamp).filter(|_| resumed);
        self.unchanged_since = restored.unwrap_or(stamp.received);
        self.renewals = None;
        let age = window.filter(|window| *window <= EXACT);
        self.lease.restart(stamp.received.moment(), stamp.slack(), watched, age);
    }

    /// Stores the fields of holders of unknown clients.
    fn add_stand_ins(&mut self, hash: &LockHash) {
        for holder in &hash.foreign {
            let id = holder.stand_in();
            let foreign = &mut self.cold().foreign;
            if !foreign.iter().any(|(known, _)| *known == id) {
                foreign.push((id, holder.text().into()));
            }
        }
    }

    /// Drops the fields of holders that have ended.
    fn drop_stand_ins(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.foreign.retain(|(id, _)| self.holds.iter().any(|hold| hold.id == *id));
        }
    }

    /// Returns a hold that this reading is the first to show, and whether an earlier run observed it. The hold began
    /// within `window`, if that is known.
    fn begin(
        &mut self,
        holder: Holder,
        since: Since,
        window: Option<Duration>,
        stamp: Stamp,
        source: Source,
        effects: &mut Vec<Effect>,
    ) -> (Hold, bool) {
        let taken = self.taken(holder.id, stamp);
        let read = (stamp.steady(), source);
        let field = self.field_of(holder.id);
        let restored = self.take_restored(&field, since);
        let ((at, seen_by), what) = match (taken, window) {
            (Some(at), _) => ((at.steady(), Source::Monitor), LockEvent::Taken(field, 0)),
            (None, Some(window)) => (read, LockEvent::Taken(field, millis(window))),
            (None, None) => (read, LockEvent::FoundHeld(field)),
        };
        if matches!(what, LockEvent::Taken(..)) {
            self.count(source, Count::Acquired, effects);
        }
        self.event(at, seen_by, what, effects);
        let hold = Hold::new(holder, restored.unwrap_or(since), stamp);
        match taken {
            Some(at) => {
                let since = Since { at: at.steady(), exact: true };
                (Hold { from: at.moment(), since, ..hold }, false)
            }
            None => (hold, restored.is_some()),
        }
    }

    /// Sends the beginnings of the holds to the history on disk, unless they are there already.
    fn archive_begun(&mut self, effects: &mut Vec<Effect>) {
        for hold in self.holds.iter().filter(|hold| !hold.archived) {
            let holder = self.field_of(hold.id);
            let entry = ArchiveEntry::Began(self.id.clone(), holder, hold.since);
            effects.push(Effect::Archive(Box::new(entry)));
        }
        self.holds.iter_mut().for_each(|hold| hold.archived = true);
    }

    /// Ends a hold that is missing from the newest reading, which shows the lock held by others.
    fn end_replaced(
        &mut self,
        hold: Hold,
        last: Option<Stamp>,
        stamp: Stamp,
        source: Source,
        context: ScopeContext,
        effects: &mut Vec<Effect>,
    ) {
        let expired = self.has_expired(last, stamp) || has_marker_expired(&hold, last, stamp);
        // A reader that leaves other readers sends no message. A reader without markers has lost its lease before.
        let reader = self.mode.is_some() && !hold.id.write;
        let left = reader && !expired && hold.marker != Some(Marker::Missing);
        let unobserved = expired && self.ttl > Some(NEAR_END) && has_missed(last, context);
        let silent = expired && self.may_have_left_silently();
        let holder = self.field_of(hold.id);
        // A lock that still has some of its readers has not been lost.
        let survived = self.holds.iter().any(|kept| kept.first < stamp.sent);
        let lost = self.is_lost(&hold, last, stamp, context) && !(left && survived);
        let what = if lost {
            LockEvent::Vanished(holder, EndCause::ServerRestarted)
        } else if left {
            LockEvent::Released(Some(holder))
        } else if unobserved {
            LockEvent::Vanished(holder, EndCause::Unobserved)
        } else if silent {
            LockEvent::Vanished(holder, EndCause::ExpiredOrReleased)
        } else if expired {
            LockEvent::Vanished(holder, EndCause::Expired)
        } else {
            LockEvent::Vanished(holder, EndCause::OthersHold)
        };
        self.end_with(hold, stamp.received, source, what, effects);
        self.record_expiry(hold, last, stamp, source, context);
    }

    /// Applies the time to live of the same holds as at the `last` reading.
    fn read_lease(&mut self, last: Option<Stamp>, stamp: Stamp, watched: Option<Duration>) {
        let step = self.lease.read(stamp.received.moment(), stamp.slack(), watched);
        self.dirty |= step != Step::Ran;
        if step != Step::Rose {
            return;
        }
        self.rose = Some(stamp.steady());
        // The lease has run since then, but had not been renewed at the last reading.
        let ran = self.lease.lease().zip(watched).map(|(lease, left)| lease.saturating_sub(left));
        let at = stamp.steady().minus(ran.map_or(0, millis));
        self.add_renewal(last.map_or(at, |last| at.max(last.steady())));
        if let Some(cold) = &mut self.cold {
            // A holder that renews the lock is alive, regardless of other observations.
            cold.gone = None;
        }
    }

    /// Records a renewal at that instant.
    pub(super) fn add_renewal(&mut self, at: SteadyMillis) {
        let lease = self.lease.lease();
        Arc::make_mut(self.renewals.get_or_insert_default()).add(at, lease);
    }

    fn check_shape(&mut self, hash: &LockHash, context: ScopeContext) {
        let malformed = hash.malformed().or_else(|| {
            // Only in a cluster can a lock and its companions be in different slots.
            let apart = context.cluster && !keys::companions_share_slot(&self.id.name);
            apart.then(|| APART.to_owned())
        });
        if malformed.is_some() || self.cold.is_some() {
            self.cold().malformed = malformed;
        }
    }

    /// Records the expiry of a hold that had been renewed, if it was seen shortly before its end, so that no client can
    /// have released it unnoticed.
    fn record_expiry(
        &mut self,
        hold: Hold,
        last: Option<Stamp>,
        stamp: Stamp,
        source: Source,
        context: ScopeContext,
    ) {
        let (Some(last), Some(ttl), Some(lease)) = (last, self.ttl, self.lease.lease()) else {
            return;
        };
        let watched = context.readable_since.is_some_and(|since| since <= last.sent);
        let near = ttl <= NEAR_END;
        let expired = self.has_expired(Some(last), stamp);
        let restarted = context.has_restarted_since(Some(last));
        if !self.lease.renewed() || restarted || !watched || !near || !expired {
            return;
        }
        if self.has_returned_late(hold.id, last) {
            return;
        }
        let seen = format!(
            "last read with {:.1} s left, then it was gone without a release message",
            ttl.as_secs_f64()
        );
        self.suspect_expiry(hold, lease, stamp.received, source, &seen);
    }

    /// Records that the lease of one of several readers has run out, if it had been renewed to this lease.
    pub(super) fn lease_ran_out(
        &mut self,
        reader: Hold,
        lease: Option<Duration>,
        (last, stamp): (Option<Stamp>, Stamp),
        source: Source,
        context: ScopeContext,
    ) {
        let watched =
            context.readable_since.zip(last).is_some_and(|(since, last)| since <= last.sent);
        if let Some(lease) = lease.filter(|_| watched && !context.has_restarted_since(last)) {
            let seen = "then its marker expired, while others continued to read";
            self.suspect_expiry(reader, lease, stamp.received, source, seen);
        }
    }

    /// Records the expiry of a hold that had been renewed to this lease. `seen` is what showed it.
    fn suspect_expiry(
        &mut self,
        hold: Hold,
        lease: Duration,
        at: Time,
        source: Source,
        seen: &str,
    ) {
        let (holder, lease) = (self.field_of(hold.id), lease.as_secs_f64());
        let evidence = format!("{holder} had renewed it to about {lease:.1} s; {seen}");
        let (holder, certainty) = (Some(holder), Certainty::Suspected);
        let began = hold.since.at;
        let expired = Expired { at, began, holder, certainty, source, evidence, times: 1 };
        self.expire(expired);
    }

    /// Applies a notification that its key was changed.
    pub fn on_key_changed(&mut self) {
        self.add_source(Source::Keyspace);
    }

    /// Applies a notification that its key has expired. The next reading shows the new state.
    pub fn on_key_expired(&mut self, at: Time, context: ScopeContext, effects: &mut Vec<Effect>) {
        if self.reading_since(at).is_some() || self.is_released() || !self.is_held() {
            return;
        }
        // The reading may show the next hold already, since a notification arrives later than the event.
        let lasts = |end: Moment| end > at.moment() + RUN_OUT;
        let is_new = |hold: &Hold| at.moment().since(hold.first) <= EXACT;
        if self.end_of_ttl(self.stamp).is_none_or(lasts) && self.holds.iter().all(is_new) {
            return;
        }
        let lease = self.lease.lease().filter(|_| self.lease.renewed());
        for hold in std::mem::take(&mut self.holds) {
            self.record_orphaned_reader(hold);
            let what = LockEvent::Vanished(self.field_of(hold.id), EndCause::Expired);
            self.end_with(hold, at, Source::Keyspace, what, effects);
            let last = self.stamp;
            let known = last.is_some_and(|last| self.has_returned_late(hold.id, last));
            let restarted = context.has_restarted_since(last);
            if let Some(lease) = lease.filter(|_| !restarted && !known) {
                let seen = "then the server reported that its key had expired";
                self.suspect_expiry(hold, lease, at, Source::Keyspace, seen);
            }
        }
        self.changed_by_event(at);
        self.free_since = at.moment();
        self.ttl = None;
        self.no_ttl_since = None;
    }

    /// Returns whether the holder is known to have returned too late, since that reading.
    fn has_returned_late(&self, id: HolderId, last: Stamp) -> bool {
        let expired = self.cold.as_ref().and_then(|cold| cold.expired.as_ref());
        expired.is_some_and(|expired| {
            expired.certainty == Certainty::Certain
                && expired.holder == Some(self.field_of(id))
                && expired.at >= last.received
        })
    }

    /// Returns whether the last time to live had expired by this reading.
    pub(super) fn has_expired(&self, last: Option<Stamp>, stamp: Stamp) -> bool {
        self.end_of_ttl(last).is_some_and(|end| end.since(stamp.received.moment()) <= RUN_OUT)
    }

    /// Returns the end of its time to live, which was read at `last`.
    pub(super) fn end_of_ttl(&self, last: Option<Stamp>) -> Option<Moment> {
        Some(last?.received.moment() + self.ttl?)
    }

    /// Applies a reading that finds no lock.
    pub(super) fn read_absent(
        &mut self,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
        context: ScopeContext,
        effects: &mut Vec<Effect>,
    ) {
        if !self.is_newer(stamp) {
            return;
        }
        let last = self.stamp.replace(stamp);
        let unread = self.releases.as_mut().and_then(|releases| releases.unread.take());
        let released = unread.is_some();
        if released || last.is_none() || self.is_held() {
            self.free_since = stamp.received.moment();
        }
        for hold in std::mem::take(&mut self.holds) {
            self.dirty = true;
            self.record_orphaned_reader(hold);
            if released {
                continue;
            }
            if matches!(reading, Reading::Absent { .. }) {
                self.record_expiry(hold, last, stamp, source, context);
            }
            let cause = match reading {
                Reading::Other(what) => EndCause::Replaced(what.clone()),
                _ if self.is_lost(&hold, last, stamp, context) => EndCause::ServerRestarted,
                _ => self.absence_cause(last, stamp, context),
            };
            let what = LockEvent::Vanished(self.field_of(hold.id), cause);
            self.end_with(hold, stamp.received, source, what, effects);
        }
        if let Some(cold) = &mut self.cold {
            cold.forcing.clear();
        }
        self.ttl = None;
        self.no_ttl_since = None;
        self.drop_stand_ins();
        self.check_leftovers(stamp, reading);
        self.judge(stamp, source, context, effects);
        self.drop_empty_cold_state();
    }

    /// Returns why a lock is absent that was held at the `last` reading, if the server has not lost it.
    fn absence_cause(&self, last: Option<Stamp>, stamp: Stamp, context: ScopeContext) -> EndCause {
        let left = self.end_of_ttl(last).map(|end| end.since(stamp.received.moment()));
        match left {
            // A reading shortly before the end of the lease would have shown its release.
            Some(_) if self.ttl > Some(NEAR_END) && has_missed(last, context) => {
                EndCause::Unobserved
            }
            Some(left) if left > RUN_OUT => EndCause::Early(millis(left)),
            Some(_) if self.may_have_left_silently() => EndCause::ExpiredOrReleased,
            Some(_) => EndCause::Expired,
            None => EndCause::Early(0),
        }
    }

    /// Returns whether a hold that was gone after the end of its time to live may have been released before, without a
    /// message: the last reading was too early to tell, and the lock is fair, or may be a spin lock.
    fn may_have_left_silently(&self) -> bool {
        let may_spin = self.mode.is_none() && !self.heard;
        self.ttl > Some(NEAR_END) && (self.fair || may_spin)
    }

    /// Records a reader that held the lock when the lock vanished, if its markers may still exist. Other holds have none.
    fn record_orphaned_reader(&mut self, hold: Hold) {
        if self.mode.is_none() || hold.id.write || hold.marker == Some(Marker::Missing) {
            return;
        }
        let readers = &mut self.cold().orphaned_readers;
        if readers.len() < MAX_ORPHANED_READERS {
            readers.push((hold.id, hold.count));
        }
    }

    /// Records holders of an earlier run whose markers may still exist. Their counts are not in the history.
    pub(super) fn restore_orphaned_readers(&mut self, past: &[PastHold]) {
        let readers = &mut self.cold().orphaned_readers;
        let ids = past.iter().rev().filter_map(|hold| hold.id.id());
        for id in ids.filter(|id| !id.write) {
            let known = readers.iter().any(|(known, _)| *known == id);
            if !known && readers.len() < MAX_ORPHANED_READERS {
                readers.push((id, RESTORED_COUNT));
            }
        }
    }

    /// Checks an absent lock for leftovers: a dead first queue entry, or markers of readers.
    fn check_leftovers(&mut self, stamp: Stamp, reading: &Reading) {
        let Some(cold) = &mut self.cold else { return };
        (cold.gone, cold.malformed, cold.dead_readers_since) = (None, None, None);
        cold.taken.take_if(|(_, at)| at.moment() <= stamp.sent);
        let Reading::Absent { companions } = reading else {
            cold.orphan_since = None;
            return cold.orphaned_readers.clear();
        };
        if companions.is_unavailable() {
            return;
        }
        let marker =
            |id| companions.markers.iter().find(|(known, _)| *known == id).map(|(_, m)| *m);
        cold.orphaned_readers.retain(|(id, _)| marker(*id) != Some(Marker::Missing));
        let marked = cold.orphaned_readers.iter().any(|(id, _)| marker(*id).is_some());
        let dead = is_dead(&cold.waiting) || marked;
        cold.orphan_since = dead.then(|| cold.orphan_since.unwrap_or(stamp));
    }

    /// Returns the instant at which MONITOR saw that holder acquire the lock, unless a later reading disagrees.
    fn taken(&self, id: HolderId, stamp: Stamp) -> Option<Time> {
        let (by, at) = self.cold.as_ref()?.taken?;
        (by == id && at <= stamp.received).then_some(at)
    }

    /// Adds a count for the last hour, if the lock is confirmed.
    pub(super) fn count(&self, source: Source, count: Count, effects: &mut Vec<Effect>) {
        if self.confirmed {
            effects.push(Effect::Count(source, count));
        }
    }

    /// Returns whether a restart of the server ended a hold that no reading has shown since, and neither an operator nor the
    /// end of a lease that has never been renewed. A reading that was sent before the restart shows an earlier end.
    fn is_lost(
        &self,
        hold: &Hold,
        last: Option<Stamp>,
        stamp: Stamp,
        context: ScopeContext,
    ) -> bool {
        let ran_out = !self.lease.rose() && self.has_expired(last, stamp);
        context.has_restarted_since(last)
            && !context.has_restarted_since(Some(stamp))
            && !ran_out
            && !self.is_forced(hold, stamp.received.moment())
    }
}

/// Returns whether a writer also reads. If it no longer writes, it has released the write side, which no message
/// reports.
pub(super) fn reads_on(writer: &HolderId, holders: &[Holder]) -> bool {
    writer.write && holders.iter().any(|holder| holder.id == HolderId { write: false, ..*writer })
}

/// Returns whether release messages may have been missed since the last reading.
pub(super) fn has_missed(last: Option<Stamp>, context: ScopeContext) -> bool {
    let Some(last) = last else { return true };
    [context.readable_since, context.listening_since]
        .into_iter()
        .any(|since| since.is_none_or(|since| since > last.sent))
}

/// Returns whether a reader's marker from the last reading had expired by this one.
pub(super) fn has_marker_expired(hold: &Hold, last: Option<Stamp>, stamp: Stamp) -> bool {
    match (hold.marker, last) {
        (Some(Marker::Missing), _) => true,
        (Some(Marker::Expires(ttl)), Some(last)) => {
            (last.received.moment() + ttl).since(stamp.received.moment()) <= RUN_OUT
        }
        _ => false,
    }
}

/// Returns whether the first waiter in the queue is dead, or all waiters if the queue itself is gone or was only
/// counted.
fn is_dead(waiting: &Waiting) -> bool {
    let Some(queue) = &waiting.queue else { return false };
    match queue.front.first() {
        // Redisson never removes an entry without a deadline: its clean-up stops there.
        Some(QueueEntry { deadline: None, .. }) => queue.deadlines == 0,
        Some(_) => waiting.dead_head().is_some(),
        None => queue.passed > 0 && queue.passed == queue.deadlines,
    }
}
