//! Holds: acquired locks, as their owner sees them.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::clock::boot;
use crate::detached::Detached;
use crate::error::{Lost, Result};
use crate::grant::Grant;
use crate::owner::Owner;
use crate::request::Kind;
use crate::session::Session;

/// One acquisition of a lock.
///
/// [`release`](Self::release) ends it and reports whether it lasted until then. Dropping it releases it as well: the
/// command is sent at once if the connection is free, otherwise by a background task, and nobody sees its outcome. A
/// drop while the runtime ends may release nothing; then the agent does after the grace.
pub struct Hold {
    session: Arc<Session>,
    owner: Owner,
    grant: Arc<Grant>,
    runtime: Handle,
    released: Arc<AtomicBool>,
}

impl Hold {
    /// Makes a handle that the caller has counted in the grant.
    pub(crate) fn new(session: Arc<Session>, owner: Owner, grant: Arc<Grant>) -> Self {
        Self { session, owner, grant, runtime: Handle::current(), released: Arc::default() }
    }

    /// Returns the lock's name. Bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn name(&self) -> String {
        self.grant.name()
    }

    /// Returns the lock's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::from_word(&self.grant.key.1)
    }

    /// Returns the holder's id in Redis, new with each grant.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.grant.holder
    }

    /// Returns the fencing token of a lock of kind [`Fenced`](Kind::Fenced), `None` for other kinds.
    #[must_use]
    pub fn token(&self) -> Option<i64> {
        self.grant.token
    }

    /// Returns the owner, which can reenter the lock.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Fails unless the hold is certain. Costs no round trip.
    pub fn check(&self) -> Result<(), Lost> {
        self.grant.check()
    }

    /// Returns whether the hold is certain. After a loss or its deadline it never is again.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.grant.is_held()
    }

    /// Returns for how long the hold is certain by `CLOCK_BOOTTIME`, zero once it is not.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.deadline().saturating_sub(boot()) } else { Duration::ZERO }
    }

    /// Returns the instant until which the hold is certain, as a time of `CLOCK_BOOTTIME`. Renewals move it.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.grant.state().ends()
    }

    /// Completes when the hold is lost, and never after its release: a branch for `tokio::select!`, or a task of its
    /// own. It compares clocks whenever it is polled, so that it is complete after a stop of the process too.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let (grant, released) = (self.grant.clone(), self.released.clone());
        async move { grant.lost(&released).await }
    }

    /// Runs the work until it ends or the hold is lost. Compares clocks before each poll of the work.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let mut lost = pin!(self.lost());
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(lost) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(lost));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Returns whether renewals are failing while the hold is still valid. Start nothing new meanwhile.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        *self.grant.at_risk.borrow() && self.is_held()
    }

    /// Returns the changes of [`is_at_risk`](Self::is_at_risk).
    #[must_use]
    pub fn risk(&self) -> watch::Receiver<bool> {
        self.grant.at_risk.subscribe()
    }

    /// Sets a fixed lease from now, at least 100 ms, and ends renewal.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        self.set_lease(Some(lease)).await
    }

    /// Returns a hold with a fixed lease to the watchdog, which renews it.
    pub async fn keep_renewed(&self) -> Result<()> {
        self.set_lease(None).await
    }

    async fn set_lease(&self, lease: Option<Duration>) -> Result<()> {
        self.check()?;
        let (session, grant) = (self.session.clone(), self.grant.clone());
        Detached::new(async move { session.extend(&grant, lease).await }).await
    }

    /// Releases the hold. Fails with [`Error::Lost`](crate::Error::Lost) if it was lost before. If the future is
    /// dropped, the release continues.
    pub async fn release(self) -> Result<()> {
        self.released.store(true, Ordering::Relaxed);
        let (session, grant) = (self.session.clone(), self.grant.clone());
        Detached::new(async move { session.unlock(&grant).await }).await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.released.swap(true, Ordering::Relaxed) {
            self.session.unlock_soon(&self.grant, &self.runtime);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name())
            .field("kind", &self.kind())
            .field("holder", &self.grant.holder)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Several locks that were acquired together. Dropping it releases them as dropping each [`Hold`] does.
#[derive(Debug)]
pub struct Holds(pub(crate) Vec<Hold>);

impl Holds {
    /// Returns the holds in the order in which their names were given.
    pub fn iter(&self) -> slice::Iter<'_, Hold> {
        self.0.iter()
    }

    /// Fails unless every hold is certain. Costs no round trip.
    pub fn check(&self) -> Result<(), Lost> {
        self.iter().try_for_each(Hold::check)
    }

    /// Returns for how long all of them are certain, zero once one is not.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.iter().map(Hold::remaining).min().unwrap_or_default()
    }

    /// Completes when the first of them is lost.
    pub async fn lost(&self) -> Lost {
        let mut all: Vec<_> = self.iter().map(|hold| Box::pin(hold.lost())).collect();
        poll_fn(|context| {
            let mut lost = all.iter_mut().map(|lost| lost.as_mut().poll(context));
            lost.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Releases all of them, and fails with the first error afterwards.
    pub async fn release(self) -> Result<()> {
        let mut outcome = Ok(());
        for hold in self.0 {
            outcome = outcome.and(hold.release().await);
        }
        outcome
    }
}

impl<'a> IntoIterator for &'a Holds {
    type Item = &'a Hold;
    type IntoIter = slice::Iter<'a, Hold>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Holds {
    type Item = Hold;
    type IntoIter = std::vec::IntoIter<Hold>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
