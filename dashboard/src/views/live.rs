//! Keeping an open page true: what its event stream carries, and when.
//!
//! The browser opens `/live?path=<the page's path and query, percent-encoded>`. The handler makes that page's struct
//! again whenever the snapshot changes (at a bounded rate) and hands it to one [`Stream`] per connection, which
//! remembers what the browser has and gives the difference. There is no queue: a slow reader just gets the next
//! difference later.
//!
//! Events, all named `patch`, each with one JSON object:
//!
//! | member | meaning |
//! | --- | --- |
//! | `now` | the dashboard's clock, epoch milliseconds; always there |
//! | `full` | true in a stream's first event: it holds everything, what it does not name is gone |
//! | `build` | in full ones: [`super::assets::build`], so that a page of an older program notices |
//! | `title` | the document's title, when changed |
//! | `rows` | `{id: html}`: table rows new to this page or changed |
//! | `ttl` | `{id: [ttl_ms, observed_at]}`: rows of which only this changed |
//! | `order` | `[id…]`: the rows of this page in order, when changed; a row not in it has gone |
//! | `regions` | `{id: html}`: the new inside of an element of the page |
//!
//! The handler sends an event at least each [`BEAT_MS`], with nothing but `now` if need be ([`beat`]): comments
//! are invisible to a page's script, which takes a longer silence for a lost connection. Ages in fragments are left
//! to the script, so a fragment depends on what it shows only, and is shared by all streams through [`Fragments`].

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::{Chrome, LockPage, LocksPage, SourcesPage, assets, lock, locks, page, row, sources};
use crate::model::view::{LockView, SourceState, WallMillis};

/// The longest silence on a stream, milliseconds.
pub const BEAT_MS: u64 = 5_000;

/// How long a change of nothing but ages in the line about the sources waits, milliseconds.
const STATUS_MS: u64 = 2_000;

/// The event for a stream that has been silent for [`BEAT_MS`].
#[must_use]
pub fn beat(now: WallMillis) -> String {
    format!("{{\"now\":{}}}", now.0)
}

/// Rendered rows, shared by all streams of the program. Bounded; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Fragments(Arc<Mutex<HashMap<Key, Fragment>>>);

/// A view's address, and whether deployment and database stand beside the name.
type Key = (usize, bool, bool);

#[derive(Debug)]
struct Fragment {
    /// Keeps the view's address, which is the key, from being used again.
    _lock: Arc<LockView>,
    html: Arc<str>,
}

impl Fragments {
    /// The most rows kept: a few megabytes.
    const MAX: usize = 4_096;

    fn row(&self, lock: &Arc<LockView>, page: &LocksPage) -> Result<Arc<str>, askama::Error> {
        let (deployment, db) = (page.chrome.several_deployments, page.chrome.several_dbs);
        let key = (Arc::as_ptr(lock).addr(), deployment, db);
        if let Some(known) = self.lock().get(&key) {
            return Ok(Arc::clone(&known.html));
        }
        let html: Arc<str> = row::row_html(lock, deployment, db, AGELESS)?.into();
        let mut kept = self.lock();
        if kept.len() >= Self::MAX {
            kept.clear();
        }
        kept.insert(key, Fragment { _lock: Arc::clone(lock), html: Arc::clone(&html) });
        Ok(html)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Fragment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The clock that live fragments are rendered at: everything is just now, the script counts on from there.
const AGELESS: WallMillis = WallMillis(0);

/// What one open page has got so far.
#[derive(Debug)]
pub struct Stream {
    fragments: Fragments,
    begun: bool,
    title: String,
    rows: Vec<(String, Arc<LockView>)>,
    regions: HashMap<&'static str, u64>,
    status_at: u64,
    states: Vec<SourceState>,
}

#[derive(Debug, Serialize, Default)]
struct Patch<'a> {
    now: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    full: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    rows: BTreeMap<&'a str, Arc<str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    ttl: BTreeMap<&'a str, (u64, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    regions: BTreeMap<&'static str, String>,
}

type Regions = Vec<(&'static str, String)>;

impl Stream {
    /// A stream that has sent nothing yet.
    #[must_use]
    pub fn new(fragments: Fragments) -> Self {
        Self {
            fragments,
            begun: false,
            title: String::new(),
            rows: Vec::new(),
            regions: HashMap::new(),
            status_at: 0,
            states: Vec::new(),
        }
    }

    /// The event's JSON that makes the browser's page equal to `page`; none where it is so already.
    ///
    /// # Errors
    /// When a template fails, which is a bug.
    pub fn locks(&mut self, page: &LocksPage) -> Result<Option<String>, askama::Error> {
        let now: Vec<(String, Arc<LockView>)> =
            page.rows.iter().map(|lock| (row::row_id(&lock.id), Arc::clone(lock))).collect();
        let before = std::mem::take(&mut self.rows);
        let known: HashMap<&str, &Arc<LockView>> =
            before.iter().map(|(id, lock)| (id.as_str(), lock)).collect();
        let mut patch = Patch::default();
        for (id, lock) in &now {
            match known.get(id.as_str()) {
                Some(old) if Arc::ptr_eq(old, lock) => {}
                Some(old) if row::same_row_but_ttl(old, lock) => {
                    if let Some(ttl) = lock.ttl_ms {
                        patch.ttl.insert(id, (ttl, lock.observed_at.0));
                    }
                }
                _ => {
                    patch.rows.insert(id, self.fragments.row(lock, page)?);
                }
            }
        }
        let same_order = before.len() == now.len()
            && before.iter().zip(&now).all(|((old, _), (new, _))| old == new);
        if !same_order || !self.begun {
            patch.order = Some(now.iter().map(|(id, _)| id.as_str()).collect());
        }
        let title = locks::title(page);
        let regions = locks::regions(page)?;
        let event = self.event(patch, &page.chrome, &title, regions);
        self.rows = now;
        event
    }

    /// As [`Self::locks`], for one lock's page.
    ///
    /// # Errors
    /// When a template fails, which is a bug.
    pub fn lock(&mut self, page: &LockPage) -> Result<Option<String>, askama::Error> {
        let ageless = LockPage { chrome: ageless(&page.chrome), ..page.clone() };
        let regions = lock::regions(&ageless)?;
        self.event(Patch::default(), &page.chrome, &lock::title(page), regions)
    }

    /// As [`Self::locks`], for the page about sources.
    ///
    /// # Errors
    /// When a template fails, which is a bug.
    pub fn sources(&mut self, page: &SourcesPage) -> Result<Option<String>, askama::Error> {
        let ageless = SourcesPage { chrome: ageless(&page.chrome), ..page.clone() };
        let regions = sources::regions(&ageless)?;
        self.event(Patch::default(), &page.chrome, &sources::title(page), regions)
    }

    fn event<'a>(
        &mut self,
        mut patch: Patch<'a>,
        chrome: &Chrome,
        title: &'a str,
        mut regions: Regions,
    ) -> Result<Option<String>, askama::Error> {
        patch.now = chrome.now.0;
        if !self.begun {
            patch.full = true;
            patch.build = Some(assets::build());
        }
        if self.title != title {
            title.clone_into(&mut self.title);
            patch.title = Some(title);
        }
        if self.status_is_due(chrome) {
            regions.extend(page::regions(&ageless(chrome))?);
        }
        for (id, html) in regions {
            let hash = fingerprint(&html);
            if self.regions.insert(id, hash) != Some(hash) {
                patch.regions.insert(id, html);
            }
        }
        self.begun = true;
        if patch.is_empty() {
            return Ok(None);
        }
        serde_json::to_string(&patch).map(Some).map_err(|e| askama::Error::Custom(e.into()))
    }

    /// Whether the sources fare otherwise than the browser knows, or have not been told for a while.
    fn status_is_due(&mut self, chrome: &Chrome) -> bool {
        let states: Vec<SourceState> = chrome.sources.iter().map(|source| source.state).collect();
        let due = self.states != states
            || !self.begun
            || chrome.now.0.saturating_sub(self.status_at) >= STATUS_MS;
        if due {
            self.states = states;
            self.status_at = chrome.now.0;
        }
        due
    }
}

fn ageless(chrome: &Chrome) -> Chrome {
    Chrome { now: AGELESS, ..chrome.clone() }
}

fn fingerprint(html: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    html.hash(&mut hasher);
    hasher.finish()
}

impl Patch<'_> {
    fn is_empty(&self) -> bool {
        !self.full
            && self.title.is_none()
            && self.rows.is_empty()
            && self.ttl.is_empty()
            && self.order.is_none()
            && self.regions.is_empty()
    }
}
