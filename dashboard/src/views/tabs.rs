//! The links to the views of a list.

use askama::Template;
use askama::filters::HtmlSafe;

use super::{format, links};
use crate::query::Filter;
use crate::query::facets::{Facets, VIEWS};

/// The links. Those of the list of locks show the number of locks that match the rest of the filter.
#[derive(Debug, Template)]
#[template(path = "parts/tabs.html")]
pub struct Tabs {
    tabs: Vec<Tab>,
}

impl HtmlSafe for Tabs {}

#[derive(Debug)]
struct Tab {
    label: &'static str,
    count: Option<String>,
    link: String,
    here: bool,
    alarming: bool,
}

/// The labels of [`VIEWS`], whether each is shown without a lock, and whether it is alarming if there are some.
const LABELS: [(&str, bool, bool); VIEWS.len()] = [
    ("Active", true, false),
    ("With problems", true, true),
    ("Waited for", true, false),
    ("Unconfirmed", true, false),
    ("Acknowledged", false, false),
    ("Not readable", false, true),
    ("Free", false, false),
];

impl Tabs {
    /// Returns links without numbers: the label of each, its address, and true if it is the page's own.
    pub(super) fn plain(tabs: impl Iterator<Item = (&'static str, String, bool)>) -> Self {
        let tab = |(label, link, here)| Tab { label, count: None, link, here, alarming: false };
        Self { tabs: tabs.map(tab).collect() }
    }

    pub(super) fn new(facets: &Facets, shown: &str) -> Self {
        let rest = Filter::without_view(shown);
        let here = words(&Filter::view(shown));
        let searches_names = Filter::parse(&rest).is_ok_and(|rest| rest.searches_names());
        let tab = |((view, count), (label, always, alarming)): ((&str, usize), _)| {
            // A search for names also finds free locks.
            let label = if view.is_empty() && searches_names { "All" } else { label };
            let here = here == words(view);
            let link = links::filtered(format!("{rest} {view}").trim());
            let shown = Some(format::count(count as u64));
            let tab = Tab { label, count: shown, link, here, alarming: alarming && count > 0 };
            (always || count > 0 || here).then_some(tab)
        };
        let counted = VIEWS.into_iter().zip(facets.views);
        Self { tabs: counted.zip(LABELS).filter_map(tab).collect() }
    }
}

/// Returns the terms of a view, sorted.
fn words(view: &str) -> Vec<String> {
    let mut words: Vec<String> = view.split_whitespace().map(str::to_ascii_lowercase).collect();
    words.sort_unstable();
    words
}
