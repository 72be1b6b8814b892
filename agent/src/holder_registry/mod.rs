//! The holder registry: publishes in Redis the processes of the agent's holds and waits, in keys next to the locks, so
//! that the dashboard can resolve a holder id to a host and a process. No lock depends on it.
//!
//! Holds and waits of less than a second are not published. Each longer one is written once, and again only if it was a wait,
//! if its worker has changed, or over a new connection, so that a busy agent writes little.

mod awaited;
mod cmdline;
mod node_link;
mod signer;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use redisson::{ClientId, LockName, Moment, keys, slot};
use rustix::system::uname;
use serde::Serialize;
use service_kit::clock::{boot_epoch_millis, boot_micros};
use service_kit::redis::LinkOptions;
use service_kit::shutdown::Shutdown;
use service_kit::signing::SigningKey;
use tokio::sync::{mpsc, oneshot};

use crate::core::Input;
use crate::core::report::{HolderInfo, PublishDiff, PublishedPage};
use crate::runtime::Backend;
use crate::types::Number;
use cmdline::CommandLines;
use node_link::{ConnectionNumber, NodeLink};
use signer::{Signer, Unsigned, VALIDITY_MS};

/// The interval between passes with few holds.
const INTERVAL: Duration = Duration::from_secs(2);
const INTERVAL_PER_ROW: Duration = Duration::from_micros(100);
/// The longest interval, well within [`TTL`].
const MAX_INTERVAL: Duration = Duration::from_secs(20);
/// The pause after a refusal, after which entries survive several more.
const REFUSED_INTERVAL: Duration = Duration::from_secs(10);
/// The time for which Redis keeps an entry that is not renewed.
const TTL: Duration = Duration::from_secs(60);
/// The time for which Redis keeps the trace of an agent, longer than any deadline in a fair queue.
const TRACE_TTL: Duration = Duration::from_hours(24);
/// The age from which holds and waits are published.
const MIN_AGE: Duration = Duration::from_secs(1);
/// The maximum number of published numbers compared at a time.
const PAGE: usize = 500;
/// The maximum number of fields per HSET or HDEL.
const BATCH: usize = 200;
const PAGE_PAUSE: Duration = Duration::from_millis(10);
const CLOCK_STEP_MS: u64 = 1_000;
/// The longest published client name in characters.
const MAX_CLIENT: usize = 100;

#[derive(Debug)]
pub struct Settings {
    /// The client id of the agent in Redis.
    pub client: ClientId,
    pub backend: Backend,
    /// Publishes only red locks, since the backend is one of their servers.
    pub red_only: bool,
    pub connect_timeout: Duration,
    pub response_timeout: Duration,
    /// Publishes command lines too.
    pub cmdline: bool,
    /// The published name of this host; by default the kernel's.
    pub host: Option<String>,
    /// Signs each entry.
    pub signing_key: Option<Arc<SigningKey>>,
}

/// Starts a task, with a separate connection, that updates the registry. Both end with `shutdown`.
pub fn start(settings: Settings, core: mpsc::Sender<Input>, shutdown: &Shutdown) {
    let options = LinkOptions {
        response_timeout: settings.response_timeout,
        connect_timeout: settings.connect_timeout,
        heartbeat: settings.response_timeout,
        writable: true,
        ..LinkOptions::new("lockscope-agent-registry")
    };
    let process = AgentProcess::current(settings.host);
    let signer = settings.signing_key.map(|key| Signer::new(key, settings.client, &process.host));
    let publisher = Publisher {
        link: NodeLink::new(
            settings.backend,
            options,
            slot(&keys::agent(&settings.client)),
            shutdown,
        ),
        core,
        agent_key: keys::agent(&settings.client),
        trace_key: keys::agent_trace(&settings.client),
        holders_key: keys::agent_holders(&settings.client),
        waiters_key: keys::agent_waiters(&settings.client),
        // A previous run of this agent may have written it.
        awaited: true,
        process,
        signer,
        booted: boot_epoch_millis(),
        published: Published::default(),
        connection: None,
        passed: Moment::default(),
        red_only: settings.red_only,
        command_lines: settings.cmdline.then(CommandLines::default),
        refused: None,
    };
    let stop = shutdown.token();
    shutdown.spawn("holder registry", async move {
        stop.run_until_cancelled(publisher.run()).await;
    });
}

/// The agent's own entry, `lockscope:agent:{<uuid>}`.
struct AgentProcess {
    host: String,
    pid: u32,
    /// Milliseconds of the boot clock.
    started: u64,
}

impl AgentProcess {
    fn current(host: Option<String>) -> Self {
        let host = host.unwrap_or_else(|| uname().nodename().to_string_lossy().into_owned());
        Self { host, pid: std::process::id(), started: boot_micros() / 1_000 }
    }
}

/// The JSON value of a hold or wait in `lockscope:holders:{<uuid>}`.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    pid: Option<i32>,
    uid: u32,
    comm: Option<&'a str>,
    client: Option<String>,
    session: &'a str,
    /// The beginning of the hold or wait, in epoch milliseconds.
    since: u64,
    owner: i64,
    /// The owner acquires several locks at once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    several: bool,
    /// The end of a wait with a timeout, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cmdline: Option<&'a str>,
    /// The end of the signature's validity, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// The id of the key that signs the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

/// The numbers with an entry in Redis.
#[derive(Debug, Default)]
struct Published(BTreeMap<Number, Written>);

/// An entry in Redis.
#[derive(Debug, Clone, Copy)]
struct Written {
    /// The instant from which it is written again, in milliseconds of the boot clock.
    stale_from: u64,
    transient: bool,
}

impl Published {
    /// Returns the page of numbers above `after`. Entries of workers that have changed since that instant are to be written
    /// again.
    fn page(&self, after: Number, changed_since: Moment, red: bool, now_ms: u64) -> PublishedPage {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let page = || self.0.range(range).take(PAGE);
        let numbers: Vec<Number> = page().map(|(number, _)| *number).collect();
        let which = |is: &dyn Fn(&Written) -> bool| {
            page().filter(|(_, written)| is(written)).map(|(number, _)| *number).collect()
        };
        let stale = which(&|written| written.stale_from <= now_ms);
        let transient = which(&|written| written.transient);
        let until = match numbers.last() {
            Some(last) if numbers.len() == PAGE => *last,
            _ => Number::MAX,
        };
        let min_age = MIN_AGE;
        PublishedPage { after, until, numbers, stale, transient, changed_since, min_age, red }
    }

    fn apply(&mut self, written: &PublishDiff, stale_from: u64) {
        for number in &written.gone {
            self.0.remove(number);
        }
        for HolderInfo { number, transient, .. } in &written.due {
            self.0.insert(*number, Written { stale_from, transient: *transient });
        }
    }
}

/// Returns the interval before the next pass, which grows with the number of holds and waits.
fn interval(rows: usize) -> Duration {
    let wanted = INTERVAL_PER_ROW.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX));
    wanted.clamp(INTERVAL, MAX_INTERVAL)
}

struct Publisher {
    link: NodeLink,
    core: mpsc::Sender<Input>,
    agent_key: Vec<u8>,
    trace_key: Vec<u8>,
    holders_key: Vec<u8>,
    waiters_key: Vec<u8>,
    /// True if the value of locks with waiters may be in Redis.
    awaited: bool,
    process: AgentProcess,
    signer: Option<Signer>,
    /// The boot time of the host in epoch milliseconds, from which all published instants are derived.
    booted: u64,
    published: Published,
    /// The connection over which the entries were written.
    connection: Option<ConnectionNumber>,
    /// The beginning of the latest pass over all entries on that connection.
    passed: Moment,
    red_only: bool,
    /// `None` if command lines are not published.
    command_lines: Option<CommandLines>,
    /// The latest refusal, so that a repeated one is not logged again.
    refused: Option<String>,
}

enum PassError {
    CoreStopped,
    /// Redis is unreachable, and its content unknown.
    Unreachable,
    /// Redis rejects the commands, and would reject a retry.
    Refused(String),
}

impl Publisher {
    /// Runs until the core stops.
    async fn run(mut self) {
        while self.link.wait_until_up().await {
            let passed = match self.pass().await {
                // The account may be denied this key but not the others.
                Ok(()) => self.publish_awaited().await,
                failed => failed,
            };
            let pause = match passed {
                Ok(()) => {
                    self.refused = None;
                    interval(self.published.0.len())
                }
                Err(PassError::CoreStopped) => return,
                Err(PassError::Unreachable) => INTERVAL,
                Err(PassError::Refused(error)) => {
                    if self.refused.as_ref() != Some(&error) {
                        tracing::warn!(error, "Redis rejected the holder registry");
                    }
                    self.refused = Some(error);
                    REFUSED_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Updates Redis page by page.
    async fn pass(&mut self) -> Result<(), PassError> {
        let connection = self.link.connection();
        if connection != self.connection {
            // The server may have lost writes: all entries are written again.
            (self.connection, self.passed) = (connection, Moment::default());
        }
        let began = Moment::from_micros(boot_micros());
        self.publish_agent().await?;
        let mut after = 0;
        loop {
            let (reply, diff) = oneshot::channel();
            let now_ms = boot_micros() / 1_000;
            let page = self.published.page(after, self.passed, self.red_only, now_ms);
            self.core
                .send(Input::DiffPublished(page, reply))
                .await
                .map_err(|_| PassError::CoreStopped)?;
            let diff = diff.await.map_err(|_| PassError::CoreStopped)?;
            if !(diff.gone.is_empty() && diff.due.is_empty()) {
                let pipeline = self.pipeline(&diff).await?;
                self.send(pipeline).await?;
                let signed = self.signer.is_some();
                self.published
                    .apply(&diff, if signed { now_ms + VALIDITY_MS / 2 } else { u64::MAX });
                tokio::time::sleep(PAGE_PAUSE).await;
            }
            match diff.next {
                Some(next) => after = next,
                None => break,
            }
        }
        self.passed = began;
        Ok(())
    }

    /// Publishes the agent's own entry and renews all entries. Starts over if Redis has a different number of entries,
    /// because they were deleted or a write was lost, or if the wall clock was set.
    async fn publish_agent(&mut self) -> Result<(), PassError> {
        let booted = boot_epoch_millis();
        if booted.abs_diff(self.booted) > CLOCK_STEP_MS {
            // The entries have outdated instants. The mismatch with an empty set removes them below.
            (self.booted, self.published) = (booted, Published::default());
        }
        let ttl = TTL.as_millis().to_string();
        let (process, key) = (&self.process, &self.agent_key);
        let mut pipeline = Pipeline::new();
        pipeline.cmd("HSET").arg(key).arg("host").arg(&process.host).arg("pid").arg(process.pid);
        pipeline
            .arg("version")
            .arg(env!("CARGO_PKG_VERSION"))
            .arg("started")
            .arg(self.booted + process.started);
        pipeline.cmd("PEXPIRE").arg(key).arg(&ttl);
        let trace_ttl = TRACE_TTL.as_millis().to_string();
        pipeline.cmd("SET").arg(&self.trace_key).arg("").arg("PX").arg(trace_ttl);
        pipeline.cmd("PEXPIRE").arg(&self.holders_key).arg(&ttl);
        pipeline.cmd("HLEN").arg(&self.holders_key);
        let replies = self.send(pipeline).await?;
        let entries = match replies.last() {
            Some(Value::Int(count)) => usize::try_from(*count).ok(),
            _ => None,
        };
        if entries != Some(self.published.0.len()) {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("DEL").arg(&self.holders_key);
            self.send(pipeline).await?;
            self.published = Published::default();
        }
        Ok(())
    }

    /// Publishes the locks that workers wait for, in one value. It is written in each pass, since it has the time.
    async fn publish_awaited(&mut self) -> Result<(), PassError> {
        let (answer, awaited) = oneshot::channel();
        let request = Input::ListAwaited { red: self.red_only, min_age: MIN_AGE, answer };
        self.core.send(request).await.map_err(|_| PassError::CoreStopped)?;
        let awaited = awaited.await.map_err(|_| PassError::CoreStopped)?;
        let rows = awaited::rows(&awaited, self.booted);
        let now_ms = boot_micros() / 1_000;
        let ttl = TTL.as_millis().to_string();
        let mut pipeline = Pipeline::new();
        if rows.is_empty() {
            if self.awaited {
                pipeline.cmd("DEL").arg(&self.waiters_key);
                self.send(pipeline).await?;
                self.awaited = false;
            }
            return Ok(());
        }
        let wall_ms = self.booted + now_ms;
        let value = match &self.signer {
            Some(signer) => {
                let signed = Some((wall_ms + VALIDITY_MS, &*signer.key_id));
                let lock = LockName::new(self.waiters_key.as_slice());
                let lock = lock.expect("a key of our own is a valid name");
                let entry = awaited::value(&rows, wall_ms, signed);
                // No grant has the number 0.
                let unsigned = vec![Unsigned { number: 0, lock, entry }];
                let signed = signer.sign(unsigned).await.ok_or(PassError::CoreStopped)?;
                signed.into_iter().next().map(|(_, value)| value).unwrap_or_default()
            }
            None => awaited::value(&rows, wall_ms, None),
        };
        pipeline.cmd("SET").arg(&self.waiters_key).arg(value).arg("PX").arg(ttl);
        self.send(pipeline).await?;
        self.awaited = true;
        Ok(())
    }

    async fn send(&self, pipeline: Pipeline) -> Result<Vec<Value>, PassError> {
        let replies = self.link.pipeline(pipeline).await.map_err(|error| {
            // The link logs outages itself.
            tracing::debug!(%error, "could not update the holder registry");
            PassError::Unreachable
        })?;
        let replies: Result<Vec<Value>, _> = replies.into_iter().collect();
        replies.map_err(|error| {
            if self.link.is_redirect(&error) {
                return PassError::Unreachable;
            }
            PassError::Refused(error.to_string())
        })
    }

    async fn pipeline(&mut self, diff: &PublishDiff) -> Result<Pipeline, PassError> {
        let entries = self.entries(&diff.due).await.ok_or(PassError::CoreStopped)?;
        let holders = &self.holders_key;
        let mut pipeline = Pipeline::new();
        for numbers in diff.gone.chunks(BATCH) {
            pipeline.cmd("HDEL").arg(holders).arg(numbers);
        }
        for entries in entries.chunks(BATCH) {
            pipeline.cmd("HSET").arg(holders);
            for (number, entry) in entries {
                pipeline.arg(number).arg(entry);
            }
        }
        pipeline.cmd("PEXPIRE").arg(holders).arg(TTL.as_millis().to_string());
        Ok(pipeline)
    }

    /// Returns the entries of these rows, signed if there is a key; `None` if the runtime is shutting down.
    async fn entries(&mut self, rows: &[HolderInfo]) -> Option<Vec<(Number, String)>> {
        let command_lines = match &mut self.command_lines {
            Some(lines) => lines.of(rows.iter().filter_map(|row| row.pid).collect()).await,
            None => HashMap::new(),
        };
        let now_ms = self.booted + boot_micros() / 1_000;
        let cmdline = |row: &HolderInfo| command_lines.get(&row.pid?).map(String::as_str);
        let entries = rows.iter().map(|row| (row, self.entry(row, cmdline(row), now_ms)));
        let Some(signer) = &self.signer else {
            return Some(entries.map(|(row, entry)| (row.number, entry)).collect());
        };
        let unsigned = |(row, entry): (&HolderInfo, String)| Unsigned {
            number: row.number,
            lock: row.lock.clone(),
            entry,
        };
        signer.sign(entries.map(unsigned).collect()).await
    }

    fn entry(&self, row: &HolderInfo, cmdline: Option<&str>, now_ms: u64) -> String {
        let client = row.client.as_ref().map(|name| name.chars().take(MAX_CLIENT).collect());
        let entry = Entry {
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
            expires: self.signer.as_ref().map(|_| now_ms.saturating_add(VALIDITY_MS)),
            key: self.signer.as_ref().map(|signer| &*signer.key_id),
        };
        serde_json::to_string(&entry).expect("numbers and text are always valid JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_numbers_are_compared_page_by_page() {
        let written = Written { stale_from: u64::MAX, transient: false };
        let mut published = Published((1..=501).map(|n| (n * 10, written)).collect());
        let first = published.page(0, Moment::NEVER, false, 0);
        assert_eq!((first.numbers.len(), first.until), (PAGE, 5_000));
        let second = published.page(first.until, Moment::NEVER, false, 0);
        assert_eq!((second.numbers, second.until), (vec![5_010], Number::MAX));
        let due = HolderInfo {
            number: 15,
            lock: LockName::new(*b"a").unwrap(),
            session: "1-2".into(),
            pid: Some(1),
            uid: 0,
            comm: None,
            client: None,
            age_ms: 1_000,
            owner: 0,
            several: false,
            transient: true,
            left_ms: None,
        };
        let diff = PublishDiff { gone: vec![20, 30], due: vec![due], next: None };
        published.apply(&diff, 7_000);
        assert_eq!(published.page(0, Moment::NEVER, false, 6_999).numbers[..3], [10, 15, 40]);
        assert_eq!(published.page(0, Moment::NEVER, false, 6_999).stale, [0; 0]);
        assert_eq!(published.page(0, Moment::NEVER, false, 6_999).transient, [15]);
        assert_eq!(published.page(0, Moment::NEVER, false, 7_000).stale, [15]);
    }

    #[test]
    fn many_holds_are_compared_less_often_but_within_the_ttl() {
        assert_eq!(interval(0), INTERVAL);
        assert_eq!(interval(20_000), INTERVAL);
        assert_eq!(interval(100_000), Duration::from_secs(10));
        assert_eq!(interval(usize::MAX), MAX_INTERVAL);
        assert!(MAX_INTERVAL * 2 < TTL);
    }

    #[test]
    fn entries_survive_three_refusals_in_a_row() {
        assert!(MAX_INTERVAL + REFUSED_INTERVAL * 3 < TTL);
    }
}
