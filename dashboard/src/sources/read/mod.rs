//! Reads possible locks, without ever requesting a reply of unbounded size.
//!
//! For an unknown key, the number of fields is read, then three field names, then the lengths of their values and its
//! time to live. Only a hash that still looks like a lock is read. A scan, whose keys are all hashes, skips the first
//! step and counts the fields together with the lengths. A known lock is read at once, by its known fields: names in
//! bounded number, and values of fields whose lengths were read before. An unchanged lock is revalidated, see
//! [`revalidate`]. A whole reading is in one MULTI/EXEC, so that it never mixes two holders; locks without companions share
//! one, see [`together`]. Scripts are not used, so the observer needs no right to run them.

mod asking_link;
mod call;
pub mod companions;
mod findings;
mod measure;
mod probe;
mod reply;
mod revalidate;
mod server_facts;
mod together;
mod transaction;

use redisson::LockName;

use crate::model::types::{KnownParts, ReadRequest, Reading};

pub use asking_link::AskingLink;
pub use call::{CallSize, Caller, ReadError, Unpaced, pipeline};
pub use findings::{Findings, Found};
pub use probe::PossibleLock;
use probe::{Keys, PROBES, probe};
pub use reply::{UNPERMITTED_KEY, clock_micros, concerns_key, integer, strings, text};
pub use server_facts::ServerFacts;
use together::read_together;
use transaction::{Job, transactions};

/// Reads keys. A lock that keeps changing during the reads is left out.
///
/// # Errors
/// Fails if the connection fails, or the Redis user may not run one of the commands.
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
