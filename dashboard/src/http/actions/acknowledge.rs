//! Acknowledgements. An acknowledged problem is no longer listed first and is counted separately, until it ends or the
//! acknowledgement expires.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;

use super::lock_if_may;
use crate::access::rights::Right;
use crate::clock::{SteadyMillis, millis};
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, VerifiedForm};
use crate::http::page_request::PageRequest;
use crate::http::params::{LockParams, Params, end_instant};
use crate::model::types::{
    Acknowledgement, Delta, LockId, Observation, OperatorAction, ProblemKind,
};
use crate::release::{MAX_REASON, checked_reason};
use crate::views;

/// The longest time for which a problem can be acknowledged.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The longest wait until an acknowledgement is visible.
const SHOWN_WITHIN: Duration = Duration::from_secs(1);

/// The acknowledgement of a problem. Its end is given by either `for` or `until`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"problem": "leaked", "reason": "a long import", "for": "8h"}))]
pub struct AcknowledgeRequest {
    #[schema(value_type = ProblemKind)]
    problem: String,
    /// 3 to 500 characters on one line.
    #[schema(min_length = 3, max_length = 500)]
    reason: String,
    /// The time until its end, such as 8h; at most 30 days.
    #[serde(rename = "for")]
    duration: Option<String>,
    /// The instant of its end in UTC, at most 30 days ahead: 2026-11-21T03:12:00Z, or 03:12 for the next such time of day.
    until: Option<String>,
}

/// The problem whose acknowledgement ends.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"problem": "leaked"}))]
pub struct UnacknowledgeRequest {
    #[schema(value_type = ProblemKind)]
    problem: String,
}

/// The problem with the acknowledgement in force.
#[derive(Debug, Serialize, ToSchema)]
pub struct Acknowledged {
    problem: ProblemKind,
    acknowledged: Option<Acknowledgement>,
}

/// Parses the word for a problem.
fn problem_of(word: &str) -> Result<ProblemKind, ApiError> {
    ProblemKind::parse(word).ok_or_else(|| {
        let known = ProblemKind::ALL.map(ProblemKind::as_str).join(", ");
        unprocessable(format!("`problem` is not understood: expected one of {known}"))
    })
}

fn unprocessable(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

/// Returns the instant at which the acknowledgement ends.
fn end_of(request: &AcknowledgeRequest, now: SteadyMillis) -> Result<SteadyMillis, ApiError> {
    let until = match (&request.duration, &request.until) {
        (Some(text), None) => {
            let duration = humantime::parse_duration(text).map_err(|_| {
                unprocessable("`for` is not understood: expected, for example, 8h or 2d")
            })?;
            now.plus(millis(duration))
        }
        (None, Some(text)) => end_instant("until", text, now)?,
        _ => return Err(unprocessable("expected either `for` or `until`")),
    };
    // An instant in the past is zero milliseconds ahead.
    let ahead = until.millis_since(now);
    if ahead == 0 || u128::from(ahead) > LONGEST.as_millis() {
        return Err(unprocessable("the end must be in the future, within 30 days"));
    }
    Ok(until)
}

/// A visitor with the right to acknowledge the problems of a lock.
struct Caller<'a> {
    app: &'a App,
    visitor: &'a CurrentVisitor,
    peer: SocketAddr,
    id: LockId,
}

impl<'a> Caller<'a> {
    /// Checks the visitor's right, before any other part of the request.
    fn new(
        app: &'a App,
        visitor: &'a CurrentVisitor,
        peer: SocketAddr,
        params: Params<LockParams>,
    ) -> Result<Self, ApiError> {
        let id = lock_if_may(app, visitor, Right::Ack, params)?;
        Ok(Self { app, visitor, peer, id })
    }

    async fn acknowledge(
        self,
        request: &AcknowledgeRequest,
    ) -> Result<(LockId, Acknowledged), ApiError> {
        let problem = problem_of(&request.problem)?;
        let new = acknowledgement(request, self.visitor)?;
        let id = self.change(problem, Some(new.clone())).await?;
        Ok((id, Acknowledged { problem, acknowledged: Some(new) }))
    }

    async fn unacknowledge(
        self,
        request: &UnacknowledgeRequest,
    ) -> Result<(LockId, Acknowledged), ApiError> {
        let problem = problem_of(&request.problem)?;
        let id = self.change(problem, None).await?;
        Ok((id, Acknowledged { problem, acknowledged: None }))
    }

    /// Sets or ends the acknowledgement, and waits until the change is visible.
    async fn change(
        self,
        problem: ProblemKind,
        new: Option<Acknowledgement>,
    ) -> Result<LockId, ApiError> {
        let Self { app, visitor, peer, id } = self;
        let wanted = new.is_some();
        let was_acknowledged = is_acknowledged(app, &id, problem).ok_or_else(|| {
            let why = format!("the lock does not have the problem `{}`", problem.as_str());
            ApiError::new(StatusCode::NOT_FOUND, why)
        })?;
        if !wanted && !was_acknowledged {
            let why = "nobody has acknowledged this problem";
            return Err(ApiError::new(StatusCode::NOT_FOUND, why));
        }
        let mut changes = app.hub.changes();
        record(app, visitor, peer, &id, problem, new.map(Arc::new)).await?;
        until_shown(app, &mut changes, std::slice::from_ref(&id), problem, wanted).await;
        Ok(id)
    }
}

/// Acknowledges the same problem of several locks, and waits until that is visible. Locks that no longer have the problem,
/// or for which the visitor lacks the right, are left as they are.
///
/// # Errors
/// If the request is wrong, or a lock's database is not watched.
pub(super) async fn acknowledge_all(
    app: &App,
    visitor: &CurrentVisitor,
    peer: SocketAddr,
    ids: Vec<LockId>,
    request: &AcknowledgeRequest,
) -> Result<(), ApiError> {
    let problem = problem_of(&request.problem)?;
    let new = Arc::new(acknowledgement(request, visitor)?);
    let mut changes = app.hub.changes();
    let (state, visitor) = (app.clone(), visitor.clone());
    // It continues if the request is given up.
    let recorded = tokio::spawn(async move {
        let mut done = Vec::new();
        for id in ids {
            let has_it = is_acknowledged(&state, &id, problem).is_some();
            if has_it && visitor.needs_for(Right::Ack, &id).is_ok() {
                record(&state, &visitor, peer, &id, problem, Some(Arc::clone(&new))).await?;
                done.push(id);
            }
        }
        Ok::<_, ApiError>(done)
    });
    let done = recorded.await.map_err(|_| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "not all are acknowledged; the log says why",
        )
    })??;
    until_shown(app, &mut changes, &done, problem, true).await;
    Ok(())
}

/// Returns the acknowledgement that a request asks for.
fn acknowledgement(
    request: &AcknowledgeRequest,
    visitor: &CurrentVisitor,
) -> Result<Acknowledgement, ApiError> {
    let reason = checked_reason(&request.reason).map_err(|_| {
        unprocessable(format!("`reason` must have 3 to {MAX_REASON} characters on one line"))
    })?;
    let now = SteadyMillis::now();
    let until = end_of(request, now)?;
    let by = visitor.name().unwrap_or("someone").to_owned();
    Ok(Acknowledgement { by, reason: reason.to_owned(), at: now, until })
}

/// Returns true if a lock's problem is acknowledged, or `None` if the lock does not have the problem.
fn is_acknowledged(app: &App, id: &LockId, problem: ProblemKind) -> Option<bool> {
    let snapshot = app.hub.snapshot();
    let lock = snapshot.get(id)?;
    let view = lock.problems.iter().find(|view| view.problem == problem)?;
    Some(view.acknowledged.is_some())
}

/// Records the change of an acknowledgement in the log, the history and the model.
async fn record(
    app: &App,
    visitor: &CurrentVisitor,
    peer: SocketAddr,
    id: &LockId,
    problem: ProblemKind,
    acknowledgement: Option<Arc<Acknowledgement>>,
) -> Result<(), ApiError> {
    let (what, reason, outcome) = match &acknowledgement {
        Some(new) => ("acknowledged", &*new.reason, format!("until {}", new.until.to_wall())),
        None => ("unacknowledged", "no longer", "ended".to_owned()),
    };
    tracing::info!(
        deployment = &*id.deployment,
        db = id.db,
        lock = %id.name,
        problem = problem.as_str(),
        who = visitor.name(),
        from = %peer.ip(),
        reason,
        outcome,
        "problem {what}"
    );
    let action = OperatorAction {
        at: SteadyMillis::now(),
        who: visitor.name().unwrap_or("someone").to_owned(),
        from: peer.ip(),
        what,
        subject: problem.as_str().to_owned(),
        reason: reason.to_owned(),
        was: problem.as_str().to_owned(),
        outcome,
    };
    let Some(scope) = app.model.scope(&id.deployment, id.db) else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "this database is not watched"));
    };
    let (name, action) = (id.name.clone(), Box::new(action));
    let observation = Observation::Acknowledged { name, problem, acknowledgement, action };
    app.model.observe(scope, observation).await;
    Ok(())
}

/// Waits until the problem of each lock is acknowledged, or no longer is, in the published state: the visitor sees a page
/// of the locks next. `wanted` is true for an acknowledgement.
async fn until_shown(
    app: &App,
    changes: &mut Receiver<Arc<Delta>>,
    ids: &[LockId],
    problem: ProblemKind,
    wanted: bool,
) {
    let shown = async {
        for id in ids {
            while is_acknowledged(app, id, problem) == Some(!wanted) {
                if matches!(changes.recv().await, Err(RecvError::Closed)) {
                    return;
                }
            }
        }
    };
    if tokio::time::timeout(SHOWN_WITHIN, shown).await.is_err() {
        tracing::warn!(locks = ids.len(), "acknowledgement not shown yet");
    }
}

pub async fn from_page(
    page: PageRequest,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    params: Params<LockParams>,
    form: Result<VerifiedForm<AcknowledgeRequest>, ApiError>,
) -> Response {
    let response = async {
        let caller = Caller::new(&page.app, &page.visitor, peer, params)?;
        let VerifiedForm(request) = form?;
        let (id, _) = caller.acknowledge(&request).await?;
        Ok(Redirect::to(&views::lock_link(&id)).into_response())
    };
    page.answered(response.await)
}

pub async fn undo_from_page(
    page: PageRequest,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    params: Params<LockParams>,
    form: Result<VerifiedForm<UnacknowledgeRequest>, ApiError>,
) -> Response {
    let response = async {
        let caller = Caller::new(&page.app, &page.visitor, peer, params)?;
        let VerifiedForm(request) = form?;
        let problem = problem_of(&request.problem)?;
        // A second click finds that the first one has ended it.
        let id = match is_acknowledged(caller.app, &caller.id, problem) {
            Some(false) => caller.id,
            _ => caller.unacknowledge(&request).await?.0,
        };
        Ok(Redirect::to(&views::lock_link(&id)).into_response())
    };
    page.answered(response.await)
}

/// Acknowledges a problem of a lock. Needs the `ack` right.
#[utoipa::path(
    post,
    path = "/api/v1/acknowledge",
    params(LockParams),
    request_body = AcknowledgeRequest,
    responses(
        (status = 200, description = "Done.", body = Acknowledged),
        (status = 400, description = "A parameter is missing or wrong, or both name and name64 are given."),
        (status = 403, description = "The visitor lacks the right, or another site sent the request."),
        (status = 404, description = "The lock does not have this problem."),
        (status = 413, description = "The body is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "A member of the body is missing or wrong."),
    ),
)]
pub(in crate::http) async fn from_api(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Params<LockParams>,
    body: Result<Json<AcknowledgeRequest>, JsonRejection>,
) -> Result<Json<Acknowledged>, ApiError> {
    let caller = Caller::new(&app, &visitor, peer, params)?;
    let Json(request) = body?;
    Ok(Json(caller.acknowledge(&request).await?.1))
}

/// Ends an acknowledgement. Needs the `ack` right.
#[utoipa::path(
    post,
    path = "/api/v1/unacknowledge",
    params(LockParams),
    request_body = UnacknowledgeRequest,
    responses(
        (status = 200, description = "Done.", body = Acknowledged),
        (status = 400, description = "A parameter is missing or wrong, or both name and name64 are given."),
        (status = 403, description = "The visitor lacks the right, or another site sent the request."),
        (status = 404, description = "The lock does not have this problem, or nobody has acknowledged it."),
        (status = 413, description = "The body is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "A member of the body is missing or wrong."),
    ),
)]
pub(in crate::http) async fn undo_from_api(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Params<LockParams>,
    body: Result<Json<UnacknowledgeRequest>, JsonRejection>,
) -> Result<Json<Acknowledged>, ApiError> {
    let caller = Caller::new(&app, &visitor, peer, params)?;
    let Json(request) = body?;
    Ok(Json(caller.unacknowledge(&request).await?.1))
}
