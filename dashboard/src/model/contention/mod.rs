//! Contention in the last hour: acquisitions, holds and waits, by lock and by lock group.
//!
//! All of it is as observed. A hold or a wait whose beginning was not seen counts from its first observation, so every
//! duration is a lower bound. Every count is a lower bound too: anything between two readings leaves no trace unless
//! MONITOR or a release message shows it.

mod durations;
mod minutes;

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redisson::Moment;
use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::{SteadyMillis, Time, millis};
use crate::model::types::{HolderField, LockId, PastHold, PastWait, Since};

pub use durations::{BOUNDS_MS, Durations};
use minutes::{MINUTE, Minutes};
pub use minutes::{MINUTES, Minute};

/// The length of the window that is counted at least.
const WINDOW: Duration = Duration::from_secs(3_600);
/// The length of a slice, whose counts expire together.
const SLICE: Duration = Duration::from_secs(600);
/// The maximum number of locks that are counted individually. Their groups count all of them.
const MAX_LOCKS: usize = 10_000;
/// The maximum number of groups of all deployments. Further groups are not counted.
const MAX_GROUPS: usize = 1_000;
/// The maximum number of locks that are listed, those most waited for first.
const MAX_LISTED: usize = 1_000;

/// An increment of the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Count {
    Acquired,
    /// A hold ended.
    Held(PastHold),
    /// A forced release has ended a hold that was counted as released.
    Lost,
    /// A wait ended.
    Waited(PastWait),
    /// The waiting time, summed over all waiters.
    Waiting(Duration),
}

/// The longest hold or wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Longest {
    pub lock: LockId,
    #[schema(value_type = String)]
    pub id: HolderField,
    pub since: Since,
    /// The minimum duration in milliseconds.
    pub ms: u64,
}

/// The counts of a lock or group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
pub struct Tally {
    pub acquisitions: u64,
    /// Durations of holds that ended.
    pub holds: Durations,
    /// Holds that were lost: their lease expired, or the lock vanished.
    pub holds_lost: u64,
    /// Durations of waits that ended, of waiters known by name.
    pub waits: Durations,
    /// Waits that did not end with a grant.
    pub waits_given_up: u64,
    /// Waiting time in milliseconds, of all waiters together: two that wait for a second make two seconds.
    pub waiting_ms: u64,
    /// The longest hold that ended.
    pub longest_hold: Option<Box<Longest>>,
    /// The longest wait that ended.
    pub longest_wait: Option<Box<Longest>>,
}

impl Tally {
    fn add(&mut self, lock: &LockId, count: &Count) {
        match count {
            Count::Acquired => self.acquisitions += 1,
            Count::Held(hold) => {
                self.holds.add(hold.millis());
                self.holds_lost += u64::from(hold.ended.is_loss());
                longer(&mut self.longest_hold, lock, &hold.id, hold.since, hold.millis());
            }
            Count::Lost => self.holds_lost += 1,
            Count::Waited(wait) => {
                self.waits.add(wait.millis());
                self.waits_given_up += u64::from(!wait.granted);
                longer(&mut self.longest_wait, lock, &wait.id, wait.since, wait.millis());
            }
            Count::Waiting(time) => {
                self.waiting_ms = self.waiting_ms.saturating_add(millis(*time));
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

    /// Returns the time of all waits together, in milliseconds.
    #[must_use]
    pub fn waited_ms(&self) -> u64 {
        self.waiting_ms.max(self.waits.sum_ms())
    }

    #[must_use]
    pub fn longest_wait_ms(&self) -> Option<u64> {
        self.longest_wait.as_ref().map(|longest| longest.ms)
    }

    #[must_use]
    pub fn longest_hold_ms(&self) -> Option<u64> {
        self.longest_hold.as_ref().map(|longest| longest.ms)
    }

    /// Returns a bound that this percentage of the waits did not exceed, in milliseconds.
    #[must_use]
    pub fn wait_percentile(&self, percent: u64) -> Option<u64> {
        self.waits.percentile_up_to(percent, self.longest_wait_ms())
    }

    /// Returns a bound that this percentage of the holds did not exceed, in milliseconds.
    #[must_use]
    pub fn hold_percentile(&self, percent: u64) -> Option<u64> {
        self.holds.percentile_up_to(percent, self.longest_hold_ms())
    }

    /// Returns the sort key: waiting time, then acquisitions.
    fn weight(&self) -> (u64, u64) {
        (self.waited_ms(), self.acquisitions)
    }
}

fn longer(
    known: &mut Option<Box<Longest>>,
    lock: &LockId,
    id: &HolderField,
    since: Since,
    ms: u64,
) {
    if known.as_ref().is_none_or(|known| known.ms < ms) {
        *known = Some(Box::new(Longest { lock: lock.clone(), id: id.clone(), since, ms }));
    }
}

/// The slices of one lock or group with any counts, oldest first. They have no spare capacity, since most locks have
/// only one.
#[derive(Debug, Default)]
struct Slices(Vec<(u64, Tally)>);

impl Slices {
    fn add(&mut self, slice: u64, lock: &LockId, count: &Count) {
        // A late report belongs to an older slice, but is counted with the newest.
        if self.0.last().is_none_or(|(newest, _)| *newest < slice) {
            self.0.reserve_exact(1);
            self.0.push((slice, Tally::default()));
        }
        if let Some((_, tally)) = self.0.last_mut() {
            tally.add(lock, count);
        }
    }

    fn forget_before(&mut self, slice: u64) {
        self.0.retain(|(at, _)| *at >= slice);
    }

    fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        self.0.iter().for_each(|(_, tally)| sum.merge(tally));
        sum
    }
}

/// One group of locks of one deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct GroupTally {
    pub deployment: Arc<str>,
    /// The group, as metrics call it.
    pub lock_group: Arc<str>,
    #[serde(flatten)]
    pub tally: Tally,
    /// Its minutes with waits or problems, oldest first.
    #[serde(skip)]
    #[schema(ignore)]
    pub minutes: Vec<Minute>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LockTally {
    #[serde(flatten)]
    pub lock: LockId,
    pub lock_group: Arc<str>,
    #[serde(flatten)]
    pub tally: Tally,
}

/// The contention of the last hour, as pages and the API show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Contention {
    /// The beginning of counting: an hour ago or up to ten minutes more, or the start of this program.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub from: SteadyMillis,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: SteadyMillis,
    /// The end of the last whole minute.
    #[serde(skip)]
    pub minute: SteadyMillis,
    /// Every group, those most waited for first.
    pub groups: Vec<GroupTally>,
    /// Locks, those most waited for first.
    pub locks: Vec<LockTally>,
    /// The approximate number of locks that are counted in their groups but not listed: one that was dropped and came back
    /// counts twice.
    pub locks_left_out: u64,
}

impl Contention {
    /// Returns the counts of all groups together.
    #[must_use]
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.groups.iter().for_each(|group| total.merge(&group.tally));
        total
    }
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            from: SteadyMillis(0),
            to: SteadyMillis(0),
            minute: SteadyMillis(0),
            groups: Vec::new(),
            locks: Vec::new(),
            locks_left_out: 0,
        }
    }
}

#[derive(Debug, Default)]
struct GroupSlices {
    slices: Slices,
    minutes: Minutes,
}

#[derive(Debug)]
struct LockSlices {
    group: Arc<str>,
    slices: Slices,
}

#[derive(Debug)]
pub(super) struct Totals {
    began: Moment,
    groups: HashMap<(Arc<str>, Arc<str>), GroupSlices>,
    /// The microseconds by which the minutes of the wall clock begin earlier than those of our clock, or `None` before
    /// the first view.
    phase: Option<u64>,
    locks: HashMap<LockId, LockSlices>,
    /// The numbers of locks that were dropped, by slice.
    left_out: VecDeque<(u64, u64)>,
}

impl Totals {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            began: now,
            groups: HashMap::new(),
            phase: None,
            locks: HashMap::new(),
            left_out: VecDeque::new(),
        }
    }

    /// Adds a count for a lock of that group.
    pub(super) fn add(&mut self, now: Moment, lock: &LockId, group: &Arc<str>, count: &Count) {
        let slice = slice(now);
        let key = (Arc::clone(&lock.deployment), Arc::clone(group));
        let minute = self.minute(now);
        if self.groups.contains_key(&key) || self.groups.len() < MAX_GROUPS {
            let group = self.groups.entry(key).or_default();
            group.slices.add(slice, lock, count);
            if let Count::Waiting(time) = count {
                group.minutes.add(minute, *time, 0);
            }
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

    /// Counts a problem of a lock of that group.
    pub(super) fn add_problem(&mut self, now: Moment, deployment: &Arc<str>, group: &Arc<str>) {
        let (key, minute) = ((Arc::clone(deployment), Arc::clone(group)), self.minute(now));
        if self.groups.contains_key(&key) || self.groups.len() < MAX_GROUPS {
            self.groups.entry(key).or_default().minutes.add(minute, Duration::ZERO, 1);
        }
    }

    /// Returns the number of the minute, which begins with one of the wall clock.
    fn minute(&self, at: Moment) -> u64 {
        at.as_micros().saturating_add(self.phase.unwrap_or(0)) / minute_micros()
    }

    /// Drops the half of the locks with the least waiting time and acquisitions.
    fn make_room(&mut self, slice: u64) {
        let least: Vec<_> =
            self.heaviest_first().skip(MAX_LOCKS / 2).map(|(lock, _)| lock.clone()).collect();
        let left_out = u64::try_from(least.len()).unwrap_or(u64::MAX);
        for lock in least {
            self.locks.remove(&lock);
        }
        match self.left_out.back_mut().filter(|(newest, _)| *newest == slice) {
            Some((_, n)) => *n += left_out,
            None => self.left_out.push_back((slice, left_out)),
        }
    }

    /// Returns all locks in the order of their weights. Only references are sorted, since there are many locks.
    fn heaviest_first(&self) -> impl ExactSizeIterator<Item = (&LockId, &LockSlices)> {
        let all = self.locks.iter();
        let mut all: Vec<_> =
            all.map(|(lock, known)| (known.slices.sum().weight(), lock, known)).collect();
        all.sort_unstable_by_key(|(weight, lock, _)| (Reverse(*weight), *lock));
        all.into_iter().map(|(_, lock, known)| (lock, known))
    }

    /// Drops slices older than the window.
    pub(super) fn forget_old(&mut self, now: Moment) {
        let oldest = slice(now - WINDOW);
        let oldest_minute = self.minute(now).saturating_sub(MINUTES as u64);
        self.groups.retain(|_, group| {
            group.slices.forget_before(oldest);
            group.minutes.forget_before(oldest_minute);
            !(group.slices.0.is_empty() && group.minutes.is_empty())
        });
        self.locks.retain(|_, known| {
            known.slices.forget_before(oldest);
            !known.slices.0.is_empty()
        });
        self.left_out.retain(|(slice, _)| *slice >= oldest);
    }

    /// Returns the last hour.
    pub(super) fn view(&mut self, now: Time) -> Contention {
        let (now, steady) = (now.moment(), now.steady());
        let ahead = (steady.0 * 1_000).saturating_sub(now.as_micros());
        self.phase.get_or_insert_with(|| ahead % minute_micros());
        self.forget_old(now);
        let current = self.minute(now);
        let over = now.as_micros().saturating_add(self.phase.unwrap_or(0)) % minute_micros();
        let first = Moment::from_micros(slice(now - WINDOW).saturating_mul(slice_micros()));
        let counted = now.since(first.max(self.began));
        let mut groups: Vec<GroupTally> = self
            .groups
            .iter()
            .map(|((deployment, name), group)| GroupTally {
                deployment: Arc::clone(deployment),
                lock_group: Arc::clone(name),
                tally: group.slices.sum(),
                minutes: group.minutes.before(current),
            })
            .collect();
        groups.sort_unstable_by(|a, b| {
            let by_weight = b.tally.weight().cmp(&a.tally.weight());
            by_weight
                .then_with(|| (&a.deployment, &a.lock_group).cmp(&(&b.deployment, &b.lock_group)))
        });
        let listed = self.heaviest_first().take(MAX_LISTED);
        let locks = listed.map(|(lock, known)| LockTally {
            lock: lock.clone(),
            lock_group: Arc::clone(&known.group),
            tally: known.slices.sum(),
        });
        let gone: u64 = self.left_out.iter().map(|(_, n)| *n).sum();
        let beyond = u64::try_from(self.locks.len().saturating_sub(MAX_LISTED)).unwrap_or(u64::MAX);
        Contention {
            from: steady.minus(millis(counted)),
            to: steady,
            minute: steady.minus(over / 1_000),
            groups,
            locks: locks.collect(),
            locks_left_out: gone + beyond,
        }
    }
}

fn minute_micros() -> u64 {
    u64::try_from(MINUTE.as_micros()).unwrap_or(u64::MAX)
}

fn slice_micros() -> u64 {
    u64::try_from(SLICE.as_micros()).unwrap_or(u64::MAX)
}

fn slice(at: Moment) -> u64 {
    at.as_micros() / slice_micros()
}

#[cfg(test)]
mod tests {
    use redisson::{ClientId, HolderId, LockName};

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
            id: HolderId::new(ClientId::from_random([1; 16]), 1).into(),
            since: Since { at: SteadyMillis(from), exact: true },
            to: SteadyMillis(to),
            ended: Ending::Released,
        })
    }

    fn waited(from: u64, to: u64, granted: bool) -> Count {
        Count::Waited(PastWait {
            id: HolderId::new(ClientId::from_random([2; 16]), 1).into(),
            since: Since { at: SteadyMillis(from), exact: true },
            to: SteadyMillis(to),
            granted,
        })
    }

    #[test]
    fn locks_and_groups_are_summed_and_the_longest_are_listed() {
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
            totals.add(at(1_000), &lock(name), &group, &count);
        }
        let shown = totals.view(Time::of_test(2_000, 1_000_000));
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
    fn the_minutes_of_groups_are_those_of_the_wall_clock() {
        let mut totals = Totals::new(at(0));
        let group: Arc<str> = "g".into();
        // Our clock is 20 s behind a minute's beginning.
        let time = |ms: u64| Time::of_test(ms, 600_000 + 40_000);
        assert_eq!(totals.view(time(0)).minute, SteadyMillis(600_000));
        let waits = Count::Waiting(Duration::from_secs(3));
        totals.add(at(19_000), &lock("a"), &group, &waits);
        totals.add_problem(at(19_500), &"d".into(), &group);
        totals.add(at(21_000), &lock("a"), &group, &waits);
        let shown = totals.view(time(30_000));
        assert_eq!(shown.minute, SteadyMillis(660_000));
        let minute = Minute { column: 59, waiting_ms: 3_000, problems: 1 };
        assert_eq!(shown.groups[0].minutes, [minute], "only whole minutes");
        let shown = totals.view(time(90_000));
        let columns: Vec<_> = shown.groups[0].minutes.iter().map(|it| it.column).collect();
        assert_eq!((columns, shown.groups[0].minutes[1].problems), (vec![58, 59], 0));
        assert_eq!(shown.groups[0].tally.waiting_ms, 6_000);
    }

    #[test]
    fn slices_older_than_an_hour_are_dropped() {
        const MINUTE: u64 = 60_000;
        let time = |ms: u64| Time::of_test(ms, 1_000 * MINUTE);
        let mut totals = Totals::new(at(0));
        let group: Arc<str> = "g".into();
        for minute in 0..130 {
            totals.add(at(minute * MINUTE), &lock("a"), &group, &Count::Acquired);
        }
        let shown = totals.view(time(130 * MINUTE - 1));
        let counted = (shown.to.0 - shown.from.0).div_ceil(MINUTE);
        assert!((60..=70).contains(&counted), "{counted}");
        assert_eq!(shown.locks[0].tally.acquisitions, counted);
        let later = totals.view(time(400 * MINUTE));
        assert!(later.locks.is_empty() && later.groups.is_empty());
    }

    #[test]
    fn a_lock_that_is_acquired_once_has_no_memory_for_more() {
        let mut totals = Totals::new(at(0));
        for i in 0..2 * MAX_LISTED {
            totals.add(at(1), &lock(&format!("l{i}")), &"g".into(), &Count::Acquired);
        }
        assert!(size_of::<Tally>() <= 64);
        assert!(totals.locks.values().all(|known| known.slices.0.capacity() == 1));
        let shown = totals.view(Time::of_test(2, 0));
        assert_eq!((shown.locks.len(), shown.locks.capacity()), (MAX_LISTED, MAX_LISTED));
        assert_eq!(shown.locks_left_out, MAX_LISTED as u64);
    }

    #[test]
    fn of_too_many_names_those_most_waited_for_remain() {
        let mut totals = Totals::new(at(0));
        let group: Arc<str> = "g".into();
        let much = Count::Waiting(Duration::from_secs(9));
        totals.add(at(0), &lock("hot"), &group, &much);
        for i in 0..3 * MAX_LOCKS {
            totals.add(at(1), &lock(&format!("l{i}")), &group, &Count::Acquired);
            assert!(totals.locks.len() <= MAX_LOCKS);
        }
        let shown = totals.view(Time::of_test(2, 0));
        assert_eq!(shown.locks[0].lock, lock("hot"));
        assert_eq!(shown.locks.len() as u64 + shown.locks_left_out, 3 * MAX_LOCKS as u64 + 1);
        assert_eq!(shown.groups[0].tally.acquisitions, 3 * MAX_LOCKS as u64);
    }
}
