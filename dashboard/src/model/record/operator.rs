//! Operators' actions on a lock.

use std::sync::Arc;
use std::time::Duration;

use redisson::{HolderId, Moment};

use super::{Effect, Hold, Record};
use crate::clock::SteadyMillis;
use crate::model::types::{
    Acknowledgement, ArchiveEntry, Certainty, LockEvent, OperatorAction, ProblemKind, Source,
};

/// The time after the beginning of a forced release within which the end of a hold is attributed to it: Redis may be
/// slow to answer, and the reading that shows the end comes even later.
const FORCE_WINDOW: Duration = Duration::from_secs(10);
/// The maximum number of forced releases of a lock that are known at a time.
const MAX_FORCING: usize = 8;

/// An acknowledged problem.
#[derive(Debug)]
pub(super) struct Acknowledged {
    problem: ProblemKind,
    /// True if the problem was only suspected when it was acknowledged. Unknown after a restart, and then false.
    suspected: bool,
    word: Arc<Acknowledgement>,
}

impl Record {
    /// Records that these holds are about to be ended by force, by a release that begins at that instant. Without any, it
    /// has failed; another one of the same holds may succeed.
    pub fn forcing(&mut self, holders: Vec<HolderId>, at: Moment) {
        let forcing = &mut self.cold().forcing;
        forcing.retain(|(_, begun)| *begun != at && at.since(*begun) <= FORCE_WINDOW);
        if !holders.is_empty() && forcing.len() < MAX_FORCING {
            forcing.push((holders, at));
        }
        self.drop_empty_cold_state();
    }

    /// Returns whether the end of that hold is due to a forced release. The same holder may have acquired the lock again
    /// since.
    pub(super) fn is_forced(&self, hold: &Hold, at: Moment) -> bool {
        let mut forcing = self.cold.iter().flat_map(|cold| &cold.forcing);
        forcing.any(|(holders, begun)| {
            holders.contains(&hold.id) && hold.first <= *begun && at.since(*begun) <= FORCE_WINDOW
        })
    }

    /// Records an operator's action.
    pub fn acted(
        &mut self,
        word: &'static str,
        text: String,
        at: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        self.add_source(Source::Operator);
        self.event(at, Source::Operator, LockEvent::Acted(word, text), effects);
    }

    /// Acknowledges a problem, or withdraws the acknowledgement. Ignored for a problem that the lock does not have.
    pub fn acknowledge(
        &mut self,
        problem: ProblemKind,
        word: Option<Arc<Acknowledgement>>,
        action: OperatorAction,
        effects: &mut Vec<Effect>,
    ) {
        let Some(view) = self.problems.iter().find(|view| view.problem == problem) else { return };
        let suspected = view.certainty == Certainty::Suspected;
        let acknowledged = &mut self.cold().acknowledged;
        acknowledged.retain(|known| known.problem != problem);
        let entry = match word {
            Some(word) => {
                acknowledged.push(Acknowledged { problem, suspected, word: Arc::clone(&word) });
                ArchiveEntry::Acknowledged(self.id.clone(), problem, word)
            }
            None => ArchiveEntry::Unacknowledged(self.id.clone(), problem, action.at),
        };
        effects.push(Effect::Archive(Box::new(entry)));
        let text = format!(
            "{} {} {}: {} ({})",
            action.who,
            action.what.replace('_', " "),
            problem.name(),
            action.reason,
            action.outcome
        );
        self.acted(action.what, text, action.at, effects);
        effects.push(Effect::Archive(Box::new(ArchiveEntry::Acted(
            self.id.clone(),
            Box::new(action),
        ))));
        self.mark_acknowledged();
        self.drop_empty_cold_state();
    }

    /// Restores the acknowledgements of an earlier run.
    pub(super) fn restore_acknowledgements(
        &mut self,
        known: Vec<(ProblemKind, Arc<Acknowledgement>)>,
    ) {
        if !known.is_empty() {
            let known = known.into_iter();
            let restored = |(problem, word)| Acknowledged { problem, suspected: false, word };
            self.cold().acknowledged = known.map(restored).collect();
        }
    }

    /// Ends the acknowledgements of problems that have ended.
    pub(super) fn clear_acknowledgements(
        &mut self,
        over: &[ProblemKind],
        at: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        self.drop_acknowledgements(|known| over.contains(&known.problem), at, effects);
    }

    /// Ends the acknowledgements of suspected problems that new evidence has made certain. A stuck lock and a starving waiter
    /// become certain without new evidence, once a source has been on for long enough.
    pub(super) fn end_outdated_acknowledgements(
        &mut self,
        at: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        use ProblemKind::{Deadlock, Expired, Leaked};
        let certain = self.problems.iter().filter(|view| view.certainty == Certainty::Certain);
        let certain: Vec<ProblemKind> = certain.map(|view| view.problem).collect();
        let is_outdated = |known: &Acknowledged| {
            known.suspected
                && matches!(known.problem, Deadlock | Expired | Leaked)
                && certain.contains(&known.problem)
        };
        self.drop_acknowledgements(is_outdated, at, effects);
    }

    fn drop_acknowledgements(
        &mut self,
        ended: impl Fn(&Acknowledged) -> bool,
        at: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        let Some(cold) = &mut self.cold else { return };
        for known in cold.acknowledged.extract_if(.., |known| ended(known)) {
            let entry = ArchiveEntry::Unacknowledged(self.id.clone(), known.problem, at);
            effects.push(Effect::Archive(Box::new(entry)));
        }
    }

    /// Returns whether any of its problems is acknowledged.
    #[must_use]
    pub fn has_acknowledgements(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| !cold.acknowledged.is_empty())
    }

    /// Ends the acknowledgements that have expired.
    pub fn end_acknowledgements(&mut self, now: SteadyMillis, effects: &mut Vec<Effect>) {
        self.drop_acknowledgements(|known| known.word.until <= now, now, effects);
        self.mark_acknowledged();
        self.drop_empty_cold_state();
    }

    /// Sets the acknowledgement of each problem.
    pub(super) fn mark_acknowledged(&mut self) {
        let cold = self.cold.as_deref();
        for view in &mut self.problems {
            let mut acknowledged = cold.iter().flat_map(|cold| &cold.acknowledged);
            let known = acknowledged.find(|known| known.problem == view.problem);
            let word = known.map(|known| Arc::clone(&known.word));
            if view.acknowledged != word {
                view.acknowledged = word;
                self.dirty = true;
            }
        }
    }
}
