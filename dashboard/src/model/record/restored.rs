//! What an earlier run of this program knew of a lock.

use std::sync::Arc;

use super::Record;
use crate::clock::{SteadyMillis, Time};
use crate::model::problem::Expired;
use crate::model::types::{
    Acknowledgement, Certainty, HolderField, PastHold, ProblemKind, Since, Source,
};

/// The state of a lock at the end of an earlier run of this program.
#[derive(Debug, Clone, Default)]
pub struct RestoredLock {
    /// The last holders, with the beginnings of their holds.
    pub holds: Vec<(HolderField, Since)>,
    /// The latest earlier holds, oldest first.
    pub past: Vec<PastHold>,
    /// The last problems, with their beginnings.
    pub problems: Vec<(ProblemKind, SteadyMillis)>,
    /// The instant of the latest expiry, if several holds have expired while the first of them was reported.
    pub expired_again: Option<SteadyMillis>,
    /// True if the holder of an expired hold was seen to return too late.
    pub returned_late: bool,
    /// The acknowledgements of the last problems.
    pub acknowledged: Vec<(ProblemKind, Arc<Acknowledgement>)>,
}

impl RestoredLock {
    /// Returns whether the lock had a problem that is reported although the lock no longer exists.
    #[must_use]
    pub fn is_reported_when_free(&self) -> bool {
        self.had(ProblemKind::Expired) || self.had(ProblemKind::Orphan)
    }

    fn had(&self, problem: ProblemKind) -> bool {
        self.problems.iter().any(|(known, _)| *known == problem)
    }

    fn expired_at(&self) -> Option<SteadyMillis> {
        let expired = |(problem, _): &&(ProblemKind, _)| *problem == ProblemKind::Expired;
        self.problems.iter().find(expired).map(|(_, since)| self.expired_again.unwrap_or(*since))
    }

    /// Returns the hold whose lease had expired.
    fn expired(&self, now: Time) -> Option<Expired> {
        let at = self.expired_at()?;
        let lost = |hold: &&PastHold| hold.to <= at && !hold.ended.is_wanted();
        let holder = self.past.iter().rev().find(lost).map(|hold| hold.id.clone());
        let (certainty, source, what) = match self.returned_late {
            true => (
                Certainty::Certain,
                Source::Monitor,
                "tried to renew or release it after it was gone",
            ),
            false => (Certainty::Suspected, Source::Poll, "had renewed it, then its lease expired"),
        };
        let who = holder.as_ref().map_or_else(|| "its holder".to_owned(), HolderField::to_string);
        let evidence = format!("{who} {what}; an earlier run of this dashboard observed that");
        let (at, began) = (now.back_to(at), at);
        Some(Expired { at, began, holder, certainty, source, evidence, times: 1 })
    }
}

impl Record {
    /// Restores the state of an earlier run of this program, as of now.
    pub fn restore(&mut self, restored: RestoredLock, now: Time) {
        let expired = restored.expired(now);
        // For a hash that only looked like a lock, only its problem is stored, and its hold does not expire.
        if !restored.holds.is_empty() || !restored.past.is_empty() || expired.is_some() {
            self.confirm();
        }
        if expired.is_some() {
            self.cold().expired = expired;
        }
        if restored.had(ProblemKind::Orphan) {
            self.restore_orphaned_readers(&restored.past);
        }
        self.restore_acknowledgements(restored.acknowledged);
        let history = self.hold_history();
        history.restored = restored.holds;
        for past in restored.past {
            history.push(past);
        }
        if !restored.problems.is_empty() {
            self.cold().restored_problems = restored.problems;
        }
    }

    /// Returns the beginning of a hold that an earlier run had observed, unless it was now seen to begin. The hold may
    /// have ended and begun again since.
    pub(super) fn take_restored(&mut self, holder: &HolderField, seen: Since) -> Option<Since> {
        let history = self.hold_history.as_mut()?;
        let known = history.restored.iter().position(|(known, _)| known == holder)?;
        let since = history.restored.swap_remove(known).1;
        (!seen.exact).then_some(Since { exact: false, ..since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{holder, name, settings, stamp, time};
    use crate::model::types::LockId;

    #[test]
    fn holds_of_an_earlier_run_leave_no_memory_once_the_lock_was_read() {
        let id = LockId { deployment: "main".into(), db: 0, name: name("a") };
        let mut record = Record::new(id, "a".into(), Arc::clone(&settings().usual), time(1));
        let since = Since { at: SteadyMillis(0), exact: true };
        let holds = vec![(holder(1).into(), since)];
        record.restore(RestoredLock { holds, ..RestoredLock::default() }, time(1));
        assert!(record.hold_history.is_some());
        let mut effects = Vec::new();
        record.end_unseen(stamp(2), &mut effects);
        assert!(record.hold_history.is_none());
        assert_eq!(effects.len(), 1);
    }
}
