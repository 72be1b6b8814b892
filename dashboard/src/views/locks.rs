//! `/`: the table of locks.

use askama::Template;
use askama::filters::HtmlSafe;

use super::foot::{Foot, Shown};
use super::format::{self, Prose};
use super::list::Column;
use super::page::{self, Frame};
use super::row::Row;
use super::{Chrome, LocksPage, Order, Sort, links};

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
        Column { label, hint, link, sorted, class }
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
        if counts.acknowledged > 0 {
            views.push(view("Acknowledged", counts.acknowledged, ACKNOWLEDGED, false));
        }
        if counts.unknown > 0 {
            views.push(view("Not readable", counts.unknown, UNKNOWN, true));
        }
        Self { views }
    }
}

/// Filters behind the views' links.
const PROBLEMS: &str = "problem:any acknowledged:no";
const ACKNOWLEDGED: &str = "acknowledged:yes";
const UNCONFIRMED: &str = "confirmed:no";
const UNKNOWN: &str = "state:unknown";

fn foot(page: &LocksPage) -> Foot<'_> {
    Foot::new(
        &page.chrome,
        Shown {
            filter: &page.filter,
            filter_error: page.filter_error.is_some(),
            rows: page.rows.len(),
            skipped: page.skipped,
            total: page.total,
            first: page.cursor.as_ref().map(|_| links::at(page, None)),
            next: page.next.as_deref().map(|next| links::at(page, Some(next))),
            nothing: (
                "No lock is held",
                "Every key has been looked at, and no lock is held right now. The next one shows here by itself.",
            ),
            all: "/".to_owned(),
        },
    )
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
    csv: String,
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
        foot: foot(page),
        json: links::locks_json(page),
        csv: links::locks_csv(page),
    }
    .render()
}

/// The document's title.
pub(super) fn title(page: &LocksPage) -> String {
    page::title(&page.chrome, "Locks")
}

/// The parts around the rows that a stream keeps true; none of them holds an age.
pub(super) fn regions(page: &LocksPage) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![("views", Views::new(page).render()?), ("foot", foot(page).render()?)])
}
