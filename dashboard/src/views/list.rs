//! The page of a list, and its parts that a stream updates.

use askama::Template;
use askama::filters::HtmlSafe;

use super::contention::Groups;
use super::facets::FacetLinks;
use super::foot::{Foot, Shown};
use super::format::AGELESS;
use super::incidents::Cleared;
use super::list_view::{Heading, ListView, address};
use super::page::{self, Frame, MonitorHint};
use super::prose::Prose;
use super::tabs::Tabs;
use super::{Chrome, ListPage};
use crate::query::Order;

/// HTML that a template has rendered.
struct Rendered(String);

impl std::fmt::Display for Rendered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Rendered {}

/// A column as the table's head shows it.
pub(super) struct Column {
    label: &'static str,
    hint: &'static str,
    class: &'static str,
    /// The address of the list sorted by this column.
    link: Option<String>,
    /// The order of the list, if it is sorted by this column.
    sorted: Option<Order>,
}

impl Column {
    fn new<T: ListView>(page: &ListPage<T>, heading: &Heading) -> Self {
        let Heading { label, hint, sort, class } = *heading;
        let sorted = (sort == Some(page.sort)).then_some(page.order);
        let link = sort.map(|sort| {
            let order = sorted.map_or_else(|| T::default_order(sort), Order::reversed);
            address(page, T::PATH, (sort, order), &[])
        });
        Self { label, hint, class, link, sorted }
    }
}

fn foot<T: ListView>(page: &ListPage<T>) -> Foot<'_> {
    let at = |cursor: Option<&str>| {
        address(page, T::PATH, (page.sort, page.order), &[("cursor", cursor)])
    };
    Foot::new(
        &page.chrome,
        Shown {
            filter: &page.filter,
            filter_error: page.filter_error.is_some(),
            rows: page.rows.len(),
            skipped: page.skipped,
            total: page.total,
            first: page.cursor.as_ref().map(|_| at(None)),
            prev: page.prev.as_deref().map(|prev| at(Some(prev))),
            next: page.next.as_deref().map(|next| at(Some(next))),
            nothing: T::NOTHING,
            all: T::PATH.to_owned(),
        },
    )
}

#[derive(Template)]
#[template(path = "list.html")]
struct ListTemplate<'a, T> {
    frame: Frame<'a>,
    page: &'a ListPage<T>,
    path: &'static str,
    title: &'static str,
    name: &'static str,
    about: &'static str,
    tabs: Option<Tabs>,
    facets: Option<FacetLinks>,
    /// The grouping, sort and order, unless they are the default.
    by: Option<&'static str>,
    sort: Option<&'static str>,
    order: Option<&'static str>,
    columns: Vec<Column>,
    rows: Vec<Rendered>,
    foot: Foot<'a>,
    /// The hint at MONITOR, or `None` on pages that are not about waiters.
    hint: Option<MonitorHint>,
    groups: Option<Groups<'a>>,
    cleared: Option<Cleared>,
    json: String,
    csv: String,
}

/// Renders the page.
///
/// # Errors
/// If a template fails, which is a bug.
pub fn list_page<T: ListView>(page: &ListPage<T>) -> Result<String, askama::Error> {
    let frame = Frame::new(title(page), T::NAME, &page.chrome);
    let api = |more: &[(&str, Option<&str>)]| {
        let path = format!("/api/v1/{}", T::NAME);
        address(page, &path, (page.sort, page.order), more)
    };
    let is_default_order = page.order == T::default_order(page.sort);
    let rows = page.rows.iter().map(|row| row.html(&page.chrome, page.chrome.now));
    let rows = rows.map(|html| html.map(Rendered));
    ListTemplate {
        // A list with a wrong filter has no stream.
        frame: if page.filter_error.is_some() { frame.still() } else { frame },
        page,
        path: T::PATH,
        title: T::TITLE,
        name: T::NAME,
        about: T::ABOUT,
        tabs: T::tabs(page),
        facets: page.facets.as_deref().map(|facets| FacetLinks::new(facets, &page.filter)),
        by: Some(page.by).filter(|by| T::GROUPINGS[0] != *by),
        sort: Some(page.sort).filter(|sort| T::SORTS[0] != *sort),
        order: (!is_default_order).then_some(page.order.as_str()),
        columns: T::columns(page.by).iter().map(|heading| Column::new(page, heading)).collect(),
        rows: rows.collect::<Result<_, _>>()?,
        foot: foot(page),
        hint: page.contention.is_some().then(|| MonitorHint::new(&page.chrome)),
        groups: groups(page),
        cleared: T::CLEARED.then(|| Cleared::new(page)),
        json: api(&[("cursor", page.cursor.as_deref())]),
        csv: api(&[("format", Some("csv"))]),
    }
    .render()
}

fn groups<T: ListView>(page: &ListPage<T>) -> Option<Groups<'_>> {
    let several = page.chrome.several_deployments;
    page.contention.as_deref().map(|contention| Groups::new(contention, several))
}

/// Returns the document's title.
pub(super) fn title<T: ListView>(page: &ListPage<T>) -> String {
    page::title(&page.chrome, T::TITLE)
}

/// Renders the parts around the rows that a stream updates. None of them contains an age.
pub(super) fn regions<T: ListView>(
    page: &ListPage<T>,
) -> Result<Vec<(&'static str, String)>, askama::Error> {
    let mut regions = vec![("foot", foot(page).render()?)];
    if let Some(tabs) = T::tabs(page) {
        regions.push(("views", tabs.render()?));
    }
    if let Some(facets) = &page.facets {
        regions.push(("facets", FacetLinks::new(facets, &page.filter).render()?));
    }
    if let Some(groups) = groups(page) {
        regions.push(("hint", MonitorHint::new(&page.chrome).render()?));
        regions.push(("groups", groups.render()?));
    }
    if T::CLEARED {
        let now = AGELESS;
        let chrome = Chrome { now, ..page.chrome.clone() };
        regions.push(("cleared", Cleared::of(&chrome, &page.cleared, page.chrome.now).render()?));
    }
    Ok(regions)
}
