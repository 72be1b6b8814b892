//! Read-only views of the core, for LOCKS, HTTP and the holder registry.

mod awaited;
pub(in crate::core) mod list;
pub(in crate::core) mod process;
mod published;
pub(in crate::core) mod refusals;

use std::time::Duration;

use redisson::{LockName, Moment};

use crate::types::Number;

/// A hold or wait, as LOCKS and the HTTP API list it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ListRow {
    /// The session id that SESSION returns.
    #[serde(skip)]
    pub session: String,
    /// The lock's name, escaped if it is not printable UTF-8.
    pub lock: String,
    /// The name as raw bytes.
    #[serde(skip)]
    pub name: Vec<u8>,
    pub kind: &'static str,
    /// The holder id in Redis; `None` while waiting.
    pub holder: Option<String>,
    /// `held`, `waiting`, or `delayed` for a dead worker's lock that is still unavailable (`--lock-delay`).
    pub state: &'static str,
    /// The worker's process is stopped.
    pub frozen: bool,
    /// `None` if its pid namespace is not visible to the agent.
    pub pid: Option<i32>,
    pub uid: u32,
    /// The name of the worker's command.
    pub comm: Option<String>,
    /// The name set with CLIENT SETNAME.
    pub client: Option<String>,
    /// Milliseconds since the grant, or since the wait began.
    pub age_ms: u64,
    /// Milliseconds of validity left; `None` while waiting.
    pub valid_ms: Option<u64>,
    /// The end of the validity on the boot clock of the agent's host, in nanoseconds; `None` while waiting.
    pub valid_until_ns: Option<u64>,
}

/// A session, as the HTTP API lists it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SessionRow {
    /// The session id that SESSION returns.
    pub session: String,
    /// `None` if its pid namespace is not visible to the agent.
    pub pid: Option<i32>,
    pub uid: u32,
    /// The name of the worker's command.
    pub comm: Option<String>,
    /// The name set with CLIENT SETNAME.
    pub client: Option<String>,
    /// Milliseconds since it connected.
    pub age_ms: u64,
    /// Milliseconds for which its holds outlive the connection; `None` without grace.
    pub grace_ms: Option<u64>,
    /// Milliseconds since its connection closed; `None` while connected.
    pub away_ms: Option<u64>,
    /// The worker's process is stopped.
    pub frozen: bool,
    pub holds: usize,
    /// The number of its commands that wait for locks.
    pub waits: usize,
}

/// The holds and waits that one page of the holder registry contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedPage {
    /// The page starts after this number.
    pub after: Number,
    /// The last number of the page.
    pub until: Number,
    /// The published numbers of the page, in ascending order.
    pub numbers: Vec<Number>,
    /// Those of them that are to be written again, in ascending order.
    pub stale: Vec<Number>,
    /// Those of them that were [transient](HolderInfo::transient) when they were written, in ascending order.
    pub transient: Vec<Number>,
    /// Entries of workers whose process or name has changed at this instant or later are written again.
    pub changed_since: Moment,
    /// Younger holds and waits are not published.
    pub min_age: Duration,
    /// Only red locks are published on this server.
    pub red: bool,
}

/// The changes that bring a page of the holder registry up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishDiff {
    /// Published, but no longer held or waiting.
    pub gone: Vec<Number>,
    /// Old enough but not yet published, or stale.
    pub due: Vec<HolderInfo>,
    /// The last number compared; `None` if nothing can follow.
    pub next: Option<Number>,
}

/// A lock that workers of this agent wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedLock {
    pub lock: LockName,
    /// All of its waiters.
    pub count: usize,
    /// The numbers of the first ones, each with the beginning of its wait.
    pub named: Vec<(Number, Moment)>,
}

/// The worker behind a hold or a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderInfo {
    /// The number in its holder id, now or once granted.
    pub number: Number,
    pub lock: LockName,
    pub session: String,
    /// `None` if its pid namespace is not visible to the agent.
    pub pid: Option<i32>,
    pub uid: u32,
    /// The name of the worker's command.
    pub comm: Option<String>,
    /// The name set with CLIENT SETNAME.
    pub client: Option<String>,
    /// Milliseconds since the grant, or since the wait began.
    pub age_ms: u64,
    pub owner: i64,
    /// The owner acquires several locks at once, and releases all of them rather than wait forever.
    pub several: bool,
    /// It is a wait, or part of an MLOCK that is not answered.
    pub transient: bool,
    /// Milliseconds until the wait times out; `None` for a hold or an unlimited wait.
    pub left_ms: Option<u64>,
}

/// A page of rows.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ListPage<Row> {
    /// The cursor of the next page; 0 at the end. A string in JSON because it has 64 bits.
    #[serde(serialize_with = "as_text")]
    pub next: u64,
    pub rows: Vec<Row>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn as_text<S: serde::Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}
