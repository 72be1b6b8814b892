//! One lock as the model keeps it: readings and messages in, its view out.

mod seen;
mod shown;

use std::sync::Arc;
use std::time::Duration;

use redisson::{HolderId, Moment};

use super::history::{Habit, Happening, History};
use super::lease::LeaseWatch;
use super::observation::{Reading, Source, Stamp};
use super::view::{Certainty, LockId, ProblemKind, ProblemView, Since, WallMillis};

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
}

/// Shortly after a time to live has run out.
fn past(ttl: Duration) -> Duration {
    ttl + Duration::from_millis(20)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
