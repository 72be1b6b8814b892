//! `/history`: the events of a span of time, and what was held at an instant.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{self, Clock, rfc3339};
use super::lock_link::LockLink;
use super::owner_name::{OwnerName, with_names};
use super::page::{self, Frame};
use super::picture::{Strip, ending_words, word};
use super::prose::Prose;
use super::{Chrome, EventRow, HistoryPage, links};
use crate::archive::{HeldThen, PastEvent};
use crate::clock::SteadyMillis;
use crate::model::types::{EVENT_WORDS, Ending, EventView, LockId, PastEnding, ProblemKind};
use crate::query::{EventFilter, with_term};

/// The spans that one click selects.
const SPANS: [(&str, &str); 4] = [("15m", "-15m"), ("1h", "-1h"), ("6h", "-6h"), ("24h", "-24h")];
/// The span if none is chosen.
const USUAL: &str = "-1h";

impl EventRow {
    /// Returns the row of an event in the history.
    #[must_use]
    pub fn past(event: &PastEvent) -> Self {
        let detail = event.detail.as_deref().unwrap_or_default();
        let (owner, text) = match event.event.as_str() {
            "taken" => (Some(&event.subject), String::new()),
            "ended" => {
                let how = match PastEnding::parse(detail) {
                    PastEnding::Seen(Ending::Released) => "released it",
                    PastEnding::Seen(Ending::HandedOver) => "handed it over",
                    PastEnding::Seen(Ending::Expired) => "held it until its lease ran out",
                    PastEnding::Seen(Ending::Vanished) => {
                        "no longer holds it; no release message was received"
                    }
                    PastEnding::Seen(Ending::Forced) => "lost it to a forced release",
                    PastEnding::Seen(Ending::Restarted) => "lost it in a restart of the server",
                    PastEnding::Seen(Ending::Replaced) => "lost it: the key was overwritten",
                    PastEnding::Unseen => "no longer holds it; the end was not observed",
                };
                (Some(&event.subject), how.to_owned())
            }
            "problem" => (None, format!("{} begins, {detail}", word(&event.subject))),
            "cleared" => (None, format!("{} is over", word(&event.subject))),
            // The event is an action of an operator.
            _ => (
                None,
                match ProblemKind::parse(&event.subject) {
                    Some(problem) => {
                        let (word, name) = (problem.as_str(), problem.name());
                        format!("{name}: {}", detail.replace(word, name))
                    }
                    None => format!("{}: {detail}", event.subject),
                },
            ),
        };
        Self {
            at: event.at,
            event: event.event.clone(),
            lock: event.lock.clone(),
            owner: owner.cloned(),
            text,
            source: None,
        }
    }

    /// Returns the row of an event that the model remembers.
    #[must_use]
    pub fn seen(lock: &LockId, event: EventView) -> Self {
        Self {
            at: event.at,
            event: event.event.to_owned(),
            lock: lock.clone(),
            owner: None,
            text: event.text,
            source: Some(event.source),
        }
    }
}

impl HistoryPage {
    /// Returns true if the request contains no mistake.
    #[must_use]
    pub fn is_understood(&self) -> bool {
        self.filter_error.is_none() && self.mistake.is_none()
    }

    /// Returns true if the mistake is in that field.
    fn is_wrong(&self, field: &str) -> bool {
        self.mistake.as_ref().is_some_and(|(wrong, _)| *wrong == field)
    }

    /// Returns the label of the field with the mistake.
    fn wrong_label(&self) -> &'static str {
        match self.mistake {
            Some(("to", _)) => "To",
            Some(("at", _)) => "Held at",
            _ => "From",
        }
    }
}

/// The address of the page with other parameters.
struct Address<'a>(&'a HistoryPage);

impl Address<'_> {
    /// Returns the address of a span, with the lock and this filter.
    fn of(&self, span: &[(&'static str, String)], filter: &str) -> String {
        let mut query = links::event_query(self.0.lock.as_ref());
        query.extend_from_slice(span);
        if !filter.trim().is_empty() {
            query.push(("filter", filter.to_owned()));
        }
        links::with("/history", &query)
    }

    /// Returns the address of the span as it was chosen, with more parameters.
    fn here(&self, filter: &str, more: &[(&'static str, String)]) -> String {
        let texts = [("from", &self.0.from_text), ("to", &self.0.to_text)];
        let given = texts.into_iter().filter(|(_, text)| !text.trim().is_empty());
        let mut span: Vec<(&'static str, String)> =
            given.map(|(key, text)| (key, text.clone())).collect();
        span.extend_from_slice(more);
        self.of(&span, filter)
    }

    /// Returns the address of a span between fixed instants, with the time cursor.
    fn fixed(&self, from: SteadyMillis, to: SteadyMillis, at: SteadyMillis) -> String {
        let span = [("from", rfc3339(from)), ("to", rfc3339(to)), ("at", rfc3339(at))];
        self.of(&span, &self.0.filter)
    }
}

/// The links to the types of events, each with its number of events.
#[derive(Template)]
#[template(path = "parts/event_types.html")]
struct Types {
    types: Vec<Choice>,
}

impl HtmlSafe for Types {}

/// A link that selects a type.
struct Choice {
    word: String,
    count: String,
    link: String,
    here: bool,
    alarming: bool,
}

impl Types {
    fn new(page: &HistoryPage) -> Self {
        let rest = EventFilter::without_types(&page.filter);
        let sums = page.density.by_type();
        let address = Address(page);
        let all = Choice {
            word: "All".to_owned(),
            count: format::count(sums.iter().sum()),
            link: address.here(&rest, &[]),
            here: page.types.is_empty(),
            alarming: false,
        };
        let of_type = |(kind, count): (usize, u64)| Choice {
            word: word(EVENT_WORDS[kind]),
            count: format::count(count),
            link: address.here(&with_term(&rest, "event", EVENT_WORDS[kind]), &[]),
            here: page.types.contains(&EVENT_WORDS[kind]),
            alarming: EVENT_WORDS[kind] == "problem" && count > 0,
        };
        // Actions are rare, so those without events are left out.
        let usual = |kind: usize| kind < 4 || page.types.contains(&EVENT_WORDS[kind]);
        let types = sums.into_iter().enumerate().filter(|(kind, n)| *n > 0 || usual(*kind));
        Self { types: std::iter::once(all).chain(types.map(of_type)).collect() }
    }
}

/// An event as a line of a table.
pub(super) struct EventLine<'a> {
    pub(super) clock: Clock,
    pub(super) lock: LockLink,
    pub(super) owner: Option<OwnerName>,
    pub(super) word: String,
    pub(super) text: Prose<'a>,
    /// The same in plain text.
    title: String,
    pub(super) row: &'a EventRow,
}

impl<'a> EventLine<'a> {
    /// Creates the line of an event. If `leads` is true, its lock links to the lock's page at that instant.
    pub(super) fn new(row: &'a EventRow, chrome: &'a Chrome, leads: bool) -> Self {
        let owner = row.owner.as_deref();
        Self {
            clock: Clock::new(row.at, chrome.now),
            lock: LockLink::at(&row.lock, chrome, leads.then_some(row.at)),
            owner: owner.map(|id| OwnerName::remembered(&row.lock.deployment, id, &chrome.names)),
            word: word(&row.event),
            text: Prose::naming(&row.text, &chrome.names),
            title: with_names(&row.text, &chrome.names),
            row,
        }
    }
}

/// The table of events.
#[derive(Template)]
#[template(path = "parts/event_list.html")]
struct Events<'a> {
    page: &'a HistoryPage,
    lines: Vec<EventLine<'a>>,
    count: String,
    newer: Option<String>,
    older: Option<String>,
    newest: Option<String>,
    reached: Option<Clock>,
}

impl HtmlSafe for Events<'_> {}

impl<'a> Events<'a> {
    fn new(page: &'a HistoryPage) -> Self {
        let now = page.chrome.now;
        let line = |row: &'a EventRow| EventLine::new(row, &page.chrome, page.kept);
        let turn = |cursor: &Option<String>| {
            let cursor = cursor.clone()?;
            Some(Address(page).here(&page.filter, &[("cursor", cursor)]))
        };
        Self {
            page,
            lines: page.rows.iter().map(line).collect(),
            count: format::count(page.rows.len() as u64),
            newer: turn(&page.newer),
            older: turn(&page.older),
            newest: page.newer.is_some().then(|| Address(page).here(&page.filter, &[])),
            reached: page.reached.map(|at| Clock::new(at, now)),
        }
    }
}

/// The locks held at the instant of the time cursor.
#[derive(Template)]
#[template(path = "parts/held_then.html")]
struct Then {
    at: Clock,
    /// The address of the page without the cursor, and those with the cursor a little earlier and later.
    close: String,
    earlier: String,
    later: String,
    /// The address of a shorter span around the cursor.
    closer: String,
    holds: Vec<HeldLine>,
    total: String,
    more: bool,
    complete: bool,
    gap: bool,
    json: String,
    csv: String,
}

impl HtmlSafe for Then {}

struct HeldLine {
    lock: LockLink,
    owner: OwnerName,
    since: Clock,
    /// The age of the hold at that instant.
    held: String,
    exact: bool,
    /// The way in which the hold ended and the time of its end, if it has ended.
    ended: Option<(&'static str, Clock)>,
    problems: Vec<(String, String)>,
}

impl Then {
    fn new(page: &HistoryPage) -> Option<Self> {
        let then = page.then.as_ref()?;
        let (address, at) = (Address(page), then.at);
        let (from, to) = (page.density.from, page.density.to);
        let span = to.millis_since(from).max(1);
        let step = (span / crate::archive::BUCKETS as u64).max(1);
        let moved = |to_at: SteadyMillis| address.fixed(from, to, to_at);
        // The shorter span is a tenth of this one, with the cursor in its middle.
        let part = (span / 20).max(1_000);
        let latest = page.chrome.now.max(at);
        let api = |format: &str| {
            let filter = EventFilter::without_events(&page.filter);
            let filter = Some(filter).filter(|filter| !filter.is_empty());
            let query = [
                ("at", Some(rfc3339(at))),
                ("filter", filter),
                ("format", Some(format.to_owned())),
            ];
            let given = query.into_iter().filter_map(|(key, value)| Some((key, value?)));
            links::with("/api/v1/held", &given.collect::<Vec<_>>())
        };
        Some(Self {
            at: Clock::new(at, page.chrome.now),
            close: address.here(&page.filter, &[]),
            earlier: moved(at.minus(step)),
            later: moved(at.plus(step)),
            closer: address.fixed(at.minus(part), at.plus(part).min(latest), at),
            holds: then.holds.iter().map(|held| HeldLine::new(page, then, held)).collect(),
            total: format::count(then.total as u64),
            more: then.total > then.holds.len(),
            complete: then.complete,
            gap: then.gap.is_some(),
            json: api("json"),
            csv: api("csv"),
        })
    }
}

impl HeldLine {
    fn new(page: &HistoryPage, then: &HeldThen, held: &crate::archive::HeldLock) -> Self {
        let (now, names, hold) = (page.chrome.now, &page.chrome.names, &held.hold);
        let problem = |p: &crate::archive::ProblemThen| (word(&p.problem), p.certainty.clone());
        Self {
            lock: LockLink::at(&held.lock, &page.chrome, Some(then.at)),
            owner: OwnerName::remembered(&held.lock.deployment, &hold.id, names),
            since: Clock::new(hold.since.at, now),
            held: format::duration(then.at.millis_since(hold.since.at)),
            exact: hold.since.exact,
            ended: hold.to.map(|to| (ending_words(hold), Clock::new(to, now))),
            problems: held.problems.iter().map(problem).collect(),
        }
    }
}

#[derive(Template)]
#[template(path = "history.html")]
struct HistoryTemplate<'a> {
    frame: Frame<'a>,
    page: &'a HistoryPage,
    lock: Option<LockLink>,
    /// The address of the history of all locks.
    of_all: String,
    spans: Vec<(&'static str, String, bool)>,
    strip: Strip<'a>,
    types: Types,
    then: Option<Then>,
    events: Events<'a>,
    json: String,
    csv: String,
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn history_page(page: &HistoryPage) -> Result<String, askama::Error> {
    let frame = Frame::new(title(page), "history", &page.chrome);
    let address = Address(page);
    let is_open = page.to_text.trim().is_empty();
    let span = |(word, from): (&'static str, &'static str)| {
        let chosen = page.from_text.trim();
        let here = is_open && (chosen == from || chosen.is_empty() && from == USUAL);
        (word, address.of(&[("from", from.to_owned())], &page.filter), here)
    };
    let api = |format: &str| {
        let mut query = links::event_query(page.lock.as_ref());
        query.push(("from", rfc3339(page.from)));
        if !is_open {
            query.push(("to", rfc3339(page.to)));
        }
        if !page.filter.trim().is_empty() {
            query.push(("filter", page.filter.clone()));
        }
        query.push(("order", "desc".to_owned()));
        query.extend(page.cursor.clone().map(|cursor| ("cursor", cursor)));
        query.push(("format", format.to_owned()));
        links::with("/api/v1/events", &query)
    };
    // A span in the past and a page of older events do not change.
    let is_live = is_open && page.is_understood() && page.newer.is_none();
    let of_all = HistoryPage { lock: None, ..page.clone() };
    HistoryTemplate {
        frame: if is_live && page.then.is_none() { frame } else { frame.still() },
        page,
        lock: page.lock.as_ref().map(|lock| LockLink::new(lock, &page.chrome)),
        of_all: Address(&of_all).here(&page.filter, &[]),
        spans: SPANS.into_iter().map(span).collect(),
        strip: strip(page),
        types: Types::new(page),
        then: Then::new(page),
        events: Events::new(page),
        json: api("json"),
        csv: api("csv"),
    }
    .render()
}

fn strip(page: &HistoryPage) -> Strip<'_> {
    let (from, to) = (page.density.from, page.density.to);
    Strip::new(page, |at| page.kept.then(|| Address(page).fixed(from, to, at)))
}

/// The document's title.
pub(super) fn title(page: &HistoryPage) -> String {
    page::title(&page.chrome, "History")
}

/// Returns the parts that a stream keeps current.
pub(super) fn regions(page: &HistoryPage) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![
        ("event-strip", strip(page).render()?),
        ("event-types", Types::new(page).render()?),
        ("event-list", Events::new(page).render()?),
    ])
}
