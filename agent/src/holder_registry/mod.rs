//! Tells in Redis who is behind our holds and waits, in keys of our own beside the locks: whoever finds a holder id there
//! can look up the host and the process. Nothing here is on a lock's way, and no lock depends on it.
//!
//! What lasts less than a second is never written, so that a busy agent writes little; what is written is written once.

mod cmdline;
mod way;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use redis::{Pipeline, Value};
use redisson::{ClientId, keys, slot};
use serde::Serialize;
use service_kit::clock::{boot_epoch_millis, boot_micros};
use service_kit::redis::LinkOptions;
use service_kit::shutdown::Shutdown;
use tokio::sync::{mpsc, oneshot};

use crate::core::Input;
use crate::core::report::{HolderInfo, PublishDiff, PublishedPage};
use crate::runtime::Main;
use crate::types::Number;
use way::Way;

/// How often what is written is compared with what there is, with few holds.
const INTERVAL: Duration = Duration::from_secs(2);
/// With many it happens less often, so that comparing stays small beside renewing: this long for each.
const FOR_EACH: Duration = Duration::from_micros(100);
/// Yet well within the time that Redis keeps what was written.
const LONGEST: Duration = Duration::from_secs(20);
/// How long it is left alone after Redis has refused.
const PAUSE: Duration = Duration::from_secs(30);
/// How long Redis keeps what the agent no longer renews.
const TTL: Duration = Duration::from_secs(60);
/// What is younger than this is not written.
const MIN_AGE: Duration = Duration::from_secs(1);
/// How many of the numbers written are compared at once.
const PAGE: usize = 500;
/// How many fields are set or removed by one command.
const BATCH: usize = 200;
/// The pause after a page that was written: a crowd of new holds comes to Redis in small helpings.
const BETWEEN: Duration = Duration::from_millis(10);
/// By how much the clock on the wall has to have been set, in milliseconds, for what was written to be written anew.
const STEP: u64 = 1_000;
/// How much of a client's own name is written, in characters.
const MAX_CLIENT: usize = 100;

/// What the announcer runs with.
#[derive(Debug)]
pub struct Start {
    /// Who we are in Redis.
    pub client: ClientId,
    pub place: Main,
    /// Whether it is one of the servers of red locks: it is told of these only.
    pub red: bool,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long Redis has to answer.
    pub response_timeout: Duration,
    /// Whether command lines are written too.
    pub cmdline: bool,
    /// Who knows the holds and waits.
    pub core: mpsc::Sender<Input>,
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
        way: Way::new(start.place, options, slot(&keys::agent(&start.client)), stage),
        core: start.core,
        agent_key: keys::agent(&start.client),
        holders_key: keys::agent_holders(&start.client),
        about_us: AboutUs::now(),
        booted: boot_epoch_millis(),
        book: Book::default(),
        red: start.red,
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
    /// By the boot clock, in milliseconds.
    started: u64,
}

impl AboutUs {
    fn now() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let started = boot_micros() / 1_000;
        Self { host: host.trim().to_owned(), pid: std::process::id(), started }
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
    owner: i64,
    /// Whether that owner takes several locks at once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    several: bool,
    /// When a wait ends by itself, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cmdline: Option<String>,
}

/// Which numbers stand in Redis.
#[derive(Debug, Default)]
struct Book(BTreeSet<Number>);

impl Book {
    /// The next part of it, above `after`.
    fn part(&self, after: Number, red: bool) -> PublishedPage {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let numbers: Vec<Number> = self.0.range(range).take(PAGE).copied().collect();
        let until = match numbers.last() {
            Some(last) if numbers.len() == PAGE => *last,
            _ => Number::MAX,
        };
        PublishedPage { after, until, numbers, min_age: MIN_AGE, red }
    }

    /// These differences have been written.
    fn enter(&mut self, written: &PublishDiff) {
        for number in &written.gone {
            self.0.remove(number);
        }
        self.0.extend(written.due.iter().map(|row| row.number));
    }
}

/// How long to wait before so many holds and waits are listed again.
fn pause_after(rows: usize) -> Duration {
    let wanted = FOR_EACH.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX));
    wanted.clamp(INTERVAL, LONGEST)
}

struct Announcer {
    way: Way,
    core: mpsc::Sender<Input>,
    agent_key: Vec<u8>,
    holders_key: Vec<u8>,
    about_us: AboutUs,
    /// When the host was booted by the wall clock, in epoch milliseconds: all instants that stand in Redis go by it.
    booted: u64,
    book: Book,
    /// Whether only red locks are told of.
    red: bool,
    cmdline: bool,
    /// What Redis said when it refused last.
    refused: Option<String>,
}

/// Why a pass ended before its time.
enum Ended {
    /// The core has ended, and so does the announcer.
    NoCore,
    /// Redis is out of reach: what stands there is not known.
    Unreachable,
    /// Redis refuses, which will not be otherwise a moment later.
    Refused(String),
}

impl Announcer {
    /// Until the core has ended.
    async fn run(mut self) {
        while self.way.up().await {
            let passed = self.pass().await;
            let pause = match passed {
                Ok(()) => {
                    self.refused = None;
                    pause_after(self.book.0.len())
                }
                Err(Ended::NoCore) => return,
                Err(Ended::Unreachable) => INTERVAL,
                Err(Ended::Refused(error)) => {
                    if self.refused.as_ref() != Some(&error) {
                        tracing::warn!(
                            error,
                            "Redis does not let the agent tell who its holders are"
                        );
                    }
                    self.refused = Some(error);
                    PAUSE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Brings Redis up to date, page by page.
    async fn pass(&mut self) -> Result<(), Ended> {
        self.tell_about_us().await?;
        let mut after = 0;
        loop {
            let (answer, differences) = oneshot::channel();
            let part = self.book.part(after, self.red);
            self.core.send(Input::DiffPublished(part, answer)).await.map_err(|_| Ended::NoCore)?;
            let differences = differences.await.map_err(|_| Ended::NoCore)?;
            if !(differences.gone.is_empty() && differences.due.is_empty()) {
                self.send(self.pipeline(&differences)).await?;
                self.book.enter(&differences);
                tokio::time::sleep(BETWEEN).await;
            }
            match differences.next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    /// Writes who we are, keeps what is written alive, and begins anew where Redis has other than what we wrote:
    /// somebody has deleted it, or a write was lost; and where somebody has set the clock that it goes by.
    async fn tell_about_us(&mut self) -> Result<(), Ended> {
        let booted = boot_epoch_millis();
        if booted.abs_diff(self.booted) > STEP {
            // What stands there is not what we would write now: below it is found to be more than this, and removed.
            (self.booted, self.book) = (booted, Book::default());
        }
        let ttl = TTL.as_millis().to_string();
        let (us, key) = (&self.about_us, &self.agent_key);
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HSET").arg(key).arg("host").arg(&us.host).arg("pid").arg(us.pid);
        pipeline
            .arg("version")
            .arg(env!("CARGO_PKG_VERSION"))
            .arg("started")
            .arg(self.booted + us.started);
        pipeline.cmd("PEXPIRE").arg(key).arg(&ttl);
        pipeline.cmd("PEXPIRE").arg(&self.holders_key).arg(&ttl);
        pipeline.cmd("HLEN").arg(&self.holders_key);
        let answers = self.send(pipeline).await?;
        let there = match answers.last() {
            Some(Value::Int(there)) => usize::try_from(*there).ok(),
            _ => None,
        };
        if there != Some(self.book.0.len()) {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("DEL").arg(&self.holders_key);
            self.send(pipeline).await?;
            self.book = Book::default();
        }
        Ok(())
    }

    async fn send(&self, pipeline: Pipeline) -> Result<Vec<Value>, Ended> {
        let answers = self.way.pipeline(pipeline).await.map_err(|error| {
            // The link tells of its outages itself.
            tracing::debug!(%error, "holders are not told in Redis");
            Ended::Unreachable
        })?;
        let answers: Result<Vec<Value>, _> = answers.into_iter().collect();
        answers.map_err(|error| {
            if self.way.leads_elsewhere(&error) {
                return Ended::Unreachable;
            }
            Ended::Refused(error.to_string())
        })
    }

    fn pipeline(&self, differences: &PublishDiff) -> Pipeline {
        let holders = &self.holders_key;
        let mut pipeline = Pipeline::new();
        for numbers in differences.gone.chunks(BATCH) {
            pipeline.cmd("HDEL").arg(holders).arg(numbers);
        }
        let now_ms = self.booted + boot_micros() / 1_000;
        for rows in differences.due.chunks(BATCH) {
            pipeline.cmd("HSET").arg(holders);
            for row in rows {
                pipeline.arg(row.number).arg(self.note(row, now_ms));
            }
        }
        pipeline.cmd("PEXPIRE").arg(holders).arg(TTL.as_millis().to_string());
        pipeline
    }

    fn note(&self, row: &HolderInfo, now_ms: u64) -> String {
        let client = row.client.as_ref().map(|name| name.chars().take(MAX_CLIENT).collect());
        let cmdline = row.pid.filter(|_| self.cmdline).and_then(cmdline::of);
        let note = Note {
            pid: row.pid,
            uid: row.uid,
            comm: row.comm.as_deref(),
            client,
            session: &row.session,
            since: now_ms.saturating_sub(row.age_ms),
            owner: row.owner,
            several: row.several,
            until: row.left_ms.map(|left| now_ms.saturating_add(left)),
            cmdline,
        };
        serde_json::to_string(&note).expect("numbers and text are always JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_is_compared_part_by_part() {
        let mut book = Book((1..=501).map(|n| n * 10).collect());
        let first = book.part(0, false);
        assert_eq!((first.numbers.len(), first.until), (PAGE, 5_000));
        let second = book.part(first.until, false);
        assert_eq!((second.numbers, second.until), (vec![5_010], Number::MAX));
        let due = HolderInfo {
            number: 15,
            session: "1-2".into(),
            pid: Some(1),
            uid: 0,
            comm: None,
            client: None,
            age_ms: 1_000,
            owner: 0,
            several: false,
            left_ms: None,
        };
        book.enter(&PublishDiff { gone: vec![20, 30], due: vec![due], next: None });
        assert_eq!(book.part(0, false).numbers[..3], [10, 15, 40]);
    }

    #[test]
    fn many_holds_are_compared_less_often_and_never_too_late() {
        assert_eq!(pause_after(0), INTERVAL);
        assert_eq!(pause_after(20_000), INTERVAL);
        assert_eq!(pause_after(100_000), Duration::from_secs(10));
        assert_eq!(pause_after(usize::MAX), LONGEST);
        assert!(LONGEST * 2 < TTL);
    }
}
