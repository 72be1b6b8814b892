//! `/owners`: the owners that hold locks or wait for them.

use askama::Template;

use super::format::Ago;
use super::list_view::{Heading, ListView, address};
use super::owner_name::{OwnerName, short_client};
use super::row::row_id;
use super::tabs::Tabs;
use super::{Chrome, ListPage, links};
use crate::clock::SteadyMillis;
use crate::query::Listed;
use crate::query::facets::narrowed;
use crate::query::owners::OwnerRow;
use crate::text;

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
    /// A service or host, and the address of the locks that it holds.
    Group(String, String),
    /// Clients whose service or host is not known.
    Unknown(&'static str),
}

impl Who {
    fn new(row: &OwnerRow, chrome: &Chrome) -> Self {
        match (row.by, row.id.as_str()) {
            ("service", "") => Self::Unknown("no name"),
            ("host", "") => Self::Unknown("host not known"),
            (by @ ("service" | "host"), id) => {
                let place = chrome.several_deployments.then_some(&*row.deployment);
                let filter = links::in_deployment(narrowed("", by, id), place);
                Self::Group(text::visible(id.as_bytes()), links::filtered(&filter))
            }
            _ => Self::Instance(
                OwnerName::remembered(&row.deployment, &row.id, &chrome.names),
                short_client(&row.id),
            ),
        }
    }
}

/// Returns the columns of owners: their kind, the facts known about each, and numbers.
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
        ("Nobody holds a lock", "All keys have been scanned and no lock is held.");
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
