//! `/overview`: the state of all locks at a glance.

use std::sync::Arc;

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{self, Ago, Minute};
use super::incidents;
use super::lock_link::{GroupLink, LockLink};
use super::page::{self, Frame};
use super::picture::Heat;
use super::row::{Badge, HoldersCell};
use super::{Chrome, OverviewPage};
use crate::model::contention::{Contention, GroupTally, Tally};
use crate::model::types::{ClientView, LockView, RedView};
use crate::query::blockers::BlockerRow;
use crate::query::incidents::IncidentRow;
use crate::text;

/// The maximum number of groups of locks shown.
const MAX_GROUPS: usize = 12;
/// An hour, in milliseconds.
const HOUR_MS: u64 = 3_600_000;
/// The most services of waiters shown in a step.
const MAX_SERVICES: usize = 3;

/// An incident in one line.
struct Incident<'a> {
    badge: Badge,
    extent: Option<String>,
    lock: LockLink,
    /// The servers of a red lock.
    red: Option<&'a RedView>,
    prefix: Option<String>,
    holders: Option<HoldersCell<'a>>,
    waiting: Option<String>,
}

#[derive(Template)]
#[template(path = "parts/overview_incidents.html")]
struct Incidents<'a> {
    incidents: Vec<Incident<'a>>,
    more: usize,
    /// True during the first scan, after which the list of incidents is complete.
    scanning: bool,
}

impl HtmlSafe for Incidents<'_> {}

impl<'a> Incidents<'a> {
    fn new(page: &'a OverviewPage) -> Self {
        let chrome = &page.chrome;
        let incident = |row: &'a IncidentRow| {
            let (lock, _) = row.first();
            let several = row.locks.len() > 1 && !row.is_one_red_lock();
            Incident {
                badge: Badge::of_incident(row, chrome.now),
                extent: several.then(|| incidents::extent(row)),
                lock: incidents::link(row, chrome),
                red: lock.red.as_deref(),
                prefix: row.prefix().map(|prefix| text::visible(prefix.as_bytes())),
                holders: HoldersCell::of_incident(row),
                waiting: incidents::waiting(row),
            }
        };
        Self {
            incidents: page.incidents.rows.iter().map(incident).collect(),
            more: page.incidents.total.saturating_sub(page.incidents.rows.len()),
            scanning: chrome.first_scan.is_some(),
        }
    }
}

/// The current counts and those of the last hour.
#[derive(Template)]
#[template(path = "parts/overview_figures.html")]
struct Figures {
    held: String,
    waiting: String,
    owners: String,
    hosts: usize,
    acquisitions: String,
    wait_p99: Option<String>,
    ran_out_or_lost: u64,
    /// The beginning of the counts of the last hour, if that is later.
    since: Option<Minute>,
}

impl HtmlSafe for Figures {}

impl Figures {
    fn new(page: &OverviewPage) -> Self {
        let hour = page.contention.total();
        let summary = &page.summary;
        // Before the first scan is complete, there may be more of everything.
        let is_first_pass = page.chrome.first_scan.is_some();
        let known = |count: u64, exact: bool| match (count, exact) {
            (0, _) if is_first_pass => "?".to_owned(),
            (_, true) if !is_first_pass => format::count(count),
            _ => format!("≥ {}", format::count(count)),
        };
        Self {
            held: known(page.chrome.counts.held as u64, true),
            waiting: known(summary.waiting, summary.waiters_exact),
            owners: known(summary.owners as u64, true),
            hosts: summary.hosts,
            acquisitions: format::count(hour.acquisitions),
            wait_p99: hour.wait_percentile(99).map(format::short_bound),
            ran_out_or_lost: hour.holds_lost,
            since: late(&page.contention),
        }
    }
}

/// Returns the beginning of counting if it is less than an hour ago.
fn late(contention: &Contention) -> Option<Minute> {
    let is_late = contention.to.millis_since(contention.from) < HOUR_MS;
    is_late.then(|| Minute::new(contention.from))
}

/// A step of a tree of waits.
struct TreeStep<'a> {
    depth: usize,
    lock: LockLink,
    /// The holders. The one that it names is the waiter of the step above.
    holders: Option<HoldersCell<'a>>,
    waiting: String,
    exact: bool,
    longest: Option<Ago>,
    /// The services that wait, in words.
    services: Option<String>,
}

struct Tree<'a> {
    blocks: u64,
    /// True if `blocks` is not a lower bound.
    exact: bool,
    steps: Vec<TreeStep<'a>>,
    cut: bool,
}

#[derive(Template)]
#[template(path = "parts/overview_blockers.html")]
struct Blockers<'a> {
    trees: Vec<Tree<'a>>,
    more: usize,
}

impl HtmlSafe for Blockers<'_> {}

impl<'a> Blockers<'a> {
    fn new(page: &'a OverviewPage) -> Self {
        let chrome = &page.chrome;
        let tree = |row: &'a BlockerRow| Tree {
            blocks: row.blocks,
            exact: !row.cut && row.steps.iter().all(|step| step.lock.waiters_exact),
            steps: row
                .steps
                .iter()
                .map(|step| TreeStep {
                    depth: step.depth,
                    lock: LockLink::new(&step.lock.id, chrome),
                    holders: HoldersCell::naming(step.waiter(), &step.lock),
                    waiting: format::count(step.lock.waiting),
                    exact: step.lock.waiters_exact,
                    longest: step.lock.longest_wait().map(|since| Ago::since(since, chrome.now)),
                    services: services(&step.lock),
                })
                .collect(),
            cut: row.cut,
        };
        Self {
            trees: page.blockers.rows.iter().map(tree).collect(),
            more: page.blockers.total.saturating_sub(page.blockers.rows.len()),
        }
    }
}

/// Returns the services that wait for a lock in words, those with the most waiters first, and the number of other
/// waiters. Returns `None` if no service is known.
pub(super) fn services(lock: &LockView) -> Option<String> {
    let mut services: Vec<(String, u64)> = Vec::new();
    let clients = lock.waiters.iter().filter_map(|waiter| waiter.client.as_deref());
    for service in clients.filter_map(ClientView::service) {
        match services.iter_mut().find(|(known, _)| known == service) {
            Some((_, count)) => *count += 1,
            None => services.push((service.to_owned(), 1)),
        }
    }
    services.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    services.truncate(MAX_SERVICES);
    let named: u64 = services.iter().map(|(_, count)| count).sum();
    let mut words: Vec<String> =
        services.into_iter().map(|(service, count)| format!("{service} ×{count}")).collect();
    match lock.waiting.saturating_sub(named) {
        _ if words.is_empty() => return None,
        0 => {}
        1 => words.push("1 other".to_owned()),
        others => words.push(format!("{} others", format::count(others))),
    }
    Some(words.join(", "))
}

struct OldHold<'a> {
    lock: LockLink,
    holders: Option<HoldersCell<'a>>,
    held: Option<Ago>,
}

#[derive(Template)]
#[template(path = "parts/overview_oldest.html")]
struct Oldest<'a> {
    holds: Vec<OldHold<'a>>,
}

impl HtmlSafe for Oldest<'_> {}

impl<'a> Oldest<'a> {
    fn new(page: &'a OverviewPage) -> Self {
        let hold = |lock: &'a Arc<LockView>| OldHold {
            lock: LockLink::new(&lock.id, &page.chrome),
            holders: HoldersCell::of_lock(lock),
            held: lock.held_since().map(|since| Ago::since(since, page.chrome.now)),
        };
        Self { holds: page.oldest.iter().map(hold).collect() }
    }
}

/// The last hour of a group of locks.
struct Group<'a> {
    link: GroupLink,
    tally: &'a Tally,
    acquisitions: String,
    waited: Option<String>,
    waits: [Option<String>; 2],
    holds: [Option<String>; 2],
    longest_hold: Option<String>,
}

#[derive(Template)]
#[template(path = "parts/overview_groups.html")]
struct Groups<'a> {
    groups: Vec<Group<'a>>,
    more: usize,
    /// The beginning of the counts, if that is less than an hour ago.
    since: Option<Minute>,
}

impl HtmlSafe for Groups<'_> {}

impl<'a> Groups<'a> {
    fn new(page: &'a OverviewPage) -> Self {
        let groups = &page.contention.groups;
        let group = |group: &'a GroupTally| {
            let (tally, waited) = (&group.tally, group.tally.waited_ms());
            Group {
                link: GroupLink::new(group, page.chrome.several_deployments),
                tally,
                acquisitions: format::count(tally.acquisitions),
                waited: (waited > 0).then(|| format::short_duration(waited)),
                waits: [50, 99].map(|p| tally.wait_percentile(p).map(format::short_bound)),
                holds: [50, 99].map(|p| tally.hold_percentile(p).map(format::short_bound)),
                longest_hold: tally.longest_hold_ms().map(format::short_duration),
            }
        };
        Self {
            groups: groups.iter().take(MAX_GROUPS).map(group).collect(),
            more: groups.len().saturating_sub(MAX_GROUPS),
            since: late(&page.contention),
        }
    }
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewTemplate<'a> {
    frame: Frame<'a>,
    incidents: Incidents<'a>,
    figures: Figures,
    blockers: Blockers<'a>,
    oldest: Oldest<'a>,
    groups: Groups<'a>,
    heat: Heat,
}

/// Renders the page.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn overview_page(page: &OverviewPage) -> Result<String, askama::Error> {
    OverviewTemplate {
        frame: Frame::new(title(&page.chrome), "overview", &page.chrome),
        incidents: Incidents::new(page),
        figures: Figures::new(page),
        blockers: Blockers::new(page),
        oldest: Oldest::new(page),
        groups: Groups::new(page),
        heat: Heat::new(&page.contention, page.chrome.several_deployments),
    }
    .render()
}

/// Returns the document's title.
pub(super) fn title(chrome: &Chrome) -> String {
    page::title(chrome, "Overview")
}

/// Returns the parts that a stream keeps current.
pub(super) fn regions(page: &OverviewPage) -> Result<Vec<(&'static str, String)>, askama::Error> {
    Ok(vec![
        ("overview-incidents", Incidents::new(page).render()?),
        ("overview-figures", Figures::new(page).render()?),
        ("overview-blockers", Blockers::new(page).render()?),
        ("overview-oldest", Oldest::new(page).render()?),
        ("overview-heat", Heat::new(&page.contention, page.chrome.several_deployments).render()?),
        ("overview-groups", Groups::new(page).render()?),
    ])
}
