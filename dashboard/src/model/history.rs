//! What happened to a lock lately, and how long it used to be held.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redisson::HolderId;
use serde::ser::{Serialize, Serializer};

use super::observation::Source;
use super::view::{EventView, ProblemKind};
use crate::clock::SteadyMillis;

/// How many events a lock keeps.
const MAX_EVENTS: usize = 16;
/// How many past holds make a habit.
const MAX_HOLDS: usize = 64;
/// Fewer than this are none.
const MIN_HOLDS: usize = 20;
/// Unseen releases closer than this to one another are told as one event.
const TOGETHER_MS: u64 = 1_000;

/// Something that happened to a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Held already when it was first read.
    FoundHeld(HolderId),
    /// Somebody new has it; with the time since it was last known not to, in whole milliseconds.
    Taken(HolderId, u64),
    /// A release message came; the holder where one was known.
    Released(Option<HolderId>),
    /// So many more release messages of holds too short to be read.
    ReleasedUnseen(u32),
    /// A holder is gone, no release message came.
    Vanished(HolderId, End),
    /// The count of a holder went from one number to another.
    Reentered(HolderId, i64, i64),
    /// Its holder renews it, to this lease in milliseconds.
    Renewed(u64),
    /// A problem began.
    Problem(ProblemKind),
    /// A problem ended.
    Cleared(ProblemKind),
    /// Somebody did something on this dashboard: the word for it, and a sentence.
    Acted(&'static str, String),
}

/// How a hold ended that no message told about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Its lease was over.
    RanOut,
    /// So many milliseconds before its lease was over.
    Early(u64),
    /// Other holders have the lock on.
    OthersHold,
    /// The server was started anew, or another has its locks now.
    ServerRestarted,
    /// The key is something else now.
    Replaced(String),
}

impl Happening {
    /// The word for it in pages, the API and metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::FoundHeld(_) | Self::Taken(..) => "taken",
            Self::Released(_) | Self::ReleasedUnseen(_) => "released",
            Self::Vanished(..) => "vanished",
            Self::Reentered(..) => "reentered",
            Self::Renewed(_) => "renewed",
            Self::Problem(_) => "problem",
            Self::Cleared(_) => "cleared",
            Self::Acted(word, _) => word,
        }
    }

    fn sentence(&self) -> String {
        match self {
            Self::FoundHeld(by) => format!("held by {by} when first read"),
            Self::Taken(by, 0..=1_000) => format!("taken by {by}"),
            Self::Taken(by, ms) => {
                format!("taken by {by} at some time in the {} s before", ms / 1000)
            }
            Self::Released(Some(by)) => format!("released by {by}"),
            Self::Released(None) => "release message; no holder had been seen".to_owned(),
            Self::ReleasedUnseen(n) => format!("{n} release messages; no holder had been seen"),
            Self::Vanished(by, end) => match end {
                End::RanOut => format!("the lease of {by} ran out, without a release message"),
                End::Early(ms) => format!(
                    "{by} no longer holds it, {}.{} s before its lease was over and without a release message",
                    ms / 1000,
                    ms % 1000 / 100
                ),
                End::OthersHold => format!("{by} no longer holds it, others do"),
                End::ServerRestarted => format!(
                    "gone from {by}: the server was started anew, or another one has taken over without it"
                ),
                End::Replaced(what) => format!("gone from {by}: the key is now {what}"),
            },
            Self::Reentered(by, from, to) => {
                format!("{by} holds it {to} times over, {from} before")
            }
            Self::Renewed(ms) => {
                format!(
                    "its holder renews it, to a lease of about {}.{} s",
                    ms / 1000,
                    ms % 1000 / 100
                )
            }
            Self::Problem(problem) => format!("{} begins", problem.as_str()),
            Self::Cleared(problem) => format!("{} is over", problem.as_str()),
            Self::Acted(_, text) => text.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    at: SteadyMillis,
    source: Source,
    what: Happening,
}

impl Event {
    fn shown(&self) -> EventView {
        EventView {
            at: self.at,
            event: self.what.word(),
            source: self.source.as_str(),
            text: self.what.sentence(),
        }
    }
}

/// The latest events of one lock, oldest first. What is shown of a lock shares them with what is known of it, and puts
/// them into words only when somebody reads them: a hundred thousand locks have a hundred thousand sentences.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History(Arc<[Event]>);

impl History {
    /// Adds an event; the oldest gives way.
    pub fn push(&mut self, at: SteadyMillis, source: Source, what: Happening) {
        if what == Happening::Released(None) && self.count_unseen(at) {
            return;
        }
        let kept = self.0.len().min(MAX_EVENTS - 1);
        let kept = self.0[self.0.len() - kept..].iter().cloned();
        self.0 = kept.chain([Event { at, source, what }]).collect();
    }

    /// Counts a release that nobody was seen to make with those just before it, where there are any.
    fn count_unseen(&mut self, at: SteadyMillis) -> bool {
        let before = match self.0.last() {
            Some(last) if at.0.saturating_sub(last.at.0) < TOGETHER_MS => match last.what {
                Happening::ReleasedUnseen(n) => n,
                Happening::Released(None) => 1,
                _ => return false,
            },
            _ => return false,
        };
        if let Some(last) = Arc::make_mut(&mut self.0).last_mut() {
            last.what = Happening::ReleasedUnseen(before.saturating_add(1));
        }
        true
    }

    /// When the newest happened; none where there are none.
    #[must_use]
    pub fn newest(&self) -> Option<SteadyMillis> {
        self.0.last().map(|event| event.at)
    }

    /// The events as they are shown, newest first.
    pub fn shown(&self) -> impl DoubleEndedIterator<Item = EventView> + ExactSizeIterator {
        self.0.iter().rev().map(Event::shown)
    }
}

impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.shown())
    }
}

/// How long the latest holds of a lock lasted, as far as both ends were seen.
#[derive(Debug, Clone, Default)]
pub struct Habit(VecDeque<u32>);

impl Habit {
    /// Adds a hold.
    pub fn push(&mut self, held: Duration) {
        if self.0.len() >= MAX_HOLDS {
            self.0.pop_front();
        }
        self.0.push_back(u32::try_from(held.as_millis()).unwrap_or(u32::MAX));
    }

    /// What 99 of 100 holds did not exceed; none before there are enough of them.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        if self.0.len() < MIN_HOLDS {
            return None;
        }
        let mut sorted: Vec<u32> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let index = (sorted.len() * 99).div_ceil(100) - 1;
        Some(Duration::from_millis(u64::from(sorted[index])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_newest_first() {
        let mut history = History::default();
        for i in 0..100 {
            history.push(SteadyMillis(i), Source::Poll, Happening::Renewed(i));
        }
        let mut shown = history.shown();
        assert_eq!(shown.len(), MAX_EVENTS);
        assert_eq!(shown.next().map(|event| event.at), Some(SteadyMillis(99)));
        assert_eq!(shown.last().map(|event| event.at), Some(SteadyMillis(84)));
    }

    #[test]
    fn a_storm_of_unseen_releases_is_one_event() {
        let mut history = History::default();
        for i in 0..500 {
            history.push(SteadyMillis(i), Source::Channels, Happening::Released(None));
        }
        let shown: Vec<_> = history.shown().collect();
        assert_eq!(shown.len(), 1);
        assert!(shown[0].text.starts_with("500 "), "{shown:?}");
    }

    #[test]
    fn a_habit_needs_twenty_holds() {
        let mut habit = Habit::default();
        for _ in 0..19 {
            habit.push(Duration::from_millis(10));
        }
        assert_eq!(habit.p99(), None);
        habit.push(Duration::from_secs(5));
        assert_eq!(habit.p99(), Some(Duration::from_secs(5)));
    }
}
