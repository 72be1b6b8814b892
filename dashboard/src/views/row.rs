//! A row of the table, and the parts of it that other pages also show.

use askama::Template;
use askama::filters::HtmlSafe;
use redisson::Kind;

use super::format::AGELESS;
use super::format::{self, Ago};
use super::lock_link::LockLink;
use super::owner_name::OwnerName;
use super::page::STALE_MS;
use super::picture::Spark;
use crate::clock::SteadyMillis;
use crate::model::types::{Certainty, ClientView, HolderView, LockView, ProblemView, State};
use crate::query::incidents::IncidentRow;
use crate::query::list::RowId;

/// A problem as a badge.
#[derive(Debug, Template)]
#[template(path = "parts/badge.html")]
pub(super) struct Badge {
    pub(super) word: &'static str,
    pub(super) certainty: &'static str,
    pub(super) ago: Ago,
    /// True if the problem is acknowledged.
    pub(super) acknowledged: bool,
}

impl HtmlSafe for Badge {}

impl Badge {
    pub(super) fn new(problem: &ProblemView, now: SteadyMillis) -> Self {
        Self {
            word: problem.problem.name(),
            certainty: problem.certainty.as_str(),
            ago: Ago::new(problem.since, now),
            acknowledged: problem.acknowledged.is_some(),
        }
    }

    pub(super) fn of_incident(incident: &IncidentRow, now: SteadyMillis) -> Self {
        Self {
            word: incident.problem.name(),
            certainty: incident.certainty.as_str(),
            ago: Ago::new(incident.since, now),
            acknowledged: incident.acknowledged,
        }
    }
}

/// A time to live, with the data that the script needs to count it down.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/ttl.html")]
pub(super) struct Ttl {
    state: State,
    /// True if the lock expires.
    ends: bool,
    /// True if it contains the remaining time. Otherwise the script fills it in from the last read of its row or box.
    counted: bool,
    /// The time that remains now.
    left: String,
    left_millis: u64,
    /// True if the lock should have expired by now.
    over: bool,
    lease: Option<(u64, String)>,
    renewed: bool,
}

impl HtmlSafe for Ttl {}

impl Ttl {
    pub(super) fn new(lock: &LockView, now: SteadyMillis) -> Self {
        Self::read(lock, lock.last_reading(), now)
    }

    /// Returns the time to live of a lock from another reading: its instant, and the time left then.
    pub(super) fn read(
        lock: &LockView,
        (observed_at, ttl): (SteadyMillis, Option<u64>),
        now: SteadyMillis,
    ) -> Self {
        // If a server cannot be read, the last value read does not change.
        let passed = match lock.state {
            State::Unknown => 0,
            State::Held | State::Free => now.millis_since(observed_at),
        };
        let millis = ttl.unwrap_or_default();
        let over = ttl.is_some() && passed > millis;
        let left_millis = millis.saturating_sub(passed);
        let left = match over {
            true => format!("over by {}", format::duration(passed - millis)),
            false => format::duration(left_millis),
        };
        let lease = lock.lease_ms.map(|lease| (lease, format::lease(lease)));
        Self {
            state: lock.state,
            ends: ttl.is_some(),
            counted: true,
            left,
            left_millis,
            over,
            lease,
            renewed: lock.renewed,
        }
    }

    /// Returns the time to live without the remaining time, which the script fills in. It changes only when something
    /// else does.
    pub(super) fn uncounted(lock: &LockView) -> Self {
        let ttl = Self::new(lock, lock.observed_at());
        // The last value read from an unavailable server is final.
        Self { counted: lock.state == State::Unknown, ..ttl }
    }

    /// Returns the time that a full bar represents. The script extends it if more time is left.
    fn whole(&self) -> u64 {
        let lease = self.lease.as_ref().map_or(0, |(lease, _)| *lease);
        lease.max(if self.counted { self.left_millis } else { 0 }).max(1)
    }
}

/// A holder, shortened for a table.
#[derive(Template)]
#[template(path = "parts/holder.html")]
pub(super) struct HolderCell<'a> {
    view: &'a HolderView,
    name: OwnerName,
}

impl HtmlSafe for HolderCell<'_> {}

impl<'a> HolderCell<'a> {
    pub(super) fn new(deployment: &str, view: &'a HolderView) -> Self {
        Self { view, name: OwnerName::of_holder(deployment, view) }
    }

    /// Returns the holder in plain text, without remarks.
    fn plain(&self) -> String {
        let mut words = self.name.plain();
        if self.view.count > 1 {
            words.push_str(&format!(" ×{}", self.view.count));
        }
        if self.view.mode != Kind::Lock {
            words.push(' ');
            words.push_str(self.view.mode.as_str());
        }
        words
    }

    /// Returns the holder that has held a lock longest.
    fn longest(lock: &'a LockView) -> Option<Self> {
        let holder = lock.holders.iter().min_by_key(|holder| holder.since.at);
        holder.map(|holder| Self::new(&lock.id.deployment, holder))
    }
}

/// One of the holders of a lock, mostly the one that has held it longest, and the number of others.
#[derive(Template)]
#[template(path = "parts/holders.html")]
pub(super) struct HoldersCell<'a> {
    first: HolderCell<'a>,
    pub(super) more: usize,
}

impl HtmlSafe for HoldersCell<'_> {}

impl<'a> HoldersCell<'a> {
    pub(super) fn of_lock(lock: &'a LockView) -> Option<Self> {
        Self::naming(None, lock)
    }

    /// Returns the holders of a lock. It names this one, if one is given.
    pub(super) fn naming(holder: Option<&'a HolderView>, lock: &'a LockView) -> Option<Self> {
        let named = holder.map(|holder| HolderCell::new(&lock.id.deployment, holder));
        let first = named.or_else(|| HolderCell::longest(lock))?;
        Some(Self { first, more: lock.holders.len() - 1 })
    }

    /// Returns the holders of all locks of an incident, and that of the first lock by name.
    pub(super) fn of_incident(incident: &'a IncidentRow) -> Option<Self> {
        let more = incident.holders().checked_sub(1)?;
        let longest = incident.first_holders().iter().min_by_key(|holder| holder.since.at)?;
        let deployment = &incident.first().0.id.deployment;
        Some(Self { first: HolderCell::new(deployment, longest), more })
    }

    /// Returns the holders in plain text, without remarks.
    fn plain(&self) -> String {
        match self.more {
            0 => self.first.plain(),
            more => format!("{} and {more} more", self.first.plain()),
        }
    }
}

/// Describes a client's process, as far as it is known.
pub(super) fn client_words(client: &ClientView) -> String {
    let mut words = Vec::new();
    match (&client.host, client.pid, &client.comm) {
        (Some(host), Some(pid), Some(comm)) => {
            words.push(format!("{comm}, process {pid} on {host}"));
        }
        (Some(host), Some(pid), None) => words.push(format!("process {pid} on {host}")),
        (Some(host), None, _) => words.push(format!("on {host}")),
        (None, _, _) => {}
    }
    words.extend(client.name.as_ref().map(|name| format!("calls itself {name}")));
    words.extend(client.uid.map(|uid| format!("user id {uid}")));
    words.extend(client.addr.as_ref().map(|addr| format!("from {addr}")));
    if client.alive == Some(false) {
        words.push("gone".to_owned());
    }
    match (&client.signed_by, client.unverified_because) {
        (Some(key), _) => words.push(format!("verified by key {key}")),
        (None, Some(why)) => words.push(format!("only claimed: {why}")),
        (None, None) => {}
    }
    words.join(", ")
}

/// Returns a remark about a process that is not verified since the dashboard has no keys, or `None` if no agent
/// publishes it.
pub(super) fn unverified_remark(client: &ClientView) -> Option<&'static str> {
    let unchecked = client.verified.is_none() && client.host.is_some();
    unchecked.then_some("as published by the agent, not verified")
}

/// A row of the table, identical in the page and in its patches.
#[derive(Template)]
#[template(path = "parts/row.html")]
pub(super) struct Row<'a> {
    id: String,
    name: LockLink,
    lock: &'a LockView,
    problems: Vec<Badge>,
    holders: Option<HoldersCell<'a>>,
    held: Option<Ago>,
    ttl: Ttl,
    /// The time to live as read, the instant of the read, and the time since then. It is omitted if a stream sends it
    /// separately.
    read: Option<Read>,
    stale: bool,
    spark: Spark,
}

impl HtmlSafe for Row<'_> {}

/// The instant at which a lock was read.
pub(super) struct Read {
    pub(super) at: u64,
    pub(super) ttl: Option<u64>,
    pub(super) ago: String,
}

impl Read {
    pub(super) fn new(lock: &LockView, now: SteadyMillis) -> Self {
        let (at, ttl) = lock.last_reading();
        Self { at: at.0, ttl, ago: format::duration(now.millis_since(at)) }
    }
}

impl<'a> Row<'a> {
    pub(super) fn new(lock: &'a LockView, deployment: bool, db: bool, now: SteadyMillis) -> Self {
        let passed = now.millis_since(lock.observed_at());
        Self {
            id: row_id(RowId::of_lock(&lock.id)),
            name: LockLink::placed(&lock.id, deployment, db),
            lock,
            problems: problems(lock).into_iter().map(|it| Badge::new(it, now)).collect(),
            holders: HoldersCell::of_lock(lock),
            held: lock.held_since().map(|since| Ago::since(since, now)),
            ttl: Ttl::new(lock, now),
            read: Some(Read::new(lock, now)),
            stale: passed > STALE_MS,
            spark: Spark::new(&lock.history.past),
        }
    }

    fn waiting(&self) -> String {
        format::count(self.lock.waiting)
    }

    fn wrong(&self) -> bool {
        self.lock.has_open_problem()
    }

    fn suspected(&self) -> bool {
        only_suspected(self.lock)
    }
}

/// Returns the problems of a lock, the worst first and those that are acknowledged last.
pub(super) fn problems(lock: &LockView) -> Vec<&ProblemView> {
    let mut problems: Vec<&ProblemView> = lock.problems.iter().collect();
    problems.sort_by_key(|problem| problem.acknowledged.is_some());
    problems
}

/// Returns true if no open problem of the lock is certain.
pub(super) fn only_suspected(lock: &LockView) -> bool {
    let mut open = lock.problems.iter().filter(|problem| problem.acknowledged.is_none());
    open.all(|problem| problem.certainty == Certainty::Suspected)
}

/// Returns a row's id within a page.
pub(super) fn row_id(id: RowId<'_>) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("r{:016x}", hasher.finish())
}

/// Renders a row for a stream, without anything that changes by itself.
pub(super) fn live_row(
    lock: &LockView,
    deployment: bool,
    db: bool,
) -> Result<String, askama::Error> {
    let row = Row::new(lock, deployment, db, AGELESS);
    Row { ttl: Ttl::uncounted(lock), read: None, ..row }.render()
}
