//! The state that all handlers share: the model, and the data for pages.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use redisson::LockName;
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::params::{EventsParams, LockParams, instant, name_of_base64, non_blank};
use super::streams::Streams;
use super::viewers::Viewers;
use crate::archive::Reader;
use crate::clock::SteadyMillis;
use crate::metrics::StreamMetrics;
use crate::model::actor::{Hub, ModelHandle, ReadingReply};
use crate::model::types::{LockId, Reading};
use crate::query::shared_pages::SharedPages;
use crate::release::Releases;
use crate::sources::status::Sources;
use crate::text::counted;
use crate::views::{Chrome, Subject};

/// A lock that is requested by name is read again unless its last read is younger than this, in milliseconds.
const FRESH_MS: u64 = 1_000;
/// The time limit for that read.
const PATIENCE: Duration = Duration::from_millis(800);
/// The default span of past events, milliseconds.
const USUAL_SPAN_MS: u64 = 3_600_000;

/// Everything that handlers need. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Inner>);

/// The parts of the settings that pages and bundles show.
#[derive(Debug, Default)]
pub struct PageSettings {
    pub environment: Option<String>,
    /// The note at the head of every page.
    pub note: Option<String>,
    /// The settings, without secrets.
    pub settings: serde_json::Value,
}

/// The parts of an [`App`].
#[derive(Debug)]
pub struct Inner {
    /// The published state of the model.
    pub hub: Arc<Hub>,
    /// The handle to the model.
    pub model: ModelHandle,
    /// The states of the sources.
    pub sources: Arc<Sources>,
    /// The parts of the settings that pages and bundles show.
    pub about: PageSettings,
    pub streams: Streams,
    /// The locks that visitors look at.
    pub viewers: Viewers,
    /// The history, if one is stored.
    pub archive: Option<Reader>,
    /// The forced releases, if the settings allow them.
    pub releases: Option<Arc<Releases>>,
    pub stop: CancellationToken,
    /// Distinguishes the ids of this process's pictures from those of an earlier one.
    pub epoch: String,
    /// The pages of locks that several readers share.
    pub pages: SharedPages,
}

/// The subject of a request for past events.
#[derive(Debug, Clone)]
pub struct Span {
    pub from: SteadyMillis,
    pub to: SteadyMillis,
    /// The lock, or `None` for all locks.
    pub lock: Option<LockId>,
}

/// Returns the span of a request for past events. The default is the hour until `now`.
///
/// # Errors
/// If an instant is malformed, or the two are in the wrong order.
pub(super) fn span_of(
    params: &EventsParams,
    now: SteadyMillis,
) -> Result<(SteadyMillis, SteadyMillis), ApiError> {
    let from = match non_blank(params.from.as_deref()) {
        Some(from) => instant("from", from, now)?,
        None => now.minus(USUAL_SPAN_MS),
    };
    let named_to = non_blank(params.to.as_deref());
    let to = named_to.map_or(Ok(now), |to| instant("to", to, now))?;
    if to < from {
        let why =
            if named_to.is_some() { "`to` is before `from`" } else { "`from` is in the future" };
        return Err(ApiError::bad_request(why));
    }
    Ok((from, to))
}

impl std::ops::Deref for App {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl App {
    /// Creates the state from the parts of the server.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "each is a part that it is put together from")]
    pub fn new(
        hub: Arc<Hub>,
        model: ModelHandle,
        sources: Arc<Sources>,
        about: PageSettings,
        metrics: StreamMetrics,
        archive: Option<Reader>,
        releases: Option<Arc<Releases>>,
        stop: CancellationToken,
    ) -> Self {
        Self(Arc::new(Inner {
            hub,
            model,
            sources,
            about,
            streams: Streams::new(metrics),
            archive,
            releases,
            viewers: Viewers::default(),
            stop,
            epoch: format!("{:x}", SteadyMillis::now().0),
            pages: SharedPages::default(),
        }))
    }

    /// Returns the frame of a page.
    #[must_use]
    pub fn chrome(&self, address: &str) -> Chrome {
        let scopes = self.model.scopes();
        let several_deployments = scopes.windows(2).any(|pair| pair[0].0 != pair[1].0);
        let several_dbs = scopes.windows(2).any(|pair| pair[0].1 != pair[1].1);
        Chrome {
            now: SteadyMillis::now(),
            version: env!("CARGO_PKG_VERSION"),
            environment: self.about.environment.clone(),
            note: self.about.note.clone(),
            address: address.to_owned(),
            sources: self.sources.views(),
            servers: self.sources.server_views(),
            partly_visible: self.sources.partly_visible(),
            first_scan: self.sources.first_scan(),
            counts: self.hub.snapshot().counts(),
            several_deployments,
            several_dbs,
            names: self.hub.names().clone(),
            visitor: None,
            csrf: None,
        }
    }

    /// Returns the deployment of a request. The name may be omitted if there is only one.
    ///
    /// # Errors
    /// A sentence that says what is missing or unknown.
    pub fn deployment(&self, named: Option<&str>) -> Result<Arc<str>, ApiError> {
        let scopes = self.model.scopes();
        let deployment = match named.filter(|name| !name.is_empty()) {
            Some(name) => scopes.iter().find(|scope| &*scope.0 == name).ok_or_else(|| {
                let known: Vec<&str> = scopes.iter().map(|scope| &*scope.0).collect();
                ApiError::new(
                    StatusCode::NOT_FOUND,
                    format!("there is no deployment `{name}`, but {}", known.join(", ")),
                )
            })?,
            None if scopes.iter().all(|scope| scope.0 == scopes[0].0) => &scopes[0],
            None => return Err(ApiError::bad_request("there are several: `deployment` is needed")),
        };
        Ok(Arc::clone(&deployment.0))
    }

    /// Returns the lock of a request.
    ///
    /// # Errors
    /// A sentence that says what is missing or unknown.
    pub fn lock_id(&self, params: &LockParams) -> Result<LockId, ApiError> {
        let scopes = self.model.scopes();
        let deployment = self.deployment(params.deployment.as_deref())?;
        let mut dbs = scopes.iter().filter(|scope| scope.0 == deployment).map(|scope| scope.1);
        let db = match params.db.as_deref().filter(|db| !db.is_empty()) {
            Some(text) => dbs.find(|db| db.to_string() == text).ok_or_else(|| {
                let detail = format!("database `{text}` of `{deployment}` is not watched");
                ApiError::new(StatusCode::NOT_FOUND, detail)
            })?,
            None => match (dbs.next(), dbs.next()) {
                (Some(db), None) => db,
                _ => return Err(ApiError::bad_request("there are several: `db` is needed")),
            },
        };
        let name = match (&params.name, &params.name64) {
            // Each byte that is not valid UTF-8 has become U+FFFD.
            (Some(name), None) if name.contains(char::REPLACEMENT_CHARACTER) => {
                return Err(ApiError::bad_request(
                    "`name` is not UTF-8: give the name's bytes in base64 as `name64`",
                ));
            }
            (Some(name), None) => name.clone().into_bytes(),
            (None, Some(text)) => name_of_base64(text)
                .ok_or_else(|| ApiError::bad_request("`name64` is not base64"))?,
            (None, None) => return Err(ApiError::bad_request("`name` or `name64` is needed")),
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request("`name` and `name64` exclude one another"));
            }
        };
        let name = LockName::new(name).map_err(|error| ApiError::bad_request(error.to_string()))?;
        Ok(LockId { deployment, db, name })
    }

    /// Returns the lock of a page. Without a database it is that of the only lock of this name.
    ///
    /// # Errors
    /// As those of [`Self::lock_id`].
    pub fn shown_lock(&self, params: &LockParams) -> Result<LockId, ApiError> {
        let found = self.lock_id(params);
        if found.is_ok() || params.db.as_ref().is_some_and(|db| !db.is_empty()) {
            return found;
        }
        let snapshot = self.hub.snapshot();
        let in_db = |scope: &(Arc<str>, u32)| {
            let db = Some(scope.1.to_string());
            let id = self.lock_id(&LockParams { db, ..params.clone() }).ok()?;
            (id.deployment == scope.0 && snapshot.get(&id).is_some()).then_some(id)
        };
        let mut known = self.model.scopes().iter().filter_map(in_db);
        match (known.next(), known.next()) {
            (Some(id), None) => Ok(id),
            _ => found,
        }
    }

    /// Returns what is known about a lock. The lock is read again unless it was read within the last second.
    pub async fn subject(&self, id: &LockId) -> Subject {
        let now = SteadyMillis::now();
        let known = self.hub.snapshot().get(id).cloned();
        let fresh = known.as_ref().is_some_and(|lock| {
            !lock.is_unknown() && now.millis_since(lock.observed_at()) <= FRESH_MS
        });
        let answer = if fresh { None } else { self.model.request_reading(id, PATIENCE).await };
        if let Some(known) = self.hub.snapshot().get(id).or(known.as_ref()) {
            return Subject::Known(Arc::clone(known));
        }
        match answer {
            Some(ReadingReply { read_at, reading: Reading::Absent { .. } }) => {
                Subject::Absent { read_at }
            }
            Some(ReadingReply { reading: Reading::Other(what), .. }) => {
                Subject::NoLock(format!("It is {what}."))
            }
            Some(ReadingReply { reading: Reading::Lock { hash, .. }, .. })
                if !hash.unexpected.is_empty() =>
            {
                Subject::NoLock("It is a hash whose fields are not a lock's.".to_owned())
            }
            Some(ReadingReply { reading: Reading::Lock { .. }, .. }) => Subject::NoLock(
                "It has a lock's shape, but the settings say to ignore it, or there are too many locks."
                    .to_owned(),
            ),
            None => Subject::Unreadable(self.why_unreadable(id)),
        }
    }

    /// Reads a lock's key now.
    ///
    /// # Errors
    /// A sentence that says why it could not be read.
    pub async fn read_now(&self, id: &LockId) -> Result<ReadingReply, String> {
        let answer = self.model.request_reading(id, PATIENCE).await;
        answer.ok_or_else(|| self.why_unreadable(id))
    }

    fn why_unreadable(&self, id: &LockId) -> String {
        match self.sources.why_unreadable(id) {
            Some(reason) => format!("Its server cannot be read: {reason}."),
            None => "Its server did not reply in time; try again.".to_owned(),
        }
    }

    /// Returns the time and the lock of a request for past events. The default is the hour until `now`.
    ///
    /// # Errors
    /// If an instant is malformed, the two are in the wrong order, or the name is invalid.
    pub fn span(&self, params: &EventsParams, now: SteadyMillis) -> Result<Span, ApiError> {
        let (from, to) = span_of(params, now)?;
        // A lock's name may be a blank.
        let name = params.name.clone().filter(|name| !name.is_empty());
        let lock = if name.is_some() || params.name64.is_some() {
            let EventsParams { deployment, db, name64, .. } = params.clone();
            let lock = LockParams { deployment, db, name, name64, ..LockParams::default() };
            Some(self.lock_id(&lock)?)
        } else {
            None
        };
        Ok(Span { from, to, lock })
    }

    /// Queries the history.
    ///
    /// # Errors
    /// If no history is stored, or it cannot be read.
    pub async fn history<T, F>(&self, ask: impl FnOnce(Reader) -> F) -> Result<T, ApiError>
    where
        F: Future<Output = rusqlite::Result<T>>,
    {
        let Some(archive) = self.archive.clone() else {
            return Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "this dashboard stores no history: it was started with --no-history, or its log says why not",
            ));
        };
        ask(archive).await.map_err(|error| {
            tracing::error!(%error, "the history cannot be read");
            ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the history cannot be read; the log says why",
            )
        })
    }

    /// Returns the blind spots of the sources and the events of whole servers, one sentence each.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let mut limits = self.sources.limits();
        let snapshot = self.hub.snapshot();
        if snapshot.not_kept > 0 {
            let more = counted(snapshot.not_kept, "more lock");
            limits.push(format!("Counted but not followed: {more}, beyond --max-locks."));
        }
        if snapshot.possible_not_kept > 0 {
            let more = counted(snapshot.possible_not_kept, "more possible lock");
            limits.push(format!(
                "Counted but not followed: {more}. Such a hash resembles a lock, never expires, and nobody is known to wait for it. If these are an application's data, exclude them with --ignore."
            ));
        }
        limits
    }
}
