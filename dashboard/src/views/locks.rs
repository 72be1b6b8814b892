//! `/`: the list of locks.

use askama::Template;

use super::fragments::{Fragments, LiveRow};
use super::list_view::{Heading, ListView};
use super::row::Row;
use super::tabs::Tabs;
use super::{Chrome, ListPage};
use crate::clock::SteadyMillis;
use crate::query::LockRow;

impl ListView for LockRow {
    const PATH: &'static str = "/";
    const TITLE: &'static str = "Locks";
    const COLUMNS: &'static [Heading] = &[
        Heading { hint: "Sort by name", ..Heading::sorted_by("Lock", "name", "name") },
        Heading {
            hint: "Problems first, then the longest held",
            ..Heading::sorted_by("State", "problems", "state")
        },
        Heading { hint: "Sort by owner", ..Heading::sorted_by("Owner", "holder", "holder") },
        Heading {
            hint: "Sort by how long it is held",
            ..Heading::sorted_by("Held for", "age", "held")
        },
        Heading::unsorted("Waiting", "figure"),
        Heading { hint: "Sort by TTL", ..Heading::sorted_by("TTL", "ttl", "ttl") },
    ];
    const NOTHING: (&'static str, &'static str) =
        ("No lock is held", "All keys have been scanned, and no lock is held.");
    const ABOUT: &'static str = "";

    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error> {
        Row::new(self, chrome.several_deployments, chrome.several_dbs, now).render()
    }

    fn live_row(&self, chrome: &Chrome, fragments: &Fragments) -> Result<LiveRow, askama::Error> {
        fragments.row(self, chrome)
    }

    fn tabs(page: &ListPage<Self>) -> Option<Tabs> {
        Some(Tabs::new(page.facets.as_deref()?, &page.filter))
    }
}
