//! `/lock?at=…`: one lock at an instant in the past, as far as the history knows.

use askama::Template;

use super::format::{self, Ago, Clock, rfc3339};
use super::history::EventLine;
use super::lock_parts::{Head, PastHolds, PastRow, meaning, plain_title, timeline};
use super::owner_name::OwnerName;
use super::page::Frame;
use super::picture::{Timeline, ending_words, word};
use super::{LockPage, LockThen, links};
use crate::clock::SteadyMillis;
use crate::model::types::{PastHoldView, ProblemKind};

/// The maximum number of past holds shown.
const PAST: usize = 20;

/// A problem at that time.
struct Problem {
    word: String,
    certainty: String,
    /// The problem's age at that instant.
    lasted: String,
    meaning: Option<&'static str>,
    over: Option<Clock>,
}

/// A holder at that time.
struct Holder {
    name: OwnerName,
    since: Clock,
    exact: bool,
    /// The age of the hold at that instant.
    held: String,
    /// The outcome of the hold, which was recorded later.
    later: Option<(&'static str, Clock)>,
}

#[derive(Template)]
#[template(path = "lock_then.html")]
struct Then<'a> {
    frame: Frame<'a>,
    head: Head<'a>,
    at: Clock,
    ago: Ago,
    live: String,
    /// The addresses of the page at the previous and the next event.
    before: Option<String>,
    after: Option<String>,
    gap: bool,
    problems: Vec<Problem>,
    holders: Vec<Holder>,
    timeline: Option<Timeline>,
    events: Vec<EventLine<'a>>,
    history: String,
    past: PastHolds,
    json: String,
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub(super) fn page(page: &LockPage, then: &LockThen) -> Result<String, askama::Error> {
    let (now, at) = (page.chrome.now, then.at);
    let age = |since: SteadyMillis| format::duration(at.millis_since(since));
    let chosen = page.past.chosen.clone().map(|span| ("window", span));
    let link = |at: SteadyMillis| {
        links::lock_with(&page.id, chosen.clone().into_iter().chain([("at", rfc3339(at))]))
    };
    let problems = then.problems.iter().map(|problem| Problem {
        word: word(&problem.problem),
        certainty: problem.certainty.clone(),
        lasted: age(problem.since),
        meaning: ProblemKind::parse(&problem.problem).map(meaning),
        over: problem.to.map(|to| Clock::new(to, now)),
    });
    let holders = then.holders.iter().map(|hold| Holder {
        name: OwnerName::remembered(&page.id.deployment, &hold.id, &page.chrome.names),
        since: Clock::new(hold.since.at, now),
        exact: hold.since.exact,
        held: age(hold.since.at),
        later: hold.to.map(|to| (ending_words(hold), Clock::new(to, now))),
    });
    let was_over = |hold: &&PastHoldView| hold.to.is_some_and(|to| to <= at);
    let past = page.past.holds.iter().filter(was_over).take(PAST);
    let query = links::event_query(Some(&page.id));
    let hour_before = rfc3339(at.minus(3_600_000));
    let until = [("from", hour_before), ("to", rfc3339(at))];
    Then {
        frame: Frame::new(title_then(page, at), "", &page.chrome).still(),
        head: Head::new(page),
        at: Clock::new(at, now),
        ago: Ago::new(at, now),
        live: links::lock(&page.id),
        before: then.before.map(link),
        after: then.after.map(link),
        gap: then.gap.is_some(),
        problems: problems.collect(),
        holders: holders.collect(),
        timeline: timeline(page, None, now),
        events: then.events.iter().map(|row| EventLine::new(row, &page.chrome, true)).collect(),
        history: links::with("/history", &[query.as_slice(), &until].concat()),
        past: PastHolds {
            past: past.map(|hold| PastRow::new(page, hold)).collect(),
            longest: None,
        },
        json: format!("{}&at={}", links::lock_json(&page.id), rfc3339(at)),
    }
    .render()
}

/// Returns the document's title, which begins with the time of day.
fn title_then(page: &LockPage, at: SteadyMillis) -> String {
    format!("{} · {}", rfc3339(at).get(11..19).unwrap_or_default(), plain_title(page))
}

impl Then<'_> {
    /// Returns the class for the verdict's colour.
    fn tone(&self) -> &str {
        match self.problems.first() {
            Some(problem) => &problem.certainty,
            None if self.holders.is_empty() => "unknown",
            None => "held",
        }
    }
}
