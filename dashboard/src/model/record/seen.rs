//! What a reading or a message changes.

use std::sync::Arc;
use std::time::Duration;

use redisson::shape::LockHash;
use redisson::{HolderId, Moment};

use super::{Effect, Hold, Record, Surroundings, millis};
use crate::clock::SteadyMillis;
use crate::model::contention::Count;
use crate::model::history::{End, Happening};
use crate::model::lease::Step;
use crate::model::observation::{Marker, Queued, Reading, Source, Stamp};
use crate::model::past::{Ending, Note, PastHold};
use crate::model::problem::Expired;
use crate::model::view::{Certainty, Since};
use crate::model::waiting::Waiting;

/// A hold's beginning is exact when it is known within this.
const EXACT: Duration = Duration::from_secs(1);
/// A lease that had no more left than this when it was last seen was not released before its end.
const NEAR_END: Duration = Duration::from_secs(1);
/// A lease that was to end within this of a reading that finds the lock gone has run out.
const RUN_OUT: Duration = Duration::from_millis(200);
/// The most readers whose markers are looked for after the lock has vanished.
const MAX_LEFT: usize = 16;
/// A release that two sources tell of within this is one.
const TOLD_TWICE: Duration = Duration::from_millis(200);

impl Record {
    pub(super) fn read_held(
        &mut self,
        stamp: Stamp,
        source: Source,
        hash: &LockHash,
        ttl: Option<Duration>,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        let last = self.stamp.replace(stamp);
        let released = self.released.take_if(|(at, _)| stamp.sent >= *at).map(|(at, _)| at);
        let before = if released.is_some() { Vec::new() } else { std::mem::take(&mut self.holds) };
        // A hold not seen before began after the newest sign that it did not exist.
        let window = released
            .or_else(|| last.map(|last| last.sent))
            .or(around.pass_began)
            .map(|earliest| stamp.received.since(earliest));
        let since = Since { at: stamp.steady, exact: window.is_some_and(|window| window <= EXACT) };
        let mut moved = released.is_some();
        let mut holds = Vec::with_capacity(hash.holders.len());
        for holder in &hash.holders {
            let known = before.iter().find(|hold| hold.id == holder.id);
            let hold = match known {
                Some(hold) if hold.count == holder.count => *hold,
                Some(hold) => {
                    moved = true;
                    let what = Happening::Reentered(holder.id, hold.count, holder.count);
                    self.event(stamp.steady, source, what, effects);
                    Hold { count: holder.count, ..*hold }
                }
                None => {
                    moved = true;
                    let taken = self.taken(holder.id, stamp);
                    let what = match (taken, window) {
                        (Some(_), _) => Happening::Taken(holder.id, 0),
                        (None, Some(window)) => Happening::Taken(holder.id, millis(window)),
                        (None, None) => Happening::FoundHeld(holder.id),
                    };
                    if matches!(what, Happening::Taken(..)) {
                        self.count(source, Count::Acquired, effects);
                    }
                    self.event(stamp.steady, source, what, effects);
                    let (from, since) = match taken {
                        Some((at, steady)) => (at, Since { at: steady, exact: true }),
                        None => (stamp.received, self.since_remembered(holder.id, since)),
                    };
                    if self.confirmed {
                        let note = Note::Began(self.id.clone(), holder.id, since);
                        effects.push(Effect::Note(Box::new(note)));
                    }
                    Hold {
                        id: holder.id,
                        count: holder.count,
                        since,
                        first: stamp.sent,
                        from,
                        marker: None,
                    }
                }
            };
            holds.push(hold);
        }
        for gone in before.iter().filter(|hold| !hash.holders.iter().any(|h| h.id == hold.id)) {
            moved = true;
            let over = self.is_over(last, stamp);
            let ended = if over { Ending::RanOut } else { Ending::Vanished };
            self.end(*gone, stamp.received, stamp.steady, ended, effects);
            self.consider_expired(*gone, last, stamp, source, around);
            let what = Happening::Vanished(gone.id, End::OthersHold);
            self.event(stamp.steady, source, what, effects);
        }
        self.holds = holds;
        self.news |= self.mode != hash.mode;
        self.mode.clone_from(&hash.mode);
        self.look_for_odd(hash, around);
        if let Some(rare) = &mut self.rare {
            rare.orphan_since = None;
            rare.left.clear();
            rare.taken.take_if(|(_, at, _)| *at <= stamp.sent);
            if moved {
                rare.gone = None;
            }
            let ids: Vec<HolderId> = self.holds.iter().map(|hold| hold.id).collect();
            // A reader that wants to write waits for itself: its place is the write side's.
            for waiter in rare.waiting.remove(&ids) {
                self.waited(waiter, Some(stamp.steady), source, effects);
            }
        }
        let was_renewed = self.lease.renewed();
        if moved || last.is_none() {
            self.still_since = (stamp.received, stamp.steady);
            self.renewals = None;
            self.lease.restart(stamp.received, ttl, window.filter(|window| *window <= EXACT));
        } else {
            let step = self.lease.read(stamp.received, stamp.slack(), ttl);
            self.news |= step != Step::Ran;
            if step == Step::Rose {
                self.rose = Some(stamp.steady);
                // It has run since then, but it was not yet set again at the reading before.
                let ran = self.lease.lease().zip(ttl).map(|(lease, ttl)| lease.saturating_sub(ttl));
                let at = stamp.steady.0.saturating_sub(ran.map_or(0, millis));
                self.set_again(SteadyMillis(at.max(last.map_or(0, |last| last.steady.0))));
            }
            if let Some(rare) = self.rare.as_mut().filter(|_| step == Step::Rose) {
                // Whoever renews it lives, whatever else was seen.
                rare.gone = None;
            }
        }
        if self.lease.renewed() && !was_renewed {
            let lease = self.lease.lease().map_or(0, millis);
            self.event(stamp.steady, source, Happening::Renewed(lease), effects);
        }
        self.news |= self.lease.renewed() != was_renewed || self.ttl.is_some() != ttl.is_some();
        self.ttl = ttl;
        self.bare_since = if ttl.is_some() { None } else { self.bare_since.or(Some(stamp)) };
    }

    /// Its lease was set again at that instant.
    pub(super) fn set_again(&mut self, at: SteadyMillis) {
        let lease = self.lease.lease();
        Arc::make_mut(self.renewals.get_or_insert_default()).add(at, lease);
    }

    fn look_for_odd(&mut self, hash: &LockHash, around: Surroundings) {
        let odd = hash.malformed().or_else(|| {
            // Only a cluster has slots that the lock and what belongs to it could differ in.
            let apart = around.cluster && !self.id.name.companions_share_slot();
            apart
                .then(|| "braces in its name keep its channel and queue in another slot".to_owned())
        });
        if odd.is_some() || self.rare.is_some() {
            self.rare().odd = odd;
        }
    }

    /// Notes a hold that ran out although it had been renewed. It was seen shortly before its end, so that nobody
    /// can have released it unheard meanwhile.
    fn consider_expired(
        &mut self,
        hold: Hold,
        last: Option<Stamp>,
        stamp: Stamp,
        source: Source,
        around: Surroundings,
    ) {
        let (Some(last), Some(ttl), Some(lease)) = (last, self.ttl, self.lease.lease()) else {
            return;
        };
        let watched = around.readable_since.is_some_and(|since| since <= last.sent);
        let near = ttl <= NEAR_END;
        let over = self.is_over(Some(last), stamp);
        if !self.lease.renewed() || around.restarted || !watched || !near || !over {
            return;
        }
        if self.is_known_to_have_lost(&hold.id, last) {
            return;
        }
        let seen = format!(
            "{} had renewed it to about {:.1} s; last seen with {:.1} s left, then it was gone, and no release was told",
            hold.id,
            lease.as_secs_f64(),
            ttl.as_secs_f64()
        );
        let (holder, certainty) = (hold.id, Certainty::Suspected);
        let at = (stamp.received, stamp.steady);
        self.rare().expired = Some(Expired { at, holder, certainty, source, seen });
    }

    /// The server told that its key was changed.
    pub fn heard_of(&mut self) {
        self.seen_by(Source::Keyspace);
    }

    /// The server told that its key has run out. The next reading is to show what there is now.
    pub fn ran_out(
        &mut self,
        at: Moment,
        steady: SteadyMillis,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        let newer = self.stamp.is_some_and(|stamp| stamp.sent >= at);
        if newer || self.released.is_some() || !self.is_held() {
            return;
        }
        let lease = self.lease.lease().filter(|_| self.lease.renewed());
        for hold in std::mem::take(&mut self.holds) {
            self.end(hold, at, steady, Ending::RanOut, effects);
            self.event(
                steady,
                Source::Keyspace,
                Happening::Vanished(hold.id, End::RanOut),
                effects,
            );
            let last = self.stamp;
            let known = last.is_some_and(|last| self.is_known_to_have_lost(&hold.id, last));
            let Some(lease) = lease.filter(|_| !around.restarted && !known) else { continue };
            let seen = format!(
                "{} had renewed it to about {:.1} s; then the server told that its key had expired",
                hold.id,
                lease.as_secs_f64()
            );
            let (holder, certainty) = (hold.id, Certainty::Suspected);
            let (at, source) = ((at, steady), Source::Keyspace);
            self.rare().expired = Some(Expired { at, holder, certainty, source, seen });
        }
        self.free_since = at;
        self.ttl = None;
        self.bare_since = None;
    }

    /// Whether its holder has come back too late already, since that reading.
    fn is_known_to_have_lost(&self, id: &HolderId, last: Stamp) -> bool {
        let expired = self.rare.as_ref().and_then(|rare| rare.expired.as_ref());
        expired.is_some_and(|expired| {
            expired.certainty == Certainty::Sure
                && expired.holder == *id
                && expired.at.0 >= last.received
        })
    }

    /// Whether the time to live that was read last had run out by this reading.
    fn is_over(&self, last: Option<Stamp>, stamp: Stamp) -> bool {
        let end = last.zip(self.ttl).map(|(last, ttl)| last.received + ttl);
        end.is_some_and(|end| end.since(stamp.received) <= RUN_OUT)
    }

    /// A reading that finds no lock there.
    pub(super) fn read_nothing(
        &mut self,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        if !self.is_newer(stamp) {
            return;
        }
        let last = self.stamp.replace(stamp);
        let told = self.released.take().is_some();
        if told || last.is_none() || self.is_held() {
            self.free_since = stamp.received;
        }
        let shared = self.mode.is_some();
        for hold in std::mem::take(&mut self.holds) {
            self.news = true;
            if shared && !hold.id.write && hold.marker != Some(Marker::Missing) {
                self.may_have_left(hold);
            }
            if told {
                continue;
            }
            if matches!(reading, Reading::Absent { .. }) {
                self.consider_expired(hold, last, stamp, source, around);
            }
            let left =
                last.zip(self.ttl).map(|(last, ttl)| (last.received + ttl).since(stamp.received));
            let end = match reading {
                Reading::Other(what) => End::Replaced(what.clone()),
                _ if around.restarted => {
                    effects.push(Effect::LostInRestart);
                    End::ServerRestarted
                }
                _ => match left {
                    Some(left) if left > RUN_OUT => End::Early(millis(left)),
                    Some(_) => End::RanOut,
                    None => End::Early(0),
                },
            };
            let ended = match end {
                End::Replaced(_) => Ending::Replaced,
                End::ServerRestarted => Ending::Restarted,
                End::RanOut => Ending::RanOut,
                End::Early(_) | End::OthersHold => Ending::Vanished,
            };
            self.end(hold, stamp.received, stamp.steady, ended, effects);
            self.event(stamp.steady, source, Happening::Vanished(hold.id, end), effects);
        }
        self.ttl = None;
        self.bare_since = None;
        self.look_for_orphans(stamp, reading);
        self.judge(stamp, source, around, effects);
        self.thin_out();
    }

    /// It vanished under a reader, whose markers may still be there.
    fn may_have_left(&mut self, hold: Hold) {
        let left = &mut self.rare().left;
        if left.len() < MAX_LEFT {
            left.push((hold.id, hold.count));
        }
    }

    /// A lock that is not there: whether the first in its queue is dead, or markers of readers were left behind.
    fn look_for_orphans(&mut self, stamp: Stamp, reading: &Reading) {
        let Some(rare) = &mut self.rare else { return };
        (rare.gone, rare.odd) = (None, None);
        rare.taken.take_if(|(_, at, _)| *at <= stamp.sent);
        let Reading::Absent { beside } = reading else {
            rare.orphan_since = None;
            return rare.left.clear();
        };
        if beside.is_away() {
            return;
        }
        let marker = |id| beside.markers.iter().find(|(known, _)| *known == id).map(|(_, m)| *m);
        rare.left.retain(|(id, _)| marker(*id) != Some(Marker::Missing));
        let marked = rare.left.iter().any(|(id, _)| marker(*id).is_some());
        let dead = is_dead(&rare.waiting) || marked;
        rare.orphan_since = dead.then(|| rare.orphan_since.unwrap_or(stamp));
    }

    /// Takes in a release, told by its message or seen by MONITOR: whoever held the lock until then does so no more.
    pub fn released(
        &mut self,
        at: Moment,
        steady: SteadyMillis,
        source: Source,
        ended: Ending,
        effects: &mut Vec<Effect>,
    ) {
        self.seen_by(source);
        self.confirm();
        // Both tell of the same release, and either may be first.
        let twice = |(told, by): (Moment, Source)| by != source && at.since(told) <= TOLD_TWICE;
        if self.told.is_some_and(twice) {
            return;
        }
        self.told = Some((at, source));
        if let Some(rare) = &mut self.rare {
            // What seemed to have run out was released at that very moment, and the reading was quicker.
            rare.expired.take_if(|expired| {
                expired.certainty == Certainty::Suspected && at.since(expired.at.0) <= NEAR_END
            });
        }
        if let Some(stamp) = self.stamp.filter(|stamp| stamp.sent >= at) {
            return self.released_before(stamp, at, steady, source, effects);
        }
        let known: Vec<Hold> =
            if self.released.is_some() { Vec::new() } else { self.holds.clone() };
        for hold in &known {
            self.end(*hold, at, steady, ended, effects);
            let what = Happening::Released(Some(hold.id));
            self.event(steady, source, what, effects);
        }
        if known.is_empty() {
            self.released_unread(at, steady, source, ended, effects);
        }
        if !self.is_held() {
            self.free_since = self.free_since.max(at);
        }
        self.released = Some(self.released.map_or((at, steady), |before| before.max((at, steady))));
    }

    /// A release of a hold that no reading has shown.
    fn released_unread(
        &mut self,
        at: Moment,
        steady: SteadyMillis,
        source: Source,
        ended: Ending,
        effects: &mut Vec<Effect>,
    ) {
        let taken = self.rare.as_mut().and_then(|rare| rare.taken.take());
        let Some((id, from, since)) = taken else {
            self.count(source, Count::Acquired, effects);
            return self.event(steady, source, Happening::Released(None), effects);
        };
        // MONITOR saw it whole. So short a hold is not written down: there may be thousands a second.
        let past = PastHold { id, since: Since { at: since, exact: true }, to: steady, ended };
        let before = self.before();
        before.habit.push(at.since(from));
        before.past.push(past);
        self.count(source, Count::Held(past), effects);
        self.event(since, Source::Monitor, Happening::Taken(id, 0), effects);
        self.event(steady, source, Happening::Released(Some(id)), effects);
    }

    /// When MONITOR saw that holder take it, where no reading since has shown otherwise.
    fn taken(&self, id: HolderId, stamp: Stamp) -> Option<(Moment, SteadyMillis)> {
        let (by, at, steady) = self.rare.as_ref()?.taken?;
        (by == id && at <= stamp.received).then_some((at, steady))
    }

    /// Counts something for the last hour, of what is surely a lock.
    pub(super) fn count(&self, source: Source, count: Count, effects: &mut Vec<Effect>) {
        if self.confirmed {
            effects.push(Effect::Count(source, count));
        }
    }

    /// A release message that is told after a newer reading: what that shows was taken after the release.
    fn released_before(
        &mut self,
        newer: Stamp,
        at: Moment,
        steady: SteadyMillis,
        source: Source,
        effects: &mut Vec<Effect>,
    ) {
        let exact = newer.received.since(at) <= EXACT;
        let mut restarted = false;
        for hold in self.holds.iter_mut().filter(|hold| hold.first < at) {
            hold.first = newer.sent;
            hold.from = at;
            hold.since = Since { at: steady, exact };
            restarted = true;
        }
        if restarted {
            self.still_since = (at, steady);
            self.count(source, Count::Acquired, effects);
            self.event(steady, source, Happening::Released(None), effects);
        }
    }

    /// Notes how long a hold lasted and how it ended; where both ends are known well enough that makes a habit.
    pub(super) fn end(
        &mut self,
        hold: Hold,
        at: Moment,
        steady: SteadyMillis,
        ended: Ending,
        effects: &mut Vec<Effect>,
    ) {
        let ended = if self.is_forced(&hold.id, at) { Ending::Forced } else { ended };
        let past = PastHold { id: hold.id, since: hold.since, to: steady, ended };
        let before = self.before();
        if hold.since.exact && ended != Ending::Forced {
            before.habit.push(at.since(hold.from));
        }
        before.past.push(past);
        if self.confirmed {
            // Which source showed its end changes nothing here.
            effects.push(Effect::Count(Source::Poll, Count::Held(past)));
            effects.push(Effect::Note(Box::new(Note::Ended(self.id.clone(), past))));
        }
    }
}

/// Whether whoever is first in the queue is past its deadline; or everybody is, where the queue itself is gone or was
/// only counted.
fn is_dead(waiting: &Waiting) -> bool {
    let Some(queue) = &waiting.queue else { return false };
    match queue.front.first() {
        // Without a deadline nobody ever purges it: Redisson stops there.
        Some(Queued { deadline: None, .. }) => queue.deadlines == 0,
        Some(Queued { id, .. }) => {
            waiting.waiters().any(|waiter| waiter.id == *id && waiter.overdue)
        }
        None => queue.passed > 0 && queue.passed == queue.deadlines,
    }
}
