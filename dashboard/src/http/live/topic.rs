//! The subject of an open page, and its rendering.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::clock::SteadyMillis;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::lists::ListRequest;
use crate::http::params::{EventsParams, LockParams, OwnerParams, of_address};
use crate::http::viewers::Viewed;
use crate::model::types::{Delta, LockId};
use crate::query::contention::ContentionRow;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;
use crate::query::{LockRow, Threads};
use crate::views::fragments::Fragments;
use crate::views::live::Picture;
use crate::views::{ListView, Subject};

/// The shortest time between two reads of the history.
const HISTORY_INTERVAL: Duration = Duration::from_secs(2);
/// The shortest time between two versions of the overview, which sums up all locks.
const OVERVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which an unknown lock is read again.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// The page that a stream updates.
#[derive(Debug)]
pub(super) enum Topic {
    Locks(ListRequest<LockRow>),
    Lock(LockParams, LockId, LastReading),
    Owners(ListRequest<OwnerRow>),
    Owner(OwnerParams),
    Problems(ListRequest<IncidentRow>),
    Contention(ListRequest<ContentionRow>),
    History(EventsParams),
    Overview,
    Sources,
}

/// The last reading of an unknown lock, and the instant of that reading.
type LastReading = Mutex<Option<(Instant, Subject)>>;

impl Topic {
    /// Parses a page's path and query.
    ///
    /// # Errors
    /// If there is no such page, or a parameter is wrong.
    pub(super) fn new(app: &App, path: &str) -> Result<Self, ApiError> {
        let uri = Uri::from_str(path)
            .map_err(|_| ApiError::bad_request("`path` is not a page's path and query"))?;
        Ok(match uri.path() {
            "/" => Self::Locks(list(&uri)?),
            "/lock" => {
                let params: LockParams = of_address(&uri)?;
                let id = app.shown_lock(&params)?;
                // The page stays with this lock, whatever others of its name appear.
                let params = LockParams { db: Some(id.db.to_string()), ..params };
                Self::Lock(params, id, LastReading::default())
            }
            "/owners" => Self::Owners(list(&uri)?),
            "/owner" => {
                let params = of_address(&uri)?;
                app.owner_page("", &params)?;
                Self::Owner(params)
            }
            "/problems" => Self::Problems(list(&uri)?),
            "/contention" => Self::Contention(list(&uri)?),
            "/history" => {
                let params: EventsParams = of_address(&uri)?;
                app.span(&params, SteadyMillis::now())?;
                Self::History(params)
            }
            "/overview" => Self::Overview,
            "/sources" => Self::Sources,
            other => {
                return Err(ApiError::bad_request(format!("there is no live page `{other}`")));
            }
        })
    }

    /// Returns the page and its parameters as text, which is equal for all addresses of one page.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Locks(request) => format!("locks {}", request.key()),
            Self::Lock(params, ..) => {
                format!("lock {:?}", LockParams { format: None, ..params.clone() })
            }
            Self::Owners(request) => format!("owners {}", request.key()),
            Self::Owner(params) => format!("owner {params:?}"),
            Self::Problems(request) => format!("problems {}", request.key()),
            Self::Contention(request) => format!("contention {}", request.key()),
            Self::History(params) => {
                format!("history {:?}", EventsParams { format: None, ..params.clone() })
            }
            Self::Overview => "overview".to_owned(),
            Self::Sources => "sources".to_owned(),
        }
    }

    /// Returns the shortest time between two versions, if it is longer than the general one.
    pub(super) fn pace(&self) -> Duration {
        match self {
            Self::History(_) => HISTORY_INTERVAL,
            Self::Overview => OVERVIEW_INTERVAL,
            _ => Duration::ZERO,
        }
    }

    /// Returns true if the page cannot be rendered without the history.
    pub(super) fn reads_history(&self) -> bool {
        match self {
            Self::History(_) => true,
            Self::Lock(params, ..) => params.at.is_some(),
            _ => false,
        }
    }

    /// Returns true if the page shows part of the change at once. The remaining changes, such as the total number of
    /// matching locks, appear in the next version.
    pub(super) fn concerns(&self, change: &Delta, before: Option<&Picture>) -> bool {
        match self {
            Self::Locks(request) => {
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

    /// Renders the page in its current state. Returns the picture with the locks that it shows, or `None` if the page
    /// cannot be rendered at the moment.
    pub(super) async fn picture(
        &self,
        app: &App,
        fragments: &Fragments,
        address: &str,
        before: Option<&Picture>,
    ) -> Result<Option<(Picture, Option<Viewed>)>, askama::Error> {
        let made = match self {
            Self::Locks(request) => {
                let list = app.counted(request, Threads::One);
                let page = app.list_page(address, request, &list);
                (Picture::list(&page, before, fragments)?, Some(Viewed::Rows(list.rows)))
            }
            Self::Lock(params, id, last) => {
                let subject = subject_of(app, id, last).await;
                match app.lock_page(address, params, Some(subject)).await {
                    Ok(page) => (Picture::lock(&page, before)?, Some(Viewed::Lock(id.clone()))),
                    Err(_) => return Ok(None),
                }
            }
            Self::Owners(request) => {
                (list_picture(app, fragments, address, request, before)?, None)
            }
            Self::Problems(request) => {
                (list_picture(app, fragments, address, request, before)?, None)
            }
            Self::Contention(request) => {
                (list_picture(app, fragments, address, request, before)?, None)
            }
            Self::Owner(params) => match app.owner_page(address, params) {
                Ok(page) => (Picture::owner(&page, before, fragments)?, None),
                Err(_) => return Ok(None),
            },
            Self::History(params) => match app.history_page(address, params).await {
                Ok(page) if page.mistake.is_none() => (Picture::history(&page, before)?, None),
                Ok(_) | Err(_) => return Ok(None),
            },
            Self::Overview => (Picture::overview(&app.overview_page(address), before)?, None),
            Self::Sources => (Picture::sources(&app.sources_page(address), before)?, None),
        };
        Ok(Some(made))
    }
}

/// Reads the address of a list. A list with a wrong filter has no rows to update.
fn list<T: ListView>(uri: &Uri) -> Result<ListRequest<T>, ApiError> {
    let request = ListRequest::of_page(of_address(uri)?)?;
    request.query()?;
    Ok(request)
}

fn list_picture<T: ListView>(
    app: &App,
    fragments: &Fragments,
    address: &str,
    request: &ListRequest<T>,
    before: Option<&Picture>,
) -> Result<Picture, askama::Error> {
    let page = app.list_page(address, request, &app.counted(request, Threads::One));
    Picture::list(&page, before, fragments)
}

/// Returns a lock from the snapshot. An unknown lock is read every [`READ_INTERVAL`].
async fn subject_of(app: &App, id: &LockId, last: &LastReading) -> Subject {
    let last = || last.lock();
    if let Some(known) = app.hub.snapshot().get(id) {
        *last() = None;
        return Subject::Known(Arc::clone(known));
    }
    let fresh = last().clone().filter(|(at, _)| at.elapsed() < READ_INTERVAL);
    if let Some((_, subject)) = fresh {
        return subject;
    }
    let subject = app.subject(id).await;
    *last() = Some((Instant::now(), subject.clone()));
    subject
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_a_page_have_one_key() {
        let key = |path: &str| {
            let uri = Uri::from_str(path).unwrap();
            match uri.path() {
                "/" => Topic::Locks(list(&uri).unwrap()).key(),
                "/lock" => {
                    let id = crate::query::fixtures::lock("a").id;
                    Topic::Lock(of_address(&uri).unwrap(), id, LastReading::default()).key()
                }
                _ => Topic::History(of_address(&uri).unwrap()).key(),
            }
        };
        for same in ["/?x=1", "/?limit=100&x=2", "/?order=&sort=&cursor=", "/?facets=no&format=csv"]
        {
            assert_eq!(key(same), key("/"), "{same}");
        }
        assert_eq!(key("/?limit=5&filter=a%2ab"), key("/?x=1&filter=a*b&limit=5"));
        for other in ["/?limit=99", "/?filter=a", "/?order=asc", "/?sort=age"] {
            assert_ne!(key(other), key("/"), "{other}");
        }
        assert_eq!(key("/lock?x=1&name=a&format=b"), key("/lock?name=a"));
        assert_ne!(key("/lock?name=a&window=1h"), key("/lock?name=a"));
        assert_eq!(key("/history?range=1h&format=1"), key("/history"));
        assert_ne!(key("/history?from=-1h"), key("/history"));
    }
}
