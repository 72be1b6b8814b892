//! What locks cost those who want them: how often they were taken, how long they were held and waited for, in the last
//! hour, by lock and by group of locks.
//!
//! All of it is what was seen. A hold or a wait that was not seen to begin counts as long as it was seen to last, so that
//! every duration is a lower bound, and so is every count: what came and went between two readings left no trace unless
//! MONITOR or a release message told of it.

mod durations;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redisson::{HolderId, Moment};
use serde::{Serialize, Serializer};

use crate::clock::SteadyMillis;
use crate::model::types::{LockId, PastHold, PastWait, Since};

pub use durations::{BOUNDS_MS, Durations};

/// How far back it is counted, at least.
const WINDOW: Duration = Duration::from_secs(3_600);
/// What is counted together, and forgotten together.
const SLICE: Duration = Duration::from_secs(600);
/// The most locks that are counted each for itself. Their groups count them all.
const MAX_LOCKS: usize = 10_000;
/// The most groups of one deployment together with the others'; later ones are not counted apart.
const MAX_GROUPS: usize = 1_000;
/// The most locks that are told of, those most waited for first.
const MAX_TOLD: usize = 1_000;

/// Something that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Somebody took it.
    Acquired,
    /// A hold is over.
    Held(PastHold),
    /// Somebody waits no more.
    Waited(PastWait),
    /// It was waited for so long, all who did together.
    Waiting(Duration),
}

/// The longest of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Longest {
    /// Of which lock.
    pub lock: LockId,
    #[serde(serialize_with = "as_text")]
    pub id: HolderId,
    pub since: Since,
    /// How long, in milliseconds, at least.
    pub ms: u64,
}

fn as_text<S: Serializer>(id: &HolderId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// What was counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Tally {
    /// How often it was taken.
    pub acquisitions: u64,
    /// Holds that ended, by how long they lasted.
    pub holds: Durations,
    /// Holds that ended although nobody meant them to: their lease ran out, or the lock vanished.
    pub holds_lost: u64,
    /// Waits of waiters known by name that ended, by how long they lasted.
    pub waits: Durations,
    /// Those of them that did not end with the lock.
    pub waits_given_up: u64,
    /// How long it was waited for, all who did together, in milliseconds: two who wait a second make two seconds.
    pub waiting_ms: u64,
    /// The longest hold that ended.
    pub longest_hold: Option<Box<Longest>>,
    /// The longest wait that ended.
    pub longest_wait: Option<Box<Longest>>,
}

impl Tally {
    fn add(&mut self, lock: &LockId, count: Count) {
        match count {
            Count::Acquired => self.acquisitions += 1,
            Count::Held(hold) => {
                self.holds.add(hold.millis());
                self.holds_lost += u64::from(hold.ended.is_loss());
                longer(&mut self.longest_hold, lock, hold.id, hold.since, hold.millis());
            }
            Count::Waited(wait) => {
                self.waits.add(wait.millis());
                self.waits_given_up += u64::from(!wait.granted);
                longer(&mut self.longest_wait, lock, wait.id, wait.since, wait.millis());
            }
            Count::Waiting(time) => {
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                self.waiting_ms = self.waiting_ms.saturating_add(ms);
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        self.acquisitions += other.acquisitions;
        self.holds.merge(&other.holds);
        self.holds_lost += other.holds_lost;
        self.waits.merge(&other.waits);
        self.waits_given_up += other.waits_given_up;
        self.waiting_ms = self.waiting_ms.saturating_add(other.waiting_ms);
        for (mine, theirs) in [
            (&mut self.longest_hold, &other.longest_hold),
            (&mut self.longest_wait, &other.longest_wait),
        ] {
            if mine.as_ref().map_or(0, |mine| mine.ms) < theirs.as_ref().map_or(0, |their| their.ms)
            {
                mine.clone_from(theirs);
            }
        }
    }

    /// What is looked at first: what was waited for longest, then what was taken most often.
    fn weight(&self) -> (u64, u64) {
        (self.waiting_ms.max(self.waits.sum_ms()), self.acquisitions)
    }
}

fn longer(known: &mut Option<Box<Longest>>, lock: &LockId, id: HolderId, since: Since, ms: u64) {
    if known.as_ref().is_none_or(|known| known.ms < ms) {
        *known = Some(Box::new(Longest { lock: lock.clone(), id, since, ms }));
    }
}

/// The slices of one lock or group that have anything in them, oldest first.
#[derive(Debug, Default)]
struct Slices(VecDeque<(u64, Tally)>);

impl Slices {
    fn add(&mut self, slice: u64, lock: &LockId, count: Count) {
        // What is told late belongs to an older slice; it is counted with the newest.
        if self.0.back().is_none_or(|(newest, _)| *newest < slice) {
            self.0.push_back((slice, Tally::default()));
        }
        if let Some((_, tally)) = self.0.back_mut() {
            tally.add(lock, count);
        }
    }

    fn forget_before(&mut self, slice: u64) {
        while self.0.front().is_some_and(|(oldest, _)| *oldest < slice) {
            self.0.pop_front();
        }
    }

    fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        self.0.iter().for_each(|(_, tally)| sum.merge(tally));
        sum
    }
}

/// One group of locks of one deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupTally {
    pub deployment: Arc<str>,
    /// The group, as metrics call it.
    pub lock_group: Arc<str>,
    /// What was counted.
    #[serde(flatten)]
    pub tally: Tally,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LockTally {
    #[serde(flatten)]
    pub lock: LockId,
    pub lock_group: Arc<str>,
    /// What was counted.
    #[serde(flatten)]
    pub tally: Tally,
}

/// The last hour, as pages and API show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Contention {
    /// From when on it was counted: an hour ago or up to ten minutes more, or when this program was started.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub from: SteadyMillis,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: SteadyMillis,
    /// Every group, those most waited for first.
    pub groups: Vec<GroupTally>,
    /// Locks, those most waited for first.
    pub locks: Vec<LockTally>,
    /// About how many locks were counted within their groups but are not listed: one that gave way to others and came
    /// back is counted anew.
    pub locks_left_out: u64,
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            from: SteadyMillis(0),
            to: SteadyMillis(0),
            groups: Vec::new(),
            locks: Vec::new(),
            locks_left_out: 0,
        }
    }
}

#[derive(Debug)]
struct LockSlices {
    group: Arc<str>,
    slices: Slices,
}

/// What is being counted.
#[derive(Debug)]
pub(super) struct Totals {
    began: Moment,
    groups: HashMap<(Arc<str>, Arc<str>), Slices>,
    locks: HashMap<LockId, LockSlices>,
    /// Locks that gave way to others, by the slice in which they did.
    left_out: VecDeque<(u64, u64)>,
}

impl Totals {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            began: now,
            groups: HashMap::new(),
            locks: HashMap::new(),
            left_out: VecDeque::new(),
        }
    }

    /// Counts something that happened to a lock of that group.
    pub(super) fn add(&mut self, now: Moment, lock: &LockId, group: &Arc<str>, count: Count) {
        let slice = slice(now);
        let key = (Arc::clone(&lock.deployment), Arc::clone(group));
        if self.groups.contains_key(&key) || self.groups.len() < MAX_GROUPS {
            self.groups.entry(key).or_default().add(slice, lock, count);
        }
        if !self.locks.contains_key(lock) {
            if self.locks.len() >= MAX_LOCKS {
                self.make_room(slice);
            }
            let known = LockSlices { group: Arc::clone(group), slices: Slices::default() };
            self.locks.insert(lock.clone(), known);
        }
        if let Some(known) = self.locks.get_mut(lock) {
            known.slices.add(slice, lock, count);
        }
    }

    /// Leaves out the half that was waited for and taken least.
    fn make_room(&mut self, slice: u64) {
        let weight = |known: &LockSlices| known.slices.sum().weight();
        let mut all: Vec<_> =
            self.locks.iter().map(|(lock, known)| (weight(known), lock.clone())).collect();
        all.sort_unstable();
        all.truncate(MAX_LOCKS / 2);
        let left_out = u64::try_from(all.len()).unwrap_or(u64::MAX);
        for (_, lock) in all {
            self.locks.remove(&lock);
        }
        match self.left_out.back_mut().filter(|(newest, _)| *newest == slice) {
            Some((_, n)) => *n += left_out,
            None => self.left_out.push_back((slice, left_out)),
        }
    }

    /// Forgets what is older than the window.
    pub(super) fn forget_old(&mut self, now: Moment) {
        let oldest = slice(now - WINDOW);
        self.groups.retain(|_, slices| {
            slices.forget_before(oldest);
            !slices.0.is_empty()
        });
        self.locks.retain(|_, known| {
            known.slices.forget_before(oldest);
            !known.slices.0.is_empty()
        });
        self.left_out.retain(|(slice, _)| *slice >= oldest);
    }

    /// The last hour, at an instant that both clocks tell.
    pub(super) fn shown(&mut self, now: Moment, steady: SteadyMillis) -> Contention {
        self.forget_old(now);
        let first = Moment::from_micros(slice(now - WINDOW).saturating_mul(slice_micros()));
        let counted = now.since(first.max(self.began));
        let counted = u64::try_from(counted.as_millis()).unwrap_or(u64::MAX);
        let mut groups: Vec<GroupTally> = self
            .groups
            .iter()
            .map(|((deployment, group), slices)| GroupTally {
                deployment: Arc::clone(deployment),
                lock_group: Arc::clone(group),
                tally: slices.sum(),
            })
            .collect();
        groups.sort_unstable_by(|a, b| {
            let names =
                |group: &GroupTally| (Arc::clone(&group.deployment), Arc::clone(&group.lock_group));
            b.tally.weight().cmp(&a.tally.weight()).then_with(|| names(a).cmp(&names(b)))
        });
        let mut locks: Vec<LockTally> = self
            .locks
            .iter()
            .map(|(lock, known)| LockTally {
                lock: lock.clone(),
                lock_group: Arc::clone(&known.group),
                tally: known.slices.sum(),
            })
            .collect();
        locks.sort_unstable_by(|a, b| {
            b.tally.weight().cmp(&a.tally.weight()).then_with(|| a.lock.cmp(&b.lock))
        });
        let gone: u64 = self.left_out.iter().map(|(_, n)| *n).sum();
        let beyond = u64::try_from(locks.len().saturating_sub(MAX_TOLD)).unwrap_or(u64::MAX);
        locks.truncate(MAX_TOLD);
        Contention {
            from: SteadyMillis(steady.0.saturating_sub(counted)),
            to: steady,
            groups,
            locks,
            locks_left_out: gone + beyond,
        }
    }
}

fn slice_micros() -> u64 {
    u64::try_from(SLICE.as_micros()).unwrap_or(u64::MAX)
}

fn slice(at: Moment) -> u64 {
    at.as_micros() / slice_micros()
}

#[cfg(test)]
mod tests {
    use redisson::{ClientId, LockName};

    use super::*;
    use crate::model::types::Ending;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1_000)
    }

    fn lock(name: &str) -> LockId {
        LockId { deployment: "d".into(), db: 0, name: LockName::new(name.as_bytes()).unwrap() }
    }

    fn held(from: u64, to: u64) -> Count {
        Count::Held(PastHold {
            id: HolderId::new(ClientId::from_random([1; 16]), 1),
            since: Since { at: SteadyMillis(from), exact: true },
            to: SteadyMillis(to),
            ended: Ending::Released,
        })
    }

    fn waited(from: u64, to: u64, granted: bool) -> Count {
        Count::Waited(PastWait {
            id: HolderId::new(ClientId::from_random([2; 16]), 1),
            since: Since { at: SteadyMillis(from), exact: true },
            to: SteadyMillis(to),
            granted,
        })
    }

    #[test]
    fn locks_and_groups_are_summed_and_the_longest_are_named() {
        let mut totals = Totals::new(at(0));
        let group: Arc<str> = "g".into();
        for (name, count) in [
            ("a", Count::Acquired),
            ("a", held(0, 70)),
            ("b", Count::Acquired),
            ("b", held(100, 400)),
            ("b", waited(90, 100, true)),
            ("b", waited(100, 180, false)),
            ("b", Count::Waiting(Duration::from_millis(90))),
        ] {
            totals.add(at(1_000), &lock(name), &group, count);
        }
        let shown = totals.shown(at(2_000), SteadyMillis(1_002_000));
        assert_eq!((shown.from, shown.to), (SteadyMillis(1_000_000), SteadyMillis(1_002_000)));
        let all = &shown.groups[0].tally;
        assert_eq!((all.acquisitions, all.holds.count(), all.holds.sum_ms()), (2, 2, 370));
        assert_eq!((all.waits.count(), all.waits_given_up, all.waiting_ms), (2, 1, 90));
        let longest = all.longest_hold.as_ref().unwrap();
        assert_eq!((&longest.lock, longest.ms), (&lock("b"), 300));
        assert_eq!(all.longest_wait.as_ref().unwrap().ms, 80);
        let names: Vec<_> = shown.locks.iter().map(|row| row.lock.name.to_string()).collect();
        assert_eq!(names, ["b", "a"], "those waited for come first");
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["locks"][0]["name"], "b");
        assert_eq!(json["locks"][0]["waits"]["count"], 2);
        assert_eq!(json["groups"][0]["lock_group"], "g");
    }

    #[test]
    fn what_is_older_than_an_hour_is_forgotten() {
        const MINUTE: u64 = 60_000;
        let mut totals = Totals::new(at(0));
        let group: Arc<str> = "g".into();
        for minute in 0..130 {
            totals.add(at(minute * MINUTE), &lock("a"), &group, Count::Acquired);
        }
        let shown = totals.shown(at(130 * MINUTE - 1), SteadyMillis(1_000 * MINUTE));
        let counted = (shown.to.0 - shown.from.0).div_ceil(MINUTE);
        assert!((60..=70).contains(&counted), "{counted}");
        assert_eq!(shown.locks[0].tally.acquisitions, counted);
        let later = totals.shown(at(400 * MINUTE), SteadyMillis(2_000 * MINUTE));
        assert!(later.locks.is_empty() && later.groups.is_empty());
    }

    #[test]
    fn a_crowd_of_names_leaves_those_most_waited_for() {
        let mut totals = Totals::new(at(0));
        let group: Arc<str> = "g".into();
        let much = Count::Waiting(Duration::from_secs(9));
        totals.add(at(0), &lock("hot"), &group, much);
        for i in 0..3 * MAX_LOCKS {
            totals.add(at(1), &lock(&format!("l{i}")), &group, Count::Acquired);
            assert!(totals.locks.len() <= MAX_LOCKS);
        }
        let shown = totals.shown(at(2), SteadyMillis(2));
        assert_eq!(shown.locks[0].lock, lock("hot"));
        assert_eq!(shown.locks.len() as u64 + shown.locks_left_out, 3 * MAX_LOCKS as u64 + 1);
        assert_eq!(shown.groups[0].tally.acquisitions, 3 * MAX_LOCKS as u64);
    }
}
