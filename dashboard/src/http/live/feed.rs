//! Open pages, each rendered once for all of its readers.
//!
//! Every open page has one task. It renders the page when the snapshot changes, at a bounded rate, and publishes the
//! result as a [`Version`]. Readers that have the previous version all receive the same bytes. Slow readers receive the
//! difference from their version. Nothing is queued.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use service_kit::clock;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::time::Instant;

use super::page_memory::{Kept, PageMemory};
use super::render_budget::{PageShare, RenderBudget};
use super::sse_event::SseEvent;
use super::topic::Topic;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::viewers::{Viewed, Viewer};
use crate::model::types::Delta;
use crate::views::fragments::Fragments;
use crate::views::live::Picture;

/// The shortest time between two versions of a page. It is not longer than the time between two snapshots.
const MIN_INTERVAL: Duration = Duration::from_millis(40);
/// The longest time between two versions, since the states of sources change without a delta.
const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// The age from which the latest version of a page that reads the history is out of date.
const UNREAD_AFTER: Duration = Duration::from_secs(10);
/// The maximum number of pages that are rendered for the first time at once, since rendering needs more memory than
/// its result.
const FIRST_AT_ONCE: usize = 8;

/// A page at one instant, with the patch from the previous version.
#[derive(Debug)]
pub struct Version {
    pub picture: Arc<Picture>,
    before: Option<Arc<Picture>>,
    patch: SseEvent,
    full: OnceLock<SseEvent>,
    /// The memory that these parts use.
    kept: Kept,
}

impl Version {
    /// Returns the event that updates a page from `seen` to this version, and true if `seen` is older than the previous
    /// version. Returns no event if the page is up to date.
    ///
    /// # Errors
    /// If the patch cannot be written, which is a bug.
    pub fn event(&self, seen: Option<&Self>) -> Result<Option<(SseEvent, bool)>, askama::Error> {
        let Some(seen) = seen.map(|seen| &seen.picture) else {
            if let Some(full) = self.full.get() {
                return Ok(Some((full.clone(), false)));
            }
            let json = self.picture.patch(None)?.unwrap_or_default();
            let full = self.full.get_or_init(|| {
                let full = SseEvent::new(&json);
                self.kept.add(full.size());
                full
            });
            return Ok(Some((full.clone(), false)));
        };
        if Arc::ptr_eq(seen, &self.picture) {
            return Ok(None);
        }
        if self.before.as_ref().is_some_and(|before| Arc::ptr_eq(seen, before)) {
            return Ok(Some((self.patch.clone(), false)));
        }
        Ok(self.picture.patch(Some(seen))?.map(|json| (SseEvent::new(&json), true)))
    }
}

/// An open page.
#[derive(Debug)]
pub struct OpenPage {
    /// The latest version, or `None` before the first.
    pub version: Option<Arc<Version>>,
    /// The instant at which the page was last found to be as in that version.
    rendered: Instant,
    reads_history: bool,
}

impl OpenPage {
    /// Returns the age of the latest version if the history cannot be read, so that there is no newer one.
    pub fn unread_for(&self) -> Option<Duration> {
        let age = self.rendered.elapsed();
        (self.reads_history && age >= UNREAD_AFTER).then_some(age)
    }
}

/// A receiver of the versions of an open page.
pub type Latest = watch::Receiver<OpenPage>;

type Sender = watch::Sender<OpenPage>;

/// The open pages. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Feeds(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    app: App,
    /// The senders by the keys of their pages.
    senders: Mutex<HashMap<String, Sender>>,
    budget: RenderBudget,
    memory: PageMemory,
    first: Semaphore,
    fragments: Fragments,
}

impl Feeds {
    #[must_use]
    pub fn new(app: App) -> Self {
        let memory = PageMemory::new(app.streams.metrics.page_bytes.clone());
        Self(Arc::new(Inner {
            app,
            senders: Mutex::default(),
            budget: RenderBudget::default(),
            memory,
            first: Semaphore::new(FIRST_AT_ONCE),
            fragments: Fragments::default(),
        }))
    }

    #[must_use]
    pub fn app(&self) -> &App {
        &self.0.app
    }

    /// Subscribes to the page at that address. The page stays open until its last reader leaves.
    ///
    /// # Errors
    /// If the page is not open yet and the open pages use too much memory.
    pub(super) fn join(&self, address: &str, topic: Topic) -> Result<Latest, ApiError> {
        let key = topic.key();
        let mut senders = self.0.senders.lock();
        if let Some(sender) = senders.get(&key) {
            return Ok(sender.subscribe());
        }
        let reserved = Some(self.0.memory.reserve()?);
        let (rendered, reads_history) = (Instant::now(), topic.reads_history());
        let (sender, latest) = watch::channel(OpenPage { version: None, rendered, reads_history });
        senders.insert(key.clone(), sender.clone());
        let feed = Feed {
            key,
            address: address.to_owned(),
            topic,
            changes: self.app().hub.changes(),
            viewer: self.app().viewers.enter(),
            picture: None,
            reserved,
            share: PageShare::new(&self.0.budget),
            sender,
            feeds: self.clone(),
        };
        // At the end of the program the task ends at once, and removes its sender.
        drop(senders);
        tokio::spawn(feed.run());
        Ok(latest)
    }

    /// Closes a page unless it has readers. Returns false if it has readers.
    fn close(&self, key: &str) -> bool {
        let mut senders = self.0.senders.lock();
        let unread = senders.get(key).is_none_or(|sender| sender.receiver_count() == 0);
        if unread {
            senders.remove(key);
        }
        unread
    }

    fn open_pages(&self) -> usize {
        self.0.senders.lock().len()
    }
}

/// The task of an open page.
struct Feed {
    feeds: Feeds,
    key: String,
    address: String,
    topic: Topic,
    changes: broadcast::Receiver<Arc<Delta>>,
    viewer: Viewer,
    picture: Option<Arc<Picture>>,
    /// The memory that is reserved until the first version.
    reserved: Option<Kept>,
    share: PageShare,
    sender: Sender,
}

impl Feed {
    async fn run(mut self) {
        let stop = self.feeds.app().stop.clone();
        stop.run_until_cancelled(self.publish_versions()).await;
    }

    /// Publishes versions until the page has no readers, or until its first version exceeds the remaining memory. Then the
    /// page is closed already, and another task may have opened it again.
    async fn publish_versions(&mut self) {
        let feeds = self.feeds.clone();
        loop {
            // A page that reads the history may take as long as its disk hangs.
            let first = match self.reserved.is_some() && !self.topic.reads_history() {
                true => feeds.0.first.acquire().await.ok(),
                false => None,
            };
            let began = Instant::now();
            let (version, cpu_time) = with_cpu_time(self.version()).await;
            match version {
                Ok(Some(version)) => {
                    if self.reserved.take().is_some() && feeds.0.memory.exceeded() {
                        feeds.0.senders.lock().remove(&self.key);
                        return;
                    }
                    self.sender.send_modify(|page| page.version = Some(Arc::new(version)));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, address = self.address, "rendering a page's patch failed");
                }
            }
            drop(first);
            self.share.record(cpu_time);
            let (sender, key) = (self.sender.clone(), self.key.clone());
            tokio::select! {
                () = sender.closed() => if feeds.close(&key) { return },
                () = self.next_turn(began) => {}
            }
        }
    }

    /// Waits for a change that the page shows, or for [`MAX_INTERVAL`], and then for the page's turn. `began` is the
    /// instant at which the rendering of the previous version began.
    async fn next_turn(&mut self, began: Instant) {
        let earliest = began + self.topic.pace().max(MIN_INTERVAL);
        let latest = (began + MAX_INTERVAL).max(earliest);
        tokio::time::sleep_until(earliest).await;
        let mut concerned = false;
        while !concerned {
            concerned = tokio::select! {
                change = self.changes.recv() => self.concerns(change.ok().as_deref()),
                () = tokio::time::sleep_until(latest) => true,
            };
        }
        let turn = self.share.turn(self.feeds.open_pages(), began, Instant::now());
        tokio::time::sleep_until(turn).await;
        // The next version includes all changes so far.
        while !matches!(self.changes.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
    }

    /// Returns true if the page may show the change. A receiver that lagged has missed changes, so it returns true too.
    fn concerns(&self, change: Option<&Delta>) -> bool {
        change.is_none_or(|change| self.topic.concerns(change, self.picture.as_deref()))
    }

    async fn version(&mut self) -> Result<Option<Version>, askama::Error> {
        let before = self.picture.clone();
        let (app, fragments) = (self.feeds.app(), &self.feeds.0.fragments);
        let rendered = self.topic.picture(app, fragments, &self.address, before.as_deref());
        let Some((picture, viewed)) = rendered.await? else { return Ok(None) };
        self.viewer.look(viewed.unwrap_or(Viewed::Nothing));
        self.sender.send_if_modified(|page| {
            let was_unread = page.unread_for().is_some();
            page.rendered = Instant::now();
            was_unread
        });
        let Some(json) = picture.patch(before.as_deref())? else { return Ok(None) };
        let picture = Arc::new(picture);
        self.picture = Some(Arc::clone(&picture));
        let patch = SseEvent::new(&json);
        // The first patch contains everything.
        let full = if before.is_none() { patch.clone().into() } else { OnceLock::new() };
        let old = before.as_ref().map_or(0, |before| before.size(Some(&picture)));
        let kept = self.feeds.0.memory.keep(picture.size(None) + old + patch.size());
        Ok(Some(Version { picture, before, patch, full, kept }))
    }
}

/// Closes the page, whose readers would otherwise wait forever after a panic. Another task may have opened it again. Without
/// open pages no rendered rows are retained.
impl Drop for Feed {
    fn drop(&mut self) {
        let mut senders = self.feeds.0.senders.lock();
        if senders.get(&self.key).is_some_and(|sender| sender.same_channel(&self.sender)) {
            senders.remove(&self.key);
        }
        if senders.is_empty() {
            self.feeds.0.fragments.clear();
        }
    }
}

/// Awaits some work. Returns its output with the CPU time of its polls.
async fn with_cpu_time<F: Future>(work: F) -> (F::Output, Duration) {
    let mut work = pin!(work);
    let mut cpu_time = Duration::ZERO;
    let done = poll_fn(|context| {
        let before = clock::thread_cpu();
        let polled = work.as_mut().poll(context);
        cpu_time += clock::thread_cpu().saturating_sub(before);
        polled
    });
    (done.await, cpu_time)
}
