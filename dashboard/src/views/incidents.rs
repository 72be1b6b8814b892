//! `/problems`: incidents, one row each.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{Ago, Clock};
use super::list_view::{Heading, ListView};
use super::lock_link::LockLink;
use super::picture::Circle;
use super::prose::Prose;
use super::row::{Badge, HoldersCell, row_id};
use super::{Chrome, ListPage, format, links};
use crate::clock::{DAY_MS, SteadyMillis};
use crate::model::types::{Acknowledgement, ClearedProblem, LockView, RedView};
use crate::query::Listed as _;
use crate::query::incidents::IncidentRow;
use crate::text;

/// The maximum number of locks that a row names.
const NAMED: usize = 20;

#[derive(Template)]
#[template(path = "parts/incident_row.html")]
struct IncidentTemplate<'a> {
    id: String,
    badge: Badge,
    /// The only lock, or the first.
    lock: LockLink,
    /// The deployments, if red locks have several.
    servers: Option<String>,
    /// The servers of a red lock.
    red: Option<&'a RedView>,
    /// The common beginning of the names of several locks, and their number in words.
    several: Option<(String, String)>,
    /// The first locks if there are several, each with the age of its problem.
    locks: Vec<(LockLink, Ago)>,
    more: usize,
    /// The address of the page of the incident.
    page: String,
    /// The actions that this page offers, if the incident has several locks.
    together: Option<String>,
    holders: Option<HoldersCell<'a>>,
    waiting: Option<String>,
    evidence: Option<(Clock, Prose<'a>, &'static str)>,
    advice: Prose<'a>,
    circle: Option<Circle>,
    /// The person who acknowledged the problem, and the end of the acknowledgement.
    acknowledged: Option<(Clock, &'a Acknowledgement)>,
}

impl ListView for IncidentRow {
    const PATH: &'static str = "/problems";
    const TITLE: &'static str = "Problems";
    const COLUMNS: &'static [Heading] = &[
        Heading {
            hint: "Certain problems first, the worst first",
            ..Heading::sorted_by("Problem", "severity", "state")
        },
        Heading {
            hint: "Sort by the number of locks",
            ..Heading::sorted_by("Locks", "locks", "name")
        },
        Heading::unsorted("Owner", "holder"),
        Heading {
            hint: "Sort by the number of waiters",
            ..Heading::sorted_by("Waiting", "waiting", "figure")
        },
        Heading::unsorted("Evidence, and what to do", "advice"),
    ];
    const NOTHING: (&'static str, &'static str) = (
        "No problems",
        "No lock is stuck, leaked, overdue, starving or deadlocked, as far as the sources can see.",
    );
    const ABOUT: &'static str = "One row for each cause: the same problem of the same owner is one incident, however many locks it has. \
        Certain ones first, then suspected, then acknowledged; the worst first, then the oldest.";

    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error> {
        let (lock, problem) = self.first();
        let count = self.locks.len();
        let prefix = self.prefix().map(|prefix| text::visible(prefix.as_bytes()));
        IncidentTemplate {
            id: row_id(self.id()),
            badge: Badge::of_incident(self, now),
            lock: link(self, chrome),
            servers: servers(self),
            red: lock.red.as_deref(),
            several: (count > 1 && !self.is_one_red_lock()).then(|| {
                (
                    prefix.map_or_else(String::new, |prefix| format!("{prefix}*")),
                    match self.whole == count {
                        true => format!("{} locks", format::count(count as u64)),
                        false => {
                            format!("{count} of its {} locks", format::count(self.whole as u64))
                        }
                    },
                )
            }),
            locks: match count {
                1 => Vec::new(),
                _ => named_locks(self, NAMED, chrome, now),
            },
            more: count.saturating_sub(NAMED),
            page: links::incident(self),
            together: (self.whole > 1).then(|| {
                let act =
                    if self.may_be_released() { "Acknowledge or release" } else { "Acknowledge" };
                match self.whole == count {
                    true => format!("{act} together"),
                    false => {
                        format!("{act} all {} locks together", format::count(self.whole as u64))
                    }
                }
            }),
            holders: HoldersCell::of_incident(self),
            waiting: waiting(self),
            evidence: problem.evidence.last().map(|it| {
                (Clock::new(it.at, now), Prose::naming(&it.text, &chrome.names), it.source)
            }),
            advice: Prose::naming(&problem.advice, &chrome.names),
            circle: Circle::new(problem, &chrome.names),
            acknowledged: problem
                .acknowledged
                .as_deref()
                .filter(|_| self.acknowledged)
                .map(|word| (Clock::new(word.until, now), word)),
        }
        .render()
    }
}

/// Returns the first locks of an incident, each with the age of its problem.
pub(super) fn named_locks(
    incident: &IncidentRow,
    limit: usize,
    chrome: &Chrome,
    now: SteadyMillis,
) -> Vec<(LockLink, Ago)> {
    let since = |lock: &LockView| {
        let found = lock.problems.iter().find(|found| found.problem == incident.problem);
        found.map_or(incident.since, |found| found.since)
    };
    let locks = incident.locks.iter().take(limit);
    locks.map(|lock| (LockLink::new(&lock.id, chrome), Ago::new(since(lock), now))).collect()
}

/// The problems that have ended within a day.
#[derive(Template)]
#[template(path = "parts/cleared.html")]
pub(super) struct Cleared {
    problems: Vec<(&'static str, LockLink, Ago, u32)>,
}

impl HtmlSafe for Cleared {}

impl Cleared {
    pub(super) fn new<T>(page: &ListPage<T>) -> Self {
        Self::of(&page.chrome, &page.cleared, page.chrome.now)
    }

    /// Selects the problems that ended within a day before `until`, which is the current instant even if the script
    /// counts the ages.
    pub(super) fn of(chrome: &Chrome, cleared: &[ClearedProblem], until: SteadyMillis) -> Self {
        let recent = cleared.iter().filter(|c| c.at.plus(DAY_MS) >= until);
        let problem = |c: &ClearedProblem| {
            (c.problem.name(), LockLink::new(&c.lock, chrome), Ago::new(c.at, chrome.now), c.times)
        };
        Self { problems: recent.map(problem).collect() }
    }
}

/// Returns the deployments of an incident with red locks, if there are several.
fn servers(incident: &IncidentRow) -> Option<String> {
    let deployments: Vec<&str> = incident.deployments().collect();
    (deployments.len() > 1).then(|| deployments.join(", "))
}

/// Returns a link to the first lock of an incident, with all servers if it is a red lock.
pub(super) fn link(incident: &IncidentRow, chrome: &Chrome) -> LockLink {
    let link = LockLink::new(&incident.first().0.id, chrome);
    match servers(incident) {
        Some(servers) => link.on(servers),
        None => link,
    }
}

/// Returns the number of locks of an incident, with the servers of red locks.
pub(super) fn extent(incident: &IncidentRow) -> String {
    let locks = match incident.locks.len() {
        _ if incident.is_one_red_lock() => "a red lock".to_owned(),
        1 => "1 lock".to_owned(),
        count => format!("{} locks", format::count(count as u64)),
    };
    match servers(incident) {
        Some(servers) => format!("{locks} on {servers}"),
        None => locks,
    }
}

/// Returns the number of waiters for the locks of an incident, if there are any.
pub(super) fn waiting(incident: &IncidentRow) -> Option<String> {
    let exact = incident.locks.iter().all(|lock| lock.waiters_exact || lock.waiting == 0);
    let least = if exact { "" } else { "≥ " };
    (incident.waiting > 0).then(|| format!("{least}{}", format::count(incident.waiting)))
}
