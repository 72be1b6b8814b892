//! `/release`: the form by which a lock is released by force, and what came of it.

use askama::Template;
use redisson::shape::LockHash;

use super::format::{Ago, Clock, Validity};
use super::page::{self, Frame};
use super::prose::Prose;
use super::row::{Badge, Ttl, client_words};
use super::{ReleasePage, ReleaseStep, links};
use crate::model::types::LockView;
use crate::release::{Choice, MAX_REASON, Offer, Outcome, VALID};
use crate::text::shown_name;

/// Choices that a form has at most: a crowd of readers is released by the API, or all at once.
const MAX_CHOICES: usize = 100;

struct Shown {
    value: String,
    label: String,
    /// The process behind it.
    who: Option<String>,
    chosen: bool,
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
    held: Option<Ago>,
    /// The fields of other programs that are deleted too.
    foreign_fields: Option<String>,
    choices: Vec<Shown>,
    max_reason: usize,
    validity: Option<Validity>,
}

/// The page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn release_page(page: &ReleasePage) -> Result<String, askama::Error> {
    let now = page.chrome.now;
    let asked = match &page.step {
        ReleaseStep::Ask { offer, target, .. } => Some((offer, target.as_deref())),
        ReleaseStep::Nothing(_) | ReleaseStep::Done(_) => None,
    };
    let ttl_millis = asked
        .and_then(|(offer, _)| offer.ttl)
        .map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let read_at = asked.map_or(now, |(offer, _)| offer.read_at);
    let held = asked.filter(|(offer, _)| offer.hash.is_some());
    ReleaseTemplate {
        frame: Frame::new(page::title(&page.chrome, "Release by force"), "", &page.chrome).still(),
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
        problem: asked
            .and_then(|(offer, _)| offer.view.problems.first())
            .map(|problem| Badge::new(problem, now)),
        held: asked
            .and_then(|(offer, _)| offer.view.holders.iter().map(|holder| holder.since.at).min())
            .map(|since| Ago::new(since, now)),
        foreign_fields: asked.and_then(|(offer, _)| offer.foreign_fields()),
        choices: asked.map(|(offer, target)| choices(offer, target)).unwrap_or_default(),
        max_reason: MAX_REASON,
        validity: asked.map(|_| Validity::new(read_at, VALID, links::release(&page.id), now)),
    }
    .render()
}

fn choices(offer: &Offer, target: Option<&str>) -> Vec<Shown> {
    let all = offer.choices();
    let alone = all.len() == 1;
    let shown = all.iter().take(MAX_CHOICES).map(|choice| {
        let value = choice.value();
        Shown {
            chosen: alone || target == Some(value.as_str()),
            value,
            label: label(offer, choice),
            who: who(&offer.view, choice),
        }
    });
    shown.collect()
}

fn label(offer: &Offer, choice: &Choice) -> String {
    match choice {
        Choice::Lock => {
            let holders = offer.hash.as_ref().map(LockHash::holders_as_text).unwrap_or_default();
            match holders.as_slice() {
                [(one, count)] => format!("The lock, held by {one} ×{count}"),
                many => format!("The whole lock, with all {} holds", many.len()),
            }
        }
        Choice::Holder(holder) => format!("Only the hold of {} ×{}", holder.id, holder.count),
        Choice::Place(place) => format!("Only the dead place of {} in its queue", place.id),
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
