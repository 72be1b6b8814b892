//! Requests for locks.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::detached::{Cancel, Detached};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::hold::{Hold, Holds};
use crate::owner::Owner;
use crate::request::{Kind, Request};

/// The longest wait that the agent limits: a year.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A request for a [`Hold`] of one lock or the [`Holds`] of several. Awaiting it acquires them.
#[must_use = "a lock is acquired when its request is awaited"]
pub struct LockRequest<H> {
    owner: Owner,
    request: Request,
    result: PhantomData<fn() -> H>,
}

impl Owner {
    /// Acquires a lock, or reenters it.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> LockRequest<Hold> {
        LockRequest::new(self.clone(), vec![name.as_ref().to_vec()], false)
    }

    /// Acquires a lock if it is free or this owner's, and otherwise fails with [`Error::Timeout`].
    pub fn try_lock(&self, name: impl AsRef<[u8]>) -> LockRequest<Hold> {
        self.lock(name).wait(Duration::ZERO)
    }

    /// Acquires several locks, all or none: up to 64, each named once.
    pub fn lock_all<N: AsRef<[u8]>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockRequest<Holds> {
        let names = names.into_iter().map(|name| name.as_ref().to_vec()).collect();
        LockRequest::new(self.clone(), names, true)
    }
}

impl<H> LockRequest<H> {
    fn new(owner: Owner, names: Vec<Vec<u8>>, several: bool) -> Self {
        let request = Request { names, several, kind: Kind::Plain, wait: None, lease: None };
        Self { owner, request, result: PhantomData }
    }

    /// Acquires locks of this kind instead of plain ones.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.request.kind = kind;
        self
    }

    /// Limits the wait. Without a limit, or with one of more than a year, it ends only when the future is dropped.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.request.wait = (limit <= LONGEST_WAIT).then_some(limit);
        self
    }

    /// Sets a fixed lease, which nothing renews.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.lease = Some(lease);
        self
    }
}

impl<H> std::fmt::Debug for LockRequest<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockRequest")
            .field("names", &self.request.describe())
            .finish_non_exhaustive()
    }
}

impl IntoFuture for LockRequest<Hold> {
    type Output = Result<Hold>;
    type IntoFuture = Locking<Hold>;

    fn into_future(self) -> Locking<Hold> {
        Locking::new(self.owner, self.request, |mut holds| holds.swap_remove(0))
    }
}

impl IntoFuture for LockRequest<Holds> {
    type Output = Result<Holds>;
    type IntoFuture = Locking<Holds>;

    fn into_future(self) -> Locking<Holds> {
        Locking::new(self.owner, self.request, Holds)
    }
}

/// The future of a [`LockRequest`]. Dropping it withdraws the request; what was granted already is released. Once polled,
/// it continues by itself, so that its wait ends at its limit.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Locking<H: 'static>(Detached<H>);

impl<H: Send + 'static> Locking<H> {
    fn new(owner: Owner, request: Request, result: fn(Vec<Hold>) -> H) -> Self {
        let cancel = Arc::<Cancel>::default();
        let requested = cancel.clone();
        let work = async move {
            let using = owner.enter()?;
            let grants = using.session().lock(&request, &requested).await?;
            let hold = |grant| Hold::new(using.session().clone(), owner.clone(), grant);
            Ok(result(grants.into_iter().map(hold).collect()))
        };
        Self(Detached::new(work).cancelling(cancel))
    }
}

impl<H: Send + 'static> Future for Locking<H> {
    type Output = Result<H>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}
