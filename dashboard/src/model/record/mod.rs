//! The record of one lock: applies readings and messages, and produces the lock's view.

mod companions;
mod diagnose;
mod doubt;
mod early_reading;
mod hold_history;
mod identity;
mod ingest;
mod operator;
mod read_plan;
mod traffic;
mod view;

use std::sync::Arc;
use std::time::Duration;

use redisson::shape::Holder;
use redisson::{HolderId, LockName, Moment};
use thin_vec::ThinVec;

use crate::clock::{SteadyMillis, Time, millis};
use crate::model::contention::Count;
use crate::model::deadlock::{Cycle, Owner, Wait};
use crate::model::lease::LeaseWatch;
use crate::model::problem::{Expired, Gone, Overdue};
use crate::model::types::{
    Acknowledgement, ArchiveEntry, Certainty, Companions, Ending, EventLog, HolderIdentity,
    LockEvent, LockId, Marker, PastHold, PastWait, ProblemKind, ProblemView, Reading, Renewals,
    Rule, Since, Source, SourceSet, Stamp, TrackedHolder,
};
use crate::model::waiting::{Waiter, Waiting};
use hold_history::HoldHistory;

/// The time within which two sources report the same release.
const SAME_RELEASE: Duration = Duration::from_millis(200);
/// The most releases of a lock within that time that are compared.
const MAX_BY_ONE_SOURCE: usize = 64;

/// The state of a lock's scope at the time of an observation.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScopeContext {
    /// The instant since which release messages arrive without a gap.
    pub listening_since: Option<Moment>,
    /// The beginning of the newest complete pass over all keys, during which a new lock did not exist yet.
    pub pass_began: Option<Moment>,
    /// True if the server has restarted and its losses are still being determined.
    pub restarted: bool,
    /// The instant since which the server can be read without a gap.
    pub readable_since: Option<Moment>,
    /// Milliseconds by which the server's clock is ahead of ours.
    pub ahead_ms: i64,
    /// True if the server is a node of a cluster.
    pub cluster: bool,
}

/// A consequence of an observation for metrics and history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// An event, by source and word.
    Event(Source, &'static str),
    /// A problem began, or became more certain; with the lock's group.
    Detected(ProblemKind, Certainty, Arc<str>),
    /// A held lock was gone after a restart of its server.
    LostInRestart,
    /// A hold ended; with the lock's group.
    HoldEnded(Ending, Arc<str>),
    /// A count for the last hour, with the source that observed it.
    Count(Source, Count),
    /// An entry for the history on disk.
    Archive(Box<ArchiveEntry>),
}

/// The state of a lock at the end of an earlier run of this program.
#[derive(Debug, Clone, Default)]
pub struct RestoredLock {
    /// The last holders, with the beginnings of their holds.
    pub holds: Vec<(HolderId, Since)>,
    /// The latest holds before, oldest first.
    pub past: Vec<PastHold>,
    /// The last problems, with their beginnings.
    pub problems: Vec<(ProblemKind, SteadyMillis)>,
    /// True if the holder of an expired hold was seen to return too late.
    pub returned_late: bool,
    /// Acknowledged problems, each with the instant by which it must be found again to count as the same.
    pub acknowledged: Vec<(ProblemKind, Arc<Acknowledgement>, SteadyMillis)>,
}

impl RestoredLock {
    /// Returns whether it had a problem that is reported although the lock no longer exists.
    #[must_use]
    pub fn is_reported_when_free(&self) -> bool {
        self.had(ProblemKind::Expired) || self.had(ProblemKind::Orphan)
    }

    fn had(&self, problem: ProblemKind) -> bool {
        self.problems.iter().any(|(known, _)| *known == problem)
    }

    fn expired_at(&self) -> Option<SteadyMillis> {
        let expired = |(problem, _): &&(ProblemKind, _)| *problem == ProblemKind::Expired;
        self.problems.iter().find(expired).map(|(_, since)| *since)
    }

    /// Returns the hold whose lease had expired.
    fn expired(&self, now: Time) -> Option<Expired> {
        let at = self.expired_at()?;
        let lost = |hold: &&PastHold| hold.to <= at && !hold.ended.is_wanted();
        let holder = self.past.iter().rev().find(lost).map(|hold| hold.id);
        let (certainty, source) = match self.returned_late {
            true => (Certainty::Certain, Source::Monitor),
            false => (Certainty::Suspected, Source::Poll),
        };
        let who = holder.map_or_else(|| "its holder".to_owned(), |holder| holder.to_string());
        let evidence = format!(
            "{who} had renewed it, then its lease expired; an earlier run of this dashboard observed that"
        );
        Some(Expired { at: now.back_to(at), holder, certainty, source, evidence })
    }
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    id: HolderId,
    count: i64,
    since: Since,
    /// The sending of the reading that first showed it.
    first: Moment,
    /// The latest instant at which it can have begun; where `since` is exact, within a second of the true one.
    from: Moment,
    /// A reader's marker, if it was read.
    marker: Option<Marker>,
    /// The history on disk has its beginning, or gets it with its end.
    archived: bool,
}

impl Hold {
    /// Returns a hold that this reading is the first to show.
    fn new(holder: Holder, since: Since, stamp: Stamp) -> Self {
        Self {
            id: holder.id,
            count: holder.count,
            since,
            first: stamp.sent,
            from: stamp.received.moment(),
            marker: None,
            archived: false,
        }
    }
}

/// State that few locks have, on the heap so that the others do not pay for it.
#[derive(Debug, Default)]
struct ColdState {
    waiting: Waiting,
    /// A holder that MONITOR has seen acquire it, until a reading shows it too.
    taken: Option<(HolderId, Time)>,
    expired: Option<Expired>,
    gone: Option<Gone>,
    overdue: Option<Overdue>,
    /// Problems of an earlier run, until they are found again or some time has passed without that.
    restored_problems: Vec<(ProblemKind, SteadyMillis)>,
    /// Holders and waiters that agents have reported about.
    tracked: Vec<TrackedHolder>,
    cycle: Option<Arc<Cycle>>,
    /// Readers that held it when it vanished, with their counts, until their markers are gone too.
    orphaned_readers: Vec<(HolderId, i64)>,
    orphan_since: Option<Stamp>,
    /// The fields of holders of unknown clients, with the ids that stand for them.
    foreign: Vec<(HolderId, String)>,
    /// A description of any unexpected content of the hash.
    malformed: Option<String>,
    acknowledged: Vec<operator::Acknowledged>,
    /// The holds that an operator is ending by force, and the beginning of that.
    forcing: Option<(Vec<HolderId>, Moment)>,
}

impl ColdState {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
            && self.taken.is_none()
            && self.expired.is_none()
            && self.gone.is_none()
            && self.overdue.is_none()
            && self.restored_problems.is_empty()
            && self.tracked.is_empty()
            && self.cycle.is_none()
            && self.orphaned_readers.is_empty()
            && self.orphan_since.is_none()
            && self.foreign.is_empty()
            && self.malformed.is_none()
            && self.forcing.is_none()
            && self.acknowledged.is_empty()
    }
}

/// The mode of a read-write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
    /// Anything else that its field may say.
    Other,
}

impl Mode {
    fn new(field: &[u8]) -> Self {
        match field {
            b"read" => Self::Read,
            b"write" => Self::Write,
            _ => Self::Other,
        }
    }
}

/// The latest reported releases.
#[derive(Debug, Default)]
struct Releases {
    /// Those that only one source has reported yet, within the time that another may take; oldest first.
    by_one_source: Vec<(Time, Source)>,
    /// One that no reading is newer than yet.
    unread: Option<Time>,
    /// Those that may be about a lock of the same name in another database.
    doubtful: Option<doubt::Doubtful>,
    /// A reading that shows its end without one.
    early: Option<early_reading::EarlyReading>,
}

impl Releases {
    /// Records a report. Returns the time of the earlier one if another source has reported the same release.
    fn earlier_report(&mut self, at: Time, source: Source) -> Option<Time> {
        self.by_one_source.retain(|(before, _)| at.since(*before) <= SAME_RELEASE);
        let other = self.by_one_source.iter().position(|(_, by)| *by != source);
        if other.is_none() && self.by_one_source.len() < MAX_BY_ONE_SOURCE {
            self.by_one_source.push((at, source));
        }
        other.map(|i| self.by_one_source.remove(i).0)
    }
}

#[derive(Debug)]
pub struct Record {
    id: LockId,
    group: Arc<str>,
    rule: Arc<Rule>,
    confirmed: bool,
    sources: SourceSet,
    /// The time of the newest reading.
    stamp: Option<Stamp>,
    holds: Vec<Hold>,
    mode: Option<Mode>,
    fair: bool,
    /// Boxed, since few locks have one.
    token: Option<Box<i64>>,
    token_read: Option<Moment>,
    cold: Option<Box<ColdState>>,
    ttl: Option<Duration>,
    lease: LeaseWatch,
    /// Once a release of it was reported.
    releases: Option<Box<Releases>>,
    /// The last change of holders or counts, or the last release; before the first reading, the record's creation.
    unchanged_since: Time,
    /// Boxed, since nearly all locks have a time to live.
    no_ttl_since: Option<Box<Stamp>>,
    /// The instant at which the record was created.
    known_since: Moment,
    free_since: Moment,
    /// The last time that a reading showed a renewed lease.
    rose: Option<SteadyMillis>,
    /// Renewals of the current hold.
    renewals: Option<Arc<Renewals>>,
    events: EventLog,
    hold_history: Option<Box<HoldHistory>>,
    problems: ThinVec<ProblemView>,
    /// True if anything has changed since the last view.
    dirty: bool,
}

impl Record {
    /// Returns the record of a lock that has not been read yet.
    #[must_use]
    pub fn new(id: LockId, group: Arc<str>, rule: Arc<Rule>, now: Time) -> Self {
        Self {
            id,
            group,
            rule,
            confirmed: false,
            sources: SourceSet::default(),
            stamp: None,
            holds: Vec::new(),
            mode: None,
            fair: false,
            token: None,
            token_read: None,
            cold: None,
            ttl: None,
            lease: LeaseWatch::default(),
            releases: None,
            unchanged_since: now,
            no_ttl_since: None,
            known_since: now.moment(),
            free_since: now.moment(),
            rose: None,
            renewals: None,
            events: EventLog::default(),
            hold_history: None,
            problems: ThinVec::new(),
            dirty: true,
        }
    }

    /// Returns whether it was held when it was last read.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    #[must_use]
    pub fn id(&self) -> &LockId {
        &self.id
    }

    /// Returns the lock group, as in metrics.
    #[must_use]
    pub fn group(&self) -> &Arc<str> {
        &self.group
    }

    /// Returns whether it is proved to be a lock.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Returns whether it is held, or proved to be a lock.
    #[must_use]
    pub fn is_retained(&self) -> bool {
        self.is_held() || self.confirmed
    }

    /// Returns the instant since which it is free. Meaningless while it is held.
    #[must_use]
    pub fn free_since(&self) -> Moment {
        self.free_since
    }

    /// Returns the sending of the last read request.
    #[must_use]
    pub fn last_sent(&self) -> Option<Moment> {
        self.stamp.map(|stamp| stamp.sent)
    }

    /// Returns whether it has known waiters.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.waiting.is_awaited())
    }

    /// Returns the numbers of the threads that hold it.
    pub fn threads(&self) -> impl Iterator<Item = i64> {
        self.holds.iter().map(|hold| hold.id.thread)
    }

    /// Returns the least number of its waiters.
    #[must_use]
    pub fn waiting_at_least(&self) -> u64 {
        self.cold.as_ref().map_or(0, |cold| cold.waiting.at_least())
    }

    #[must_use]
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Returns whether it has waiters known by name.
    #[must_use]
    pub fn has_named_waiters(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.waiting.waiters().next().is_some())
    }

    /// Returns whether it is part of a deadlock.
    #[must_use]
    pub fn is_in_cycle(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.cycle.is_some())
    }

    /// Returns each of its waiters with each of its holders.
    pub fn waits<'a>(&'a self, lock: &'a (usize, LockName)) -> impl Iterator<Item = Wait> + 'a {
        let waiters = self.cold.iter().flat_map(|cold| cold.waiting.waiters());
        waiters.filter(|waiter| waiter.is_live()).flat_map(move |waiter| {
            // A reader that is gone delays nobody for longer than the others do.
            let holds = self.holds.iter().filter(|hold| hold.marker != Some(Marker::Missing));
            let cold = self.cold.as_deref();
            let (listened, doubted_for) =
                cold.map_or((None, None), |cold| cold.waiting.signs_of(waiter));
            let identity = |id: &HolderId| self.tracked(id).map(|known| &known.identity);
            let waiting = identity(&waiter.id);
            let claimed = |identity: Option<&HolderIdentity>| {
                identity.is_some_and(|identity| {
                    identity.task().is_some() && identity.verification.is_only_claimed()
                })
            };
            holds.map(move |hold| Wait {
                waiter: waiter.id,
                waiting: Owner::of(waiter.id, waiting),
                lock: lock.clone(),
                holder: hold.id,
                holding: Owner::of(hold.id, identity(&hold.id)),
                process: waiting.and_then(HolderIdentity::description),
                confirmed: waiter.seen.max(listened.unwrap_or(waiter.seen)),
                begun: waiter.from,
                doubted_for,
                held_from: hold.from,
                limited: waiting.is_some_and(|identity| identity.until.is_some()),
                claimed: claimed(waiting) || claimed(identity(&hold.id)),
            })
        })
    }

    /// Restores the state of an earlier run of this program, as of now.
    pub fn restore(&mut self, restored: RestoredLock, now: Time) {
        let expired = restored.expired(now);
        // Of a hash that only looked like a lock nothing but its problem is stored; a hold of such a one does not expire.
        if !restored.holds.is_empty() || !restored.past.is_empty() || expired.is_some() {
            self.confirm();
        }
        if expired.is_some() {
            self.cold().expired = expired;
        }
        if restored.had(ProblemKind::Orphan) {
            self.restore_orphaned_readers(&restored.past);
        }
        self.restore_acknowledgements(restored.acknowledged);
        let history = self.hold_history();
        history.restored = restored.holds;
        for past in restored.past {
            if past.since.exact {
                history.push_duration(Duration::from_millis(past.millis()));
            }
            history.push(past);
        }
        if !restored.problems.is_empty() {
            self.cold().restored_problems = restored.problems;
        }
    }

    /// Returns the beginning of a hold that an earlier run had observed, unless it was now seen to begin. It may have ended and
    /// begun again since.
    fn take_restored(&mut self, id: HolderId, seen: Since) -> Option<Since> {
        let history = self.hold_history.as_mut()?;
        let known = history.restored.iter().position(|(known, _)| *known == id)?;
        let since = history.restored.swap_remove(known).1;
        (!seen.exact).then_some(Since { exact: false, ..since })
    }

    /// Returns the time to live by which renewals are recognized. Each of several readers renews the lock, so that of the first
    /// one's marker stands for it.
    fn watched_ttl(&self, ttl: Option<Duration>, companions: &Companions) -> Option<Duration> {
        let readers = || self.holds.iter().filter(|hold| !hold.id.write);
        if self.mode.is_none() || readers().count() < 2 {
            return ttl;
        }
        let living = |hold: &Hold| {
            let mut markers = companions.markers.iter();
            match markers.find(|(id, _)| *id == hold.id)?.1 {
                Marker::Expires(left) => Some((hold.from, left)),
                Marker::Missing | Marker::Persistent => None,
            }
        };
        readers().filter_map(living).min_by_key(|(from, _)| *from).map(|(_, left)| left).or(ttl)
    }

    fn cold(&mut self) -> &mut ColdState {
        self.cold.get_or_insert_default()
    }

    /// Returns whether a release was reported that no reading is newer than yet.
    fn is_released(&self) -> bool {
        self.releases.as_ref().is_some_and(|releases| releases.unread.is_some())
    }

    /// Takes that release if a reading sent at that instant is newer.
    fn take_released(&mut self, sent: Moment) -> Option<Moment> {
        let unread = &mut self.releases.as_mut()?.unread;
        unread.take_if(|at| sent >= at.moment()).map(Time::moment)
    }

    fn hold_history(&mut self) -> &mut HoldHistory {
        self.hold_history.get_or_insert_default()
    }

    /// Frees the cold state if it is empty.
    fn drop_empty_cold_state(&mut self) {
        self.cold.take_if(|cold| cold.is_empty());
    }

    /// Marks it as proved to be a lock.
    pub fn confirm(&mut self) {
        if !self.confirmed {
            self.confirmed = true;
            self.dirty = true;
        }
    }

    /// Applies a reading. One requested earlier than the newest one only proves that this is a lock.
    fn apply(
        &mut self,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
        context: ScopeContext,
        effects: &mut Vec<Effect>,
    ) {
        self.add_source(source);
        // Several fields of another form may be the entries of any program's hash.
        if let Reading::Lock { hash, ttl: Some(_), .. } = reading
            && (hash.mode.is_some()
                || hash.foreign.is_empty()
                || hash.holders.len() + hash.foreign.len() == 1)
        {
            self.confirm();
        }
        let newer = self.is_newer(stamp);
        if newer {
            self.settle_doubt(stamp, reading, effects);
        }
        let (Reading::Lock { companions, .. } | Reading::Absent { companions }) = reading else {
            return self.read_absent(stamp, source, reading, context, effects);
        };
        if companions.queue.is_some() {
            self.confirm();
            self.fair = true;
        }
        if let Some(cold) = &mut self.cold {
            self.dirty |= cold.waiting.expire(stamp.received.moment());
        }
        if newer {
            self.read_companions(stamp, companions, context);
        }
        let given_up = self.cold.as_mut().map(|cold| cold.waiting.take_given_up());
        for waiter in given_up.into_iter().flatten() {
            self.waited(waiter, None, source, effects);
        }
        match reading {
            Reading::Lock { hash, ttl, .. } if self.confirmed || hash.unexpected.is_empty() => {
                if newer {
                    let watched = self.watched_ttl(*ttl, companions);
                    self.read_held(stamp, source, hash, (*ttl, watched), context, effects);
                    self.read_markers(companions);
                    self.judge(stamp, source, context, effects);
                }
            }
            _ => self.read_absent(stamp, source, reading, context, effects),
        }
        let history = self.hold_history.as_mut();
        let restored = history.map(|history| std::mem::take(&mut history.restored));
        for (id, _) in restored.into_iter().flatten() {
            // It held the lock when an earlier run ended, and no longer does.
            let over = ArchiveEntry::Unseen(self.id.clone(), id, stamp.steady());
            effects.push(Effect::Archive(Box::new(over)));
        }
        self.drop_untracked();
    }

    /// Applies a count of the connections that listen for its release.
    pub fn count_subscribers(&mut self, count: u64, at: Time, effects: &mut Vec<Effect>) {
        if count == 0 && self.cold.is_none() {
            return;
        }
        self.confirm();
        self.add_source(Source::Subscribers);
        let waiting = &mut self.cold().waiting;
        let changed = waiting.count(count, at);
        for waiter in waiting.take_given_up() {
            self.waited(waiter, None, Source::Subscribers, effects);
        }
        self.dirty |= changed;
        self.drop_empty_cold_state();
    }

    /// Sets the deadlock that it is part of, if any.
    pub fn set_cycle(
        &mut self,
        cycle: Option<Arc<Cycle>>,
        context: ScopeContext,
        effects: &mut Vec<Effect>,
    ) {
        let before = self.cold.as_ref().and_then(|cold| cold.cycle.as_ref());
        let same = match (before, &cycle) {
            (None, None) => true,
            (Some(before), Some(cycle)) => before.is_same(cycle),
            _ => false,
        };
        if same {
            return;
        }
        self.cold().cycle = cycle;
        if let Some(stamp) = self.stamp {
            self.judge(stamp, Source::Poll, context, effects);
        }
        self.drop_empty_cold_state();
    }

    /// Records the end of a wait: a grant at that instant, or none if the waiter gave up.
    fn waited(
        &mut self,
        waiter: Waiter,
        granted: Option<SteadyMillis>,
        source: Source,
        effects: &mut Vec<Effect>,
    ) {
        let seen = millis(waiter.seen.since(waiter.from));
        let last = waiter.since.at.plus(seen);
        let wait = PastWait {
            id: waiter.id,
            since: waiter.since,
            to: granted.unwrap_or(last),
            granted: granted.is_some(),
        };
        self.hold_history().push_wait(wait);
        effects.push(Effect::Count(source, Count::Waited(wait)));
        self.dirty = true;
    }

    /// Returns the field of a holder: that of its id, or the one that a stand-in stands for.
    fn field_of(&self, id: &HolderId) -> String {
        let foreign = self.cold.iter().flat_map(|cold| &cold.foreign).find(|(of, _)| of == id);
        foreign.map_or_else(|| id.to_string(), |(_, field)| field.clone())
    }

    /// Returns the newest reading if it was requested at that instant or later, so that it shows what followed from it.
    fn reading_since(&self, at: Time) -> Option<Stamp> {
        self.stamp.filter(|stamp| stamp.sent >= at.moment())
    }

    fn is_newer(&self, stamp: Stamp) -> bool {
        self.stamp.is_none_or(|last| last.rank() < stamp.rank())
    }

    fn add_source(&mut self, source: Source) {
        self.dirty |= self.sources.add(source);
    }

    fn event(
        &mut self,
        at: SteadyMillis,
        source: Source,
        what: LockEvent,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Event(source, what.word()));
        self.events.push(at, source, what);
        self.dirty = true;
    }
}
