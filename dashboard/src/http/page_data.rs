//! Fills the pages with data from the model and the history.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::app::App;
use super::error::ApiError;
use super::history::is_just_now;
use super::params::{LockParams, OwnerParams, instant, non_blank};
use crate::archive::EventSearch;
use crate::clock::SteadyMillis;
use crate::model::types::{LockId, LockView, PastHoldView, Snapshot};
use crate::query::list::Published;
use crate::query::owners::OwnerLocks;
use crate::query::{Filter, Listed, Query, Rows};
use crate::views::{
    EventRow, LockPage, LockThen, OverviewPage, OwnerPage, PastWindow, ReleaseAccess, SourcesPage,
    Subject, Summary,
};

/// The maximum number of locks of each sort that an owner's page lists.
const OWNERS_LOCKS: usize = 100;
/// The maximum number of past holds that it lists.
const OWNERS_PAST: usize = 20;
/// The maximum number of incidents and trees of waits on the overview.
const INCIDENTS: usize = 8;
const BLOCKERS: usize = 6;
/// The maximum number of events of a lock that are shown at an instant.
const EVENTS: usize = 50;
/// The default span of a lock's timeline, milliseconds.
const WINDOW_MS: u64 = 15 * 60_000;
/// The longest span of a lock's timeline, milliseconds.
const MAX_WINDOW_MS: u64 = 7 * 24 * 3_600_000;
/// The longest wait for the holds of a lock in the history, whose disk may hang.
const HISTORY_PATIENCE: Duration = Duration::from_secs(1);

/// Returns the first rows of a list in its default order.
fn first_rows<T: Listed>(published: &Published, now: SteadyMillis, limit: usize) -> Rows<T> {
    let sort = T::SORTS[0];
    let query = Query::new(("", Filter::default()), (sort, T::default_order(sort)), None, limit);
    // Only a cursor can be invalid, and this query has none.
    query.map(|query| query.rows(published, now)).unwrap_or_default()
}

/// Returns the totals of all active locks, and the longest holds of locks that are not expected to be held for long.
fn summary(snapshot: &Snapshot) -> (Summary, Vec<Arc<LockView>>) {
    let sums = snapshot.sums();
    let (mut waiting, mut at_least) = (0, 0);
    for group in sums.groups.values() {
        waiting += group.waiting.unwrap_or_default();
        at_least += group.waiting_at_least.unwrap_or_default();
    }
    let summary = Summary {
        waiting: waiting + at_least,
        waiters_exact: at_least == 0,
        owners: sums.clients,
        hosts: sums.hosts,
    };
    (summary, sums.longest)
}

/// Parses the window of a lock's timeline, which ends now or surrounds an instant.
fn past_window(window: Option<&str>, at: Option<SteadyMillis>) -> Result<PastWindow, ApiError> {
    let chosen = non_blank(window);
    let millis = match chosen {
        None => WINDOW_MS,
        Some(text) => humantime::parse_duration(text.trim())
            .ok()
            .and_then(|window| u64::try_from(window.as_millis()).ok())
            .filter(|millis| (1_000..=MAX_WINDOW_MS).contains(millis))
            .ok_or_else(|| {
                ApiError::bad_request("`window` must be a time from 1s to 7d, such as 1h")
            })?,
    };
    let chosen = chosen.map(str::to_owned);
    Ok(PastWindow { millis, holds: Vec::new(), kept: false, unreadable: false, chosen, at })
}

impl App {
    /// Returns the page of a lock, now or at an instant. A stream passes the `subject` that it knows. Otherwise the
    /// lock is read.
    ///
    /// # Errors
    /// If a parameter is malformed, or the history cannot be read.
    pub async fn lock_page(
        &self,
        address: &str,
        params: &LockParams,
        subject: Option<Subject>,
    ) -> Result<LockPage, ApiError> {
        let (id, now) = (self.shown_lock(params)?, SteadyMillis::now());
        let at = non_blank(params.at.as_deref()).map(|at| instant("at", at, now)).transpose()?;
        // Nothing is known of the future.
        let at = at.map(|at| at.min(now));
        let then = match at {
            Some(at) => Some(self.lock_then(&id, at).await?),
            None => None,
        };
        let subject = match subject {
            Some(subject) => subject,
            None => self.subject(&id).await,
        };
        let window = past_window(params.window.as_deref(), at)?;
        let past = self.past_holds(&id, &subject, window, now).await;
        Ok(LockPage {
            chrome: self.chrome(address),
            home: self.sources.slot_of(&id),
            trace: self.sources.traces().get(&id, now),
            id,
            subject,
            then,
            past,
            release: ReleaseAccess::Off,
            may_acknowledge: false,
            may_watch: false,
        })
    }

    /// Fills a window with the holds of a lock, from the history if there is one, otherwise from memory. The page of a lock
    /// must be there even if the history is not.
    async fn past_holds(
        &self,
        id: &LockId,
        subject: &Subject,
        window: PastWindow,
        now: SteadyMillis,
    ) -> PastWindow {
        let end = window.end(now);
        let from = end.minus(window.millis);
        let kept = self.archive.is_some();
        let id = id.clone();
        let read = self.history(|archive| async move { archive.holds(id, from, end).await });
        let stored = match kept {
            true => match timeout(HISTORY_PATIENCE, read).await {
                Ok(read) => read.ok(),
                Err(_) => {
                    tracing::error!(error = "no answer in time", "the history cannot be read");
                    None
                }
            },
            false => None,
        };
        let unreadable = kept && stored.is_none();
        let holds = match (stored, subject) {
            (Some(holds), _) => holds,
            (None, Subject::Known(lock)) => lock.history.past.to_vec(),
            (None, _) => Vec::new(),
        };
        let is_shown = |hold: &PastHoldView| match hold.to {
            Some(to) => to >= from,
            // In a window that ends now, the lock itself has the current holds.
            None => window.at.is_some(),
        };
        let holds =
            holds.into_iter().filter(|hold| hold.since.at <= end && is_shown(hold)).collect();
        PastWindow { holds, kept, unreadable, ..window }
    }

    /// Returns the state of a lock at an instant.
    async fn lock_then(&self, id: &LockId, at: SteadyMillis) -> Result<LockThen, ApiError> {
        let now = SteadyMillis::now();
        let until = EventSearch {
            from: SteadyMillis(0),
            to: at,
            lock: Some(id.clone()),
            newest_first: true,
            cursor: None,
            limit: EVENTS,
        };
        let since = EventSearch {
            from: at.plus(1),
            to: now,
            newest_first: false,
            limit: 1,
            ..until.clone()
        };
        let all = Arc::default();
        let events = self.search_events(until, &all).await?.events;
        let after = self.search_events(since, &all).await?.events.first().map(|event| event.at);
        let lock = id.clone();
        let holders = self.history(|archive| async move { archive.at(lock, at).await }).await?;
        let lock = id.clone();
        let problems =
            self.history(|archive| async move { archive.problems_at(lock, at).await }).await?;
        Ok(LockThen {
            at,
            holders: holders.holders,
            gap: holders.gap.filter(|gap| !is_just_now(gap, now)),
            problems,
            before: events.iter().map(|event| event.at).find(|before| *before < at),
            after,
            events: events.iter().map(EventRow::past).collect(),
        })
    }

    /// Returns the page of a client with its present and past holds and its waits.
    ///
    /// # Errors
    /// If a parameter is malformed.
    pub fn owner_page(&self, address: &str, params: &OwnerParams) -> Result<OwnerPage, ApiError> {
        let id = params.id.clone().filter(|id| !id.is_empty());
        let id =
            id.ok_or_else(|| ApiError::bad_request("`id` is missing: give a client's uuid"))?;
        let deployment = self.deployment(params.deployment.as_deref())?;
        let OwnerLocks { owner, locks, total, mut waits, mut past } =
            OwnerLocks::new(&self.hub.snapshot(), &deployment, &id, OWNERS_LOCKS);
        waits.sort_by_key(|(lock, i)| lock.waiters[*i].since.at);
        past.sort_by_key(|(_, hold)| std::cmp::Reverse(hold.to));
        waits.truncate(OWNERS_LOCKS);
        past.truncate(OWNERS_PAST);
        Ok(OwnerPage { chrome: self.chrome(address), owner, locks, total, waits, past })
    }

    /// Returns the overview of all locks.
    #[must_use]
    pub fn overview_page(&self, address: &str) -> OverviewPage {
        let (chrome, published) = (self.chrome(address), Published::latest(&self.hub));
        let (summary, oldest) = summary(&published.snapshot);
        OverviewPage {
            incidents: first_rows(&published, chrome.now, INCIDENTS),
            blockers: first_rows(&published, chrome.now, BLOCKERS),
            oldest,
            contention: Arc::clone(&published.contention),
            summary,
            chrome,
        }
    }

    /// Returns the page of the sources.
    #[must_use]
    pub fn sources_page(&self, address: &str) -> SourcesPage {
        SourcesPage {
            chrome: self.chrome(address),
            limits: self.limits(),
            notices: Arc::clone(&self.hub.snapshot().notices),
        }
    }
}
