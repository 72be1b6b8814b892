//! The schedule of reads of known locks: first those that were just reported or requested, then those on open pages, for
//! at most half of the budget, then those that need close reads, for about a quarter, then confirmed locks by deadline, then
//! possible locks, for at most a quarter.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use redisson::{LockName, Moment};

use super::deadlines::{Deadlines, Due, Locks, Queue};

/// The maximum number of urgent reads in the queue. Further ones are left to their deadlines and the scan.
const MAX_URGENT: usize = 10_000;
/// The maximum number of requested reads in the queue.
const MAX_REQUESTED: usize = 1_000;
/// The interval at which a lock on an open page is read.
const VIEWED_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two reads of a lock on an open page. Otherwise, a lock that constantly changes hands would be
/// read as often as the budget allows.
const MIN_INTERVAL_VIEWED: Duration = Duration::from_millis(50);
/// The minimum time between two reads of any other known lock.
const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// The minimum time between two reads of an unknown name. A channel may belong to two names, and one of them is not a
/// lock.
const MIN_INTERVAL_UNKNOWN: Duration = Duration::from_secs(1);
/// The delay of a lock that is reported just after others were read, unless it is on an open page. Reading many locks
/// together costs the server less than reading each separately.
const GATHER_DELAY: Duration = Duration::from_millis(100);
/// The time between two batches of locks that are read by deadline, so that a call reads many of them.
const DUE_INTERVAL: Duration = Duration::from_millis(50);
/// About the most locks of such a batch, for which other clients of the server wait. At rates that need more, the
/// interval is shorter.
const MAX_DUE: f64 = 128.0;
/// The time after which a read without a reply is requested again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of close reads that a lock gets at a time. At every sixth of a lease, they last for more than two
/// renewals.
const CLOSE_READS: u8 = 9;
/// The budget that can be saved up, so that a busy moment can follow an idle one.
const BURST: Duration = Duration::from_millis(250);

/// The pending reads of one scope.
#[derive(Debug)]
pub struct Schedule {
    rate: f64,
    budget: f64,
    viewed_budget: f64,
    possible_budget: f64,
    /// The number of close reads that are available to further locks.
    close_budget: f64,
    refilled: Moment,
    confirmed: Deadlines,
    close: Deadlines,
    /// The deadlines of possible locks, which do not delay confirmed ones.
    possible: Deadlines,
    /// The earliest deadline of a confirmed lock that had to be postponed, or that has been set since.
    first: Option<Moment>,
    urgent: VecDeque<LockName>,
    is_urgent: HashSet<LockName>,
    /// The urgent locks whose reading was requested.
    is_requested: HashSet<LockName>,
    /// The last read of an urgent lock that is not on an open page.
    last_urgent: Option<Moment>,
    /// The last read of a lock by deadline.
    last_due: Option<Moment>,
    /// The locks on open pages, each with its last request for that reason.
    viewed: VecDeque<(LockName, Option<Moment>)>,
    is_viewed: HashSet<LockName>,
    /// The last requests within [`MIN_INTERVAL_UNKNOWN`]. A reading that a later release has outdated leaves no trace
    /// in its record, and a name that is not a lock has no record.
    recent: HashMap<LockName, Moment>,
    recent_order: VecDeque<(Moment, LockName)>,
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
            close_budget: 0.0,
            refilled: now,
            confirmed: Deadlines::new(Queue::Confirmed),
            close: Deadlines::new(Queue::Close),
            possible: Deadlines::new(Queue::Possible),
            first: None,
            urgent: VecDeque::new(),
            is_urgent: HashSet::new(),
            is_requested: HashSet::new(),
            last_urgent: None,
            last_due: None,
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

    /// Sets the latest time at which a confirmed lock is read.
    pub fn set(&mut self, due: &mut Option<Due>, name: &LockName, at: Moment) {
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
        self.confirmed.set(due, name, at);
    }

    /// Sets the time at which a possible lock is read, which may become later while others are due.
    pub fn set_possible(&mut self, due: &mut Option<Due>, name: &LockName, at: Moment) {
        self.possible.set(due, name, at);
    }

    /// Sets the time for a read of a confirmed lock that needs some readings in quick succession. These few precede
    /// those of other locks, so that they are in time even if there are too many locks. Beyond their share, and after
    /// these few, the lock is treated like the others.
    pub fn set_close(&mut self, due: &mut Option<Due>, name: &LockName, at: Moment) {
        let reads = f64::from(CLOSE_READS);
        match due {
            Some(Due { queue: Queue::Close, close_left: 1.., .. }) => {
                self.move_close(due, name, at);
            }
            Some(Due { queue: Queue::Confirmed, .. }) if self.close_budget >= reads => {
                self.close_budget -= reads;
                self.close.set(due, name, at);
                due.iter_mut().for_each(|due| due.close_left = CLOSE_READS);
            }
            _ => self.set(due, name, at),
        }
    }

    fn move_close(&mut self, due: &mut Option<Due>, name: &LockName, at: Moment) {
        let left = due.map_or(0, |due| due.close_left);
        self.close.set(due, name, at);
        due.iter_mut().for_each(|due| due.close_left = left);
    }

    /// Sets another time for a scheduled read.
    pub fn advance(&mut self, due: &mut Option<Due>, name: &LockName, at: Moment) {
        match due.map(|due| due.queue) {
            Some(Queue::Confirmed) => self.set(due, name, at),
            Some(Queue::Close) => self.move_close(due, name, at),
            Some(Queue::Possible) => self.set_possible(due, name, at),
            None => {}
        }
    }

    /// Moves the lock before all others. Returns false if too many are urgent already.
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

    /// Moves a lock, known or not, whose reading was requested before all others, and reads it as often as one on an
    /// open page. Returns false if too many are requested already.
    pub fn request(&mut self, name: &LockName) -> bool {
        if self.is_requested.len() >= MAX_REQUESTED {
            return self.is_requested.contains(name);
        }
        if self.is_urgent.insert(name.clone()) {
            self.urgent.push_front(name.clone());
        }
        self.is_requested.insert(name.clone());
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
        self.first.map_or(Duration::ZERO, |first| now.since(first))
    }

    /// Returns the time of the next read.
    #[cfg(test)]
    pub fn next(&self, now: Moment) -> Option<Moment> {
        let urgent = (!self.urgent.is_empty()).then_some(now);
        let all = [&self.confirmed, &self.close, &self.possible];
        let first = all.into_iter().filter_map(Deadlines::next);
        urgent.or_else(|| first.min())
    }

    /// Returns the names to read now, at most `most`, and removes them from the schedule.
    pub fn take(&mut self, now: Moment, most: usize, locks: &mut impl Locks) -> Vec<LockName> {
        let passed = now.since(self.refilled).as_secs_f64();
        self.refilled = now;
        let most_saved = self.rate * BURST.as_secs_f64();
        self.budget = (self.budget + self.rate * passed).min(most_saved.max(1.0));
        self.viewed_budget =
            (self.viewed_budget + self.rate / 2.0 * passed).min((most_saved / 2.0).max(1.0));
        self.possible_budget =
            (self.possible_budget + self.rate / 4.0 * passed).min((most_saved / 4.0).max(1.0));
        self.close_budget = (self.close_budget + self.rate / 4.0 * passed)
            .min((most_saved / 4.0).max(f64::from(CLOSE_READS)));
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
        self.take_urgent(now, most, locks, &mut taken);
        self.take_viewed(now, most, locks, &mut taken);
        self.take_due(now, most, locks, &mut taken);
        self.first = self.confirmed.first(now, locks).map(|(_, due)| due);
        taken
    }

    fn take_urgent(
        &mut self,
        now: Moment,
        most: usize,
        locks: &mut impl Locks,
        taken: &mut Vec<LockName>,
    ) {
        // One tick may return many urgent locks in several parts.
        let gathering =
            self.last_urgent.is_some_and(|last| last < now && now.since(last) < GATHER_DELAY);
        for _ in 0..self.urgent.len() {
            if taken.len() >= most || self.budget < 1.0 {
                return;
            }
            let Some(name) = self.urgent.pop_front() else { return };
            let seen = self.is_viewed.contains(&name) || self.is_requested.contains(&name);
            let min_interval = match (seen, locks.due(&name).is_some()) {
                (true, _) => MIN_INTERVAL_VIEWED,
                (false, true) => MIN_INTERVAL,
                (false, false) => MIN_INTERVAL_UNKNOWN,
            };
            let sent = locks.last_sent(&name).max(self.recent.get(&name).copied());
            let just_read = sent.is_some_and(|sent| now.since(sent) < min_interval);
            if just_read || (gathering && !seen) {
                self.urgent.push_back(name);
                continue;
            }
            if !seen {
                self.last_urgent = Some(now);
            }
            self.is_urgent.remove(&name);
            self.is_requested.remove(&name);
            self.record_request(&name, now, locks);
            taken.push(name);
        }
    }

    fn take_viewed(
        &mut self,
        now: Moment,
        most: usize,
        locks: &mut impl Locks,
        taken: &mut Vec<LockName>,
    ) {
        for _ in 0..self.viewed.len() {
            if taken.len() >= most || self.budget < 1.0 || self.viewed_budget < 1.0 {
                return;
            }
            let Some((name, mut last_request)) = self.viewed.pop_front() else { return };
            let newest = locks.last_sent(&name).max(last_request);
            if newest.is_none_or(|at| now.since(at) >= VIEWED_INTERVAL) && !taken.contains(&name) {
                self.viewed_budget -= 1.0;
                self.record_request(&name, now, locks);
                last_request = Some(now);
                taken.push(name.clone());
            }
            self.viewed.push_back((name, last_request));
        }
    }

    fn take_due(
        &mut self,
        now: Moment,
        most: usize,
        locks: &mut impl Locks,
        taken: &mut Vec<LockName>,
    ) {
        let interval = DUE_INTERVAL.min(Duration::from_secs_f64(MAX_DUE / self.rate.max(1.0)));
        // One tick may return many locks in several parts.
        if self.last_due.is_some_and(|last| last < now && now.since(last) < interval) {
            return;
        }
        let before = taken.len();
        while taken.len() < most && self.budget >= 1.0 {
            let Some((name, _)) = self.close.first(now, locks) else { break };
            if let Some(due) = locks.due(&name).and_then(Option::as_mut) {
                due.close_left = due.close_left.saturating_sub(1);
            }
            self.record_request(&name, now, locks);
            taken.push(name);
        }
        while taken.len() < most && self.budget >= 1.0 {
            let Some((name, _)) = self.confirmed.first(now, locks) else { break };
            self.record_request(&name, now, locks);
            taken.push(name);
        }
        while taken.len() < most && self.budget >= 1.0 && self.possible_budget >= 1.0 {
            let Some((name, _)) = self.possible.first(now, locks) else { break };
            self.possible_budget -= 1.0;
            self.record_request(&name, now, locks);
            taken.push(name);
        }
        if taken.len() > before {
            self.last_due = Some(now);
        }
    }

    fn record_request(&mut self, name: &LockName, now: Moment, locks: &mut impl Locks) {
        self.budget -= 1.0;
        self.recent.insert(name.clone(), now);
        self.recent_order.push_back((now, name.clone()));
        if let Some(due) = locks.due(name) {
            self.advance(due, name, now + REPLY_TIMEOUT);
        }
    }
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

    /// A schedule with the locks that it reads.
    struct Reads {
        schedule: Schedule,
        known: Known,
    }

    #[derive(Default)]
    struct Known {
        due: HashMap<LockName, Option<Due>>,
        last_sent: Option<Moment>,
    }

    impl Locks for Known {
        fn due(&mut self, name: &LockName) -> Option<&mut Option<Due>> {
            self.due.get_mut(name)
        }

        fn last_sent(&self, _name: &LockName) -> Option<Moment> {
            self.last_sent
        }
    }

    impl Reads {
        fn new(rate: u32, now: Moment) -> Self {
            Self { schedule: Schedule::new(rate, now), known: Known::default() }
        }

        fn set(&mut self, name: &LockName, at: Moment) {
            self.schedule.set(self.known.due.entry(name.clone()).or_default(), name, at);
        }

        fn set_possible(&mut self, name: &LockName, at: Moment) {
            self.schedule.set_possible(self.known.due.entry(name.clone()).or_default(), name, at);
        }

        fn remove(&mut self, name: &LockName) {
            self.known.due.remove(name);
        }

        fn take(&mut self, now: Moment, most: usize, last_sent: Option<Moment>) -> Vec<LockName> {
            self.known.last_sent = last_sent;
            self.schedule.take(now, most, &mut self.known)
        }
    }

    #[test]
    fn the_longest_due_comes_first_and_only_once() {
        let mut reads = Reads::new(1000, at(0));
        reads.set(&name(1), at(500));
        reads.set(&name(2), at(400));
        reads.set(&name(3), at(9_000));
        assert_eq!(reads.take(at(1000), 10, None), [name(2), name(1)]);
        assert_eq!(reads.take(at(1001), 10, None), []);
        assert_eq!(reads.schedule.lag(at(1001)), Duration::ZERO);
        assert_eq!(
            reads.take(at(5000), 10, None).len(),
            2,
            "without a reply it is requested again"
        );
    }

    #[test]
    fn the_budget_bounds_all_reads_and_open_pages_get_half_of_it() {
        let mut reads = Reads::new(100, at(0));
        for i in 0..1000 {
            reads.set(&name(i), at(0));
        }
        reads.schedule.set_viewed((5000..6000).map(name));
        let (mut viewed, mut rest) = (0, 0);
        for tick in 1..=1000 {
            for taken in reads.take(at(tick * 10), 100, None) {
                match (5000..6000).any(|i| taken == name(i)) {
                    true => viewed += 1,
                    false => rest += 1,
                }
            }
        }
        assert!((950..=1050).contains(&(viewed + rest)), "{viewed} + {rest} in 10 s at 100/s");
        assert!(viewed <= 520 && rest >= 450, "{viewed} {rest}");
        assert!(reads.schedule.lag(at(10_000)) > Duration::from_secs(5));
    }

    #[test]
    fn possible_locks_delay_no_confirmed_lock_and_get_a_quarter_of_the_budget() {
        let mut reads = Reads::new(1_000, at(0));
        // The possible locks have been due for longer.
        (0..10_000).for_each(|i| reads.set_possible(&name(i), at(0)));
        let confirmed: Vec<LockName> = (20_000..20_100).map(name).collect();
        let (mut possible, mut rest) = (0, 0);
        for tick in 1..=1_005 {
            let now = at(tick * 10);
            if tick % 100 == 0 {
                confirmed.iter().for_each(|name| reads.set(name, now));
            }
            for taken in reads.take(now, 1_000, None) {
                if confirmed.contains(&taken) { rest += 1 } else { possible += 1 }
            }
            assert!(reads.schedule.lag(now) < DUE_INTERVAL, "at {now:?}");
        }
        assert!((2_400..=2_600).contains(&possible), "{possible}");
        assert_eq!(rest, 1_000);
        reads.set(&name(0), at(0));
        assert!(reads.schedule.lag(at(10_000)) > Duration::ZERO, "it has been confirmed");
        reads.remove(&name(0));
        (1..10_000).for_each(|i| reads.remove(&name(i)));
        assert_eq!(reads.take(at(20_000), 1_000, None).len(), 100, "only confirmed ones are left");
        assert!(reads.schedule.possible.is_empty());
    }

    #[test]
    fn urgent_locks_come_first_but_not_too_often() {
        let mut reads = Reads::new(1000, at(0));
        reads.set(&name(1), at(0));
        reads.set(&name(2), at(60_000));
        assert!(reads.schedule.prioritize(&name(2)) && reads.schedule.prioritize(&name(2)));
        assert_eq!(reads.take(at(100), 10, None), [name(2), name(1)]);
        assert!(reads.schedule.prioritize(&name(2)));
        assert_eq!(reads.take(at(110), 10, Some(at(100))), []);
        assert_eq!(reads.take(at(340), 10, Some(at(100))), []);
        assert_eq!(reads.take(at(350), 10, Some(at(100))), [name(2)]);
        // While it is on an open page, it is read more often.
        reads.schedule.set_viewed([name(2)]);
        assert!(reads.schedule.prioritize(&name(2)));
        assert_eq!(reads.take(at(390), 10, Some(at(350))), []);
        assert_eq!(reads.take(at(400), 10, Some(at(350))), [name(2)]);
        reads.schedule.set_viewed([]);
        // A reading without a result does not justify reading the lock sooner.
        assert!(reads.schedule.prioritize(&name(2)));
        assert_eq!(reads.take(at(640), 10, None), []);
        assert_eq!(reads.take(at(650), 10, None), [name(2)]);
        reads.remove(&name(1));
        reads.take(at(1_650), 10, None);
        assert!(reads.schedule.recent.is_empty() && reads.schedule.recent_order.is_empty());
        let waiting = (0..MAX_URGENT + 10).filter(|i| reads.schedule.prioritize(&name(*i))).count();
        assert_eq!(waiting, MAX_URGENT);
    }

    #[test]
    fn a_requested_lock_precedes_any_number_of_urgent_ones() {
        let mut reads = Reads::new(1000, at(0));
        (0..MAX_URGENT).for_each(|i| assert!(reads.schedule.prioritize(&name(i))));
        let requested = name(MAX_URGENT);
        assert!(reads.schedule.request(&requested) && reads.schedule.request(&requested));
        assert_eq!(reads.take(at(1_000), 10, None)[0], requested);
        let taken = (0..2 * MAX_REQUESTED).filter(|i| reads.schedule.request(&name(*i))).count();
        assert_eq!(taken, MAX_REQUESTED);
    }

    #[test]
    fn urgent_locks_are_gathered_and_unknown_names_read_rarely() {
        let mut reads = Reads::new(1000, at(0));
        (1..=4).for_each(|i| reads.set(&name(i), at(60_000)));
        reads.schedule.prioritize(&name(1));
        assert_eq!(reads.take(at(1_000), 10, None), [name(1)], "nothing was read just before");
        reads.schedule.prioritize(&name(2));
        reads.schedule.prioritize(&name(3));
        assert_eq!(reads.take(at(1_020), 10, None), []);
        reads.schedule.set_viewed([name(4)]);
        reads.schedule.prioritize(&name(4));
        assert_eq!(reads.take(at(1_040), 10, None), [name(4)], "it is on an open page");
        reads.schedule.set_viewed([]);
        assert_eq!(reads.take(at(1_100), 1, None), [name(2)]);
        assert_eq!(reads.take(at(1_100), 1, None), [name(3)], "the same tick's next part");
        reads.schedule.prioritize(&name(9));
        assert_eq!(reads.take(at(2_000), 10, None), [name(9)]);
        reads.schedule.prioritize(&name(9));
        reads.schedule.prioritize(&name(1));
        assert_eq!(reads.take(at(2_999), 10, None), [name(1)]);
        assert_eq!(reads.take(at(3_100), 10, None), [name(9)]);
        reads.schedule.prioritize(&name(9));
        assert_eq!(reads.take(at(3_200), 10, None), []);
        reads.schedule.request(&name(9));
        assert_eq!(reads.take(at(3_220), 10, None), [name(9)], "a request waits for it");
        reads.schedule.prioritize(&name(9));
        assert_eq!(reads.take(at(3_400), 10, None), [], "no request waits any more");
    }

    #[test]
    fn locks_due_by_deadline_are_gathered_unless_there_are_many() {
        let mut reads = Reads::new(1_000, at(0));
        reads.set(&name(1), at(1_000));
        reads.set(&name(2), at(1_001));
        reads.set(&name(3), at(1_040));
        assert_eq!(reads.take(at(1_000), 10, None), [name(1)], "nothing was read just before");
        assert_eq!(reads.take(at(1_040), 10, None), []);
        reads.schedule.prioritize(&name(2));
        assert_eq!(reads.take(at(1_041), 10, None), [name(2)], "it is urgent");
        reads.set(&name(2), at(1_050));
        assert_eq!(reads.take(at(1_050), 1, None), [name(3)]);
        assert_eq!(reads.take(at(1_050), 1, None), [name(2)], "the same tick's next part");
        reads.schedule.set_rate(100_000);
        reads.set(&name(4), at(1_060));
        assert_eq!(reads.take(at(1_060), 10, None), [name(4)]);
    }

    #[test]
    fn a_dropped_lock_is_not_read() {
        let mut reads = Reads::new(1000, at(0));
        reads.set(&name(1), at(0));
        reads.remove(&name(1));
        assert_eq!(reads.take(at(100), 10, None), []);
    }
}
