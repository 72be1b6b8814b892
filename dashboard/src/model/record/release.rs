//! Releases, and the ends of holds.

use std::sync::Arc;
use std::time::Duration;

use redisson::Moment;

use super::ambiguous_release::AmbiguousReleases;
use super::early_reading::EarlyReading;
use super::ingest::EXACT;
use super::{Effect, Hold, Record};
use crate::clock::{SteadyMillis, Time};
use crate::model::contention::Count;
use crate::model::types::{
    ArchiveEntry, EndCause, Ending, HolderField, LockEvent, Marker, PastHold, Since, Source, Stamp,
};

/// The time within which two sources report the same release.
const SAME_RELEASE: Duration = Duration::from_millis(200);
/// The maximum number of releases of a lock within that time that are compared.
const MAX_BY_ONE_SOURCE: usize = 64;

/// The latest reported releases.
#[derive(Debug, Default)]
pub(super) struct Releases {
    /// The releases that only one source has reported within the time in which the other may report them, oldest first.
    by_one_source: Vec<(Time, Source)>,
    /// A release that is newer than all readings.
    pub(super) unread: Option<Time>,
    /// The releases that may be about a lock of the same name in another database.
    pub(super) ambiguous: Option<AmbiguousReleases>,
    /// The latest change of holders that an event has shown.
    pub(super) changed: Option<Moment>,
    /// A reading that shows the end of the hold before a release message.
    pub(super) early: Option<EarlyReading>,
}

impl Releases {
    /// Records a report. Returns the time of the earlier report if another source has reported the same release.
    fn earlier_report(&mut self, at: Time, source: Source) -> Option<Time> {
        let other = self.take_earlier_report(at, source);
        if other.is_none() && self.by_one_source.len() < MAX_BY_ONE_SOURCE {
            self.by_one_source.push((at, source));
        }
        other
    }

    /// Takes the report of the same release by another source, if there is one.
    pub(super) fn take_earlier_report(&mut self, at: Time, source: Source) -> Option<Time> {
        self.by_one_source.retain(|(before, _)| at.since(*before) <= SAME_RELEASE);
        let other = self.by_one_source.iter().position(|(_, by)| *by != source);
        other.map(|i| self.by_one_source.remove(i).0)
    }
}

impl Record {
    /// Applies a release, from a message or from MONITOR: all holds that began before it have ended. An agent also announces
    /// the release of the write side by an owner that continues to read.
    pub fn released(&mut self, at: Time, source: Source, ended: Ending, effects: &mut Vec<Effect>) {
        self.add_source(source);
        self.confirm();
        self.heard |= source == Source::Channels;
        // Both sources report the same release, and either may be first. Only MONITOR shows a forced release.
        if let Some(first) = self.releases.get_or_insert_default().earlier_report(at, source) {
            if ended == Ending::Forced {
                self.correct_to_forced(first.steady(), source, effects);
            }
            return;
        }
        self.withdraw_expiry(at);
        if let Some(stamp) = self.reading_since(at) {
            return self.released_before(stamp, at, source, effects);
        }
        let known: Vec<Hold> = if self.is_released() { Vec::new() } else { self.holds.clone() };
        // The next reading shows which of them continue.
        let may_go_on = |hold: &Hold| {
            let reads_for = |writer: &Hold| hold.id.is_read_side_of(&writer.id);
            ended == Ending::Released && hold.id.looks_like_agent() && known.iter().any(reads_for)
        };
        // A reader whose lease has run out stays in the hash until the others have left.
        let ran_out = |hold: &Hold| {
            let is_gone = |hold: &Hold| hold.marker == Some(Marker::Missing);
            is_gone(hold) && !known.iter().all(is_gone)
        };
        for hold in known.iter().filter(|hold| !may_go_on(hold)) {
            let holder = self.field_of(hold.id);
            let what = match ran_out(hold) {
                true => LockEvent::Vanished(holder, EndCause::Expired),
                false => release_event(holder, ended),
            };
            self.end_with(*hold, at, source, what, effects);
        }
        if known.iter().any(may_go_on) {
            self.holds.retain(may_go_on);
            self.unchanged_since = at;
            return self.defer_release(at);
        }
        if known.is_empty() {
            self.released_unread(at, source, ended, effects);
        }
        if !self.is_held() {
            self.free_since = self.free_since.max(at.moment());
        }
        let releases = self.releases.get_or_insert_default();
        releases.unread = releases.unread.max(Some(at));
    }

    /// Corrects the ends of the holds that a message reported at that instant: an operator forced their release.
    fn correct_to_forced(&mut self, to: SteadyMillis, source: Source, effects: &mut Vec<Effect>) {
        for past in self.hold_history().correct_to_forced(to) {
            self.events.correct_to_forced(&past.id, to);
            self.count(source, Count::Lost, effects);
            let entry = ArchiveEntry::Forced(self.id.clone(), past.id, to);
            effects.push(Effect::Archive(Box::new(entry)));
            self.dirty = true;
        }
    }

    /// Applies a release of a hold that no reading has shown.
    fn released_unread(
        &mut self,
        at: Time,
        source: Source,
        ended: Ending,
        effects: &mut Vec<Effect>,
    ) {
        let taken = self.cold.as_mut().and_then(|cold| cold.taken.take());
        let Some((id, from)) = taken else {
            self.count(source, Count::Acquired, effects);
            return self.event(at.steady(), source, LockEvent::Released(None), effects);
        };
        // MONITOR saw the whole hold. So short a hold is not archived, since there may be thousands a second.
        let holder = HolderField::Id(id);
        let past = PastHold {
            id: holder.clone(),
            since: Since { at: from.steady(), exact: true },
            to: at.steady(),
            ended,
        };
        self.hold_history().push(past.clone());
        self.count(source, Count::Held(past), effects);
        self.event(from.steady(), Source::Monitor, LockEvent::Taken(holder.clone(), 0), effects);
        self.event(at.steady(), source, release_event(holder, ended), effects);
    }

    /// Applies a release that is reported after a newer reading: the holds in that reading began after the release.
    fn released_before(
        &mut self,
        newer: Stamp,
        at: Time,
        source: Source,
        effects: &mut Vec<Effect>,
    ) {
        let exact = newer.received.since(at) <= EXACT;
        let mut restarted = false;
        for hold in self.holds.iter_mut().filter(|hold| hold.first < at.moment()) {
            hold.first = newer.sent;
            hold.from = at.moment();
            hold.since = Since { at: at.steady(), exact };
            restarted = true;
        }
        if restarted {
            self.unchanged_since = at;
            self.count(source, Count::Acquired, effects);
            self.event(at.steady(), source, LockEvent::Released(None), effects);
        }
    }

    /// Records the end of a hold with its event, or with the event of a forced release.
    pub(super) fn end_with(
        &mut self,
        hold: Hold,
        at: Time,
        source: Source,
        what: LockEvent,
        effects: &mut Vec<Effect>,
    ) {
        let forced = self.is_forced(&hold, at.moment());
        let what = if forced { LockEvent::Forced(self.field_of(hold.id)) } else { what };
        let lost = matches!(what, LockEvent::Vanished(_, EndCause::ServerRestarted));
        // A lock counts once, however many readers it had.
        if lost && !effects.contains(&Effect::LostInRestart) {
            effects.push(Effect::LostInRestart);
        }
        if let Some(ended) = what.ending() {
            self.end(hold, at, ended, effects);
        }
        self.event(at.steady(), source, what, effects);
    }

    /// Records the end of a hold.
    pub(super) fn end(&mut self, hold: Hold, at: Time, ended: Ending, effects: &mut Vec<Effect>) {
        let ended = if self.is_forced(&hold, at.moment()) { Ending::Forced } else { ended };
        let id = self.field_of(hold.id);
        let past = PastHold { id, since: hold.since, to: at.steady(), ended };
        self.hold_history().push(past.clone());
        if self.confirmed {
            // The source that showed the end makes no difference here.
            effects.push(Effect::HoldEnded(ended, Arc::clone(&self.group)));
            effects.push(Effect::Count(Source::Poll, Count::Held(past.clone())));
            effects.push(Effect::Archive(Box::new(ArchiveEntry::Ended(self.id.clone(), past))));
        }
    }
}

/// Returns the event of a release by the holder, or by force.
fn release_event(holder: HolderField, ended: Ending) -> LockEvent {
    match ended {
        Ending::Forced => LockEvent::Forced(holder),
        _ => LockEvent::Released(Some(holder)),
    }
}
