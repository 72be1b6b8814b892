//! The ended holds of one lock.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::time::Duration;

use redisson::HolderId;

use crate::clock::SteadyMillis;
use crate::model::types::{
    Ending, HistoryView, HolderField, PastHold, PastOfLock, PastWait, Since,
};

/// The most holds that are retained for a lock. The history on disk has more.
const MAX_PAST: usize = 8;
/// The most expired leases whose instants are retained for a lock.
const MAX_RAN_OUT: usize = 64;
/// The number of durations from which the typical hold is computed.
const MAX_DURATIONS: usize = 64;
/// The least number of durations for a typical hold.
const MIN_DURATIONS: usize = 20;

/// The holds that have ended. Many locks have none, since they are always held.
#[derive(Debug, Default)]
pub(super) struct HoldHistory {
    /// Durations of the latest holds whose beginning and end were both observed, in milliseconds.
    durations: VecDeque<u32>,
    holds: VecDeque<PastHold>,
    longest: Option<PastHold>,
    /// Boxed, since few locks have one.
    longest_wait: Option<Box<PastWait>>,
    /// The view of this history, until it changes.
    view: OnceCell<HistoryView>,
    /// The latest instants at which a lease ran out, oldest first.
    ran_out: VecDeque<SteadyMillis>,
    /// Holds of an earlier run of this program, until they are observed again.
    pub(super) restored: Vec<(HolderField, Since)>,
}

impl HoldHistory {
    /// Adds a hold. If there are too many, it replaces the oldest.
    pub(super) fn push(&mut self, hold: PastHold) {
        self.view.take();
        if hold.ended == Ending::Expired {
            if self.ran_out.len() >= MAX_RAN_OUT {
                self.ran_out.pop_front();
            }
            self.ran_out.push_back(hold.to);
        }
        if self.longest.as_ref().is_none_or(|longest| longest.millis() < hold.millis()) {
            self.longest = Some(hold.clone());
        }
        if self.holds.len() >= MAX_PAST {
            self.holds.pop_front();
        }
        if self.holds.len() == self.holds.capacity() {
            self.holds.reserve_exact(self.holds.len().max(1));
        }
        self.holds.push_back(hold);
    }

    /// Changes the holds that were released at that instant to forced ones, and returns them.
    pub(super) fn correct_to_forced(&mut self, to: SteadyMillis) -> Vec<PastHold> {
        let released = |hold: &PastHold| hold.to == to && hold.ended == Ending::Released;
        if let Some(longest) = self.longest.as_mut().filter(|hold| released(hold)) {
            longest.ended = Ending::Forced;
        }
        let mut corrected = Vec::new();
        for hold in self.holds.iter_mut().filter(|hold| released(hold)) {
            hold.ended = Ending::Forced;
            corrected.push(hold.clone());
            if hold.since.exact {
                // Such a hold is not typical.
                self.durations.pop_back();
            }
        }
        if !corrected.is_empty() {
            self.view.take();
        }
        corrected
    }

    /// Adds the duration of a hold whose beginning and end were both observed.
    pub(super) fn push_duration(&mut self, held: Duration) {
        if self.durations.len() >= MAX_DURATIONS {
            self.durations.pop_front();
        }
        self.durations.push_back(u32::try_from(held.as_millis()).unwrap_or(u32::MAX));
    }

    /// Returns the duration that 99 of 100 holds did not exceed, or `None` while there are too few.
    pub(super) fn p99(&self) -> Option<Duration> {
        if self.durations.len() < MIN_DURATIONS {
            return None;
        }
        let mut sorted: Vec<u32> = self.durations.iter().copied().collect();
        sorted.sort_unstable();
        let index = (sorted.len() * 99).div_ceil(100) - 1;
        Some(Duration::from_millis(u64::from(sorted[index])))
    }

    /// Adds a wait that has ended. Only the longest is retained.
    pub(super) fn push_wait(&mut self, wait: PastWait) {
        if self.longest_wait.as_ref().is_none_or(|longest| longest.millis() < wait.millis()) {
            self.longest_wait = Some(Box::new(wait));
            self.view.take();
        }
    }

    /// Returns the newest hold of that holder.
    pub(super) fn newest_of(&self, id: &HolderId) -> Option<&PastHold> {
        self.holds.iter().rev().find(|hold| hold.id.id() == Some(*id))
    }

    /// Returns the holds and waits for display.
    pub(super) fn view(&self) -> HistoryView {
        if self.holds.is_empty() && self.longest_wait.is_none() {
            return HistoryView::default();
        }
        let view = self.view.get_or_init(|| {
            let past = PastOfLock {
                past: self.holds.iter().rev().map(PastHold::view).collect(),
                ran_out: self.ran_out.iter().copied().collect(),
                longest_hold: self.longest.as_ref().map(PastHold::view),
                longest_wait: self.longest_wait.as_deref().map(PastWait::view),
            };
            past.into()
        });
        view.clone()
    }
}

#[cfg(test)]
mod tests {
    use redisson::ClientId;

    use super::*;

    #[test]
    fn the_latest_holds_and_the_longest_are_retained() {
        let id = |i: u64| HolderId::new(ClientId::from_random([1; 16]), i64::try_from(i).unwrap());
        let hold = |i: u64| PastHold {
            id: id(i).into(),
            since: Since { at: SteadyMillis(i * 100), exact: true },
            to: SteadyMillis(i * 100 + if i == 3 { 90 } else { 10 }),
            ended: Ending::Released,
        };
        let mut history = HoldHistory::default();
        (0..50).for_each(|i| history.push(hold(i)));
        let view = history.view();
        assert_eq!((view.past.len(), view.past[0].since.at), (MAX_PAST, SteadyMillis(4_900)));
        assert_eq!(view.longest_hold.as_ref().unwrap().since.at, SteadyMillis(300));
        let wait =
            PastWait { id: hold(1).id, since: hold(1).since, to: SteadyMillis(500), granted: true };
        history.push_wait(wait);
        assert_eq!(
            history.view().longest_wait.as_ref().map(|wait| wait.to),
            Some(SteadyMillis(500))
        );
        assert!(history.newest_of(&id(49)).is_some());
        assert!(history.newest_of(&id(3)).is_none());
    }

    #[test]
    fn a_typical_hold_needs_twenty_durations() {
        let mut history = HoldHistory::default();
        for _ in 0..19 {
            history.push_duration(Duration::from_millis(10));
        }
        assert_eq!(history.p99(), None);
        history.push_duration(Duration::from_secs(5));
        assert_eq!(history.p99(), Some(Duration::from_secs(5)));
    }
}
