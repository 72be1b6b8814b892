//! Ordered sets of deadlines.

use std::collections::BTreeSet;
use std::time::Duration;

use redisson::Moment;

/// The delay of a deadline which shows that this agent was held up, rather than Redis.
pub(in crate::core) const HELD_UP: Duration = Duration::from_millis(20);
/// The time in which replies that arrived while the agent was held up are read.
pub(in crate::core) const CATCH_UP: Duration = Duration::from_millis(500);

/// The deadlines of one table, which removes each of them by the instant for which it was set.
#[derive(Debug)]
pub(in crate::core) struct Timers<T: Ord>(BTreeSet<(Moment, T)>);

impl<T: Ord> Default for Timers<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Ord> Timers<T> {
    pub(in crate::core) fn first(&self) -> Option<Moment> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(in crate::core) fn pop_due(&mut self, now: Moment) -> Option<T> {
        if self.first()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }

    /// Adds a deadline.
    pub(in crate::core) fn add(&mut self, at: Moment, timer: T) {
        if at != Moment::NEVER {
            self.0.insert((at, timer));
        }
    }

    /// Moves a deadline from the instant in `armed` to `at`; [`Moment::NEVER`] means none.
    pub(in crate::core) fn set(&mut self, armed: &mut Moment, at: Moment, timer: T) {
        if *armed == at {
            return;
        }
        let mut entry = (*armed, timer);
        if *armed != Moment::NEVER {
            self.0.remove(&entry);
        }
        *armed = at;
        if at != Moment::NEVER {
            entry.0 = at;
            self.0.insert(entry);
        }
    }

    /// Removes a deadline.
    pub(in crate::core) fn clear(&mut self, armed: Moment, timer: T) {
        if armed != Moment::NEVER {
            self.0.remove(&(armed, timer));
        }
    }
}
