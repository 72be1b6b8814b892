//! The waiters of one lock.
//!
//! Entries of a fair lock's queue, agents and observed attempts name their waiters. Subscribers of a lock's channel are
//! only counted, and one of them may represent many threads.

use std::time::Duration;

use redisson::{ClientId, HolderId, Moment};

use crate::clock::{SteadyMillis, Time};
use crate::model::types::{Queue, Since, Source, Stamp, SubscriberCount};

/// The maximum number of waiters of one lock that are known by name.
const MAX_WAITERS: usize = 128;
/// The maximum number of agents whose waiters for one lock are known.
const MAX_AGENTS: usize = 256;
/// The time within which a waiter that was dropped from the queue returns if it is still waiting: once its deadline has
/// passed, it needs another attempt to queue again.
const RETURN_WINDOW: Duration = Duration::from_secs(5);
/// The time within which a waiter that does not listen for the release tries again, like that of a spin lock. A client
/// that tries less often does not wait in between.
const RETRY_WINDOW: Duration = Duration::from_secs(2);
/// The largest uncertainty at which a wait's beginning counts as exact.
const EXACT: Duration = Duration::from_secs(1);

/// A waiter known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    pub id: HolderId,
    /// The beginning for display.
    pub since: Since,
    /// The latest instant at which the wait can have begun.
    pub from: Moment,
    /// The last instant at which the waiter was seen waiting.
    pub seen: Moment,
    /// The number of attempts seen so far, or `None` if attempts cannot be seen.
    pub attempts: Option<u32>,
    pub source: Source,
    /// The instant from which the waiter counts as having given up unless it is seen again, or `None` as long as its
    /// queue entry lasts.
    pub until: Option<Moment>,
    /// True if the deadline of its entry has passed: it is dead, or has to queue again.
    pub overdue: bool,
    /// True if its client is gone, so that nobody will claim its turn.
    pub gone: bool,
    /// True if it waits now. Otherwise it is retained in case it returns.
    pub present: bool,
}

impl Waiter {
    /// Returns whether it still waits, as far as observed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.present && !self.overdue && !self.gone
    }
}

/// Returns whether the waiter has waited for this hold. An agent does not publish the side for which its waiters wait,
/// and the owner of the write side never waits for the read side.
#[must_use]
pub fn is_granted(waiter: &HolderId, hold: &HolderId) -> bool {
    waiter == hold || HolderId { write: true, ..*waiter } == *hold
}

/// Subscribers of the lock's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribers {
    pub count: SubscriberCount,
    /// The instant since which there has been at least one.
    pub since: Time,
}

/// Waiters at one agent, as it publishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AtAgent {
    agent: ClientId,
    count: u64,
}

/// All waiters of one lock.
#[derive(Debug, Default)]
pub struct Waiting {
    /// The fair lock's queue as last read.
    pub queue: Option<Queue>,
    waiters: Vec<Waiter>,
    pub subscribers: Option<Subscribers>,
    /// The instant of the latest count of the subscribers.
    counted: Option<Moment>,
    /// The instant of the latest count that was not zero.
    listened: Option<Moment>,
    agents: Vec<AtAgent>,
    /// The waiters that have left or stopped retrying, until they are taken.
    given_up: Vec<Waiter>,
}

impl Waiting {
    /// Returns the present waiters, the longest wait first.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| waiter.present)
    }

    /// Returns whether no waiter is known, so that this value can be dropped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_none()
            && self.waiters.is_empty()
            && self.subscribers.is_none()
            && self.agents.is_empty()
    }

    /// Returns whether a waiter is known.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.len > 0)
            || self.subscribers.is_some()
            || !self.agents.is_empty()
            || self.waiters().next().is_some()
    }

    /// Returns the minimum number of waiters. `held_since` returns the instant since which a client holds the lock, if it
    /// does: an agent does not listen for a lock that it holds.
    #[must_use]
    pub fn at_least(&self, held_since: impl Fn(&ClientId) -> Option<Moment>) -> u64 {
        // At the latest count, an agent that has held the lock for less time may still have listened.
        let listens =
            |agent: &ClientId| held_since(agent).is_none_or(|at| Some(at) >= self.counted);
        let known = self.at_agents().saturating_add(self.elsewhere(listens));
        match &self.queue {
            // Only the first waiters of a long queue are known by name.
            Some(queue) if !queue.is_fully_read() => {
                known.max(queue.len.saturating_sub(queue.passed))
            }
            _ => known,
        }
    }

    /// Returns the agents that have published waiters.
    pub fn agents(&self) -> impl Iterator<Item = ClientId> {
        self.agents.iter().map(|at| at.agent)
    }

    /// Returns the number of waiters that agents have published.
    fn at_agents(&self) -> u64 {
        self.agents.iter().fold(0, |sum, at| at.count.saturating_add(sum))
    }

    /// Returns the minimum number of waiters that are not at one of these agents. An agent that listens does so once for all
    /// of its waiters.
    fn elsewhere(&self, listens: impl Fn(&ClientId) -> bool) -> u64 {
        let elsewhere = |waiter: &&Waiter| {
            waiter.is_live() && !self.agents.iter().any(|at| at.agent == waiter.id.client)
        };
        let named = u64::try_from(self.waiters().filter(elsewhere).count()).unwrap_or(u64::MAX);
        let agents = self.agents.iter().filter(|at| listens(&at.agent)).count();
        let agents = u64::try_from(agents).unwrap_or(u64::MAX);
        let listening = self.subscribers.map_or(0, |subscribers| subscribers.count.without(agents));
        named.max(listening)
    }

    /// Returns whether [`Self::at_least`] is the number of waiters: each is in the queue, or at an agent that publishes it.
    /// `holds` returns whether a client holds the lock.
    #[must_use]
    pub fn is_exact(&self, holds: impl Fn(&ClientId) -> bool) -> bool {
        match &self.queue {
            Some(queue) => queue.is_fully_read(),
            None => {
                let counted = self.counted.is_some() && !self.agents.is_empty();
                counted && self.elsewhere(|agent| !holds(agent)) == 0
            }
        }
    }

    /// Applies the waiters at an agent: their number, and the first ones with the beginnings of their waits. Returns true if
    /// anything changed.
    pub fn agent(
        &mut self,
        agent: ClientId,
        count: u64,
        first: &[(HolderId, SteadyMillis)],
        at: Time,
    ) -> bool {
        let before = (self.at_agents(), self.waiters.len());
        let known = self.agents.iter().position(|at| at.agent == agent);
        match known {
            Some(index) if count == 0 => drop(self.agents.swap_remove(index)),
            Some(index) => self.agents[index].count = count,
            None if count > 0 && self.agents.len() < MAX_AGENTS => {
                self.agents.push(AtAgent { agent, count });
            }
            None => {}
        }
        let listed = |id: &HolderId| first.iter().any(|(listed, _)| listed == id);
        self.waiters.retain(|waiter| {
            waiter.source != Source::Identity || waiter.id.client != agent || listed(&waiter.id)
        });
        let mut changed = before.0 != self.at_agents() || before.1 != self.waiters.len();
        for (id, since) in first {
            if let Some(known) = self.waiters.iter_mut().find(|waiter| waiter.id == *id) {
                known.seen = known.seen.max(at.moment());
                continue;
            }
            changed |= self.add(Waiter {
                id: *id,
                since: Since { at: *since, exact: true },
                from: at.back_to(*since).moment(),
                seen: at.moment(),
                attempts: None,
                source: Source::Identity,
                until: None,
                overdue: false,
                gone: false,
                present: true,
            });
        }
        changed
    }

    /// Applies a reading of the queue. `clock` is the server's clock in milliseconds since 1970, and `window` the time
    /// since the last reading, if any. Returns true if anything changed.
    pub fn read_queue(
        &mut self,
        stamp: Stamp,
        window: Option<Duration>,
        clock: u64,
        queue: Option<&Queue>,
    ) -> bool {
        let mut changed = self.queue.as_ref() != queue;
        self.queue = queue.cloned();
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.source == Source::Poll) {
            waiter.present = false;
        }
        for entry in queue.iter().flat_map(|queue| &queue.front) {
            let overdue = entry.deadline.is_some_and(|deadline| deadline <= clock);
            if let Some(known) = self.waiters.iter_mut().find(|waiter| waiter.id == entry.id) {
                changed |= known.overdue != overdue;
                // The waiter's queue entry shows more than its attempts do.
                (known.source, known.until) = (Source::Poll, None);
                (known.seen, known.present, known.overdue) =
                    (stamp.received.moment(), true, overdue);
                continue;
            }
            let exact = window.is_some_and(|window| window <= EXACT);
            changed |= self.add(Waiter {
                id: entry.id,
                since: Since { at: stamp.steady(), exact },
                from: stamp.received.moment(),
                seen: stamp.received.moment(),
                attempts: None,
                source: Source::Poll,
                until: None,
                overdue,
                gone: false,
                present: true,
            });
        }
        let before = self.waiters.len();
        let gone = self.waiters.extract_if(.., |waiter| {
            let stays = waiter.present
                || matches!(waiter.source, Source::Monitor | Source::Identity)
                || stamp.received.since(waiter.seen) <= RETURN_WINDOW;
            !stays
        });
        self.given_up.extend(gone);
        changed || self.waiters.len() != before
    }

    /// Updates which clients of queued waiters are gone. Returns true if anything changed.
    pub fn update_gone(&mut self, is_gone: impl Fn(&ClientId) -> bool) -> bool {
        let mut changed = false;
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.source == Source::Poll) {
            let gone = is_gone(&waiter.id.client);
            changed |= waiter.gone != gone;
            waiter.gone = gone;
        }
        changed
    }

    /// Returns the first waiter of the queue, if nobody will claim its turn.
    #[must_use]
    pub fn dead_head(&self) -> Option<Waiter> {
        let head = self.queue.as_ref()?.front.first()?;
        self.waiters().find(|waiter| waiter.id == head.id && !waiter.is_live()).copied()
    }

    /// Applies an attempt to acquire the lock or to queue. Its client sleeps until `until` at the latest. It counts as
    /// a waiter from the second attempt, since the first may be the only one. `first` is true if an earlier attempt of
    /// the same wait would have been seen. Returns true if anything changed.
    pub fn attempt(&mut self, id: HolderId, at: Time, first: bool, until: Option<Moment>) -> bool {
        let since = Since { at: at.steady(), exact: first };
        let at = at.moment();
        let unheard = self.subscribers.is_none();
        self.waiters.retain(|waiter| {
            let tried_once = waiter.source == Source::Monitor && !waiter.present;
            waiter.id != id || !tried_once || !unheard || at.since(waiter.seen) <= RETRY_WINDOW
        });
        if let Some(known) = self.waiters.iter_mut().find(|waiter| waiter.id == id) {
            known.attempts = Some(known.attempts.unwrap_or(0).saturating_add(1));
            known.seen = known.seen.max(at);
            if known.source == Source::Monitor {
                known.until = until.or(known.until);
                known.present = true;
            }
            return true;
        }
        self.add(Waiter {
            id,
            since,
            from: at,
            seen: at,
            attempts: Some(1),
            source: Source::Monitor,
            until: Some(until.unwrap_or(at + RETURN_WINDOW)),
            overdue: false,
            gone: false,
            present: false,
        });
        false
    }

    /// Returns the instant of a waiter's latest attempt that was seen.
    #[must_use]
    pub fn last_attempt(&self, id: &HolderId) -> Option<Moment> {
        let waiter = self.waiters.iter().find(|waiter| waiter.id == *id)?;
        waiter.attempts.map(|_| waiter.seen)
    }

    /// Drops waiters that should have retried by now. Returns true if anything changed.
    pub fn expire(&mut self, now: Moment) -> bool {
        let silent = |waiter: &mut Waiter| waiter.until.is_some_and(|until| now > until);
        let gone: Vec<Waiter> = self.waiters.extract_if(.., silent).collect();
        let changed = gone.iter().any(|waiter| waiter.present);
        self.given_up.extend(gone.into_iter().filter(|waiter| waiter.present));
        changed
    }

    /// Takes the waiters that have left or stopped retrying since the last call.
    pub fn take_given_up(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.given_up)
    }

    /// Drops waiters that only this source has shown. Returns true if anything changed.
    pub fn remove_source(&mut self, source: Source) -> bool {
        let before = self.waiters().count();
        self.waiters.retain(|waiter| waiter.source != source);
        self.waiters().count() != before
    }

    /// Adds a waiter in its place by the beginning of its wait. If there are too many, the oldest single attempt makes room, else
    /// the shortest wait is left out. Returns true if anything changed.
    fn add(&mut self, waiter: Waiter) -> bool {
        let tried_once = |known: &Waiter| known.source == Source::Monitor && !known.present;
        if self.waiters.len() >= MAX_WAITERS
            && let Some(oldest) = self.waiters.iter().position(tried_once)
        {
            self.waiters.remove(oldest);
        }
        let place = self.waiters.partition_point(|known| known.from <= waiter.from);
        if place >= MAX_WAITERS {
            return false;
        }
        self.waiters.truncate(MAX_WAITERS - 1);
        self.waiters.insert(place, waiter);
        true
    }

    /// Ends the waits of these ids, which hold the lock or have left. Returns those that had waited.
    pub fn remove(&mut self, ids: &[HolderId]) -> Vec<Waiter> {
        // A holder that is still in the queue has just been granted the lock, or reenters it.
        let mut gone: Vec<Waiter> = self
            .waiters
            .extract_if(.., |waiter| ids.iter().any(|id| is_granted(&waiter.id, id)))
            .collect();
        // A first attempt that succeeded is not a wait.
        gone.retain(|waiter| waiter.present || waiter.source == Source::Poll);
        gone
    }

    /// Returns the latest sign that a waiter still listens, and the time for which it may have stopped waiting
    /// unnoticed, since only its attempts have shown it.
    #[must_use]
    pub fn signs_of(&self, waiter: &Waiter) -> (Option<Moment>, Option<Duration>) {
        match waiter.source {
            Source::Monitor if self.counted.is_some() => (self.listened, Some(Duration::MAX)),
            Source::Monitor => (None, Some(RETRY_WINDOW)),
            _ => (None, None),
        }
    }

    /// Returns the clients of waiters that only their attempts have shown.
    pub fn attempting_clients(&self) -> impl Iterator<Item = ClientId> {
        let waiters = self.waiters().filter(|waiter| waiter.source == Source::Monitor);
        waiters.map(|waiter| waiter.id.client)
    }

    /// Ends the waits of those threads that only their attempts have shown, and that have waited until now. Returns them.
    pub fn stop(&mut self, is_over: impl Fn(&HolderId) -> bool, at: Time) -> Vec<Waiter> {
        let over = self.waiters.extract_if(.., |waiter| {
            waiter.source == Source::Monitor && waiter.present && is_over(&waiter.id)
        });
        over.map(|waiter| Waiter { seen: at.moment(), ..waiter }).collect()
    }

    /// Forgets the subscribers, whose number is unknown.
    pub fn forget_subscribers(&mut self) {
        (self.subscribers, self.counted, self.listened) = (None, None, None);
    }

    /// Applies a count of the channel's subscribers. If there are none, waiters that only their attempts have shown are
    /// gone unless they keep trying. Returns true if anything changed.
    pub fn count(&mut self, count: SubscriberCount, at: Time) -> bool {
        let known = self.counted.replace(at.moment()).is_some();
        let before = self.subscribers.map(|subscribers| subscribers.count).unwrap_or_default();
        self.listened = (count.sum() > 0).then(|| at.moment()).or(self.listened);
        if count.sum() == 0 {
            let over = self.waiters.extract_if(.., |waiter| {
                waiter.source == Source::Monitor && at.moment().since(waiter.seen) > RETRY_WINDOW
            });
            self.given_up.extend(over.filter(|waiter| waiter.present));
        }
        self.subscribers = (count.sum() > 0).then(|| Subscribers {
            count,
            since: self.subscribers.map_or(at, |subscribers| subscribers.since),
        });
        !known || before != count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::QueueEntry;

    fn id(thread: i64) -> HolderId {
        HolderId::new(ClientId::from_random([7; 16]), thread)
    }

    fn stamp(ms: u64) -> Stamp {
        let received = Time::of_test(ms, 0);
        Stamp { sent: received.moment(), received }
    }

    fn queue(entries: &[(i64, u64)]) -> Queue {
        let entry = |(thread, deadline): &(i64, u64)| QueueEntry {
            id: id(*thread),
            deadline: Some(*deadline),
        };
        Queue {
            len: entries.len() as u64,
            front: entries.iter().map(entry).collect(),
            ..Queue::default()
        }
    }

    #[test]
    fn a_waiter_that_soon_returns_to_the_queue_has_waited_all_along() {
        let mut waiting = Waiting::default();
        let read = |waiting: &mut Waiting, ms, entries: &[(i64, u64)]| {
            waiting.read_queue(
                stamp(ms),
                Some(Duration::from_millis(500)),
                ms,
                Some(&queue(entries)),
            )
        };
        assert!(read(&mut waiting, 1_000, &[(1, 9_000), (2, 10_000)]));
        assert!(!read(&mut waiting, 2_000, &[(1, 9_000), (2, 10_000)]));
        assert!(read(&mut waiting, 9_500, &[(1, 9_000), (2, 10_000)]), "one is overdue");
        assert_eq!(waiting.waiters().filter(|waiter| waiter.is_live()).count(), 1);
        read(&mut waiting, 10_000, &[(2, 10_500)]);
        read(&mut waiting, 12_000, &[(2, 40_000), (1, 50_000)]);
        let one = waiting.waiters().find(|waiter| waiter.id == id(1)).unwrap();
        assert_eq!((one.since.at, one.is_live()), (SteadyMillis(1_000), true));
        read(&mut waiting, 13_000, &[(2, 40_000)]);
        read(&mut waiting, 20_000, &[(2, 40_000)]);
        read(&mut waiting, 21_000, &[(2, 40_000), (1, 50_000)]);
        let one = waiting.waiters().find(|waiter| waiter.id == id(1)).unwrap();
        assert_eq!(one.since.at, SteadyMillis(21_000), "it had left for good");
        assert_eq!(waiting.remove(&[id(2)]).len(), 1);
        assert_eq!(waiting.waiters().count(), 1);
        let left: Vec<_> = waiting.take_given_up().iter().map(|waiter| waiter.id).collect();
        assert_eq!(left, [id(1)]);
    }

    #[test]
    fn a_second_attempt_makes_a_waiter_until_attempts_stop() {
        let mut waiting = Waiting::default();
        let at = |ms: u64| Moment::from_micros(ms * 1000);
        let mut tries = |ms: u64, thread| {
            waiting.attempt(id(thread), Time::of_test(ms, 0), true, Some(at(ms + 9_000)));
            waiting.waiters().map(|waiter| waiter.id.thread).collect::<Vec<_>>()
        };
        assert!(tries(1_000, 1).is_empty());
        assert_eq!(tries(1_001, 1), [1]);
        assert_eq!(tries(2_000, 2), [1]);
        assert_eq!(tries(9_000, 1), [1]);
        assert!(!waiting.expire(at(11_500)), "only one attempt is forgotten without news");
        let one = *waiting.waiters().next().unwrap();
        assert_eq!((one.since.at, one.attempts), (SteadyMillis(1_000), Some(3)));
        assert!(waiting.expire(at(18_001)) && waiting.is_empty());
    }

    #[test]
    fn waiters_are_bounded() {
        let mut waiting = Waiting::default();
        let entries: Vec<_> = (0..1_000).map(|thread| (thread, 9_000)).collect();
        waiting.read_queue(stamp(1), None, 1, Some(&queue(&entries)));
        assert_eq!(waiting.waiters().count(), MAX_WAITERS);
        assert_eq!(waiting.waiters().next().unwrap().id, id(0));
        assert!(!waiting.read_queue(stamp(2), None, 1, Some(&queue(&entries))));
        assert_eq!(waiting.waiters().count(), MAX_WAITERS);
    }

    #[test]
    fn single_attempts_leave_room_for_waiters() {
        let mut waiting = Waiting::default();
        let most = MAX_WAITERS as i64;
        for thread in 0..2 * most {
            waiting.attempt(id(thread), Time::of_test(1_000, 0), true, None);
        }
        waiting.read_queue(stamp(2_000), None, 2_000, Some(&queue(&[(-1, 9_000)])));
        for ms in [3_000, 3_001] {
            waiting.attempt(id(2 * most), Time::of_test(ms, 0), true, None);
        }
        let threads: Vec<i64> = waiting.waiters().map(|waiter| waiter.id.thread).collect();
        assert_eq!((threads, waiting.waiters.len()), (vec![-1, 2 * most], MAX_WAITERS));
        let entries: Vec<_> = (0..most).map(|thread| (thread, 9_000)).collect();
        waiting.read_queue(stamp(4_000), None, 4_000, Some(&queue(&entries)));
        assert!(!waiting.attempt(id(-7), Time::of_test(5_000, 0), true, None));
        assert_eq!(waiting.waiters.len(), MAX_WAITERS);
    }

    #[test]
    fn the_longest_waits_come_first_and_are_retained() {
        let mut waiting = Waiting::default();
        let agent = ClientId::from_random([1; 16]);
        let at = |ms| Time::of_test(ms, 0);
        for ms in [5_000, 5_001] {
            waiting.attempt(id(1), at(ms), true, None);
        }
        let older = (HolderId::new(agent, 2), SteadyMillis(3_000));
        assert!(waiting.agent(agent, 1, &[older], at(6_000)));
        let threads = |waiting: &Waiting| -> Vec<i64> {
            waiting.waiters().map(|waiter| waiter.id.thread).collect()
        };
        assert_eq!(threads(&waiting), [2, 1]);
        let entries: Vec<_> = (100..100 + MAX_WAITERS as i64).map(|n| (n, 90_000)).collect();
        waiting.read_queue(stamp(7_000), None, 7_000, Some(&queue(&entries)));
        let shown = threads(&waiting);
        assert_eq!((shown.len(), &shown[..3]), (MAX_WAITERS, &[2, 1, 100][..]));
        let oldest = (HolderId::new(agent, 3), SteadyMillis(1_000));
        assert!(waiting.agent(agent, 2, &[older, oldest], at(8_000)));
        let shown = threads(&waiting);
        assert_eq!((shown.len(), &shown[..3]), (MAX_WAITERS, &[3, 2, 1][..]));
    }

    #[test]
    fn waiters_at_agents_are_counted_exactly() {
        let mut waiting = Waiting::default();
        let at = Time::of_test(9_000, 0);
        let agent = |n: u8| ClientId::from_random([n; 16]);
        let tell = |waiting: &mut Waiting, n: u8, count: u64, first: &[i64]| {
            let first: Vec<_> = first
                .iter()
                .map(|number| (HolderId::new(agent(n), *number), SteadyMillis(5_000)))
                .collect();
            waiting.agent(agent(n), count, &first, at)
        };
        let counts = |waiting: &Waiting| (waiting.at_least(|_| None), waiting.is_exact(|_| false));
        assert!(tell(&mut waiting, 1, 10, &[1, 2]));
        assert_eq!(counts(&waiting), (10, false), "others may listen");
        assert!(waiting.count(0.into(), at));
        assert_eq!(counts(&waiting), (10, true));
        let one = *waiting.waiters().next().unwrap();
        assert_eq!((one.since.at, one.from), (SteadyMillis(5_000), Moment::from_micros(5_000_000)));
        assert!(!tell(&mut waiting, 1, 10, &[1, 2]), "nothing new");
        // The first subscriber is the agent's connection, and the others belong to other clients.
        waiting.count(1.into(), at);
        assert_eq!(counts(&waiting), (10, true));
        waiting.count(3.into(), at);
        assert_eq!(counts(&waiting), (12, false));
        tell(&mut waiting, 2, 5, &[7]);
        assert_eq!(counts(&waiting), (16, false));
        waiting.count(2.into(), at);
        assert_eq!(counts(&waiting), (15, true));
        // An agent that holds the lock does not listen, so one of the two subscribers is another client.
        let held_since = |ms: u64| {
            let since =
                move |id: &ClientId| (*id == agent(1)).then(|| Moment::from_micros(ms * 1_000));
            (waiting.at_least(since), waiting.is_exact(|id| since(id).is_some()))
        };
        assert_eq!(held_since(8_999), (16, false));
        assert_eq!(held_since(9_000), (15, false), "it may have listened when they were counted");
        // In a cluster an agent subscribes to both channels.
        waiting.count(SubscriberCount { plain: 2, sharded: 2 }, at);
        assert_eq!(counts(&waiting), (15, true));
        waiting.count(SubscriberCount { plain: 2, sharded: 3 }, at);
        assert_eq!(counts(&waiting), (16, false));
        waiting.count(2.into(), at);
        // MONITOR shows a thread that does not use an agent.
        for _ in 0..2 {
            waiting.attempt(id(4), at, true, None);
        }
        assert_eq!(counts(&waiting), (16, false));
        waiting.remove_source(Source::Monitor);
        assert!(tell(&mut waiting, 1, 0, &[]) && tell(&mut waiting, 2, 0, &[]));
        waiting.count(0.into(), at);
        assert!(waiting.is_empty());
        for n in 0..=255 {
            tell(&mut waiting, n, u64::MAX, &[0, 1, 2, 3]);
        }
        assert!(waiting.waiters().count() <= MAX_WAITERS && counts(&waiting).0 == u64::MAX);
    }

    #[test]
    fn subscribers_have_waited_since_the_first_of_them() {
        let mut waiting = Waiting::default();
        let at = |ms: u64| Time::of_test(ms, 0);
        assert!(waiting.count(2.into(), at(1)));
        assert!(waiting.count(1.into(), at(5)));
        assert_eq!(waiting.subscribers.unwrap().since, at(1));
        assert!(waiting.count(0.into(), at(6)) && waiting.is_empty());
    }
}
