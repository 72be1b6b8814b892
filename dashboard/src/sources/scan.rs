//! The scan, which reads all keys of one database repeatedly, and discovers locks under unknown names.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use redisson::group::glob_matches;
use redisson::{LockName, keys};
use service_kit::redis::{CallError, Link, ServerInfo};
use tokio::time::Instant;

use super::agent_waiters::KnownAgents;
use super::connection::{pause_until, report_failure, wait_until_up};
use super::pace::{Pace, Pacer};
use super::possible::PossibleLocks;
use super::read::{
    Caller, Findings, Found, PossibleLock, ReadError, ServerFacts, discover, integer, strings,
};
use super::scope::Scope;
use super::status::{Pass, SourceStatus};
use crate::clock::{SteadyMillis, Time, millis, now};
use crate::config::ScanSettings;
use crate::metrics::ScanNodeMetrics;
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{LockView, Observation, Source};
use crate::sources::view::{Progress, SourceState};
use crate::text::counted;

/// Possible locks are read together: this number, or as many as have been found after the interval below.
const CANDIDATES: usize = 200;
const CANDIDATES_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of hashes that are remembered as non-locks, on servers on which reading them again would count
/// as a use.
const MAX_NON_LOCKS: usize = 500_000;
/// The pause after a scan, as a multiple of its duration, so that small databases are scanned often.
const PAUSE: u32 = 30;
/// The shortest pause between two scans.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// The number of keys up to which a scan is followed by the shortest pause. With twice as many, the pause is at most
/// twice as long, and so on.
const FEW_KEYS: u64 = 200;
/// The minimum time between two scans for companion keys.
const COMPANIONS_INTERVAL: Duration = Duration::from_secs(60);
/// The age up to which the poll's last reading of a lock makes a reading by the scan unnecessary. The poll's rounds are
/// shorter, unless its rate is limited.
const MAX_AGE_MS: u64 = 150_000;
/// The maximum number of keys of moving slots that are reported to their own nodes at once.
const MAX_MOVING: usize = 16;
/// The pattern that matches every companion key of a lock.
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
    /// True if the snapshot is incomplete until the first scan has ended.
    pub first: bool,
    /// Receives the agents that the scan finds.
    pub agents: KnownAgents,
}

/// State that lasts from one scan to the next.
struct ScanState {
    non_locks: Option<HashSet<u64>>,
    hasher: RandomState,
    /// The number of keys that the current scan has seen.
    seen: u64,
    size: Option<u64>,
    /// The number of hashes in the current scan that the Redis user may not read.
    unreadable: u64,
    passes: u64,
    possible: PossibleLocks,
    /// True if the server has sharded channels.
    shards: bool,
}

impl Scan {
    /// Scans all keys repeatedly until the connection is given up.
    pub async fn run(self) {
        let mut pacer = Pacer::new(self.link.clone(), self.facts.clone(), self.settings.rate);
        let mut state = ScanState {
            non_locks: None,
            hasher: RandomState::new(),
            seen: 0,
            size: None,
            unreadable: 0,
            passes: 0,
            possible: PossibleLocks::default(),
            shards: false,
        };
        if !self.first {
            state.passes = 1;
            self.status.set_pass(Pass { first: None, round: None });
        }
        let mut companions_due = Instant::now();
        loop {
            let Some(server) = wait_until_up(&self.link, &self.status).await else { return };
            state.configure(&server);
            let begun = Instant::now();
            if let Err(error) = self.pass(&mut pacer, &mut state).await {
                report_failure(&self.status, &self.link, &error).await;
                continue;
            }
            let took = begun.elapsed();
            let next = Instant::now() + pause(took, state.seen, self.settings.every);
            self.report(&state, took, next - Instant::now(), pacer.slowdown());
            if companions_due <= begun {
                let begun = Instant::now();
                if let Err(error) = self.companions(&mut pacer).await {
                    report_failure(&self.status, &self.link, &error).await;
                    continue;
                }
                companions_due = Instant::now() + COMPANIONS_INTERVAL.max(begun.elapsed() * PAUSE);
            }
            pause_until(&self.link, &self.status, next).await;
        }
    }

    fn report(&self, state: &ScanState, took: Duration, pause: Duration, slowdown: f64) {
        let round = took + pause;
        self.status.set_pass(Pass { first: None, round: Some(round + took) });
        let mut detail = format!(
            "{} in {}; again in {}",
            counted(state.seen, "key"),
            humantime::format_duration(Duration::from_millis(millis(took))),
            humantime::format_duration(rounded(pause))
        );
        if state.unreadable > 0 {
            let (keys, locks) = match state.unreadable {
                1 => ("1 hash".to_owned(), "it may be a lock"),
                n => (format!("{n} hashes"), "they may be locks"),
            };
            detail.push_str(&format!("; the Redis user may not read {keys}: {locks}"));
        }
        if slowdown >= 1.5 {
            detail.push_str(&format!(
                "; slowed down {slowdown:.0} times, because the server answers slowly meanwhile"
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
    async fn pass(&self, pacer: &mut Pacer, state: &mut ScanState) -> Result<(), ReadError> {
        let started = now();
        let begun = Instant::now();
        pacer.set_pace(if state.passes == 0 { Pace::First } else { Pace::Usual });
        state.size = self.size(pacer).await;
        (state.seen, state.unreadable) = (0, 0);
        self.model.observe(self.scope.id, Observation::ScanBegan).await;
        state.possible.begin(self.settings.max_possible.saturating_sub(self.possible_count()));
        if !matches!(self.status.state(), SourceState::On | SourceState::Behind) {
            self.status.set(SourceState::On, "a scan is in progress");
        }
        let mut waiting = Vec::new();
        let mut discovered = Instant::now();
        let mut cursor = Vec::from(*b"0");
        let generation = self.link.state().borrow().generation;
        loop {
            let count = pacer.call_size().keys;
            let mut scan = cmd("SCAN");
            scan.arg(&cursor);
            if let Some(pattern) = &self.settings.pattern {
                scan.arg("MATCH").arg(pattern);
            }
            scan.arg("COUNT").arg(count).arg("TYPE").arg("hash");
            let keys;
            (cursor, keys) = page(pacer, scan).await?;
            if self.link.state().borrow().generation != generation {
                // The connection may lead to another server, for which the cursor is meaningless.
                let reason =
                    "the connection has changed since the beginning of the scan".to_owned();
                return Err(ReadError::Call(CallError::Lost { reason }));
            }
            state.seen += count as u64;
            self.metrics.keys.inc_by(count as u64);
            for agent in keys.iter().filter_map(|key| keys::agent_of(key)) {
                self.agents.add(&self.scope, agent);
            }
            let candidates = keys
                .into_iter()
                .filter_map(|key| LockName::new(key).ok())
                .filter(|name| self.is_wanted(name, state));
            waiting.extend(candidates);
            pacer.spend(count);
            let last = cursor == b"0";
            if last || waiting.len() >= CANDIDATES || discovered.elapsed() >= CANDIDATES_INTERVAL {
                self.discover(pacer, state, std::mem::take(&mut waiting)).await?;
                discovered = Instant::now();
            }
            self.progress(state);
            if last {
                break;
            }
        }
        // SCAN counts buckets, and DBSIZE is the number of keys.
        state.seen = state.size.unwrap_or(state.seen);
        state.passes += 1;
        self.metrics.unreadable.set(i64::try_from(state.unreadable).unwrap_or(i64::MAX));
        self.metrics.seconds.observe(begun.elapsed().as_secs_f64());
        let (whole, skipped) = (self.settings.pattern.is_none(), state.possible.skipped());
        let observation = Observation::ScanEnded { started, ended: Time::now(), whole, skipped };
        self.model.observe(self.scope.id, observation).await;
        Ok(())
    }

    /// Reads the hashes that have a lock's shape.
    async fn discover(
        &self,
        pacer: &mut Pacer,
        state: &mut ScanState,
        names: Vec<LockName>,
    ) -> Result<(), ReadError> {
        if names.is_empty() {
            return Ok(());
        }
        let mut left = Vec::new();
        let possible = &mut state.possible;
        let is_wanted = |lock: PossibleLock<'_>| {
            // The poll follows the possible locks that are already known.
            !self.is_known_as_possible(lock.name) && possible.admit(lock)
        };
        let Findings { found, redirected } = discover(pacer, &names, is_wanted, &mut left).await?;
        // Unreadable keys are tried again in each scan: a refused read does not count as a use, and the Redis user's
        // patterns may change.
        let (unreadable, others): (Vec<_>, Vec<_>) =
            left.iter().partition(|other| other.is_unpermitted());
        state.unreadable += unreadable.len() as u64;
        others.iter().for_each(|other| state.add_non_lock(&other.name));
        self.send(found).await;
        for name in state.possible.take_awaited(pacer, state.shards).await? {
            self.model.observe(self.scope.id, Observation::CompanionKey { name }).await;
        }
        // The keys of a moving slot are read by the node that serves the slot.
        let moving = redirected.into_iter().map(|(request, _)| request.name);
        for name in moving.filter(|name| !self.is_known(name)).take(MAX_MOVING) {
            self.model.observe(self.scope.id, Observation::CompanionKey { name }).await;
        }
        Ok(())
    }

    async fn size(&self, pacer: &mut Pacer) -> Option<u64> {
        let reply = pacer.send(vec![cmd("DBSIZE")]).await.ok()?.pop()?;
        integer(&reply.ok()?)
    }

    fn progress(&self, state: &ScanState) {
        if state.passes == 0 {
            let seen = state.seen.min(state.size.unwrap_or(u64::MAX));
            let first = Some(Progress { seen, of: state.size });
            self.status.set_pass(Pass { first, round: None });
            let of = state.size.map_or_else(String::new, |size| format!(" of {size}"));
            self.status.set(SourceState::On, format!("first scan: {seen}{of} keys"));
        }
    }

    fn is_wanted(&self, name: &LockName, state: &ScanState) -> bool {
        if state.is_non_lock(name)
            || self.ignore.iter().any(|glob| glob_matches(glob, name.as_bytes()))
        {
            return false;
        }
        let fresh_since = SteadyMillis::now().minus(MAX_AGE_MS);
        !self.view(name).is_some_and(|lock| {
            lock.is_held() && !lock.is_unknown() && lock.observed_at() >= fresh_since
        })
    }

    fn view(&self, name: &LockName) -> Option<Arc<LockView>> {
        self.hub.snapshot().get(&self.scope.id_of(name)).cloned()
    }

    fn is_known(&self, name: &LockName) -> bool {
        self.view(name).is_some()
    }

    fn is_known_as_possible(&self, name: &LockName) -> bool {
        self.view(name).is_some_and(|lock| is_possible(&lock))
    }

    /// Returns the number of possible locks that the model retains.
    fn possible_count(&self) -> usize {
        let snapshot = self.hub.snapshot();
        snapshot.locks().filter(|lock| is_possible(lock) && self.scope.has(lock)).count()
    }

    async fn send(&self, found: Vec<Found>) {
        for found in found {
            self.model.observe(self.scope.id, found.observed_by(Source::Scan)).await;
        }
    }

    /// Scans all keys once, slowly, for queues, deadlines and tokens, which prove the locks that they belong to.
    async fn companions(&self, pacer: &mut Pacer) -> Result<(), ReadError> {
        pacer.set_pace(Pace::Slow);
        let mut cursor = Vec::from(*b"0");
        loop {
            let count = pacer.call_size().keys;
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(COMPANIONS).arg("COUNT").arg(count);
            let keys;
            (cursor, keys) = page(pacer, scan).await?;
            pacer.spend(count);
            let is_known = |name: &LockName| self.is_known(name);
            for name in keys.iter().filter_map(|key| lock_of_companion(key, is_known)) {
                if !self.ignore.iter().any(|glob| glob_matches(glob, name.as_bytes())) {
                    self.model.observe(self.scope.id, Observation::CompanionKey { name }).await;
                }
            }
            if cursor == b"0" {
                return Ok(());
            }
        }
    }
}

impl ScanState {
    /// Adapts to the server by enabling or disabling the cache of non-locks.
    fn configure(&mut self, server: &ServerInfo) {
        self.shards = server.has_shards();
        let needed = server.evicts() && !supports_no_touch(server);
        if needed {
            self.non_locks.get_or_insert_default();
        } else {
            self.non_locks = None;
        }
    }

    fn is_non_lock(&self, name: &LockName) -> bool {
        let hash = self.hasher.hash_one(name);
        self.non_locks.as_ref().is_some_and(|non_locks| non_locks.contains(&hash))
    }

    fn add_non_lock(&mut self, name: &LockName) {
        let hash = self.hasher.hash_one(name);
        if let Some(non_locks) = &mut self.non_locks {
            if non_locks.len() >= MAX_NON_LOCKS {
                non_locks.clear();
            }
            non_locks.insert(hash);
        }
    }
}

fn is_possible(lock: &LockView) -> bool {
    !lock.confirmed && lock.is_held()
}

/// Returns the lock that a companion proves. Of two possible ones, this is the known one. A token proves no other, since it
/// outlives its lock for good.
fn lock_of_companion(key: &[u8], is_known: impl Fn(&LockName) -> bool) -> Option<LockName> {
    let names = locks_of_companion(key);
    let likely = names.first().filter(|_| !key.starts_with(keys::TOKEN));
    names.iter().find(|name| is_known(name)).or(likely).cloned()
}

/// Returns the locks to which a queue, deadlines or a token may belong, most likely first, or none if the key is none
/// of them.
#[must_use]
pub fn locks_of_companion(key: &[u8]) -> Vec<LockName> {
    let tagged = [keys::QUEUE, keys::DEADLINES, keys::TOKEN]
        .into_iter()
        .find_map(|prefix| key.strip_prefix(prefix));
    tagged.map_or_else(Vec::new, |tagged| {
        keys::locks_of_channel(&[keys::LOCK_CHANNEL, tagged].concat())
    })
}

/// Returns whether the dashboard uses CLIENT NO-TOUCH, by which reads do not count as uses: from 7.2 on, except in a
/// cluster, where some versions crash with it.
#[must_use]
pub fn supports_no_touch(server: &ServerInfo) -> bool {
    let mut parts = server.version.as_deref().unwrap_or_default().split('.');
    let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    !server.cluster && (number(), number()) >= (7, 2)
}

/// Sends one SCAN. Returns the next cursor, and keys.
///
/// # Errors
/// Fails if the connection fails, or the Redis user may not run SCAN.
pub async fn page(
    caller: &mut impl Caller,
    scan: redis::Cmd,
) -> Result<(Vec<u8>, Vec<Vec<u8>>), ReadError> {
    let reply = caller.send(vec![scan]).await?.pop().ok_or(ReadError::UnexpectedReply("SCAN"))?;
    let reply = reply.map_err(CallError::Refused)?;
    let Value::Array(mut parts) = reply else { return Err(ReadError::UnexpectedReply("SCAN")) };
    let keys = parts.pop().as_ref().and_then(strings).ok_or(ReadError::UnexpectedReply("SCAN"))?;
    match parts.pop() {
        Some(Value::BulkString(cursor)) => Ok((cursor, keys)),
        _ => Err(ReadError::UnexpectedReply("SCAN")),
    }
}

/// Returns the pause after a scan of that number of keys. A scan of few keys that took long was waiting for the network
/// or for this program, not for the server.
fn pause(took: Duration, keys: u64, every: Duration) -> Duration {
    let remaining = every.saturating_sub(took).max(took);
    let steps = u32::try_from(keys.div_ceil(FEW_KEYS)).unwrap_or(u32::MAX);
    let longest = MIN_PAUSE.saturating_mul(steps.max(1));
    (took * PAUSE).min(remaining).min(longest).max(MIN_PAUSE)
}

/// Rounds a duration for display.
fn rounded(duration: Duration) -> Duration {
    if duration < Duration::from_secs(2) {
        Duration::from_millis(millis(duration) / 100 * 100)
    } else {
        Duration::from_secs(duration.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_is_in_proportion_to_a_pass_and_short_after_few_keys() {
        let [ms, secs] = [Duration::from_millis, Duration::from_secs];
        for (took, keys, expected) in [
            (ms(1), 0, MIN_PAUSE),
            // One reply was late.
            (ms(250), 3, MIN_PAUSE),
            (ms(250), 1_000, ms(2_500)),
            (ms(250), 50_000, ms(7_500)),
            (secs(20), 5_000_000, secs(40)),
            (secs(90), 20_000_000, secs(90)),
        ] {
            assert_eq!(pause(took, keys, secs(60)), expected, "{took:?} for {keys} keys");
        }
    }

    #[test]
    fn a_token_proves_a_known_lock_only() {
        let name = |text: &str| LockName::new(text.as_bytes()).unwrap();
        let proves = |key: &str, known: &str| {
            lock_of_companion(key.as_bytes(), |lock| *lock == name(known))
                .map(|lock| lock.to_string())
        };
        for prefix in ["redisson_lock_queue:", "redisson_lock_timeout:", "redisson_lock_token:"] {
            let key = format!("{prefix}{{orders}}");
            assert_eq!(proves(&key, "orders").as_deref(), Some("orders"), "{key}");
            assert_eq!(proves(&key, "{orders}").as_deref(), Some("{orders}"), "{key}");
            let free = proves(&key, "other");
            assert_eq!(free.is_none(), prefix.contains("token"), "{key}: {free:?}");
        }
        assert_eq!(proves("orders", "orders"), None);
    }

    #[test]
    fn no_touch_is_supported_from_7_2_on() {
        let supports = |version: &str| {
            supports_no_touch(&ServerInfo {
                version: Some(version.into()),
                ..ServerInfo::default()
            })
        };
        assert!(supports("7.2.0") && supports("8.0.1") && supports("7.4"));
        assert!(!supports("7.0.15") && !supports("6.2.14") && !supports("unstable"));
        assert!(!supports_no_touch(&ServerInfo::default()));
    }
}
