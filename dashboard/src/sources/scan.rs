//! The scan: passes over all keys of one database, which discover locks under unknown names.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use redisson::group::glob_matches;
use redisson::{LockName, keys};
use service_kit::redis::{CallError, Link, ServerInfo};
use tokio::time::Instant;

use super::connection::{failed, rest, up};
use super::pace::{Pace, Pacer};
use super::read::{Caller, Findings, Found, ReadError, ServerFacts, discover, integer, strings};
use super::scope::Scope;
use super::status::{Pass, SourceStatus};
use crate::clock::{SteadyMillis, now};
use crate::config::ScanSettings;
use crate::metrics::ScanNodeMetrics;
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{LockId, Observation, Source};
use crate::sources::view::{Progress, SourceState};

/// Keys visited by one SCAN.
const COUNT: usize = 100;
/// Possible locks read at once: this many, or as many as have been found after the interval below.
const CANDIDATES: usize = 100;
const CANDIDATES_INTERVAL: Duration = Duration::from_millis(100);
/// The most hashes remembered as other things than locks, on servers where reading them again would count as a use.
const MAX_INNOCENT: usize = 500_000;
/// The pause after a pass, as a multiple of its length, so that small databases are scanned often.
const PAUSE: u32 = 20;
/// The shortest pause between two passes.
const SHORTEST: Duration = Duration::from_millis(500);
/// The least time between two passes for companion keys.
const COMPANIONS_INTERVAL: Duration = Duration::from_secs(60);
/// The age up to which the poll's last reading of a lock replaces one by the scan.
const FRESH_MS: u64 = 15_000;
/// The most keys of moving slots that are reported to their own nodes at once.
const UNDER_WAY: usize = 16;
/// Matches every companion key of a lock.
const COMPANIONS: &str = "redisson_lock_*";

/// The scan of one database.
#[derive(Debug)]
pub struct Scan {
    pub scope: Scope,
    pub link: Link,
    pub settings: ScanSettings,
    /// Globs of names that are ignored.
    pub ignore: Vec<Vec<u8>>,
    pub model: ModelHandle,
    pub hub: Arc<Hub>,
    pub status: Arc<SourceStatus>,
    pub metrics: ScanNodeMetrics,
    pub facts: ServerFacts,
    /// True if the snapshot is incomplete until its first pass.
    pub first: bool,
}

/// State that lasts from pass to pass.
struct Memory {
    innocent: Option<HashSet<u64>>,
    hasher: RandomState,
    /// Keys seen by the current pass.
    seen: u64,
    size: Option<u64>,
    passes: u64,
}

impl Scan {
    /// Scans the keys again and again until the connection is given up.
    pub async fn run(self) {
        let mut pacer = Pacer::new(self.link.clone(), self.facts.clone(), self.settings.rate);
        let mut memory =
            Memory { innocent: None, hasher: RandomState::new(), seen: 0, size: None, passes: 0 };
        if !self.first {
            memory.passes = 1;
            self.status.set_pass(Pass { first: None, round: None });
        }
        let mut companions_due = Instant::now();
        loop {
            let Some(server) = up(&self.link, &self.status).await else { return };
            memory.consider(&server);
            let begun = Instant::now();
            if let Err(error) = self.pass(&mut pacer, &mut memory).await {
                failed(&self.status, &self.link, &error).await;
                continue;
            }
            let took = begun.elapsed();
            let next = Instant::now() + self.pause(took);
            self.report(&memory, took, next - Instant::now(), pacer.slowdown());
            if companions_due <= begun {
                let begun = Instant::now();
                if let Err(error) = self.companions(&mut pacer).await {
                    failed(&self.status, &self.link, &error).await;
                    continue;
                }
                companions_due = Instant::now() + COMPANIONS_INTERVAL.max(begun.elapsed() * PAUSE);
            }
            rest(&self.link, &self.status, next).await;
        }
    }

    /// Returns the pause after a pass of that length.
    fn pause(&self, took: Duration) -> Duration {
        let rest = self.settings.every.saturating_sub(took).max(took);
        (took * PAUSE).min(rest).max(SHORTEST)
    }

    fn report(&self, memory: &Memory, took: Duration, pause: Duration, slowdown: f64) {
        let round = took + pause;
        self.status.set_pass(Pass { first: None, round: Some(round + took) });
        let mut detail = format!(
            "{} keys in {}; again in {}",
            memory.seen,
            humantime::format_duration(Duration::from_millis(millis(took))),
            humantime::format_duration(rounded(pause))
        );
        if slowdown >= 1.5 {
            detail.push_str(&format!(
                "; {slowdown:.0} times slower than wished, since the server's answers slow down meanwhile"
            ));
        }
        if let Some(pattern) = &self.settings.pattern {
            detail.push_str(&format!("; only keys that match `{pattern}`"));
        }
        let state = if took > self.settings.every { SourceState::Behind } else { SourceState::On };
        self.status.set(state, detail);
        self.status.succeeded();
    }

    /// Scans all keys once for locks.
    async fn pass(&self, pacer: &mut Pacer, memory: &mut Memory) -> Result<(), ReadError> {
        let started = now();
        let begun = Instant::now();
        pacer.set_pace(if memory.passes == 0 { Pace::First } else { Pace::Usual });
        memory.size = self.size(pacer).await;
        memory.seen = 0;
        if !matches!(self.status.state(), SourceState::On | SourceState::Behind) {
            self.status.set(SourceState::On, "a pass is under way");
        }
        let mut waiting = Vec::new();
        let mut asked = Instant::now();
        let mut cursor = Vec::from(*b"0");
        let generation = self.link.state().borrow().generation;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor);
            if let Some(pattern) = &self.settings.pattern {
                scan.arg("MATCH").arg(pattern);
            }
            scan.arg("COUNT").arg(COUNT).arg("TYPE").arg("hash");
            let keys;
            (cursor, keys) = page(pacer, scan).await?;
            if self.link.state().borrow().generation != generation {
                // Another server may be behind it, for which the cursor means nothing.
                let reason = "the connection is another one than at the pass' beginning".to_owned();
                return Err(ReadError::Call(CallError::Lost { reason }));
            }
            memory.seen += COUNT as u64;
            self.metrics.keys.inc_by(COUNT as u64);
            let candidates = keys
                .into_iter()
                .filter_map(|key| LockName::new(key).ok())
                .filter(|name| self.is_wanted(name, memory));
            waiting.extend(candidates);
            pacer.spend(COUNT);
            let last = cursor == b"0";
            if last || waiting.len() >= CANDIDATES || asked.elapsed() >= CANDIDATES_INTERVAL {
                self.discover(pacer, memory, std::mem::take(&mut waiting)).await?;
                asked = Instant::now();
            }
            self.progress(memory);
            if last {
                break;
            }
        }
        // SCAN counts buckets; DBSIZE is the number of keys.
        memory.seen = memory.size.unwrap_or(memory.seen);
        memory.passes += 1;
        self.metrics.seconds.observe(begun.elapsed().as_secs_f64());
        self.model
            .observe(self.scope.id, Observation::ScanEnded { started, steady: SteadyMillis::now() })
            .await;
        Ok(())
    }

    /// Reads the hashes that have a lock's shape.
    async fn discover(
        &self,
        pacer: &mut Pacer,
        memory: &mut Memory,
        names: Vec<LockName>,
    ) -> Result<(), ReadError> {
        if names.is_empty() {
            return Ok(());
        }
        let mut left = Vec::new();
        let Findings { found, redirected } = discover(pacer, &names, &mut left).await?;
        left.iter().for_each(|name| memory.remember(name));
        self.send(found).await;
        // Keys of a slot that is moving: the node that serves the slot reads them.
        let under_way = redirected.into_iter().map(|(request, _)| request.name);
        for name in under_way.filter(|name| !self.is_known(name)).take(UNDER_WAY) {
            self.model.observe(self.scope.id, Observation::CompanionKey { name }).await;
        }
        Ok(())
    }

    async fn size(&self, pacer: &mut Pacer) -> Option<u64> {
        let reply = pacer.send(vec![cmd("DBSIZE")]).await.ok()?.pop()?;
        integer(&reply.ok()?)
    }

    fn progress(&self, memory: &Memory) {
        if memory.passes == 0 {
            let seen = memory.seen.min(memory.size.unwrap_or(u64::MAX));
            let first = Some(Progress { seen, of: memory.size });
            self.status.set_pass(Pass { first, round: None });
            let of = memory.size.map_or_else(String::new, |size| format!(" of {size}"));
            self.status.set(SourceState::On, format!("first pass: {seen}{of} keys"));
        }
    }

    fn is_wanted(&self, name: &LockName, memory: &Memory) -> bool {
        if memory.knows(name) || self.ignore.iter().any(|glob| glob_matches(glob, name.as_bytes()))
        {
            return false;
        }
        let id = LockId {
            deployment: Arc::clone(&self.scope.deployment),
            db: self.scope.db,
            name: name.clone(),
        };
        let fresh_since = SteadyMillis::now().0.saturating_sub(FRESH_MS);
        !self.hub.snapshot().get(&id).is_some_and(|lock| {
            lock.is_held() && !lock.is_unknown() && lock.observed_at.0 >= fresh_since
        })
    }

    fn is_known(&self, name: &LockName) -> bool {
        let (deployment, name) = (Arc::clone(&self.scope.deployment), name.clone());
        self.hub.snapshot().get(&LockId { deployment, db: self.scope.db, name }).is_some()
    }

    async fn send(&self, found: Vec<Found>) {
        for Found { name, stamp, reading } in found {
            let source = Source::Scan;
            let read = Observation::Read { name, stamp, source, reading };
            self.model.observe(self.scope.id, read).await;
        }
    }

    /// Scans all keys once, slowly, for queues, deadlines and tokens, which prove the locks that they belong to.
    async fn companions(&self, pacer: &mut Pacer) -> Result<(), ReadError> {
        pacer.set_pace(Pace::Slow);
        let mut cursor = Vec::from(*b"0");
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(COMPANIONS).arg("COUNT").arg(COUNT);
            let keys;
            (cursor, keys) = page(pacer, scan).await?;
            pacer.spend(COUNT);
            for name in keys.iter().filter_map(|key| self.lock_of_companion(key)) {
                if !self.ignore.iter().any(|glob| glob_matches(glob, name.as_bytes())) {
                    self.model.observe(self.scope.id, Observation::CompanionKey { name }).await;
                }
            }
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// Returns the lock that a companion belongs to; of two possible ones the known one.
    fn lock_of_companion(&self, key: &[u8]) -> Option<LockName> {
        let tagged = [keys::QUEUE, keys::DEADLINES, keys::TOKEN]
            .into_iter()
            .find_map(|prefix| key.strip_prefix(prefix))?;
        let names = keys::locks_of_channel(&[keys::LOCK_CHANNEL, tagged].concat());
        names.iter().find(|name| self.is_known(name)).or_else(|| names.first()).cloned()
    }
}

impl Memory {
    /// Enables or disables the memory of other hashes, depending on the server.
    fn consider(&mut self, server: &ServerInfo) {
        let needed = server.evicts() && !knows_no_touch(server);
        if needed {
            self.innocent.get_or_insert_default();
        } else {
            self.innocent = None;
        }
    }

    fn knows(&self, name: &LockName) -> bool {
        let hash = self.hasher.hash_one(name);
        self.innocent.as_ref().is_some_and(|innocent| innocent.contains(&hash))
    }

    fn remember(&mut self, name: &LockName) {
        let hash = self.hasher.hash_one(name);
        if let Some(innocent) = &mut self.innocent {
            if innocent.len() >= MAX_INNOCENT {
                innocent.clear();
            }
            innocent.insert(hash);
        }
    }
}

/// Returns whether the server supports CLIENT NO-TOUCH, by which reads do not count as uses: from 7.2 on.
fn knows_no_touch(server: &ServerInfo) -> bool {
    let mut parts = server.version.as_deref().unwrap_or_default().split('.');
    let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    (number(), number()) >= (7, 2)
}

/// Sends one SCAN. Returns the next cursor, and keys.
async fn page(pacer: &mut Pacer, scan: redis::Cmd) -> Result<(Vec<u8>, Vec<Vec<u8>>), ReadError> {
    let reply = pacer.send(vec![scan]).await?.pop().ok_or(ReadError::UnexpectedReply("SCAN"))?;
    let reply = reply.map_err(CallError::Refused)?;
    let Value::Array(mut parts) = reply else { return Err(ReadError::UnexpectedReply("SCAN")) };
    let keys = parts.pop().as_ref().and_then(strings).ok_or(ReadError::UnexpectedReply("SCAN"))?;
    match parts.pop() {
        Some(Value::BulkString(cursor)) => Ok((cursor, keys)),
        _ => Err(ReadError::UnexpectedReply("SCAN")),
    }
}

/// Rounds a duration for display.
fn rounded(duration: Duration) -> Duration {
    if duration < Duration::from_secs(2) {
        Duration::from_millis(millis(duration) / 100 * 100)
    } else {
        Duration::from_secs(duration.as_secs())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_touch_came_with_7_2() {
        let knows = |version: &str| {
            knows_no_touch(&ServerInfo { version: Some(version.into()), ..ServerInfo::default() })
        };
        assert!(knows("7.2.0") && knows("8.0.1") && knows("7.4"));
        assert!(!knows("7.0.15") && !knows("6.2.14") && !knows("unstable"));
        assert!(!knows_no_touch(&ServerInfo::default()));
    }
}
