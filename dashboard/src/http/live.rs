//! `/live`: keeps an open page true.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio::time::Instant;

use super::app::{App, MAX_STREAMS};
use super::params::{Address, TableParams, understood};
use super::problem::Problem;
use super::viewers::{Viewed, Viewer};
use crate::model::Delta;
use crate::model::actor::wall;
use crate::model::view::LockId;
use crate::views::live::{BEAT_MS, Stream as Patches, beat};
use crate::views::{LockPage, Subject};

/// The shortest time between two patches of one stream.
const PATCH_EACH: Duration = Duration::from_millis(100);
/// A lock that is not known is asked for again after this.
const ASK_EACH: Duration = Duration::from_secs(2);
/// What proxies are told: do not wait for more before passing this on.
pub(super) const UNBUFFERED: [(HeaderName, &str); 1] =
    [(HeaderName::from_static("x-accel-buffering"), "no")];

/// Which page.
#[derive(Debug, Deserialize)]
pub struct Params {
    path: String,
}

/// One open stream: counted as long as it is there.
#[derive(Debug)]
pub(super) struct Place {
    app: App,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Takes one, where there is one left.
    pub(super) fn take(app: &App) -> Result<Self, Problem> {
        let permit = Arc::clone(&app.places).try_acquire_owned().map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "{MAX_STREAMS} streams are open already; try again later, or reload the page"
                ),
            )
        })?;
        app.metrics.open.inc();
        Ok(Self { app: app.clone(), _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.app.metrics.open.dec();
    }
}

/// The stream of the page at `path`.
pub async fn live(
    State(app): State<App>,
    params: Result<Query<Params>, QueryRejection>,
) -> Response {
    let topic = understood(params)
        .and_then(|params| Ok((Topic::new(&app, Address::parse(&params.path)?)?, params)));
    let (topic, params) = match topic {
        Ok(topic) => topic,
        Err(problem) => return problem.into_response(),
    };
    match Place::take(&app) {
        Ok(place) => {
            (UNBUFFERED, Sse::new(patches(app, params.path, topic, place))).into_response()
        }
        Err(problem) => problem.into_response(),
    }
}

/// What a stream is about.
#[derive(Debug)]
enum Topic {
    Locks(TableParams),
    Lock(LockId),
    Sources,
}

impl Topic {
    fn new(app: &App, address: Address) -> Result<Self, Problem> {
        Ok(match address {
            Address::Locks(params) => {
                app.table(&params)?;
                Self::Locks(params)
            }
            Address::Lock(params) => Self::Lock(app.lock_id(&params)?),
            Address::Sources => Self::Sources,
        })
    }
}

/// One page being kept true.
struct Live {
    app: App,
    address: String,
    topic: Topic,
    patches: Patches,
    changes: broadcast::Receiver<Arc<Delta>>,
    viewer: Viewer,
    asked: Option<(Instant, Subject)>,
    sent: Option<Instant>,
    _place: Place,
}

fn patches(
    app: App,
    address: String,
    topic: Topic,
    place: Place,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let live = Live {
        address,
        topic,
        patches: Patches::new(app.fragments.clone()),
        changes: app.hub.changes(),
        viewer: app.viewers.enter(),
        asked: None,
        sent: None,
        _place: place,
        app,
    };
    futures_util::stream::unfold(live, |mut live| async move {
        let event = live.next().await?;
        Some((Ok(event), live))
    })
}

impl Live {
    /// The next event, when there is something to tell or it has been quiet for long; none at the end. Nothing is
    /// queued: while the reader is slow nothing is made, and the next event has all that changed meanwhile.
    async fn next(&mut self) -> Option<Event> {
        let stop = self.app.stop.clone();
        stop.run_until_cancelled(async {
            loop {
                if let Some(sent) = self.sent {
                    let beat = sent + Duration::from_millis(BEAT_MS);
                    tokio::time::sleep_until(sent + PATCH_EACH).await;
                    // A look at least each second: what the sources say changes without the model.
                    let look = (Instant::now() + Duration::from_secs(1)).min(beat);
                    tokio::select! {
                        () = self.changed() => {}
                        () = tokio::time::sleep_until(look) => {}
                    }
                }
                let quiet =
                    self.sent.is_some_and(|sent| sent.elapsed() >= Duration::from_millis(BEAT_MS));
                match self.patch().await {
                    Ok(Some(json)) => return Some(self.event(json)),
                    Ok(None) if quiet => return Some(self.event(beat(wall()))),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(%error, "a page's patch could not be made");
                        return None;
                    }
                }
            }
        })
        .await
        .flatten()
    }

    fn event(&mut self, json: String) -> Event {
        self.sent = Some(Instant::now());
        Event::default().event("patch").data(json)
    }

    /// Waits for a change of the picture, and takes all that there are.
    async fn changed(&mut self) {
        // A receiver that fell behind has surely missed a change, which is all that counts here.
        drop(self.changes.recv().await);
        while !matches!(
            self.changes.try_recv(),
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed)
        ) {}
    }

    async fn patch(&mut self) -> Result<Option<String>, askama::Error> {
        match &self.topic {
            Topic::Locks(params) => {
                let Ok(table) = self.app.table(params) else { return Ok(None) };
                self.viewer.look(Viewed::Rows(table.rows));
                match self.app.locks_page(&self.address, params) {
                    Ok(page) => self.patches.locks(&page),
                    Err(_) => Ok(None),
                }
            }
            Topic::Lock(id) => {
                let id = id.clone();
                self.viewer.look(Viewed::Lock(id.clone()));
                let subject = self.subject_of(&id).await;
                let chrome = self.app.chrome(&self.address);
                self.patches.lock(&LockPage { chrome, id, subject })
            }
            Topic::Sources => self.patches.sources(&self.app.sources_page(&self.address)),
        }
    }

    /// What the picture knows of a lock; one that it does not know is asked for now and then.
    async fn subject_of(&mut self, id: &LockId) -> Subject {
        if let Some(known) = self.app.hub.snapshot().get(id) {
            self.asked = None;
            return Subject::Known(Arc::clone(known));
        }
        match &self.asked {
            Some((at, subject)) if at.elapsed() < ASK_EACH => subject.clone(),
            _ => {
                let subject = self.app.subject(id).await;
                self.asked = Some((Instant::now(), subject.clone()));
                subject
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use redisson::Grouping;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::metrics::StreamMetrics;
    use crate::model::actor::{self, now};
    use crate::model::{Model, Settings};

    #[test]
    fn streams_are_bounded() {
        let settings = Settings {
            max_locks: 1,
            poll_rate: 1,
            usual: crate::model::Rule { stuck_after: None, starving_after: None },
            rules: Vec::new(),
            ignore: Vec::new(),
        };
        let model = Model::new(settings, Grouping::new(Vec::new(), 1), &[], now());
        let (_actor, model, hub, _) = actor::new(model, &[]);
        let metrics = StreamMetrics::register(&Registry::new()).unwrap();
        let app = App::new(hub, model, Arc::default(), None, metrics, CancellationToken::new());
        let mut places: Vec<Place> = (0..MAX_STREAMS).map(|_| Place::take(&app).unwrap()).collect();
        let problem = Place::take(&app).unwrap_err();
        assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(problem.detail.contains("1000 streams"), "{problem:?}");
        places.pop();
        assert!(Place::take(&app).is_ok());
        drop(places);
        assert_eq!(app.metrics.open.get(), 0);
    }
}
