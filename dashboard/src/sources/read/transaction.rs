//! Locks, read as they are at one instant.

use std::collections::HashSet;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use redisson::shape::{self, LockHash};
use redisson::{LockName, keys};
use service_kit::redis_link::ServerError;

use super::probe::lengths;
use super::reply::{
    concerns_key, integer, is_list, no_lock, optional_strings, other, permitted, signed, strings,
    too_large,
};
use super::{Caller, Found, ReadError, ask, command};
use crate::model::Reading;

/// Locks in one pipeline.
const TRANSACTIONS: usize = 32;
/// Names asked for of a lock beyond those it is known to have.
const SPARE_NAMES: usize = 8;
/// A lock that changes hands each time it is looked at is left for the next time after so many tries.
const TRIES: usize = 4;

/// One lock to be read.
pub(super) struct Job {
    name: LockName,
    /// Fields whose values are known to be short.
    fields: Vec<Vec<u8>>,
    /// Fields that cannot be a holder's, or whose values are too long to be a count.
    alien: Vec<Vec<u8>>,
    /// How many names to ask for.
    ask: usize,
    /// Whether to ask for the queue too, which an account may be denied that may read the lock.
    with_queue: bool,
}

impl Job {
    pub(super) fn new(name: LockName, fields: Vec<Vec<u8>>) -> Self {
        let ask = fields.len() + SPARE_NAMES;
        Self { name, fields, alien: Vec::new(), ask, with_queue: true }
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
        let mut commands =
            vec![cmd("MULTI"), command("HLEN", self.key()), names, command("PTTL", self.key())];
        if !self.fields.is_empty() {
            commands.push(values);
        }
        if self.with_queue {
            commands.push(command("TYPE", &keys::queue(&self.name)));
        }
        commands.push(cmd("EXEC"));
        commands
    }
}

/// Reads locks, again where their fields turn out to be others than thought.
pub(super) async fn transactions(
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
                let only_queue =
                    block.iter().rposition(Result::is_ok) == block.len().checked_sub(2);
                let refused = block.into_iter().find_map(Result::err);
                if job.with_queue && only_queue && refused.as_ref().is_some_and(concerns_key) {
                    again.push((Job { with_queue: false, ..job }, Vec::new()));
                    continue;
                }
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
    let (length, names, ttl) = (next()?, next()?, next()?);
    let values = if job.fields.is_empty() { None } else { Some(next()?) };
    let queued = job.with_queue && is_list(&Ok(next()?));
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
    let values = match values {
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
