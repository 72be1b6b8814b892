//! The acknowledgements that a person should know before they act on the problems.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::Clock;
use crate::clock::SteadyMillis;
use crate::model::types::{Acknowledgement, LockView, ProblemView};
use crate::query::incidents::IncidentRow;

/// The maximum number of different acknowledgements that are shown.
const SHOWN: usize = 8;

/// The acknowledgements in force, each with its problem, the number of its locks and its end.
#[derive(Template)]
#[template(path = "parts/acknowledgements.html")]
pub(super) struct Acknowledgements<'a> {
    all: Vec<(&'static str, usize, Clock, &'a Acknowledgement)>,
    /// The number of locks.
    locks: usize,
    /// The number of locks whose acknowledgements are not shown.
    more: usize,
}

impl HtmlSafe for Acknowledgements<'_> {}

impl<'a> Acknowledgements<'a> {
    /// Returns those of all problems of a lock.
    pub(super) fn of_lock(lock: Option<&'a LockView>, now: SteadyMillis) -> Self {
        Self::new(lock.iter().flat_map(|lock| &lock.problems), 1, now)
    }

    /// Returns those of the incident's problem.
    pub(super) fn of_incident(incident: &'a IncidentRow, now: SteadyMillis) -> Self {
        let problems = incident.locks.iter().flat_map(|lock| &lock.problems);
        let problems = problems.filter(|problem| problem.problem == incident.problem);
        Self::new(problems, incident.locks.len(), now)
    }

    fn new(
        problems: impl Iterator<Item = &'a ProblemView>,
        locks: usize,
        now: SteadyMillis,
    ) -> Self {
        let mut all: Vec<(&'static str, usize, Clock, &Acknowledgement)> = Vec::new();
        let mut more = 0;
        for problem in problems {
            let Some(word) = problem.acknowledged.as_deref() else { continue };
            let name = problem.problem.name();
            let known = all.iter().position(|(known, .., same)| *known == name && *same == word);
            match known {
                Some(index) => all[index].1 += 1,
                None if all.len() < SHOWN => all.push((name, 1, Clock::new(word.until, now), word)),
                None => more += 1,
            }
        }
        Self { all, locks, more }
    }
}
