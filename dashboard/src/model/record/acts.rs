//! What somebody does about a lock on this dashboard.

use std::sync::Arc;
use std::time::Duration;

use redisson::{HolderId, Moment};

use super::{Effect, Record};
use crate::clock::SteadyMillis;
use crate::model::history::Happening;
use crate::model::observation::Source;
use crate::model::past::{Act, Note};
use crate::model::view::{Acknowledgement, ProblemKind};

/// How long after a release by force was begun the end of a hold is taken for its work: Redis may be slow to answer,
/// and the reading that shows the end comes later still.
const FORCED_WITHIN: Duration = Duration::from_secs(10);

/// A problem that somebody has in hand.
#[derive(Debug)]
pub(super) struct InHand {
    problem: ProblemKind,
    word: Arc<Acknowledgement>,
    /// Where an earlier run of this program was told: until when the problem must be seen again.
    seen_by: Option<SteadyMillis>,
}

impl Record {
    /// These holds are about to be ended by force; none: that came to nothing.
    pub fn forcing(&mut self, holders: Vec<HolderId>, at: Moment) {
        self.rare().forcing = (!holders.is_empty()).then_some((holders, at));
        self.thin_out();
    }

    /// Whether the end of that hold is somebody's doing.
    pub(super) fn is_forced(&self, id: &HolderId, at: Moment) -> bool {
        let forcing = self.rare.as_ref().and_then(|rare| rare.forcing.as_ref());
        forcing.is_some_and(|(holders, begun)| {
            holders.contains(id) && at.since(*begun) <= FORCED_WITHIN
        })
    }

    /// Somebody did something about it.
    pub fn acted(
        &mut self,
        word: &'static str,
        text: String,
        steady: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        self.seen_by(Source::Operator);
        self.event(steady, Source::Operator, Happening::Acted(word, text), effects);
    }

    /// Somebody has a problem in hand, or no longer has. Of one that it does not have nothing is kept.
    pub fn acknowledge(
        &mut self,
        problem: ProblemKind,
        word: Option<Arc<Acknowledgement>>,
        act: Act,
        effects: &mut Vec<Effect>,
    ) {
        if !self.problems.iter().any(|view| view.problem == problem) {
            return;
        }
        let in_hand = &mut self.rare().acknowledged;
        in_hand.retain(|known| known.problem != problem);
        let note = match word {
            Some(word) => {
                in_hand.push(InHand { problem, word: Arc::clone(&word), seen_by: None });
                Note::Acknowledged(self.id.clone(), problem, word)
            }
            None => Note::Unacknowledged(self.id.clone(), problem, act.at),
        };
        effects.push(Effect::Note(Box::new(note)));
        let text = format!(
            "{} {} {}: {} ({})",
            act.who,
            act.what.replace('_', " "),
            problem.as_str(),
            act.reason,
            act.outcome
        );
        self.acted(act.what, text, act.at, effects);
        effects.push(Effect::Note(Box::new(Note::Acted(self.id.clone(), Box::new(act)))));
        self.mark_acknowledged();
        self.thin_out();
    }

    /// What an earlier run of this program was told.
    pub(super) fn remember_acknowledged(
        &mut self,
        known: Vec<(ProblemKind, Arc<Acknowledgement>, SteadyMillis)>,
    ) {
        if !known.is_empty() {
            let in_hand = known.into_iter().map(|(problem, word, seen_by)| InHand {
                problem,
                word,
                seen_by: Some(seen_by),
            });
            self.rare().acknowledged = in_hand.collect();
        }
    }

    /// These problems are over, and with them what was said of them.
    pub(super) fn no_longer_in_hand(
        &mut self,
        over: &[ProblemKind],
        steady: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        self.drop_in_hand(|known| over.contains(&known.problem), steady, effects);
    }

    fn drop_in_hand(
        &mut self,
        ended: impl Fn(&InHand) -> bool,
        steady: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        let Some(rare) = &mut self.rare else { return };
        for known in rare.acknowledged.extract_if(.., |known| ended(known)) {
            let note = Note::Unacknowledged(self.id.clone(), known.problem, steady);
            effects.push(Effect::Note(Box::new(note)));
        }
    }

    /// Ends what was in hand until now. False where nothing is any more.
    pub fn end_acknowledgements(
        &mut self,
        steady: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let shown: Vec<ProblemKind> = self.problems.iter().map(|view| view.problem).collect();
        self.drop_in_hand(
            |known| {
                let gone = |by: SteadyMillis| by <= steady && !shown.contains(&known.problem);
                known.word.until <= steady || known.seen_by.is_some_and(gone)
            },
            steady,
            effects,
        );
        self.mark_acknowledged();
        self.thin_out();
        self.rare.as_ref().is_some_and(|rare| !rare.acknowledged.is_empty())
    }

    /// Writes beside each problem who has it in hand.
    pub(super) fn mark_acknowledged(&mut self) {
        let in_hand = self.rare.as_mut().map(|rare| &mut rare.acknowledged);
        let mut in_hand = in_hand.into_iter().flatten().collect::<Vec<_>>();
        for view in &mut self.problems {
            let known = in_hand.iter_mut().find(|known| known.problem == view.problem);
            let word = known.map(|known| {
                // It is the same one: from here on it ends with the problem.
                known.seen_by = None;
                Arc::clone(&known.word)
            });
            if view.acknowledged != word {
                view.acknowledged = word;
                self.news = true;
            }
        }
    }
}
