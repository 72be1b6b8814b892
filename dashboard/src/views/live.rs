//! The event stream that updates an open page.
//!
//! The browser opens `/live?path=<the page's path and query, percent-encoded>`. When the snapshot changes, a page is
//! rendered again, at a bounded rate and once for all visitors. The result is a [`Picture`]: the page's rows and parts
//! as HTML, without ages and remaining times to live, which the script counts. A patch leads from one picture to another.
//!
//! Events, all named `patch`, each with one JSON object:
//!
//! | member | meaning |
//! | --- | --- |
//! | `now` | the dashboard's clock, epoch milliseconds; always present |
//! | `set` | the milliseconds by which the wall clock has been set since the dashboard's start; always present |
//! | `full` | true in a stream's first event, which contains everything: anything that it does not name is gone |
//! | `build` | in full events: [`super::assets::build`], so that a page of an older program notices the change |
//! | `title` | the document's title, when changed |
//! | `rows` | `{id: html}`: table rows new to this page or changed in most of their cells |
//! | `cells` | `{id: {line: html}}`: the changed lines of a row; 0 is its start tag, the others are its cells |
//! | `ttl` | `{id: [ttl_ms or null, observed_at]}`: a row's time to live as last read, and the instant of the read |
//! | `order` | `[id…]`: the rows of this page in order, when changed; a row that is not in it is gone |
//! | `regions` | `{id: html}`: the new content of an element of the page |
//! | `unread` | the age of the page in milliseconds, if the history that it shows cannot be read now |
//!
//! An event is sent at least every [`BEAT_MS`], with only `now`, `set` and `unread` if necessary ([`beat`]). Comments would be
//! invisible to a page's script, which treats a longer silence as a lost connection.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::format::AGELESS;
use super::fragments::{Fragments, LiveRow};
use super::{
    Chrome, HistoryPage, ListPage, ListView, LockPage, OverviewPage, OwnerPage, SourcesPage,
    assets, history, list, lock, lock_parts, overview, owner, page, row, sources, trace,
};
use crate::clock::{self, SteadyMillis, millis};
use crate::model::types::LockId;
use crate::query::list::RowId;
use crate::sources::view::SourceState;

/// The longest silence on a stream, milliseconds.
pub const BEAT_MS: u64 = 5_000;

/// The delay of a status line in which only ages have changed, in milliseconds.
const STATUS_MS: u64 = 2_000;

/// The parts that show how reliable the picture is.
const STATUS: [&str; 4] = ["health", "status", "alerts", "spoken"];

/// Returns the event for a stream that has been silent for [`BEAT_MS`]. `unread_for` is the age of its page if the history
/// cannot be read.
#[must_use]
pub fn beat(now: SteadyMillis, unread_for: Option<Duration>) -> String {
    let unread = unread_for.map(|age| format!(",\"unread\":{}", millis(age)));
    format!("{{\"now\":{},\"set\":{}{}}}", now.0, clock::set_by(), unread.unwrap_or_default())
}

/// An open page at one instant.
#[derive(Debug)]
pub struct Picture {
    now: u64,
    title: String,
    rows: Vec<LiveRow>,
    regions: Vec<(&'static str, Arc<str>)>,
    status_at: SteadyMillis,
    states: Vec<SourceState>,
}

#[derive(Debug, Serialize, Default)]
struct Patch<'a> {
    now: u64,
    /// The milliseconds by which the wall clock has been set.
    set: i64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    full: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    rows: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    cells: BTreeMap<&'a str, BTreeMap<usize, &'a str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    ttl: BTreeMap<&'a str, (Option<u64>, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    regions: BTreeMap<&'static str, &'a str>,
}

/// The parts of a page by the ids of their elements.
type Regions = Vec<(&'static str, String)>;

impl Picture {
    /// Renders a list. Parts equal to those of `before` are taken from it.
    ///
    /// # Errors
    /// If a template fails, which is a bug.
    pub fn list<T: ListView>(
        page: &ListPage<T>,
        before: Option<&Self>,
        fragments: &Fragments,
    ) -> Result<Self, askama::Error> {
        let rows = page.rows.iter().map(|row| row.live_row(&page.chrome, fragments));
        let rows = rows.collect::<Result<_, askama::Error>>()?;
        Self::new(&page.chrome, list::title(page), rows, list::regions(page)?, before)
    }

    /// Renders the page of a lock.
    ///
    /// # Errors
    /// If a template fails, which is a bug.
    pub fn lock(page: &LockPage, before: Option<&Self>) -> Result<Self, askama::Error> {
        let ageless = LockPage { chrome: ageless(&page.chrome), ..page.clone() };
        let regions = lock::regions(&ageless, page.chrome.now)?;
        let steps = trace::rows(&ageless)?;
        Self::new(&page.chrome, lock_parts::title(page), steps, regions, before)
    }

    /// Renders the page of a client.
    ///
    /// # Errors
    /// If a template fails, which is a bug.
    pub fn owner(
        page: &OwnerPage,
        before: Option<&Self>,
        fragments: &Fragments,
    ) -> Result<Self, askama::Error> {
        let rows = page.locks.iter().map(|lock| fragments.row(lock, &page.chrome));
        let rows = rows.collect::<Result<_, askama::Error>>()?;
        let ageless = OwnerPage { chrome: ageless(&page.chrome), ..page.clone() };
        Self::new(&page.chrome, owner::title(page), rows, owner::regions(&ageless)?, before)
    }

    /// Renders the page of the history.
    ///
    /// # Errors
    /// If a template fails, which is a bug.
    pub fn history(page: &HistoryPage, before: Option<&Self>) -> Result<Self, askama::Error> {
        let ageless = HistoryPage { chrome: ageless(&page.chrome), ..page.clone() };
        let regions = history::regions(&ageless)?;
        Self::new(&page.chrome, history::title(page), Vec::new(), regions, before)
    }

    /// Renders the overview.
    ///
    /// # Errors
    /// If a template fails, which is a bug.
    pub fn overview(page: &OverviewPage, before: Option<&Self>) -> Result<Self, askama::Error> {
        let ageless = OverviewPage { chrome: ageless(&page.chrome), ..page.clone() };
        let regions = overview::regions(&ageless)?;
        Self::new(&page.chrome, overview::title(&page.chrome), Vec::new(), regions, before)
    }

    /// Renders the page about sources.
    ///
    /// # Errors
    /// If a template fails, which is a bug.
    pub fn sources(page: &SourcesPage, before: Option<&Self>) -> Result<Self, askama::Error> {
        let ageless = SourcesPage { chrome: ageless(&page.chrome), ..page.clone() };
        let regions = sources::regions(&ageless)?;
        Self::new(&page.chrome, sources::title(page), Vec::new(), regions, before)
    }

    fn new(
        chrome: &Chrome,
        title: String,
        rows: Vec<LiveRow>,
        regions: Regions,
        before: Option<&Self>,
    ) -> Result<Self, askama::Error> {
        let mut regions: Vec<(&'static str, Arc<str>)> =
            regions.into_iter().map(|(id, html)| (id, html.into())).collect();
        let states: Vec<SourceState> = chrome.sources.iter().map(|source| source.state).collect();
        // The status line changes all the time with the ages of the sources, so it waits unless a state has changed.
        let waits = before.filter(|before| {
            before.states == states && chrome.now.millis_since(before.status_at) < STATUS_MS
        });
        let status_at = match waits {
            Some(before) => {
                let kept = before.regions.iter().filter(|(id, _)| STATUS.contains(id));
                regions.extend(kept.cloned());
                before.status_at
            }
            None => {
                let fresh = page::regions(&ageless(chrome))?;
                regions.extend(fresh.into_iter().map(|(id, html)| (id, html.into())));
                chrome.now
            }
        };
        Ok(Self { now: chrome.now.0, title, rows, regions, status_at, states })
    }

    /// Returns the size in bytes of the rows and parts, without those shared with `other`.
    #[must_use]
    pub fn size(&self, other: Option<&Self>) -> usize {
        let shared: HashSet<*const u8> =
            other.iter().flat_map(|other| other.texts()).map(str::as_ptr).collect();
        let own = self.texts().filter(|text| !shared.contains(&text.as_ptr()));
        own.map(str::len).sum::<usize>() + size_of_val(&*self.rows)
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let rows = self.rows.iter().flat_map(|row| [&*row.id, &*row.html]);
        rows.chain(self.regions.iter().map(|(_, html)| &**html))
    }

    /// Returns true if the page has a row of that lock.
    #[must_use]
    pub fn shows(&self, id: &LockId) -> bool {
        let id = row::row_id(RowId::of_lock(id));
        self.rows.iter().any(|row| *row.id == *id)
    }

    /// Returns the JSON of the event that makes a browser's page equal to this picture. Without `before`, it contains
    /// everything. Returns `None` if the page is already equal.
    ///
    /// # Errors
    /// If it cannot be written, which is a bug.
    pub fn patch(&self, before: Option<&Self>) -> Result<Option<String>, askama::Error> {
        let mut patch = Patch { now: self.now, set: clock::set_by(), ..Patch::default() };
        if before.is_none() {
            patch.full = true;
            patch.build = Some(assets::build());
        }
        if before.is_none_or(|before| before.title != self.title) {
            patch.title = Some(&self.title);
        }
        self.add_rows(before, &mut patch);
        let known: HashMap<&str, &Arc<str>> = before
            .map(|before| before.regions.iter().map(|(id, html)| (*id, html)).collect())
            .unwrap_or_default();
        for (id, html) in &self.regions {
            if known.get(id).is_none_or(|known| *known != html) {
                patch.regions.insert(id, html);
            }
        }
        if patch.is_empty() {
            return Ok(None);
        }
        serde_json::to_string(&patch).map(Some).map_err(|e| askama::Error::Custom(e.into()))
    }

    fn add_rows<'a>(&'a self, before: Option<&'a Self>, patch: &mut Patch<'a>) {
        let old: &[LiveRow] = before.map(|before| before.rows.as_slice()).unwrap_or_default();
        let known: HashMap<&str, &LiveRow> = old.iter().map(|row| (&*row.id, row)).collect();
        for row in &self.rows {
            let known = known.get(&*row.id);
            match known {
                Some(old) if Arc::ptr_eq(&old.html, &row.html) || old.html == row.html => {}
                Some(old) => match changed_lines(&old.html, &row.html) {
                    Some(lines) => drop(patch.cells.insert(&row.id, lines)),
                    None => drop(patch.rows.insert(&row.id, &row.html)),
                },
                None => drop(patch.rows.insert(&row.id, &row.html)),
            }
            if let Some(ttl) = row.ttl.filter(|_| known.is_none_or(|old| old.ttl != row.ttl)) {
                patch.ttl.insert(&row.id, ttl);
            }
        }
        let same = before.is_some()
            && old.len() == self.rows.len()
            && old.iter().zip(&self.rows).all(|(old, new)| old.id == new.id);
        if !same {
            patch.order = Some(self.rows.iter().map(|row| &*row.id).collect());
        }
    }
}

/// Returns the changed lines of a row, or `None` if most of the row is new.
fn changed_lines<'a>(old: &str, new: &'a str) -> Option<BTreeMap<usize, &'a str>> {
    let (old, lines): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    if old.len() != lines.len() {
        return None;
    }
    let pairs = old.iter().zip(&lines).enumerate();
    let changed: BTreeMap<usize, &str> =
        pairs.filter(|(_, (old, new))| old != new).map(|(i, (_, new))| (i, *new)).collect();
    let size: usize = changed.values().map(|line| line.len()).sum();
    (size * 4 <= new.len() * 3).then_some(changed)
}

fn ageless(chrome: &Chrome) -> Chrome {
    Chrome { now: AGELESS, ..chrome.clone() }
}

impl Patch<'_> {
    fn is_empty(&self) -> bool {
        !self.full
            && self.title.is_none()
            && self.rows.is_empty()
            && self.cells.is_empty()
            && self.ttl.is_empty()
            && self.order.is_none()
            && self.regions.is_empty()
    }
}
