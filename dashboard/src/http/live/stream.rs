//! `/api/v1/stream`: everything that is known, then every change.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::UNBUFFERED;
use crate::clock::SteadyMillis;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::streams::StreamPermit;
use crate::model::types::{Delta, LockView, Snapshot, Walk};

/// The number of locks in one event of a snapshot, except that the small parts of a snapshot are not divided.
const CHUNK: usize = 500;
/// The interval of the heartbeats on a quiet stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

#[derive(Serialize)]
struct SnapshotJson<'a> {
    seq: u64,
    #[serde(serialize_with = "crate::clock::as_wall")]
    at: SteadyMillis,
    locks: &'a [&'a LockView],
    /// True if further events belong to this snapshot.
    more: bool,
}

/// All locks, then every change, as server-sent events.
///
/// Events: `snapshot` {seq, at, locks, more}, the last of them with more=false; then `delta` {seq, at, changed: locks,
/// removed: lock ids}, to be applied in order. The last snapshot and each delta have an id. A client that reconnects with
/// Last-Event-ID receives the events that it missed, or `resync`, which means: drop everything, a snapshot follows. A
/// client that reads too slowly receives `resync` too. A comment every 15 s shows that the stream is alive.
#[utoipa::path(
    get,
    path = "/api/v1/stream",
    params(("Last-Event-ID" = Option<String>, Header)),
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream"),
        (status = 503, description = "Too many streams are open."),
    ),
)]
pub(in crate::http) async fn stream(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let permit = app.streams.open()?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let events = events(Changes::new(app, last, permit));
    let alive = KeepAlive::new().interval(HEARTBEAT);
    Ok((UNBUFFERED, Sse::new(events).keep_alive(alive)).into_response())
}

fn events(changes: Changes) -> impl Stream<Item = Result<Event, Infallible>> {
    futures_util::stream::unfold(changes, |mut changes| async move {
        let stop = changes.app.stop.clone();
        let event = stop.run_until_cancelled(changes.next()).await??;
        Some((Ok(event), changes))
    })
}

/// A snapshot, and how much of it has been sent.
struct Unsent {
    snapshot: Arc<Snapshot>,
    walk: Walk,
    /// The number of locks that the walk has passed.
    sent: usize,
}

struct Changes {
    app: App,
    changes: broadcast::Receiver<Arc<Delta>>,
    /// The sequence number of the last event sent.
    seq: u64,
    /// The changes that the client has missed and that have not been sent yet.
    replay: VecDeque<Arc<Delta>>,
    /// A snapshot that has not been sent completely.
    unsent: Option<Unsent>,
    resync: bool,
    _permit: StreamPermit,
}

impl Changes {
    fn new(app: App, last: Option<&str>, permit: StreamPermit) -> Self {
        // Subscribes before reading the snapshot, so that no change in between is missed.
        let changes = app.hub.changes();
        let resumed = last.and_then(|id| {
            let seq = id.strip_prefix(&app.epoch)?.strip_prefix('-')?.parse().ok()?;
            Some((seq, app.hub.since(seq)?))
        });
        let mut new = Self {
            changes,
            seq: 0,
            replay: VecDeque::new(),
            unsent: None,
            resync: false,
            _permit: permit,
            app,
        };
        match resumed {
            Some((seq, deltas)) => {
                new.seq = seq;
                new.replay = deltas.into();
            }
            None => new.begin(last.is_some()),
        }
        new
    }

    /// Begins with a snapshot. If `resync` is true, the client has to drop everything that it has received before.
    fn begin(&mut self, resync: bool) {
        if resync {
            self.app.streams.metrics.resyncs.inc();
        }
        self.resync = resync;
        self.replay.clear();
        let snapshot = self.app.hub.snapshot();
        self.unsent = Some(Unsent { snapshot, walk: Walk::default(), sent: 0 });
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if std::mem::take(&mut self.resync) {
                return Some(Event::default().event("resync").data("{}"));
            }
            if let Some(unsent) = self.unsent.take() {
                return Some(self.part(unsent));
            }
            let delta = match self.replay.pop_front() {
                Some(delta) => delta,
                None => match self.changes.recv().await {
                    Ok(delta) => delta,
                    Err(RecvError::Lagged(_)) => {
                        self.begin(true);
                        continue;
                    }
                    Err(RecvError::Closed) => return None,
                },
            };
            if delta.seq > self.seq {
                self.seq = delta.seq;
                return Some(self.identified("delta").data(delta.json()));
            }
        }
    }

    /// Returns the next part of a snapshot.
    fn part(&mut self, mut unsent: Unsent) -> Event {
        let snapshot = &unsent.snapshot;
        // A walk goes on from the beginning after the last lock, so it must not be asked for more than are left.
        let most = CHUNK.min(snapshot.len() - unsent.sent);
        let locks = snapshot.visit(&mut unsent.walk, most).flatten();
        let locks: Vec<&LockView> = locks.map(|lock| &**lock).collect();
        unsent.sent += locks.len();
        let (seq, more) = (snapshot.seq, unsent.sent < snapshot.len());
        let json = SnapshotJson { seq, at: snapshot.at, locks: &locks, more };
        // Serializing strings and numbers cannot fail.
        let json = serde_json::to_string(&json).unwrap_or_default();
        if more {
            self.unsent = Some(unsent);
            return Event::default().event("snapshot").data(json);
        }
        self.seq = seq;
        self.identified("snapshot").data(json)
    }

    /// Returns an event after which a stream can be resumed.
    fn identified(&self, event: &str) -> Event {
        Event::default().event(event).id(format!("{}-{}", self.app.epoch, self.seq))
    }
}
