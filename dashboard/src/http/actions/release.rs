//! Forced releases, from the page and from the API: an offer shows the state, and a request for its release sends its
//! id back.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redisson::Moment;
use serde::Serialize;
use utoipa::ToSchema;

use super::lock_if_may;
use crate::access::rights::Right;
use crate::clock::{SteadyMillis, millis, now};
use crate::http::app::App;
use crate::http::error::{ApiError, rendered};
use crate::http::guard::{CurrentVisitor, VerifiedForm};
use crate::http::page_request::PageRequest;
use crate::http::params::{LockParams, Params};
use crate::model::actor::ReadingReply;
use crate::model::types::{LockId, LockView, Reading};
use crate::release::{
    Choice, Offer, Operator, Outcome, ReleaseError, ReleaseRequest, Releases, VALID,
};
use crate::views::{self, ReleasePage, ReleaseStep};

/// The `Retry-After` of rate-limited releases, seconds.
const RETRY_AFTER_SECS: u32 = 60;

/// The reason why a lock is not offered.
pub(super) const NOTHING_TO_RELEASE: &str =
    "There is nothing to release: the lock is free, and its queue has no dead entry.";

/// Returns the error of a dashboard that may not release locks.
pub(super) fn releases_off() -> ApiError {
    let why = "nothing is released here: this dashboard was started without --allow-release";
    ApiError::new(StatusCode::FORBIDDEN, why)
}

/// Returns the releases, if the visitor may release that lock.
fn allowed<'a>(
    app: &'a App,
    visitor: &CurrentVisitor,
    params: Params<LockParams>,
) -> Result<(&'a Arc<Releases>, LockId), ApiError> {
    match lock_if_may(app, visitor, Right::Release, params) {
        Err(error) if error.status == StatusCode::FORBIDDEN => Err(error),
        id => Ok((app.releases.as_ref().ok_or_else(releases_off)?, id?)),
    }
}

/// Returns the operator of a request to release, and records the request if they may not.
fn requested<'a>(
    app: &'a App,
    visitor: &CurrentVisitor,
    peer: SocketAddr,
    params: Params<LockParams>,
) -> Result<(&'a Arc<Releases>, LockId, Operator), ApiError> {
    let operator = Operator { name: visitor.shared_name(), from: peer.ip() };
    let subject = params.as_ref().ok().and_then(|Query(params)| app.lock_id(params).ok());
    match allowed(app, visitor, params) {
        Ok((releases, id)) => Ok((releases, id, operator)),
        Err(error) => {
            if let (Some(releases), Some(id)) = (&app.releases, subject) {
                releases.record_rejection(&id, &operator, &error.detail);
            }
            Err(error)
        }
    }
}

/// Reads a lock and offers the targets that can be released.
///
/// # Errors
/// If the lock cannot be read, or nothing of it can be released. The detail is a sentence.
pub(super) async fn read_offer(app: &App, id: &LockId) -> Result<Offer, ApiError> {
    let asked = now();
    let read = app.read_now(id).await;
    let read = read.map_err(|why| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why))?;
    offer_of(app, id, asked, read).map_err(|why| ApiError::new(StatusCode::NOT_FOUND, why))
}

fn offer_of(
    app: &App,
    id: &LockId,
    asked: Moment,
    ReadingReply { read_at, reading }: ReadingReply,
) -> Result<Offer, String> {
    if let Reading::Other(what) = &reading {
        return Err(format!("There is a key of this name, but it is not a lock: it is {what}."));
    }
    let known = app.hub.snapshot().get(id).cloned();
    let Some(view) = known else {
        let why = match reading {
            Reading::Lock { .. } => {
                "There is a key of this name, but this dashboard does not list it as a lock: its page says why."
            }
            Reading::Absent { .. } | Reading::Other(_) => NOTHING_TO_RELEASE,
        };
        return Err(why.to_owned());
    };
    Offer::new(view, reading, (asked, read_at)).ok_or_else(|| NOTHING_TO_RELEASE.to_owned())
}

/// Reads a lock and asks what to release, again after a mistake with the target and reason that were typed.
async fn ask(
    page: &PageRequest,
    releases: &Releases,
    id: &LockId,
    mistake: Option<String>,
    target: Option<String>,
    reason: String,
) -> ReleaseStep {
    match (read_offer(&page.app, id).await, mistake) {
        (Ok(offer), mistake) => {
            let (seen, offer) = releases.offer(offer, page.visitor.shared_name());
            ReleaseStep::Ask { offer, seen, mistake, target, reason }
        }
        (Err(error), None) => ReleaseStep::Nothing(error.detail),
        (Err(error), Some(mistake)) => {
            ReleaseStep::Nothing(format!("Nothing was done: {mistake}. {}", error.detail))
        }
    }
}

pub async fn page(page: PageRequest, params: Params<LockParams>) -> Response {
    let response = async {
        let (releases, id) = allowed(&page.app, &page.visitor, params)?;
        let step = ask(&page, releases, &id, None, None, String::new()).await;
        Ok(shown(StatusCode::OK, &page, id, step))
    };
    page.answered(response.await)
}

fn shown(status: StatusCode, page: &PageRequest, id: LockId, step: ReleaseStep) -> Response {
    rendered(status, views::release_page(&ReleasePage { chrome: page.chrome(), id, step }))
}

pub async fn from_page(
    page: PageRequest,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    params: Params<LockParams>,
    form: Result<VerifiedForm<ReleaseRequest>, ApiError>,
) -> Response {
    let response = async {
        let (releases, id, operator) = requested(&page.app, &page.visitor, peer, params)?;
        let VerifiedForm(request) = form.inspect_err(|error| {
            releases.record_rejection(&id, &operator, &error.detail);
        })?;
        let (status, step) = match releases.release(&id, &request, &operator).await {
            Ok(outcome) => (outcome_status(&outcome), ReleaseStep::Done(outcome)),
            Err(error) => {
                let (mistake, target) = (Some(error.to_string()), Some(request.target));
                let step = ask(&page, releases, &id, mistake, target, request.reason).await;
                (error_status(&error), step)
            }
        };
        Ok(shown(status, &page, id, step))
    };
    page.answered(response.await)
}

fn outcome_status(outcome: &Outcome) -> StatusCode {
    match outcome {
        Outcome::Released | Outcome::Removed | Outcome::Free | Outcome::NotQueued => StatusCode::OK,
        Outcome::Changed | Outcome::NoLock => StatusCode::CONFLICT,
        Outcome::Refused(_) => StatusCode::BAD_GATEWAY,
        Outcome::Unsent(_) | Outcome::Unread => StatusCode::SERVICE_UNAVAILABLE,
        Outcome::Unknown(_) => StatusCode::GATEWAY_TIMEOUT,
        Outcome::Limited => StatusCode::TOO_MANY_REQUESTS,
    }
}

pub(super) fn error_status(error: &ReleaseError) -> StatusCode {
    match error {
        ReleaseError::Stale => StatusCode::CONFLICT,
        ReleaseError::Limited => StatusCode::TOO_MANY_REQUESTS,
        ReleaseError::Name
        | ReleaseError::Count
        | ReleaseError::Reason
        | ReleaseError::Target
        | ReleaseError::Unproven => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// The state of a lock, and the targets of a release.
#[derive(Serialize, ToSchema)]
#[schema(as = ReleaseOffer)]
pub(in crate::http) struct OfferJson {
    /// The id of the offer. It is valid for a minute, for this visitor, and for one release: a repeated request has its
    /// outcome.
    seen: String,
    #[serde(serialize_with = "crate::clock::as_wall")]
    valid_until: SteadyMillis,
    /// `lock`, `holder:<id>` if there are several, `place:<id>` for dead entries of its queue.
    targets: Vec<String>,
    #[schema(value_type = LockView)]
    lock: Arc<LockView>,
    /// As inferred from the TTL; null if it is not renewed.
    #[serde(serialize_with = "crate::clock::as_wall")]
    last_renewal: Option<SteadyMillis>,
}

/// A lock as of now, and what of it can be released by force. Needs the `release` right.
#[utoipa::path(
    get,
    path = "/api/v1/release",
    params(LockParams),
    responses(
        (status = 200, description = "The offer.", body = OfferJson),
        (status = 400, description = "A parameter is missing or wrong, or both name and name64 are given."),
        (status = 403, description = "The visitor lacks the right, or the dashboard runs without --allow-release."),
        (status = 404, description = "There is nothing to release."),
        (status = 503, description = "The lock cannot be read."),
    ),
)]
pub(in crate::http) async fn look(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Params<LockParams>,
) -> Result<Json<OfferJson>, ApiError> {
    let (releases, id) = allowed(&app, &visitor, params)?;
    let offer = read_offer(&app, &id).await?;
    let valid_until = SteadyMillis::now().plus(millis(VALID));
    let (seen, offer) = releases.offer(offer, visitor.shared_name());
    Ok(Json(OfferJson {
        seen,
        valid_until,
        targets: offer.choices().iter().map(Choice::value).collect(),
        lock: Arc::clone(&offer.view),
        last_renewal: offer.renewed_at(),
    }))
}

#[derive(Serialize, ToSchema)]
#[schema(as = ReleaseOutcome)]
pub(in crate::http) struct OutcomeJson {
    #[schema(schema_with = outcomes)]
    outcome: &'static str,
    detail: String,
}

fn outcomes() -> utoipa::openapi::Object {
    crate::schema::words(Outcome::SUCCEEDED)
}

/// Ends the offered state, if it has not changed since. The process that holds the lock is not stopped.
#[utoipa::path(
    post,
    path = "/api/v1/release",
    params(LockParams),
    request_body = ReleaseRequest,
    responses(
        (status = 200, description = "It has ended, now or before.", body = OutcomeJson),
        (status = 400, description = "A parameter is missing or wrong, or both name and name64 are given."),
        (
            status = 403,
            description = "The visitor lacks the right, the dashboard runs without --allow-release, or another site sent the \
                request.",
        ),
        (status = 404, description = "There is no such deployment or database."),
        (
            status = 409,
            description = "It has changed, its problem is over, it is no longer a lock, or the offer is no longer valid. \
                Nothing was done.",
        ),
        (status = 413, description = "The body is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "Target, reason or name is wrong, or a member is missing. Nothing was done."),
        (status = 429, description = "Too many releases within the last minute. Nothing was done."),
        (status = 502, description = "Redis rejected it. Nothing was done."),
        (status = 503, description = "Redis cannot be reached, or the lock could not be read again. Nothing was done."),
        (
            status = 504,
            description = "The outcome is unknown: it may have been done, and may yet be, but only if the lock is then still as \
                offered.",
        ),
    ),
)]
pub(in crate::http) async fn from_api(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Params<LockParams>,
    body: Result<Json<ReleaseRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let (releases, id, operator) = requested(&app, &visitor, peer, params)?;
    let Json(request) = body.map_err(ApiError::from).inspect_err(|error| {
        releases.record_rejection(&id, &operator, &error.detail);
    })?;
    let outcome = match releases.release(&id, &request, &operator).await {
        Ok(outcome) => outcome,
        Err(error) => return Ok(rejected(&error)),
    };
    let status = outcome_status(&outcome);
    if status.is_success() {
        let body = OutcomeJson { outcome: outcome.as_str(), detail: outcome.explained() };
        return Ok((status, Json(body)).into_response());
    }
    Ok(limited(ApiError::new(status, outcome.explained()).with_outcome(&outcome)))
}

/// Returns the response to a request that is not carried out.
pub(super) fn rejected(error: &ReleaseError) -> Response {
    let answer = ApiError::new(error_status(error), error.to_string());
    limited(match error {
        ReleaseError::Limited => answer.with_outcome(&Outcome::Limited),
        _ => answer,
    })
}

/// Returns an error response. If there were too many releases, it names the time to wait.
fn limited(error: ApiError) -> Response {
    let is_limit = error.status == StatusCode::TOO_MANY_REQUESTS;
    let mut response = error.into_response();
    if is_limit {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECS));
    }
    response
}
