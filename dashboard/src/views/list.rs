//! Lists other than that of locks: owners, problems, contention.

use std::hash::{DefaultHasher, Hash, Hasher};

use askama::Template;
use askama::filters::HtmlSafe;

use super::contention::Groups;
use super::foot::{Foot, Shown};
use super::format::{Ago, Clock, Prose};
use super::page::{self, Frame};
use super::picture::Circle;
use super::row::{Badge, HolderCell, place, place_words, short_client};
use super::{Chrome, ListPage, Order, links};
use crate::clock::SteadyMillis;
use crate::model::types::{Acknowledgement, LockView};
use crate::query::list::Listed;
use crate::query::owners::OwnerRow;
use crate::query::problems::ProblemRow;
use crate::text;

/// A list that has a page.
pub trait ListView: Listed {
    /// What the page is called.
    const TITLE: &'static str;
    /// Its columns: heading, what it is sorted by there, class.
    const COLUMNS: &'static [(&'static str, Option<&'static str>, &'static str)];
    /// What is said where there is nothing: a heading, and why.
    const NOTHING: (&'static str, &'static str);
    /// What the list is, a sentence.
    const ABOUT: &'static str;

    /// A row as HTML: its start tag, then each of its cells, on a line of their own.
    ///
    /// # Errors
    /// When the template fails, which is a bug.
    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error>;
}

/// A row's id within a page.
pub(super) fn row_id(id: &str) -> String {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("l{:016x}", hasher.finish())
}

/// A lock's name with its link and place.
#[derive(Template)]
#[template(path = "parts/lock_name.html")]
pub(super) struct LockLink {
    link: String,
    name: String,
    place: Option<String>,
}

impl HtmlSafe for LockLink {}

impl LockLink {
    pub(super) fn new(id: &crate::model::types::LockId, chrome: &Chrome) -> Self {
        Self {
            link: links::lock(id),
            name: text::visible(id.name.as_bytes()),
            place: place(id, chrome.several_deployments, chrome.several_dbs),
        }
    }
}

/// Who has held a lock longest of those that hold it.
pub(super) fn holder(lock: &LockView) -> Option<HolderCell<'_>> {
    let holder = lock.holders.iter().min_by_key(|holder| holder.since.at);
    holder.map(|holder| HolderCell::new(&lock.id.deployment, holder))
}

#[derive(Template)]
#[template(path = "parts/owner_row.html")]
struct OwnerTemplate<'a> {
    id: String,
    row: &'a OwnerRow,
    link: String,
    short: String,
    place: Option<String>,
    deployment: Option<&'a str>,
    oldest: Option<Ago>,
}

impl ListView for OwnerRow {
    const TITLE: &'static str = "Owners";
    const COLUMNS: &'static [(&'static str, Option<&'static str>, &'static str)] = &[
        ("Client", Some("id"), "name"),
        ("Process", None, "process"),
        ("Holds", Some("holds"), "figure"),
        ("With problems", Some("problems"), "figure"),
        ("Waits for", Some("waits"), "figure"),
        ("Oldest hold", Some("age"), "held"),
    ];
    const NOTHING: (&'static str, &'static str) =
        ("Nobody holds a lock", "Every key has been looked at, and no lock is held right now.");
    const ABOUT: &'static str = "Each client, a Redisson instance or an agent, with what it holds and waits for. \
        Who waits is known by name where MONITOR, a queue or an agent tells it.";

    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error> {
        OwnerTemplate {
            id: row_id(&Listed::id(self)),
            row: self,
            link: links::owner(&self.deployment, &self.id),
            short: short_client(&self.id),
            place: self.client.as_ref().and_then(place_words),
            deployment: chrome.several_deployments.then_some(&*self.deployment),
            oldest: self.oldest.map(|since| Ago::since(since, now)),
        }
        .render()
    }
}

#[derive(Template)]
#[template(path = "parts/problem_row.html")]
struct ProblemTemplate<'a> {
    id: String,
    badge: Badge,
    lock: LockLink,
    holder: Option<HolderCell<'a>>,
    evidence: Option<&'a crate::model::types::Evidence>,
    advice: Prose<'a>,
    circle: Option<Circle>,
    /// Who has it in hand, and until when.
    acknowledged: Option<(Clock, &'a Acknowledgement)>,
}

impl ListView for ProblemRow {
    const TITLE: &'static str = "Problems";
    const COLUMNS: &'static [(&'static str, Option<&'static str>, &'static str)] = &[
        ("Problem", Some("severity"), "state"),
        ("Lock", Some("name"), "name"),
        ("Holder", None, "holder"),
        ("What speaks for it, what to do", None, "advice"),
    ];
    const NOTHING: (&'static str, &'static str) = (
        "No problem is known",
        "Nothing is stuck, leaked, overdue, starving or deadlocked, as far as the sources see.",
    );
    const ABOUT: &'static str = "What is sure first, then what is suspected, then what somebody has in hand; the worst first, then the oldest.";

    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error> {
        let problem = self.problem();
        ProblemTemplate {
            id: row_id(&Listed::id(self)),
            badge: Badge::new(problem, now),
            lock: LockLink::new(&self.lock.id, chrome),
            holder: holder(&self.lock),
            evidence: problem.evidence.last(),
            advice: Prose(&problem.advice),
            circle: Circle::new(problem),
            acknowledged: problem
                .acknowledged
                .as_deref()
                .map(|word| (Clock::new(word.until, now), word)),
        }
        .render()
    }
}

/// HTML that a template made.
struct Rendered(String);

impl std::fmt::Display for Rendered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Rendered {}

/// A heading of a table.
pub(super) struct Column {
    pub(super) label: &'static str,
    /// What comes of pressing it, for those who point at it.
    pub(super) hint: &'static str,
    pub(super) class: &'static str,
    /// Where it is sorted by this column; none where it cannot be.
    pub(super) link: Option<String>,
    /// Which end is first where it is sorted by this column.
    pub(super) sorted: Option<Order>,
}

/// The address of a list as it is shown, sorted so.
fn address<T: ListView>(
    path: &str,
    page: &ListPage<T>,
    (sort, order): (&str, Order),
    more: &[(&str, Option<&str>)],
) -> String {
    let sorted = Some(sort).filter(|sort| T::SORTS.first() != Some(sort));
    let order = Some(order.as_str()).filter(|_| order != T::usual_order(sort));
    let own = [("filter", some(&page.filter)), ("sort", sorted), ("order", order)];
    links::address(path, &[&own, more].concat())
}

fn foot<T: ListView>(page: &ListPage<T>) -> Foot<'_> {
    let rows = &page.rows;
    let at = |cursor: Option<&str>| {
        address(&format!("/{}", T::NAME), page, (page.sort, page.order), &[("cursor", cursor)])
    };
    Foot::new(
        &page.chrome,
        Shown {
            filter: &page.filter,
            filter_error: page.filter_error.is_some(),
            rows: rows.rows.len(),
            skipped: rows.skipped,
            total: rows.total,
            first: page.cursor.as_ref().map(|_| at(None)),
            next: rows.next.as_deref().map(|next| at(Some(next))),
            nothing: T::NOTHING,
            all: format!("/{}", T::NAME),
        },
    )
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

#[derive(Template)]
#[template(path = "list.html")]
struct ListTemplate<'a> {
    frame: Frame<'a>,
    title: &'static str,
    name: &'static str,
    about: &'static str,
    filter: &'a str,
    filter_error: Option<&'a str>,
    sort: Option<&'static str>,
    order: Option<&'static str>,
    columns: Vec<Column>,
    rows: Vec<Rendered>,
    foot: Foot<'a>,
    groups: Option<Groups<'a>>,
    json: String,
    csv: String,
}

/// The page.
///
/// # Errors
/// When the template fails, which is a bug.
pub fn list_page<T: ListView>(page: &ListPage<T>) -> Result<String, askama::Error> {
    let frame = Frame::new(title(page), T::NAME, &page.chrome);
    // The column that it is sorted by leads to the other order.
    let sorted_by = |sort: &str| {
        let here = sort == page.sort;
        let order = if here { page.order.turned() } else { T::usual_order(sort) };
        address(&format!("/{}", T::NAME), page, (sort, order), &[])
    };
    let columns = T::COLUMNS.iter().map(|(label, sort, class)| {
        let sorted = (*sort == Some(page.sort)).then_some(page.order);
        let hint = if sorted.is_some() { "Turn the order round" } else { "Sort by this" };
        Column { label, hint, class, link: sort.map(sorted_by), sorted }
    });
    let api = |format: Option<&str>| {
        let path = format!("/api/v1/{}", T::NAME);
        address(&path, page, (page.sort, page.order), &[("format", format)])
    };
    let usual = T::SORTS.first() == Some(&page.sort);
    let usual_order = page.order == T::usual_order(page.sort);
    let rows = page.rows.rows.iter().map(|row| row.html(&page.chrome, page.chrome.now));
    let rows = rows.map(|html| html.map(Rendered));
    ListTemplate {
        // A wrong filter has no stream.
        frame: if page.filter_error.is_some() { frame.still() } else { frame },
        title: T::TITLE,
        name: T::NAME,
        about: T::ABOUT,
        filter: &page.filter,
        filter_error: page.filter_error.as_deref(),
        sort: (!usual).then_some(page.sort),
        order: (!usual_order).then_some(page.order.as_str()),
        columns: columns.collect(),
        rows: rows.collect::<Result<_, _>>()?,
        foot: foot(page),
        groups: page.contention.as_deref().map(Groups::new),
        json: api(None),
        csv: api(Some("csv")),
    }
    .render()
}

/// The document's title.
pub(super) fn title<T: ListView>(page: &ListPage<T>) -> String {
    page::title(&page.chrome, T::TITLE)
}

/// The parts around the rows that a stream keeps true; none of them holds an age.
pub(super) fn regions<T: ListView>(
    page: &ListPage<T>,
) -> Result<Vec<(&'static str, String)>, askama::Error> {
    let mut regions = vec![("foot", foot(page).render()?)];
    if let Some(contention) = &page.contention {
        regions.push(("groups", Groups::new(contention).render()?));
    }
    Ok(regions)
}
