//! `/`: the list of locks.

use askama::Template;
use askama::filters::HtmlSafe;

use super::fragments::{Fragments, LiveRow};
use super::list::{Heading, ListView};
use super::row::Row;
use super::{Chrome, format, links};
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
        Heading {
            hint: "Sort by time to live",
            ..Heading::sorted_by("Time to live", "ttl", "ttl")
        },
    ];
    const NOTHING: (&'static str, &'static str) = (
        "No lock is held",
        "Every key has been looked at, and no lock is held right now. The next one shows here by itself.",
    );
    const ABOUT: &'static str = "";

    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error> {
        Row::new(self, chrome.several_deployments, chrome.several_dbs, now).render()
    }

    fn live_row(&self, chrome: &Chrome, fragments: &Fragments) -> Result<LiveRow, askama::Error> {
        fragments.row(self, chrome)
    }

    fn tabs(chrome: &Chrome, filter: &str) -> Option<Tabs> {
        Some(Tabs::new(chrome, filter))
    }
}

/// Links to the list with the filters used most, each with the number of its locks.
#[derive(Debug, Template)]
#[template(path = "parts/tabs.html")]
pub struct Tabs {
    tabs: Vec<Tab>,
}

impl HtmlSafe for Tabs {}

#[derive(Debug)]
struct Tab {
    label: &'static str,
    count: String,
    link: String,
    here: bool,
    alarming: bool,
}

impl Tabs {
    fn new(chrome: &Chrome, shown: &str) -> Self {
        let counts = &chrome.counts;
        let tab = |label, count: usize, filter: &str, alarming| Tab {
            label,
            count: format::count(count as u64),
            link: links::filtered(filter),
            here: shown.trim() == filter,
            alarming: alarming && count > 0,
        };
        let mut tabs = vec![
            tab("Held", counts.held, "", false),
            tab("With problems", counts.with_problems, PROBLEMS, true),
            tab("Unconfirmed", counts.unconfirmed, UNCONFIRMED, false),
        ];
        if counts.acknowledged > 0 {
            tabs.push(tab("Acknowledged", counts.acknowledged, ACKNOWLEDGED, false));
        }
        if counts.unknown > 0 {
            tabs.push(tab("Not readable", counts.unknown, UNKNOWN, true));
        }
        Self { tabs }
    }
}

const PROBLEMS: &str = "problem:any acknowledged:no";
const ACKNOWLEDGED: &str = "acknowledged:yes";
const UNCONFIRMED: &str = "confirmed:no";
const UNKNOWN: &str = "state:unknown";
