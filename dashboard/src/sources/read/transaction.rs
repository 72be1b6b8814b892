//! Readings of locks at one instant.

use std::collections::HashSet;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use redisson::shape::{self, LockHash};
use redisson::{HolderId, LockName};
use service_kit::redis::{Redirect, ServerError};

use super::call::{Caller, ReadError, command, redirect_of, send};
use super::companions::{CompanionRead, FollowUpRead, readable};
use super::findings::{Findings, Found};
use super::measure::{Measured, measure};
use super::reply::{
    concerns_key, integer, not_a_lock, optional_strings, permitted, signed, strings, too_large,
    unreadable,
};
use super::server_facts::ServerFacts;
use crate::model::types::{Companions, KnownParts, ReadRequest, Reading, Token};

/// The number of field names requested beyond the known ones.
const SPARE_NAMES: usize = 8;
/// The maximum number of attempts at a lock that changes hands each time it is read.
const TRIES: usize = 5;

/// One lock to be read.
pub(super) struct Job {
    pub(super) name: LockName,
    /// Fields whose values are known to be short.
    fields: Vec<Vec<u8>>,
    /// Fields that cannot belong to a holder, or whose values are too long to be a count.
    unexpected: Vec<Vec<u8>>,
    /// The number of field names to request, or 0 if the hash probably has no other fields than those in `fields`.
    name_count: usize,
    /// The companions to read, or `None` if the Redis user may read the lock but not its companions.
    companions: Option<CompanionRead>,
    /// True if the companions are not read because their slot is moving, so that they may be on another node.
    slot_moving: bool,
    /// True if one MULTI/EXEC reads it. A server whose memory is full queues no commands.
    atomic: bool,
}

impl Job {
    pub(super) fn new(name: LockName, known: &KnownParts, facts: &ServerFacts) -> Self {
        let name_count = if known.settled { 0 } else { known.fields.len() + SPARE_NAMES };
        let companions =
            facts.may_read_companions().then(|| CompanionRead::new(known, facts.clock()));
        let fields = known.fields.clone();
        Self {
            name,
            fields,
            unexpected: Vec::new(),
            name_count,
            companions,
            slot_moving: false,
            atomic: true,
        }
    }

    /// Returns a job for an absent key that has a queue or deadlines, or readers that may have left markers.
    pub(super) fn of_remains(
        name: LockName,
        known: &KnownParts,
        is_queued: bool,
        facts: &ServerFacts,
    ) -> Self {
        let mut job = Self::new(name, known, facts);
        if let Some(companions) = job.companions.as_mut().filter(|_| is_queued) {
            companions.expect_queue();
        }
        job
    }

    /// Returns the request for the same read on another node.
    fn request(self) -> ReadRequest {
        let known = match &self.companions {
            Some(companions) => companions.known(self.fields),
            None => KnownParts { fields: self.fields, ..KnownParts::default() },
        };
        ReadRequest { name: self.name, known }
    }

    fn key(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// Sets the fields of the hash. The `long` ones are not read.
    fn set_fields(&mut self, fields: Vec<Vec<u8>>, long: &HashSet<Vec<u8>>) {
        self.name_count = self.name_count.max(fields.len() + SPARE_NAMES);
        let fits = |field: &Vec<u8>| shape::is_foreign_field(field) && !long.contains(field);
        (self.fields, self.unexpected) = fields.into_iter().partition(fits);
        if let Some(companions) = &mut self.companions {
            companions.add_readers(&self.fields);
        }
    }

    /// Returns the commands of one transaction: the number of fields, the time to live, their names, the values of known
    /// fields, and the companions. Also the number of commands that concern the lock itself, including MULTI. Without a
    /// transaction the values are read once more at the end: they show whether the lock changed meanwhile.
    fn commands(&self) -> (Vec<Cmd>, usize) {
        let mut commands = if self.atomic { vec![cmd("MULTI")] } else { Vec::new() };
        commands.extend(self.own_commands());
        let own = commands.len();
        if let Some(companions) = &self.companions {
            commands.extend(companions.commands(&self.name));
        }
        commands.extend(if self.atomic { Some(cmd("EXEC")) } else { self.values() });
        (commands, own)
    }

    /// Returns the commands that concern the lock's own key.
    pub(super) fn own_commands(&self) -> Vec<Cmd> {
        let mut commands = vec![command("HLEN", self.key()), command("PTTL", self.key())];
        if self.name_count > 0 {
            let mut names = command("HRANDFIELD", self.key());
            names.arg(self.name_count);
            commands.push(names);
        }
        commands.extend(self.values());
        commands
    }

    fn values(&self) -> Option<Cmd> {
        let values = || command("HMGET", self.key()).arg(&self.fields).clone();
        (!self.fields.is_empty()).then(values)
    }

    /// Returns the keys that have to be absent if the lock has no companions, or `None` if some are known or are not read.
    pub(super) fn keys_of_unknown_companions(&self) -> Option<Vec<Vec<u8>>> {
        self.companions.as_ref().filter(|_| self.atomic)?.keys_if_unknown(&self.name)
    }
}

/// Reads locks, and repeats the reads as long as more has to be requested.
pub(super) async fn transactions(
    caller: &mut impl Caller,
    mut jobs: Vec<Job>,
    findings: &mut Findings,
) -> Result<(), ReadError> {
    for left in (0..TRIES).rev() {
        let mut retries = Vec::new();
        for jobs in chunks(jobs, caller.call_size().locks) {
            let mut commands = Vec::new();
            let mut sizes = Vec::with_capacity(jobs.len());
            for job in &jobs {
                let (of_job, own) = job.commands();
                sizes.push((of_job.len(), own));
                commands.extend(of_job);
            }
            let (stamp, replies) = send(caller, commands).await?;
            let mut replies = replies.into_iter();
            for (job, (size, own)) in jobs.into_iter().zip(sizes) {
                let block = replies.by_ref().take(size).collect();
                match evaluate_block(caller.facts(), &job, block, own)? {
                    Outcome::Read(reading) => {
                        findings.found.push(Found { name: job.name, stamp, reading });
                    }
                    // Waiters without the deadlines of the newest ones are better than no waiters.
                    Outcome::Needs(Need::Deadlines(_), reading) if left == 0 => {
                        findings.found.push(Found { name: job.name, stamp, reading });
                    }
                    Outcome::Needs(need, _) => retries.push((job, need)),
                    Outcome::NeedsNoCompanions { slot_moving } => {
                        retries.push((Job { companions: None, slot_moving, ..job }, Need::Same));
                    }
                    Outcome::NeedsNoTransaction => {
                        retries.push((Job { atomic: false, ..job }, Need::Same));
                    }
                    Outcome::Redirected(redirect) => {
                        findings.redirect(caller.facts(), job.request(), redirect);
                    }
                }
            }
        }
        if retries.is_empty() {
            return Ok(());
        }
        jobs = prepared(caller, retries).await?;
    }
    Ok(())
}

fn chunks(jobs: Vec<Job>, size: usize) -> Vec<Vec<Job>> {
    let mut jobs = jobs.into_iter().peekable();
    let mut chunks = Vec::new();
    while jobs.peek().is_some() {
        chunks.push(jobs.by_ref().take(size).collect());
    }
    chunks
}

/// Prepares jobs for another attempt. New fields are read only if their values are short, and queues only if their
/// entries are.
async fn prepared(caller: &mut impl Caller, jobs: Vec<(Job, Need)>) -> Result<Vec<Job>, ReadError> {
    let mut new_fields = Vec::new();
    let mut queues = Vec::new();
    for (job, need) in &jobs {
        match need {
            Need::Fields(fields) => {
                let new = fields.iter().filter(|field| !job.fields.contains(field));
                let new = new.filter(|field| shape::is_foreign_field(field)).cloned();
                new_fields.push((job.name.clone(), new.collect::<Vec<_>>()));
            }
            Need::Queue => queues.push(job.name.clone()),
            Need::Same | Need::Names(_) | Need::Deadlines(_) => {}
        }
    }
    let keys: Vec<_> = new_fields.iter().map(|(name, new)| (name, new.as_slice())).collect();
    let (_, measured) = measure(caller, &keys).await?;
    let mut measured = new_fields.into_iter().map(|(_, new)| new).zip(measured);
    let mut queues = readable(caller, &queues).await?.into_iter();
    let mut prepared = Vec::new();
    for (mut job, need) in jobs {
        match need {
            Need::Same => {}
            Need::Names(count) => job.name_count = count,
            Need::Fields(fields) => {
                let long = measured.next().map(|(new, measured)| long_fields(new, measured));
                job.set_fields(fields, &long.unwrap_or_default());
            }
            Need::Queue => {
                let may_be_read = queues.next().unwrap_or(false);
                if let Some(companions) = &mut job.companions {
                    companions.set_queue(may_be_read);
                }
            }
            Need::Deadlines(waiting) => {
                if let Some(companions) = &mut job.companions {
                    companions.set_waiting(waiting);
                }
            }
        }
        prepared.push(job);
    }
    Ok(prepared)
}

/// Returns the fields whose values are too long for a count, or all of them if the key is on another node, which the next
/// transaction reports.
fn long_fields(fields: Vec<Vec<u8>>, measured: Result<Measured, Redirect>) -> HashSet<Vec<u8>> {
    let Ok(Measured { lengths, .. }) = measured else { return fields.into_iter().collect() };
    let long = fields.into_iter().zip(lengths);
    let long = long.filter(|(_, length)| *length > shape::MAX_VALUE_LEN as u64);
    long.map(|(field, _)| field).collect()
}

/// A further request that a reading makes necessary.
pub(super) enum Need {
    /// The same read again.
    Same,
    /// The hash has these fields, some of which were not requested.
    Fields(Vec<Vec<u8>>),
    /// The hash has more fields than were requested, so this number of names is requested.
    Names(usize),
    /// The lock has a queue.
    Queue,
    /// These ids are in the lock's queue.
    Deadlines(Vec<HolderId>),
}

pub(super) enum Outcome {
    Read(Reading),
    /// More has to be read. Contains the reading so far.
    Needs(Need, Reading),
    /// The lock has to be read without its companions, which may be on another node while their slot moves.
    NeedsNoCompanions {
        slot_moving: bool,
    },
    /// The server queues no commands, since its memory is full.
    NeedsNoTransaction,
    /// Another node of the cluster has the lock.
    Redirected(Redirect),
}

/// Evaluates the replies to a job. The first `own` commands of its transaction concern the lock's own key.
fn evaluate_block(
    facts: &ServerFacts,
    job: &Job,
    mut block: Vec<Result<Value, ServerError>>,
    own: usize,
) -> Result<Outcome, ReadError> {
    if job.atomic && block.iter().any(|reply| reply.as_ref().is_err_and(ServerError::is_oom)) {
        return Ok(Outcome::NeedsNoTransaction);
    }
    let exec = if job.atomic { block.pop() } else { as_exec(job, &mut block, own) };
    if let Some(redirect) = block.iter().take(own).find_map(redirect_of) {
        return Ok(Outcome::Redirected(redirect));
    }
    let companions_refused = block.iter().position(Result::is_err).is_some_and(|i| i >= own);
    let refused = block.into_iter().find_map(Result::err);
    if let Some(error) = refused.as_ref().filter(|_| companions_refused)
        && !error.is_transient()
    {
        // While a slot moves, only some of its keys are here.
        let slot_moving = error.redirect().is_some();
        if !concerns_key(error) && !slot_moving {
            facts.deny_companions(&error.to_string());
        }
        return Ok(Outcome::NeedsNoCompanions { slot_moving });
    }
    // Nothing was refused before EXEC, but while a slot moves not all keys of a transaction are here.
    match exec.as_ref().filter(|_| refused.is_none()) {
        Some(Err(error)) if error.is_split() && job.companions.is_some() => {
            Ok(Outcome::NeedsNoCompanions { slot_moving: true })
        }
        Some(Err(error)) if let Some(redirect) = error.redirect() => {
            Ok(Outcome::Redirected(redirect))
        }
        _ => evaluate_exec(job, refused, exec),
    }
}

/// Takes the results of a read without a transaction, in the form of EXEC's reply: null if the lock changed meanwhile, as
/// for a transaction that was not run. If a reply is an error, returns `None` and leaves the replies in the block.
fn as_exec(
    job: &Job,
    block: &mut Vec<Result<Value, ServerError>>,
    own: usize,
) -> Option<Result<Value, ServerError>> {
    let unchanged = job.fields.is_empty()
        || block.pop().is_some_and(|again| own.checked_sub(1).is_some_and(|i| block[i] == again));
    if block.iter().any(Result::is_err) {
        return None;
    }
    let results = std::mem::take(block).into_iter().flatten().collect();
    Some(Ok(if unchanged { Value::Array(results) } else { Value::Nil }))
}

/// Evaluates EXEC's reply from a node that has the lock, or the refusal of a command before it.
fn evaluate_exec(
    job: &Job,
    refused: Option<ServerError>,
    exec: Option<Result<Value, ServerError>>,
) -> Result<Outcome, ReadError> {
    let results = match (refused, exec) {
        (_, Some(Ok(Value::Array(results)))) => results,
        (None, Some(Ok(Value::Nil))) => {
            let nothing = Reading::Absent { companions: Companions::default() };
            return Ok(Outcome::Needs(Need::Same, nothing));
        }
        // The refusal of a queued command is more precise than that of EXEC.
        (Some(error), _) | (None, Some(Err(error))) => {
            return match permitted(Err(error))? {
                Err(error) => Ok(Outcome::Read(Reading::Other(unreadable(&error)))),
                Ok(_) => Err(ReadError::UnexpectedReply("EXEC")),
            };
        }
        _ => return Err(ReadError::UnexpectedReply("EXEC")),
    };
    evaluate(job, results, true)
}

/// Evaluates the results of the commands of a read, with the companions' own unless they are known to be absent.
pub(super) fn evaluate(
    job: &Job,
    results: Vec<Value>,
    with_companions: bool,
) -> Result<Outcome, ReadError> {
    let mut results = results.into_iter();
    let mut next = || results.next().ok_or(ReadError::UnexpectedReply("EXEC"));
    let (length, ttl) = (next()?, next()?);
    let names = if job.name_count > 0 { Some(next()?) } else { None };
    let values = if job.fields.is_empty() { None } else { Some(next()?) };
    if let Value::ServerError(error) = &length {
        let error = ServerError { code: error.code().to_owned(), message: String::new() };
        return Ok(Outcome::Read(Reading::Other(unreadable(&error))));
    }
    let length = integer(&length).ok_or(ReadError::UnexpectedReply("HLEN"))?;
    if length > shape::MAX_FIELDS {
        return Ok(Outcome::Read(Reading::Other(too_large(length))));
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let hash = match parse_hash(job, length, names.as_ref(), values.as_ref())? {
        Ok(hash) => hash,
        Err(need) => {
            let nothing = Reading::Absent { companions: Companions::default() };
            return Ok(Outcome::Needs(need, nothing));
        }
    };
    let (companions, more) = match &job.companions {
        Some(companions) if with_companions => companions.read(&mut results, &hash.holders)?,
        Some(companions) => (companions.absent(), None),
        None if job.slot_moving => {
            (Companions { token: Token::Unavailable, ..Companions::default() }, None)
        }
        None => (Companions::default(), None),
    };
    let ttl = match signed(&ttl).ok_or(ReadError::UnexpectedReply("PTTL"))? {
        -1 => None,
        ms => Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
    };
    let reading = if length == 0 {
        Reading::Absent { companions }
    } else if hash.is_possible_lock() && (!hash.holders.is_empty() || ttl.is_some()) {
        // Without a lease, counts under names of another form belong to an application.
        Reading::Lock { hash, ttl, companions }
    } else {
        Reading::Other(not_a_lock())
    };
    Ok(match more {
        None => Outcome::Read(reading),
        Some(FollowUpRead::Queue) => Outcome::Needs(Need::Queue, reading),
        Some(FollowUpRead::Waiting(waiting)) => Outcome::Needs(Need::Deadlines(waiting), reading),
    })
}

/// Parses a hash of that number of fields from the replies to HRANDFIELD and HMGET, or returns what has to be read first.
fn parse_hash(
    job: &Job,
    length: usize,
    names: Option<&Value>,
    values: Option<&Value>,
) -> Result<Result<LockHash, Need>, ReadError> {
    let values = match values {
        Some(values) => optional_strings(values).ok_or(ReadError::UnexpectedReply("HMGET"))?,
        None => Vec::new(),
    };
    let pairs = job.fields.iter().zip(&values);
    let pairs: Vec<(&[u8], &[u8])> =
        pairs.filter_map(|(field, value)| Some((field.as_slice(), value.as_deref()?))).collect();
    let names = match names {
        Some(names) => strings(names).unwrap_or_default(),
        None => pairs.iter().map(|(field, _)| field.to_vec()).collect(),
    };
    if names.len() < length {
        return Ok(Err(Need::Names(length + SPARE_NAMES)));
    }
    let is_read = |name: &Vec<u8>| pairs.iter().any(|(field, _)| field == name);
    let is_unexpected = |name: &Vec<u8>| job.unexpected.contains(name);
    if !names.iter().all(|name| is_read(name) || is_unexpected(name)) {
        return Ok(Err(Need::Fields(names)));
    }
    let mut hash = LockHash::parse(pairs);
    hash.unexpected.extend(names.into_iter().filter(is_unexpected));
    Ok(Ok(hash))
}
