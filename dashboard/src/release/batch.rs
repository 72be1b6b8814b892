//! Batches: releases of all locks of an incident after one confirmation. Each lock is compared with the state that the
//! operator saw, as in a single release.

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::sync::watch::Sender;
use tokio::time::Instant;

use super::offer::{Outcomes, StartOutcome};
use super::{Choice, Member, Offer, Operator, ReleaseError, Releases, Running, checked_reason};
use crate::model::types::LockId;
use crate::query::incidents::IncidentRow;

/// The maximum number of locks of a batch.
pub const MAX_LOCKS: usize = 500;
/// The number of releases that run at once.
const AT_ONCE: usize = 8;

/// The locks of an incident in the state that an operator has seen.
#[derive(Debug)]
pub struct Batch {
    /// The incident as it was shown.
    pub incident: IncidentRow,
    /// The locks that are released, each with its parts that end.
    pub offers: Vec<(Arc<Offer>, Vec<Choice>)>,
    /// The locks that are not released, each with the reason.
    pub left_out: Vec<(LockId, String)>,
}

impl Batch {
    /// Returns whether only the shape of one of its keys shows that it is a lock.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.offers.iter().any(|(offer, _)| !offer.view.confirmed)
    }
}

/// Returns the parts of a lock that end with its incident: the hold of its only holder, or dead queue entries of a free
/// lock.
///
/// # Errors
/// If the lock no longer has the problem, if the operator has to choose among several holds, or if the lock now has another
/// holder than the incident's. An incident of a free lock has no holder.
pub fn choices(offer: &Offer, holder: Option<&str>) -> Result<Vec<Choice>, String> {
    if !offer.has_problem(&offer.view) {
        return Err("it no longer has this problem".to_owned());
    }
    let Some(hash) = &offer.hash else {
        return Ok(offer.choices());
    };
    let holders = hash.holders_as_text();
    match holders.as_slice() {
        [(only, _)] if holder.is_some_and(|holder| *only == *holder) => Ok(vec![Choice::Lock]),
        [_] => Err("another holder has it now".to_owned()),
        _ => Err("it has several holders: release it from its own page".to_owned()),
    }
}

/// A confirmed request for the release of a batch.
#[derive(Debug, Clone, serde::Deserialize, utoipa::ToSchema)]
#[schema(as = IncidentReleaseRequest)]
pub struct BatchRequest {
    /// The id of the offer.
    #[schema(min_length = 1)]
    pub seen: String,
    /// 3 to 500 characters on one line.
    #[schema(min_length = 3, max_length = 500)]
    pub reason: String,
    /// The number of the offered locks, to confirm it.
    #[serde(deserialize_with = "count")]
    #[schema(value_type = usize)]
    pub count: Option<usize>,
    /// Confirms that all keys are locks, although only the shape of some shows it.
    #[serde(default, deserialize_with = "super::flag")]
    pub unproven: bool,
}

/// Reads a number, or returns `None` if the field of a form contains none.
fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    Ok(match serde::Deserialize::deserialize(deserializer)? {
        Member::Json(count) => Some(count),
        Member::Form(text) => text.trim().parse().ok(),
    })
}

impl Releases {
    /// Stores a batch. Returns its id, which is valid for [`VALID`](super::VALID), only for its operator, and only
    /// once.
    #[must_use]
    pub fn offer_batch(&self, batch: Batch, shown_to: Option<Arc<str>>) -> (String, Arc<Batch>) {
        let batch = Arc::new(batch);
        (self.batches.lock().store(Arc::clone(&batch), shown_to, Instant::now()), batch)
    }

    /// Returns the locks of that batch, none if it is not valid.
    #[must_use]
    pub fn offered_in_batch(&self, seen: &str, operator: &Operator) -> Vec<LockId> {
        let batch = self.batches.lock().get(seen, operator, Instant::now());
        let offers = batch.iter().flat_map(|batch| &batch.offers);
        offers.map(|(offer, _)| offer.id.clone()).collect()
    }

    /// Returns the release that was begun with that batch, and its incident as it was shown.
    #[must_use]
    pub fn begun_batch(&self, seen: &str, operator: &Operator) -> Option<(IncidentRow, Running)> {
        let batches = self.batches.lock();
        let batch = batches.get(seen, operator, Instant::now())?;
        Some((batch.incident.clone(), batches.begun(seen)?))
    }

    /// Checks a request, and begins to release its batch, which continues if nobody waits for it. The batch counts as one
    /// release for the limit of releases within a minute. A repeated request returns the release that the first one began.
    ///
    /// # Errors
    /// Fails if the request is invalid. Then the rejection is recorded for the first lock.
    pub fn release_batch(
        self: &Arc<Self>,
        incident: &IncidentRow,
        request: &BatchRequest,
        operator: &Operator,
    ) -> Result<Running, ReleaseError> {
        let now = Instant::now();
        let batch = self.batches.lock().get(&request.seen, operator, now);
        let batch = batch.filter(|batch| incident.continues(&batch.incident));
        let checked = || {
            let batch = batch.ok_or(ReleaseError::Stale)?;
            let reason = checked_reason(&request.reason)?.to_owned();
            if request.count != Some(batch.offers.len()) {
                return Err(ReleaseError::Count);
            }
            if batch.is_unproven() && !request.unproven {
                return Err(ReleaseError::Unproven);
            }
            let size = batch.offers.iter().map(|(_, choices)| choices.len()).sum();
            let limit = &self.release_limit;
            match self.batches.lock().begin(&request.seen, (None, size), limit, now)? {
                StartOutcome::Before(running) => Ok(running),
                StartOutcome::Now(outcomes, running) => {
                    let (this, operator) = (Arc::clone(self), operator.clone());
                    tokio::spawn(async move {
                        this.release_all(&batch, &reason, &operator, &outcomes).await;
                    });
                    Ok(running)
                }
            }
        };
        checked().inspect_err(|error| {
            self.record_error(&incident.first().0.id, operator, &request.reason, error);
        })
    }

    /// Releases the locks of a batch, a few at a time, and sends each outcome.
    async fn release_all(
        &self,
        batch: &Batch,
        reason: &str,
        operator: &Operator,
        outcomes: &Sender<Outcomes>,
    ) {
        let mut parts = Vec::new();
        for (offer, choices) in &batch.offers {
            parts.extend(choices.iter().map(|choice| (Arc::clone(offer), *choice)));
        }
        let releases = parts.into_iter().map(|(offer, choice)| async move {
            let outcome = self.send(&offer, &choice).await;
            self.report(&offer, &choice, reason, operator, &outcome).await;
            outcomes.send_modify(|all| all.push((offer.id.clone(), outcome)));
        });
        futures_util::stream::iter(releases).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}
