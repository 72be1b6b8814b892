//! Open pages: each is made once and sent to all who look at it.
//!
//! A page that is open anywhere has one task, which makes it anew when the picture changes, at a bounded rate, and
//! publishes what came of it as a [`Version`]. Whoever has the version before gets the very bytes that all others get, packed once;
//! whoever is further behind, being slow, gets the difference from what they have. Nothing is queued.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::app::App;
use super::frame::Frame;
use super::live::Topic;
use super::viewers::{Viewed, Viewer};
use crate::model::Delta;
use crate::views::live::Picture;

/// The shortest time between two versions of a page.
const VERSION_EACH: Duration = Duration::from_millis(100);
/// The longest without a look: what the sources say changes without the model.
const LOOK_EACH: Duration = Duration::from_secs(1);
/// However many pages are open, each has a version in this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A page as it was at an instant, and how to get there.
#[derive(Debug)]
pub struct Version {
    /// The page.
    pub picture: Arc<Picture>,
    before: Option<Arc<Picture>>,
    /// From the version before to this one, as an event.
    patch: Frame,
    full: OnceLock<Frame>,
}

impl Version {
    /// The event that makes the page of somebody who has `seen` that picture equal to this one, and whether they were
    /// behind; no event where they have it already.
    ///
    /// # Errors
    /// When it cannot be written, which is a bug.
    pub fn event(
        &self,
        seen: Option<&Arc<Picture>>,
    ) -> Result<Option<(Frame, bool)>, askama::Error> {
        let Some(seen) = seen else {
            if let Some(full) = self.full.get() {
                return Ok(Some((full.clone(), false)));
            }
            let json = self.picture.patch(None)?.unwrap_or_default();
            return Ok(Some((self.full.get_or_init(|| Frame::new(&json)).clone(), false)));
        };
        if Arc::ptr_eq(seen, &self.picture) {
            return Ok(None);
        }
        if self.before.as_ref().is_some_and(|before| Arc::ptr_eq(seen, before)) {
            return Ok(Some((self.patch.clone(), false)));
        }
        Ok(self.picture.patch(Some(seen))?.map(|json| (Frame::new(&json), true)))
    }
}

/// The latest version of an open page; none before the first.
pub type Latest = watch::Receiver<Option<Arc<Version>>>;

type Sender = watch::Sender<Option<Arc<Version>>>;

/// Every open page, by its address. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Feeds(Arc<Mutex<HashMap<String, Sender>>>, Arc<AtomicU64>);

/// What it takes to make one page, among all that are open: together they take at most one processor, and a page that is
/// made quickly does not wait for slow ones.
#[derive(Debug)]
struct Share {
    /// Of all pages, microseconds.
    all: Arc<AtomicU64>,
    /// Of this one, over its last versions.
    micros: u64,
}

impl Share {
    /// Notes what it took this time.
    fn took(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(1_000_000);
        let now = if self.micros == 0 { micros } else { (self.micros * 3 + micros) / 4 };
        self.all.fetch_add(now.wrapping_sub(self.micros), Ordering::Relaxed);
        self.micros = now;
    }

    /// How long it waits from one version to the next, where so many pages are open.
    fn pause(&self, pages: usize) -> Duration {
        let as_all = self.micros.saturating_mul(u64::try_from(pages).unwrap_or(u64::MAX));
        let together = self.all.load(Ordering::Relaxed);
        Duration::from_micros(as_all.min(together).saturating_mul(2)).min(LONGEST_PAUSE)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.fetch_sub(self.micros, Ordering::Relaxed);
    }
}

impl Feeds {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Sender>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the page of that address, which is kept true as long as anybody does.
    pub(super) fn join(&self, app: &App, address: &str, topic: Topic) -> Latest {
        let mut feeds = self.lock();
        if let Some(feed) = feeds.get(address) {
            return feed.subscribe();
        }
        let (sender, latest) = watch::channel(None);
        feeds.insert(address.to_owned(), sender.clone());
        let feed = Feed {
            address: address.to_owned(),
            topic,
            changes: app.hub.changes(),
            viewer: app.viewers.enter(),
            picture: None,
            share: Share { all: Arc::clone(&self.1), micros: 0 },
            sender,
            app: app.clone(),
        };
        tokio::spawn(feed.run());
        latest
    }

    /// Forgets a page that nobody looks at any longer; false where somebody does again.
    fn leave(&self, address: &str) -> bool {
        let mut feeds = self.lock();
        let left = feeds.get(address).is_none_or(|feed| feed.receiver_count() == 0);
        if left {
            feeds.remove(address);
        }
        left
    }

    /// How many pages are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

/// One page being kept true.
struct Feed {
    app: App,
    address: String,
    topic: Topic,
    changes: broadcast::Receiver<Arc<Delta>>,
    viewer: Viewer,
    picture: Option<Arc<Picture>>,
    share: Share,
    sender: Sender,
}

impl Feed {
    async fn run(mut self) {
        let stop = self.app.stop.clone();
        stop.run_until_cancelled(self.keep()).await;
        self.app.feeds.lock().remove(&self.address);
    }

    async fn keep(&mut self) {
        loop {
            let began = Instant::now();
            match self.version().await {
                Ok(Some(version)) => {
                    self.sender.send_replace(Some(Arc::new(version)));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, address = self.address, "a page's patch could not be made");
                }
            }
            self.share.took(began.elapsed());
            let pause = self.share.pause(self.app.feeds.len());
            let next = began + self.topic.pace().max(VERSION_EACH).max(pause);
            let look = (began + LOOK_EACH).max(next);
            let sender = self.sender.clone();
            let (feeds, address) = (self.app.feeds.clone(), self.address.clone());
            tokio::select! {
                () = sender.closed() => if feeds.leave(&address) { return },
                () = self.news(next, look) => {}
            }
        }
    }

    /// Waits until `next`, and then for a change that the page may show or until `look`.
    async fn news(&mut self, next: Instant, look: Instant) {
        tokio::time::sleep_until(next).await;
        let mut concerned = false;
        while !concerned {
            concerned = tokio::select! {
                change = self.changes.recv() => self.concerns(change.ok().as_deref()),
                () = tokio::time::sleep_until(look) => true,
            };
        }
        // What else has come is in the version that is made now.
        while !matches!(self.changes.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
    }

    /// Whether the page may show some of it. A receiver that fell behind has surely missed something.
    fn concerns(&self, change: Option<&Delta>) -> bool {
        change.is_none_or(|change| self.topic.concerns(change, self.picture.as_deref()))
    }

    async fn version(&mut self) -> Result<Option<Version>, askama::Error> {
        let before = self.picture.clone();
        let Some((picture, viewed)) =
            self.topic.picture(&self.app, &self.address, before.as_deref()).await?
        else {
            return Ok(None);
        };
        self.viewer.look(viewed.unwrap_or(Viewed::Nothing));
        let Some(json) = picture.patch(before.as_deref())? else { return Ok(None) };
        let picture = Arc::new(picture);
        self.picture = Some(Arc::clone(&picture));
        Ok(Some(Version { picture, before, patch: Frame::new(&json), full: OnceLock::new() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_page_waits_for_no_slow_ones_and_all_together_are_bounded() {
        let all = Arc::new(AtomicU64::new(0));
        let share = |micros: u64| {
            let mut share = Share { all: Arc::clone(&all), micros: 0 };
            share.took(Duration::from_micros(micros));
            share
        };
        let mut shares: Vec<Share> = (0..100).map(|_| share(20_000)).collect();
        shares.extend((0..10).map(|_| share(100)));
        let load: f64 = shares
            .iter()
            .map(|share| {
                Duration::from_micros(share.micros).as_secs_f64() / share.pause(110).as_secs_f64()
            })
            .sum();
        assert!(load <= 1.0, "{load} processors");
        let quick = shares.last().unwrap().pause(110);
        assert_eq!(quick, Duration::from_micros(100 * 110 * 2), "as if all were like it");
        assert!(shares[0].pause(110) > quick);
        // One slow version is not taken for all to come, and what is closed no longer counts.
        let before = shares[0].pause(110);
        shares[0].took(Duration::from_millis(100));
        assert!(shares[0].pause(110) < before * 2, "{:?}", shares[0].pause(110));
        shares.truncate(1);
        assert_eq!(all.load(Ordering::Relaxed), shares[0].micros);
        drop(shares);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
