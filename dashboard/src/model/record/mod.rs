//! One lock as the model keeps it: readings and messages in, its view out.

mod acts;
mod beside;
mod plan;
mod seen;
mod shown;
mod told;
mod traffic;

use std::sync::Arc;
use std::time::Duration;

use redisson::{HolderId, Moment};

use super::LockName;
use super::contention::{Count, PastWait};
use super::deadlock::{Cycle, Owner, Wait};
use super::history::{Habit, Happening, History};
use super::lease::LeaseWatch;
use super::observation::{Marker, Reading, Source, Stamp};
use super::past::{Note, Past, PastHold};
use super::problem::{Expired, Gone, Rule};
use super::renewals::Renewals;
use super::view::{Acknowledgement, Certainty, LockId, ProblemKind, ProblemView, Since, Sources};
use super::waiting::{Waiter, Waiting};
use super::who::{Known, Who};
use crate::clock::SteadyMillis;

/// What is known around a lock when something is seen of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings {
    /// Since when release messages reach us without a gap.
    pub listening_since: Option<Moment>,
    /// When the newest complete pass over all keys began: a lock that is new was not there all that time.
    pub pass_began: Option<Moment>,
    /// Whether the server was started anew and what it lost is still being found out.
    pub restarted: bool,
    /// Since when the server can be read without a gap.
    pub readable_since: Option<Moment>,
    /// How many milliseconds the server's clock is ahead of ours.
    pub ahead_ms: i64,
    /// Whether the server is part of a cluster.
    pub cluster: bool,
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
    /// Something that is counted for the last hour; by which source it was seen.
    Count(Source, Count),
    /// Something for the history on disk.
    Note(Box<Note>),
}

/// What an earlier run of this program knew of a lock.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// Who held it in the end, and since when.
    pub holds: Vec<(HolderId, Since)>,
    /// The latest holds before, oldest first.
    pub past: Vec<PastHold>,
    /// What was wrong with it in the end, and since when.
    pub problems: Vec<(ProblemKind, SteadyMillis)>,
    /// Problems that somebody had in hand, and until when such a problem must be seen again to be the same one.
    pub acknowledged: Vec<(ProblemKind, Arc<Acknowledgement>, SteadyMillis)>,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    id: HolderId,
    count: i64,
    since: Since,
    /// When the reading that first showed it was asked for.
    first: Moment,
    /// No later than this; where `since` is exact, within a second of it.
    from: Moment,
    /// A reader's marker, where it was looked for.
    marker: Option<Marker>,
}

/// What few locks have, apart so that the others do not pay for it.
#[derive(Debug, Default)]
struct Rare {
    waiting: Waiting,
    /// Who took it, as MONITOR showed, until a reading shows it too.
    taken: Option<(HolderId, Moment, SteadyMillis)>,
    expired: Option<Expired>,
    gone: Option<Gone>,
    /// What was wrong with it in an earlier run, until it is found again or some time has passed without that.
    before: Vec<(ProblemKind, SteadyMillis)>,
    /// Who its holders and waiters are, as far as their agents tell.
    told: Vec<Known>,
    cycle: Option<Arc<Cycle>>,
    /// Readers that had it when it vanished, with their counts, until their markers are gone too.
    left: Vec<(HolderId, i64)>,
    orphan_since: Option<Stamp>,
    /// What does not belong in the hash, in words.
    odd: Option<String>,
    /// The problems that somebody has in hand.
    acknowledged: Vec<acts::InHand>,
    /// The holds that somebody is ending by force, and since when.
    forcing: Option<(Vec<HolderId>, Moment)>,
}

impl Rare {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
            && self.taken.is_none()
            && self.expired.is_none()
            && self.gone.is_none()
            && self.before.is_empty()
            && self.told.is_empty()
            && self.cycle.is_none()
            && self.left.is_empty()
            && self.orphan_since.is_none()
            && self.odd.is_none()
            && self.forcing.is_none()
            && self.acknowledged.is_empty()
    }
}

/// What is known of holds that are over. Many locks are held for as long as anybody looks.
#[derive(Debug, Default)]
struct Before {
    habit: Habit,
    past: Past,
    /// Holds that an earlier run of this program saw begin, until they are seen again.
    remembered: Vec<(HolderId, Since)>,
}

#[derive(Debug)]
pub struct Record {
    id: LockId,
    group: Arc<str>,
    rule: Rule,
    confirmed: bool,
    sources: Sources,
    /// The newest reading there is.
    stamp: Option<Stamp>,
    holds: Vec<Hold>,
    mode: Option<Vec<u8>>,
    fair: bool,
    token: Option<i64>,
    token_read: Option<Moment>,
    rare: Option<Box<Rare>>,
    ttl: Option<Duration>,
    lease: LeaseWatch,
    /// A release message that no reading is newer than yet.
    released: Option<(Moment, SteadyMillis)>,
    still_since: (Moment, SteadyMillis),
    bare_since: Option<Stamp>,
    /// Since when anything is known of it.
    known_since: Moment,
    free_since: Moment,
    /// When its lease was last seen set again.
    rose: Option<SteadyMillis>,
    /// How often, and when, in the hold that lasts.
    renewals: Option<Arc<Renewals>>,
    /// When a release was told last, and by which source.
    told: Option<(Moment, Source)>,
    history: History,
    before: Option<Box<Before>>,
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
            sources: Sources::default(),
            stamp: None,
            holds: Vec::new(),
            mode: None,
            fair: false,
            token: None,
            token_read: None,
            rare: None,
            ttl: None,
            lease: LeaseWatch::default(),
            released: None,
            still_since: (now, SteadyMillis(0)),
            bare_since: None,
            known_since: now,
            free_since: now,
            rose: None,
            renewals: None,
            told: None,
            history: History::default(),
            before: None,
            problems: Vec::new(),
            news: true,
        }
    }

    /// Whether somebody holds it, as far as was last read.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Its whole name.
    #[must_use]
    pub fn id(&self) -> &LockId {
        &self.id
    }

    /// What metrics call it.
    #[must_use]
    pub fn group(&self) -> &Arc<str> {
        &self.group
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

    /// Whether somebody waits for it, as far as is known.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.waiting.is_awaited())
    }

    /// The numbers of the threads that hold it.
    pub fn threads(&self) -> impl Iterator<Item = i64> {
        self.holds.iter().map(|hold| hold.id.thread)
    }

    /// How many wait for it at least.
    #[must_use]
    pub fn waiting_at_least(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.waiting.at_least())
    }

    /// Whether it has a problem.
    #[must_use]
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Whether its waiters are known by name.
    #[must_use]
    pub fn has_named_waiters(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.waiting.waiters().next().is_some())
    }

    /// Whether it is part of a circle of waits.
    #[must_use]
    pub fn is_in_cycle(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.cycle.is_some())
    }

    /// Each of its waiters with each of its holders.
    pub fn waits<'a>(&'a self, lock: &'a (usize, LockName)) -> impl Iterator<Item = Wait> + 'a {
        let waiters = self.rare.iter().flat_map(|rare| rare.waiting.waiters());
        waiters.filter(|waiter| waiter.is_live()).flat_map(move |waiter| {
            // A reader that is gone keeps nobody waiting for longer than the others do.
            let holds = self.holds.iter().filter(|hold| hold.marker != Some(Marker::Missing));
            let who = |id: &HolderId| self.told(id).map(|known| &known.who);
            let waiting = who(&waiter.id);
            holds.map(move |hold| Wait {
                waiter: waiter.id,
                waiting: Owner::of(waiter.id, waiting),
                lock: lock.clone(),
                holder: hold.id,
                holding: Owner::of(hold.id, who(&hold.id)),
                place: waiting.and_then(Who::words),
                confirmed: waiter.seen,
                held_from: hold.from,
                limited: waiting.is_some_and(|who| who.until.is_some()),
            })
        })
    }

    /// What an earlier run of this program knew of it.
    pub fn remember(&mut self, known: Remembered) {
        self.confirm();
        self.remember_acknowledged(known.acknowledged);
        let before = self.before();
        before.remembered = known.holds;
        for past in known.past {
            if past.since.exact {
                before.habit.push(Duration::from_millis(past.millis()));
            }
            before.past.push(past);
        }
        if !known.problems.is_empty() {
            self.rare().before = known.problems;
        }
    }

    /// Since when a holder has had it that is seen for the first time.
    fn since_remembered(&mut self, id: HolderId, seen: Since) -> Since {
        if seen.exact {
            return seen;
        }
        let Some(before) = &mut self.before else { return seen };
        let known = before.remembered.iter().position(|(known, _)| *known == id);
        known.map_or(seen, |known| before.remembered.swap_remove(known).1)
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    fn before(&mut self) -> &mut Before {
        self.before.get_or_insert_default()
    }

    /// Gives back what is no longer needed.
    fn thin_out(&mut self) {
        self.rare.take_if(|rare| rare.is_empty());
    }

    /// Marks it as surely a lock.
    pub fn confirm(&mut self) {
        if !self.confirmed {
            self.confirmed = true;
            self.news = true;
        }
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
        let (Reading::Lock { beside, .. } | Reading::Absent { beside }) = reading else {
            return self.read_nothing(stamp, source, reading, around, effects);
        };
        if beside.queue.is_some() {
            self.confirm();
            self.fair = true;
        }
        let newer = self.is_newer(stamp);
        if let Some(rare) = &mut self.rare {
            self.news |= rare.waiting.expire(stamp.received);
        }
        if newer {
            self.read_beside(stamp, beside, around);
        }
        let given_up = self.rare.as_mut().map(|rare| rare.waiting.take_given_up());
        for waiter in given_up.into_iter().flatten() {
            self.waited(waiter, None, source, effects);
        }
        match reading {
            Reading::Lock { hash, ttl, .. } if self.confirmed || hash.unexpected.is_empty() => {
                if newer {
                    self.read_held(stamp, source, hash, *ttl, around, effects);
                    self.read_markers(beside);
                    self.judge(stamp, source, around, effects);
                }
            }
            _ => self.read_nothing(stamp, source, reading, around, effects),
        }
        let remembered = self.before.as_mut().map(|before| std::mem::take(&mut before.remembered));
        for (id, _) in remembered.into_iter().flatten() {
            // It held the lock when an earlier run ended, and does so no more.
            let over = Note::Unseen(self.id.clone(), id, stamp.steady);
            effects.push(Effect::Note(Box::new(over)));
        }
        self.forget_told();
    }

    /// Connections that listen for its release were counted.
    pub fn count_subscribers(&mut self, count: u64, at: Moment, steady: SteadyMillis) {
        if count == 0 && self.rare.is_none() {
            return;
        }
        self.confirm();
        self.seen_by(Source::Subscribers);
        self.news |= self.rare().waiting.count(count, at, steady);
        self.thin_out();
    }

    /// It is part of that circle of waits, or of none.
    pub fn set_cycle(
        &mut self,
        cycle: Option<Arc<Cycle>>,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        let before = self.rare.as_ref().and_then(|rare| rare.cycle.as_ref());
        let same = match (before, &cycle) {
            (None, None) => true,
            (Some(before), Some(cycle)) => before.is_same(cycle),
            _ => false,
        };
        if same {
            return;
        }
        self.rare().cycle = cycle;
        if let Some(stamp) = self.stamp {
            self.judge(stamp, Source::Poll, around, effects);
        }
        self.thin_out();
    }

    /// Somebody waits no more: it was granted the lock at that instant, or has given up.
    fn waited(
        &mut self,
        waiter: Waiter,
        granted: Option<SteadyMillis>,
        source: Source,
        effects: &mut Vec<Effect>,
    ) {
        let seen = millis(waiter.seen.since(waiter.from));
        let last = SteadyMillis(waiter.since.at.0.saturating_add(seen));
        let wait = PastWait {
            id: waiter.id,
            since: waiter.since,
            to: granted.unwrap_or(last),
            granted: granted.is_some(),
        };
        self.before().past.waited(wait);
        effects.push(Effect::Count(source, Count::Waited(wait)));
        self.news = true;
    }

    fn is_newer(&self, stamp: Stamp) -> bool {
        self.stamp.is_none_or(|last| last.rank() < stamp.rank())
    }

    fn seen_by(&mut self, source: Source) {
        self.news |= self.sources.add(source);
    }

    fn event(
        &mut self,
        at: SteadyMillis,
        source: Source,
        what: Happening,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Event(source, what.word()));
        self.history.push(at, source, what);
        self.news = true;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
