//! Releases by force, from the page and for machines: look first, then send back what was seen.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{ConnectInfo, OriginalUri, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::access::rights::Right;
use crate::clock::{SteadyMillis, now};
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, VerifiedForm};
use crate::http::pages::{address, refused, rendered};
use crate::http::params::{LockParams, understood};
use crate::model::actor::ReadingReply;
use crate::model::types::{LockId, Reading};
use crate::release::{Asker, Choice, Mistake, Offer, Outcome, Releases, VALID, Wish};
use crate::views::{self, ReleasePage, ReleaseStep};

/// After how many seconds to try again where there were too many.
const AGAIN_SECS: u32 = 60;

fn allowed<'a>(app: &'a App, visitor: &CurrentVisitor) -> Result<&'a Releases, ApiError> {
    visitor.needs(Right::Release)?;
    app.releases.as_ref().ok_or_else(|| {
        let why = "nothing is released here: this dashboard was started without --allow-release";
        ApiError::new(StatusCode::FORBIDDEN, why)
    })
}

/// The lock as it is just now, to be acted on; or a sentence that says why there is nothing to act on.
async fn offered(app: &App, id: &LockId, visitor: &CurrentVisitor) -> Result<Offer, String> {
    let asked = now();
    let ReadingReply { read_at, reading } = app.read_now(id).await?;
    if let Reading::Other(what) = &reading {
        return Err(format!("There is a key of this name, but it is no lock: it is {what}."));
    }
    let known = app.hub.snapshot().get(id).cloned();
    let Some(view) = known else {
        return Err("Nobody holds this lock, and nobody dead stands in its queue.".to_owned());
    };
    if !view.confirmed {
        let why = "Only its form says that this is a lock: what is not confirmed is not released.";
        return Err(why.to_owned());
    }
    Offer::new(view, reading, (asked, read_at), visitor.shared_name())
        .ok_or_else(|| "Nobody holds this lock, and nobody dead stands in its queue.".to_owned())
}

async fn step(
    app: &App,
    releases: &Releases,
    id: &LockId,
    visitor: &CurrentVisitor,
) -> ReleaseStep {
    match offered(app, id, visitor).await {
        Ok(offer) => {
            let (seen, offer) = releases.offer(offer);
            ReleaseStep::Ask { offer, seen, mistake: None, target: None, reason: String::new() }
        }
        Err(why) => ReleaseStep::Nothing(why),
    }
}

pub async fn page(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
) -> Response {
    let page = async {
        let releases = allowed(&app, &visitor)?;
        let id = app.lock_id(&understood(params)?)?;
        let step = step(&app, releases, &id, &visitor).await;
        Ok(ReleasePage { chrome: app.chrome(&address(&uri)), id, step })
    };
    match page.await {
        Ok(page) => shown(StatusCode::OK, page, &visitor),
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

fn shown(status: StatusCode, mut page: ReleasePage, visitor: &CurrentVisitor) -> Response {
    visitor.sign(&mut page.chrome);
    rendered(status, views::release_page(&page))
}

pub async fn from_page(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
    form: Result<VerifiedForm<Wish>, ApiError>,
) -> Response {
    let page = async {
        let releases = allowed(&app, &visitor)?;
        let id = app.lock_id(&understood(params)?)?;
        let VerifiedForm(wish) = form?;
        let asker = Asker { name: visitor.shared_name(), from: peer.ip() };
        let (status, step) = match releases.release(&id, &wish, &asker).await {
            Ok(outcome) => (status(&outcome), ReleaseStep::Done(outcome)),
            // What was typed stays; what is shown is as it is now.
            Err(mistake) => {
                let step = match step(&app, releases, &id, &visitor).await {
                    ReleaseStep::Ask { offer, seen, .. } => ReleaseStep::Ask {
                        offer,
                        seen,
                        mistake: Some(mistake.to_string()),
                        target: Some(wish.target),
                        reason: wish.reason,
                    },
                    other => other,
                };
                (mistaken(&mistake), step)
            }
        };
        Ok((status, ReleasePage { chrome: app.chrome(&address(&uri)), id, step }))
    };
    match page.await {
        Ok((status, page)) => shown(status, page, &visitor),
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

fn status(outcome: &Outcome) -> StatusCode {
    match outcome {
        Outcome::Released | Outcome::Free => StatusCode::OK,
        Outcome::Changed | Outcome::NoLock => StatusCode::CONFLICT,
        Outcome::Refused(_) => StatusCode::BAD_GATEWAY,
        Outcome::Unsent(_) => StatusCode::SERVICE_UNAVAILABLE,
        Outcome::Unknown(_) => StatusCode::GATEWAY_TIMEOUT,
        Outcome::Limited => StatusCode::TOO_MANY_REQUESTS,
    }
}

fn mistaken(mistake: &Mistake) -> StatusCode {
    match mistake {
        Mistake::Stale => StatusCode::CONFLICT,
        Mistake::Name | Mistake::Reason | Mistake::Target => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// `GET /api/v1/release`: what can be released, and the word by which to say so.
///
/// # Errors
/// Where the visitor may not, the lock is not known, or there is nothing to release.
pub async fn look(
    State(app): State<App>,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let releases = allowed(&app, &visitor)?;
    let id = app.lock_id(&understood(params)?)?;
    let offer = offered(&app, &id, &visitor).await;
    let offer = offer.map_err(|why| ApiError::new(StatusCode::NOT_FOUND, why))?;
    let until = SteadyMillis(SteadyMillis::now().0 + VALID.as_secs() * 1_000);
    let (seen, offer) = releases.offer(offer);
    let targets: Vec<String> = offer.choices().iter().map(Choice::value).collect();
    Ok(Json(json!({
        "seen": seen,
        "valid_until": until.to_wall(),
        "targets": targets,
        "lock": &*offer.view,
        "last_renewal": offer.renewed_at().map(SteadyMillis::to_wall),
    })))
}

/// `POST /api/v1/release`
///
/// # Errors
/// Where nothing was done, or nobody knows.
pub async fn from_api(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
    body: Result<Json<Wish>, JsonRejection>,
) -> Result<Response, ApiError> {
    let releases = allowed(&app, &visitor)?;
    let id = app.lock_id(&understood(params)?)?;
    let Json(wish) = body.map_err(|error| ApiError::new(error.status(), error.body_text()))?;
    let asker = Asker { name: visitor.shared_name(), from: peer.ip() };
    let outcome = releases.release(&id, &wish, &asker).await;
    let outcome =
        outcome.map_err(|mistake| ApiError::new(mistaken(&mistake), mistake.to_string()))?;
    let status = status(&outcome);
    if status.is_success() {
        let told = json!({"outcome": outcome.as_str(), "detail": outcome.explained()});
        return Ok((status, Json(told)).into_response());
    }
    let mut response = ApiError::new(status, outcome.explained())
        .with("outcome", outcome.as_str())
        .into_response();
    if outcome == Outcome::Limited {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(AGAIN_SECS));
    }
    Ok(response)
}
