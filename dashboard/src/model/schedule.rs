//! The schedule of reads of known locks: first those that were just reported or requested, then those on open pages, for
//! at most half of the budget, then confirmed locks by deadline, then possible locks, for at most a quarter.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use redisson::{LockName, Moment};

/// The most urgent reads that may queue; further ones are left to their deadlines and the scan.
const MAX_URGENT: usize = 10_000;
/// The interval at which a lock on an open page is read.
const VIEWED_INTERVAL: Duration = Duration::from_secs(1);
/// The least time between two reads of a lock on an open page. A lock that constantly changes hands would otherwise be read
/// as often as the budget allows.
const MIN_INTERVAL_VIEWED: Duration = Duration::from_millis(50);
/// The least time between two reads of any other known lock.
const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// The least time between two reads of an unknown name: of the two names that a channel may belong to, one is not a lock.
const MIN_INTERVAL_UNKNOWN: Duration = Duration::from_secs(1);
/// The delay of a lock that is reported just after others were read, unless it is on an open page: reading many together costs
/// the server less than one by one.
const GATHER_DELAY: Duration = Duration::from_millis(100);
/// The time after which a read without a reply is requested again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// The budget that can be saved up, so that a busy moment can follow an idle one.
const BURST: Duration = Duration::from_millis(250);

/// The pending reads of one scope.
#[derive(Debug)]
pub struct Schedule {
    rate: f64,
    budget: f64,
    viewed_budget: f64,
    possible_budget: f64,
    refilled: Moment,
    deadlines: BTreeSet<(Moment, LockName)>,
    /// The deadlines of possible locks, which delay no confirmed one.
    possible: BTreeSet<(Moment, LockName)>,
    due: HashMap<LockName, Due>,
    urgent: VecDeque<LockName>,
    is_urgent: HashSet<LockName>,
    /// The last read of an urgent lock that is on no open page.
    last_urgent: Option<Moment>,
    /// Locks on open pages, each with its last request on that account.
    viewed: VecDeque<(LockName, Option<Moment>)>,
    is_viewed: HashSet<LockName>,
    /// The last requests within [`MIN_INTERVAL_UNKNOWN`]: a reading that a later release has outdated leaves no trace in its
    /// record, and a name that is not a lock has none.
    recent: HashMap<LockName, Moment>,
    recent_order: VecDeque<(Moment, LockName)>,
}

/// The latest time for a lock's next read.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Moment,
    possible: bool,
}

impl Schedule {
    /// Returns an empty schedule of at most `rate` reads a second.
    #[must_use]
    pub fn new(rate: u32, now: Moment) -> Self {
        Self {
            rate: f64::from(rate),
            budget: f64::from(rate) * BURST.as_secs_f64(),
            viewed_budget: 0.0,
            possible_budget: 0.0,
            refilled: now,
            deadlines: BTreeSet::new(),
            possible: BTreeSet::new(),
            due: HashMap::new(),
            urgent: VecDeque::new(),
            is_urgent: HashSet::new(),
            last_urgent: None,
            viewed: VecDeque::new(),
            is_viewed: HashSet::new(),
            recent: HashMap::new(),
            recent_order: VecDeque::new(),
        }
    }

    /// Sets the most reads a second.
    pub fn set_rate(&mut self, rate: u32) {
        self.rate = f64::from(rate);
    }

    /// Sets the latest time for a read of the confirmed lock.
    pub fn set(&mut self, name: &LockName, at: Moment) {
        self.insert(name, Due { at, possible: false });
    }

    /// Sets the time for a read of the possible lock, which may become later while others are due.
    pub fn set_possible(&mut self, name: &LockName, at: Moment) {
        self.insert(name, Due { at, possible: true });
    }

    /// Sets another time for a scheduled read.
    pub fn advance(&mut self, name: &LockName, at: Moment) {
        if let Some(due) = self.due.get(name).copied() {
            self.insert(name, Due { at, ..due });
        }
    }

    fn insert(&mut self, name: &LockName, due: Due) {
        self.remove(name);
        self.due.insert(name.clone(), due);
        self.deadlines_of(due).insert((due.at, name.clone()));
    }

    /// Removes the lock.
    pub fn remove(&mut self, name: &LockName) {
        if let Some(before) = self.due.remove(name) {
            self.deadlines_of(before).remove(&(before.at, name.clone()));
        }
    }

    fn deadlines_of(&mut self, due: Due) -> &mut BTreeSet<(Moment, LockName)> {
        if due.possible { &mut self.possible } else { &mut self.deadlines }
    }

    /// Puts the lock before all others. Returns false if too many are urgent already.
    pub fn prioritize(&mut self, name: &LockName) -> bool {
        if self.is_urgent.contains(name) {
            return true;
        }
        if self.urgent.len() >= MAX_URGENT {
            return false;
        }
        self.is_urgent.insert(name.clone());
        self.urgent.push_back(name.clone());
        true
    }

    /// Sets the locks that open pages show.
    pub fn set_viewed(&mut self, names: impl IntoIterator<Item = LockName>) {
        let before: HashMap<LockName, Option<Moment>> = self.viewed.drain(..).collect();
        let last_request = |name: &LockName| before.get(name).copied().flatten();
        self.viewed = names.into_iter().map(|name| (name.clone(), last_request(&name))).collect();
        self.is_viewed = self.viewed.iter().map(|(name, _)| name.clone()).collect();
    }

    /// Returns whether an open page shows the lock.
    #[must_use]
    pub fn is_viewed(&self, name: &LockName) -> bool {
        self.is_viewed.contains(name)
    }

    /// Returns the delay of the next read of a confirmed lock by deadline.
    #[must_use]
    pub fn lag(&self, now: Moment) -> Duration {
        self.deadlines.first().map_or(Duration::ZERO, |(due, _)| now.since(*due))
    }

    /// Returns the time of the next read.
    #[cfg(test)]
    pub fn next(&self, now: Moment) -> Option<Moment> {
        let urgent = (!self.urgent.is_empty()).then_some(now);
        let first = [&self.deadlines, &self.possible].into_iter().filter_map(BTreeSet::first);
        urgent.or_else(|| first.map(|(due, _)| *due).min())
    }

    /// Takes the names to read now, at most `most`. `last_sent` returns a lock's last request.
    pub fn take(
        &mut self,
        now: Moment,
        most: usize,
        last_sent: impl Fn(&LockName) -> Option<Moment>,
    ) -> Vec<LockName> {
        let passed = now.since(self.refilled).as_secs_f64();
        self.refilled = now;
        let most_saved = self.rate * BURST.as_secs_f64();
        self.budget = (self.budget + self.rate * passed).min(most_saved.max(1.0));
        self.viewed_budget =
            (self.viewed_budget + self.rate / 2.0 * passed).min((most_saved / 2.0).max(1.0));
        self.possible_budget =
            (self.possible_budget + self.rate / 4.0 * passed).min((most_saved / 4.0).max(1.0));
        while let Some((at, name)) = self.recent_order.front() {
            if now.since(*at) < MIN_INTERVAL_UNKNOWN {
                break;
            }
            if self.recent.get(name) == Some(at) {
                self.recent.remove(name);
            }
            self.recent_order.pop_front();
        }
        let mut taken = Vec::new();
        self.take_urgent(now, most, &last_sent, &mut taken);
        self.take_viewed(now, most, &last_sent, &mut taken);
        while taken.len() < most && self.budget >= 1.0 {
            let Some(name) = due(&self.deadlines, now) else { break };
            self.record_request(&name, now);
            taken.push(name);
        }
        while taken.len() < most && self.budget >= 1.0 && self.possible_budget >= 1.0 {
            let Some(name) = due(&self.possible, now) else { break };
            self.possible_budget -= 1.0;
            self.record_request(&name, now);
            taken.push(name);
        }
        taken
    }

    fn take_urgent(
        &mut self,
        now: Moment,
        most: usize,
        last_sent: impl Fn(&LockName) -> Option<Moment>,
        taken: &mut Vec<LockName>,
    ) {
        // One tick may take many urgent locks in several parts.
        let gathering =
            self.last_urgent.is_some_and(|last| last < now && now.since(last) < GATHER_DELAY);
        for _ in 0..self.urgent.len() {
            if taken.len() >= most || self.budget < 1.0 {
                return;
            }
            let Some(name) = self.urgent.pop_front() else { return };
            let seen = self.is_viewed.contains(&name);
            let min_interval = match (seen, self.due.contains_key(&name)) {
                (true, _) => MIN_INTERVAL_VIEWED,
                (false, true) => MIN_INTERVAL,
                (false, false) => MIN_INTERVAL_UNKNOWN,
            };
            let sent = last_sent(&name).max(self.recent.get(&name).copied());
            let just_read = sent.is_some_and(|sent| now.since(sent) < min_interval);
            if just_read || (gathering && !seen) {
                self.urgent.push_back(name);
                continue;
            }
            if !seen {
                self.last_urgent = Some(now);
            }
            self.is_urgent.remove(&name);
            self.record_request(&name, now);
            taken.push(name);
        }
    }

    fn take_viewed(
        &mut self,
        now: Moment,
        most: usize,
        last_sent: impl Fn(&LockName) -> Option<Moment>,
        taken: &mut Vec<LockName>,
    ) {
        for _ in 0..self.viewed.len() {
            if taken.len() >= most || self.budget < 1.0 || self.viewed_budget < 1.0 {
                return;
            }
            let Some((name, mut last_request)) = self.viewed.pop_front() else { return };
            let newest = last_sent(&name).max(last_request);
            if newest.is_none_or(|at| now.since(at) >= VIEWED_INTERVAL) && !taken.contains(&name) {
                self.viewed_budget -= 1.0;
                self.record_request(&name, now);
                last_request = Some(now);
                taken.push(name.clone());
            }
            self.viewed.push_back((name, last_request));
        }
    }

    fn record_request(&mut self, name: &LockName, now: Moment) {
        self.budget -= 1.0;
        self.recent.insert(name.clone(), now);
        self.recent_order.push_back((now, name.clone()));
        self.advance(name, now + REPLY_TIMEOUT);
    }
}

/// Returns the name that has been due for the longest.
fn due(deadlines: &BTreeSet<(Moment, LockName)>, now: Moment) -> Option<LockName> {
    deadlines.first().filter(|(due, _)| *due <= now).map(|(_, name)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> LockName {
        LockName::new(format!("lock:{i}").into_bytes()).unwrap()
    }

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    #[test]
    fn the_longest_due_comes_first_and_only_once() {
        let mut schedule = Schedule::new(1000, at(0));
        schedule.set(&name(1), at(500));
        schedule.set(&name(2), at(400));
        schedule.set(&name(3), at(9_000));
        assert_eq!(schedule.take(at(1000), 10, |_| None), [name(2), name(1)]);
        assert_eq!(schedule.take(at(1001), 10, |_| None), []);
        assert_eq!(schedule.lag(at(1001)), Duration::ZERO);
        assert_eq!(
            schedule.take(at(5000), 10, |_| None).len(),
            2,
            "without a reply it is requested again"
        );
    }

    #[test]
    fn the_budget_bounds_all_reads_and_open_pages_get_half_of_it() {
        let mut schedule = Schedule::new(100, at(0));
        for i in 0..1000 {
            schedule.set(&name(i), at(0));
        }
        schedule.set_viewed((5000..6000).map(name));
        let (mut viewed, mut rest) = (0, 0);
        for tick in 1..=1000 {
            for taken in schedule.take(at(tick * 10), 100, |_| None) {
                match (5000..6000).any(|i| taken == name(i)) {
                    true => viewed += 1,
                    false => rest += 1,
                }
            }
        }
        assert!((950..=1050).contains(&(viewed + rest)), "{viewed} + {rest} in 10 s at 100/s");
        assert!(viewed <= 520 && rest >= 450, "{viewed} {rest}");
        assert!(schedule.lag(at(10_000)) > Duration::from_secs(5));
    }

    #[test]
    fn possible_locks_delay_no_confirmed_lock_and_get_a_quarter_of_the_budget() {
        let mut schedule = Schedule::new(1_000, at(0));
        // They have been due for longer.
        (0..10_000).for_each(|i| schedule.set_possible(&name(i), at(0)));
        let confirmed: Vec<LockName> = (20_000..20_100).map(name).collect();
        let (mut possible, mut rest) = (0, 0);
        for tick in 1..=1_000 {
            let now = at(tick * 10);
            if tick % 100 == 0 {
                confirmed.iter().for_each(|name| schedule.set(name, now));
            }
            for taken in schedule.take(now, 1_000, |_| None) {
                if confirmed.contains(&taken) { rest += 1 } else { possible += 1 }
            }
            assert_eq!(schedule.lag(now), Duration::ZERO, "at {now:?}");
        }
        assert!((2_400..=2_600).contains(&possible), "{possible}");
        assert_eq!(rest, 1_000);
        schedule.set(&name(0), at(0));
        assert!(schedule.lag(at(10_000)) > Duration::ZERO, "it has been confirmed");
        schedule.remove(&name(0));
        (1..10_000).for_each(|i| schedule.remove(&name(i)));
        assert!(schedule.possible.is_empty() && schedule.due.len() == 100);
    }

    #[test]
    fn urgent_locks_come_first_but_not_too_often() {
        let mut schedule = Schedule::new(1000, at(0));
        schedule.set(&name(1), at(0));
        schedule.set(&name(2), at(60_000));
        assert!(schedule.prioritize(&name(2)) && schedule.prioritize(&name(2)));
        assert_eq!(schedule.take(at(100), 10, |_| None), [name(2), name(1)]);
        assert!(schedule.prioritize(&name(2)));
        assert_eq!(schedule.take(at(110), 10, |_| Some(at(100))), []);
        assert_eq!(schedule.take(at(340), 10, |_| Some(at(100))), []);
        assert_eq!(schedule.take(at(350), 10, |_| Some(at(100))), [name(2)]);
        // While it is on an open page, it is read more often.
        schedule.set_viewed([name(2)]);
        assert!(schedule.prioritize(&name(2)));
        assert_eq!(schedule.take(at(390), 10, |_| Some(at(350))), []);
        assert_eq!(schedule.take(at(400), 10, |_| Some(at(350))), [name(2)]);
        schedule.set_viewed([]);
        // A reading without a result is no reason to read it sooner.
        assert!(schedule.prioritize(&name(2)));
        assert_eq!(schedule.take(at(640), 10, |_| None), []);
        assert_eq!(schedule.take(at(650), 10, |_| None), [name(2)]);
        schedule.remove(&name(1));
        schedule.take(at(1_650), 10, |_| None);
        assert!(schedule.recent.is_empty() && schedule.recent_order.is_empty());
        let waiting = (0..MAX_URGENT + 10).filter(|i| schedule.prioritize(&name(*i))).count();
        assert_eq!(waiting, MAX_URGENT);
    }

    #[test]
    fn urgent_locks_are_gathered_and_unknown_names_read_rarely() {
        let mut schedule = Schedule::new(1000, at(0));
        (1..=4).for_each(|i| schedule.set(&name(i), at(60_000)));
        schedule.prioritize(&name(1));
        assert_eq!(
            schedule.take(at(1_000), 10, |_| None),
            [name(1)],
            "nothing was read just before"
        );
        schedule.prioritize(&name(2));
        schedule.prioritize(&name(3));
        assert_eq!(schedule.take(at(1_020), 10, |_| None), []);
        schedule.set_viewed([name(4)]);
        schedule.prioritize(&name(4));
        assert_eq!(schedule.take(at(1_040), 10, |_| None), [name(4)], "it is on an open page");
        schedule.set_viewed([]);
        assert_eq!(schedule.take(at(1_100), 1, |_| None), [name(2)]);
        assert_eq!(schedule.take(at(1_100), 1, |_| None), [name(3)], "the same tick's next part");
        schedule.prioritize(&name(9));
        assert_eq!(schedule.take(at(2_000), 10, |_| None), [name(9)]);
        schedule.prioritize(&name(9));
        schedule.prioritize(&name(1));
        assert_eq!(schedule.take(at(2_999), 10, |_| None), [name(1)]);
        assert_eq!(schedule.take(at(3_100), 10, |_| None), [name(9)]);
    }

    #[test]
    fn a_dropped_lock_is_not_read() {
        let mut schedule = Schedule::new(1000, at(0));
        schedule.set(&name(1), at(0));
        schedule.remove(&name(1));
        assert_eq!(schedule.take(at(100), 10, |_| None), []);
    }
}
