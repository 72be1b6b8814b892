//! The pages of lists, and the rows of owners and problems.

use askama::Template;
use askama::filters::HtmlSafe;

use super::contention::Groups;
use super::facets::FacetLinks;
use super::foot::{Foot, Shown};
use super::format::{AGELESS, Ago, Prose};
use super::fragments::{Fragments, LiveRow};
use super::incidents::Cleared;
use super::locks::Tabs;
use super::owner_name::{OwnerName, short_client};
use super::page::{self, Frame, MonitorHint};
use super::row::{HolderCell, place, row_id};
use super::{Chrome, ListPage, links};
use crate::clock::SteadyMillis;
use crate::model::types::LockView;
use crate::query::facets::narrowed;
use crate::query::owners::OwnerRow;
use crate::query::{Listed, Order, Paged, with_term};
use crate::text;

/// A list that has a page.
pub trait ListView: Paged {
    /// The path of the page.
    const PATH: &'static str;
    const TITLE: &'static str;
    const COLUMNS: &'static [Heading];
    /// The heading and the sentence of an empty list.
    const NOTHING: (&'static str, &'static str);
    /// A sentence on the list; may be empty.
    const ABOUT: &'static str;

    /// Renders the row: its start tag and each of its cells on a line of their own.
    ///
    /// # Errors
    /// If the template fails, which is a bug.
    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error>;

    /// Renders the row as a stream sends it.
    ///
    /// # Errors
    /// If the template fails, which is a bug.
    fn live_row(&self, chrome: &Chrome, _fragments: &Fragments) -> Result<LiveRow, askama::Error> {
        let id = row_id(self.id());
        Ok(LiveRow { id: id.into(), html: self.html(chrome, AGELESS)?.into(), ttl: None })
    }

    /// Returns the columns of a list that is grouped by one of [`Listed::GROUPINGS`].
    fn columns(_by: &str) -> &'static [Heading] {
        Self::COLUMNS
    }

    /// Returns the links above the list, if it has some.
    fn tabs(_page: &ListPage<Self>) -> Option<Tabs> {
        None
    }
}

/// The heading of a column.
#[derive(Debug)]
pub struct Heading {
    pub label: &'static str,
    /// The effect of a click.
    pub hint: &'static str,
    /// The sort that a click selects, if the list can be sorted by this column.
    pub sort: Option<&'static str>,
    pub class: &'static str,
}

impl Heading {
    pub(super) const fn sorted_by(
        label: &'static str,
        sort: &'static str,
        class: &'static str,
    ) -> Self {
        Self { label, hint: "Sort by this", sort: Some(sort), class }
    }

    pub(super) const fn unsorted(label: &'static str, class: &'static str) -> Self {
        Self { label, hint: "", sort: None, class }
    }
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
        Self::at(id, chrome, None)
    }

    /// Returns one that leads to the lock as of an instant, if there is one.
    pub(super) fn at(
        id: &crate::model::types::LockId,
        chrome: &Chrome,
        at: Option<SteadyMillis>,
    ) -> Self {
        Self {
            link: at.map_or_else(|| links::lock(id), |at| links::lock_at(id, at)),
            name: text::visible(id.name.as_bytes()),
            place: place(id, chrome.several_deployments, chrome.several_dbs),
        }
    }
}

/// The holder that has held a lock longest.
pub(super) fn holder(lock: &LockView) -> Option<HolderCell<'_>> {
    let holder = lock.holders.iter().min_by_key(|holder| holder.since.at);
    holder.map(|holder| HolderCell::new(&lock.id.deployment, holder))
}

#[derive(Template)]
#[template(path = "parts/owner_row.html")]
struct OwnerTemplate<'a> {
    id: String,
    row: &'a OwnerRow,
    who: Who,
    deployment: Option<&'a str>,
    oldest: Option<Ago>,
}

/// The first cells of an owner's row.
enum Who {
    /// A client, and the beginning of its uuid.
    Instance(OwnerName, String),
    /// A service or host, and the locks that it holds.
    Group(String, String),
    /// Clients of which neither is known.
    Unknown(&'static str),
}

impl Who {
    fn new(row: &OwnerRow, chrome: &Chrome) -> Self {
        match (row.by, row.id.as_str()) {
            ("service", "") => Self::Unknown("no name"),
            ("host", "") => Self::Unknown("host not known"),
            (by @ ("service" | "host"), id) => {
                let filter = narrowed("", by, id);
                let filter = match chrome.several_deployments {
                    true => with_term(&filter, "deployment", &row.deployment),
                    false => filter,
                };
                Self::Group(text::visible(id.as_bytes()), links::filtered(&filter))
            }
            _ => Self::Instance(
                OwnerName::remembered(&row.deployment, &row.id, &chrome.names),
                short_client(&row.id),
            ),
        }
    }
}

/// The columns of owners: their kind, what is known of each, and numbers.
const fn owner_columns(kind: &'static str, known: &'static str) -> [Heading; 6] {
    [
        Heading::sorted_by(kind, "id", "name"),
        Heading::unsorted(known, "process"),
        Heading::sorted_by("Holds", "holds", "figure"),
        Heading::sorted_by("With problems", "problems", "figure"),
        Heading::sorted_by("Waits for", "waits", "figure"),
        Heading::sorted_by("Oldest hold", "age", "held"),
    ]
}

const BY_SERVICE: [Heading; 6] = owner_columns("Service", "Processes");
const BY_HOST: [Heading; 6] = owner_columns("Host", "Processes");

impl ListView for OwnerRow {
    const PATH: &'static str = "/owners";
    const TITLE: &'static str = "Owners";
    const COLUMNS: &'static [Heading] = &owner_columns("Owner", "Client");
    const NOTHING: (&'static str, &'static str) =
        ("Nobody holds a lock", "Every key has been looked at, and no lock is held right now.");
    const ABOUT: &'static str = "Who holds locks, and who waits for them: by client, which is a Redisson instance or an agent, by \
        service or by host. Waiters are known by name from MONITOR, from fair queues and from agents.";

    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error> {
        OwnerTemplate {
            id: row_id(self.id()),
            row: self,
            who: Who::new(self, chrome),
            deployment: chrome.several_deployments.then_some(&*self.deployment),
            oldest: self.oldest.map(|since| Ago::since(since, now)),
        }
        .render()
    }

    fn columns(by: &str) -> &'static [Heading] {
        match by {
            "service" => &BY_SERVICE,
            "host" => &BY_HOST,
            _ => Self::COLUMNS,
        }
    }

    fn tabs(page: &ListPage<Self>) -> Option<Tabs> {
        let (labels, here) = (["Instances", "Services", "Hosts"], page.by);
        Some(Tabs::plain(Self::GROUPINGS.iter().zip(labels).map(|(by, label)| {
            let page = ListPage { by, rows: Vec::new(), ..page.clone() };
            let link = address(&page, Self::PATH, (page.sort, page.order), &[]);
            (label, link, *by == here)
        })))
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

/// Returns the address of a list with its filter and grouping. Parameters with their default values are left out.
fn address<T: ListView>(
    page: &ListPage<T>,
    path: &str,
    (sort, order): (&str, Order),
    more: &[(&str, Option<&str>)],
) -> String {
    let own = [
        ("filter", Some(page.filter.as_str()).filter(|filter| !filter.is_empty())),
        ("by", Some(page.by).filter(|by| T::GROUPINGS[0] != *by)),
        ("sort", Some(sort).filter(|sort| T::SORTS[0] != *sort)),
        ("order", Some(order.as_str()).filter(|_| order != T::default_order(sort))),
    ];
    links::address(path, &[&own, more].concat())
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
    /// Grouping, sort and order, unless they are the default.
    by: Option<&'static str>,
    sort: Option<&'static str>,
    order: Option<&'static str>,
    columns: Vec<Column>,
    rows: Vec<Rendered>,
    foot: Foot<'a>,
    /// The hint at MONITOR; none on pages that are not about waiters.
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
        groups: page.contention.as_deref().map(Groups::new),
        cleared: T::CLEARED.then(|| Cleared::new(page)),
        json: api(&[("cursor", page.cursor.as_deref())]),
        csv: api(&[("format", Some("csv"))]),
    }
    .render()
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
    if let Some(contention) = &page.contention {
        regions.push(("hint", MonitorHint::new(&page.chrome).render()?));
        regions.push(("groups", Groups::new(contention).render()?));
    }
    if T::CLEARED {
        let now = AGELESS;
        let chrome = Chrome { now, ..page.chrome.clone() };
        regions.push(("cleared", Cleared::of(&chrome, &page.cleared, page.chrome.now).render()?));
    }
    Ok(regions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::fixtures::{grouped_owners, locks as locks_page};

    #[test]
    fn addresses_leave_out_defaults() {
        let locks = |filter: &str, sort: &str, order, cursor| {
            let page = ListPage { filter: filter.into(), ..locks_page(Vec::new()) };
            address(&page, "/", (sort, order), &[("cursor", cursor)])
        };
        assert_eq!(locks("", "problems", Order::Descending, None), "/");
        assert_eq!(locks("", "age", Order::Descending, None), "/?sort=age");
        assert_eq!(
            locks("x", "ttl", Order::Descending, Some("c=")),
            "/?filter=x&sort=ttl&order=desc&cursor=c%3D"
        );
        let page = grouped_owners("service");
        let services = address(&page, "/owners", ("holds", Order::Descending), &[]);
        assert_eq!(services, "/owners?by=service");
    }
}
