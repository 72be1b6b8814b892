//! Reading keys that may be locks, without ever asking for a reply of unknown size.
//!
//! A key not known as a lock is asked for its number of fields, then for three names, then for the lengths of their
//! values; only what still looks like a lock is read. A key known as one is read at once, by the fields it had: names
//! in bounded number, values of fields whose lengths were asked before. What a reading consists of comes from one
//! MULTI/EXEC, so that it never mixes two holders. No script is used: an observer's account needs no right to run any.

use std::collections::HashSet;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value, cmd};
use redisson::shape::{self, LockHash};
use redisson::{LockName, keys};
use service_kit::redis_link::{CallError, Link, ServerError};
use thiserror::Error;

use crate::model::actor::{now, wall};
use crate::model::{ReadRequest, Reading, Stamp};

/// Keys in one pipeline of single commands.
const PROBES: usize = 100;
/// Locks in one pipeline of transactions.
const TRANSACTIONS: usize = 32;
/// Names asked for to tell whether a hash can be a lock.
const SAMPLE: usize = 3;
/// Names asked for of a lock beyond those it is known to have.
const SPARE_NAMES: usize = 8;
/// A lock that changes hands each time it is looked at is left for the next time after so many tries.
const TRIES: usize = 4;

/// Why nothing could be read.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    /// No answer, or a refusal that concerns more than one key.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An answer of another form than the command has.
    #[error("odd reply to {0}")]
    Odd(&'static str),
}

/// Who sends commands: a link, or one that is paced.
pub trait Caller: Send {
    /// Sends all commands at once.
    fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Result<Value, ServerError>>, CallError>> + Send;
}

/// A link at its own pace.
#[derive(Debug)]
pub struct Unpaced<'a>(pub &'a Link);

impl Caller for Unpaced<'_> {
    async fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        self.0.pipeline(pipeline(commands)).await
    }
}

/// The commands as one pipeline, which goes out as a whole and in order.
#[must_use]
pub fn pipeline(commands: Vec<Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// A key that was read.
#[derive(Debug, Clone)]
pub struct Found {
    /// Which.
    pub name: LockName,
    /// When.
    pub stamp: Stamp,
    /// As what.
    pub reading: Reading,
}

/// Reads keys. What could not be read for good because it kept changing is left out.
///
/// # Errors
/// When the connection fails, or the account may not run a command at all.
pub async fn read(
    caller: &mut impl Caller,
    requests: Vec<ReadRequest>,
) -> Result<Vec<Found>, ReadError> {
    let (known, unknown): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| !request.fields.is_empty());
    let mut found = Vec::new();
    let mut jobs: Vec<Job> =
        known.into_iter().map(|request| Job::new(request.name, request.fields)).collect();
    let names: Vec<LockName> = unknown.into_iter().map(|request| request.name).collect();
    for names in names.chunks(PROBES) {
        jobs.extend(probe(caller, names, true, &mut found).await?);
    }
    transactions(caller, jobs, &mut found).await?;
    Ok(found)
}

/// Reads those of the keys, which a scan says are hashes, that have a lock's form. The others are `left`.
///
/// # Errors
/// As [`read`].
pub async fn discover(
    caller: &mut impl Caller,
    names: &[LockName],
    left: &mut Vec<LockName>,
) -> Result<Vec<Found>, ReadError> {
    let mut found = Vec::new();
    let mut jobs = Vec::new();
    for names in names.chunks(PROBES) {
        jobs.extend(probe(caller, names, false, &mut found).await?);
    }
    for other in found.drain(..).filter(|found| matches!(found.reading, Reading::Other(_))) {
        left.push(other.name);
    }
    transactions(caller, jobs, &mut found).await?;
    Ok(found)
}

/// One lock to be read.
struct Job {
    name: LockName,
    /// Fields whose values are known to be short.
    fields: Vec<Vec<u8>>,
    /// Fields that cannot be a holder's, or whose values are too long to be a count.
    alien: Vec<Vec<u8>>,
    /// How many names to ask for.
    ask: usize,
}

impl Job {
    fn new(name: LockName, fields: Vec<Vec<u8>>) -> Self {
        let ask = fields.len() + SPARE_NAMES;
        Self { name, fields, alien: Vec::new(), ask }
    }

    fn key(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// What one transaction asks: how many fields, their names, the values of those known, the time to live, and
    /// whether a fair lock's queue stands beside it.
    fn commands(&self) -> Vec<Cmd> {
        let mut values = command("HMGET", self.key());
        for field in &self.fields {
            values.arg(field);
        }
        let mut names = command("HRANDFIELD", self.key());
        names.arg(self.ask);
        let mut commands = vec![
            cmd("MULTI"),
            command("HLEN", self.key()),
            names,
            command("PTTL", self.key()),
            command("TYPE", &keys::queue(&self.name)),
        ];
        if !self.fields.is_empty() {
            commands.push(values);
        }
        commands.push(cmd("EXEC"));
        commands
    }
}

fn command(verb: &str, key: &[u8]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(key);
    command
}

/// Asks of each key, step by step, whether it can be a lock. Those that can are returned, the others are found.
async fn probe(
    caller: &mut impl Caller,
    names: &[LockName],
    with_queue: bool,
    found: &mut Vec<Found>,
) -> Result<Vec<Job>, ReadError> {
    let mut commands = Vec::with_capacity(names.len() * 2);
    for name in names {
        commands.push(command("HLEN", name.as_bytes()));
        if with_queue {
            commands.push(command("TYPE", &keys::queue(name)));
        }
    }
    let (stamp, replies) = ask(caller, commands).await?;
    let mut replies = replies.into_iter();
    let mut hashes = Vec::new();
    for name in names {
        let length = replies.next().ok_or(ReadError::Odd("HLEN"))?;
        let queue = if with_queue { replies.next() } else { None };
        let queued = match queue {
            Some(reply) => is_list(&permitted(reply)?),
            None => false,
        };
        let reading = match permitted(length)? {
            Ok(value) => match integer(&value).ok_or(ReadError::Odd("HLEN"))? {
                0 => Reading::Absent { queued },
                n if n > shape::MAX_FIELDS => Reading::Other(too_large(n)),
                _ => {
                    hashes.push(name.clone());
                    continue;
                }
            },
            Err(error) => Reading::Other(other(&error)),
        };
        found.push(Found { name: name.clone(), stamp, reading });
    }
    if hashes.is_empty() {
        return Ok(Vec::new());
    }
    let commands = hashes
        .iter()
        .map(|name| {
            let mut names = command("HRANDFIELD", name.as_bytes());
            names.arg(SAMPLE);
            names
        })
        .collect();
    let (stamp, replies) = ask(caller, commands).await?;
    let mut candidates = Vec::new();
    for (name, reply) in hashes.into_iter().zip(replies) {
        let fields = permitted(reply)?.map(|value| strings(&value).unwrap_or_default());
        match fields {
            Ok(fields) if fields.is_empty() => {
                found.push(Found { name, stamp, reading: Reading::Absent { queued: false } });
            }
            Ok(fields) if fields.iter().all(|field| shape::is_lock_field(field)) => {
                candidates.push((name, fields));
            }
            Ok(_) => found.push(Found { name, stamp, reading: Reading::Other(no_lock()) }),
            Err(error) => {
                found.push(Found { name, stamp, reading: Reading::Other(other(&error)) });
            }
        }
    }
    let (stamp, lengths) = lengths(caller, &candidates).await?;
    let mut jobs = Vec::new();
    for ((name, fields), lengths) in candidates.into_iter().zip(lengths) {
        if lengths.iter().all(|length| *length <= shape::MAX_VALUE_LEN as u64) {
            jobs.push(Job::new(name, fields));
        } else {
            found.push(Found { name, stamp, reading: Reading::Other(no_lock()) });
        }
    }
    Ok(jobs)
}

/// Asks how long the values of fields are.
async fn lengths(
    caller: &mut impl Caller,
    candidates: &[(LockName, Vec<Vec<u8>>)],
) -> Result<(Stamp, Vec<Vec<u64>>), ReadError> {
    let mut commands = Vec::new();
    for (name, fields) in candidates {
        for field in fields {
            let mut length = command("HSTRLEN", name.as_bytes());
            length.arg(field);
            commands.push(length);
        }
    }
    let (stamp, replies) = ask(caller, commands).await?;
    let mut replies = replies.into_iter();
    let mut all = Vec::with_capacity(candidates.len());
    for (_, fields) in candidates {
        let mut lengths = Vec::with_capacity(fields.len());
        for _ in fields {
            let reply = permitted(replies.next().ok_or(ReadError::Odd("HSTRLEN"))?)?;
            lengths.push(reply.ok().as_ref().and_then(integer).unwrap_or(u64::MAX));
        }
        all.push(lengths);
    }
    Ok((stamp, all))
}

/// Reads locks, again where their fields turn out to be others than thought.
async fn transactions(
    caller: &mut impl Caller,
    mut jobs: Vec<Job>,
    found: &mut Vec<Found>,
) -> Result<(), ReadError> {
    for _ in 0..TRIES {
        let mut again = Vec::new();
        for jobs in chunks(jobs) {
            let commands = jobs.iter().flat_map(Job::commands).collect();
            let (stamp, replies) = ask(caller, commands).await?;
            let mut replies = replies.into_iter();
            for job in jobs {
                let mut block: Vec<_> = replies.by_ref().take(job.commands().len()).collect();
                let exec = block.pop();
                let refused = block.into_iter().find_map(Result::err);
                match outcome(&job, refused, exec)? {
                    Outcome::Read(reading) => {
                        found.push(Found { name: job.name, stamp, reading });
                    }
                    Outcome::Others(fields) => again.push((job, fields)),
                    Outcome::More(ask) => again.push((Job { ask, ..job }, Vec::new())),
                }
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        jobs = vetted(caller, again).await?;
    }
    Ok(())
}

fn chunks(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut jobs = jobs.into_iter().peekable();
    let mut chunks = Vec::new();
    while jobs.peek().is_some() {
        chunks.push(jobs.by_ref().take(TRANSACTIONS).collect());
    }
    chunks
}

/// Asks of the fields not known yet whether their values are short enough to be read.
async fn vetted(
    caller: &mut impl Caller,
    jobs: Vec<(Job, Vec<Vec<u8>>)>,
) -> Result<Vec<Job>, ReadError> {
    let mut asked = Vec::new();
    for (job, fields) in &jobs {
        let new = fields.iter().filter(|field| !job.fields.contains(field));
        let new = new.filter(|field| shape::is_lock_field(field)).cloned().collect();
        asked.push((job.name.clone(), new));
    }
    let (_, lengths) = lengths(caller, &asked).await?;
    let mut vetted = Vec::new();
    for (((mut job, fields), (_, new)), lengths) in jobs.into_iter().zip(asked).zip(lengths) {
        if !fields.is_empty() {
            let long: HashSet<&Vec<u8>> = new
                .iter()
                .zip(lengths)
                .filter(|(_, length)| *length > shape::MAX_VALUE_LEN as u64)
                .map(|(field, _)| field)
                .collect();
            let fits = |field: &Vec<u8>| shape::is_lock_field(field) && !long.contains(field);
            (job.fields, job.alien) = fields.into_iter().partition(fits);
            job.ask = job.ask.max(job.fields.len() + job.alien.len() + SPARE_NAMES);
        }
        vetted.push(job);
    }
    Ok(vetted)
}

enum Outcome {
    Read(Reading),
    /// It has these fields, others than those asked for.
    Others(Vec<Vec<u8>>),
    /// It has more fields than were asked for: ask for so many.
    More(usize),
}

/// What the replies to one transaction say.
fn outcome(
    job: &Job,
    refused: Option<ServerError>,
    exec: Option<Result<Value, ServerError>>,
) -> Result<Outcome, ReadError> {
    let results = match (refused, exec) {
        (_, Some(Ok(Value::Array(results)))) => results,
        // What was refused while queueing says more than EXEC, which only says that something was.
        (Some(error), _) | (None, Some(Err(error))) => {
            return match permitted(Err(error))? {
                Err(error) => Ok(Outcome::Read(Reading::Other(other(&error)))),
                Ok(_) => Err(ReadError::Odd("EXEC")),
            };
        }
        _ => return Err(ReadError::Odd("EXEC")),
    };
    let mut results = results.into_iter();
    let mut next = || results.next().ok_or(ReadError::Odd("EXEC"));
    let (length, names, ttl, queue) = (next()?, next()?, next()?, next()?);
    let queued = is_list(&Ok(queue));
    if let Value::ServerError(error) = &length {
        let error = ServerError { code: error.code().to_owned(), message: String::new() };
        return Ok(Outcome::Read(Reading::Other(other(&error))));
    }
    let length = integer(&length).ok_or(ReadError::Odd("HLEN"))?;
    if length == 0 {
        return Ok(Outcome::Read(Reading::Absent { queued }));
    }
    if length > shape::MAX_FIELDS {
        return Ok(Outcome::Read(Reading::Other(too_large(length))));
    }
    let names = strings(&names).ok_or(ReadError::Odd("HRANDFIELD"))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if names.len() < length {
        return Ok(Outcome::More(length + SPARE_NAMES));
    }
    let values = match results.next() {
        Some(values) => optional_strings(&values).ok_or(ReadError::Odd("HMGET"))?,
        None => Vec::new(),
    };
    let mut hash: Vec<(&[u8], &[u8])> = Vec::new();
    for (field, value) in job.fields.iter().zip(&values) {
        if let Some(value) = value {
            hash.push((field, value));
        }
    }
    let read = |name: &Vec<u8>| hash.iter().any(|(field, _)| field == name);
    let alien = |name: &Vec<u8>| job.alien.contains(name);
    if !names.iter().all(|name| read(name) || alien(name)) {
        return Ok(Outcome::Others(names));
    }
    let ttl = match signed(&ttl).ok_or(ReadError::Odd("PTTL"))? {
        -1 => None,
        ms => Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
    };
    let mut hash = LockHash::read(hash);
    hash.alien.extend(names.into_iter().filter(alien));
    let reading = if hash.is_candidate() {
        Reading::Lock { hash, ttl, queued }
    } else {
        Reading::Other(no_lock())
    };
    Ok(Outcome::Read(reading))
}

async fn ask(
    caller: &mut impl Caller,
    commands: Vec<Cmd>,
) -> Result<(Stamp, Vec<Result<Value, ServerError>>), ReadError> {
    let sent = now();
    let replies = caller.send(commands).await?;
    Ok((Stamp { sent, received: now(), wall: wall() }, replies))
}

/// A refusal that concerns all keys, now or for good, ends the reading; others concern this key only.
fn permitted(
    reply: Result<Value, ServerError>,
) -> Result<Result<Value, ServerError>, ReadError> {
    match reply {
        Err(error) if error.is_transient() || concerns_all(&error) => {
            Err(CallError::Refused(error).into())
        }
        reply => Ok(reply),
    }
}

fn concerns_all(error: &ServerError) -> bool {
    let of_key = error.code == "NOPERM" && error.message.contains("key");
    (error.is_denied() && !of_key) || error.message.starts_with("unknown command")
}

fn other(error: &ServerError) -> String {
    if error.is_wrong_type() {
        "a key of another type than a hash".to_owned()
    } else if error.is_denied() {
        "a key that this account may not read".to_owned()
    } else {
        format!("a key that cannot be read: {error}")
    }
}

fn too_large(fields: u64) -> String {
    format!("a hash of {fields} fields, too many for a lock; it is not read")
}

fn no_lock() -> String {
    "a hash whose fields are not a lock's".to_owned()
}

fn is_list(reply: &Result<Value, ServerError>) -> bool {
    match reply {
        Ok(Value::SimpleString(kind)) => kind == "list",
        Ok(Value::BulkString(kind)) => kind == b"list",
        _ => false,
    }
}

fn signed(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        _ => None,
    }
}

/// A count.
#[must_use]
pub fn integer(value: &Value) -> Option<u64> {
    signed(value).and_then(|n| u64::try_from(n).ok())
}

/// A list of strings.
#[must_use]
pub fn strings(value: &Value) -> Option<Vec<Vec<u8>>> {
    optional_strings(value)?.into_iter().collect()
}

fn optional_strings(value: &Value) -> Option<Vec<Option<Vec<u8>>>> {
    let Value::Array(values) = value else { return None };
    let string = |value: &Value| match value {
        Value::BulkString(bytes) => Some(Some(bytes.clone())),
        Value::SimpleString(text) => Some(Some(text.clone().into_bytes())),
        Value::Nil => Some(None),
        _ => None,
    };
    values.iter().map(string).collect()
}
