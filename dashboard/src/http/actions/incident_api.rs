//! The release of an incident's locks by the API: an offer lists them, and a request to release them repeats the
//! offer's id.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::incident::{named, offer, releasable, requested};
use super::release::rejected;
use crate::clock::{SteadyMillis, millis};
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, VerifiedForm};
use crate::http::params::{IncidentParams, Params};
use crate::model::types::LockId;
use crate::release::batch::BatchRequest;
use crate::release::{Outcome, VALID};

/// The locks of an incident as of now, by whether they can be released together.
#[derive(Serialize, ToSchema)]
#[schema(as = IncidentReleaseOffer)]
pub(in crate::http) struct OfferJson {
    /// The id of the offer. It is valid for a minute, for this visitor, and for one release: a repeated request has its
    /// outcome.
    seen: String,
    #[serde(serialize_with = "crate::clock::as_wall")]
    valid_until: SteadyMillis,
    /// The locks to release. `count` of the request must be their number.
    locks: Vec<LockId>,
    left_out: Vec<LeftOutJson>,
    /// The number of locks beyond the 500 of one release.
    more: usize,
    /// The number of waiters for these locks, at least.
    waiting: u64,
    /// True if only the shape of some hashes shows that they are locks. The request must then have `unproven`.
    unproven: bool,
}

/// A lock that a release leaves as it is.
#[derive(Serialize, ToSchema)]
#[schema(as = LeftOut)]
struct LeftOutJson {
    lock: LockId,
    /// The reason, a sentence or clause.
    why: String,
}

/// The locks of an incident as of now, and which of them can be released together. Needs the `release` right.
#[utoipa::path(
    get,
    path = "/api/v1/incident/release",
    params(IncidentParams),
    responses(
        (status = 200, description = "The offer.", body = OfferJson),
        (status = 400, description = "A parameter is missing or wrong."),
        (status = 403, description = "The visitor lacks the right, or the dashboard runs without --allow-release."),
        (status = 404, description = "There is no such incident."),
        (status = 409, description = "It is a deadlock, of which one hold is to be released alone, or the holds have ended by themselves."),
    ),
)]
pub(in crate::http) async fn look(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Params<IncidentParams>,
) -> Result<Json<OfferJson>, ApiError> {
    let (releases, incident) = releasable(&app, &visitor, named(&app, params))?;
    let valid_until = SteadyMillis::now().plus(millis(VALID));
    let (seen, batch, more) = offer(&app, releases, &visitor, &incident).await;
    let left_out = batch.left_out.iter().cloned().map(|(lock, why)| LeftOutJson { lock, why });
    Ok(Json(OfferJson {
        seen,
        valid_until,
        locks: batch.offers.iter().map(|(offer, _)| offer.id.clone()).collect(),
        left_out: left_out.collect(),
        more,
        waiting: incident.waiting_for(batch.offers.iter().map(|(offer, _)| &*offer.view)),
        unproven: batch.is_unproven(),
    }))
}

/// The outcomes of a release of several locks.
#[derive(Serialize, ToSchema)]
#[schema(as = IncidentReleaseOutcomes)]
pub(in crate::http) struct OutcomesJson {
    outcomes: Vec<LockOutcomeJson>,
    /// The number of releases that are still under way; the events show their outcomes.
    running: usize,
}

/// The outcome for one lock.
#[derive(Serialize, ToSchema)]
#[schema(as = LockOutcome)]
struct LockOutcomeJson {
    lock: LockId,
    #[schema(schema_with = outcomes)]
    outcome: &'static str,
    detail: String,
}

fn outcomes() -> utoipa::openapi::Object {
    crate::schema::words(Outcome::SUCCEEDED.into_iter().chain(Outcome::FAILED))
}

/// Releases the locks that were offered, each if it has not changed since. The process that holds them is not stopped.
#[utoipa::path(
    post,
    path = "/api/v1/incident/release",
    params(IncidentParams),
    request_body = BatchRequest,
    responses(
        (status = 200, description = "The outcome for each lock, which may be that it was left as it is.", body = OutcomesJson),
        (status = 400, description = "A parameter is missing or wrong."),
        (
            status = 403,
            description = "The visitor lacks the right, the dashboard runs without --allow-release, or another site sent the \
                request.",
        ),
        (status = 404, description = "There is no such incident."),
        (status = 409, description = "It is a deadlock, the holds have ended by themselves, or the offer is no longer valid. Nothing was done."),
        (status = 413, description = "The body is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "Count or reason is wrong, or a member is missing. Nothing was done."),
        (status = 429, description = "Too many releases within the last minute. Nothing was done."),
    ),
)]
pub(in crate::http) async fn from_api(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Params<IncidentParams>,
    body: Result<Json<BatchRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    // A JSON body shows that no form of another site sent the request.
    let body = body.map(|Json(request)| VerifiedForm(request)).map_err(ApiError::from);
    let release = match requested(&app, &visitor, peer, params, body)?.release {
        Ok(release) => release,
        Err(error) => return Ok(rejected(&error)),
    };
    let done = release.outcomes().await;
    let running = release.size().saturating_sub(done.len());
    let outcomes = done.into_iter().map(|(lock, outcome)| LockOutcomeJson {
        lock,
        outcome: outcome.as_str(),
        detail: outcome.explained(),
    });
    Ok(Json(OutcomesJson { outcomes: outcomes.collect(), running }).into_response())
}
