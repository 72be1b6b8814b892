//! The API: what pages show, as JSON.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::app::{App, Span};
use super::csv;
use super::error::ApiError;
use super::params::{EventsParams, Format, LockParams, instant, understood};
use crate::archive::{Answer, Gap, MAX_EVENTS, Told};
use crate::clock::SteadyMillis;
use crate::model::types::LockId;
use crate::sources::view::{Progress, ServerView, SourceView};
use crate::views::{Counts, Subject};

/// `/api/v1/lock`
///
/// # Errors
/// Where there is no such lock, it cannot be read, or a parameter is not understood.
pub async fn lock(
    State(app): State<App>,
    params: Result<Query<LockParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let params = understood(params)?;
    let id = app.lock_id(&params)?;
    if let Some(at) = &params.at {
        let at = instant("at", at, SteadyMillis::now())?;
        let lock = id.clone();
        let answer = app.history(|archive| async move { archive.at(id, at).await }).await?;
        return Ok(Json(PastJson { lock, answer }).into_response());
    }
    match app.subject(&id).await {
        Subject::Known(lock) => Ok(Json(&*lock).into_response()),
        Subject::Absent { .. } => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "there is no such key, and no such lock is remembered",
        )),
        Subject::NoLock(what) => Err(ApiError::new(StatusCode::NOT_FOUND, what)),
        Subject::Unreadable(why) => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)),
    }
}

#[derive(Serialize)]
struct PastJson {
    #[serde(flatten)]
    lock: LockId,
    #[serde(flatten)]
    answer: Answer,
}

#[derive(Serialize)]
struct EventsJson {
    #[serde(serialize_with = "crate::clock::as_wall")]
    from: SteadyMillis,
    #[serde(serialize_with = "crate::clock::as_wall")]
    to: SteadyMillis,
    events: Vec<Told>,
    /// Whether there are more than are told here, after the last of them.
    cut: bool,
    gaps: Vec<Gap>,
}

/// `/api/v1/events`
///
/// # Errors
/// Where no history is kept, it cannot be read, or a parameter is not understood.
pub async fn events(
    State(app): State<App>,
    params: Result<Query<EventsParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let params = understood(params)?;
    let format = Format::parse(params.format.as_deref())?;
    if params.from.is_none() {
        return Err(ApiError::bad_request(
            "`from` is missing: an instant, such as 2026-11-21T03:12:00Z",
        ));
    }
    let span = app.span(&params, SteadyMillis::now())?;
    let newest_first = match params.order.as_deref() {
        None | Some("" | "asc") => false,
        Some("desc") => true,
        Some(_) => {
            return Err(ApiError::bad_request("`order` is not understood: expected asc or desc"));
        }
    };
    let Span { from, to, lock } = span;
    let events = app
        .history(|archive| async move { archive.between(lock, from, to, newest_first).await })
        .await?;
    if format == Format::Csv {
        // Whether there are more is not counted: one more than are told stands for them.
        let total = events.len() + usize::from(events.len() >= MAX_EVENTS);
        return Ok(csv::response("events", events, total));
    }
    let gaps = app.history(|archive| async move { archive.gaps(from, to).await }).await?;
    let cut = events.len() >= MAX_EVENTS;
    Ok(Json(EventsJson { from, to, events, cut, gaps }).into_response())
}

pub async fn sources(State(app): State<App>) -> Json<Value> {
    Json(sources_json(&app))
}

/// How the sources fare, and what they cannot see.
pub(super) fn sources_json(app: &App) -> Value {
    let chrome = app.chrome("");
    let sources: &[SourceView] = &chrome.sources;
    json!({
        "sources": sources,
        "servers": chrome.servers.iter().map(server).collect::<Vec<_>>(),
        "first_scan": chrome.first_scan.map(progress),
        "counts": counts(chrome.counts),
        "notices": &*app.hub.snapshot().notices,
        "limits": app.limits(),
    })
}

fn server(server: &ServerView) -> Value {
    json!({
        "deployment": server.deployment,
        "node": server.address,
        "master": server.master,
        "replica": server.replica,
        "version": server.version,
        "down": server.down.as_ref().map(|down| json!({"since": down.since.to_wall(), "reason": down.reason})),
        "evicts": server.evicts,
    })
}

fn progress(progress: Progress) -> Value {
    json!({"keys": progress.seen, "of": progress.of})
}

fn counts(counts: Counts) -> Value {
    json!({
        "held": counts.held,
        "with_problems": counts.with_problems,
        "acknowledged": counts.acknowledged,
        "unconfirmed": counts.unconfirmed,
        "unknown": counts.unknown,
        "not_kept": counts.not_kept,
    })
}

pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::{Ending, ProblemKind, Source};
    use crate::sources::view::SourceState;

    fn sorted(mut words: Vec<&str>) -> Vec<&str> {
        words.sort_unstable();
        words
    }

    #[test]
    fn the_description_has_every_word_that_is_used() {
        let api: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let words = |pointer: &str| -> Vec<String> {
            let list = api.pointer(&format!("/components/schemas/{pointer}/enum"));
            let list = list.and_then(Value::as_array).unwrap_or_else(|| panic!("{pointer}"));
            let words = list.iter().filter_map(Value::as_str).map(str::to_owned);
            let mut words: Vec<String> = words.collect();
            words.sort_unstable();
            words
        };
        let problems = sorted(ProblemKind::ALL.map(ProblemKind::as_str).to_vec());
        for of in ["LockProblem", "ProblemOfLock", "AcknowledgeWish", "UnacknowledgeWish"] {
            assert_eq!(words(&format!("{of}/properties/problem")), problems, "{of}");
        }
        let sources = sorted(Source::ALL.map(Source::as_str).to_vec());
        for of in ["Lock/properties/sources/items", "Evidence/properties/source"] {
            assert_eq!(words(of), sources, "{of}");
        }
        assert_eq!(words("Event/properties/source"), sources);
        let states = sorted(SourceState::ALL.map(SourceState::as_str).to_vec());
        assert_eq!(words("Source/properties/state"), states);
        let endings = Ending::ALL.map(Ending::as_str).into_iter().chain(["unseen"]).collect();
        assert_eq!(words("PastHold/properties/ended"), sorted(endings));
    }
}
