//! Links that narrow the list of locks down, each with the number of locks that it leads to.

use askama::Template;
use askama::filters::HtmlSafe;

use super::{format, links};
use crate::model::types::ProblemKind;
use crate::query::Filter;
use crate::query::facets::{Facets, PROPERTIES, narrowed};
use crate::text;

/// The headings of [`PROPERTIES`].
const HEADINGS: [&str; PROPERTIES.len()] = ["Prefix", "Service", "Host", "Problem", "Kind"];
/// The property that narrows down by levels.
const PREFIX: usize = 0;

#[derive(Debug, Template)]
#[template(path = "parts/facets.html")]
pub(super) struct FacetLinks {
    groups: Vec<Group>,
}

impl HtmlSafe for FacetLinks {}

#[derive(Debug)]
struct Group {
    heading: &'static str,
    /// The chosen prefix, and the list without it.
    chosen: Option<(String, String)>,
    values: Vec<Value>,
    /// The number of further values.
    more: Option<String>,
}

#[derive(Debug)]
struct Value {
    text: String,
    count: String,
    link: String,
    /// True if the filter contains this value; the link then removes it.
    here: bool,
}

impl FacetLinks {
    pub(super) fn new(facets: &Facets, filter: &str) -> Self {
        let groups = PROPERTIES.into_iter().enumerate().map(|(i, key)| {
            let chosen = (i == PREFIX).then(|| chosen_prefix(filter)).flatten();
            let values = facets.top[i].iter().map(|(value, count)| {
                // A longer prefix replaces the shorter one.
                let base = match i {
                    PREFIX => Filter::without_prefix(filter),
                    _ => filter.trim().to_owned(),
                };
                let more = narrowed(&base, key, value);
                let without = Filter::without_term(filter, &narrowed("", key, value));
                let here = i != PREFIX && without != filter.trim();
                let problem = ProblemKind::parse(value).filter(|_| key == "problem");
                Value {
                    text: problem
                        .map_or_else(|| text::visible(value.as_bytes()), |it| it.name().to_owned()),
                    count: format::count(*count as u64),
                    link: links::filtered(if here { &without } else { &more }),
                    here,
                }
            });
            let values: Vec<Value> = values.collect();
            let more = facets.more[i];
            let more = (more > 0).then(|| format::count(more as u64));
            Group { heading: HEADINGS[i], chosen, values, more }
        });
        // A single value that all locks share narrows nothing down.
        let is_useful = |group: &Group| {
            group.chosen.is_some()
                || group.values.len() > 1
                || group.values.iter().any(|v| v.here)
                || matches!(group.heading, "Problem" | "Service" | "Host")
                    && !group.values.is_empty()
        };
        Self { groups: groups.filter(is_useful).collect() }
    }
}

/// Returns the prefix that a filter asks for, and the address of the list without it.
fn chosen_prefix(filter: &str) -> Option<(String, String)> {
    let parsed = Filter::parse(filter).ok()?;
    let prefix = text::visible(parsed.prefix()?);
    Some((prefix, links::filtered(&Filter::without_prefix(filter))))
}
