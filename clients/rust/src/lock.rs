//! Requests for locks.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::agent::Owner;
use crate::detached::{Cancel, Detached};
use crate::error::Result;
use crate::hold::{Hold, Holds};
use crate::resp::Command;

/// A kind of lock. All users of a name use it as the same kind at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// One holder: Redisson's `RLock`.
    #[default]
    Plain,
    /// One holder, first come, first served among all clients: `RFairLock`.
    Fair,
    /// The side of any number of readers: `RReadWriteLock`.
    Read,
    /// The side of one writer: `RReadWriteLock`.
    Write,
    /// One holder, with a token that grows with each grant: `RFencedLock`.
    Fenced,
    /// One holder, which has a majority of several independent servers: `RedissonRedLock`.
    Red,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Plain, Self::Fair, Self::Read, Self::Write, Self::Fenced, Self::Red];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Plain => "lock",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fenced => "fenced",
            Self::Red => "red",
        }
    }

    pub(crate) fn from_word(word: &[u8]) -> Self {
        Self::ALL.into_iter().find(|kind| kind.word().as_bytes() == word).unwrap_or_default()
    }
}

/// The locks and options of a request.
pub(crate) struct Request {
    pub(crate) names: Vec<Vec<u8>>,
    /// Acquires them as several, even if it is one.
    pub(crate) several: bool,
    pub(crate) kind: Kind,
    pub(crate) wait: Option<Duration>,
    pub(crate) lease: Option<Duration>,
}

impl Request {
    /// Returns the command, with what is left of the wait.
    pub(crate) fn command(&self, left: Option<Duration>, session: &str) -> Command {
        let mut command = if self.several {
            Command::new("MLOCK").number(self.names.len() as u128)
        } else {
            Command::new("LOCK")
        };
        for name in &self.names {
            command = command.word(name);
        }
        command = command.word("KIND").word(self.kind.word());
        if let Some(left) = left {
            command = command.word("WAIT").number(left.as_millis());
        }
        if let Some(lease) = self.lease {
            command = command.word("LEASE").number(lease.as_millis());
        }
        command.word("IN").word(session)
    }

    pub(crate) fn describe(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        names.join(", ")
    }
}

/// A request for a [`Hold`] of one lock or the [`Holds`] of several. Awaiting it acquires them.
#[must_use = "a lock is acquired when its request is awaited"]
pub struct LockRequest<H> {
    owner: Owner,
    request: Request,
    result: PhantomData<fn() -> H>,
}

impl<H> LockRequest<H> {
    pub(crate) fn new(owner: Owner, names: Vec<Vec<u8>>, several: bool) -> Self {
        let request = Request { names, several, kind: Kind::Plain, wait: None, lease: None };
        Self { owner, request, result: PhantomData }
    }

    /// Acquires locks of this kind instead of plain ones.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.request.kind = kind;
        self
    }

    /// Limits the wait. Without a limit it ends only when the future is dropped.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.request.wait = Some(limit);
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

/// The future of a [`LockRequest`]. Dropping it withdraws the request; what was granted already is released.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Locking<H: 'static>(Detached<Result<H>>);

impl<H: 'static> Locking<H> {
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

impl<H: 'static> Future for Locking<H> {
    type Output = Result<H>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}
