//! A row of the table, and the parts of it that other pages show too.

use askama::Template;
use askama::filters::HtmlSafe;

use super::format::{self, Ago};
use super::links;
use super::page::STALE_MS;
use crate::model::view::{
    Certainty, ClientView, HolderView, LockId, LockView, ProblemView, Since, State, WallMillis,
};

/// A problem as a badge.
pub(super) struct Badge {
    pub(super) word: &'static str,
    pub(super) certainty: &'static str,
    pub(super) ago: Ago,
}

impl Badge {
    pub(super) fn new(problem: &ProblemView, now: WallMillis) -> Self {
        Self {
            word: problem.problem.as_str(),
            certainty: problem.certainty.as_str(),
            ago: Ago::new(problem.since, now),
        }
    }
}

/// A time to live, with what the script needs to count it down.
#[derive(Debug, Clone, Template)]
#[template(path = "parts/ttl.html")]
pub(super) struct Ttl {
    state: State,
    /// As read; none: it has no end.
    millis: Option<u64>,
    observed_at: u64,
    /// What is left by now.
    left: String,
    left_millis: u64,
    /// Whether it should have ended since.
    over: bool,
    lease: Option<(u64, String)>,
    renewed: bool,
}

impl HtmlSafe for Ttl {}

impl Ttl {
    pub(super) fn new(lock: &LockView, now: WallMillis) -> Self {
        // Of a server that cannot be read, what was read last stands still.
        let passed = match lock.state {
            State::Unknown => 0,
            State::Held | State::Free => now.0.saturating_sub(lock.observed_at.0),
        };
        let millis = lock.ttl_ms.unwrap_or_default();
        let over = lock.ttl_ms.is_some() && passed > millis;
        let left_millis = millis.saturating_sub(passed);
        let left = match over {
            true => format!("over by {}", format::duration(passed - millis)),
            false => format::duration(left_millis),
        };
        let lease = lock.lease_ms.map(|lease| (lease, format::lease(lease)));
        Self {
            state: lock.state,
            millis: lock.ttl_ms,
            observed_at: lock.observed_at.0,
            left,
            left_millis,
            over,
            lease,
            renewed: lock.renewed,
        }
    }

    /// What a full bar stands for.
    fn whole(&self) -> u64 {
        let lease = self.lease.as_ref().map_or(0, |(lease, _)| *lease);
        lease.max(self.millis.unwrap_or_default()).max(1)
    }
}

/// A holder, short enough for a table.
pub(super) struct HolderCell<'a> {
    holder: &'a HolderView,
    short: String,
    link: String,
    /// Its process and host.
    place: Option<String>,
    gone: bool,
}

impl<'a> HolderCell<'a> {
    fn new(holder: &'a HolderView) -> Self {
        let start: String = holder.uuid.chars().take(8).collect();
        let short = match holder.uuid.is_empty() {
            true => holder.id.chars().take(24).collect(),
            false => format!("{start}…:{}", short_thread(&holder.thread)),
        };
        let client = holder.client.as_ref();
        Self {
            holder,
            short,
            link: owner_link(holder),
            place: client.and_then(place_words),
            gone: client.is_some_and(|client| client.alive == Some(false)),
        }
    }
}

/// A thread's number, or the end of it: an agent's numbers are long, and differ at their ends.
fn short_thread(thread: &str) -> String {
    match thread.len().checked_sub(6) {
        Some(hidden) if hidden > 4 => format!("…{}", thread.get(hidden..).unwrap_or(thread)),
        _ => thread.to_owned(),
    }
}

/// The locks of a holder's client.
pub(super) fn owner_link(holder: &HolderView) -> String {
    let owner = if holder.uuid.is_empty() { &holder.id } else { &holder.uuid };
    links::filtered(&format!("owner:{owner}"))
}

/// A client's process, as far as it is known.
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
    words.join(", ")
}

/// Where a client is, in the few words that a row has room for.
fn place_words(client: &ClientView) -> Option<String> {
    let process = client.comm.as_deref().map_or_else(
        || client.pid.map(|pid| format!("process {pid}")),
        |comm| Some(comm.to_owned()),
    );
    let host = client.host.as_deref()?;
    Some(match process {
        Some(process) => format!("{process} on {host}"),
        None => format!("on {host}"),
    })
}

/// Since when a lock is held: by whoever has held it longest.
pub(super) fn held_since(lock: &LockView) -> Option<Since> {
    lock.holders.iter().map(|holder| holder.since).min_by_key(|since| since.at)
}

/// A row of the table, the same in the page and in its patches.
#[derive(Template)]
#[template(path = "parts/row.html")]
pub(super) struct Row<'a> {
    id: String,
    link: String,
    name: String,
    place: Option<String>,
    lock: &'a LockView,
    problems: Vec<Badge>,
    /// The one worth showing first.
    holder: Option<HolderCell<'a>>,
    more_holders: usize,
    held: Option<Ago>,
    ttl: Ttl,
    read: Ago,
    stale: bool,
}

impl HtmlSafe for Row<'_> {}

impl<'a> Row<'a> {
    pub(super) fn new(lock: &'a LockView, deployment: bool, db: bool, now: WallMillis) -> Self {
        let place = match (deployment, db) {
            (true, true) => Some(format!("{}/{}", lock.id.deployment, lock.id.db)),
            (true, false) => Some(lock.id.deployment.to_string()),
            (false, true) => Some(format!("db {}", lock.id.db)),
            (false, false) => None,
        };
        let holder = lock.holders.iter().min_by_key(|holder| holder.since.at);
        let passed = now.0.saturating_sub(lock.observed_at.0);
        Self {
            id: row_id(&lock.id),
            link: links::lock(&lock.id),
            name: format::bytes(lock.id.name.as_bytes()),
            place,
            lock,
            problems: lock.problems.iter().map(|problem| Badge::new(problem, now)).collect(),
            holder: holder.map(HolderCell::new),
            more_holders: lock.holders.len().saturating_sub(1),
            held: held_since(lock).map(|since| Ago::since(since, now)),
            ttl: Ttl::new(lock, now),
            read: Ago::new(lock.observed_at, now),
            stale: passed > STALE_MS,
        }
    }

    fn wrong(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Whether nothing is surely wrong.
    fn suspected(&self) -> bool {
        self.lock.problems.iter().all(|problem| problem.certainty == Certainty::Suspected)
    }
}

/// A row's id within a page.
pub(super) fn row_id(id: &LockId) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("r{:016x}", hasher.finish())
}

/// A row by itself.
pub(super) fn row_html(
    lock: &LockView,
    deployment: bool,
    db: bool,
    now: WallMillis,
) -> Result<String, askama::Error> {
    Row::new(lock, deployment, db, now).render()
}

/// Whether both make the same row but for the time to live and when it was read.
pub(super) fn same_row_but_ttl(a: &LockView, b: &LockView) -> bool {
    let problems = |lock: &LockView| -> Vec<_> {
        lock.problems.iter().map(|p| (p.problem, p.certainty, p.since)).collect()
    };
    a.id == b.id
        && a.state == b.state
        && a.confirmed == b.confirmed
        && a.kind == b.kind
        && a.holders == b.holders
        && a.lease_ms == b.lease_ms
        && a.renewed == b.renewed
        && a.queued == b.queued
        && a.waiting == b.waiting
        && a.ttl_ms.is_some()
        && b.ttl_ms.is_some()
        && problems(a) == problems(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_show_their_end() {
        assert_eq!(short_thread("52"), "52");
        assert_eq!(short_thread("1234567890"), "1234567890");
        assert_eq!(short_thread("1927612615576518676"), "…518676");
        assert_eq!(short_thread("-9223372036854775808"), "…775808");
    }
}
