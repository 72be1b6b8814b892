//! Batches: releases of all locks of an incident after one confirmation. Each lock is compared with the state that the
//! operator saw, as in a single release.

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::{
    Choice, Member, Offer, Operator, Outcome, ReleaseError, Releases, checked_reason, lock,
};
use crate::model::types::{LockId, ProblemKind};

/// The most locks of a batch.
pub const MAX_LOCKS: usize = 500;
/// The number of releases that run at once.
const AT_ONCE: usize = 8;

/// The locks of an incident in the state that an operator has seen.
#[derive(Debug)]
pub struct Batch {
    /// The deployment, problem and key of the incident.
    pub incident: (Arc<str>, ProblemKind, String),
    /// The locks that are released, each with its parts that end.
    pub offers: Vec<(Arc<Offer>, Vec<Choice>)>,
    /// The locks that are not released, each with the reason.
    pub left_out: Vec<(LockId, String)>,
}

impl Batch {
    /// Returns whether only the form of one of its keys shows that it is a lock.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.offers.iter().any(|(offer, _)| !offer.view.confirmed)
    }
}

/// Returns the parts of a lock that end with its incident: the hold of its only holder, or dead queue entries of a free
/// lock.
///
/// # Errors
/// If the operator has to choose among several holds, or if the lock now has another holder than the incident's. An
/// incident of a free lock has no holder.
pub fn choices(offer: &Offer, holder: Option<&str>) -> Result<Vec<Choice>, String> {
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
    /// Confirms that all keys are locks, although only the form of some shows it.
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

/// A batch that may be released.
#[derive(Debug)]
pub struct Confirmed {
    batch: Arc<Batch>,
    reason: String,
    operator: Operator,
}

impl Confirmed {
    /// Returns the number of outcomes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.batch.offers.iter().map(|(_, choices)| choices.len()).sum()
    }
}

impl Releases {
    /// Stores a batch. Returns its id, which is valid for [`VALID`](super::VALID), only for its operator, and only
    /// once.
    #[must_use]
    pub fn offer_batch(&self, batch: Batch, shown_to: Option<Arc<str>>) -> (String, Arc<Batch>) {
        let batch = Arc::new(batch);
        (lock(&self.batches).store(Arc::clone(&batch), shown_to, Instant::now()), batch)
    }

    /// Checks a request, and consumes its batch. The batch counts as one release for the limit of releases within a
    /// minute.
    ///
    /// # Errors
    /// Fails if the request is invalid. Then the rejection is recorded for the first lock.
    pub fn confirm_batch(
        &self,
        incident: &(Arc<str>, ProblemKind, String),
        request: &BatchRequest,
        operator: &Operator,
    ) -> Result<Confirmed, ReleaseError> {
        let batch = lock(&self.batches).get(&request.seen, operator, Instant::now());
        let batch = batch.filter(|batch| batch.incident == *incident);
        let checked = || {
            let batch = batch.clone().ok_or(ReleaseError::Stale)?;
            let reason = checked_reason(&request.reason)?.to_owned();
            if request.count != Some(batch.offers.len()) {
                return Err(ReleaseError::Count);
            }
            if batch.is_unproven() && !request.unproven {
                return Err(ReleaseError::Unproven);
            }
            // A batch that exceeds the limit can be requested again.
            if !self.release_limit.take() {
                return Err(ReleaseError::Limited);
            }
            if !lock(&self.batches).take(&request.seen) {
                return Err(ReleaseError::Stale);
            }
            Ok(Confirmed { batch, reason, operator: operator.clone() })
        };
        checked().inspect_err(|error| {
            let offers = batch.iter().flat_map(|batch| &batch.offers);
            for (offer, _) in offers.take(1) {
                let reason = request.reason.trim();
                self.record_rejection(&offer.id, operator, reason, &error.to_string());
            }
        })
    }

    /// Releases a batch, a few locks at a time, and sends each outcome. Continues if nobody receives them.
    pub async fn release_batch(&self, confirmed: &Confirmed, outcomes: &Sender<(LockId, Outcome)>) {
        let Confirmed { batch, reason, operator } = confirmed;
        let mut parts = Vec::new();
        for (offer, choices) in &batch.offers {
            parts.extend(choices.iter().map(|choice| (Arc::clone(offer), *choice)));
        }
        let releases = parts.into_iter().map(|(offer, choice)| async move {
            let outcome = self.send(&offer, &choice).await;
            self.report(&offer, &choice, reason, operator, &outcome).await;
            // The visitor may have disconnected.
            outcomes.send((offer.id.clone(), outcome)).await.unwrap_or_default();
        });
        futures_util::stream::iter(releases).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}
