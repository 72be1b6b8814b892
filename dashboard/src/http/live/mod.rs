//! `/live`: the stream that updates an open page.

pub mod feed;
mod page_memory;
mod render_budget;
pub mod sse_event;
pub mod stream;
mod topic;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Deserialize;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::guard::CurrentVisitor;
use super::params::{Params, understood};
use super::streams::StreamPermit;
use crate::clock::SteadyMillis;
use crate::metrics::StreamMetrics;
use crate::views::live::{BEAT_MS, beat};

pub use feed::Feeds;
use feed::{Latest, Version};
use sse_event::{Packing, SseEvent};
use topic::Topic;

/// Tells proxies to forward events without buffering.
const UNBUFFERED: [(HeaderName, &str); 1] = [(HeaderName::from_static("x-accel-buffering"), "no")];

/// The longest wait for a page's first version before its stream begins. A page that is too large is refused by then.
const FIRST_WAIT: Duration = Duration::from_millis(BEAT_MS);

#[derive(Debug, Deserialize)]
pub struct LiveParams {
    path: String,
}

/// `/live?path=…`: the stream of the page at that path.
///
/// # Errors
/// If there is no such page, a parameter is wrong, too many streams are open, or the open pages use too much memory.
pub async fn live(
    State(feeds): State<Feeds>,
    visitor: CurrentVisitor,
    headers: HeaderMap,
    params: Params<LiveParams>,
) -> Result<Response, ApiError> {
    let path = understood(params)?.path;
    let topic = Topic::new(feeds.app(), &path)?;
    let permit = feeds.app().streams.open(visitor.shared_name())?;
    let packing = Packing::wanted(&headers);
    let mut latest = feeds.join(&path, topic)?;
    let first = latest.wait_for(|page| page.version.is_some());
    let closed = matches!(timeout(FIRST_WAIT, first).await, Ok(Err(_)));
    if closed && !feeds.app().stop.is_cancelled() {
        return Err(page_memory::refusal());
    }
    let reader = Reader {
        latest,
        metrics: feeds.app().streams.metrics.clone(),
        packing,
        head: packing.head(),
        seen: None,
        is_unread: false,
        sent: Instant::now(),
        _permit: permit,
    };
    let events = events(reader, feeds.app().stop.clone());
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::VARY, "Accept-Encoding")];
    let coding = (packing == Packing::Gzip).then_some([(header::CONTENT_ENCODING, "gzip")]);
    Ok((UNBUFFERED, kind, coding, Body::from_stream(events)).into_response())
}

/// A reader of a page.
struct Reader {
    latest: Latest,
    metrics: StreamMetrics,
    packing: Packing,
    /// The bytes to send before the first event.
    head: Option<Bytes>,
    /// The version that the browser has.
    seen: Option<Arc<Version>>,
    /// True if the browser knows that there is no newer version, since the history cannot be read.
    is_unread: bool,
    sent: Instant,
    _permit: StreamPermit,
}

fn events(
    reader: Reader,
    stop: CancellationToken,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures_util::stream::unfold((reader, stop), |(mut reader, stop)| async move {
        let event = stop.run_until_cancelled(reader.next()).await??;
        reader.sent = Instant::now();
        Some((Ok(event), (reader, stop)))
    })
}

impl Reader {
    /// Returns the next event, after [`BEAT_MS`] at the latest, or `None` at the end. It is called when the previous
    /// event has been sent, so slow readers receive fewer and larger events.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        let event = self.event().await?;
        Some(event.bytes(self.packing))
    }

    async fn event(&mut self) -> Option<SseEvent> {
        loop {
            let (version, unread_for) = {
                let page = self.latest.borrow_and_update();
                (page.version.clone(), page.unread_for())
            };
            if let Some(version) = version {
                match version.event(self.seen.as_deref()) {
                    Ok(Some((event, behind))) => {
                        self.seen = Some(version);
                        if behind {
                            self.metrics.resyncs.inc();
                        }
                        return Some(event);
                    }
                    Ok(None) => self.seen = Some(version),
                    Err(error) => {
                        tracing::error!(%error, "rendering a page's patch failed");
                        return None;
                    }
                }
            }
            let beat_at = self.sent + Duration::from_millis(BEAT_MS);
            let was_unread = std::mem::replace(&mut self.is_unread, unread_for.is_some());
            if self.is_unread != was_unread || Instant::now() >= beat_at {
                return Some(SseEvent::new(&beat(SteadyMillis::now(), unread_for)));
            }
            tokio::select! {
                changed = self.latest.changed() => changed.ok()?,
                () = tokio::time::sleep_until(beat_at) => {}
            }
        }
    }
}
