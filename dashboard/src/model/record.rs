//! One lock as the model keeps it: readings and messages in, its view out.

use std::sync::Arc;
use std::time::Duration;

use redisson::shape::LockHash;
use redisson::{HolderId, Kind, Moment};

use super::history::{End, Habit, Happening, History};
use super::lease::{LeaseWatch, Step};
use super::observation::{Reading, Source, Stamp};
use super::problem::{Case, Verdict, explain, judge};
use super::view::{
    Certainty, HolderView, LockId, LockView, ProblemKind, ProblemView, Since, State, WallMillis,
};

/// A hold's beginning is exact when it is known within this.
const EXACT: Duration = Duration::from_secs(1);
/// A lease that was to end within this of a reading that finds the lock gone has run out.
const RUN_OUT: Duration = Duration::from_millis(200);
/// A view that says nothing new is made again no sooner than this, so that idle readings cost no traffic.
const REFRESH_MS: u64 = 2_000;
/// How far a time to live may be from what its view foretells without being news.
const FORETOLD_MS: u64 = 250;

/// What the settings say of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// From what age on a renewed hold is stuck; none: it is expected to be long.
    pub stuck_after: Option<Duration>,
}

/// What is known around a lock when something is seen of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings {
    /// Since when release messages reach us without a gap.
    pub listening_since: Option<Moment>,
    /// When the newest complete pass over all keys began: a lock that is new was not there all that time.
    pub pass_began: Option<Moment>,
    /// Whether the server was started anew and what it lost is still being found out.
    pub restarted: bool,
}

/// Something that metrics count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// An event, by source and word.
    Event(Source, &'static str),
    /// A problem was found, or became surer; with the lock's group.
    Detected(ProblemKind, Certainty, Arc<str>),
    /// A held lock was gone after a restart of its server.
    LostInRestart,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    id: HolderId,
    count: i64,
    since: Since,
    /// The reading that first showed it.
    first: Stamp,
    /// No later than this; where `since` is exact, within a second of it.
    from: Moment,
}

/// A lock.
#[derive(Debug)]
pub struct Record {
    id: LockId,
    group: Arc<str>,
    rule: Rule,
    confirmed: bool,
    sources: [bool; Source::ALL.len()],
    /// The newest reading there is.
    stamp: Option<Stamp>,
    holds: Vec<Hold>,
    mode: Option<Vec<u8>>,
    fair: bool,
    queued: bool,
    ttl: Option<Duration>,
    lease: LeaseWatch,
    /// A release message that no reading is newer than yet.
    released: Option<(Moment, WallMillis)>,
    still_since: (Moment, WallMillis),
    bare_since: Option<Stamp>,
    free_since: Moment,
    habit: Habit,
    history: History,
    problems: Vec<ProblemView>,
    news: bool,
}

impl Record {
    /// A lock of which nothing is known yet.
    #[must_use]
    pub fn new(id: LockId, group: Arc<str>, rule: Rule, now: Moment) -> Self {
        Self {
            id,
            group,
            rule,
            confirmed: false,
            sources: [false; Source::ALL.len()],
            stamp: None,
            holds: Vec::new(),
            mode: None,
            fair: false,
            queued: false,
            ttl: None,
            lease: LeaseWatch::default(),
            released: None,
            still_since: (now, WallMillis(0)),
            bare_since: None,
            free_since: now,
            habit: Habit::default(),
            history: History::default(),
            problems: Vec::new(),
            news: true,
        }
    }

    /// Whether somebody holds it, as far as was last read.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Whether it is surely a lock.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Whether it is worth keeping although nobody holds it: held before, queued for, or told of.
    #[must_use]
    pub fn is_worth_keeping(&self) -> bool {
        self.is_held() || self.confirmed
    }

    /// Since when nobody holds it, as far as was read. Meaningless while it is held.
    #[must_use]
    pub fn free_since(&self) -> Moment {
        self.free_since
    }

    /// When it was last asked for.
    #[must_use]
    pub fn last_sent(&self) -> Option<Moment> {
        self.stamp.map(|stamp| stamp.sent)
    }

    /// The fields that it last had, to be asked for by name.
    #[must_use]
    pub fn fields(&self) -> Vec<Vec<u8>> {
        let mode = self.mode.as_ref().map(|_| redisson::shape::MODE_FIELD.to_vec());
        let holders = self.holds.iter().map(|hold| hold.id.to_string().into_bytes());
        mode.into_iter().chain(holders).collect()
    }

    /// Whether the view is no longer what it should be.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// Makes the view be made again.
    pub fn touch(&mut self) {
        self.news = true;
    }

    /// Marks it as surely a lock.
    pub fn confirm(&mut self) {
        if !self.confirmed {
            self.confirmed = true;
            self.news = true;
        }
    }

    /// When it should be read again after the newest reading, at the latest.
    #[must_use]
    pub fn next_read(&self) -> Moment {
        const AT_LEAST: Duration = Duration::from_secs(10);
        let Some(stamp) = self.stamp else { return self.free_since };
        let wait = if !self.is_held() {
            let free = stamp.received.since(self.free_since);
            (free / 4).clamp(Duration::from_secs(1), Duration::from_secs(30))
        } else {
            match (self.ttl, self.lease.lease()) {
                (None, _) if !self.confirmed => Duration::from_secs(60),
                (None, _) => super::problem::LEAK_GAP,
                (Some(ttl), Some(lease)) if self.lease.rose() => {
                    (lease / 6).clamp(Duration::from_millis(250), AT_LEAST).min(past(ttl))
                }
                (Some(ttl), _) => past(ttl).min(AT_LEAST),
            }
        };
        stamp.received + wait
    }

    /// Takes in a reading. One asked for earlier than the newest known changes nothing but what it proves for
    /// ever: that this is a lock.
    pub fn read(
        &mut self,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        self.seen_by(source);
        if let Reading::Lock { ttl: Some(_), .. } = reading {
            self.confirm();
        }
        let (Reading::Lock { queued, .. } | Reading::Absent { queued }) = reading else {
            return self.read_nothing(stamp, source, reading, around, effects);
        };
        if *queued {
            self.confirm();
            self.fair = true;
        }
        if self.is_newer(stamp) {
            self.news |= self.queued != *queued;
            self.queued = *queued;
        }
        match reading {
            Reading::Lock { hash, ttl, .. } if self.confirmed || hash.alien.is_empty() => {
                if self.is_newer(stamp) {
                    self.read_held(stamp, source, hash, *ttl, around, effects);
                    self.judge(stamp, source, around, effects);
                }
            }
            _ => self.read_nothing(stamp, source, reading, around, effects),
        }
    }

    fn is_newer(&self, stamp: Stamp) -> bool {
        self.stamp.is_none_or(|last| last.rank() < stamp.rank())
    }

    fn seen_by(&mut self, source: Source) {
        let seen = &mut self.sources[source as usize];
        self.news |= !*seen;
        *seen = true;
    }

    fn event(
        &mut self,
        at: WallMillis,
        source: Source,
        what: Happening,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Event(source, what.word()));
        self.history.push(at, source, what);
        self.news = true;
    }

    fn read_held(
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
        let before =
            if released.is_some() { Vec::new() } else { std::mem::take(&mut self.holds) };
        // A hold not seen before began after the newest sign that it did not exist.
        let window = released
            .or_else(|| last.map(|last| last.sent))
            .or(around.pass_began)
            .map(|earliest| stamp.received.since(earliest));
        let since = Since { at: stamp.wall, exact: window.is_some_and(|window| window <= EXACT) };
        let mut moved = released.is_some();
        let mut holds = Vec::with_capacity(hash.holders.len());
        for holder in &hash.holders {
            let known = before.iter().find(|hold| hold.id == holder.id);
            let hold = match known {
                Some(hold) if hold.count == holder.count => *hold,
                Some(hold) => {
                    moved = true;
                    let what = Happening::Reentered(holder.id, hold.count, holder.count);
                    self.event(stamp.wall, source, what, effects);
                    Hold { count: holder.count, ..*hold }
                }
                None => {
                    moved = true;
                    let what = match window {
                        Some(window) => Happening::Taken(holder.id, millis(window)),
                        None => Happening::FoundHeld(holder.id),
                    };
                    self.event(stamp.wall, source, what, effects);
                    Hold {
                        id: holder.id,
                        count: holder.count,
                        since,
                        first: stamp,
                        from: stamp.received,
                    }
                }
            };
            holds.push(hold);
        }
        for gone in before.iter().filter(|hold| !hash.holders.iter().any(|h| h.id == hold.id)) {
            moved = true;
            self.end(*gone, stamp.received);
            let what = Happening::Vanished(gone.id, End::OthersHold);
            self.event(stamp.wall, source, what, effects);
        }
        self.holds = holds;
        self.news |= self.mode != hash.mode;
        self.mode.clone_from(&hash.mode);
        let was_renewed = self.lease.renewed();
        if moved || last.is_none() {
            self.still_since = (stamp.received, stamp.wall);
            self.lease.restart(stamp.received, ttl, window.filter(|window| *window <= EXACT));
        } else if self.lease.read(stamp.received, stamp.slack(), ttl) != Step::Ran {
            self.news = true;
        }
        if self.lease.renewed() && !was_renewed {
            let lease = self.lease.lease().map_or(0, millis);
            self.event(stamp.wall, source, Happening::Renewed(lease), effects);
        }
        self.news |= self.lease.renewed() != was_renewed || self.ttl.is_some() != ttl.is_some();
        self.ttl = ttl;
        self.bare_since = if ttl.is_some() { None } else { self.bare_since.or(Some(stamp)) };
    }

    /// A reading that finds no lock there.
    fn read_nothing(
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
        for hold in std::mem::take(&mut self.holds) {
            self.news = true;
            if told {
                continue;
            }
            self.end(hold, stamp.received);
            let left = last
                .zip(self.ttl)
                .map(|(last, ttl)| (last.received + ttl).since(stamp.received));
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
            self.event(stamp.wall, source, Happening::Vanished(hold.id, end), effects);
        }
        self.ttl = None;
        self.bare_since = None;
        self.judge(stamp, source, around, effects);
    }

    /// Takes in a release message: whoever held the lock until then does so no more.
    pub fn released(&mut self, at: Moment, wall: WallMillis, effects: &mut Vec<Effect>) {
        self.seen_by(Source::Channels);
        self.confirm();
        if let Some(stamp) = self.stamp.filter(|stamp| stamp.sent >= at) {
            return self.released_before(stamp, at, wall, effects);
        }
        let known: Vec<Hold> =
            if self.released.is_some() { Vec::new() } else { self.holds.clone() };
        for hold in &known {
            self.end(*hold, at);
            let what = Happening::Released(Some(hold.id));
            self.event(wall, Source::Channels, what, effects);
        }
        if known.is_empty() {
            self.event(wall, Source::Channels, Happening::Released(None), effects);
        }
        if !self.is_held() {
            self.free_since = self.free_since.max(at);
        }
        self.released = Some(self.released.map_or((at, wall), |before| before.max((at, wall))));
    }

    /// A release message that is told after a newer reading: what that shows was taken after the release.
    fn released_before(
        &mut self,
        newer: Stamp,
        at: Moment,
        wall: WallMillis,
        effects: &mut Vec<Effect>,
    ) {
        let exact = newer.received.since(at) <= EXACT;
        let mut restarted = false;
        for hold in self.holds.iter_mut().filter(|hold| hold.first.sent < at) {
            hold.first = newer;
            hold.from = at;
            hold.since = Since { at: wall, exact };
            restarted = true;
        }
        if restarted {
            self.still_since = (at, wall);
            self.event(wall, Source::Channels, Happening::Released(None), effects);
        }
    }

    /// Notes how long a hold lasted, where both ends are known well enough to make a habit.
    fn end(&mut self, hold: Hold, at: Moment) {
        if hold.since.exact {
            self.habit.push(at.since(hold.from));
        }
    }

    fn judge(
        &mut self,
        now: Stamp,
        source: Source,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        let holders: Vec<_> = self.holds.iter().map(|hold| (hold.id, hold.count)).collect();
        let case = Case {
            now,
            holders: &holders,
            confirmed: self.confirmed,
            bare_since: self.bare_since,
            renewed: self.lease.lease().filter(|_| self.lease.renewed()),
            still_since: self.still_since,
            listening_since: around.listening_since,
            habit: self.habit.p99(),
            stuck_after: self.rule.stuck_after,
        };
        let verdicts = judge(&case);
        let mut begun = Vec::new();
        let mut problems = Vec::with_capacity(verdicts.len());
        for verdict in &verdicts {
            match self.problems.iter().find(|old| old.problem == verdict.problem) {
                Some(old) if old.certainty == verdict.certainty => problems.push(old.clone()),
                Some(old) => {
                    effects.push(self.detected(verdict));
                    let verdict = Verdict { since: old.since, ..*verdict };
                    problems.push(explain(&case, verdict));
                    self.news = true;
                }
                None => {
                    effects.push(self.detected(verdict));
                    problems.push(explain(&case, *verdict));
                    begun.push(verdict.problem);
                }
            }
        }
        let over: Vec<ProblemKind> = self
            .problems
            .iter()
            .map(|old| old.problem)
            .filter(|old| !verdicts.iter().any(|new| new.problem == *old))
            .collect();
        self.problems = problems;
        for problem in begun {
            self.event(now.wall, source, Happening::Problem(problem), effects);
        }
        for problem in over {
            self.event(now.wall, source, Happening::Cleared(problem), effects);
        }
    }

    fn detected(&self, verdict: &Verdict) -> Effect {
        Effect::Detected(verdict.problem, verdict.certainty, Arc::clone(&self.group))
    }

    /// Whether the newest reading tells how the lock is now: its server can be read since `readable_since`.
    fn is_current(&self, readable_since: Option<Moment>) -> bool {
        let read = self.stamp.map(|stamp| stamp.received);
        readable_since.is_some_and(|since| read.is_some_and(|read| read >= since))
    }

    /// Whether `shown` is still true enough, given that ages and times to live run on by themselves.
    #[must_use]
    pub fn is_shown_well(&self, shown: &LockView, readable_since: Option<Moment>) -> bool {
        if self.is_current(readable_since) == shown.is_unknown() {
            return false;
        }
        let Some(stamp) = self.stamp else { return !self.news };
        let passed = stamp.wall.0.saturating_sub(shown.observed_at.0);
        let foretold = match (shown.ttl_ms, self.ttl.map(millis)) {
            (Some(then), Some(now)) => (now + passed).abs_diff(then) <= FORETOLD_MS,
            (then, now) => then == now,
        };
        !self.news && foretold && passed < REFRESH_MS
    }

    /// The view of it, made anew. What was read before `readable_since` is shown as of then, its state unknown.
    pub fn view(&mut self, readable_since: Option<Moment>) -> LockView {
        self.news = false;
        let kind = match self.mode.as_deref() {
            None if self.fair => Kind::Fair,
            None => Kind::Lock,
            Some(b"write") => Kind::Write,
            Some(_) => Kind::Read,
        };
        let holders: Vec<HolderView> = self
            .holds
            .iter()
            .map(|hold| HolderView {
                id: hold.id.to_string(),
                uuid: hold.id.client.to_string(),
                thread: hold.id.thread.to_string(),
                mode: match (&self.mode, hold.id.write) {
                    (_, true) => "write",
                    (Some(_), false) => "read",
                    (None, false) => "lock",
                },
                count: hold.count,
                since: hold.since,
            })
            .collect();
        let state = match (self.is_current(readable_since), self.is_held()) {
            (false, _) => State::Unknown,
            (true, true) => State::Held,
            (true, false) => State::Free,
        };
        LockView {
            id: self.id.clone(),
            state,
            confirmed: self.confirmed,
            kind: kind.as_str(),
            holders,
            ttl_ms: self.ttl.map(millis),
            observed_at: self.stamp.map_or(WallMillis(0), |stamp| stamp.wall),
            lease_ms: self.lease.lease().map(millis),
            renewed: self.lease.renewed(),
            problems: self.problems.clone(),
            events: self.history.shown(),
            sources: Source::ALL
                .into_iter()
                .filter(|source| self.sources[*source as usize])
                .map(Source::as_str)
                .collect(),
            queued: self.queued,
            group: Arc::clone(&self.group),
            expected_long: self.rule.stuck_after.is_none(),
        }
    }
}

/// Shortly after a time to live has run out.
fn past(ttl: Duration) -> Duration {
    ttl + Duration::from_millis(20)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
