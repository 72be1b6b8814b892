//! Holds that are over.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use redisson::HolderId;
use serde::Serialize;

use super::contention::{PastWait, PastWaitView};
use super::view::{Acknowledgement, Certainty, LockId, ProblemKind, Since};
use crate::clock::SteadyMillis;

/// How many a lock remembers. The history on disk has more.
const MAX_PAST: usize = 8;

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its holder released it.
    Released,
    /// Its lease was over.
    RanOut,
    /// Before its lease was over, and no release was seen.
    Vanished,
    /// Its holder passed it on to another of the same client.
    HandedOver,
    /// Somebody ended it by force.
    Forced,
    /// The server was started anew without it, or another took over without it.
    Restarted,
    /// The key became something else.
    Replaced,
}

impl Ending {
    pub const ALL: [Self; 7] = [
        Self::Released,
        Self::RanOut,
        Self::Vanished,
        Self::HandedOver,
        Self::Forced,
        Self::Restarted,
        Self::Replaced,
    ];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::RanOut => "ran_out",
            Self::Vanished => "vanished",
            Self::HandedOver => "handed_over",
            Self::Forced => "forced",
            Self::Restarted => "restarted",
            Self::Replaced => "replaced",
        }
    }

    /// Whether whoever held it has surely lost it. One that is gone without a word may have been given back: readers
    /// that others follow, fair locks that nobody waits for and hand-overs send no message.
    #[must_use]
    pub fn is_loss(self) -> bool {
        !self.is_wanted() && self != Self::Vanished
    }

    /// Whether whoever held it meant it to end.
    #[must_use]
    pub fn is_wanted(self) -> bool {
        matches!(self, Self::Released | Self::HandedOver)
    }
}

/// A hold that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastHold {
    pub id: HolderId,
    pub since: Since,
    /// Until when, as far as was seen.
    pub to: SteadyMillis,
    /// How it ended.
    pub ended: Ending,
}

/// The same, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PastHoldView {
    pub id: String,
    pub since: Since,
    /// Until when, as far as was seen; none where it lasts.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: Option<SteadyMillis>,
    /// How it ended; none where it lasts.
    pub ended: Option<&'static str>,
}

impl PastHold {
    /// How long it lasted, in milliseconds, at least.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.to.0.saturating_sub(self.since.at.0)
    }

    fn view(&self) -> PastHoldView {
        PastHoldView {
            id: self.id.to_string(),
            since: self.since,
            to: Some(self.to),
            ended: Some(self.ended.as_str()),
        }
    }
}

/// The latest holds of one lock, and its longest.
#[derive(Debug, Default)]
pub struct Past {
    holds: VecDeque<PastHold>,
    longest: Option<PastHold>,
    /// Few locks have one.
    longest_wait: Option<Box<PastWait>>,
    shown: Option<Arc<[PastHoldView]>>,
}

impl Past {
    /// Adds one; the oldest gives way.
    pub fn push(&mut self, hold: PastHold) {
        self.shown = None;
        if self.longest.is_none_or(|longest| longest.millis() < hold.millis()) {
            self.longest = Some(hold);
        }
        if self.holds.len() >= MAX_PAST {
            self.holds.pop_front();
        }
        if self.holds.len() == self.holds.capacity() {
            self.holds.reserve_exact(self.holds.len().max(1));
        }
        self.holds.push_back(hold);
    }

    /// Adds a wait that is over; only the longest is kept.
    pub fn waited(&mut self, wait: PastWait) {
        if self.longest_wait.as_ref().is_none_or(|longest| longest.millis() < wait.millis()) {
            self.longest_wait = Some(Box::new(wait));
        }
    }

    /// The longest wait that was seen to end.
    #[must_use]
    pub fn longest_wait(&self) -> Option<Box<PastWaitView>> {
        self.longest_wait.as_ref().map(|wait| Box::new(wait.view()))
    }

    /// The newest hold of that holder.
    #[must_use]
    pub fn newest_of(&self, id: &HolderId) -> Option<&PastHold> {
        self.holds.iter().rev().find(|hold| hold.id == *id)
    }

    /// The longest that was seen.
    #[must_use]
    pub fn longest(&self) -> Option<Box<PastHoldView>> {
        self.longest.as_ref().map(|hold| Box::new(hold.view()))
    }

    /// As they are shown, newest first.
    pub fn shown(&mut self) -> Arc<[PastHoldView]> {
        let holds = &self.holds;
        if holds.is_empty() {
            return Arc::default();
        }
        let shown =
            self.shown.get_or_insert_with(|| holds.iter().rev().map(PastHold::view).collect());
        Arc::clone(shown)
    }
}

/// What a history on disk is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A hold began, or was found.
    Began(LockId, HolderId, Since),
    /// A hold is over.
    Ended(LockId, PastHold),
    /// A hold of an earlier run is over; when it ended was not seen, only that it had by then.
    Unseen(LockId, HolderId, SteadyMillis),
    /// A problem began, or became surer.
    Problem(LockId, ProblemKind, Certainty, SteadyMillis),
    /// A problem is over.
    Cleared(LockId, ProblemKind, SteadyMillis),
    /// Somebody did something about a lock.
    Acted(LockId, Box<Act>),
    /// Somebody has a problem in hand.
    Acknowledged(LockId, ProblemKind, Arc<Acknowledgement>),
    /// Nobody has it in hand any more.
    Unacknowledged(LockId, ProblemKind, SteadyMillis),
}

/// What somebody did about a lock on this dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    pub at: SteadyMillis,
    pub who: String,
    pub from: IpAddr,
    /// What, as events call it: `force_released`, `place_removed`, `acknowledged`, `unacknowledged`.
    pub what: &'static str,
    /// To which holder, about which problem, or `lock`.
    pub subject: String,
    pub reason: String,
    /// What was there.
    pub was: String,
    /// What came of it.
    pub outcome: String,
}

#[cfg(test)]
mod tests {
    use redisson::ClientId;

    use super::*;

    #[test]
    fn the_latest_are_kept_and_the_longest() {
        let hold = |i: u64| PastHold {
            id: HolderId::new(ClientId::from_random([1; 16]), i64::try_from(i).unwrap()),
            since: Since { at: SteadyMillis(i * 100), exact: true },
            to: SteadyMillis(i * 100 + if i == 3 { 90 } else { 10 }),
            ended: Ending::Released,
        };
        let mut past = Past::default();
        (0..50).for_each(|i| past.push(hold(i)));
        let shown = past.shown();
        assert_eq!((shown.len(), shown[0].since.at), (MAX_PAST, SteadyMillis(4_900)));
        assert_eq!(past.longest().unwrap().since.at, SteadyMillis(300));
        assert!(past.newest_of(&hold(49).id).is_some() && past.newest_of(&hold(3).id).is_none());
    }
}
