//! Tells in Redis who is behind our holds and waits, in keys of our own beside the locks: whoever finds a holder id there
//! can look up the host and the process. Nothing here is on a lock's way, and no lock depends on it.
//!
//! What lasts less than a second is never written, so that a busy agent writes little; what is written is written once.

mod cmdline;

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Pipeline, Value};
use redisson::{ClientId, keys};
use serde::Serialize;
use service_kit::clock::wall_millis;
use service_kit::redis_link::{Link, LinkOptions, Target};
use service_kit::shutdown::Shutdown;
use tokio::sync::{mpsc, oneshot};

use crate::command::ListRequest;
use crate::core::Number;
use crate::session::{FromSession, ListRow};

/// How often the core is asked, with few holds.
const INTERVAL: Duration = Duration::from_secs(2);
/// With many it is asked less often, so that listing them stays small beside renewing them: this long for each.
const FOR_EACH: Duration = Duration::from_micros(200);
/// Yet well within the time that Redis keeps what was written.
const LONGEST: Duration = Duration::from_secs(20);
/// How long it is left alone after Redis has refused.
const PAUSE: Duration = Duration::from_secs(30);
/// How long Redis keeps what the agent no longer renews.
const TTL: Duration = Duration::from_secs(60);
/// What is younger than this, in milliseconds, is not written.
const MIN_AGE_MS: u64 = 1_000;
/// How many rows the core gives at once.
const PAGE: usize = 500;
/// How many fields are set or removed by one command.
const BATCH: usize = 200;
/// How many fields are added each time, or a fifth of all where that is more; the rest follows.
const MAX_ADDED: usize = 4_000;
/// How much of a client's own name is written, in characters.
const MAX_CLIENT: usize = 100;

/// What the announcer runs with.
#[derive(Debug)]
pub struct Start {
    /// Who we are in Redis.
    pub client: ClientId,
    /// Which Redis.
    pub target: Target,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long Redis has to answer.
    pub response_timeout: Duration,
    /// Whether command lines are written too.
    pub cmdline: bool,
    /// Who knows the holds and waits.
    pub core: mpsc::Sender<FromSession>,
}

/// Starts the task, with a connection of its own. Both end with `stage`.
pub fn start(start: Start, stage: &Shutdown) {
    let options = LinkOptions {
        response_timeout: start.response_timeout,
        connect_timeout: start.connect_timeout,
        heartbeat: start.response_timeout,
        writable: true,
        ..LinkOptions::new("lockscope-agent-notes")
    };
    let announcer = Announcer {
        link: Link::start(start.target, options, stage),
        core: start.core,
        agent_key: keys::agent(&start.client),
        holders_key: keys::agent_holders(&start.client),
        about_us: AboutUs::now(),
        book: Book::default(),
        cmdline: start.cmdline,
        refused: None,
    };
    let stop = stage.token();
    stage.spawn("announcer", async move {
        stop.run_until_cancelled(announcer.run()).await;
    });
}

/// The agent itself, as `lockscope:agent:{<uuid>}` tells it.
struct AboutUs {
    host: String,
    pid: u32,
    started_ms: u64,
}

impl AboutUs {
    fn now() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { host: host.trim().to_owned(), pid: std::process::id(), started_ms: wall_millis() }
    }
}

/// One hold or wait, as a field of `lockscope:holders:{<uuid>}` tells it.
#[derive(Debug, Serialize)]
struct Note<'a> {
    pid: Option<i32>,
    uid: u32,
    comm: Option<&'a str>,
    client: Option<String>,
    session: &'a str,
    /// Since when, in epoch milliseconds.
    since: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cmdline: Option<String>,
}

/// Which numbers stand in Redis.
#[derive(Debug, Default)]
struct Book {
    written: BTreeSet<Number>,
    /// Whether what stands there is not known, so that all is written anew.
    unknown: bool,
}

/// What has to be written.
#[derive(Debug, Default)]
struct Changes<'a> {
    anew: bool,
    gone: Vec<Number>,
    added: Vec<&'a ListRow>,
}

impl Book {
    /// What differs between Redis and `rows`. The book then says what Redis will say once that is written.
    fn turn<'a>(&mut self, rows: &'a [ListRow]) -> Changes<'a> {
        let anew = std::mem::take(&mut self.unknown);
        if anew {
            self.written.clear();
        }
        let here: BTreeSet<Number> = rows.iter().map(|row| row.number).collect();
        let gone: Vec<Number> = self.written.difference(&here).copied().collect();
        self.written.retain(|number| here.contains(number));
        let due = rows.iter().filter(|row| row.age_ms >= MIN_AGE_MS);
        let added: Vec<&ListRow> = due
            .filter(|row| !self.written.contains(&row.number))
            .take(most_added(rows.len()))
            .collect();
        self.written.extend(added.iter().map(|row| row.number));
        Changes { anew, gone, added }
    }
}

/// How many of so many holds and waits are added at once.
fn most_added(rows: usize) -> usize {
    MAX_ADDED.max(rows / 5)
}

/// How long to wait before so many holds and waits are listed again.
fn pause_after(rows: usize) -> Duration {
    let wanted = FOR_EACH.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX));
    wanted.clamp(INTERVAL, LONGEST)
}

struct Announcer {
    link: Link,
    core: mpsc::Sender<FromSession>,
    agent_key: Vec<u8>,
    holders_key: Vec<u8>,
    about_us: AboutUs,
    book: Book,
    cmdline: bool,
    /// What Redis said when it refused last.
    refused: Option<String>,
}

impl Announcer {
    /// Until the core has ended.
    async fn run(mut self) {
        while self.link.up().await.is_some() {
            let Some(rows) = self.rows().await else { return };
            let pause = if self.write(&rows).await { pause_after(rows.len()) } else { PAUSE };
            tokio::time::sleep(pause).await;
        }
    }

    /// All holds and waits; nothing once the core has ended.
    async fn rows(&self) -> Option<Vec<ListRow>> {
        let (mut rows, mut cursor) = (Vec::new(), 0);
        loop {
            let (answer, page) = oneshot::channel();
            let request = ListRequest { pattern: None, cursor, count: PAGE };
            self.core.send(FromSession::List(request, answer)).await.ok()?;
            let page = page.await.ok()?;
            rows.extend(page.rows);
            cursor = page.next;
            if cursor == 0 {
                return Some(rows);
            }
        }
    }

    /// Brings Redis up to date. False when Redis refuses, which will not be otherwise a moment later.
    async fn write(&mut self, rows: &[ListRow]) -> bool {
        let changes = self.book.turn(rows);
        let pipeline = self.pipeline(&changes);
        let answers = match self.link.pipeline(pipeline).await {
            Ok(answers) => answers,
            Err(error) => {
                // The link tells of its outages itself.
                tracing::debug!(%error, "holders are not told in Redis");
                self.book.unknown = true;
                return true;
            }
        };
        // The last command found no such key: somebody has deleted what was written before.
        let kept = matches!(answers.last(), Some(Ok(Value::Int(1))));
        self.book.unknown = !kept && !self.book.written.is_empty();
        let refused = answers.into_iter().find_map(Result::err).map(|error| error.to_string());
        if let Some(error) = &refused {
            self.book.unknown = true;
            if self.refused.as_ref() != Some(error) {
                tracing::warn!(error, "Redis does not let the agent tell who its holders are");
            }
        }
        self.refused = refused;
        self.refused.is_none()
    }

    fn pipeline(&self, changes: &Changes<'_>) -> Pipeline {
        let ttl = TTL.as_millis().to_string();
        let (agent, holders) = (&self.agent_key, &self.holders_key);
        let mut pipeline = Pipeline::new();
        let us = &self.about_us;
        pipeline.cmd("HSET").arg(agent).arg("host").arg(&us.host).arg("pid").arg(us.pid);
        pipeline.arg("version").arg(env!("CARGO_PKG_VERSION")).arg("started").arg(us.started_ms);
        pipeline.cmd("PEXPIRE").arg(agent).arg(&ttl);
        if changes.anew {
            pipeline.cmd("DEL").arg(holders);
        }
        for numbers in changes.gone.chunks(BATCH) {
            pipeline.cmd("HDEL").arg(holders).arg(numbers);
        }
        let now_ms = wall_millis();
        for rows in changes.added.chunks(BATCH) {
            pipeline.cmd("HSET").arg(holders);
            for row in rows {
                pipeline.arg(row.number).arg(self.note(row, now_ms));
            }
        }
        pipeline.cmd("PEXPIRE").arg(holders).arg(&ttl);
        pipeline
    }

    fn note(&self, row: &ListRow, now_ms: u64) -> String {
        let client = row.client.as_ref().map(|name| name.chars().take(MAX_CLIENT).collect());
        let cmdline = row.pid.filter(|_| self.cmdline).and_then(cmdline::of);
        let note = Note {
            pid: row.pid,
            uid: row.uid,
            comm: row.comm.as_deref(),
            client,
            session: &row.session,
            since: now_ms.saturating_sub(row.age_ms),
            cmdline,
        };
        serde_json::to_string(&note).expect("numbers and text are always JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: Number, age_ms: u64) -> ListRow {
        ListRow {
            number,
            session: "1-2".into(),
            lock: "a".into(),
            name: b"a".to_vec(),
            kind: "lock",
            holder: None,
            state: "waiting",
            pid: Some(1),
            uid: 0,
            comm: None,
            client: None,
            age_ms,
            valid_ms: None,
        }
    }

    fn numbers(rows: &[&ListRow]) -> Vec<Number> {
        rows.iter().map(|row| row.number).collect()
    }

    #[test]
    fn what_lasts_is_written_once_and_removed_once() {
        let mut book = Book::default();
        let rows = [row(1, 999), row(2, 1_000)];
        assert_eq!(numbers(&book.turn(&rows).added), [2]);
        let rows = [row(1, 2_999), row(2, 3_000)];
        let changes = book.turn(&rows);
        assert_eq!((numbers(&changes.added), changes.gone), (vec![1], vec![]));
        let rows = [row(1, 5_000)];
        let changes = book.turn(&rows);
        assert_eq!((numbers(&changes.added), changes.gone), (vec![], vec![2]));
        assert!(book.turn(&rows).gone.is_empty());
        book.unknown = true;
        let changes = book.turn(&rows);
        assert!(changes.anew);
        assert_eq!(numbers(&changes.added), [1]);
        assert!(!book.turn(&rows).anew);
    }

    #[test]
    fn a_crowd_is_written_in_several_rounds() {
        let mut book = Book::default();
        let rows: Vec<ListRow> = (0..5_000).map(|number| row(number, 1_000)).collect();
        assert_eq!(book.turn(&rows).added.len(), MAX_ADDED);
        assert_eq!(book.turn(&rows).added.len(), 1_000);
        assert_eq!(book.turn(&rows).added.len(), 0);
    }

    #[test]
    fn many_holds_are_listed_less_often_and_never_too_late() {
        assert_eq!(pause_after(0), INTERVAL);
        assert_eq!(pause_after(10_000), INTERVAL);
        assert_eq!(pause_after(50_000), Duration::from_secs(10));
        assert_eq!(pause_after(usize::MAX), LONGEST);
        assert!(LONGEST * 2 < TTL);
        assert_eq!((most_added(10_000), most_added(100_000)), (MAX_ADDED, 20_000));
    }
}
