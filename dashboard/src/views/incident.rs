//! `/incident`: the locks of an incident, and the actions for all of them at once.

use std::collections::BTreeMap;

use askama::Template;

use super::acknowledgements::Acknowledgements;
use super::format::{Ago, Clock, Validity};
use super::lock_link::LockLink;
use super::page::{self, Frame};
use super::picture::Circle;
use super::prose::Prose;
use super::row::{Badge, HoldersCell};
use super::{IncidentPage, IncidentStep, incidents, links};
use crate::model::types::LockId;
use crate::release::{MAX_REASON, Outcome, VALID};

/// The most locks that the page names of each sort.
const NAMED: usize = 1_000;

/// A lock, and a sentence about it.
type LockNote<'a> = (LockLink, Prose<'a>);

/// The locks that a form would release.
struct Offered<'a> {
    action: String,
    seen: &'a str,
    count: usize,
    /// The first locks that are released.
    locks: Vec<LockLink>,
    waiting: u64,
    unproven: bool,
    left_out: Vec<LockNote<'a>>,
    left_out_count: usize,
    more: usize,
    mistake: Option<Prose<'a>>,
    reason: &'a str,
    validity: Validity,
}

/// The outcomes of a release.
struct Done {
    /// The number of locks by outcome, in words.
    counts: Vec<(usize, String)>,
    all_released: bool,
    /// The number of releases without an outcome so far. A lock has one for each of its dead queue entries.
    running: usize,
    /// The locks that were not released.
    others: Vec<LockNote<'static>>,
}

#[derive(Template)]
#[template(path = "incident.html")]
struct IncidentTemplate<'a> {
    frame: Frame<'a>,
    problem: &'static str,
    badge: Badge,
    extent: String,
    holders: Option<HoldersCell<'a>>,
    acknowledgements: Acknowledgements<'a>,
    advice: Prose<'a>,
    evidence: Option<(Clock, Prose<'a>)>,
    /// The circle of waits of a deadlock.
    circle: Option<Circle>,
    /// The locks, each with the age of its problem.
    locks: Vec<(LockLink, Ago)>,
    more: usize,
    acknowledge: Option<String>,
    release: Option<String>,
    offered: Option<Offered<'a>>,
    done: Option<Done>,
    max_reason: usize,
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn incident_page(page: &IncidentPage) -> Result<String, askama::Error> {
    let (chrome, incident) = (&page.chrome, &page.incident);
    let now = chrome.now;
    let (_, problem) = incident.first();
    let count = incident.locks.len();
    let shows = matches!(page.step, IncidentStep::Show);
    let title = format!("Incident: {}", incident.problem.name());
    IncidentTemplate {
        problem: incident.problem.as_str(),
        frame: Frame::new(page::title(chrome, &title), "", chrome).still(),
        badge: Badge::of_incident(incident, now),
        extent: incidents::extent(incident),
        holders: HoldersCell::of_incident(incident),
        acknowledgements: Acknowledgements::of_incident(incident, now),
        advice: Prose::naming(&problem.advice, &chrome.names),
        evidence: problem
            .evidence
            .last()
            .map(|it| (Clock::new(it.at, now), Prose::naming(&it.text, &chrome.names))),
        circle: Circle::new(problem, &chrome.names),
        locks: incidents::named_locks(incident, NAMED, chrome, now),
        more: count.saturating_sub(NAMED),
        acknowledge: (shows && page.may_acknowledge).then(|| links::acknowledge_incident(incident)),
        release: (shows && page.may_release).then(|| links::release_incident(incident)),
        offered: offered(page),
        done: done(page),
        max_reason: MAX_REASON,
    }
    .render()
}

fn offered(page: &IncidentPage) -> Option<Offered<'_>> {
    let IncidentStep::Ask { batch, seen, more, mistake, reason } = &page.step else { return None };
    let left_out = batch.left_out.iter().take(NAMED);
    let now = page.chrome.now;
    let read_at = batch.offers.iter().map(|(offer, _)| offer.read_at).min().unwrap_or(now);
    let again = links::release_incident(&page.incident);
    Some(Offered {
        action: links::release_incident(&page.incident),
        seen,
        count: batch.offers.len(),
        locks: batch
            .offers
            .iter()
            .take(NAMED)
            .map(|(offer, _)| LockLink::new(&offer.id, &page.chrome))
            .collect(),
        waiting: page.incident.waiting_for(batch.offers.iter().map(|(offer, _)| &*offer.view)),
        unproven: batch.is_unproven(),
        left_out: left_out
            .map(|(id, why)| (LockLink::new(id, &page.chrome), Prose::from(why.as_str())))
            .collect(),
        left_out_count: batch.left_out.len(),
        more: *more,
        mistake: mistake.as_deref().map(Prose::from),
        reason,
        validity: Validity::new(read_at, VALID, again, now),
    })
}

fn done(page: &IncidentPage) -> Option<Done> {
    let IncidentStep::Done { outcomes, of } = &page.step else { return None };
    // A lock is released once each of its parts is.
    let mut of_locks: BTreeMap<&LockId, &Outcome> = BTreeMap::new();
    for (id, outcome) in outcomes {
        let of_lock = of_locks.entry(id).or_insert(outcome);
        if of_lock.is_done() {
            *of_lock = outcome;
        }
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in of_locks.values() {
        *counts.entry(outcome.as_str()).or_default() += 1;
    }
    let others = of_locks.iter().filter(|(_, outcome)| !outcome.is_done());
    Some(Done {
        all_released: others.clone().next().is_none(),
        counts: counts.into_iter().map(|(word, count)| (count, word.replace('_', " "))).collect(),
        running: of.saturating_sub(outcomes.len()),
        others: others
            .take(NAMED)
            .map(|(id, outcome)| {
                (LockLink::new(id, &page.chrome), Prose::from(outcome.explained()))
            })
            .collect(),
    })
}
