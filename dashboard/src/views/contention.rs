//! `/contention`: a row for each lock that is or was waited for, and the last hour by group of locks.

use askama::Template;
use askama::filters::HtmlSafe;

use super::Chrome;
use super::format::{self, Ago, Minute};
use super::list_view::{Heading, ListView};
use super::lock_link::{GroupLink, LockLink};
use super::picture::Histogram;
use super::row::{HoldersCell, only_suspected, row_id};
use crate::clock::SteadyMillis;
use crate::model::contention::{Contention, GroupTally, Tally};
use crate::model::types::LockView;
use crate::query::Listed as _;
use crate::query::contention::ContentionRow;

/// The maximum number of groups shown, those most waited for first.
const MAX_GROUPS: usize = 20;

/// The counts of an hour, in words and as a picture.
struct Hour<'a> {
    tally: &'a Tally,
    acquisitions: String,
    /// The sum of all waits.
    waited: Option<String>,
    longest_wait: Option<String>,
    /// The durations of holds.
    holds: Option<Holds>,
}

struct Holds {
    picture: Histogram,
    words: String,
}

impl<'a> Hour<'a> {
    fn new(tally: &'a Tally) -> Self {
        let waited = tally.waited_ms();
        Self {
            tally,
            acquisitions: format::count(tally.acquisitions),
            waited: (waited > 0).then(|| format::short_duration(waited)),
            longest_wait: tally.longest_wait_ms().map(format::short_duration),
            holds: (tally.holds.count() > 0)
                .then(|| Holds { picture: Histogram::new(&tally.holds), words: hold_words(tally) }),
        }
    }
}

fn hold_words(tally: &Tally) -> String {
    let bound = |percent| match tally.hold_percentile(percent) {
        Some(ms) => format!("≤ {}", format::short_bound(ms)),
        None => "not known".to_owned(),
    };
    let words = format!("half {}, 99% {}", bound(50), bound(99));
    match tally.longest_hold_ms() {
        Some(longest) => format!("{words}, longest {}", format::short_duration(longest)),
        None => words,
    }
}

#[derive(Template)]
#[template(path = "parts/contention_row.html")]
struct ContentionTemplate<'a> {
    id: String,
    lock: LockLink,
    row: &'a ContentionRow,
    waiting: String,
    wait: Option<Ago>,
    holders: Option<HoldersCell<'a>>,
    /// True if the lock's server cannot be read.
    unknown: bool,
    held: Option<Ago>,
    troubled: bool,
    /// True if the lock has no problem that is certain.
    suspected: bool,
    queued: bool,
    hour: Hour<'a>,
}

impl ListView for ContentionRow {
    const PATH: &'static str = "/contention";
    const TITLE: &'static str = "Contention";
    const COLUMNS: &'static [Heading] = &[
        Heading::sorted_by("Lock", "name", "name"),
        Heading::sorted_by("Waiting now", "waiting", "figure"),
        Heading::sorted_by("Longest wait", "wait", "held"),
        Heading::unsorted("Held by", "holder"),
        Heading::sorted_by("Acquired", "taken", "figure"),
        Heading::sorted_by("Total wait", "waited", "waited"),
        Heading::sorted_by("Holds", "hold", "past"),
    ];
    const NOTHING: (&'static str, &'static str) = (
        "Nobody waits",
        "No waiter was known of any lock within the last hour, or since this dashboard began, as far as the sources see.",
    );
    const ABOUT: &'static str = "Locks that someone waits for now, or waited for within the last hour, longest \
        total wait first. ≥ marks a lower bound: it counts connections that listen for a release, and each may represent \
        many threads. The counts of the last hour are of what was seen.";

    fn html(&self, chrome: &Chrome, now: SteadyMillis) -> Result<String, askama::Error> {
        let lock = self.lock.as_deref();
        ContentionTemplate {
            id: row_id(self.id()),
            lock: LockLink::new(&self.id, chrome),
            row: self,
            waiting: format::count(self.waiting()),
            wait: self.longest_wait().map(|since| Ago::since(since, now)),
            holders: lock.and_then(HoldersCell::of_lock),
            unknown: lock.is_some_and(LockView::is_unknown),
            held: self.held_since().map(|since| Ago::since(since, now)),
            troubled: lock.is_some_and(LockView::has_open_problem),
            suspected: lock.is_none_or(only_suspected),
            queued: lock.is_some_and(|lock| lock.queued),
            hour: Hour::new(&self.last_hour),
        }
        .render()
    }
}

/// The last hour by group of locks.
#[derive(Template)]
#[template(path = "parts/contention_groups.html")]
pub(super) struct Groups<'a> {
    groups: Vec<Group<'a>>,
    more: usize,
    left_out: u64,
    /// The beginning of the counts.
    from: Minute,
}

impl HtmlSafe for Groups<'_> {}

struct Group<'a> {
    link: GroupLink,
    hour: Hour<'a>,
}

impl<'a> Groups<'a> {
    /// Returns the groups. `several` is true if there are several deployments.
    pub(super) fn new(contention: &'a Contention, several: bool) -> Self {
        let group = |group: &'a GroupTally| Group {
            link: GroupLink::new(group, several),
            hour: Hour::new(&group.tally),
        };
        Self {
            groups: contention.groups.iter().take(MAX_GROUPS).map(group).collect(),
            more: contention.groups.len().saturating_sub(MAX_GROUPS),
            left_out: contention.locks_left_out,
            from: Minute::new(contention.from),
        }
    }
}
