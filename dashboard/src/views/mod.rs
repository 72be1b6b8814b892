//! The pages: plain structs that are rendered to HTML.
//!
//! A page is a plain struct that its handler fills from one snapshot ([`LockPage`], [`ListPage`], [`OwnerPage`],
//! [`HistoryPage`], [`SourcesPage`], [`ErrorPage`]) and a function that renders it. This module reads neither a clock
//! nor the model, so a page can be rendered again at any time and compared. The live stream works this way, see
//! [`live`].
//!
//! Pages contain ages, so they must be served with `Cache-Control: no-store`. The files in [`assets`] are served under
//! their own paths. The address of a file changes with its content, so it may be cached forever.

mod acknowledgements;
pub mod assets;
mod contention;
mod facets;
mod foot;
mod format;
pub mod fragments;
mod history;
mod incident;
mod incidents;
mod links;
mod list;
mod list_view;
pub mod live;
mod lock;
mod lock_link;
mod lock_parts;
mod lock_then;
mod locks;
mod login;
mod overview;
mod owner;
mod owner_name;
mod owners;
mod page;
mod picture;
mod prose;
mod release;
mod row;
mod shell;
mod sources;
mod tabs;
#[cfg(test)]
mod tests;
pub mod trace;

use std::sync::Arc;

use service_kit::redis::Address;

use crate::archive::{Density, Gap, HeldThen, ProblemThen};
use crate::clock::SteadyMillis;
use crate::model::contention::Contention;
use crate::model::owner_names::OwnerNames;
use crate::model::types::{ClearedProblem, Counts, LockId, LockView, Notice, PastHoldView};
use crate::query::blockers::BlockerRow;
use crate::query::facets::Facets;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;
use crate::query::{Order, Rows};
use crate::release::batch::Batch;
use crate::release::{Offer, Outcome};
use crate::sources::trace::Trace;
use crate::sources::view::{Progress, ServerView, SourceView};

pub(crate) use format::rfc3339;
pub use history::history_page;
pub use incident::incident_page;
pub use links::lock_trace;
pub use list::list_page;
pub use list_view::ListView;
pub use lock::lock_page;
pub use login::{denied_page, login_page};
pub use overview::overview_page;
pub use owner::owner_page;
pub use page::error_page;
pub use release::release_page;
pub use sources::sources_page;

/// The frame of every page.
#[derive(Debug, Clone)]
pub struct Chrome {
    /// The dashboard's clock when the page was made. Ages are counted up to it, and then on by the browser.
    pub now: SteadyMillis,
    /// This program's version.
    pub version: &'static str,
    /// The badge that names the environment, for example `production`.
    pub environment: Option<String>,
    /// A note for all visitors, from the settings.
    pub note: Option<String>,
    /// The page's path and query as requested, for which it opens its live stream.
    pub address: String,
    /// Every source of every deployment.
    pub sources: Vec<SourceView>,
    /// Every server that the dashboard looks at.
    pub servers: Vec<ServerView>,
    /// The clusters that are only partly visible, each with the reason.
    pub partly_visible: Vec<(Arc<str>, String)>,
    /// The progress of the first scan of all keys, or `None` once it is complete.
    pub first_scan: Option<Progress>,
    /// The counts of all locks, including those that the page does not show.
    pub counts: Counts,
    /// True if there are several deployments, so that each name is shown with its deployment.
    pub several_deployments: bool,
    /// True if there are several databases.
    pub several_dbs: bool,
    /// The names of owners, including those of past holds.
    pub names: OwnerNames,
    /// The visitor, if authentication is required.
    pub visitor: Option<VisitorView>,
    /// The CSRF token of the page's forms.
    pub csrf: Option<String>,
}

/// The visitor of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisitorView {
    pub name: String,
    /// True if they logged in on the form, so that they can log out.
    pub can_leave: bool,
    /// The address at which their proxy logs them out, if it is known.
    pub proxy_logout: Option<Arc<str>>,
}

/// `/overview`: the state of all locks.
#[derive(Debug, Clone)]
pub struct OverviewPage {
    /// The frame of the page.
    pub chrome: Chrome,
    /// The worst incidents.
    pub incidents: Rows<IncidentRow>,
    /// The roots of the trees with the most waiters.
    pub blockers: Rows<BlockerRow>,
    /// The longest holds of locks that are not expected to be held for long.
    pub oldest: Vec<Arc<LockView>>,
    /// The counts of the last hour.
    pub contention: Arc<Contention>,
    pub summary: Summary,
}

/// The totals of all listed locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// The known number of waiters; there may be more.
    pub waiting: u64,
    /// True if `waiting` counts all of them.
    pub waiters_exact: bool,
    /// The number of clients that hold locks.
    pub owners: usize,
    /// The number of known hosts of these clients.
    pub hosts: usize,
}

/// The result of checking whether the visitor may release a lock by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseAccess {
    Allowed,
    /// The dashboard runs without `--allow-release`.
    Off,
    /// The visitor lacks the `release` right for this lock.
    Forbidden,
}

/// `/lock`: one lock.
#[derive(Debug, Clone)]
pub struct LockPage {
    /// The frame of the page.
    pub chrome: Chrome,
    /// The requested lock.
    pub id: LockId,
    /// Its slot in a cluster and the node that serves the slot, or `None` outside of a cluster.
    pub home: Option<(u16, Option<Address>)>,
    /// The lock as the dashboard knows it.
    pub subject: Subject,
    /// Its state at the requested instant.
    pub then: Option<LockThen>,
    /// Its latest holders.
    pub past: PastWindow,
    pub release: ReleaseAccess,
    /// True if the visitor may acknowledge its problems.
    pub may_acknowledge: bool,
    /// True if the visitor may trace it.
    pub may_watch: bool,
    /// Its latest trace.
    pub trace: Option<Trace>,
}

/// A lock at an instant, as far as the history knows.
#[derive(Debug, Clone)]
pub struct LockThen {
    pub at: SteadyMillis,
    pub holders: Vec<PastHoldView>,
    pub problems: Vec<ProblemThen>,
    /// The events until that instant, newest first.
    pub events: Vec<EventRow>,
    /// The instants of the events before and after it.
    pub before: Option<SteadyMillis>,
    pub after: Option<SteadyMillis>,
    /// The gap around the instant, if nobody observed it.
    pub gap: Option<Gap>,
}

/// The holds of a lock within a span of time.
#[derive(Debug, Clone)]
pub struct PastWindow {
    /// The length of the span, in milliseconds.
    pub millis: u64,
    /// The holds that ended in that time, newest first. Around an instant, it includes those that continued.
    pub holds: Vec<PastHoldView>,
    /// True if there is a history with all holds. Otherwise only the latest are remembered.
    pub kept: bool,
    /// True if there is a history that cannot be read now, so that only the latest holds are shown.
    pub unreadable: bool,
    /// The requested span, as typed.
    pub chosen: Option<String>,
    /// The instant in the window, or `None` if the window ends now.
    pub at: Option<SteadyMillis>,
}

impl PastWindow {
    /// Returns the end of the window. A quarter of a window around an instant lies after the instant.
    #[must_use]
    pub fn end(&self, now: SteadyMillis) -> SteadyMillis {
        let after = |at: SteadyMillis| at.plus(self.millis / 4);
        self.at.map_or(now, |at| after(at).min(now.max(at)))
    }
}

/// `/`, `/owners`, `/problems`, `/contention`: one page of a list.
#[derive(Debug, Clone)]
pub struct ListPage<T> {
    pub chrome: Chrome,
    /// The filter as typed.
    pub filter: String,
    /// The mistake in the filter, if there is one. The page then has no rows.
    pub filter_error: Option<String>,
    /// One of [`crate::query::Listed::GROUPINGS`].
    pub by: &'static str,
    /// One of [`crate::query::Listed::SORTS`].
    pub sort: &'static str,
    pub order: Order,
    /// The rows of this page, in order.
    pub rows: Vec<T>,
    /// The number of matching rows on all pages.
    pub total: usize,
    /// The number of matching rows before this page.
    pub skipped: usize,
    /// The cursor of this page, or `None` on the first page.
    pub cursor: Option<String>,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
    /// The cursor of the page before, if there is one.
    pub prev: Option<String>,
    /// The number of locks by view and by property, if the list shows them.
    pub facets: Option<Arc<Facets>>,
    /// Problems that have ended, the latest first, if the list shows them.
    pub cleared: Arc<[ClearedProblem]>,
    /// The counts of the last hour, if the list shows them.
    pub contention: Option<Arc<Contention>>,
}

/// `/owner`: one client.
#[derive(Debug, Clone)]
pub struct OwnerPage {
    /// The frame of the page.
    pub chrome: Chrome,
    /// The client, with its totals.
    pub owner: OwnerRow,
    /// The locks that it holds, longest held first, at most 100.
    pub locks: Vec<Arc<LockView>>,
    /// The number of its holds.
    pub total: usize,
    /// The locks that it waits for, each with the index of its waiter, longest wait first.
    pub waits: Vec<(Arc<LockView>, usize)>,
    /// Its past holds as far as they are remembered, newest first.
    pub past: Vec<(Arc<LockView>, PastHoldView)>,
}

/// `/history`: the events of a span of time, and the locks held at an instant.
#[derive(Debug, Clone)]
pub struct HistoryPage {
    /// The frame of the page.
    pub chrome: Chrome,
    /// The beginning of the span, as typed.
    pub from_text: String,
    /// The end of the span, as typed. If empty, the span ends now and moves on.
    pub to_text: String,
    /// The instant of the time cursor, as typed.
    pub at_text: String,
    /// The filter as typed.
    pub filter: String,
    /// The mistake in the filter, if there is one. The page then has no events.
    pub filter_error: Option<String>,
    /// The field with an invalid instant, and the reason. The page then has no events.
    pub mistake: Option<(&'static str, String)>,
    /// The types of events that the filter asks for, or none if it accepts all.
    pub types: Vec<&'static str>,
    pub from: SteadyMillis,
    pub to: SteadyMillis,
    /// The lock, or `None` for all locks.
    pub lock: Option<LockId>,
    /// The events, newest first, at most 100.
    pub rows: Vec<EventRow>,
    /// The cursor of this page, or `None` on the first page.
    pub cursor: Option<String>,
    /// The cursor of older events, if there are any.
    pub older: Option<String>,
    /// The cursor of newer events, if there are any.
    pub newer: Option<String>,
    /// The instant that the search had reached when its time ran out.
    pub reached: Option<SteadyMillis>,
    /// The number of events by time, including types that the filter excludes.
    pub density: Density,
    /// The times that no dashboard observed.
    pub gaps: Vec<Gap>,
    /// True if the events come from a history. Otherwise they are those remembered for each lock.
    pub kept: bool,
    /// The reason why the newest events are not in the history, if so.
    pub trouble: Option<String>,
    /// The locks held at the instant of the time cursor.
    pub then: Option<HeldThen>,
}

/// An event as the page shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    pub at: SteadyMillis,
    /// The word for the event.
    pub event: String,
    /// The lock that the event is about.
    pub lock: LockId,
    /// The holder that the event is about.
    pub owner: Option<String>,
    pub text: String,
    /// The source that observed it, if known.
    pub source: Option<&'static str>,
}

/// `/release`: a lock as it was just read, and the parts of it that can be released by force.
#[derive(Debug)]
pub struct ReleasePage {
    /// The frame of the page.
    pub chrome: Chrome,
    pub id: LockId,
    /// The state of the request.
    pub step: ReleaseStep,
}

/// The state of a [`ReleasePage`].
#[derive(Debug)]
pub enum ReleaseStep {
    /// There is nothing to release. The sentence gives the reason.
    Nothing(String),
    /// The lock may be released as it is shown.
    Ask {
        /// The lock as it is shown.
        offer: Arc<Offer>,
        /// The id of what is shown, for the request.
        seen: String,
        /// The reason why the last request was rejected.
        mistake: Option<String>,
        /// The target chosen in the last request.
        target: Option<String>,
        /// The reason given in the last request.
        reason: String,
    },
    /// The release was tried, with this outcome.
    Done(Outcome),
}

/// `/incident`: the locks of an incident, and the actions for all of them at once.
#[derive(Debug)]
pub struct IncidentPage {
    /// The frame of the page.
    pub chrome: Chrome,
    pub incident: IncidentRow,
    /// True if the visitor may acknowledge some of its problems.
    pub may_acknowledge: bool,
    /// True if the visitor may release some of its locks, and each of these has at most one owner.
    pub may_release: bool,
    pub step: IncidentStep,
}

/// The state of an [`IncidentPage`].
#[derive(Debug)]
pub enum IncidentStep {
    /// The incident is only shown.
    Show,
    /// The locks of the incident may be released as they were read.
    Ask {
        batch: Arc<Batch>,
        /// The id of the batch, for the request.
        seen: String,
        /// The number of locks that do not fit into one batch.
        more: usize,
        /// The error of the last attempt.
        mistake: Option<String>,
        /// The reason given in the last attempt.
        reason: String,
    },
    /// The release of the locks was tried, with these outcomes.
    Done {
        outcomes: Vec<(LockId, Outcome)>,
        /// The number of releases of the batch: one for each of its locks, or for each dead queue entry of a free one.
        of: usize,
    },
}

/// Returns the address of a lock's page.
#[must_use]
pub fn lock_link(id: &LockId) -> String {
    links::lock(id)
}

/// A requested lock as the dashboard knows it.
#[derive(Debug, Clone)]
pub enum Subject {
    /// It is held, or is remembered.
    Known(Arc<LockView>),
    /// There is no such key, and nothing is remembered about it.
    Absent {
        /// The instant at which Redis was queried.
        read_at: SteadyMillis,
    },
    /// There is such a key, but it is not a lock. The sentence describes the key.
    NoLock(String),
    /// The key could not be read. The sentence gives the reason.
    Unreadable(String),
}

/// `/sources`: the sources from which the dashboard learns about locks.
#[derive(Debug, Clone)]
pub struct SourcesPage {
    /// The frame of the page, with the sources themselves.
    pub chrome: Chrome,
    /// The current blind spots of the sources, one sentence each.
    pub limits: Vec<String>,
    /// The events of whole servers, newest first.
    pub notices: Arc<[Notice]>,
}

/// A request that cannot be answered.
#[derive(Debug, Clone)]
pub struct ErrorPage {
    /// The frame of the page.
    pub chrome: Chrome,
    /// HTTP status: 400, 404, 421, 503 and the like.
    pub status: u16,
    /// A sentence that names the error and the remedy.
    pub message: String,
}

#[derive(Debug, Clone)]
pub struct LoginPage {
    /// The path of the page to open next.
    pub next: String,
    /// The reason why the last attempt was rejected.
    pub error: Option<String>,
    /// The form's CSRF token.
    pub csrf: Option<String>,
}
