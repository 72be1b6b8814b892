//! The frame of every page (the head, the state of the sources, warnings), and error pages.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{self, Ago};
use super::prose::Prose;
use super::{Chrome, ErrorPage, assets, links};
use crate::clock;
use crate::sources::refusal::Refusal;
use crate::sources::view::{ServerView, SourceState, SourceView};
use crate::text::counted;

/// A lock whose last read is older than this is marked, in milliseconds. The poll reads each lock at least every 10 s.
pub(super) const STALE_MS: u64 = 20_000;

/// The variables of `base.html`.
pub(super) struct Frame<'a> {
    pub(super) title: String,
    /// The navigation link of this page.
    pub(super) section: &'static str,
    pub(super) chrome: &'a Chrome,
    /// The stream's address, or `None` if the page does not change.
    pub(super) live: Option<String>,
    pub(super) health: Health,
    pub(super) status: Status,
    pub(super) alerts: Alerts<'a>,
    pub(super) assets: &'static assets::Addresses,
    pub(super) build: &'static str,
    pub(super) stale_ms: u64,
    /// The milliseconds by which the wall clock has been set.
    pub(super) set_by: i64,
    /// The instant at which the page was made, for printing.
    pub(super) as_of: String,
}

impl<'a> Frame<'a> {
    pub(super) fn new(title: String, section: &'static str, chrome: &'a Chrome) -> Self {
        Self {
            title,
            section,
            chrome,
            live: Some(links::live(&chrome.address)),
            health: Health::as_loaded(chrome),
            status: Status::new(chrome),
            alerts: Alerts::new(chrome),
            assets: &assets::ADDRESSES,
            build: assets::build(),
            stale_ms: STALE_MS,
            set_by: clock::set_by(),
            as_of: format::rfc3339(chrome.now),
        }
    }

    /// Returns the frame of a page that does not change.
    pub(super) fn still(self) -> Self {
        Self { live: None, ..self }
    }
}

/// Returns a document's title. Problems come first, since a tab shows little more.
pub(super) fn title(chrome: &Chrome, page: &str) -> String {
    let title = plain_title(chrome, page);
    match chrome.counts.with_problems {
        0 => title,
        n => format!("({n}) {title}"),
    }
}

/// Returns a document's title without the number of problems.
pub(super) fn plain_title(chrome: &Chrome, page: &str) -> String {
    match &chrome.environment {
        Some(environment) => format!("{page} · Lockscope · {environment}"),
        None => format!("{page} · Lockscope"),
    }
}

/// Returns the parts around every page that a stream keeps current.
pub(super) fn regions(chrome: &Chrome) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![
        ("health", Health::new(chrome).render()?),
        ("status", Status::new(chrome).render()?),
        ("alerts", Alerts::new(chrome).render()?),
        ("spoken", spoken(chrome)),
    ])
}

/// Returns the text that a screen reader reads out when it changes.
pub(super) fn spoken(chrome: &Chrome) -> String {
    let down = chrome.servers.iter().filter(|server| server.down.is_some()).count();
    let problems = match chrome.counts.with_problems {
        0 => "no lock has a problem".to_owned(),
        1 => "1 lock has a problem".to_owned(),
        n => format!("{n} locks have problems"),
    };
    let so_far = if chrome.first_scan.is_some() { " so far" } else { "" };
    match down {
        0 => format!("{problems}{so_far}"),
        n => format!("{problems}{so_far}, {n} of {} servers unreachable", chrome.servers.len()),
    }
}

/// The worst state of all sources of one name.
#[derive(Debug)]
struct SourceLine {
    source: &'static str,
    state: SourceState,
    ago: Option<Ago>,
}

/// The sign in the head that says whether the picture is reliable.
#[derive(Debug, PartialEq, Eq, Template)]
#[template(path = "parts/health.html")]
pub(super) struct Health {
    tone: &'static str,
    word: &'static str,
    /// The failing sources, in words.
    detail: String,
}

impl HtmlSafe for Health {}

impl Health {
    fn new(chrome: &Chrome) -> Self {
        let down = chrome.servers.iter().filter(|server| server.down.is_some()).count();
        if down > 0 {
            let detail = format!("{down} of {} servers cannot be read", chrome.servers.len());
            return Self { tone: "bad", word: "Not current", detail };
        }
        let lines = Status::new(chrome).lines;
        let failing = lines
            .iter()
            .filter(|line| severity(line.state) > severity(SourceState::Paused))
            .map(|line| format!("{} {}", line.source, line.state.as_str()));
        let partly = chrome.partly_visible.iter();
        let partly = partly.map(|(name, _)| format!("the cluster {name} is only partly visible"));
        let refusing = chrome.servers.iter().filter_map(|server| {
            Some(format!("{} refuses writes ({})", server.address, server.refusal?.error()))
        });
        let failing: Vec<String> = failing.chain(partly).chain(refusing).collect();
        if !failing.is_empty() {
            return Self { tone: "warn", word: "Partial", detail: failing.join(", ") };
        }
        if chrome.first_scan.is_some() {
            let detail = "the first scan of all keys is not complete".to_owned();
            return Self { tone: "warn", word: "First scan", detail };
        }
        Self { tone: "fine", word: "Live", detail: String::new() }
    }

    /// Creates the sign of a page that has not updated yet. Without a stream it never does.
    fn as_loaded(chrome: &Chrome) -> Self {
        match Self::new(chrome) {
            Self { tone: "fine", .. } => {
                let detail = "this page has not updated since it was loaded".to_owned();
                Self { tone: "quiet", word: "As loaded", detail }
            }
            trouble => trouble,
        }
    }
}

/// The sources: how fresh and how complete the picture is.
#[derive(Debug, Template)]
#[template(path = "parts/status.html")]
pub(super) struct Status {
    lines: Vec<SourceLine>,
    remedy: Option<Prose<'static>>,
}

impl HtmlSafe for Status {}

impl Status {
    fn new(chrome: &Chrome) -> Self {
        let mut lines: Vec<SourceLine> = Vec::new();
        let mut names: Vec<&'static str> = Vec::new();
        for source in &chrome.sources {
            if !names.contains(&source.source) {
                names.push(source.source);
            }
        }
        for name in names {
            let same: Vec<&SourceView> =
                chrome.sources.iter().filter(|source| source.source == name).collect();
            let Some(worst) = same.iter().map(|source| source.state).max_by_key(|s| severity(*s))
            else {
                continue;
            };
            let oldest = same.iter().map(|source| source.last_success).min().flatten();
            lines.push(SourceLine {
                source: name,
                state: worst,
                ago: oldest.map(|at| Ago::new(at, chrome.now)),
            });
        }
        Self { lines, remedy: monitor_remedy(chrome, None) }
    }
}

/// Returns the step that turns MONITOR on, if one is known. With a `deployment`, only that one counts.
fn monitor_remedy(chrome: &Chrome, deployment: Option<&str>) -> Option<Prose<'static>> {
    let matters = |source: &&SourceView| deployment.is_none_or(|name| source.deployment == name);
    let mut sources = chrome.sources.iter().filter(matters);
    sources.find_map(|source| source.remedy.filter(|_| source.source == "monitor")).map(Prose::from)
}

/// The facts that a page lacks without MONITOR, and the step that turns MONITOR on.
#[derive(Debug, Template)]
#[template(path = "parts/monitor_hint.html")]
pub(super) struct MonitorHint {
    remedy: Option<Prose<'static>>,
}

impl HtmlSafe for MonitorHint {}

impl MonitorHint {
    /// Creates the hint for a page about all deployments.
    pub(super) fn new(chrome: &Chrome) -> Self {
        Self { remedy: monitor_remedy(chrome, None) }
    }

    /// Creates the hint for a page about one deployment; an empty one unless `lacks`.
    pub(super) fn of(chrome: &Chrome, deployment: &str, lacks: bool) -> Self {
        Self { remedy: lacks.then(|| monitor_remedy(chrome, Some(deployment))).flatten() }
    }
}

/// Orders states from fine to bad.
fn severity(state: SourceState) -> u8 {
    match state {
        SourceState::On => 0,
        SourceState::Off => 1,
        SourceState::Paused => 2,
        SourceState::Behind => 3,
        SourceState::Denied => 4,
        SourceState::Down => 5,
    }
}

/// Returns the colour class of a state: `fine`, `quiet`, `warn` or `bad`. The word for the state is always next to it.
pub(super) fn state_tone(state: &SourceState) -> &'static str {
    match state {
        SourceState::On => "fine",
        SourceState::Off | SourceState::Paused => "quiet",
        SourceState::Behind => "warn",
        SourceState::Denied | SourceState::Down => "bad",
    }
}

/// Warnings that concern every page.
#[derive(Debug, Template)]
#[template(path = "parts/alerts.html")]
pub(super) struct Alerts<'a> {
    down: Vec<(&'a ServerView, Prose<'a>, Ago)>,
    partly_visible: Vec<(&'a str, Prose<'a>)>,
    refusing: Vec<(&'a ServerView, Refusal)>,
    evicting: Vec<(&'a ServerView, &'a str)>,
    not_kept: Option<String>,
}

impl HtmlSafe for Alerts<'_> {}

impl<'a> Alerts<'a> {
    fn new(chrome: &'a Chrome) -> Self {
        let down = chrome.servers.iter().filter_map(|server| {
            let down = server.down.as_ref()?;
            Some((server, down.reason.as_str().into(), Ago::new(down.since, chrome.now)))
        });
        let evicting = chrome
            .servers
            .iter()
            .filter_map(|server| server.evicts.as_deref().map(|policy| (server, policy)));
        let partly_visible =
            chrome.partly_visible.iter().map(|(name, why)| (&**name, why.as_str().into()));
        let refusing = chrome.servers.iter().filter_map(|server| Some((server, server.refusal?)));
        let not_kept = chrome.counts.not_kept;
        Self {
            down: down.collect(),
            partly_visible: partly_visible.collect(),
            refusing: refusing.collect(),
            evicting: evicting.collect(),
            not_kept: (not_kept > 0).then(|| counted(not_kept, "lock")),
        }
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorTemplate<'a> {
    frame: Frame<'a>,
    status: u16,
    heading: &'static str,
    message: Prose<'a>,
    /// Links to other pages: words and addresses.
    links: &'static [(&'static str, &'static str)],
}

/// Returns the heading for a missing path of the dashboard, and links to other pages.
fn missing(path: &str) -> (&'static str, &'static [(&'static str, &'static str)]) {
    let is_incident = path.strip_prefix("/incident");
    match is_incident.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?'])) {
        true => (
            "No such incident",
            &[
                ("Current problems", "/problems"),
                ("Problems of the last hour", "/history?filter=event:problem"),
            ],
        ),
        false => ("Not found", ELSEWHERE),
    }
}

const ELSEWHERE: &[(&str, &str)] =
    &[("Overview", "/overview"), ("Locks", "/"), ("Problems", "/problems")];

/// Returns a message as a sentence.
pub(super) fn sentence(message: &str) -> String {
    let mut chars = message.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let stop = if message.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}

/// Renders the page for a request that cannot be answered.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn error_page(page: &ErrorPage) -> Result<String, askama::Error> {
    let (not_found, mut links) = missing(&page.chrome.address);
    if page.status != 404 {
        links = ELSEWHERE;
    }
    let heading = match page.status {
        400 => "Invalid request",
        403 => "Access denied",
        404 => not_found,
        405 => "Method not allowed",
        413 | 414 => "Request too large",
        421 => "Unknown host name",
        429 | 503 => "Server busy",
        _ => "Something went wrong",
    };
    ErrorTemplate {
        frame: Frame::new(title(&page.chrome, heading), "", &page.chrome).still(),
        status: page.status,
        heading,
        message: Prose::from(sentence(&page.message)),
        links,
    }
    .render()
}
