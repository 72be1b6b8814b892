//! Open pages: each is made once and sent to all who look at it.
//!
//! A page that is open anywhere has one task, which makes it anew when the picture changes, at a bounded rate, and
//! publishes what came of it as a [`Version`]. Whoever has the version before gets the very bytes that all others get, packed once;
//! whoever is further behind, being slow, gets the difference from what they have. Nothing is queued.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use service_kit::clock;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::app::App;
use super::frame::Frame;
use super::live::Topic;
use super::turns::{Share, Turns};
use super::viewers::{Viewed, Viewer};
use crate::model::types::Delta;
use crate::views::live::Picture;

/// The shortest time between two versions of a page.
const VERSION_EACH: Duration = Duration::from_millis(100);
/// The longest without a look: what the sources say changes without the model.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// A page as it was at an instant, and how to get there.
#[derive(Debug)]
pub struct Version {
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
pub struct Feeds(Arc<Mutex<HashMap<String, Sender>>>, Turns);

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
            share: Share::new(&self.1),
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
            let (made, took) = measured(self.version()).await;
            match made {
                Ok(Some(version)) => {
                    self.sender.send_replace(Some(Arc::new(version)));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, address = self.address, "a page's patch could not be made");
                }
            }
            self.share.took(took);
            let sender = self.sender.clone();
            let (feeds, address) = (self.app.feeds.clone(), self.address.clone());
            tokio::select! {
                () = sender.closed() => if feeds.leave(&address) { return },
                () = self.news(began) => {}
            }
        }
    }

    /// Waits for a change that the page may show, or until it is to be looked at anyway, and then for its turn. The version
    /// before began to be made at `began`.
    async fn news(&mut self, began: Instant) {
        let next = began + self.topic.pace().max(VERSION_EACH);
        let look = (began + LOOK_EACH).max(next);
        tokio::time::sleep_until(next).await;
        let mut concerned = false;
        while !concerned {
            concerned = tokio::select! {
                change = self.changes.recv() => self.concerns(change.ok().as_deref()),
                () = tokio::time::sleep_until(look) => true,
            };
        }
        let turn = self.share.turn(self.app.feeds.len(), began, Instant::now());
        tokio::time::sleep_until(turn).await;
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

/// Does some work, and tells what it took of a processor, whichever threads it was on.
async fn measured<F: Future>(work: F) -> (F::Output, Duration) {
    let mut work = pin!(work);
    let mut took = Duration::ZERO;
    let done = poll_fn(|context| {
        let before = clock::thread_cpu();
        let polled = work.as_mut().poll(context);
        took += clock::thread_cpu().saturating_sub(before);
        polled
    });
    (done.await, took)
}
