//! Who waits for a lock, and since when.
//!
//! Places in a fair lock's queue and attempts that were seen name their waiters; subscribers of its channel are
//! only counted, and one of them may stand for many threads.

use std::time::Duration;

use redisson::{HolderId, Moment};

use crate::clock::SteadyMillis;
use crate::model::types::{Queue, Since, Source, Stamp};

/// The most waiters that are known by name for one lock.
const MAX_WAITERS: usize = 128;
/// A waiter whose place was dropped since its deadline passed takes another one with its next attempt. One that is
/// back within this has waited all the time.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// A waiter's beginning is exact when it is known within this.
const EXACT: Duration = Duration::from_secs(1);

/// Somebody who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    pub id: HolderId,
    /// Since when, as shown.
    pub since: Since,
    /// Since when, no earlier.
    pub from: Moment,
    /// When it was last seen to wait.
    pub seen: Moment,
    /// How often it was seen to try; none where its attempts cannot be seen.
    pub attempts: Option<u32>,
    /// Which source told of it.
    pub source: Source,
    /// When it is taken to have given up unless it is seen again; none: while its place lasts.
    pub until: Option<Moment>,
    /// Whether its place's deadline has passed: it is dead, or will have to queue anew.
    pub overdue: bool,
    /// Whether it is there now, and not only remembered in case it comes back.
    pub there: bool,
}

impl Waiter {
    /// Whether it surely waits still, as far as can be seen.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.there && !self.overdue
    }
}

/// Subscribers of the lock's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribers {
    /// How many connections.
    pub count: u64,
    /// Since when there has been at least one.
    pub since: (Moment, SteadyMillis),
    /// When they were counted last.
    pub at: Moment,
}

/// Everybody who waits for one lock.
#[derive(Debug, Default)]
pub struct Waiting {
    /// The fair lock's queue as last read.
    pub queue: Option<Queue>,
    waiters: Vec<Waiter>,
    /// Subscribers, where there are any.
    pub subscribers: Option<Subscribers>,
    /// Those who have left or fallen silent, until somebody asks.
    given_up: Vec<Waiter>,
}

impl Waiting {
    /// Those that are there, those longest first.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| waiter.there)
    }

    /// Whether nothing is known of any waiter, so that this need not be kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_none() && self.waiters.is_empty() && self.subscribers.is_none()
    }

    /// Whether somebody waits, as far as is known.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.len > 0)
            || self.subscribers.is_some()
            || self.waiters().next().is_some()
    }

    /// How many wait at least.
    #[must_use]
    pub fn at_least(&self) -> u64 {
        let named = self.waiters().filter(|waiter| waiter.is_live()).count();
        let listening = self.subscribers.map_or(0, |subscribers| subscribers.count);
        let known = u64::try_from(named).unwrap_or(u64::MAX).max(listening);
        match &self.queue {
            // Only the first of a long queue are known by name.
            Some(queue) if !queue.is_whole() => known.max(queue.len.saturating_sub(queue.passed)),
            _ => known,
        }
    }

    /// The lock's queue was read. `clock` is the server's, in epoch milliseconds; `window` the time since it was
    /// last read, where it was. True when that is news.
    pub fn read_queue(
        &mut self,
        stamp: Stamp,
        window: Option<Duration>,
        clock: u64,
        queue: Option<&Queue>,
    ) -> bool {
        let mut dirty = self.queue.as_ref() != queue;
        self.queue = queue.cloned();
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.source == Source::Poll) {
            waiter.there = false;
        }
        for place in queue.iter().flat_map(|queue| &queue.front) {
            let overdue = place.deadline.is_some_and(|deadline| deadline <= clock);
            if let Some(known) = self.waiters.iter_mut().find(|waiter| waiter.id == place.id) {
                dirty |= known.overdue != overdue;
                // Its place tells more than its attempts do.
                (known.source, known.until) = (Source::Poll, None);
                (known.seen, known.there, known.overdue) = (stamp.received, true, overdue);
                continue;
            }
            dirty = true;
            let exact = window.is_some_and(|window| window <= EXACT);
            self.add(Waiter {
                id: place.id,
                since: Since { at: stamp.steady, exact },
                from: stamp.received,
                seen: stamp.received,
                attempts: None,
                source: Source::Poll,
                until: None,
                overdue,
                there: true,
            });
        }
        let before = self.waiters.len();
        let gone = self.waiters.extract_if(.., |waiter| {
            let stays = waiter.there
                || waiter.source == Source::Monitor
                || stamp.received.since(waiter.seen) <= BACK_WITHIN;
            !stays
        });
        self.given_up.extend(gone);
        dirty || self.waiters.len() != before
    }

    /// Somebody was seen to try, or to queue, and sleeps until then at the longest. Whoever tries a second time waits:
    /// a first attempt may be all. True when that is news.
    pub fn attempt(
        &mut self,
        id: HolderId,
        at: Moment,
        steady: SteadyMillis,
        until: Option<Moment>,
    ) -> bool {
        if let Some(known) = self.waiters.iter_mut().find(|waiter| waiter.id == id) {
            known.attempts = Some(known.attempts.unwrap_or(0).saturating_add(1));
            known.seen = known.seen.max(at);
            if known.source == Source::Monitor {
                known.until = until.or(known.until);
                known.there = true;
            }
            return true;
        }
        self.add(Waiter {
            id,
            since: Since { at: steady, exact: true },
            from: at,
            seen: at,
            attempts: Some(1),
            source: Source::Monitor,
            until: Some(until.unwrap_or(at + BACK_WITHIN)),
            overdue: false,
            there: false,
        });
        false
    }

    /// Drops those who should have tried again by now. True when that is news.
    pub fn expire(&mut self, now: Moment) -> bool {
        let silent = |waiter: &mut Waiter| waiter.until.is_some_and(|until| now > until);
        let gone: Vec<Waiter> = self.waiters.extract_if(.., silent).collect();
        let dirty = gone.iter().any(|waiter| waiter.there);
        self.given_up.extend(gone.into_iter().filter(|waiter| waiter.there));
        dirty
    }

    /// Those who have left or fallen silent since the last call.
    pub fn take_given_up(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.given_up)
    }

    /// Drops those that only this source told of. True when that is news.
    pub fn forget(&mut self, source: Source) -> bool {
        let before = self.waiters().count();
        self.waiters.retain(|waiter| waiter.source != source);
        self.waiters().count() != before
    }

    fn add(&mut self, waiter: Waiter) {
        if self.waiters.len() >= MAX_WAITERS {
            // Who waits longest matters most.
            self.waiters.pop();
        }
        self.waiters.push(waiter);
    }

    /// These hold the lock, or have left: they wait no more. Tells who of them waited until now.
    pub fn remove(&mut self, ids: &[HolderId]) -> Vec<Waiter> {
        // Whoever stands in the queue although it holds the lock has just been granted it, or asks once more.
        let mut gone: Vec<Waiter> =
            self.waiters.extract_if(.., |waiter| ids.contains(&waiter.id)).collect();
        // A first attempt that had success is no wait.
        gone.retain(|waiter| waiter.there || waiter.source == Source::Poll);
        gone
    }

    /// The channel's subscribers were counted. True when that is news.
    pub fn count(&mut self, count: u64, at: Moment, steady: SteadyMillis) -> bool {
        let before = self.subscribers.map_or(0, |subscribers| subscribers.count);
        self.subscribers = (count > 0).then(|| Subscribers {
            count,
            since: self.subscribers.map_or((at, steady), |subscribers| subscribers.since),
            at,
        });
        before != count
    }
}

#[cfg(test)]
mod tests {
    use redisson::ClientId;

    use super::*;
    use crate::model::types::QueueEntry;

    fn id(thread: i64) -> HolderId {
        HolderId::new(ClientId::from_random([7; 16]), thread)
    }

    fn stamp(ms: u64) -> Stamp {
        let at = Moment::from_micros(ms * 1000);
        Stamp { sent: at, received: at, steady: SteadyMillis(ms) }
    }

    fn queue(places: &[(i64, u64)]) -> Queue {
        let place = |(thread, deadline): &(i64, u64)| QueueEntry {
            id: id(*thread),
            deadline: Some(*deadline),
        };
        Queue {
            len: places.len() as u64,
            front: places.iter().map(place).collect(),
            ..Queue::default()
        }
    }

    #[test]
    fn a_waiter_dropped_from_the_queue_that_comes_back_has_waited_all_the_time() {
        let mut waiting = Waiting::default();
        let read = |waiting: &mut Waiting, ms, places: &[(i64, u64)]| {
            waiting.read_queue(
                stamp(ms),
                Some(Duration::from_millis(500)),
                ms,
                Some(&queue(places)),
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
    fn whoever_tries_twice_waits_until_it_falls_silent() {
        let mut waiting = Waiting::default();
        let at = |ms: u64| Moment::from_micros(ms * 1000);
        let mut tries = |ms: u64, thread| {
            waiting.attempt(id(thread), at(ms), SteadyMillis(ms), Some(at(ms + 9_000)));
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
        let places: Vec<_> = (0..1_000).map(|thread| (thread, 9_000)).collect();
        waiting.read_queue(stamp(1), None, 1, Some(&queue(&places)));
        assert_eq!(waiting.waiters().count(), MAX_WAITERS);
        assert_eq!(waiting.waiters().next().unwrap().id, id(0));
    }

    #[test]
    fn subscribers_wait_since_the_first_of_them() {
        let mut waiting = Waiting::default();
        let at = |ms: u64| Moment::from_micros(ms * 1000);
        assert!(waiting.count(2, at(1), SteadyMillis(1)));
        assert!(waiting.count(1, at(5), SteadyMillis(5)));
        assert_eq!(waiting.subscribers.unwrap().since.1, SteadyMillis(1));
        assert!(waiting.count(0, at(6), SteadyMillis(6)) && waiting.is_empty());
    }
}
