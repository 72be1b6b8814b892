//! `/events`: what happened, and who held a lock at an instant.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{self, Clock, rfc3339};
use super::list::LockLink;
use super::owner_name::with_names;
use super::page::{self, Frame};
use super::{EventRow, EventsPage, links};
use crate::archive::PastEvent;
use crate::model::types::{EventView, LockId};

impl EventRow {
    /// Returns the row of an event in the history.
    #[must_use]
    pub fn past(event: &PastEvent) -> Self {
        let detail = event.detail.as_deref().unwrap_or_default();
        let text = match event.event.as_str() {
            "taken" => format!("taken by {}", event.subject),
            "ended" => {
                let how = match detail {
                    "released" => "released it",
                    "handed_over" => "handed it over",
                    "ran_out" => "had it until its lease ran out",
                    "vanished" => "no longer has it, without a release that was heard",
                    "forced" => "lost it by force",
                    "restarted" => "lost it in a restart of the server",
                    "replaced" => "lost it: the key became something else",
                    _ => "no longer has it",
                };
                format!("{} {how}", event.subject)
            }
            "problem" => format!("{} begins, {detail}", event.subject),
            "cleared" => format!("{} is over", event.subject),
            // What an operator did.
            _ => format!("{}: {detail}", event.subject),
        };
        Self {
            at: event.at,
            event: event.event.clone(),
            lock: event.lock.clone(),
            text,
            source: None,
        }
    }

    /// One that the picture remembers.
    #[must_use]
    pub fn seen(lock: &LockId, event: EventView) -> Self {
        Self {
            at: event.at,
            event: event.event.to_owned(),
            lock: lock.clone(),
            text: event.text,
            source: Some(event.source),
        }
    }
}

struct Line<'a> {
    clock: Clock,
    lock: LockLink,
    text: String,
    row: &'a EventRow,
}

/// The list itself.
#[derive(Template)]
#[template(path = "parts/event_list.html")]
struct Events<'a> {
    page: &'a EventsPage,
    lines: Vec<Line<'a>>,
    gaps: Vec<(Option<String>, Option<String>)>,
    older: Option<String>,
}

impl HtmlSafe for Events<'_> {}

impl<'a> Events<'a> {
    fn new(page: &'a EventsPage) -> Self {
        let now = page.chrome.now;
        let line = |row: &'a EventRow| Line {
            clock: Clock::new(row.at, now),
            lock: LockLink::new(&row.lock, &page.chrome),
            text: with_names(&row.text, &page.chrome.names),
            row,
        };
        let older = page.rows.last().filter(|_| page.cut).map(|last| {
            let mut query = links::event_query(page.lock.as_ref());
            query.push(("from", rfc3339(page.from)));
            query.push(("to", rfc3339(last.at)));
            links::with("/events", &query)
        });
        let gap = |at: Option<crate::clock::SteadyMillis>| at.map(rfc3339);
        Self {
            page,
            lines: page.rows.iter().map(line).collect(),
            gaps: page.gaps.iter().map(|g| (gap(g.from), gap(g.to))).collect(),
            older,
        }
    }
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsTemplate<'a> {
    frame: Frame<'a>,
    page: &'a EventsPage,
    lock: Option<LockLink>,
    spans: Vec<(&'static str, String, bool)>,
    events: Events<'a>,
    json: String,
    csv: String,
}

/// The page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn events_page(page: &EventsPage) -> Result<String, askama::Error> {
    let frame = Frame::new(title(page), "events", &page.chrome);
    let query = |from: String| {
        let mut query = links::event_query(page.lock.as_ref());
        query.push(("from", from));
        query
    };
    let span = |word: &'static str, from: &'static str| {
        let here = page.to_text.is_empty()
            && (page.from_text == from || page.from_text.is_empty() && from == "-1h");
        (word, links::with("/events", &query(from.to_owned())), here)
    };
    let api = |format: &str| {
        let mut query = query(rfc3339(page.from));
        if !page.to_text.is_empty() {
            query.push(("to", rfc3339(page.to)));
        }
        query.push(("order", "desc".to_owned()));
        query.push(("format", format.to_owned()));
        links::with("/api/v1/events", &query)
    };
    EventsTemplate {
        // What is over does not change.
        frame: if page.to_text.is_empty() { frame } else { frame.still() },
        page,
        lock: page.lock.as_ref().map(|lock| LockLink::new(lock, &page.chrome)),
        spans: vec![
            span("15 min", "-15m"),
            span("1 h", "-1h"),
            span("6 h", "-6h"),
            span("24 h", "-24h"),
        ],
        events: Events::new(page),
        json: api("json"),
        csv: api("csv"),
    }
    .render()
}

/// The document's title.
pub(super) fn title(page: &EventsPage) -> String {
    page::title(&page.chrome, "Events")
}

/// The part that a stream keeps true.
pub(super) fn regions(page: &EventsPage) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![("event-list", Events::new(page).render()?)])
}

/// Returns the number of events, in words.
fn count(n: usize) -> String {
    format::count(n as u64)
}
