//! Ordered sets of deadlines.

use std::collections::BTreeSet;

use redisson::Moment;

use crate::types::SessionId;

/// The subject of a deadline of a session. Other tables have their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Timer {
    /// An EVENTS call on this session's events is over.
    Events(SessionId),
    /// A session whose connection has gone has waited long enough for another one.
    Grace(SessionId),
    /// A RESUME of this connection's has waited long enough.
    Resume(SessionId),
    /// An owner's MLOCK has waited for long enough with locks in its hands.
    Multi(SessionId, i64),
}

/// The set. Whoever sets a deadline remembers it and clears it by the same instant.
#[derive(Debug)]
pub(in crate::core) struct Timers<T: Ord = Timer>(BTreeSet<(Moment, T)>);

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

    /// Moves a deadline from where `armed` says it stands to `at`; [`Moment::NEVER`] means none.
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

    /// Takes a deadline out.
    pub(in crate::core) fn clear(&mut self, armed: Moment, timer: T) {
        if armed != Moment::NEVER {
            self.0.remove(&(armed, timer));
        }
    }
}
