//! One scan of the keys of one database: its locks, and the other keys of locks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use redis::{Cmd, cmd};
use redisson::group::glob_matches;
use redisson::shape::LockHash;
use redisson::{HolderId, Kind, LockName, keys};
use service_kit::redis::{CallError, Link};
use tokio::time::Instant;

use crate::clock::SteadyMillis;
use crate::model::types::{Companions, KnownParts, Queue, ReadRequest, Reading, Token};
use crate::sources::pace::{Pace, Pacer, Usage};
use crate::sources::read::{
    Caller as _, Found, ReadError, ServerFacts, clock_micros, discover, integer, read,
};
use crate::sources::scan::{locks_of_companion, page};
use crate::text::counted;

/// The number of hashes that are read at once.
const BATCH: usize = 100;
/// The pattern that matches every key that belongs to a lock but is not its hash: `redisson_lock_…`,
/// `redisson_unlock_latch…`, and readers' markers, which end in `rwlock_timeout:<n>`.
const COMPANIONS: &[u8] = b"*lock_*";
/// The multiple of the usual number of keys that one SCAN for companions visits, since it only compares names and looks
/// up no key.
const COMPANION_TIMES: usize = 5;
/// The maximum number of companion keys of each sort that are remembered.
const MAX_COMPANIONS: usize = 100_000;
/// The time between the two readings that prove a leak, as in the dashboard.
pub(super) const GAP: Duration = Duration::from_secs(5);
/// The time to live above which a key outlasts a watchdog, so that a dead client matters.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// The number of names in one PUBSUB NUMSUB.
const CHANNELS: usize = 500;

/// The bounds and filters of a scan.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub until: Instant,
    pub max_locks: usize,
    /// The Redis pattern of the keys to scan.
    pub pattern: Option<String>,
    /// Globs of names that are ignored.
    pub ignore: Vec<Vec<u8>>,
    /// True if idle times are read before anything else, because reading counts as use.
    pub idle_first: bool,
}

/// One lock, or a hash with the shape of one.
#[derive(Debug, Clone)]
pub(super) struct Lock {
    pub hash: LockHash,
    /// The time to live, or `None` if there is none.
    pub ttl: Option<Duration>,
    pub companions: Companions,
    /// The time since its last use.
    pub idle: Option<Duration>,
    pub bytes: Option<u64>,
    /// The number of connections that listen for its release.
    pub subscribers: u64,
}

impl Lock {
    pub(super) fn kind(&self) -> Kind {
        match (self.hash.kind(), self.companions.token) {
            (Kind::Lock, _) if self.companions.queue.is_some() => Kind::Fair,
            (Kind::Lock, Token::Value(_)) => Kind::Fenced,
            (kind, _) => kind,
        }
    }

    /// Returns the number of connections or queue entries that wait for the lock.
    pub(super) fn waiters(&self) -> u64 {
        self.companions.queue.as_ref().map_or(0, |queue| queue.len).max(self.subscribers)
    }
}

/// A key that has outlived its purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leftover {
    pub key: Vec<u8>,
    /// The locks to which it may belong, and the reader, or `None` for the latch of an unlock.
    pub reader: Option<(Vec<LockName>, HolderId)>,
    /// The time to live, or `None` if there is none.
    pub ttl: Option<Duration>,
}

impl Leftover {
    fn likely_lock(&self) -> Option<&LockName> {
        self.reader.as_ref().and_then(|(names, _)| names.first())
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub keys: u64,
    pub hashes: u64,
    /// The number of hashes that the Redis user may not read.
    pub unreadable: u64,
    /// The number of keys that are moving to another node.
    pub moving: u64,
    pub locks: BTreeMap<LockName, Lock>,
    /// The queues of locks that do not exist.
    pub queues: BTreeMap<LockName, Queue>,
    /// Locks with a fencing token, unless the scan has a pattern: the locks that do not match it are unknown.
    pub tokens: BTreeSet<LockName>,
    pub leftovers: Vec<Leftover>,
    /// The reason why the scan ended early.
    pub incomplete: Option<String>,
    /// The server's time, in milliseconds since 1970.
    pub clock: u64,
}

/// A scan in progress.
#[derive(Debug)]
pub(super) struct Surveyor {
    pacer: Pacer,
    link: Link,
    generation: u64,
    bounds: Bounds,
    survey: Survey,
}

/// A walk through the keys by SCAN.
struct Walk {
    filter: Vec<Vec<u8>>,
    /// The multiple of the usual number of keys that one call visits.
    times: usize,
    cursor: Vec<u8>,
}

impl Walk {
    fn new(filter: &[&[u8]], times: usize) -> Self {
        let filter = filter.iter().map(|word| word.to_vec()).collect();
        Self { filter, times, cursor: b"0".to_vec() }
    }

    fn command(&self, count: usize) -> Cmd {
        let mut scan = cmd("SCAN");
        scan.arg(&self.cursor).arg("COUNT").arg(count);
        for word in &self.filter {
            scan.arg(word);
        }
        scan
    }
}

impl Surveyor {
    pub(super) fn new(link: Link, rate: u32, bounds: Bounds) -> Self {
        let mut pacer = Pacer::new(link.clone(), ServerFacts::default(), rate);
        pacer.set_pace(Pace::First);
        let generation = link.state().borrow().generation;
        Self { pacer, link, generation, bounds, survey: Survey::default() }
    }

    /// Reads all hashes with a lock's shape, and then the other keys of locks.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(super) async fn run(&mut self) -> Result<(), ReadError> {
        self.read_clock().await?;
        let size = self.pacer.send(vec![cmd("DBSIZE")]).await?.pop();
        self.survey.keys = size.and_then(Result::ok).as_ref().and_then(integer).unwrap_or(0);
        self.read_hashes().await?;
        if self.survey.incomplete.is_none() {
            self.read_companions().await?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> (Survey, Usage) {
        self.survey.clock = self.pacer.facts().clock();
        (self.survey, self.pacer.usage())
    }

    pub(super) fn survey(&self) -> &Survey {
        &self.survey
    }

    pub(super) fn clock(&self) -> u64 {
        self.pacer.facts().clock()
    }

    async fn read_clock(&mut self) -> Result<(), CallError> {
        let before = SteadyMillis::now().0;
        let reply = self.pacer.send(vec![cmd("TIME")]).await?.pop();
        if let Some(theirs) = reply.and_then(Result::ok).as_ref().and_then(clock_micros) {
            // The server made the reply about halfway between.
            let ours = i128::from(before.midpoint(SteadyMillis::now().0));
            let ahead = i128::from(theirs / 1_000) - ours;
            self.pacer.facts().set_ahead(i64::try_from(ahead).unwrap_or(0));
        }
        Ok(())
    }

    /// Returns the next keys, or `None` at the end.
    async fn next(&mut self, walk: &mut Walk) -> Result<Option<Vec<Vec<u8>>>, ReadError> {
        if walk.cursor.is_empty() {
            return Ok(None);
        }
        if Instant::now() >= self.bounds.until {
            self.survey.incomplete = Some("the time limit was reached (--time-limit)".to_owned());
            return Ok(None);
        }
        let count = walk.times * self.pacer.call_size().keys;
        let (cursor, keys) = page(&mut self.pacer, walk.command(count)).await?;
        self.pacer.spend(count);
        if self.link.state().borrow().generation != self.generation {
            // The connection may lead to another server, for which the cursor is meaningless.
            let reason = "the connection was lost during the pass".to_owned();
            return Err(CallError::Lost { reason }.into());
        }
        walk.cursor = if cursor == b"0" { Vec::new() } else { cursor };
        Ok(Some(keys))
    }

    fn is_wanted(&self, name: &LockName) -> bool {
        !self.bounds.ignore.iter().any(|glob| glob_matches(glob, name.as_bytes()))
    }

    async fn read_hashes(&mut self) -> Result<(), ReadError> {
        let pattern = self.bounds.pattern.clone();
        let mut filter: Vec<&[u8]> = vec![b"TYPE", b"hash"];
        if let Some(pattern) = &pattern {
            filter.extend([b"MATCH".as_slice(), pattern.as_bytes()]);
        }
        let mut walk = Walk::new(&filter, 1);
        let mut names = Vec::new();
        while let Some(keys) = self.next(&mut walk).await? {
            let wanted = keys.into_iter().filter_map(|key| LockName::new(key).ok());
            names.extend(wanted.filter(|name| self.is_wanted(name)));
            if names.len() >= BATCH || walk.cursor.is_empty() {
                self.read_batch(std::mem::take(&mut names)).await?;
            }
            if self.survey.locks.len() >= self.bounds.max_locks {
                let found = counted(self.bounds.max_locks as u64, "lock");
                let reason = format!("it ended at {found} (--max-locks)");
                self.survey.incomplete = Some(reason);
                return Ok(());
            }
        }
        Ok(())
    }

    async fn read_batch(&mut self, names: Vec<LockName>) -> Result<(), ReadError> {
        self.survey.hashes += u64::try_from(names.len()).unwrap_or(u64::MAX);
        let idle =
            if self.bounds.idle_first { self.idle_times(&names).await? } else { HashMap::new() };
        let mut others = Vec::new();
        let findings = discover(&mut self.pacer, &names, |_| true, &mut others).await?;
        let unreadable = others.iter().filter(|other| other.is_unpermitted()).count();
        self.survey.unreadable += u64::try_from(unreadable).unwrap_or(u64::MAX);
        self.survey.moving += u64::try_from(findings.redirected.len()).unwrap_or(u64::MAX);
        for found in findings.found {
            let idle = idle.get(&found.name).copied();
            self.add(found, idle);
        }
        Ok(())
    }

    fn add(&mut self, found: Found, idle: Option<Duration>) {
        let Found { name, reading, .. } = found;
        match reading {
            Reading::Lock { hash, ttl, companions } => {
                self.survey.queues.remove(&name);
                let lock = Lock { hash, ttl, companions, idle, bytes: None, subscribers: 0 };
                self.survey.locks.insert(name, lock);
            }
            Reading::Absent { companions } => {
                self.survey.locks.remove(&name);
                match companions.queue {
                    Some(queue) => drop(self.survey.queues.insert(name, queue)),
                    None => drop(self.survey.queues.remove(&name)),
                }
            }
            Reading::Other(_) => {
                self.survey.locks.remove(&name);
                self.survey.queues.remove(&name);
            }
        }
    }

    async fn read_companions(&mut self) -> Result<(), ReadError> {
        let mut walk = Walk::new(&[b"MATCH", COMPANIONS], COMPANION_TIMES);
        let mut queued = BTreeSet::new();
        let mut leftovers = Vec::new();
        while let Some(keys) = self.next(&mut walk).await? {
            for key in keys {
                let names = locks_of_companion(&key);
                let known = names.iter().find(|name| self.survey.locks.contains_key(*name));
                if let Some(name) = known.or_else(|| names.first()).cloned() {
                    if !self.is_wanted(&name) {
                        continue;
                    }
                    let tokens = &mut self.survey.tokens;
                    let is_token = key.starts_with(keys::TOKEN);
                    let set = if is_token { tokens } else { &mut queued };
                    if set.len() < MAX_COMPANIONS && !(is_token && self.bounds.pattern.is_some()) {
                        set.insert(name);
                    }
                } else if let Some(leftover) = leftover(key)
                    && leftovers.len() < MAX_COMPANIONS
                    && leftover.likely_lock().is_none_or(|name| self.is_wanted(name))
                {
                    leftovers.push(leftover);
                }
            }
        }
        queued.retain(|name| !self.survey.locks.contains_key(name));
        self.reread(&queued.into_iter().collect::<Vec<_>>()).await?;
        for batch in leftovers.chunks(BATCH) {
            let lasting = self.lasting(batch.to_vec()).await?;
            let unheld = self.unheld(lasting).await?;
            // The marker of a reader that released the lock meanwhile is gone.
            let lasting = self.lasting(unheld).await?;
            self.survey.leftovers.extend(lasting);
        }
        Ok(())
    }

    /// Returns those that have no time to live or a [`LONG`] one.
    async fn lasting(&mut self, leftovers: Vec<Leftover>) -> Result<Vec<Leftover>, CallError> {
        let command = |leftover: &Leftover| cmd("PTTL").arg(&leftover.key).clone();
        let replies = self.pacer.send(leftovers.iter().map(command).collect()).await?;
        let lasting = leftovers.into_iter().zip(replies).filter_map(|(leftover, reply)| {
            let ttl = match reply {
                Ok(redis::Value::Int(-1)) => None,
                Ok(redis::Value::Int(ms)) => Some(Duration::from_millis(u64::try_from(ms).ok()?)),
                // The key is not readable.
                _ => return None,
            };
            ttl.is_none_or(|ttl| ttl > LONG).then_some(Leftover { ttl, ..leftover })
        });
        Ok(lasting.collect())
    }

    /// Reads the locks to which markers may belong, and leaves out the markers of readers that hold one of them, or one
    /// that cannot be read. Readers may have entered since the hashes were read, and their locks may not match the pattern.
    async fn unheld(&mut self, mut leftovers: Vec<Leftover>) -> Result<Vec<Leftover>, ReadError> {
        let names: BTreeSet<&LockName> = leftovers
            .iter()
            .filter_map(|leftover| leftover.reader.as_ref())
            .flat_map(|(names, _)| names)
            .collect();
        let request =
            |name: &LockName| ReadRequest { name: name.clone(), known: KnownParts::default() };
        let findings = read(&mut self.pacer, names.into_iter().map(request).collect()).await?;
        let readings: HashMap<LockName, Reading> =
            findings.found.into_iter().map(|found| (found.name, found.reading)).collect();
        leftovers.retain(|leftover| {
            leftover.reader.iter().all(|(names, reader)| {
                names.iter().all(|name| match readings.get(name) {
                    Some(Reading::Lock { hash, .. }) => {
                        hash.holders.iter().all(|holder| holder.id != *reader)
                    }
                    Some(Reading::Absent { .. }) => true,
                    Some(Reading::Other(_)) | None => false,
                })
            })
        });
        Ok(leftovers)
    }

    /// Reads locks again, including those that only have a queue. A lock that cannot be read now is no longer known.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(super) async fn reread(&mut self, names: &[LockName]) -> Result<(), ReadError> {
        for batch in names.chunks(BATCH) {
            let known = KnownParts { token: true, ..KnownParts::default() };
            let request =
                |name: &LockName| ReadRequest { name: name.clone(), known: known.clone() };
            let findings = read(&mut self.pacer, batch.iter().map(request).collect()).await?;
            self.survey.moving += u64::try_from(findings.redirected.len()).unwrap_or(u64::MAX);
            let mut before = HashMap::new();
            for name in batch {
                self.survey.queues.remove(name);
                before.extend(self.survey.locks.remove_entry(name));
            }
            for found in findings.found {
                let name = found.name.clone();
                self.add(found, None);
                if let (Some(lock), Some(old)) =
                    (self.survey.locks.get_mut(&name), before.get(&name))
                {
                    (lock.idle, lock.subscribers) = (old.idle, old.subscribers);
                }
            }
        }
        Ok(())
    }

    async fn idle_times(
        &mut self,
        names: &[LockName],
    ) -> Result<HashMap<LockName, Duration>, CallError> {
        let command = |name: &LockName| cmd("OBJECT").arg("IDLETIME").arg(name.as_bytes()).clone();
        let replies = self.pacer.send(names.iter().map(command).collect()).await?;
        let idle = names.iter().zip(replies).filter_map(|(name, reply)| {
            Some((name.clone(), Duration::from_secs(integer(&reply.ok()?)?)))
        });
        Ok(idle.collect())
    }

    /// Reads idle times and sizes of these locks.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(super) async fn measure(&mut self, names: &[LockName]) -> Result<(), CallError> {
        for names in names.chunks(BATCH) {
            let idle = if self.bounds.idle_first {
                HashMap::new()
            } else {
                self.idle_times(names).await?
            };
            let usage = |name: &LockName| cmd("MEMORY").arg("USAGE").arg(name.as_bytes()).clone();
            let replies = self.pacer.send(names.iter().map(usage).collect()).await?;
            for (name, reply) in names.iter().zip(replies) {
                let Some(lock) = self.survey.locks.get_mut(name) else { continue };
                lock.bytes = reply.ok().as_ref().and_then(integer);
                lock.idle = idle.get(name).copied().or(lock.idle);
            }
        }
        Ok(())
    }

    /// Adds the connections that listen for releases on this server. `verb` is NUMSUB or SHARDNUMSUB.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(super) async fn listeners(
        &mut self,
        verb: &str,
        channels: &[Vec<u8>],
    ) -> Result<HashMap<Vec<u8>, u64>, CallError> {
        let mut counts = HashMap::new();
        for channels in channels.chunks(CHANNELS) {
            let mut command = cmd("PUBSUB");
            command.arg(verb).arg(channels);
            let reply = self.pacer.send(vec![command]).await?.pop();
            let Some(Ok(redis::Value::Array(pairs))) = reply else { continue };
            for pair in pairs.chunks_exact(2) {
                if let [redis::Value::BulkString(channel), count] = pair
                    && let Some(count) = integer(count).filter(|count| *count > 0)
                {
                    *counts.entry(channel.clone()).or_default() += count;
                }
            }
        }
        Ok(counts)
    }

    /// Returns the channels of the locks. Locks without a time to live come first, since they need listeners as proof.
    pub(super) fn channels(&self, most: usize) -> Vec<Vec<u8>> {
        let (bare, others): (Vec<_>, Vec<_>) =
            self.survey.locks.iter().partition(|(_, lock)| lock.ttl.is_none());
        bare.into_iter().chain(others).take(most).map(|(name, lock)| channel(name, lock)).collect()
    }

    pub(super) fn set_subscribers(&mut self, counts: &HashMap<Vec<u8>, u64>) {
        for (name, lock) in &mut self.survey.locks {
            lock.subscribers = counts.get(&channel(name, lock)).copied().unwrap_or(0);
        }
    }
}

fn channel(name: &LockName, lock: &Lock) -> Vec<u8> {
    match lock.hash.kind() {
        Kind::Read | Kind::Write => keys::read_write_channel(name),
        _ => keys::channel(name),
    }
}

/// Returns the marker of a reader, or the latch of an unlock.
fn leftover(key: Vec<u8>) -> Option<Leftover> {
    if key.starts_with(keys::UNLOCK_LATCH) {
        return Some(Leftover { key, reader: None, ttl: None });
    }
    const MARKER: &[u8] = b":rwlock_timeout:";
    let end = key.windows(MARKER.len()).rposition(|part| part == MARKER)?;
    // The holder's id follows the name, as in the channel of a fair lock's waiter.
    let channel = [keys::LOCK_CHANNEL, key.get(..end)?].concat();
    let reader = keys::waiter_of_channel(&channel)?;
    let names = keys::locks_of_channel(&channel);
    Some(Leftover { key, reader: Some((names, reader)), ttl: None })
}

#[cfg(test)]
mod tests {
    use redisson::ClientId;

    use super::*;

    #[test]
    fn markers_and_latches_are_recognized_by_their_keys() {
        let name = LockName::new(&b"prices"[..]).unwrap();
        let reader = HolderId::new(ClientId::from_random([7; 16]), 52);
        let marker = [keys::read_marker_prefix(&name, &reader), b":1".to_vec()].concat();
        let found = leftover(marker).unwrap().reader.unwrap();
        assert!(found.0.contains(&name));
        assert_eq!(found.1, reader);
        assert_eq!(leftover(b"redisson_unlock_latch:{a}:7".to_vec()).unwrap().reader, None);
        for other in [&b"deadlock_graph"[..], b"x:rwlock_timeout:1", b"redisson_lock_queue:{a}"] {
            assert_eq!(leftover(other.to_vec()), None);
        }
    }
}
