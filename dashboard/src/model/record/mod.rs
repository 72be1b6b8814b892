//! The record of one lock: applies readings and messages, and produces the lock's view.

mod ambiguous_release;
mod companions;
mod diagnose;
mod early_reading;
mod hold_history;
mod identity;
mod ingest;
mod operator;
mod read_plan;
mod release;
mod restored;
mod traffic;
mod view;

use std::sync::Arc;
use std::time::Duration;

use redisson::shape::Holder;
use redisson::{ClientId, HolderId, LockName, Moment};
use thin_vec::ThinVec;

use crate::clock::{SteadyMillis, Time, millis};
use crate::model::clients::Clients;
use crate::model::contention::Count;
use crate::model::deadlock::{Cycle, Owner, Wait};
use crate::model::lease::LeaseWatch;
use crate::model::problem::{Expired, Gone, Overdue};
use crate::model::types::{
    ArchiveEntry, Certainty, Companions, Ending, EventLog, HolderField, HolderIdentity, LockEvent,
    LockId, Marker, PastWait, ProblemKind, ProblemView, Reading, Renewals, Rule, Since, Source,
    SourceSet, Stamp, SubscriberCount, TrackedHolder,
};
use crate::model::waiting::{Waiter, Waiting};
use hold_history::HoldHistory;
use release::Releases;
pub use restored::RestoredLock;

/// The longest time for which events that come faster than readings leave a lock unread.
const LONGEST_UNREAD: Duration = Duration::from_secs(1);

/// The state of a lock's scope at the time of an observation.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScopeContext {
    /// The instant since which release messages arrive without a gap.
    pub listening_since: Option<Moment>,
    /// The beginning of the newest complete scan of all keys, during which a new lock did not exist yet.
    pub pass_began: Option<Moment>,
    /// The instant since which a server is read that may lack the lock, while its losses are still being determined.
    pub restarted: Option<Moment>,
    /// The instant since which the server can be read without a gap.
    pub readable_since: Option<Moment>,
    /// The instant since which MONITOR shows all traffic without a gap.
    pub monitored_since: Option<Moment>,
    /// Milliseconds by which the server's clock is ahead of ours.
    pub ahead_ms: i64,
    /// True if the server is a node of a cluster.
    pub cluster: bool,
}

impl ScopeContext {
    /// Returns whether the server has restarted since that reading.
    fn has_restarted_since(&self, last: Option<Stamp>) -> bool {
        self.restarted.is_some_and(|since| last.is_none_or(|last| last.sent < since))
    }
}

/// A consequence of an observation for metrics and history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// An event, by source and word.
    Event(Source, &'static str),
    /// A problem began, or occurred again while it lasts. Includes the lock's group.
    Detected(ProblemKind, Certainty, Arc<str>),
    /// A held lock was gone after a restart of its server.
    LostInRestart,
    /// A hold ended. Includes the lock's group.
    HoldEnded(Ending, Arc<str>),
    /// A count for the last hour, with the source that observed it.
    Count(Source, Count),
    /// An entry for the history on disk.
    Archive(Box<ArchiveEntry>),
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    id: HolderId,
    count: i64,
    since: Since,
    /// The instant at which the reading that first showed the hold was sent.
    first: Moment,
    /// The latest instant at which the hold can have begun. If `since` is exact, this is within a second of the true
    /// one.
    from: Moment,
    /// A reader's marker, if it was read.
    marker: Option<Marker>,
    /// True if the history on disk has the beginning of the hold, or gets it with the end.
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

/// State that few locks have. It is on the heap, so that other locks need less memory.
#[derive(Debug, Default)]
struct ColdState {
    waiting: Waiting,
    /// A holder that MONITOR has seen acquire the lock, until a reading shows it too.
    taken: Option<(HolderId, Time)>,
    expired: Option<Expired>,
    /// The expiry before that one. Boxed, since few locks have one.
    expired_before: Option<Box<Expired>>,
    gone: Option<(HolderId, Gone)>,
    overdue: Option<Overdue>,
    /// The problems of an earlier run, until they are found again or have been absent for some time.
    restored_problems: Vec<(ProblemKind, SteadyMillis)>,
    /// Holders and waiters that agents have reported about.
    tracked: Vec<TrackedHolder>,
    cycle: Option<Arc<Cycle>>,
    /// The readers that held the lock when it vanished, with their counts, until their markers are gone too.
    orphaned_readers: Vec<(HolderId, i64)>,
    orphan_since: Option<Stamp>,
    /// The first of the successive readings in which the hash had only readers without markers.
    dead_readers_since: Option<Stamp>,
    /// The fields of holders of unknown clients, with their stand-in ids.
    foreign: Vec<(HolderId, Arc<str>)>,
    /// A description of any unexpected content of the hash.
    malformed: Option<String>,
    acknowledged: Vec<operator::Acknowledged>,
    /// The holds that operators are ending by force, each with the beginning of the forced release.
    forcing: Vec<(Vec<HolderId>, Moment)>,
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
            && self.dead_readers_since.is_none()
            && self.foreign.is_empty()
            && self.malformed.is_none()
            && self.forcing.is_empty()
            && self.acknowledged.is_empty()
    }
}

/// The mode of a read-write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
    /// Any other value of the field.
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
    /// True if a release message about it has arrived. A spin lock has none.
    heard: bool,
    /// Boxed, since few locks have one.
    token: Option<Box<i64>>,
    token_read: Option<Moment>,
    cold: Option<Box<ColdState>>,
    ttl: Option<Duration>,
    lease: LeaseWatch,
    /// The releases, once one was reported.
    releases: Option<Box<Releases>>,
    /// The last change of holders or counts, or the last release. Before the first reading, it is the record's
    /// creation.
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
            heard: false,
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

    /// Returns whether the lock was held when it was last read.
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

    /// Returns whether the key is proven to be a lock.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Returns whether the lock is held, or proven to be a lock.
    #[must_use]
    pub fn is_retained(&self) -> bool {
        self.is_held() || self.confirmed
    }

    /// Returns the instant at which the lock became free. Meaningless while it is held.
    #[must_use]
    pub fn free_since(&self) -> Moment {
        self.free_since
    }

    /// Returns the instant at which the last read request was sent.
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

    /// Returns the least number of its waiters, and whether that is their number.
    #[must_use]
    pub fn waiter_count(&self) -> (u64, bool) {
        let Some(cold) = &self.cold else { return (0, false) };
        let held_since = |client: &ClientId| {
            let holds = self.holds.iter().filter(|hold| hold.id.client == *client);
            holds.map(|hold| hold.from).min().filter(|_| !self.is_released())
        };
        let exact = cold.waiting.is_exact(|client| held_since(client).is_some());
        (cold.waiting.at_least(held_since), exact)
    }

    #[must_use]
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Returns whether it has a problem, or may have one at a further reading: a first one has found remains of it, or an earlier
    /// run its problem.
    #[must_use]
    pub fn is_in_trouble(&self) -> bool {
        let may_have_one =
            |cold: &ColdState| cold.orphan_since.is_some() || !cold.restored_problems.is_empty();
        self.has_problems() || self.cold.as_deref().is_some_and(may_have_one)
    }

    /// Returns how often it has that problem.
    #[must_use]
    pub fn times(&self, problem: ProblemKind) -> u32 {
        let view = self.problems.iter().find(|view| view.problem == problem);
        view.map_or(0, |view| view.times)
    }

    /// Returns its newest hold that expired.
    #[must_use]
    pub fn expired(&self) -> Option<&Expired> {
        self.cold.as_ref()?.expired.as_ref()
    }

    /// Returns whether it has waiters known by name.
    #[must_use]
    pub fn has_named_waiters(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.waiting.waiters().next().is_some())
    }

    /// Returns the deadlock that it is part of.
    #[must_use]
    pub fn cycle(&self) -> Option<&Arc<Cycle>> {
        self.cold.as_ref()?.cycle.as_ref()
    }

    /// Returns each of its waiters with each of its holders.
    pub fn waits<'a>(&'a self, lock: &'a (usize, LockName)) -> impl Iterator<Item = Wait> + 'a {
        let waiters = self.cold.iter().flat_map(|cold| cold.waiting.waiters());
        waiters.filter(|waiter| waiter.is_live()).flat_map(move |waiter| {
            // A reader that is gone delays the waiter no longer than the other readers do.
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

    /// Returns whether the hold that a known wait is for continues, and still has waiters.
    #[must_use]
    pub fn still_blocks(&self, wait: &Wait) -> bool {
        let same = |hold: &Hold| (hold.id, hold.from) == (wait.holder, wait.held_from);
        self.is_awaited() && !self.is_released() && self.holds.iter().any(same)
    }

    /// Returns the time to live that shows renewals. Each of several readers renews the lock, so the time to live of
    /// the first reader's marker is used instead.
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

    /// Returns whether a release was reported that is newer than all readings.
    fn is_released(&self) -> bool {
        self.releases.as_ref().is_some_and(|releases| releases.unread.is_some())
    }

    /// Takes that release if a reading sent at this instant is newer.
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

    /// Marks the key as proven to be a lock.
    pub fn confirm(&mut self) {
        if !self.confirmed {
            self.confirmed = true;
            self.dirty = true;
        }
    }

    /// Applies a reading. If it was requested earlier than the newest one, it only proves that the key is a lock.
    fn apply(
        &mut self,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
        (context, clients): (ScopeContext, &Clients),
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
        let last = self.stamp;
        if newer {
            self.resolve_ambiguous_releases(stamp, reading, effects);
        }
        let (Reading::Lock { companions, .. } | Reading::Absent { companions }) = reading else {
            self.read_absent(stamp, source, reading, context, effects);
            return self.end_unseen(stamp, effects);
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
            self.update_gone_waiters(clients);
        }
        let given_up = self.cold.as_mut().map(|cold| cold.waiting.take_given_up());
        for waiter in given_up.into_iter().flatten() {
            self.waited(waiter, None, source, effects);
        }
        match reading {
            Reading::Lock { hash, ttl, .. } if self.confirmed || hash.unexpected.is_empty() => {
                if newer {
                    let watched = self.watched_ttl(*ttl, companions);
                    let reader = self.watched_reader();
                    let lease = self.lease.lease().filter(|_| self.lease.renewed());
                    self.read_held(stamp, source, hash, (*ttl, watched), context, effects);
                    self.read_markers(stamp, companions);
                    if let Some(reader) = reader.filter(|it| self.has_run_out(it, last, stamp)) {
                        self.lease_ran_out(reader, lease, (last, stamp), source, context);
                        self.lease.restart(stamp.received.moment(), stamp.slack(), watched, None);
                    }
                    self.update_gone_holder(clients);
                    self.judge(stamp, source, context, effects);
                }
            }
            _ => self.read_absent(stamp, source, reading, context, effects),
        }
        self.end_unseen(stamp, effects);
        self.drop_untracked();
    }

    /// Ends the holds of an earlier run that a reading does not show.
    fn end_unseen(&mut self, stamp: Stamp, effects: &mut Vec<Effect>) {
        let Some(history) = &mut self.hold_history else { return };
        for (id, _) in std::mem::take(&mut history.restored) {
            let over = ArchiveEntry::Unseen(self.id.clone(), id, stamp.steady());
            effects.push(Effect::Archive(Box::new(over)));
        }
        self.hold_history.take_if(|history| history.is_empty());
    }

    /// Applies a count of the connections that listen for the lock's release.
    pub fn count_subscribers(
        &mut self,
        count: SubscriberCount,
        at: Time,
        effects: &mut Vec<Effect>,
    ) {
        if count.sum() == 0 && self.cold.is_none() {
            return;
        }
        self.confirm();
        self.add_source(Source::Subscribers);
        let before = self.waiter_count();
        let waiting = &mut self.cold().waiting;
        let changed = waiting.count(count, at);
        for waiter in waiting.take_given_up() {
            self.waited(waiter, None, Source::Subscribers, effects);
        }
        self.dirty |= changed || before != self.waiter_count();
        self.drop_empty_cold_state();
    }

    /// Returns whether connections listen for the lock's release.
    #[must_use]
    pub fn has_subscribers(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.waiting.subscribers.is_some())
    }

    /// Forgets the connections that listen for the lock's release, since they can no longer be counted.
    pub fn forget_subscribers(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.waiting.forget_subscribers();
            self.dirty = true;
        }
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
            // The waits have been seen again.
            if let Some(cold) = &mut self.cold {
                cold.cycle = cycle;
            }
            return;
        }
        self.cold().cycle = cycle;
        if let Some(stamp) = self.stamp {
            self.judge(stamp, Source::Poll, context, effects);
        }
        self.drop_empty_cold_state();
    }

    /// Records the end of a wait, with the instant of the grant, or `None` if the waiter gave up.
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
            id: waiter.id.into(),
            since: waiter.since,
            to: granted.unwrap_or(last),
            granted: granted.is_some(),
        };
        self.hold_history().push_wait(wait.clone());
        effects.push(Effect::Count(source, Count::Waited(wait)));
        self.dirty = true;
    }

    /// Returns the field of a holder: its id, or the field behind a stand-in id.
    fn field_of(&self, id: HolderId) -> HolderField {
        let foreign = self.cold.iter().flat_map(|cold| &cold.foreign).find(|(of, _)| *of == id);
        foreign.map_or(HolderField::Id(id), |(_, field)| HolderField::Foreign(Arc::clone(field)))
    }

    /// Returns the newest reading if it was requested at that instant or later, so that it shows the consequences.
    fn reading_since(&self, at: Time) -> Option<Stamp> {
        self.stamp.filter(|stamp| stamp.sent >= at.moment())
    }

    /// Returns whether a reading may apply: it is newer than all others, and than the changes that events have shown. A lock
    /// that changes more often than it can be read is read anyway, now and then.
    fn is_newer(&self, stamp: Stamp) -> bool {
        let changed = self.releases.as_ref().and_then(|releases| releases.changed);
        let is_due = |last: Stamp| stamp.received.since(last.received) > LONGEST_UNREAD;
        self.stamp.is_none_or(|last| last.rank() < stamp.rank())
            && (changed.is_none_or(|changed| changed <= stamp.sent)
                || self.stamp.is_some_and(is_due))
    }

    /// Records that an event at that instant, not a reading, has shown the present holds.
    fn changed_by_event(&mut self, at: Time) {
        self.unchanged_since = at;
        self.releases.get_or_insert_default().changed = Some(at.moment());
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
