//! What the core and the connections say to one another.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::command::{Command, ListRequest};
use crate::core::Number;
use crate::policy::Policy;
use crate::resp::Outgoing;

/// A session's number in this run of the agent: never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// A session's name, which it keeps when another connection takes it over: the run of the agent in which it began, and
/// the number of its first connection there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    /// The run's epoch.
    pub run: u64,
    /// The number of the connection that began it.
    pub number: u64,
}

impl SessionKey {
    /// Reads what [`fmt::Display`] has written, and nothing else.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (run, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
        let run = u64::from_str_radix(run, 16).ok()?;
        let key = Self { run, number: number.parse().ok()? };
        (key.to_string().as_bytes() == text).then_some(key)
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.run, self.number)
    }
}

impl Serialize for SessionKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(text.as_bytes()).ok_or_else(|| serde::de::Error::custom("no session's name"))
    }
}

/// The process at the other end, as the kernel tells.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Peer {
    /// Its pid; none where it lives in a pid namespace that we cannot see.
    pub pid: Option<i32>,
    pub uid: u32,
    pub gid: u32,
    /// Its command's name.
    pub comm: Option<String>,
}

/// A connection's news for the core, in order.
#[derive(Debug)]
pub enum FromSession {
    /// A worker has connected.
    Opened {
        session: SessionId,
        /// Who it is.
        peer: Peer,
        /// 16 random bytes: the session's secret.
        secret: [u8; 16],
        /// Where its replies go. Room for [`PIPELINE`] replies and [`PUSHES`] pushes.
        outbox: mpsc::Sender<Outgoing>,
    },
    /// It gave itself a name.
    Named(SessionId, Vec<u8>),
    /// It asks for something. At most [`PIPELINE`] commands of a session are unanswered at a time.
    Command(SessionId, Command),
    /// It speaks RESP3 now, or no longer.
    Resp3(SessionId, bool),
    /// It says goodbye: what its session holds is released at its end, whatever grace it asked for.
    Quit(SessionId),
    /// It has gone: its waits end, and its holds are released unless its session has grace.
    Closed(SessionId),
    /// From now on this says who may take which locks.
    Policy(Policy),
    /// A page of the HTTP side wants the agent's holds and waits.
    List(ListRequest, oneshot::Sender<ListPage<ListRow>>),
    /// It wants the sessions: after this one, so many at most.
    Sessions(u64, usize, oneshot::Sender<ListPage<SessionRow>>),
    /// Which processes hold or wait for something.
    Busy(oneshot::Sender<BTreeSet<i32>>),
    /// Of these, the ones that are stopped.
    Stopped(BTreeSet<i32>),
    /// The announcer wants to know what its notes lack.
    Noted(Noted, oneshot::Sender<Differences>),
}

/// How many commands of one session may be unanswered; the connection reads no further meanwhile.
pub const PIPELINE: usize = 1024;
/// How many pushes may wait unread in a session's outbox; further ones are dropped and counted.
pub const PUSHES: usize = 256;

/// One hold or wait, as LOCKS and the HTTP side list it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ListRow {
    /// The id of its session, as SESSION tells it.
    #[serde(skip)]
    pub session: String,
    /// The lock's name, escaped where it is not printable UTF-8.
    pub lock: String,
    /// Its name's bytes.
    #[serde(skip)]
    pub name: Vec<u8>,
    /// Kind of lock.
    pub kind: &'static str,
    /// Holder id in Redis; none while waiting.
    pub holder: Option<String>,
    /// `held`, `waiting`, or `delayed`: the worker is dead, and nobody else gets the lock yet.
    pub state: &'static str,
    /// Whether the worker's process is stopped.
    pub frozen: bool,
    /// The worker's pid, where it can be seen.
    pub pid: Option<i32>,
    /// The worker's user.
    pub uid: u32,
    /// The worker's command.
    pub comm: Option<String>,
    /// CLIENT SETNAME's text.
    pub client: Option<String>,
    /// Milliseconds since the grant, or since the wait began.
    pub age_ms: u64,
    /// Sure validity left in milliseconds; none while waiting.
    pub valid_ms: Option<u64>,
}

/// One session, as the HTTP side lists it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SessionRow {
    /// The id that SESSION tells.
    pub session: String,
    /// The worker's pid, where it can be seen.
    pub pid: Option<i32>,
    /// The worker's user.
    pub uid: u32,
    /// The worker's command.
    pub comm: Option<String>,
    /// CLIENT SETNAME's text.
    pub client: Option<String>,
    /// Milliseconds since it connected.
    pub age_ms: u64,
    /// For how long its holds outlive its connection, in milliseconds; none where they do not.
    pub grace_ms: Option<u64>,
    /// Milliseconds since its connection has gone; none while it lives.
    pub away_ms: Option<u64>,
    /// Whether its process is stopped.
    pub frozen: bool,
    /// Locks it holds.
    pub holds: usize,
    /// Its commands that wait for locks.
    pub waits: usize,
}

/// A part of what the notes in Redis say: of which holds and waits they tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// The part begins above this number,
    pub after: Number,
    /// and ends with this one.
    pub until: Number,
    /// Those in it that are told of, in order.
    pub numbers: Vec<Number>,
    /// What is younger is not worth a note.
    pub min_age: Duration,
    /// Whether they are those of red locks only, which the servers of these are told.
    pub red: bool,
}

/// What would make such a part true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differences {
    /// Told of, and over.
    pub gone: Vec<Number>,
    /// Not told of, and old enough.
    pub due: Vec<Noteworthy>,
    /// How far this goes; none where nothing can be beyond.
    pub next: Option<Number>,
}

/// Who is behind a hold or a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noteworthy {
    /// The number that ends its holder id, or will once it is granted.
    pub number: Number,
    /// The id of its session.
    pub session: String,
    /// The worker's pid, where it can be seen.
    pub pid: Option<i32>,
    /// The worker's user.
    pub uid: u32,
    /// The worker's command.
    pub comm: Option<String>,
    /// CLIENT SETNAME's text.
    pub client: Option<String>,
    /// Milliseconds since the grant, or since the wait began.
    pub age_ms: u64,
    /// Its owner within the session.
    pub owner: i64,
    /// Whether that owner is taking several locks at once, which it gives back rather than wait for ever.
    pub several: bool,
    /// Milliseconds after which the wait ends by itself; none for a hold, or a wait without an end.
    pub left_ms: Option<u64>,
}

/// A page of rows.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ListPage<Row> {
    /// Where to go on; 0 at the end. A string in JSON: it has 64 bits.
    #[serde(serialize_with = "as_text")]
    pub next: u64,
    pub rows: Vec<Row>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn as_text<S: serde::Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}
