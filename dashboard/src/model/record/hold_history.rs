//! The ended holds of one lock.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::time::Duration;

use redisson::HolderId;

use crate::clock::SteadyMillis;
use crate::model::types::{
    Ending, HistoryView, HolderField, PastHold, PastOfLock, PastWait, Since,
};

/// The maximum number of holds that are retained for a lock. The history on disk has more.
const MAX_PAST: usize = 8;
/// The maximum number of expired leases whose instants are retained for a lock.
const MAX_RAN_OUT: usize = 64;
/// The number of durations from which the typical hold is computed.
const MAX_DURATIONS: usize = 64;
/// The minimum number of durations for a typical hold.
const MIN_DURATIONS: usize = 20;

/// The holds that have ended. Many locks have none, since they are always held.
#[derive(Debug, Default)]
pub(super) struct HoldHistory {
    /// Durations of the latest typical holds, in milliseconds, oldest first.
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
    /// Returns whether no hold and no wait was ever added, and none is restored.
    pub(super) fn is_empty(&self) -> bool {
        self.longest.is_none() && self.longest_wait.is_none() && self.restored.is_empty()
    }

    /// Adds a hold. If there are too many, it replaces the oldest.
    pub(super) fn push(&mut self, hold: PastHold) {
        self.view.take();
        if is_typical(&hold) {
            if self.durations.len() >= MAX_DURATIONS {
                self.durations.pop_front();
            }
            self.durations.push_back(u32::try_from(hold.millis()).unwrap_or(u32::MAX));
        }
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
        // The newest durations are those of the typical ones of these holds, in the same order.
        let typical = self.holds.iter().filter(|hold| is_typical(hold)).count();
        let mut next = self.durations.len().saturating_sub(typical);
        for hold in &mut self.holds {
            let was_typical = is_typical(hold);
            if released(hold) {
                hold.ended = Ending::Forced;
                corrected.push(hold.clone());
                if was_typical {
                    self.durations.remove(next);
                }
            } else if was_typical {
                next += 1;
            }
        }
        if !corrected.is_empty() {
            self.view.take();
        }
        corrected
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

/// Returns whether a hold counts for the typical duration: its beginning was observed, and no operator ended it.
fn is_typical(hold: &PastHold) -> bool {
    hold.since.exact && hold.ended != Ending::Forced
}

#[cfg(test)]
mod tests {
    use redisson::ClientId;

    use super::*;

    fn id(i: u64) -> HolderId {
        HolderId::new(ClientId::from_random([1; 16]), i64::try_from(i).unwrap())
    }

    /// Returns a hold that was released after that time.
    fn lasting(i: u64, millis: u64) -> PastHold {
        PastHold {
            id: id(i).into(),
            since: Since { at: SteadyMillis(i * 100), exact: true },
            to: SteadyMillis(i * 100 + millis),
            ended: Ending::Released,
        }
    }

    #[test]
    fn the_latest_holds_and_the_longest_are_retained() {
        let hold = |i| lasting(i, if i == 3 { 90 } else { 10 });
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
        (0..19).for_each(|i| history.push(lasting(i, 10)));
        assert_eq!(history.p99(), None);
        history.push(lasting(19, 5_000));
        assert_eq!(history.p99(), Some(Duration::from_secs(5)));
    }

    #[test]
    fn a_hold_that_was_forced_does_not_count_for_the_typical_one_and_others_still_do() {
        let mut history = HoldHistory::default();
        (0..20).for_each(|i| history.push(lasting(i, 10)));
        let late = lasting(20, 60_000);
        let at_least = lasting(21, 7_000);
        let since = Since { exact: false, ..at_least.since };
        history.push(late.clone());
        history.push(PastHold { since, ..at_least });
        history.push(PastHold { ended: Ending::Forced, ..lasting(22, 9_000) });
        history.push(lasting(23, 5_000));
        assert_eq!(history.p99(), Some(Duration::from_secs(60)));
        let corrected = history.correct_to_forced(late.to);
        assert_eq!(corrected, [PastHold { ended: Ending::Forced, ..late }]);
        assert_eq!(history.p99(), Some(Duration::from_secs(5)));
    }
}
