//! The API for reading: one lock, sources.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::error::ApiError;
use super::params::{LockParams, Params, instant, understood};
use crate::archive::HoldersAt;
use crate::clock::SteadyMillis;
use crate::model::types::{Counts, LockId, LockView, Notice};
use crate::sources::refusal::Refusal;
use crate::sources::view::{Progress, ServerView, SourceView};
use crate::views::Subject;

/// The holders of a lock at an instant.
#[derive(Serialize, ToSchema)]
#[schema(as = Then)]
pub(super) struct PastJson {
    #[serde(flatten)]
    lock: LockId,
    #[serde(flatten)]
    answer: HoldersAt,
}

/// One lock, read now unless it was read within the last second; with `at`, its holders at that instant.
#[utoipa::path(
    get,
    path = "/api/v1/lock",
    params(
        LockParams,
        ("at" = Option<String>, Query, example = "-15m", description = "An instant in UTC: 2026-11-21T03:12:00Z, 03:12, or -15m. \
            Returns the holders at that instant, from the history that --history-dir keeps."),
    ),
    responses(
        (status = 200, description = "The lock, which may be free.", body = LockAnswer),
        (status = 400, description = "A parameter is missing or wrong, or both name and name64 are given."),
        (status = 404, description = "There is no such key, it is not a lock, or no history is kept."),
        (status = 503, description = "Its server cannot be read."),
    ),
)]
pub(super) async fn lock(
    State(app): State<App>,
    params: Params<LockParams>,
) -> Result<Json<LockAnswer>, ApiError> {
    let params = understood(params)?;
    let id = app.lock_id(&params)?;
    if let Some(at) = &params.at {
        let at = instant("at", at, SteadyMillis::now())?;
        let lock = id.clone();
        let answer = app.history(|archive| async move { archive.at(id, at).await }).await?;
        return Ok(Json(LockAnswer::Then(PastJson { lock, answer })));
    }
    match app.subject(&id).await {
        Subject::Known(lock) => Ok(Json(LockAnswer::Now(lock))),
        Subject::Absent { .. } => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "there is no such key, and no such lock is remembered",
        )),
        Subject::NoLock(what) => Err(ApiError::new(StatusCode::NOT_FOUND, what)),
        Subject::Unreadable(why) => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)),
    }
}

/// A lock as of now, or its holders at an instant.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum LockAnswer {
    Now(Arc<LockView>),
    Then(PastJson),
}

/// The state of the sources, and the limits of what they can see.
#[derive(Serialize, ToSchema)]
#[schema(as = Sources)]
pub(super) struct SourcesJson {
    sources: Vec<SourceView>,
    servers: Vec<ServerJson>,
    /// The progress of the first scan; null once it is complete.
    first_scan: Option<ScanJson>,
    counts: Counts,
    #[schema(value_type = Vec<Notice>)]
    notices: Arc<[Notice]>,
    limits: Vec<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Server)]
struct ServerJson {
    deployment: String,
    node: String,
    /// The server that the sentinels name, while it can be read; null without sentinels.
    master: Option<String>,
    /// The replica that is read in its place, with --read-from replica.
    replica: Option<String>,
    version: Option<String>,
    /// Null while the server can be read.
    down: Option<DownJson>,
    /// The policy by which it may evict locks, if it may.
    evicts: Option<String>,
    /// The error with which it refuses writes: OOM (writes that need memory), MISCONF or NOREPLICAS (all writes). Null
    /// if it accepts them, or if that is unknown.
    refuses: Option<&'static str>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Down)]
struct DownJson {
    #[serde(serialize_with = "crate::clock::as_wall")]
    since: SteadyMillis,
    reason: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ScanProgress)]
struct ScanJson {
    keys: u64,
    /// The number of all keys, if it is known.
    of: Option<u64>,
}

impl SourcesJson {
    pub(super) fn new(app: &App) -> Self {
        let chrome = app.chrome("");
        Self {
            sources: chrome.sources,
            servers: chrome.servers.into_iter().map(ServerJson::from).collect(),
            first_scan: chrome.first_scan.map(ScanJson::from),
            counts: chrome.counts,
            notices: Arc::clone(&app.hub.snapshot().notices),
            limits: app.limits(),
        }
    }
}

impl From<ServerView> for ServerJson {
    fn from(server: ServerView) -> Self {
        let ServerView { deployment, address, master, replica, version, down, evicts, refusal } =
            server;
        let down = down.map(|down| DownJson { since: down.since, reason: down.reason });
        let refuses = refusal.map(Refusal::error);
        Self { deployment, node: address, master, replica, version, down, evicts, refuses }
    }
}

impl From<Progress> for ScanJson {
    fn from(progress: Progress) -> Self {
        Self { keys: progress.seen, of: progress.of }
    }
}

/// The state of the sources, and the limits of what they can see.
#[utoipa::path(
    get,
    path = "/api/v1/sources",
    responses((status = 200, description = "Sources, servers, limits.", body = SourcesJson)),
)]
pub(super) async fn sources(State(app): State<App>) -> Json<SourcesJson> {
    Json(SourcesJson::new(&app))
}
