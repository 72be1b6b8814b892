//! `/release`: the form for the forced release of a lock, and the outcome.

use askama::Template;
use askama::filters::HtmlSafe;
use redisson::shape::LockHash;

use super::acknowledgements::Acknowledgements;
use super::format::{Ago, Clock, Validity};
use super::page::{self, Frame};
use super::prose::Prose;
use super::row::{Badge, Ttl, client_words};
use super::{ReleasePage, ReleaseStep, links};
use crate::clock::millis;
use crate::model::types::LockView;
use crate::query::incidents::IncidentRow;
use crate::release::{Choice, MAX_REASON, Offer, VALID};
use crate::text::{counted, shown_name, visible};

/// The maximum number of parts of a lock that a form offers. In a larger crowd of readers, one is released through the
/// API, or all at once.
const MAX_PARTS: usize = 100;
/// The maximum number of parts of a lock that are shown next to the whole lock. More are in a folded list.
const FEW: usize = 5;

/// A part of a lock that can be chosen.
#[derive(Template)]
#[template(path = "parts/choice.html")]
struct Shown {
    value: String,
    label: String,
    /// The process behind it.
    who: Option<String>,
    chosen: bool,
}

impl HtmlSafe for Shown {}

/// The choices of the form.
#[derive(Default)]
struct Choices {
    first: Vec<Shown>,
    /// The parts of a lock with many.
    folded: Option<Folded>,
}

/// Many parts of a lock, in a list that can be opened.
struct Folded {
    summary: String,
    parts: Vec<Shown>,
    /// The number of parts that are not listed.
    more: usize,
    /// True if the list is initially open.
    open: bool,
}

#[derive(Template)]
#[template(path = "release.html")]
struct ReleaseTemplate<'a> {
    frame: Frame<'a>,
    page: &'a ReleasePage,
    name: String,
    link: String,
    action: String,
    /// The time left of the lease.
    ttl: Option<Ttl>,
    read_at: u64,
    ttl_millis: Option<u64>,
    ends: Option<Clock>,
    renewed: Option<Ago>,
    read: Ago,
    problem: Option<Badge>,
    acknowledgements: Acknowledgements<'a>,
    /// The form that releases a red lock on all of its servers.
    together: Option<String>,
    held: Option<Ago>,
    /// The fields of other programs that are deleted too.
    unexpected_fields: Option<String>,
    choices: Choices,
    max_reason: usize,
    validity: Option<Validity>,
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn release_page(page: &ReleasePage) -> Result<String, askama::Error> {
    let now = page.chrome.now;
    let asked = match &page.step {
        ReleaseStep::Ask { offer, target, .. } => Some((offer, target.as_deref())),
        ReleaseStep::Nothing(_) | ReleaseStep::Done(_) => None,
    };
    let ttl_millis = asked.and_then(|(offer, _)| offer.ttl).map(millis);
    let read_at = asked.map_or(now, |(offer, _)| offer.read_at);
    let held = asked.filter(|(offer, _)| offer.hash.is_some());
    let problem = asked.and_then(|(offer, _)| {
        offer.view.problems.iter().find(|problem| Some(problem.problem) == offer.problem)
    });
    ReleaseTemplate {
        frame: Frame::new(page::title(&page.chrome, "Force release"), "", &page.chrome).still(),
        page,
        name: shown_name(&page.id.name),
        link: links::lock(&page.id),
        action: links::release(&page.id),
        ttl: held.map(|(offer, _)| Ttl::read(&offer.view, (read_at, ttl_millis), now)),
        read_at: read_at.0,
        ttl_millis,
        ends: ttl_millis.map(|ttl| Clock::new(read_at.plus(ttl), now)),
        renewed: asked.and_then(|(offer, _)| offer.renewed_at()).map(|at| Ago::new(at, now)),
        read: Ago::new(read_at, now),
        problem: problem.map(|problem| Badge::new(problem, now)),
        acknowledgements: Acknowledgements::of_lock(asked.map(|(offer, _)| &*offer.view), now),
        together: asked
            .zip(problem)
            .map(|((offer, _), problem)| IncidentRow::new(&offer.view, problem))
            .filter(IncidentRow::may_be_released)
            .map(|incident| links::release_incident(&incident)),
        held: asked
            .and_then(|(offer, _)| offer.view.held_since())
            .map(|since| Ago::since(since, now)),
        unexpected_fields: asked.and_then(|(offer, _)| offer.unexpected_fields()),
        choices: asked.map(|(offer, target)| choices(offer, target)).unwrap_or_default(),
        max_reason: MAX_REASON,
        validity: asked.map(|_| Validity::new(read_at, VALID, links::release(&page.id), now)),
    }
    .render()
}

fn choices(offer: &Offer, target: Option<&str>) -> Choices {
    let all = offer.choices();
    let alone = all.len() == 1;
    let shown = |choice: &Choice| {
        let value = choice.value();
        Shown {
            chosen: alone || target == Some(value.as_str()),
            value,
            label: label(offer, choice),
            who: who(&offer.view, choice),
        }
    };
    let count = |is: fn(&Choice) -> bool| all.iter().filter(|choice| is(choice)).count();
    let holds = count(|choice| matches!(choice, Choice::Holder(_)));
    let places = count(|choice| matches!(choice, Choice::Place(_)));
    if holds + places <= FEW {
        return Choices { first: all.iter().map(shown).collect(), folded: None };
    }
    // A target that was chosen before stays visible.
    let is_first = |choice: &&Choice| {
        matches!(choice, Choice::Lock) || target == Some(choice.value().as_str())
    };
    let (first, others): (Vec<&Choice>, Vec<&Choice>) = all.iter().partition(is_first);
    let folded = Folded {
        summary: one_of(holds, places),
        more: others.len().saturating_sub(MAX_PARTS),
        open: first.is_empty(),
        parts: others.into_iter().take(MAX_PARTS).map(shown).collect(),
    };
    Choices { first: first.into_iter().map(shown).collect(), folded: Some(folded) }
}

/// Describes many parts of a lock by their numbers.
fn one_of(holds: usize, places: usize) -> String {
    let parts = [(holds, "hold"), (places, "dead waiter")].into_iter();
    let parts = parts.filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, what)| counted(count as u64, what)).collect();
    format!("Only one of {}", parts.join(" and "))
}

fn label(offer: &Offer, choice: &Choice) -> String {
    match choice {
        Choice::Lock => {
            let holders = offer.hash.as_ref().map(LockHash::holders_as_text).unwrap_or_default();
            match holders.as_slice() {
                [(one, count)] => {
                    format!("The lock, held by {} ×{count}", visible(one.as_bytes()))
                }
                many => format!("The whole lock, with all {} holds", many.len()),
            }
        }
        Choice::Holder(holder) => format!("Only the hold of {} ×{}", holder.id, holder.count),
        Choice::Place(place) => format!("Only the queue entry of the dead waiter {}", place.id),
    }
}

fn who(lock: &LockView, choice: &Choice) -> Option<String> {
    let id = match choice {
        Choice::Lock => lock.holders.first().filter(|_| lock.holders.len() == 1)?.id.to_string(),
        Choice::Holder(holder) => holder.id.to_string(),
        Choice::Place(_) => return None,
    };
    let holder = lock.holders.iter().find(|holder| *holder.id == *id)?;
    holder.client.as_deref().map(client_words)
}
