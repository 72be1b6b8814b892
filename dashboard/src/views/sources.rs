//! `/sources`: the sources from which the dashboard learns about locks, and their blind spots.

use askama::Template;
use askama::filters::HtmlSafe;

use super::SourcesPage;
use super::format::{self, Ago, Clock};
use super::links;
use super::page::{self, Frame, state_tone};
use super::prose::Prose;
use crate::model::types::Notice;
use crate::sources::view::ServerView;
use crate::sources::view::{SourceState, SourceView};
use crate::text::counted;

/// The description of a source.
struct SourceDescription {
    label: &'static str,
    sees: &'static str,
}

fn describe(source: &str) -> SourceDescription {
    match source {
        "scan" => SourceDescription {
            label: "Scan",
            sees: "Walks over all keys with SCAN and looks at small hashes that have a lock’s shape. \
                   Finds locks that no other source has seen yet.",
        },
        "channels" => SourceDescription {
            label: "Channels",
            sees: "Listens on the channels on which releases are published. \
                   Shows a release at once, and names of locks that no scan has found.",
        },
        "poll" => SourceDescription {
            label: "Poll",
            sees: "Reads known locks again: holders, counts, TTL. \
                   Shows renewals, reentries, expiry and new holders.",
        },
        "subscribers" => SourceDescription {
            label: "Subscribers",
            sees: "Counts the connections that listen for a lock’s release. Each is at least one waiter, \
                   and may represent many threads.",
        },
        "keyspace" => SourceDescription {
            label: "Keyspace",
            sees: "Receives a notification when the key of a known lock is changed or expires, if the server \
                   publishes keyspace notifications. Shows changes sooner than reading again would.",
        },
        "identity" => SourceDescription {
            label: "Identity",
            sees: "Reads what agents publish about the processes behind their holds, and which addresses are \
                   connected. Shows who a holder is, and whether it is still alive.",
        },
        "monitor" => SourceDescription {
            label: "Monitor",
            sees: "Reads the lock commands that MONITOR shows for all clients. \
                   Shows attempts that were refused, waiters, and the address behind a holder. Costs the \
                   server time for each command, so it is on only while the server is quiet.",
        },
        _ => SourceDescription { label: "", sees: "" },
    }
}

struct Line<'a> {
    view: &'a SourceView,
    label: &'a str,
    /// The database, if the source reads one of several; otherwise empty.
    db: &'a str,
    sees: &'static str,
    word: &'static str,
    tone: &'static str,
    ago: Option<Ago>,
    /// The address that requests MONITOR for a while, if that is possible.
    watch: Option<String>,
}

struct Server<'a> {
    view: &'a ServerView,
    down: Option<Ago>,
    lines: Vec<Line<'a>>,
}

#[derive(Template)]
#[template(path = "parts/sources.html")]
struct Servers<'a> {
    servers: Vec<Server<'a>>,
    scanning: Option<(String, Option<String>)>,
    limits: &'a [String],
    notices: Vec<(Clock, &'a Notice)>,
    not_kept: Option<String>,
}

impl HtmlSafe for Servers<'_> {}

impl<'a> Servers<'a> {
    fn new(page: &'a SourcesPage) -> Self {
        let chrome = &page.chrome;
        let line = |view: &'a SourceView, db: &'a str| {
            let about = describe(view.source);
            Line {
                view,
                label: if about.label.is_empty() { view.source } else { about.label },
                db,
                sees: about.sees,
                word: view.state.as_str(),
                tone: state_tone(&view.state),
                ago: view.last_success.map(|at| Ago::new(at, chrome.now)),
                watch: (view.source == "monitor" && view.state == SourceState::Paused)
                    .then(|| links::watch(&view.deployment)),
            }
        };
        let servers = chrome.servers.iter().map(|server| Server {
            view: server,
            down: server.down.as_ref().map(|down| Ago::new(down.since, chrome.now)),
            lines: chrome
                .sources
                .iter()
                .filter_map(|source| Some(line(source, source.database_at(server)?)))
                .collect(),
        });
        Self {
            servers: servers.collect(),
            scanning: chrome
                .first_scan
                .map(|progress| (format::count(progress.seen), progress.of.map(format::count))),
            limits: &page.limits,
            notices: page.notices.iter().map(|n| (Clock::new(n.at, chrome.now), n)).collect(),
            not_kept: (chrome.counts.not_kept > 0).then(|| counted(chrome.counts.not_kept, "lock")),
        }
    }
}

#[derive(Template)]
#[template(path = "sources.html")]
struct SourcesTemplate<'a> {
    frame: Frame<'a>,
    servers: Servers<'a>,
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn sources_page(page: &SourcesPage) -> Result<String, askama::Error> {
    SourcesTemplate {
        frame: Frame::new(title(page), "sources", &page.chrome),
        servers: Servers::new(page),
    }
    .render()
}

/// Returns the document's title.
pub(super) fn title(page: &SourcesPage) -> String {
    page::title(&page.chrome, "Sources")
}

/// Returns the parts that a stream keeps current.
pub(super) fn regions(page: &SourcesPage) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![("sources", Servers::new(page).render()?)])
}
