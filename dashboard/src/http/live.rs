//! `/live`: keeps an open page true in a browser.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::app::{App, MAX_STREAMS};
use super::feed::Latest;
use super::frame::{Frame, Packing};
use super::lists::ListRequest;
use super::params::{Address, EventsParams, ListParams, LockParams, OwnerParams, understood};
use super::problem::Problem;
use super::viewers::Viewed;
use crate::clock::SteadyMillis;
use crate::model::types::{Delta, LockId};
use crate::query::LockRow;
use crate::query::contention::ContentionRow;
use crate::query::owners::OwnerRow;
use crate::query::problems::ProblemRow;
use crate::query::shared::SortedList;
use crate::views::live::{BEAT_MS, Picture, beat};
use crate::views::{ListView, Subject};

/// The shortest time between two looks into the history.
const HISTORY_EACH: Duration = Duration::from_secs(2);
/// A lock that is not known is asked for again after this.
const ASK_EACH: Duration = Duration::from_secs(2);
/// What proxies are told: do not wait for more before passing this on.
pub(super) const UNBUFFERED: [(HeaderName, &str); 1] =
    [(HeaderName::from_static("x-accel-buffering"), "no")];

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
    headers: HeaderMap,
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
            let latest = app.feeds.join(&app, &params.path, topic);
            let packing = Packing::wanted(&headers);
            let events = events(app, latest, packing, place);
            let kind =
                [(header::CONTENT_TYPE, "text/event-stream"), (header::VARY, "Accept-Encoding")];
            let coding = (packing == Packing::Gzip).then_some([(header::CONTENT_ENCODING, "gzip")]);
            (UNBUFFERED, kind, coding, Body::from_stream(events)).into_response()
        }
        Err(problem) => problem.into_response(),
    }
}

/// What a stream is about.
#[derive(Debug)]
pub(super) enum Topic {
    Locks(
        ListRequest<LockRow>,
        #[expect(dead_code, reason = "the list stays sorted for as long as this exists")]
        SortedList,
    ),
    Lock(LockParams, LockId, Asked),
    Owners(ListRequest<OwnerRow>),
    Owner(OwnerParams),
    Problems(ListRequest<ProblemRow>),
    Contention(ListRequest<ContentionRow>),
    Events(EventsParams),
    Sources,
}

/// What came of asking for a lock that is not known, and when.
type Asked = Mutex<Option<(Instant, Subject)>>;

impl Topic {
    fn new(app: &App, address: Address) -> Result<Self, Problem> {
        Ok(match address {
            Address::Locks(params) => {
                let request = ListRequest::of_page(params)?;
                let sorted = app.pages.keep_sorted(request.query()?);
                Self::Locks(request, sorted)
            }
            Address::Lock(params) => {
                let id = app.lock_id(&params)?;
                Self::Lock(params, id, Asked::default())
            }
            Address::Owners(params) => Self::Owners(list(params)?),
            Address::Owner(params) => {
                app.owner_page("", &params)?;
                Self::Owner(params)
            }
            Address::Problems(params) => Self::Problems(list(params)?),
            Address::Contention(params) => Self::Contention(list(params)?),
            Address::Events(params) => {
                app.span(&params, SteadyMillis::now())?;
                Self::Events(params)
            }
            Address::Sources => Self::Sources,
        })
    }

    /// The shortest time between two versions, beyond what holds for all pages.
    pub(super) fn pace(&self) -> Duration {
        match self {
            Self::Events(_) => HISTORY_EACH,
            _ => Duration::ZERO,
        }
    }

    /// Whether the page may show some of that change at once. The rest, such as how many locks match in all where one
    /// that is not shown matches no longer, shows when it is looked at the next time.
    pub(super) fn concerns(&self, change: &Delta, before: Option<&Picture>) -> bool {
        match self {
            Self::Locks(request, _) => {
                let (now, query) = (SteadyMillis::now(), request.query.as_ref());
                let matches = |lock| query.is_ok_and(|query| query.filter.matches(lock, now));
                let shown = |id: &LockId| before.is_none_or(|before| before.shows(id));
                change.changed.iter().any(|lock| matches(lock) || shown(&lock.id))
                    || change.removed.iter().any(shown)
            }
            Self::Lock(_, id, _) => {
                change.changed.iter().any(|lock| lock.id == *id) || change.removed.contains(id)
            }
            Self::Sources => false,
            _ => true,
        }
    }

    /// The page as it is now, and the locks that it shows; none where it cannot be made just now.
    pub(super) async fn picture(
        &self,
        app: &App,
        address: &str,
        before: Option<&Picture>,
    ) -> Result<Option<(Picture, Option<Viewed>)>, askama::Error> {
        let made = match self {
            Self::Locks(request, _) => {
                let rows = app.rows(request);
                let page = app.list_page(address, request, &rows);
                (Picture::list(&page, before, &app.fragments)?, Some(Viewed::Rows(rows)))
            }
            Self::Lock(params, id, asked) => {
                let subject = subject_of(app, id, asked).await;
                match app.lock_page(address, params, Some(subject)).await {
                    Ok(page) => (Picture::lock(&page, before)?, Some(Viewed::Lock(id.clone()))),
                    Err(_) => return Ok(None),
                }
            }
            Self::Owners(request) => (list_picture(app, address, request, before)?, None),
            Self::Problems(request) => (list_picture(app, address, request, before)?, None),
            Self::Contention(request) => (list_picture(app, address, request, before)?, None),
            Self::Owner(params) => match app.owner_page(address, params) {
                Ok(page) => (Picture::owner(&page, before, &app.fragments)?, None),
                Err(_) => return Ok(None),
            },
            Self::Events(params) => match app.events_page(address, params).await {
                Ok(page) => (Picture::events(&page, before)?, None),
                Err(_) => return Ok(None),
            },
            Self::Sources => (Picture::sources(&app.sources_page(address), before)?, None),
        };
        Ok(Some(made))
    }
}

/// Reads the parameters of a list. A list with a wrong filter has no rows to update.
fn list<T: ListView>(params: ListParams) -> Result<ListRequest<T>, Problem> {
    let request = ListRequest::of_page(params)?;
    request.query()?;
    Ok(request)
}

fn list_picture<T: ListView>(
    app: &App,
    address: &str,
    request: &ListRequest<T>,
    before: Option<&Picture>,
) -> Result<Picture, askama::Error> {
    let page = app.list_page(address, request, &app.rows(request));
    Picture::list(&page, before, &app.fragments)
}

/// What the picture knows of a lock; one that it does not know is asked for now and then.
async fn subject_of(app: &App, id: &LockId, asked: &Asked) -> Subject {
    let kept = || asked.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = app.hub.snapshot().get(id) {
        *kept() = None;
        return Subject::Known(Arc::clone(known));
    }
    let fresh = kept().clone().filter(|(at, _)| at.elapsed() < ASK_EACH);
    if let Some((_, subject)) = fresh {
        return subject;
    }
    let subject = app.subject(id).await;
    *kept() = Some((Instant::now(), subject.clone()));
    subject
}

/// One reader of a page.
struct Reader {
    app: App,
    latest: Latest,
    packing: Packing,
    /// What stands before the first event.
    head: Option<Bytes>,
    seen: Option<Arc<Picture>>,
    sent: Instant,
    _place: Place,
}

fn events(
    app: App,
    latest: Latest,
    packing: Packing,
    place: Place,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let (head, sent) = (packing.head(), Instant::now());
    let reader = Reader { app, latest, packing, head, seen: None, sent, _place: place };
    futures_util::stream::unfold(reader, |mut reader| async move {
        let stop = reader.app.stop.clone();
        let event = stop.run_until_cancelled(reader.next()).await??;
        reader.sent = Instant::now();
        Some((Ok(event), reader))
    })
}

impl Reader {
    /// The next event, when there is something to tell or it has been quiet for long; none at the end. It is asked for
    /// when the one before has gone out, so whoever is slow gets fewer and larger ones.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        let frame = self.frame().await?;
        Some(frame.bytes(self.packing))
    }

    async fn frame(&mut self) -> Option<Frame> {
        loop {
            let latest = self.latest.borrow_and_update().clone();
            if let Some(version) = latest {
                match version.event(self.seen.as_ref()) {
                    Ok(Some((event, behind))) => {
                        self.seen = Some(Arc::clone(&version.picture));
                        if behind {
                            self.app.metrics.resyncs.inc();
                        }
                        return Some(event);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(%error, "a page's patch could not be made");
                        return None;
                    }
                }
            }
            let beat_at = self.sent + Duration::from_millis(BEAT_MS);
            tokio::select! {
                changed = self.latest.changed() => changed.ok()?,
                () = tokio::time::sleep_until(beat_at) => return Some(Frame::new(&beat(SteadyMillis::now()))),
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
    use crate::clock::now;
    use crate::metrics::StreamMetrics;
    use crate::model::Model;
    use crate::model::actor;
    use crate::model::types::Settings;

    #[test]
    fn streams_are_bounded() {
        let settings = Settings {
            max_locks: 1,
            poll_rate: 1,
            usual: crate::model::types::Rule { stuck_after: None, starving_after: None },
            rules: Vec::new(),
            ignore: Vec::new(),
            groups: Vec::new(),
        };
        let model = Model::new(settings, Grouping::new(Vec::new(), 1), &[], now());
        let (_actor, model, hub, _) = actor::new(model, &[]);
        let metrics = StreamMetrics::register(&Registry::new()).unwrap();
        let app = App::new(
            hub,
            model,
            Arc::default(),
            super::super::app::About::default(),
            metrics,
            None,
            None,
            CancellationToken::new(),
        );
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
