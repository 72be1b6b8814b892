//! `/api/v1/stream`: everything that is known, then every change.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _, stream};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use super::UNBUFFERED;
use crate::clock::SteadyMillis;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::CurrentVisitor;
use crate::http::streams::StreamPermit;
use crate::model::types::{Delta, LockView, Snapshot, Walk};

/// The number of locks in one event of a snapshot. A client that reads nothing keeps such an event in memory.
const CHUNK: usize = 16;
/// The interval of the heartbeats on a quiet stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The bytes of an event, in parts that streams may share.
type Event = Vec<Bytes>;

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
        (status = 503, description = "Too many streams are open, or too many of the visitor's name."),
    ),
)]
pub(in crate::http) async fn stream(
    State(app): State<App>,
    visitor: CurrentVisitor,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let permit = app.streams.open(visitor.shared_name())?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let events = events(Changes::new(app, last, permit));
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    Ok((UNBUFFERED, kind, Body::from_stream(events)).into_response())
}

fn events(changes: Changes) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let events = stream::unfold(changes, |mut changes| async move {
        let stop = changes.app.stop.clone();
        let event = stop.run_until_cancelled(timeout(HEARTBEAT, changes.next())).await?;
        let event = event.unwrap_or_else(|_| Some(vec![Bytes::from_static(b":\n\n")]))?;
        Some((event, changes))
    });
    events.flat_map(|event| stream::iter(event.into_iter().map(Ok)))
}

/// A snapshot, and how much of it has been sent.
struct Unsent {
    snapshot: Arc<Snapshot>,
    walk: Walk,
    /// The locks that the walk has passed and that have not been sent yet.
    locks: VecDeque<Arc<LockView>>,
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
        let (walk, locks) = (Walk::default(), VecDeque::new());
        self.unsent = Some(Unsent { snapshot, walk, locks, sent: 0 });
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if std::mem::take(&mut self.resync) {
                return Some(vec![Bytes::from_static(b"event: resync\ndata: {}\n\n")]);
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
                let json = Bytes::from_owner(Arc::<[u8]>::from(delta.json()));
                return Some(self.event("delta", true, json));
            }
        }
    }

    /// Returns the next part of a snapshot.
    fn part(&mut self, mut unsent: Unsent) -> Event {
        let Unsent { snapshot, walk, locks, sent } = &mut unsent;
        if locks.len() < CHUNK {
            // A walk continues from the beginning after the last lock, so it must not be asked for more than are left.
            let most = CHUNK.min(snapshot.len() - *sent - locks.len());
            locks.extend(snapshot.visit(walk, most).flatten().cloned());
        }
        let chunk: Vec<Arc<LockView>> = locks.drain(..CHUNK.min(locks.len())).collect();
        *sent += chunk.len();
        let locks: Vec<&LockView> = chunk.iter().map(|lock| &**lock).collect();
        let (seq, more) = (snapshot.seq, *sent < snapshot.len());
        let json = SnapshotJson { seq, at: snapshot.at, locks: &locks, more };
        // Serializing strings and numbers cannot fail.
        let json = serde_json::to_vec(&json).unwrap_or_default().into();
        if more {
            self.unsent = Some(unsent);
        } else {
            self.seq = seq;
        }
        self.event("snapshot", !more, json)
    }

    /// Returns an event. A stream can be resumed after one that is `identified`.
    fn event(&self, name: &str, identified: bool, json: Bytes) -> Event {
        let id = match identified {
            true => format!("id: {}-{}\n", self.app.epoch, self.seq),
            false => String::new(),
        };
        let head = format!("event: {name}\n{id}data: ");
        vec![head.into(), json, Bytes::from_static(b"\n\n")]
    }
}
