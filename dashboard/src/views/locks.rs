//! `/`: the table of locks.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{self, Prose};
use super::page::{self, Frame};
use super::row::Row;
use super::{Chrome, LocksPage, Order, Sort, links};
use crate::model::view::{SourceState, SourceView};

/// A heading of the table.
struct Column {
    label: &'static str,
    /// What sorting by it means, for those who point at it.
    hint: &'static str,
    sort: Option<Sort>,
    link: String,
    /// How it is sorted now.
    sorted: Option<Order>,
    class: &'static str,
}

fn columns(page: &LocksPage) -> Vec<Column> {
    let column = |label, hint, sort: Option<Sort>, class| {
        let sorted = (sort == Some(page.sort)).then_some(page.order);
        let link = sort.map(|sort| {
            let order = match sorted {
                Some(Order::Ascending) => Order::Descending,
                Some(Order::Descending) => Order::Ascending,
                None => Order::usual(sort),
            };
            links::sorted(page, sort, order)
        });
        Column { label, hint, sort, link: link.unwrap_or_default(), sorted, class }
    };
    vec![
        column("Lock", "Sort by name", Some(Sort::Name), "name"),
        column("State", "Problems first, then the longest held", Some(Sort::Problems), "state"),
        column("Kind", "", None, "kind"),
        column("Holder", "Sort by holder", Some(Sort::Holder), "holder"),
        column("Held for", "Sort by how long it is held", Some(Sort::Age), "held"),
        column("Time to live", "Sort by time to live", Some(Sort::Ttl), "ttl"),
    ]
}

/// The three views of the table, with their counts.
#[derive(Template)]
#[template(path = "parts/views.html")]
struct Views {
    views: Vec<View>,
}

impl HtmlSafe for Views {}

struct View {
    label: &'static str,
    count: String,
    link: String,
    here: bool,
    alarming: bool,
}

impl Views {
    fn new(page: &LocksPage) -> Self {
        let counts = &page.chrome.counts;
        let view = |label, count: usize, filter: &str, alarming| View {
            label,
            count: format::count(count as u64),
            link: links::filtered(filter),
            here: page.filter.trim() == filter,
            alarming: alarming && count > 0,
        };
        let mut views = vec![
            view("Held", counts.held, "", false),
            view("With problems", counts.with_problems, PROBLEMS, true),
            view("Unconfirmed", counts.unconfirmed, UNCONFIRMED, false),
        ];
        if counts.unknown > 0 {
            views.push(view("Not readable", counts.unknown, UNKNOWN, true));
        }
        Self { views }
    }
}

/// Filters behind the views' links.
const PROBLEMS: &str = "problem:any";
const UNCONFIRMED: &str = "confirmed:no";
const UNKNOWN: &str = "state:unknown";

/// What stands below the rows: why there are none, or which they are.
#[derive(Template)]
#[template(path = "parts/foot.html")]
struct Foot<'a> {
    page: &'a LocksPage,
    empty: Option<Empty<'a>>,
    scanning: Option<Scanning>,
    range: String,
    total: String,
    first: Option<String>,
    next: Option<String>,
}

impl HtmlSafe for Foot<'_> {}

/// How far the first pass has come.
struct Scanning {
    seen: String,
    of: Option<(String, u64)>,
    value: u64,
}

/// Why a table has no rows.
enum Empty<'a> {
    /// The filter is wrong.
    Filter,
    /// No server can be read, and what the first says.
    Down(&'a str),
    /// The first look at all keys is not done.
    Scanning,
    /// The filter matches nothing.
    NoMatch,
    /// Nothing is held, as far as these sources, which do not fare well, can tell.
    Incomplete(Vec<&'a SourceView>),
    /// Nothing is held.
    NothingHeld,
}

impl<'a> Foot<'a> {
    fn new(page: &'a LocksPage) -> Self {
        let chrome = &page.chrome;
        let (first, last) = (page.skipped + 1, page.skipped + page.rows.len());
        Self {
            page,
            empty: Self::why_empty(page),
            scanning: chrome.first_scan.map(|progress| Scanning {
                seen: format::count(progress.seen),
                of: progress.of.map(|of| (format::count(of), of.max(1))),
                value: progress.seen.min(progress.of.unwrap_or(u64::MAX)),
            }),
            range: match first == last {
                true => format::count(first as u64),
                false => format!("{}–{}", format::count(first as u64), format::count(last as u64)),
            },
            total: format::count(page.total as u64),
            first: page.cursor.as_ref().map(|_| links::at(page, None)),
            next: page.next.as_deref().map(|next| links::at(page, Some(next))),
        }
    }

    fn why_empty(page: &'a LocksPage) -> Option<Empty<'a>> {
        let servers = &page.chrome.servers;
        let ailing = |source: &&'a SourceView| {
            !matches!(source.state, SourceState::On | SourceState::Off | SourceState::Paused)
        };
        let ailing: Vec<_> = page.chrome.sources.iter().filter(ailing).collect();
        let down = || servers.iter().find_map(|server| server.down.as_ref());
        if !page.rows.is_empty() {
            None
        } else if page.filter_error.is_some() {
            Some(Empty::Filter)
        } else if let Some(down) = down().filter(|_| servers.iter().all(|s| s.down.is_some())) {
            Some(Empty::Down(&down.reason))
        } else if page.chrome.first_scan.is_some() {
            Some(Empty::Scanning)
        } else if !page.filter.trim().is_empty() {
            Some(Empty::NoMatch)
        } else if !ailing.is_empty() {
            Some(Empty::Incomplete(ailing))
        } else {
            Some(Empty::NothingHeld)
        }
    }

    fn counts(&self) -> &super::Counts {
        &self.page.chrome.counts
    }
}

#[derive(Template)]
#[template(path = "locks.html")]
struct LocksTemplate<'a> {
    frame: Frame<'a>,
    page: &'a LocksPage,
    views: Views,
    columns: Vec<Column>,
    rows: Vec<Row<'a>>,
    foot: Foot<'a>,
    json: String,
}

/// The page.
///
/// # Errors
/// When the template fails, which is a bug.
pub fn locks_page(page: &LocksPage) -> Result<String, askama::Error> {
    let Chrome { several_deployments, several_dbs, now, .. } = page.chrome;
    let row = |lock| Row::new(lock, several_deployments, several_dbs, now);
    let frame = Frame::new(title(page), "locks", &page.chrome);
    LocksTemplate {
        // A wrong filter has no stream.
        frame: if page.filter_error.is_some() { frame.still() } else { frame },
        page,
        views: Views::new(page),
        columns: columns(page),
        rows: page.rows.iter().map(|lock| row(lock)).collect(),
        foot: Foot::new(page),
        json: links::locks_json(page),
    }
    .render()
}

/// The document's title.
pub(super) fn title(page: &LocksPage) -> String {
    page::title(&page.chrome, "Locks")
}

/// The parts around the rows that a stream keeps true; none of them holds an age.
pub(super) fn regions(page: &LocksPage) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![("views", Views::new(page).render()?), ("foot", Foot::new(page).render()?)])
}
