//! Problems that somebody has in hand: they leave the top and are counted apart, until they are over or their time is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{ConnectInfo, OriginalUri, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use redisson::name::is_invisible;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use crate::access::rights::Right;
use crate::clock::SteadyMillis;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, VerifiedForm};
use crate::http::pages::refused;
use crate::http::params::{LockParams, instant, understood};
use crate::model::types::{Acknowledgement, LockId, Observation, OperatorAction, ProblemKind};
use crate::release::MAX_REASON;
use crate::views;

/// The longest that a problem may be in hand.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How long to wait until it shows.
const PATIENCE: Duration = Duration::from_secs(1);

/// Which problem, why, and for how long: `for`, such as `8h`, or `until`, an instant.
#[derive(Debug, Deserialize)]
pub struct Word {
    problem: String,
    reason: String,
    #[serde(rename = "for")]
    duration: Option<String>,
    until: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Undo {
    problem: String,
}

fn kind(word: &str) -> Result<ProblemKind, ApiError> {
    ProblemKind::ALL.into_iter().find(|kind| kind.as_str() == word).ok_or_else(|| {
        let known = ProblemKind::ALL.map(ProblemKind::as_str).join(", ");
        unprocessable(format!("`problem` is none of {known}"))
    })
}

fn unprocessable(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

fn until(word: &Word, now: SteadyMillis) -> Result<SteadyMillis, ApiError> {
    let until = match (&word.duration, &word.until) {
        (Some(text), None) => {
            let duration = humantime::parse_duration(text)
                .map_err(|_| unprocessable("`for` is not understood: expected such as 8h or 2d"))?;
            let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            SteadyMillis(now.0.saturating_add(millis))
        }
        (None, Some(text)) => instant("until", text, now)?,
        _ => return Err(unprocessable("either `for` or `until` is needed")),
    };
    let ahead = until.0.saturating_sub(now.0);
    if ahead == 0 || u128::from(ahead) > LONGEST.as_millis() {
        return Err(unprocessable("the end must be to come, within 30 days"));
    }
    Ok(until)
}

async fn acknowledge(
    app: &App,
    visitor: &CurrentVisitor,
    peer: SocketAddr,
    params: Result<Query<LockParams>, QueryRejection>,
    word: &Word,
) -> Result<(LockId, Value), ApiError> {
    let reason = word.reason.trim();
    if !(3..=MAX_REASON).contains(&reason.chars().count())
        || reason.chars().any(|c| c.is_control() || is_invisible(c))
    {
        let why = format!("say why, in 3 to {MAX_REASON} characters on one line");
        return Err(unprocessable(why));
    }
    let (now, problem) = (SteadyMillis::now(), kind(&word.problem)?);
    let until = until(word, now)?;
    let by = visitor.name().unwrap_or("somebody").to_owned();
    let word = Acknowledgement { by, reason: reason.to_owned(), at: now, until };
    let outcome = format!("until {}", until.to_wall());
    let told = json!({"problem": problem, "acknowledged": &word});
    let id = change(app, visitor, peer, params, problem, Some(word), outcome).await?;
    Ok((id, told))
}

async fn change(
    app: &App,
    visitor: &CurrentVisitor,
    peer: SocketAddr,
    params: Result<Query<LockParams>, QueryRejection>,
    problem: ProblemKind,
    word: Option<Acknowledgement>,
    outcome: String,
) -> Result<LockId, ApiError> {
    let id = app.lock_id(&understood(params)?)?;
    let shows = |wanted: &dyn Fn(bool) -> bool| {
        let snapshot = app.hub.snapshot();
        let lock = snapshot.get(&id)?;
        let view = lock.problems.iter().find(|view| view.problem == problem)?;
        Some(wanted(view.acknowledged.is_some()))
    };
    let wanted = word.is_some();
    let known = shows(&|is| wanted || is).ok_or_else(|| {
        let why = format!("the lock has no problem `{}`, or no longer", problem.as_str());
        ApiError::new(StatusCode::NOT_FOUND, why)
    })?;
    if !known {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "nobody has acknowledged this problem"));
    }
    let what = if wanted { "acknowledged" } else { "unacknowledged" };
    let reason = word.as_ref().map_or_else(|| "no longer".to_owned(), |word| word.reason.clone());
    tracing::info!(
        deployment = &*id.deployment,
        db = id.db,
        lock = %id.name,
        problem = problem.as_str(),
        who = visitor.name(),
        from = %peer.ip(),
        reason,
        outcome,
        "a problem was {what}"
    );
    let act = OperatorAction {
        at: SteadyMillis::now(),
        who: visitor.name().unwrap_or("somebody").to_owned(),
        from: peer.ip(),
        what,
        subject: problem.as_str().to_owned(),
        reason,
        was: problem.as_str().to_owned(),
        outcome,
    };
    let Some(scope) = app.model.scope(&id.deployment, id.db) else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "this database is not looked at"));
    };
    let (name, action) = (id.name.clone(), Box::new(act));
    let acknowledgement = word.map(Arc::new);
    let mut changes = app.hub.changes();
    app.model
        .observe(scope, Observation::Acknowledged { name, problem, acknowledgement, action })
        .await;
    // Whoever asked looks at the lock next: it should show there.
    let shown = async {
        while shows(&|is| is == wanted) == Some(false) {
            if matches!(changes.recv().await, Err(RecvError::Closed)) {
                return;
            }
        }
    };
    if tokio::time::timeout(PATIENCE, shown).await.is_err() {
        tracing::warn!(lock = %id.name, "an acknowledgement does not show yet");
    }
    Ok(id)
}

pub async fn from_page(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
    form: Result<VerifiedForm<Word>, ApiError>,
) -> Response {
    let done = async {
        visitor.needs(Right::Ack)?;
        let VerifiedForm(word) = form?;
        acknowledge(&app, &visitor, peer, params, &word).await
    };
    match done.await {
        Ok((id, _)) => Redirect::to(&views::lock_link(&id)).into_response(),
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

pub async fn undo_from_page(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
    form: Result<VerifiedForm<Undo>, ApiError>,
) -> Response {
    let done = async {
        visitor.needs(Right::Ack)?;
        let VerifiedForm(undo) = form?;
        change(&app, &visitor, peer, params, kind(&undo.problem)?, None, "ended".to_owned()).await
    };
    match done.await {
        Ok(id) => Redirect::to(&views::lock_link(&id)).into_response(),
        Err(problem) => refused(&app, &uri, &visitor, &problem),
    }
}

/// `POST /api/v1/acknowledge`
///
/// # Errors
/// Where the visitor may not, the lock has no such problem, or something is not as it must be.
pub async fn from_api(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
    body: Result<Json<Word>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    visitor.needs(Right::Ack)?;
    let Json(word) = body.map_err(|error| ApiError::new(error.status(), error.body_text()))?;
    let (_, told) = acknowledge(&app, &visitor, peer, params, &word).await?;
    Ok(Json(told))
}

/// `POST /api/v1/unacknowledge`
///
/// # Errors
/// As [`from_api`].
pub async fn undo_from_api(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    visitor: CurrentVisitor,
    params: Result<Query<LockParams>, QueryRejection>,
    body: Result<Json<Undo>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    visitor.needs(Right::Ack)?;
    let Json(undo) = body.map_err(|error| ApiError::new(error.status(), error.body_text()))?;
    let problem = kind(&undo.problem)?;
    change(&app, &visitor, peer, params, problem, None, "ended".to_owned()).await?;
    Ok(Json(json!({"problem": problem, "acknowledged": null})))
}
