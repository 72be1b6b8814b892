//! Step-by-step checks of whether unknown keys can be locks.

use redisson::{LockName, keys, shape};

use super::call::{Caller, ReadError, command, redirect_of, send};
use super::findings::{Findings, Found};
use super::measure::{Measured, SAMPLE, measure};
use super::reply::{
    integer, is_of, not_a_lock, other_hash, permitted, strings, too_large, unreadable,
};
use super::transaction::Job;
use crate::model::types::{Companions, KnownParts, ReadRequest, Reading};

/// The number of keys in one large pipeline of single commands.
pub(super) const PROBES: usize = 200;

/// A hash with a lock's shape that never expires. Most are an application's; a lock that never expires is leaked.
#[derive(Debug, Clone, Copy)]
pub struct PossibleLock<'a> {
    pub name: &'a LockName,
    /// The names of some fields.
    pub fields: &'a [Vec<u8>],
}

/// The prior knowledge about keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// Nothing is known about the keys, so queues are checked too.
    Any,
    /// The keys were hashes a moment ago.
    Hashes,
}

/// Checks each key, step by step. Returns the keys that can be locks, except possible locks that `is_wanted` leaves
/// out. The other keys are added to the findings.
pub(super) async fn probe(
    caller: &mut impl Caller,
    requests: &[ReadRequest],
    kind: Keys,
    mut is_wanted: impl FnMut(PossibleLock<'_>) -> bool,
    findings: &mut Findings,
) -> Result<Vec<Job>, ReadError> {
    let facts = caller.facts().clone();
    let mut jobs = Vec::new();
    let hashes = match kind {
        Keys::Any => find_hashes(caller, requests, &mut jobs, findings).await?,
        // Hashes with at least three fields are counted below.
        Keys::Hashes => requests.iter().map(|it| (it.name.clone(), it.known.token)).collect(),
    };
    if hashes.is_empty() {
        return Ok(jobs);
    }
    let candidates = sample(caller, hashes, kind, findings).await?;
    let keys: Vec<_> = candidates.iter().map(|it| (&it.name, it.fields.as_slice())).collect();
    let (stamp, measured) = measure(caller, &keys).await?;
    for (candidate, measured) in candidates.into_iter().zip(measured) {
        let Candidate { name, fields, token } = candidate;
        let settled = fields.len() < SAMPLE;
        let known = KnownParts { fields, settled, token, ..KnownParts::default() };
        let Measured { count, lengths, expires } = match measured {
            Ok(measured) => measured,
            Err(redirect) => {
                findings.redirect(&facts, ReadRequest { name, known }, redirect);
                continue;
            }
        };
        if count > shape::MAX_FIELDS {
            findings.found.push(Found { name, stamp, reading: Reading::Other(too_large(count)) });
        } else if lengths.iter().any(|length| *length > shape::MAX_VALUE_LEN as u64) {
            findings.found.push(Found { name, stamp, reading: Reading::Other(not_a_lock()) });
        } else if expires || is_wanted(PossibleLock { name: &name, fields: &known.fields }) {
            jobs.push(Job::new(name, &known, &facts));
        }
    }
    Ok(jobs)
}

/// A hash with some of its fields, which are those of a lock.
struct Candidate {
    name: LockName,
    fields: Vec<Vec<u8>>,
    /// True if its token is read.
    token: bool,
}

/// Reads the names of some fields of these hashes, each with whether its token is read. Returns the hashes whose fields are
/// those of a lock. The other keys are added to the findings.
async fn sample(
    caller: &mut impl Caller,
    hashes: Vec<(LockName, bool)>,
    kind: Keys,
    findings: &mut Findings,
) -> Result<Vec<Candidate>, ReadError> {
    let commands = hashes.iter().map(|(name, _)| {
        let mut names = command("HRANDFIELD", name.as_bytes());
        names.arg(SAMPLE);
        names
    });
    let (stamp, replies) = send(caller, commands.collect()).await?;
    let mut candidates = Vec::new();
    for ((name, token), reply) in hashes.into_iter().zip(replies) {
        if let Some(redirect) = redirect_of(&reply) {
            let known = KnownParts { token, ..KnownParts::default() };
            findings.redirect(caller.facts(), ReadRequest { name, known }, redirect);
            continue;
        }
        let fields = permitted(reply)?.map(|value| strings(&value).unwrap_or_default());
        let reading = match fields {
            Ok(fields) if fields.is_empty() => {
                Reading::Absent { companions: Companions::default() }
            }
            Ok(fields)
                if fields.iter().all(|field| is_candidate(field, kind))
                    && shape::other_synchronizer(&fields).is_none() =>
            {
                candidates.push(Candidate { name, fields, token });
                continue;
            }
            Ok(fields) => Reading::Other(other_hash(&fields)),
            Err(error) => Reading::Other(unreadable(&error)),
        };
        findings.found.push(Found { name, stamp, reading });
    }
    Ok(candidates)
}

/// Returns the keys that are hashes with a bounded number of fields, each with whether its token is read. Jobs are
/// added for absent keys with a queue, with deadlines, or with readers that may have left markers. The other keys are
/// added to the findings.
async fn find_hashes(
    caller: &mut impl Caller,
    requests: &[ReadRequest],
    jobs: &mut Vec<Job>,
    findings: &mut Findings,
) -> Result<Vec<(LockName, bool)>, ReadError> {
    let facts = caller.facts().clone();
    let mut commands = Vec::with_capacity(requests.len() * 3);
    for ReadRequest { name, .. } in requests {
        commands.push(command("HLEN", name.as_bytes()));
        commands.push(command("TYPE", &keys::queue(name)));
        commands.push(command("TYPE", &keys::deadlines(name)));
    }
    let (stamp, replies) = send(caller, commands).await?;
    let mut replies = replies.into_iter();
    let mut hashes = Vec::new();
    for request in requests {
        let length = replies.next().ok_or(ReadError::UnexpectedReply("HLEN"))?;
        let companions = [replies.next(), replies.next()];
        if let Some(redirect) = redirect_of(&length) {
            findings.redirect(&facts, request.clone(), redirect);
            continue;
        }
        let mut queued = false;
        for (reply, of) in companions.into_iter().zip(["list", "zset"]) {
            queued |= is_of(&permitted(reply.ok_or(ReadError::UnexpectedReply("TYPE"))?)?, of);
        }
        let name = request.name.clone();
        let reading = match permitted(length)? {
            Ok(value) => match integer(&value).ok_or(ReadError::UnexpectedReply("HLEN"))? {
                0 if facts.may_read_companions()
                    && (queued || !request.known.readers.is_empty()) =>
                {
                    jobs.push(Job::of_remains(name, &request.known, queued, &facts));
                    continue;
                }
                0 => Reading::Absent { companions: Companions::default() },
                n if n > shape::MAX_FIELDS => Reading::Other(too_large(n)),
                _ => {
                    hashes.push((name, request.known.token));
                    continue;
                }
            },
            Err(error) => Reading::Other(unreadable(&error)),
        };
        findings.found.push(Found { name, stamp, reading });
    }
    Ok(hashes)
}

/// Returns whether a hash with that field is worth reading. A name that another source has reported may be held by an
/// unknown client with ids of any form. Among all hashes of a database, such fields would be the counters of
/// applications, so a scan requires a client's uuid in front.
fn is_candidate(field: &[u8], kind: Keys) -> bool {
    shape::is_lock_field(field)
        || match kind {
            Keys::Any => shape::is_foreign_field(field),
            Keys::Hashes => shape::has_client(field),
        }
}
