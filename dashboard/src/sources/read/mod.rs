//! Reads possible locks, without ever requesting a reply of unbounded size.
//!
//! For an unknown key, the number of fields is read, then three field names, then the lengths of their values and its
//! time to live. Only a hash that still looks like a lock is read. A scan, whose keys are all hashes, skips the first
//! step and counts the fields together with the lengths. A known lock is read at once, by its known fields: names in
//! bounded number, and values of fields whose lengths were read before. An unchanged lock is revalidated, see
//! [`revalidate`]. A whole reading is in one MULTI/EXEC, so that it never mixes two holders; locks without companions share
//! one, see [`together`]. Scripts are not used, so an observer's account needs no right to run them.

mod asking_link;
pub mod companions;
mod measure;
mod probe;
mod reply;
mod revalidate;
mod server_facts;
mod together;
mod transaction;

use redis::{Cmd, Pipeline, Value, cmd};
use redisson::LockName;
use service_kit::redis::{CallError, Link, Redirect, ServerError};
use thiserror::Error;

use crate::clock::{Time, now};
use crate::model::types::{KnownParts, Observation, ReadRequest, Reading, Source, Stamp};

pub use asking_link::AskingLink;
use probe::{Keys, PROBES, probe};
pub use reply::{UNPERMITTED_KEY, clock_micros, concerns_key, integer, strings, text};
pub use server_facts::ServerFacts;
use together::read_together;
use transaction::{Job, transactions};

/// The reason why nothing could be read.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    /// There was no reply, or a refusal that concerns more than one key.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The reply has an unexpected form.
    #[error("unexpected reply to {0}")]
    UnexpectedReply(&'static str),
}

/// A connection that sends commands, paced or not.
pub trait Caller: Send {
    /// Sends all commands at once.
    fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Result<Value, ServerError>>, CallError>> + Send;

    fn facts(&self) -> &ServerFacts;

    /// Returns the most that one call may read.
    fn call_size(&self) -> CallSize {
        CallSize::LARGE
    }
}

/// The limits of what one call reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSize {
    /// The number of keys visited by a SCAN.
    pub keys: usize,
    /// The number of hashes that are checked for a lock's shape.
    hashes: usize,
    /// The number of locks that are read as a whole.
    locks: usize,
}

impl CallSize {
    /// The limits for as few round trips as possible.
    pub const LARGE: Self = Self { keys: 200, hashes: 100, locks: 64 };
    /// The limits for less than a tenth of a millisecond of the server's time, for which other clients wait.
    pub const SHORT: Self = Self { keys: 100, hashes: 25, locks: 16 };

    /// Returns this part of each limit, at least one.
    #[must_use]
    pub fn percent(self, percent: usize) -> Self {
        let of = |limit: usize| (limit * percent / 100).max(1);
        Self { keys: of(self.keys), hashes: of(self.hashes), locks: of(self.locks) }
    }
}

/// An unpaced connection.
#[derive(Debug)]
pub struct Unpaced<'a>(pub &'a Link, pub &'a ServerFacts);

impl Caller for Unpaced<'_> {
    async fn send(
        &mut self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        self.0.pipeline(pipeline(commands)).await
    }

    fn facts(&self) -> &ServerFacts {
        self.1
    }
}

/// Returns the commands as one pipeline, which is sent as a whole and in order.
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
    pub name: LockName,
    pub stamp: Stamp,
    pub reading: Reading,
}

impl Found {
    /// Returns whether the account may not read this key, although it may read others.
    #[must_use]
    pub fn is_unpermitted(&self) -> bool {
        matches!(&self.reading, Reading::Other(what) if what == UNPERMITTED_KEY)
    }

    /// Returns the observation that a source reports.
    #[must_use]
    pub fn observed_by(self, source: Source) -> Observation {
        let Self { name, stamp, reading } = self;
        Observation::Read { name, stamp, source, reading }
    }
}

/// The results of reading keys.
#[derive(Debug, Default)]
pub struct Findings {
    pub found: Vec<Found>,
    /// The keys that another node serves. While a slot moves to it, only that node knows whether its keys exist.
    pub redirected: Vec<(ReadRequest, Redirect)>,
}

impl Findings {
    /// Adds a key that is on another node of the cluster.
    fn redirect(&mut self, facts: &ServerFacts, request: ReadRequest, redirect: Redirect) {
        facts.record_redirect();
        self.redirected.push((request, redirect));
    }
}

/// Reads keys. A lock that keeps changing during the reads is left out.
///
/// # Errors
/// Fails if the connection fails, or the account may not run one of the commands.
pub async fn read(
    caller: &mut impl Caller,
    requests: Vec<ReadRequest>,
) -> Result<Findings, ReadError> {
    let mut findings = Findings::default();
    let requests = revalidate::revalidate(caller, requests, &mut findings).await?;
    let (known, unknown): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| !request.known.fields.is_empty());
    let facts = caller.facts().clone();
    let jobs =
        known.into_iter().map(|request| Job::new(request.name, &request.known, &facts)).collect();
    let mut jobs = read_together(caller, jobs, &mut findings).await?;
    for requests in unknown.chunks(PROBES) {
        jobs.extend(probe(caller, requests, Keys::Any, |_| true, &mut findings).await?);
    }
    transactions(caller, jobs, &mut findings).await?;
    Ok(findings)
}

/// A hash with a lock's shape that never expires. Most are an application's; a lock that never expires is leaked.
#[derive(Debug, Clone, Copy)]
pub struct PossibleLock<'a> {
    pub name: &'a LockName,
    /// The names of some fields.
    pub fields: &'a [Vec<u8>],
}

/// Reads the hashes that have a lock's shape, except possible locks that `is_wanted` leaves out. The others are added to
/// `others`.
///
/// # Errors
/// Fails like [`read`].
pub async fn discover(
    caller: &mut impl Caller,
    names: &[LockName],
    mut is_wanted: impl FnMut(PossibleLock<'_>) -> bool,
    others: &mut Vec<Found>,
) -> Result<Findings, ReadError> {
    let mut findings = Findings::default();
    let mut jobs = Vec::new();
    let known = KnownParts { token: true, ..KnownParts::default() };
    for names in names.chunks(caller.call_size().hashes) {
        let request = |name: &LockName| ReadRequest { name: name.clone(), known: known.clone() };
        let requests: Vec<ReadRequest> = names.iter().map(request).collect();
        jobs.extend(probe(caller, &requests, Keys::Hashes, &mut is_wanted, &mut findings).await?);
    }
    let probed = findings.found.drain(..);
    others.extend(probed.filter(|found| matches!(found.reading, Reading::Other(_))));
    let jobs = read_together(caller, jobs, &mut findings).await?;
    transactions(caller, jobs, &mut findings).await?;
    Ok(findings)
}

/// Returns the redirect in a reply, if another node of the cluster has the key, or is about to.
fn redirect_of(reply: &Result<Value, ServerError>) -> Option<Redirect> {
    reply.as_ref().err()?.redirect()
}

fn command(verb: &str, key: &[u8]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(key);
    command
}

async fn send(
    caller: &mut impl Caller,
    commands: Vec<Cmd>,
) -> Result<(Stamp, Vec<Result<Value, ServerError>>), ReadError> {
    let sent = now();
    let replies = if commands.is_empty() { Vec::new() } else { caller.send(commands).await? };
    Ok((Stamp { sent, received: Time::now() }, replies))
}
