//! Reading keys that may be locks, without ever asking for a reply of unknown size.
//!
//! A key not known as a lock is asked for its number of fields, then for three names (a pass, to which all keys are hashes, asks
//! for both at once), then for the lengths of their values; only what still looks like a lock is read. A key known as one is read at once, by the fields it had: names
//! in bounded number, values of fields whose lengths were asked before. One that is probably as it was is asked in short, see
//! [`revalidate`]. What a whole reading consists of comes from one
//! MULTI/EXEC, so that it never mixes two holders. No script is used: an observer's account needs no right to run any.

mod asking_link;
pub mod companions;
mod probe;
mod reply;
mod revalidate;
mod server_facts;
mod transaction;

use redis::{Cmd, Pipeline, Value, cmd};
use redisson::LockName;
use service_kit::redis::{CallError, Link, Redirect, ServerError};
use thiserror::Error;

use crate::clock::{SteadyMillis, now};
use crate::model::types::{KnownParts, ReadRequest, Reading, Stamp};

pub use asking_link::AskingLink;
use probe::{Keys, PROBES, probe};
pub use reply::{clock_micros, integer, strings};
pub use server_facts::ServerFacts;
use transaction::{Job, transactions};

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

    /// What was learnt of the server meanwhile.
    fn facts(&self) -> &ServerFacts;
}

/// A link at its own pace.
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
    pub name: LockName,
    pub stamp: Stamp,
    pub reading: Reading,
}

/// What came of asking for keys.
#[derive(Debug, Default)]
pub struct Findings {
    /// Those that were read.
    pub found: Vec<Found>,
    /// Those that this server does not serve, or not any more: where the slot is on its way to that node, only that node
    /// knows whether they exist.
    pub led_on: Vec<(ReadRequest, Redirect)>,
}

impl Findings {
    /// A key is at another node of the cluster.
    fn lead_on(&mut self, facts: &ServerFacts, request: ReadRequest, redirect: Redirect) {
        facts.note_redirect();
        self.led_on.push((request, redirect));
    }
}

/// Reads keys. What could not be read for good because it kept changing is left out.
///
/// # Errors
/// When the connection fails, or the account may not run a command at all.
pub async fn read(
    caller: &mut impl Caller,
    requests: Vec<ReadRequest>,
) -> Result<Findings, ReadError> {
    let mut findings = Findings::default();
    let requests = revalidate::revalidate(caller, requests, &mut findings).await?;
    let (known, unknown): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| !request.known.fields.is_empty());
    let facts = caller.facts().clone();
    let mut jobs: Vec<Job> =
        known.into_iter().map(|request| Job::new(request.name, &request.known, &facts)).collect();
    for requests in unknown.chunks(PROBES) {
        jobs.extend(probe(caller, requests, Keys::Any, &mut findings).await?);
    }
    transactions(caller, jobs, &mut findings).await?;
    Ok(findings)
}

/// Reads those of the keys, which a scan says are hashes, that have a lock's form. The others are `left`.
///
/// # Errors
/// As [`read`].
pub async fn discover(
    caller: &mut impl Caller,
    names: &[LockName],
    left: &mut Vec<LockName>,
) -> Result<Findings, ReadError> {
    let mut findings = Findings::default();
    let mut jobs = Vec::new();
    let known = KnownParts { token: true, ..KnownParts::default() };
    // Two commands each: a part is to hold up nobody for longer.
    for names in names.chunks(PROBES / 2) {
        let request = |name: &LockName| ReadRequest { name: name.clone(), known: known.clone() };
        let requests: Vec<ReadRequest> = names.iter().map(request).collect();
        jobs.extend(probe(caller, &requests, Keys::Hashes, &mut findings).await?);
    }
    let others = findings.found.drain(..);
    for other in others.filter(|found| matches!(found.reading, Reading::Other(_))) {
        left.push(other.name);
    }
    transactions(caller, jobs, &mut findings).await?;
    Ok(findings)
}

/// Which other node of a cluster has the key, or is about to: then nothing was learnt of it.
fn elsewhere(reply: &Result<Value, ServerError>) -> Option<Redirect> {
    reply.as_ref().err()?.redirect()
}

fn command(verb: &str, key: &[u8]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(key);
    command
}

async fn ask(
    caller: &mut impl Caller,
    commands: Vec<Cmd>,
) -> Result<(Stamp, Vec<Result<Value, ServerError>>), ReadError> {
    let sent = now();
    let replies = caller.send(commands).await?;
    Ok((Stamp { sent, received: now(), steady: SteadyMillis::now() }, replies))
}
