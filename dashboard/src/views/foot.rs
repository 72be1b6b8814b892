//! The foot of a table: the reason that it is empty, or its range of rows.

use askama::Template;
use askama::filters::HtmlSafe;

use super::Chrome;
use super::format;
use super::prose::Prose;
use crate::sources::view::{SourceState, SourceView};

/// The range of rows that a table shows.
pub(super) struct Shown<'a> {
    /// The filter as typed by the visitor.
    pub(super) filter: &'a str,
    /// True if the filter is wrong.
    pub(super) filter_error: bool,
    /// The number of rows on this page.
    pub(super) rows: usize,
    /// The number of rows before this page.
    pub(super) skipped: usize,
    /// The number of all rows.
    pub(super) total: usize,
    /// The address of the first page, if this is another one.
    pub(super) first: Option<String>,
    /// The address of the previous page, if there is one.
    pub(super) prev: Option<String>,
    /// The address of the next page, if there is one.
    pub(super) next: Option<String>,
    /// The text of an empty list: a heading and a sentence.
    pub(super) nothing: (&'static str, &'static str),
    /// The address of the table without a filter.
    pub(super) all: String,
}

#[derive(Template)]
#[template(path = "parts/foot.html")]
pub(super) struct Foot<'a> {
    shown: Shown<'a>,
    chrome: &'a Chrome,
    empty: Option<Empty<'a>>,
    scanning: Option<Scanning>,
    range: String,
    total: String,
}

impl HtmlSafe for Foot<'_> {}

/// The progress of the first scan.
struct Scanning {
    seen: String,
    of: Option<(String, u64)>,
    value: u64,
}

/// The reason why a table has no rows.
enum Empty<'a> {
    /// The filter is wrong.
    Filter,
    /// No server can be read. The text is the error of the first one.
    Down(Prose<'a>),
    /// The first scan of all keys is not complete.
    Scanning,
    /// The filter matches nothing.
    NoMatch,
    /// There are no rows, but some may be missing: these sources have trouble, or a cluster is only partly visible.
    Incomplete(Vec<&'a SourceView>),
    /// There are no rows.
    Nothing,
}

impl<'a> Foot<'a> {
    pub(super) fn new(chrome: &'a Chrome, shown: Shown<'a>) -> Self {
        let (first, last) = (shown.skipped + 1, shown.skipped + shown.rows);
        Self {
            empty: why_empty(chrome, &shown),
            scanning: chrome.first_scan.map(|progress| Scanning {
                seen: format::count(progress.seen),
                of: progress.of.map(|of| (format::count(of), of.max(1))),
                value: progress.seen.min(progress.of.unwrap_or(u64::MAX)),
            }),
            range: match first == last {
                true => format::count(first as u64),
                false => format!("{}–{}", format::count(first as u64), format::count(last as u64)),
            },
            total: format::count(shown.total as u64),
            shown,
            chrome,
        }
    }
}

fn why_empty<'a>(chrome: &'a Chrome, shown: &Shown<'_>) -> Option<Empty<'a>> {
    let servers = &chrome.servers;
    let ailing = |source: &&'a SourceView| {
        !matches!(source.state, SourceState::On | SourceState::Off | SourceState::Paused)
    };
    let ailing: Vec<_> = chrome.sources.iter().filter(ailing).collect();
    let down = || servers.iter().find_map(|server| server.down.as_ref());
    if shown.rows > 0 {
        None
    } else if shown.filter_error {
        Some(Empty::Filter)
    } else if let Some(down) = down().filter(|_| servers.iter().all(|s| s.down.is_some())) {
        Some(Empty::Down(down.reason.as_str().into()))
    } else if chrome.first_scan.is_some() {
        Some(Empty::Scanning)
    } else if !shown.filter.trim().is_empty() {
        Some(Empty::NoMatch)
    } else if !ailing.is_empty() || !chrome.partly_visible.is_empty() {
        Some(Empty::Incomplete(ailing))
    } else {
        Some(Empty::Nothing)
    }
}
