//! The latest events of a lock.

use std::sync::Arc;

use serde::ser::{Serialize, Serializer};

use super::holder_field::HolderField;
use super::past::Ending;
use super::problem::ProblemKind;
use super::source::Source;
use crate::clock::SteadyMillis;
use crate::schema::words;

/// The maximum number of events that are retained for a lock.
const MAX_EVENTS: usize = 16;
/// Unobserved releases with less time between them than this are combined into one event.
const TOGETHER_MS: u64 = 1_000;

/// An event of a lock, as pages and the API show it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = Event)]
pub struct EventView {
    /// The instant at which it was observed.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    #[schema(schema_with = event_words)]
    pub event: &'static str,
    #[schema(value_type = Source)]
    pub source: &'static str,
    /// A sentence.
    pub text: String,
}

/// The words of [`LockEvent::word`].
fn event_words() -> utoipa::openapi::Object {
    words([
        "taken",
        "released",
        "vanished",
        "reentered",
        "renewed",
        "problem",
        "cleared",
        "acknowledged",
        "unacknowledged",
        "force_released",
        "place_removed",
    ])
}

/// An event of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEvent {
    /// The lock was already held when it was first read.
    FoundHeld(HolderField),
    /// A new holder has the lock. The number is the time since it was last known not to, in whole milliseconds.
    Taken(HolderField, u64),
    /// A release message arrived. The holder is included if one was known.
    Released(Option<HolderField>),
    /// This number of release messages arrived, for holds too short to be read.
    ReleasedUnseen(u32),
    /// A holder handed the lock over to another of the same client.
    HandedOver(HolderField),
    /// A holder lost the lock because an operator forced its release.
    Forced(HolderField),
    /// A holder is gone without a release message.
    Vanished(HolderField, EndCause),
    /// The hold count changed from one number to another.
    Reentered(HolderField, i64, i64),
    /// The holder renews the lock, with this lease in milliseconds.
    Renewed(u64),
    Problem(ProblemKind),
    Cleared(ProblemKind),
    /// An action of an operator on this dashboard: the word for it, and a sentence.
    Acted(&'static str, String),
}

/// The cause of a hold's end that no message reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndCause {
    /// The lease expired.
    Expired,
    /// The lease expired, or the holder released a fair lock without waiters or a spin lock, which no message reports.
    ExpiredOrReleased,
    /// The lease expired or the lock was released while release messages could not be received.
    Unobserved,
    /// The hold ended this number of milliseconds before its lease expired.
    Early(u64),
    /// Other holders still have the lock.
    OthersHold,
    /// The server restarted, or another one now has its locks.
    ServerRestarted,
    /// The key is now something else.
    Replaced(String),
}

impl EndCause {
    fn ending(&self) -> Ending {
        match self {
            Self::Replaced(_) => Ending::Replaced,
            Self::ServerRestarted => Ending::Restarted,
            Self::Expired => Ending::Expired,
            Self::ExpiredOrReleased | Self::Unobserved | Self::Early(_) | Self::OthersHold => {
                Ending::Vanished
            }
        }
    }
}

impl LockEvent {
    /// Returns the word for it in pages, the API and metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::FoundHeld(_) | Self::Taken(..) => "taken",
            Self::Released(_) | Self::ReleasedUnseen(_) | Self::HandedOver(_) | Self::Forced(_) => {
                "released"
            }
            Self::Vanished(..) => "vanished",
            Self::Reentered(..) => "reentered",
            Self::Renewed(_) => "renewed",
            Self::Problem(_) => "problem",
            Self::Cleared(_) => "cleared",
            Self::Acted(word, _) => word,
        }
    }

    /// Returns the holder that the event is about, if known.
    #[must_use]
    pub fn holder(&self) -> Option<&HolderField> {
        match self {
            Self::FoundHeld(by)
            | Self::Taken(by, _)
            | Self::HandedOver(by)
            | Self::Forced(by)
            | Self::Vanished(by, _)
            | Self::Reentered(by, ..) => Some(by),
            Self::Released(by) => by.as_ref(),
            Self::ReleasedUnseen(_)
            | Self::Renewed(_)
            | Self::Problem(_)
            | Self::Cleared(_)
            | Self::Acted(..) => None,
        }
    }

    /// Returns the way in which a hold ended, if the event is the end of one.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        match self {
            Self::Released(_) | Self::ReleasedUnseen(_) => Some(Ending::Released),
            Self::HandedOver(_) => Some(Ending::HandedOver),
            Self::Forced(_) => Some(Ending::Forced),
            Self::Vanished(_, cause) => Some(cause.ending()),
            Self::FoundHeld(_)
            | Self::Taken(..)
            | Self::Reentered(..)
            | Self::Renewed(_)
            | Self::Problem(_)
            | Self::Cleared(_)
            | Self::Acted(..) => None,
        }
    }

    fn sentence(&self) -> String {
        match self {
            Self::FoundHeld(by) => format!("held by {by} when first read"),
            Self::Taken(by, 0..=1_000) => format!("taken by {by}"),
            Self::Taken(by, ms) => {
                format!("taken by {by} within the {} s before", ms / 1000)
            }
            Self::Released(Some(by)) => format!("released by {by}"),
            Self::Released(None) => "release message of an unobserved hold".to_owned(),
            Self::ReleasedUnseen(n) => format!("{n} release messages of unobserved holds"),
            Self::HandedOver(by) => format!("handed over by {by}"),
            Self::Forced(by) => format!("lost by {by}: it was released by force"),
            Self::Vanished(by, end) => match end {
                EndCause::Expired => {
                    format!("the lease of {by} expired without a release message")
                }
                EndCause::ExpiredOrReleased => format!(
                    "{by} no longer holds it: its lease expired, or it released this fair or spin lock without a message"
                ),
                EndCause::Unobserved => format!(
                    "{by} no longer holds it: it was released, or its lease expired, while release messages were not received"
                ),
                EndCause::Early(ms) => format!(
                    "{by} no longer holds it: gone {}.{} s before its lease expired, without a release message",
                    ms / 1000,
                    ms % 1000 / 100
                ),
                EndCause::OthersHold => format!("{by} no longer holds it; others do"),
                EndCause::ServerRestarted => format!(
                    "lost by {by}: the server restarted, or another one has taken over without the lock"
                ),
                EndCause::Replaced(what) => format!("lost by {by}: the key is now {what}"),
            },
            Self::Reentered(by, from, to) => {
                format!("the hold count of {by} changed from {from} to {to}")
            }
            Self::Renewed(ms) => {
                format!(
                    "renewed by its holder to a lease of about {}.{} s",
                    ms / 1000,
                    ms % 1000 / 100
                )
            }
            Self::Problem(problem) => format!("{} began", problem.name()),
            Self::Cleared(problem) => format!("{} ended", problem.name()),
            Self::Acted(_, text) => text.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    at: SteadyMillis,
    source: Source,
    what: LockEvent,
}

impl Event {
    fn view(&self) -> EventView {
        EventView {
            at: self.at,
            event: self.what.word(),
            source: self.source.as_str(),
            text: self.what.sentence(),
        }
    }
}

/// The latest events of one lock, oldest first. A lock's view shares them with its record, and they are put into words
/// only when they are read. Otherwise a hundred thousand locks would need a hundred thousand sentences.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventLog(Arc<[Event]>);

impl EventLog {
    /// Adds an event. If the log is full, it replaces the oldest.
    pub fn push(&mut self, at: SteadyMillis, source: Source, what: LockEvent) {
        if what == LockEvent::Released(None) && self.count_unseen(at) {
            return;
        }
        let retained = self.0.len().min(MAX_EVENTS - 1);
        let retained = self.0[self.0.len() - retained..].iter().cloned();
        self.0 = retained.chain([Event { at, source, what }]).collect();
    }

    /// Returns the cause for which the hold of that holder ended without a release at that instant, if it did.
    #[must_use]
    pub fn end_cause(&self, by: &HolderField, at: SteadyMillis) -> Option<&EndCause> {
        self.0.iter().rev().find_map(|event| match &event.what {
            LockEvent::Vanished(holder, cause) if event.at == at && holder == by => Some(cause),
            _ => None,
        })
    }

    /// Changes the release by that holder at that instant to a forced one.
    pub fn correct_to_forced(&mut self, by: &HolderField, at: SteadyMillis) {
        let wrong = LockEvent::Released(Some(by.clone()));
        let wrong = |event: &Event| event.at == at && event.what == wrong;
        if let Some(i) = self.0.iter().rposition(wrong)
            && let Some(event) = Arc::make_mut(&mut self.0).get_mut(i)
        {
            event.what = LockEvent::Forced(by.clone());
        }
    }

    /// Merges a release by an unknown holder with those just before it. Returns false if there are none.
    fn count_unseen(&mut self, at: SteadyMillis) -> bool {
        let before = match self.0.last() {
            Some(last) if at.millis_since(last.at) < TOGETHER_MS => match last.what {
                LockEvent::ReleasedUnseen(n) => n,
                LockEvent::Released(None) => 1,
                _ => return false,
            },
            _ => return false,
        };
        if let Some(last) = Arc::make_mut(&mut self.0).last_mut() {
            last.what = LockEvent::ReleasedUnseen(before.saturating_add(1));
        }
        true
    }

    /// Returns the instant of the newest event.
    #[must_use]
    pub fn newest(&self) -> Option<SteadyMillis> {
        self.0.last().map(|event| event.at)
    }

    /// Returns the events, newest first, each with its form for display.
    pub fn newest_first(&self) -> impl Iterator<Item = (&LockEvent, EventView)> {
        self.0.iter().rev().map(|event| (&event.what, event.view()))
    }

    /// Returns the events for display, newest first.
    pub fn views(&self) -> impl DoubleEndedIterator<Item = EventView> + ExactSizeIterator {
        self.0.iter().rev().map(Event::view)
    }
}

impl Serialize for EventLog {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.views())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_lists_the_newest_first() {
        let mut log = EventLog::default();
        for i in 0..100 {
            log.push(SteadyMillis(i), Source::Poll, LockEvent::Renewed(i));
        }
        let mut shown = log.views();
        assert_eq!(shown.len(), MAX_EVENTS);
        assert_eq!(shown.next().map(|event| event.at), Some(SteadyMillis(99)));
        assert_eq!(shown.last().map(|event| event.at), Some(SteadyMillis(84)));
    }

    #[test]
    fn many_unobserved_releases_become_one_event() {
        let mut log = EventLog::default();
        for i in 0..500 {
            log.push(SteadyMillis(i), Source::Channels, LockEvent::Released(None));
        }
        let shown: Vec<_> = log.views().collect();
        assert_eq!(shown.len(), 1);
        assert!(shown[0].text.starts_with("500 "), "{shown:?}");
    }
}
